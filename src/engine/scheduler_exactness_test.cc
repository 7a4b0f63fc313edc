// The promise of the prefix cache: an answer is the same, to the last bit, with it and without it,
// however prompts are split, shared, forked, evicted and restored, in memory, from disk and after a
// restart, alone and in a full batch.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/scheduler_test_util.h"

namespace k3 {
namespace {

constexpr int kConversations = 300;
constexpr int kConversationsAtOnce = 10;
constexpr int kTurns = 3;

/// Lengths at which something changes: around the grid of 16 and pages of 256, and tails of 1 to 5.
int64_t EdgyLength(std::mt19937& random, int64_t most) {
  constexpr int64_t kAround[] = {16, 32, 48, 64, 128, 240, 256, 272, 512};
  const int64_t base = kAround[random() % std::size(kAround)];
  const int64_t length = base + static_cast<int64_t>(random() % 11) - 5;
  return std::clamp<int64_t>(length, 1, most);
}

struct Conversation {
  std::vector<std::vector<int32_t>> histories;  // after each turn, to go on from
  std::string salt;
};

class SchedulerExactnessTest : public SchedulerTest {
 protected:
  void SetUp() override {
    SchedulerTest::SetUp();
    dir_ = std::filesystem::path(testing::TempDir()) /
           ("k3-exactness-" + std::to_string(getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  /// Some prompts of this seed begin like others, as those of one application do.
  std::vector<int32_t> FirstPrompt(std::mt19937& random) const {
    std::vector<int32_t> prompt = Tokens(EdgyLength(random, 300), random() % 4);
    const std::vector<int32_t> own = Tokens(1 + random() % 20, random());
    prompt.insert(prompt.end(), own.begin(), own.end());
    return prompt;
  }

  ScheduledRequest MakeRequest(const Conversation& conversation, std::vector<int32_t> prompt,
                               std::mt19937& random) const {
    ScheduledRequest request = Request(std::move(prompt), random(), 1 + random() % 12);
    request.cache_salt = conversation.salt;
    const int64_t length = std::ssize(request.prompt);
    // A system prompt that ends anywhere.
    request.boundaries = {static_cast<int64_t>(random()) % length + 1};
    return request;
  }

  /// Runs every conversation, ten at a time, and compares each answer with a cold run.
  void RunConversations(SchedulerOptions options, int restart_every) {
    ColdRunner cold(kModelDir);
    std::mt19937 random(7);
    std::unique_ptr<Scheduler> scheduler;
    int64_t cached = 0, prompts = 0;
    for (int first = 0; first < kConversations; first += kConversationsAtOnce) {
      if (scheduler == nullptr || (restart_every > 0 && first % restart_every == 0)) {
        if (scheduler != nullptr) Count(*scheduler);
        scheduler.reset();  // one after the other: they share a directory
        scheduler = StartScheduler(options);
      }
      std::vector<Conversation> conversations(kConversationsAtOnce);
      for (Conversation& conversation : conversations) {
        conversation.salt = random() % 8 == 0 ? "another tenant" : "";
      }
      for (int turn = 0; turn < kTurns; ++turn) {
        RunTurn(*scheduler, cold, conversations, turn, random, &cached, &prompts);
      }
    }
    Count(*scheduler);
    EXPECT_GT(cached, prompts / 4) << "the cache did little";
  }

  void RunTurn(Scheduler& scheduler, ColdRunner& cold, std::vector<Conversation>& conversations,
               int turn, std::mt19937& random, int64_t* cached, int64_t* prompts) {
    std::vector<ScheduledRequest> twins;
    std::vector<std::future<Answer>> answers;
    for (Conversation& conversation : conversations) {
      std::vector<int32_t> prompt;
      if (turn == 0) {
        prompt = FirstPrompt(random);
      } else {
        // Mostly the last turn goes on, sometimes an earlier one: a fork.
        const size_t last = conversation.histories.size() - 1;
        prompt = conversation.histories[random() % 4 == 0 ? random() % (last + 1) : last];
        const int64_t tail = random() % 2 == 0 ? 1 + random() % 5 : EdgyLength(random, 100);
        const std::vector<int32_t> more = Tokens(tail, random());
        prompt.insert(prompt.end(), more.begin(), more.end());
      }
      twins.push_back(MakeRequest(conversation, prompt, random));
      ScheduledRequest request =
          Request(prompt, twins.back().sampling.seed, twins.back().max_tokens);
      request.cache_salt = conversation.salt;
      request.boundaries = twins.back().boundaries;
      answers.push_back(SubmitTo(scheduler, std::move(request)));
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer answer = answers[i].get();
      ASSERT_TRUE(answer.result.ok()) << answer.result.status().ToString();
      ASSERT_TRUE(answer.SameTextAs(cold.Run(twins[i])))
          << "turn " << turn << ", prompt of " << twins[i].prompt.size() << ", "
          << answer.result->cached_tokens << " from the cache";
      *cached += answer.result->cached_tokens;
      *prompts += answer.result->prompt_tokens;
      std::vector<int32_t> history = twins[i].prompt;
      history.insert(history.end(), answer.ids.begin(), answer.ids.end());
      if (random() % 4 != 0) {
        ScheduledRequest settle = Request(history, 0, 0);
        settle.background = true;
        settle.cache_salt = conversations[i].salt;
        std::future<Answer> settled = SubmitTo(scheduler, std::move(settle));
        if (random() % 2 == 0) settled.get();
      }
      conversations[i].histories.push_back(std::move(history));
    }
  }

  void Count(const Scheduler& scheduler) {
    const SchedulerStats stats = scheduler.Stats();
    EXPECT_LE(stats.prefix.memory.bytes, stats.prefix.memory.bytes_max);
    evictions_ += stats.prefix.memory.evicted_pages + stats.prefix.memory.evicted_snapshots;
    disk_hits_ += stats.prefix.disk_hits;
  }

  std::filesystem::path dir_;
  int64_t evictions_ = 0;
  int64_t disk_hits_ = 0;
};

TEST_F(SchedulerExactnessTest, FromMemoryWithRoomForAll) {
  RunConversations({.streams_max = 16, .prefix = {.memory_bytes_max = int64_t{512} << 20}}, 0);
  EXPECT_EQ(evictions_, 0);
}

TEST_F(SchedulerExactnessTest, FromMemoryWithEvictionsAllTheTime) {
  RunConversations({.streams_max = 16, .prefix = {.memory_bytes_max = int64_t{8} << 20}}, 0);
  EXPECT_GT(evictions_, 100);
}

TEST_F(SchedulerExactnessTest, FromDiskAndAfterRestarts) {
  RunConversations({.streams_max = 16,
                    .prefix = {.memory_bytes_max = int64_t{8} << 20,
                               .disk_dir = dir_.string(),
                               .disk_bytes_max = int64_t{1} << 30}},
                   50);
  EXPECT_GT(disk_hits_, 50);
}

TEST_F(SchedulerExactnessTest, FromADiskTierThatIsTooSmall) {
  RunConversations({.streams_max = 16,
                    .prefix = {.memory_bytes_max = int64_t{4} << 20,
                               .disk_dir = dir_.string(),
                               .disk_bytes_max = int64_t{8} << 20}},
                   100);
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(bytes, int64_t{8} << 20);
}

TEST_F(SchedulerExactnessTest, EveryPromptLengthAroundTheGridAndThePage) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = int64_t{256} << 20}});
  ColdRunner cold(kModelDir);
  const std::vector<int32_t> all = Tokens(600, 3);
  for (const int64_t length :
       {1,   2,   5,   15,  16,  17,  18,  21,  31,  32,  33,  47,  48,  49,  127, 128, 129, 239,
        240, 241, 255, 256, 257, 258, 261, 271, 272, 273, 511, 512, 513, 514, 517, 527, 528, 529}) {
    const std::vector<int32_t> prompt(all.begin(), all.begin() + length);
    const Answer expected = cold.Run(Request(prompt, 1));
    for (int again = 0; again < 2; ++again) {
      const Answer answer = SubmitTo(*scheduler, Request(prompt, 1)).get();
      EXPECT_TRUE(answer.SameTextAs(expected)) << length;
      if (again == 1) {
        EXPECT_EQ(answer.result->cached_tokens, (length - 1) / 16 * 16) << length;
      }
    }
  }
}

TEST_F(SchedulerExactnessTest, ManyRequestsOnOneSnapshotAtOnce) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.streams_max = 12, .prefix = {.memory_bytes_max = int64_t{64} << 20}});
  ColdRunner cold(kModelDir);
  const std::vector<int32_t> base = Tokens(300, 1);
  SubmitTo(*scheduler, Request(base, 1)).get();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::future<Answer>> answers;
  for (uint32_t i = 0; i < 12; ++i) {
    prompts.push_back(base);
    const std::vector<int32_t> more = Tokens(1 + i % 5, 50 + i);
    prompts.back().insert(prompts.back().end(), more.begin(), more.end());
    answers.push_back(SubmitTo(*scheduler, Request(prompts.back(), i, 20)));
  }
  for (uint32_t i = 0; i < 12; ++i) {
    const Answer answer = answers[i].get();
    EXPECT_EQ(answer.result->cached_tokens, 288) << i;
    EXPECT_TRUE(answer.SameTextAs(cold.Run(Request(prompts[i], i, 20)))) << i;
  }
}

TEST_F(SchedulerExactnessTest, ReusedDecodedStateGoesOnAsItsSessionWould) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = int64_t{256} << 20, .reuse_decoded = true}});
  ColdRunner cold(kModelDir);
  std::mt19937 random(3);
  for (int conversation = 0; conversation < 20; ++conversation) {
    Session session(cold.engine());
    std::vector<int32_t> history = Tokens(EdgyLength(random, 600), random());
    std::vector<int32_t> fresh = history;  // what the session has not run
    for (int turn = 0; turn < 4; ++turn) {
      const uint64_t seed = random();
      const int64_t tokens = 2 + static_cast<int64_t>(random() % 30);
      const Answer expected = cold.Continue(session, Request(fresh, seed, tokens));
      const Answer answer = SubmitTo(*scheduler, Request(history, seed, tokens)).get();
      ASSERT_TRUE(answer.SameTextAs(expected)) << conversation << " " << turn;
      if (turn > 0) {
        EXPECT_EQ(answer.result->cached_tokens, std::ssize(history) - std::ssize(fresh));
        EXPECT_GT(answer.result->decoded_tokens, 0);
      }
      fresh = {answer.ids.back()};
      history.insert(history.end(), answer.ids.begin(), answer.ids.end());
      const std::vector<int32_t> more = Tokens(1 + random() % 40, random());
      fresh.insert(fresh.end(), more.begin(), more.end());
      history.insert(history.end(), more.begin(), more.end());
    }
  }
}

}  // namespace
}  // namespace k3

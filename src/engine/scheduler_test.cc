#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>

#include "engine/scheduler_test_util.h"

namespace k3 {
namespace {

constexpr int64_t kCacheBytes = int64_t{64} << 20;

TEST_F(SchedulerTest, EveryRequestOfAFullBatchGetsWhatItWouldAlone) {
  const std::unique_ptr<Scheduler> scheduler = StartScheduler({.streams_max = 16});
  ColdRunner cold(kModelDir);
  std::vector<std::future<Answer>> answers;
  std::vector<Answer> expected;
  for (int i = 0; i < 40; ++i) {
    const std::vector<int32_t> prompt = Tokens(1 + i * 13, 100 + static_cast<uint32_t>(i));
    answers.push_back(SubmitTo(*scheduler, Request(prompt, 7, 1 + i % 30)));
    expected.push_back(cold.Run(Request(prompt, 7, 1 + i % 30)));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer answer = answers[i].get();
    ASSERT_TRUE(answer.result.ok()) << answer.result.status().ToString();
    EXPECT_TRUE(answer.SameTextAs(expected[i])) << i;
    EXPECT_EQ(answer.result->generated_tokens, std::ssize(answer.ids));
  }
}

TEST_F(SchedulerTest, TheChunkAndTheBudgetOfAPassChangeNoBit) {
  ColdRunner cold(kModelDir);
  const ScheduledRequest request = Request(Tokens(300, 5), 3, 12);
  const Answer expected = cold.Run(request);
  for (const int64_t chunk : {1, 7, 16, 100, 512}) {
    const std::unique_ptr<Scheduler> scheduler =
        StartScheduler({.budget = {.chunk_tokens_max = chunk}});
    EXPECT_TRUE(SubmitTo(*scheduler, Request(request.prompt, 3, 12)).get().SameTextAs(expected))
        << chunk;
  }
}

TEST_F(SchedulerTest, ASecondRequestTakesOverWhatTheFirstHasRead) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes}});
  ColdRunner cold(kModelDir);
  const std::vector<int32_t> prompt = Tokens(500, 1);
  const Answer first = SubmitTo(*scheduler, Request(prompt, 1)).get();
  const Answer second = SubmitTo(*scheduler, Request(prompt, 1)).get();
  EXPECT_EQ(first.result->cached_tokens, 0);
  EXPECT_EQ(second.result->cached_tokens, 496);  // the last grid point that leaves a token
  const Answer expected = cold.Run(Request(prompt, 1));
  EXPECT_TRUE(first.SameTextAs(expected));
  EXPECT_TRUE(second.SameTextAs(expected));
}

// What is kept on the way costs no pass: a chunk is run whole, whatever boundaries lie in it.
TEST_F(SchedulerTest, BoundariesInsideAChunkAreKeptByItsOnePass) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes}});
  ColdRunner cold(kModelDir);
  const std::vector<int32_t> prompt = Tokens(405, 1);
  ScheduledRequest request = Request(prompt, 1, 1);
  request.boundaries = {100, 209};
  EXPECT_TRUE(
      SubmitTo(*scheduler, std::move(request)).get().SameTextAs(cold.Run(Request(prompt, 1, 1))));
  EXPECT_EQ(scheduler->Stats().passes, 1);
  // Prompts that part from it behind each boundary, and its own end.
  for (const auto& [common, cached] :
       {std::pair<int64_t, int64_t>{100, 96}, {230, 208}, {405, 400}}) {
    std::vector<int32_t> other(prompt.begin(), prompt.begin() + common);
    const std::vector<int32_t> tail = Tokens(30, 9);
    other.insert(other.end(), tail.begin(), tail.end());
    const Answer answer = SubmitTo(*scheduler, Request(other, 2, 5)).get();
    EXPECT_EQ(answer.result->cached_tokens, cached) << common;
    EXPECT_TRUE(answer.SameTextAs(cold.Run(Request(other, 2, 5)))) << common;
  }
}

TEST_F(SchedulerTest, EqualPromptsAtOnceAreReadOnce) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes}});
  const std::vector<int32_t> prompt = Tokens(2000, 1);
  std::vector<std::future<Answer>> answers;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    answers.push_back(SubmitTo(*scheduler, Request(prompt, seed)));
  }
  int64_t cached = 0;
  for (std::future<Answer>& answer : answers) cached += answer.get().result->cached_tokens;
  EXPECT_EQ(cached, 7 * 1984);
}

TEST_F(SchedulerTest, TenantsShareNothing) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes}});
  ScheduledRequest a = Request(Tokens(400, 1), 1), b = Request(Tokens(400, 1), 1);
  a.cache_salt = "a";
  b.cache_salt = "b";
  EXPECT_EQ(SubmitTo(*scheduler, std::move(a)).get().result->cached_tokens, 0);
  EXPECT_EQ(SubmitTo(*scheduler, std::move(b)).get().result->cached_tokens, 0);
}

TEST_F(SchedulerTest, BackgroundWorkMakesGeneratedTokensReusable) {
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes}});
  ColdRunner cold(kModelDir);
  std::vector<int32_t> history = Tokens(333, 1);
  const Answer answer = SubmitTo(*scheduler, Request(history, 1, 40)).get();
  history.insert(history.end(), answer.ids.begin(), answer.ids.end());
  ScheduledRequest settle = Request(history, 0, 0);
  settle.background = true;
  SubmitTo(*scheduler, std::move(settle)).get();
  const std::vector<int32_t> more = Tokens(20, 9);
  history.insert(history.end(), more.begin(), more.end());
  const Answer next = SubmitTo(*scheduler, Request(history, 2)).get();
  EXPECT_EQ(next.result->cached_tokens, (333 + std::ssize(answer.ids) - 1) / 16 * 16);
  EXPECT_TRUE(next.SameTextAs(cold.Run(Request(history, 2))));
}

TEST_F(SchedulerTest, CancelledRequestsEndSoonAndLeaveNothing) {
  const std::unique_ptr<Scheduler> scheduler = StartScheduler({.streams_max = 4});
  std::vector<uint64_t> ids(12);
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < ids.size(); ++i) {
    answers.push_back(
        SubmitTo(*scheduler, Request(Tokens(2000, static_cast<uint32_t>(i)), 1, 1000), &ids[i]));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const uint64_t id : ids) scheduler->Cancel(id);
  scheduler->Cancel(12345);  // never was
  for (std::future<Answer>& answer : answers) {
    const Answer got = answer.get();
    ASSERT_FALSE(got.result.ok());
    EXPECT_EQ(got.result.status().code(), StatusCode::kCancelled);
  }
  EXPECT_TRUE(scheduler->Drain(10));
  const SchedulerStats stats = scheduler->Stats();
  EXPECT_EQ(stats.queued, 0);
  EXPECT_EQ(stats.cancelled, 12);
}

TEST_F(SchedulerTest, ANumberThatIsNoneEndsItsOwnRequestAlone) {
  uint64_t broken = 0;
  std::atomic<uint64_t> target = 0;
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.prefix = {.memory_bytes_max = kCacheBytes},
                      .before_pass = [&](uint64_t id, cache::SequenceState& state) {
                        if (id != target) return;
                        state.kda(0).state.data()[0] = std::numeric_limits<float>::quiet_NaN();
                      }});
  ColdRunner cold(kModelDir);
  const std::vector<int32_t> prompt = Tokens(400, 1);
  target = 2;  // ids count from 1
  std::future<Answer> before = SubmitTo(*scheduler, Request(Tokens(390, 7), 1, 30));
  std::future<Answer> bad = SubmitTo(*scheduler, Request(prompt, 1, 30), &broken);
  std::future<Answer> after = SubmitTo(*scheduler, Request(Tokens(410, 8), 1, 30));
  ASSERT_EQ(broken, 2u);
  const Answer failed = bad.get();
  ASSERT_FALSE(failed.result.ok());
  EXPECT_EQ(failed.result.status().code(), StatusCode::kInternal);
  EXPECT_TRUE(before.get().SameTextAs(cold.Run(Request(Tokens(390, 7), 1, 30))));
  EXPECT_TRUE(after.get().SameTextAs(cold.Run(Request(Tokens(410, 8), 1, 30))));
  // Nothing of it was kept for others.
  const Answer again = SubmitTo(*scheduler, Request(prompt, 1, 30)).get();
  EXPECT_TRUE(again.SameTextAs(cold.Run(Request(prompt, 1, 30))));
  EXPECT_EQ(again.result->cached_tokens, 0);
}

TEST_F(SchedulerTest, RefusesWhatCanNeverRunAndWhatFindsTheQueueFull) {
  const int64_t room = int64_t{8} << 20;
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.streams_max = 1, .queue_max = 2, .memory_bytes_max = room});
  const auto refusal = [&](ScheduledRequest request) {
    std::promise<Answer> unused;
    return scheduler
        ->Submit(std::move(request), std::make_unique<RememberingSink>(std::move(unused)))
        .status();
  };
  EXPECT_EQ(refusal(Request({}, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(Request({-1}, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(Request(Tokens(engine_->config().context_max, 1), 1)).code(),
            StatusCode::kInvalidArgument);
  std::vector<std::future<Answer>> answers;
  bool was_full = false;
  for (int i = 0; i < 50 && !was_full; ++i) {
    std::promise<Answer> done;
    std::future<Answer> answer = done.get_future();
    const Result<uint64_t> id = scheduler->Submit(
        Request(Tokens(1000, 1), 1, 200), std::make_unique<RememberingSink>(std::move(done)));
    if (id.ok()) {
      answers.push_back(std::move(answer));
    } else {
      was_full = true;
      EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
    }
  }
  EXPECT_TRUE(was_full);
  for (std::future<Answer>& answer : answers) EXPECT_TRUE(answer.get().result.ok());
}

TEST_F(SchedulerTest, PlannedMemoryIsNeverPassed) {
  const int64_t one = cache::SequenceStateBytes(engine_->config(), 1000);
  std::atomic<int64_t> worst = 0;
  Scheduler* running = nullptr;
  const std::unique_ptr<Scheduler> scheduler =
      StartScheduler({.streams_max = 16,
                      .memory_bytes_max = one * 3 + one / 2,
                      .before_pass = [&](uint64_t, cache::SequenceState&) {
                        if (running != nullptr)
                          worst = std::max(worst.load(), running->Stats().planned_bytes);
                      }});
  running = scheduler.get();
  std::vector<std::future<Answer>> answers;
  for (uint32_t i = 0; i < 12; ++i) {
    answers.push_back(SubmitTo(*scheduler, Request(Tokens(900, i), 1, 100)));
  }
  for (std::future<Answer>& answer : answers) EXPECT_TRUE(answer.get().result.ok());
  EXPECT_LE(worst, one * 3);
  EXPECT_GT(worst, one);
}

TEST_F(SchedulerTest, ShortRequestsPassLongOnes) {
  const std::unique_ptr<Scheduler> scheduler = StartScheduler({.streams_max = 4});
  const int64_t longest = std::min<int64_t>(engine_->config().context_max - 100, 12'000);
  std::vector<std::future<Answer>> longs;
  for (uint32_t i = 0; i < 4; ++i) {
    longs.push_back(SubmitTo(*scheduler, Request(Tokens(longest, i), 1, 4)));
  }
  const Answer quick = SubmitTo(*scheduler, Request(Tokens(50, 77), 1, 4)).get();
  EXPECT_TRUE(quick.result.ok());
  EXPECT_EQ(longs.back().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  for (std::future<Answer>& answer : longs) EXPECT_TRUE(answer.get().result.ok());
}

TEST_F(SchedulerTest, DrainingFinishesWhatRunsAndRefusesTheRest) {
  const std::unique_ptr<Scheduler> scheduler = StartScheduler();
  std::future<Answer> answer = SubmitTo(*scheduler, Request(Tokens(500, 1), 1, 50));
  EXPECT_TRUE(scheduler->Drain(30));
  EXPECT_TRUE(answer.get().result.ok());
  std::promise<Answer> unused;
  const Result<uint64_t> late = scheduler->Submit(
      Request(Tokens(5, 1), 1), std::make_unique<RememberingSink>(std::move(unused)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
}

TEST_F(SchedulerTest, EndsWithRequestsOfEveryKindUnderWay) {
  std::vector<std::future<Answer>> answers;
  {
    const std::unique_ptr<Scheduler> scheduler = StartScheduler({.streams_max = 2});
    for (uint32_t i = 0; i < 6; ++i) {
      answers.push_back(SubmitTo(*scheduler, Request(Tokens(3000, i), 1, 1000)));
    }
  }
  for (std::future<Answer>& answer : answers) {
    EXPECT_EQ(answer.get().result.status().code(), StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace k3

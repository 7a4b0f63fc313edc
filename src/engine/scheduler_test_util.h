#pragma once
// What the scheduler's tests share: a small model, a sink that remembers, and the answer of a cold
// run to compare with.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/scheduler.h"
#include "engine/session.h"

namespace k3 {

/// What one request gave: ids, the bits of their log-probabilities, and how it ended.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  Result<ScheduledResult> result = Internal("it has not ended");

  /// The same ids and the same bits.
  bool SameTextAs(const Answer& other) const {
    return ids == other.ids && log_probs == other.log_probs;
  }
};

class RememberingSink : public RequestSink {
 public:
  explicit RememberingSink(std::promise<Answer> done) : done_(std::move(done)) {}
  SinkVerdict OnToken(const SampledToken& token) override {
    answer_.ids.push_back(token.id);
    answer_.log_probs.push_back(token.log_prob);
    return SinkVerdict::kContinue;
  }
  void OnEnd(const Result<ScheduledResult>& result) override {
    answer_.result = result;
    done_.set_value(std::move(answer_));
  }

 private:
  std::promise<Answer> done_;
  Answer answer_;
};

inline std::future<Answer> SubmitTo(Scheduler& scheduler, ScheduledRequest request,
                                    uint64_t* id = nullptr) {
  std::promise<Answer> done;
  std::future<Answer> answer = done.get_future();
  const Result<uint64_t> submitted =
      scheduler.Submit(std::move(request), std::make_unique<RememberingSink>(std::move(done)));
  EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
  if (id != nullptr && submitted.ok()) *id = *submitted;
  return answer;
}

/// Answers requests alone and from the first token, on an engine of its own.
class ColdRunner {
 public:
  explicit ColdRunner(const std::string& dir) {
    Result<std::unique_ptr<Engine>> engine =
        Engine::Open(dir, {.threads = 1, .target = {}, .needs_tokenizer = false});
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  Answer Run(const ScheduledRequest& request) {
    Session session(*engine_);
    return Continue(session, request);
  }

  /// The same in a session that has seen tokens already: `request.prompt` is what is new.
  Answer Continue(Session& session, const ScheduledRequest& request) {
    class Sink : public TokenSink {
     public:
      SinkVerdict OnToken(const SampledToken& token) override {
        answer.ids.push_back(token.id);
        answer.log_probs.push_back(token.log_prob);
        return SinkVerdict::kContinue;
      }
      Answer answer;
    } sink;
    GenerateOptions options;
    options.sampling = request.sampling;
    options.max_tokens = request.max_tokens;
    options.stop_ids = request.stop_ids;
    const Result<GenerateResult> result = Generate(session, request.prompt, options, sink);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    sink.answer.result = ScheduledResult{.generated_tokens = result->generated_tokens};
    return std::move(sink.answer);
  }

  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

class SchedulerTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Engine>> engine =
        Engine::Open(kModelDir, {.threads = 2, .target = {}, .needs_tokenizer = false});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  std::unique_ptr<Scheduler> StartScheduler(SchedulerOptions options = {}) {
    if (options.memory_bytes_max == 0) options.memory_bytes_max = int64_t{1} << 30;
    Result<std::unique_ptr<Scheduler>> scheduler = Scheduler::Start(*engine_, std::move(options));
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().ToString();
    return std::move(*scheduler);
  }

  std::vector<int32_t> Tokens(int64_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens;
    const auto vocab_size = static_cast<uint32_t>(engine_->config().vocab_size);
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int32_t>(random() % vocab_size));
    return tokens;
  }

  ScheduledRequest Request(std::vector<int32_t> prompt, uint64_t seed,
                           int64_t max_tokens = 8) const {
    ScheduledRequest request;
    request.prompt = std::move(prompt);
    request.sampling.seed = seed;
    request.max_tokens = max_tokens;
    return request;
  }

  static constexpr const char* kModelDir = K3_SOURCE_DIR "/tests/golden/tiny-a";
  std::unique_ptr<Engine> engine_;
};

}  // namespace k3

#pragma once
// Engine: a loaded checkpoint, ready to run. A Session (session.h) is one sequence on it.
//
//   K3_TRY(std::unique_ptr<Engine> engine, Engine::Open("models/kjv", {}));
//   Session session(*engine);
//   std::vector<float> logits(V);
//   K3_RETURN_IF_ERROR(session.Prefill(ids, logits));       // logits after the last token
//   K3_RETURN_IF_ERROR(session.Decode(next_id, logits));
//
// The engine owns the mapped checkpoint, its bound parameters, the tokenizer and the threads, and
// does not change after Open. A pass uses all threads, so one session runs at a time; sessions and
// the batch runner borrow the engine, which must outlive them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "engine/checked_experts.h"
#include "kernels/target.h"
#include "model/forward.h"
#include "text/tokenizer.h"
#include "weights/weights.h"

namespace k3 {

/// Tokens of a prompt that go through the network at once by default: enough to use every loaded
/// weight panel many times, small enough for memory. Results do not depend on it.
inline constexpr int64_t kDefaultPrefillChunk = 512;

struct EngineOptions {
  int threads = 0;                   // 0: every core this process may use
  std::optional<SimdTarget> target;  // absent: the widest the processor has
  bool needs_tokenizer = true;       // false: open a checkpoint that has none
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Open(const std::string& dir, const EngineOptions& options);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return checkpoint_.config(); }
  const model::Parameters& parameters() const { return parameters_; }
  /// Must not be called when the engine was opened without a tokenizer.
  const Tokenizer& tokenizer() const;
  int threads() const { return pool_->threads_count(); }
  SimdTarget target() const { return kernels_.target; }
  /// Ids that end an answer: of generation_config.json, else of config.json.
  std::span<const int64_t> stop_ids() const;

  /// One forward pass (model/forward.h) on this engine's threads and scratch.
  Status Run(const model::Batch& batch, std::span<const int32_t> logit_rows, float* logits,
             model::ForwardObserver* observer = nullptr);

  /// Runs a prompt that nobody asked for, so that the first one that somebody waits for finds the
  /// scratch memory of a full chunk mapped and the weights read. Where the weights would fill more
  /// than half of the memory that is free it does nothing: they are read as they are needed.
  Status WarmUp();

  ThreadPool& pool() { return *pool_; }
  const kernels::KernelTable& kernels() const { return kernels_; }

 private:
  Engine(Checkpoint checkpoint, const EngineOptions& options);

  Checkpoint checkpoint_;
  model::Parameters parameters_;
  std::optional<Tokenizer> tokenizer_;
  kernels::KernelTable kernels_;
  std::optional<CheckedExperts> experts_;
  std::unique_ptr<ThreadPool> pool_;
  Arena arena_;
};

/// Reads the two tokenizer files beside a checkpoint. NotFound names the missing one.
Result<Tokenizer> LoadTokenizer(const std::string& dir, int64_t vocab_size);

}  // namespace k3

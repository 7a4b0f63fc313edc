#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/limits.h"
#include "sys/machine.h"

namespace k3 {
namespace {

// Mapped at the start of what is in memory: a second at most.
constexpr int64_t kMapAheadBytes = int64_t{16} << 30;

constexpr std::string_view kTokenizerModelFile = "tiktoken.model";
constexpr std::string_view kTokenizerConfigFile = "tokenizer_config.json";

}  // namespace

Result<Tokenizer> LoadTokenizer(const std::string& dir, int64_t vocab_size) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string model_path = JoinPath(dir, kTokenizerModelFile);
  const std::string config_path = JoinPath(dir, kTokenizerConfigFile);
  K3_TRY(const std::string model,
         ReadWholeFile(*files, model_path, limits::kTokenizerFileBytesMax));
  K3_TRY(const std::string config, ReadWholeFile(*files, config_path, limits::kConfigFileBytesMax));
  return Tokenizer::Create({.model = model,
                            .model_where = model_path,
                            .config = config,
                            .config_where = config_path,
                            .vocab_size = vocab_size});
}

Engine::Engine(Checkpoint checkpoint, const EngineOptions& options)
    : checkpoint_(std::move(checkpoint)),
      kernels_(kernels::Kernels(options.target.value_or(BestSimdTarget()))),
      pool_(std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : UsableCores())) {}

Result<std::unique_ptr<Engine>> Engine::Open(const std::string& dir, const EngineOptions& options) {
  if (options.threads < 0 || options.threads > limits::kThreadsCountMax) {
    return InvalidArgument(fmt::format("threads: expected 0 (all cores) to {}, found {}",
                                       limits::kThreadsCountMax, options.threads));
  }
  if (options.target.has_value() && !IsSupported(*options.target)) {
    return InvalidArgument(fmt::format("this processor has no {}; the widest it has is {}",
                                       SimdTargetName(*options.target),
                                       SimdTargetName(BestSimdTarget())));
  }
  K3_TRY(Checkpoint checkpoint, Checkpoint::Open(dir));
  if (const std::optional<LayerRange>& part = checkpoint.partial_layers(); part.has_value()) {
    return InvalidArgument(
        fmt::format("{}: holds only the layers {} to {} of a model, which cannot "
                    "be run alone",
                    dir, part->first, part->last));
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(checkpoint), options));
  if (options.threads > 0 && engine->threads() < options.threads) {
    return ResourceExhausted(
        fmt::format("threads: expected {}, the system gave {}; ask for fewer or raise its limits",
                    options.threads, engine->threads()));
  }
  engine->checkpoint_.MapResident(*engine->pool_, kMapAheadBytes);
  if (options.needs_tokenizer) {
    K3_TRY(Tokenizer tokenizer, LoadTokenizer(dir, engine->config().vocab_size));
    engine->tokenizer_ = std::move(tokenizer);
  }
  K3_TRY(const WeightStore weights,
         WeightStore::Bind(engine->checkpoint_, {.validate_scales = false}));
  K3_TRY(engine->parameters_, model::BindParameters(weights));
  engine->experts_.emplace(weights, engine->parameters_);
  K3_RETURN_IF_ERROR(engine->experts_->CheckAtLoad(*engine->pool_));
  return engine;
}

Status Engine::WarmUp() {
  if (checkpoint_.tensor_bytes() > ReadMemoryFacts().available_bytes / 2) return OkStatus();
  const int64_t tokens = std::min(kDefaultPrefillChunk, config().context_max);
  // Different ones, so that many experts are chosen.
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    prompt[static_cast<size_t>(i)] = static_cast<int32_t>(i % config().vocab_size);
  }
  cache::SequenceState state(config());
  std::vector<float> logits(static_cast<size_t>(config().vocab_size));
  const auto last = static_cast<int32_t>(tokens - 1);
  return Run({{{&state, prompt, model::AttentionForm::kPrefill}}}, {&last, 1}, logits.data());
}

const Tokenizer& Engine::tokenizer() const {
  K3_CHECK(tokenizer_.has_value(), "opened without a tokenizer");
  return *tokenizer_;
}

std::span<const int64_t> Engine::stop_ids() const {
  const std::vector<int64_t>& generation = checkpoint_.generation_config().eos_token_ids;
  return generation.empty() ? config().eos_token_ids : generation;
}

Status Engine::Run(const model::Batch& batch, std::span<const int32_t> logit_rows, float* logits,
                   model::ForwardObserver* observer) {
  const model::ForwardContext ctx{
      .exec = {.pool = pool_.get(), .arena = &arena_, .kernels = &kernels_},
      .experts = &*experts_,
      .observer = observer};
  return model::Forward(ctx, config(), parameters_, batch, logit_rows, logits);
}

}  // namespace k3

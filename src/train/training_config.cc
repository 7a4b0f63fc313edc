#include "train/training_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "config/field_reader.h"
#include "config/json.h"

namespace k3::train {
namespace {

constexpr int64_t kDefaultMicroBatchTokens = 4096;
// The share of a run after which the experts of a quantised model are trained as MXFP4.
constexpr float kDefaultQuantisedFrom = 0.6f;
constexpr FloatRange kRate = {.above = 0, .max = 10};
constexpr FloatRange kShare = {.above = 0, .max = 1, .inclusive = true};

constexpr std::pair<std::string_view, BalancingRule> kBalancingRules[] = {
    {"histogram", BalancingRule::kHistogram},
    {"exact", BalancingRule::kExact},
    {"sign", BalancingRule::kSign},
    {"none", BalancingRule::kNone}};

/// Directory of a path with its slash, or nothing.
std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

/// Reads the sections of one file.
class Reader {
 public:
  Reader(const JsonValue& root, const std::string& where)
      : where_(where), directory_(DirectoryOf(where)), root_(root, where, "", &failure_) {}

  Result<TrainingConfig> Read(FileSystem& files, const std::string& from_dir) {
    TrainingConfig config;
    ReadRun(config);
    ReadData(config);
    ReadValidation(config);
    ReadOptimizer(config);
    ReadBalancing(config);
    ReadQuantisation(config);
    ReadRecompute(config);
    const JsonValue* model = root_.Get("model");
    K3_RETURN_IF_ERROR(failure_);
    std::string model_where = where_ + ": model";
    if (model == nullptr && !from_dir.empty()) {
      model_where = JoinPath(from_dir, kConfigFileName);
      K3_TRY(config.model_json, ReadWholeFile(files, model_where, limits::kConfigFileBytesMax));
    } else if (model != nullptr && model->string() != nullptr) {
      model_where = Path(*model->string());
      K3_TRY(config.model_json, ReadWholeFile(files, model_where, limits::kConfigFileBytesMax));
    } else if (model != nullptr && model->members() != nullptr) {
      config.model_json = DumpJson(*model);
    } else {
      root_.Fail("model", "a config.json of a model, as a path or an object",
                 model == nullptr ? "nothing" : model->Describe());
    }
    K3_RETURN_IF_ERROR(failure_);
    K3_RETURN_IF_ERROR(CheckUnknown());
    K3_TRY(config.model, ParseModelConfig(config.model_json, model_where));
    return config;
  }

 private:
  std::string Path(const std::string& path) const {
    return path.starts_with('/') ? path : directory_ + path;
  }

  FieldReader Section(std::string_view name) {
    static const JsonValue kEmpty{JsonValue::Members{}};
    const JsonValue* object = root_.Object(name);
    return FieldReader(object != nullptr ? *object : kEmpty, where_, std::string(name) + ".",
                       &failure_);
  }
  /// Takes note of what a section was asked for.
  void Close(const FieldReader& section) {
    for (std::string& field : section.UnknownFields()) unknown_.push_back(std::move(field));
  }

  /// Strings, one or a list; empty when absent.
  static std::vector<std::string> Strings(FieldReader& section, std::string_view name) {
    const JsonValue* value = section.Get(name);
    if (value == nullptr) return {};
    if (value->string() != nullptr) return {*value->string()};
    std::vector<std::string> strings;
    bool good = value->items() != nullptr;
    for (const JsonValue& item : good ? *value->items() : JsonValue::Items{}) {
      good = good && item.string() != nullptr;
      if (good) strings.push_back(*item.string());
    }
    if (!good) section.Fail(name, "a string or a list of strings", value->Describe());
    return strings;
  }
  std::vector<std::string> Paths(FieldReader& section, std::string_view name) {
    std::vector<std::string> paths = Strings(section, name);
    for (std::string& path : paths) path = Path(path);
    return paths;
  }
  /// One of a few names; `fallback` when absent.
  template <typename T>
  static T Choice(FieldReader& section, std::string_view name, T fallback, const auto& names) {
    const JsonValue* value = section.Get(name);
    if (value == nullptr) return fallback;
    std::string allowed;
    for (const auto& [text, named] : names) {
      if (value->string() != nullptr && *value->string() == text) return named;
      allowed += (allowed.empty() ? "" : ", ") + std::string(text);
    }
    section.Fail(name, "one of " + allowed, value->Describe());
    return fallback;
  }
  static float FloatOr(FieldReader& section, std::string_view name, float fallback,
                       FloatRange range) {
    return section.OptionalFloat(name, range).value_or(fallback);
  }

  void ReadRun(TrainingConfig& c) {
    c.sequence_length =
        root_.IntegerOr("sequence_length", c.sequence_length, {2, limits::kTrainingTokensMax});
    c.batch_sequences =
        root_.IntegerOr("batch_sequences", c.batch_sequences, {1, limits::kTrainingTokensMax});
    c.micro_batch_sequences = root_.IntegerOr("micro_batch_sequences", c.micro_batch_sequences,
                                              {0, limits::kTrainingTokensMax});
    c.steps = root_.IntegerOr("steps", c.steps, {1, limits::kTrainingStepsMax});
    c.primer_steps = root_.IntegerOr("primer_steps", 0, {0, limits::kPrimerStepsMax});
    c.seed = static_cast<uint64_t>(
        root_.IntegerOr("seed", static_cast<int64_t>(c.seed), {0, INT64_MAX}));
    c.checkpoint_every_steps = root_.IntegerOr("checkpoint_every", c.checkpoint_every_steps,
                                               {1, limits::kTrainingStepsMax});
  }

  void ReadData(TrainingConfig& c) {
    if (const JsonValue* value = root_.Get("tokenizer"); value != nullptr) {
      if (value->string() == nullptr) root_.Fail("tokenizer", "a directory", value->Describe());
      if (value->string() != nullptr) c.data.tokenizer_dir = Path(*value->string());
    }
    c.data.text_files = Paths(root_, "text");
    c.data.chat_files = Paths(root_, "chat");
    if (const JsonValue* value = root_.Get("separator"); value != nullptr) {
      if (value->string() == nullptr) root_.Fail("separator", "a line of text", value->Describe());
      if (value->string() != nullptr) c.data.separator = *value->string();
    }
    FieldReader tasks = Section("tasks");
    c.data.tasks_count = tasks.IntegerOr("count", 0, {0, limits::kTrainingTasksMax});
    std::vector<TaskKind> kinds;
    for (const std::string& name : Strings(tasks, "kinds")) {
      const std::optional<TaskKind> kind = ParseTaskKind(name);
      if (!kind.has_value()) {
        tasks.Fail("kinds", fmt::format("some of {}", TaskKindNames()), QuoteForMessage(name));
      }
      if (kind.has_value()) kinds.push_back(*kind);
    }
    if (!kinds.empty()) c.data.task_kinds = std::move(kinds);
    c.data.conversation_shape.turns_max = tasks.IntegerOr("turns", 1, {1, limits::kTaskTurnsMax});
    c.data.conversation_shape.distractors_max =
        tasks.IntegerOr("distractors", 0, {0, limits::kTaskDistractorsMax});
    c.data.conversation_shape.words_max = tasks.IntegerOr("words", 8, {8, limits::kTaskWordsMax});
    c.data.conversation_shape.makes_up_names = tasks.BoolOr("made_up_names", false);
    Close(tasks);
  }

  void ReadValidation(TrainingConfig& c) {
    FieldReader section = Section("validation");
    ValidationConfig& v = c.validation;
    const JsonValue* fraction = section.Get("fraction");
    if (fraction != nullptr) {
      const std::optional<double> value = fraction->number();
      if (!value.has_value() || !(*value >= 0 && *value < 1)) {
        section.Fail("fraction", "a number from 0 to below 1", fraction->Describe());
      }
      v.fraction = value.value_or(0);
    }
    v.text_files = Paths(section, "text");
    v.chat_files = Paths(section, "chat");
    v.every_steps = section.IntegerOr("every", v.every_steps, {1, limits::kTrainingStepsMax});
    v.tokens_max = section.IntegerOr("tokens", v.tokens_max, {0, INT64_MAX});
    v.context = section.IntegerOr("context", 0, {0, limits::kTrainingTokensMax});
    if (v.context == 1) section.Fail("context", "0 or at least 2 tokens", "1");
    Close(section);
  }

  void ReadOptimizer(TrainingConfig& c) {
    FieldReader section = Section("optimizer");
    OptimizerOptions& o = c.optimizer;
    constexpr std::pair<std::string_view, OptimizerKind> kKinds[] = {
        {"muon", OptimizerKind::kMuon}, {"adamw", OptimizerKind::kAdamW}};
    o.kind = Choice(section, "kind", o.kind, kKinds);
    c.learning_rate = FloatOr(section, "learning_rate", c.learning_rate, kRate);
    c.min_learning_rate_share = FloatOr(section, "min_share", c.min_learning_rate_share, kShare);
    o.per_head = section.BoolOr("per_head", o.per_head);
    o.muon_lr_scale = FloatOr(section, "muon_scale", o.muon_lr_scale, {.above = 0, .max = 1000});
    o.adamw_lr_scale = FloatOr(section, "adamw_scale", o.adamw_lr_scale, {.above = 0, .max = 1000});
    o.weight_decay = FloatOr(section, "weight_decay", o.weight_decay, kShare);
    o.clip_norm =
        FloatOr(section, "clip_norm", o.clip_norm, {.above = 0, .max = 1e9, .inclusive = true});
    o.qk_clip_tau =
        FloatOr(section, "qk_clip", o.qk_clip_tau, {.above = 0, .max = 1e9, .inclusive = true});
    o.muon.momentum = FloatOr(section, "momentum", o.muon.momentum, kShare);
    o.adamw.beta1 = FloatOr(section, "beta1", o.adamw.beta1, kShare);
    o.adamw.beta2 = FloatOr(section, "beta2", o.adamw.beta2, kShare);
    for (const auto& [name, value] :
         {std::pair("momentum", o.muon.momentum), std::pair("beta1", o.adamw.beta1),
          std::pair("beta2", o.adamw.beta2)}) {
      if (value >= 1) section.Fail(name, "a number below 1", fmt::format("{}", value));
    }
    Close(section);
  }

  void ReadBalancing(TrainingConfig& c) {
    FieldReader section = Section("balancing");
    c.balancing = Choice(section, "rule", c.balancing, kBalancingRules);
    c.sign_step = FloatOr(section, "sign_step", c.sign_step, kRate);
    Close(section);
  }

  void ReadQuantisation(TrainingConfig& c) {
    FieldReader section = Section("qat");
    constexpr std::pair<std::string_view, Mxfp4ScaleRule> kRules[] = {
        {"ceil", Mxfp4ScaleRule::kCeil}, {"floor", Mxfp4ScaleRule::kFloor}};
    c.quantisation.from_step = section.OptionalInteger("from_step", {0, limits::kTrainingStepsMax});
    const std::optional<float> share = section.OptionalFloat("from_share", kShare);
    if (share.has_value() && c.quantisation.from_step.has_value()) {
      section.Fail("from_share", "from_step or from_share", "both");
    }
    from_share_ = share;
    has_quantisation_ = root_.Get("qat") != nullptr;
    c.quantisation.rule = Choice(section, "scale_rule", c.quantisation.rule, kRules);
    c.quantisation.mxfp8_inputs = section.BoolOr("mxfp8_inputs", false);
    Close(section);
  }

  void ReadRecompute(TrainingConfig& c) {
    const std::array<std::pair<std::string_view, model::Keep*>, 5> kinds = {
        {{"normed", &c.tape.normed},
         {"kda", &c.tape.kda},
         {"mla", &c.tape.mla},
         {"mlp", &c.tape.mlp},
         {"experts", &c.tape.experts}}};
    for (const std::string& name : Strings(root_, "recompute")) {
      bool found = false;
      for (const auto& [kind, keep] : kinds) {
        if (kind == name) *keep = model::Keep::kRecompute;
        found = found || kind == name;
      }
      if (!found) {
        root_.Fail("recompute", "some of normed, kda, mla, mlp, experts", QuoteForMessage(name));
      }
    }
  }

  Status CheckUnknown() {
    for (const std::string_view name : {"tasks", "validation", "optimizer", "balancing", "qat"}) {
      root_.Ignore({name});
    }
    Close(root_);
    if (unknown_.empty()) return OkStatus();
    return InvalidArgument(fmt::format("{}: there is no field {}; docs/training.md lists them all",
                                       where_, unknown_[0]));
  }

 public:
  std::optional<float> from_share() const { return from_share_; }
  bool has_quantisation() const { return has_quantisation_; }

 private:
  const std::string where_;
  const std::string directory_;
  Status failure_;
  FieldReader root_;
  std::vector<std::string> unknown_;
  std::optional<float> from_share_;
  bool has_quantisation_ = false;
};

bool HasExperts(const ModelConfig& model) {
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.IsDense(layer)) return true;
  }
  return false;
}

/// What fields mean together.
Status CheckTogether(const TrainingConfig& c, const std::string& where) {
  const ModelConfig& m = c.model;
  const auto fail = [&](std::string_view problem) {
    return InvalidArgument(fmt::format("{}: {}", where, problem));
  };
  if (c.data.tokenizer_dir.empty()) {
    return fail(
        "no tokenizer; name the directory of one in `tokenizer` or with --tokenizer "
        "(k3 tokenizer-train makes one)");
  }
  if (c.data.text_files.empty() && c.data.chat_files.empty() && c.data.tasks_count == 0) {
    return fail("nothing to train on; give `text`, `chat` or `tasks`, or --text or --chat");
  }
  if (c.steps < 1 || c.steps > limits::kTrainingStepsMax) {
    return fail(fmt::format("steps: expected a number from 1 to {}, found {}",
                            limits::kTrainingStepsMax, c.steps));
  }
  if (c.primer_steps > c.steps) {
    return fail(fmt::format("primer_steps: expected at most the run's {} steps, found {}", c.steps,
                            c.primer_steps));
  }
  if (c.sequence_length > m.context_max) {
    return fail(fmt::format("sequence_length: expected at most the model's context of {}, found {}",
                            m.context_max, c.sequence_length));
  }
  if (c.validation.context > m.context_max) {
    return fail(
        fmt::format("validation.context: expected at most the model's context of {}, found {}",
                    m.context_max, c.validation.context));
  }
  if (c.batch_sequences % c.micro_batch_sequences != 0) {
    return fail(
        fmt::format("micro_batch_sequences: expected a divisor of batch_sequences ({}), found {}",
                    c.batch_sequences, c.micro_batch_sequences));
  }
  if (c.tokens_per_step() > limits::kTrainingTokensMax) {
    return fail(
        fmt::format("batch_sequences x sequence_length: expected at most {} tokens a step, "
                    "found {}",
                    limits::kTrainingTokensMax, c.tokens_per_step()));
  }
  if (HasExperts(m) && c.balancing != BalancingRule::kNone &&
      m.moe.experts_per_token >= m.moe.experts) {
    return fail(
        fmt::format("balancing: expected fewer active experts ({}) than experts ({}), or "
                    "the rule \"none\"",
                    m.moe.experts_per_token, m.moe.experts));
  }
  const int64_t width = m.moe.latent > 0 ? m.moe.latent : m.hidden_size;
  const bool quantises = c.quantisation.from_step.has_value() && HasExperts(m);
  for (const auto& [name, value] :
       {std::pair(m.moe.latent > 0 ? "routed_expert_hidden_size" : "hidden_size", width),
        std::pair("moe_intermediate_size", m.moe.intermediate)}) {
    if (quantises && value % kMxfp4BlockSize != 0) {
      return fail(fmt::format("qat: expected a {} that MXFP4 groups of {} divide, found {}", name,
                              kMxfp4BlockSize, value));
    }
  }
  if (c.quantisation.mxfp8_inputs && m.moe.latent == 0) {
    return fail(
        "qat.mxfp8_inputs: expected experts that read a latent "
        "(routed_expert_hidden_size), found none");
  }
  return OkStatus();
}

}  // namespace

std::string TrainingConfig::Identity() const {
  JsonValue::Members members;
  const auto add = [&](std::string name, auto value) {
    members.emplace_back(std::move(name), JsonValue(value));
  };
  add("model", model_json);
  add("sequence_length", sequence_length);
  add("batch_sequences", batch_sequences);
  add("micro_batch_sequences", micro_batch_sequences);
  add("steps", steps);
  add("seed", static_cast<int64_t>(seed));
  add("primer_steps", primer_steps);
  if (primer_steps > 0) {
    // The primer is made, not read, so that nothing else tells another one from it.
    std::string kinds;
    for (const TaskKind kind : data.task_kinds) kinds += std::string(TaskKindName(kind)) + " ";
    add("primer.kinds", kinds);
    add("primer.turns", data.conversation_shape.turns_max);
    add("primer.distractors", data.conversation_shape.distractors_max);
    add("primer.words", data.conversation_shape.words_max);
    add("primer.made_up_names", data.conversation_shape.makes_up_names);
  }
  add("optimizer.kind", std::string(optimizer.kind == OptimizerKind::kMuon ? "muon" : "adamw"));
  add("optimizer.learning_rate", double{learning_rate});
  add("optimizer.min_share", double{min_learning_rate_share});
  add("optimizer.per_head", optimizer.per_head);
  add("optimizer.muon_scale", double{optimizer.muon_lr_scale});
  add("optimizer.adamw_scale", double{optimizer.adamw_lr_scale});
  add("optimizer.weight_decay", double{optimizer.weight_decay});
  add("optimizer.clip_norm", double{optimizer.clip_norm});
  add("optimizer.qk_clip", double{optimizer.qk_clip_tau});
  add("optimizer.momentum", double{optimizer.muon.momentum});
  add("optimizer.beta1", double{optimizer.adamw.beta1});
  add("optimizer.beta2", double{optimizer.adamw.beta2});
  for (const auto& [name, rule] : kBalancingRules) {
    if (rule == balancing) add("balancing.rule", std::string(name));
  }
  add("balancing.sign_step", double{sign_step});
  add("qat.from_step", quantisation.from_step.value_or(-1));
  add("qat.scale_rule", std::string(quantisation.rule == Mxfp4ScaleRule::kCeil ? "ceil" : "floor"));
  add("qat.mxfp8_inputs", quantisation.mxfp8_inputs);
  return DumpJson(JsonValue(std::move(members)));
}

Result<TrainingConfig> ReadTrainingConfig(FileSystem& files, const std::string& path_or_dir,
                                          const TrainingOverrides& overrides) {
  // A checkpoint's directory stands for its config.json.
  const std::string inside = JoinPath(path_or_dir, kConfigFileName);
  const std::string path = files.Exists(inside) ? inside : path_or_dir;
  K3_TRY(const std::string text, ReadWholeFile(files, path, limits::kConfigFileBytesMax));
  K3_TRY(const JsonValue root, ParseJson(text, path));
  TrainingConfig config;
  std::optional<float> from_share;
  bool has_quantisation = false;
  if (root.Find("model_type") != nullptr || root.Find("text_config") != nullptr) {
    config.model_json = text;
    K3_TRY(config.model, ParseModelConfig(text, path));
  } else {
    Reader reader(root, path);
    K3_TRY(config, reader.Read(files, overrides.from_dir));
    from_share = reader.from_share();
    has_quantisation = reader.has_quantisation();
  }
  if (!has_quantisation && config.model.quantized_experts) {
    // A model that says its experts are MXFP4 ends as one; what is MXFP4 already stays so.
    from_share = overrides.from_dir.empty() ? kDefaultQuantisedFrom : 0.0f;
  }
  if (!overrides.text_files.empty()) config.data.text_files = overrides.text_files;
  if (!overrides.chat_files.empty()) config.data.chat_files = overrides.chat_files;
  if (!overrides.tokenizer_dir.empty()) config.data.tokenizer_dir = overrides.tokenizer_dir;
  if (config.data.tokenizer_dir.empty()) config.data.tokenizer_dir = overrides.from_dir;
  config.steps = overrides.steps.value_or(config.steps);
  if (from_share.has_value()) {
    config.quantisation.from_step =
        std::llround(static_cast<double>(*from_share) * static_cast<double>(config.steps));
  }
  if (config.micro_batch_sequences == 0) {
    config.micro_batch_sequences = std::clamp<int64_t>(
        kDefaultMicroBatchTokens / config.sequence_length, 1, config.batch_sequences);
    while (config.batch_sequences % config.micro_batch_sequences != 0) {
      --config.micro_batch_sequences;
    }
  }
  if (config.validation.context == 0) config.validation.context = config.sequence_length;
  K3_RETURN_IF_ERROR(CheckTogether(config, path));
  return config;
}

}  // namespace k3::train

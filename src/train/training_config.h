#pragma once
// TrainingConfig: every number of a training run, read from one JSON file and checked once, before
// anything is allocated or written. docs/training.md lists the fields; all but the model, the
// tokenizer and some data have a default. A file that is a model's own config.json is also one:
// everything else is then the defaults and what the command line adds.
//
// Paths in the file are relative to it. A plain value; any thread. Failures are InvalidArgument and
// name file, field, expected and found.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/model_config.h"
#include "data/chat_tasks.h"
#include "model/tape.h"
#include "sys/file.h"
#include "tensor/number_formats.h"
#include "train/optimizer.h"

namespace k3::train {

enum class BalancingRule : uint8_t { kHistogram, kExact, kSign, kNone };

struct DataConfig {
  std::string tokenizer_dir;
  std::vector<std::string> text_files;
  std::vector<std::string> chat_files;
  /// Documents of a text file stand between such lines; nothing: a file is one document.
  std::optional<std::string> separator;
  /// Synthetic conversations, 0 for none.
  int64_t tasks_count = 0;
  std::vector<TaskKind> task_kinds{std::begin(kTaskKinds), std::end(kTaskKinds)};
  ConversationShape conversation_shape;
};

struct ValidationConfig {
  /// The end of the text files that is held out when no files are given. 0: no validation.
  double fraction = 0.03;
  std::vector<std::string> text_files;
  std::vector<std::string> chat_files;
  int64_t every_steps = 100;
  int64_t tokens_max = 16384;  // 0: all
  int64_t context = 0;         // tokens in a window; 0: sequence_length
};

struct QuantisationConfig {
  /// From this step on; nothing: never.
  std::optional<int64_t> from_step;
  Mxfp4ScaleRule rule = Mxfp4ScaleRule::kCeil;
  bool mxfp8_inputs = false;
};

struct TrainingConfig {
  std::string model_json;  // as it was written
  ModelConfig model;
  DataConfig data;
  ValidationConfig validation;
  int64_t sequence_length = 256;
  int64_t batch_sequences = 8;        // of one step
  int64_t micro_batch_sequences = 0;  // computed at once; 0: as many as make up to 4,096 tokens
  int64_t steps = 1000;
  uint64_t seed = 1;
  float learning_rate = 4e-3f;
  float min_learning_rate_share = 0.1f;
  /// The first steps read TaskGenerator::MakePrimer.
  int64_t primer_steps = 0;
  OptimizerOptions optimizer;
  BalancingRule balancing = BalancingRule::kHistogram;
  float sign_step = 0.01f;
  QuantisationConfig quantisation;
  int64_t checkpoint_every_steps = 100;
  model::TapePolicy tape;

  int64_t tokens_per_step() const { return batch_sequences * sequence_length; }
  /// The fields that decide about the numbers of a run, as one JSON object, for the check that a
  /// run is resumed as it was begun. Paths and how often to validate or save are not among them.
  std::string Identity() const;
};

/// What the command line may set over the file.
struct TrainingOverrides {
  std::vector<std::string> text_files;
  std::vector<std::string> chat_files;
  std::string tokenizer_dir;
  std::optional<int64_t> steps;
  /// A checkpoint to start from: its model and tokenizer stand in for what the file leaves out.
  std::string from_dir;
};

/// `path_or_dir`: the file, or a checkpoint's directory for its config.json.
Result<TrainingConfig> ReadTrainingConfig(FileSystem& files, const std::string& path_or_dir,
                                          const TrainingOverrides& overrides);

}  // namespace k3::train

#include "train/training_data.h"

#include <fmt/format.h>

#include "base/limits.h"
#include "data/chat_tasks.h"
#include "data/corpus_files.h"
#include "sys/machine.h"

namespace k3::train {
namespace {

// Held-out tasks that a validation measures, at most.
constexpr int64_t kValidationTasks = 200;

bool HasFiles(const ValidationConfig& validation) {
  return !validation.text_files.empty() || !validation.chat_files.empty();
}

/// Whether the held-out data are cut off the training data.
bool CutsOff(const ValidationConfig& validation) {
  return validation.fraction > 0 && !HasFiles(validation);
}

/// Where the last `fraction` of a text begins: behind the end of a line.
size_t HeldOutFrom(const std::string& text, double fraction) {
  const size_t place = static_cast<size_t>(static_cast<double>(text.size()) * (1.0 - fraction));
  const size_t newline = text.find('\n', place > 0 ? place - 1 : 0);
  return newline == std::string::npos ? text.size() : newline + 1;
}

Status AddTexts(FileSystem& files, const Tokenizer& tokenizer, const TrainingConfig& config,
                TrainingData& data) {
  const bool cut = CutsOff(config.validation);
  const TextFileOptions options{.separator = config.data.separator};
  for (const std::string& path : config.data.text_files) {
    K3_TRY(std::string text, ReadWholeFile(files, path, limits::kPromptBytesMax));
    if (cut) {
      // Before the cut, so that a message has the file's own lines.
      K3_RETURN_IF_ERROR(CheckUtf8(text, path));
      const size_t end = HeldOutFrom(text, config.validation.fraction);
      // Two files' ends are two documents where documents are told apart.
      if (options.separator.has_value() && !data.validation_text.empty()) {
        data.validation_text += *options.separator + "\n";
      }
      data.validation_text += text.substr(end);
      text.resize(end);
    }
    K3_RETURN_IF_ERROR(AddText(tokenizer, text, path, options, data.training));
  }
  if (!data.validation_text.empty()) {
    K3_RETURN_IF_ERROR(
        AddText(tokenizer, data.validation_text, "the held-out text", options, data.validation));
  }
  for (const std::string& path : config.validation.text_files) {
    K3_RETURN_IF_ERROR(AddTextFile(files, tokenizer, path, options, data.validation));
  }
  data.validation_text_tokens = data.validation.tokens_count();
  return OkStatus();
}

/// Refuses what would not fit into half of the free memory, before it is made. A token has its id
/// and whether it is learned; a vector that grows holds it twice for a moment.
Status CheckRoom(std::string_view what, int64_t count, double tokens) {
  constexpr double kBytesEach = 2 * (sizeof(int32_t) + sizeof(uint8_t));
  const int64_t available = ReadMemoryFacts().available_bytes;
  if (available <= 0 || tokens * kBytesEach <= static_cast<double>(available) / 2)
    return OkStatus();
  return ResourceExhausted(fmt::format(
      "{}: {} of them need about {:.0f} MB, this machine has {} MB to spare; make fewer", what,
      count, tokens * kBytesEach * 1e-6, available / 2'000'000));
}

Status AddTasks(const Tokenizer& tokenizer, const TrainingConfig& config, TaskSplit split,
                int64_t count, Corpus& corpus) {
  const TaskGenerator generator(config.seed, split, {.kinds = config.data.task_kinds});
  const int64_t before = corpus.tokens_count();
  bool is_checked = false;
  for (int64_t n = 0; n < count; ++n) {
    const TaskConversation conversation =
        generator.MakeConversation(n, config.data.conversation_shape);
    K3_RETURN_IF_ERROR(AddChat(tokenizer, TaskLine(conversation),
                               fmt::format("synthetic conversation {}", n), corpus));
    // Once enough is there to tell from: long conversations are seen after a few.
    constexpr int64_t kSample = 256, kSampleTokens = 1 << 20;
    const int64_t tokens = corpus.tokens_count() - before;
    if (!is_checked && (n + 1 == kSample || tokens >= kSampleTokens)) {
      is_checked = true;
      const double each = static_cast<double>(tokens) / static_cast<double>(n + 1);
      K3_RETURN_IF_ERROR(CheckRoom("tasks.count", count, each * static_cast<double>(count)));
    }
  }
  return OkStatus();
}

/// As much of the primer as the first steps take, without coming to its end.
Status AddPrimer(const Tokenizer& tokenizer, const TrainingConfig& config, Corpus& corpus) {
  const TaskGenerator generator(config.seed, TaskSplit::kTraining,
                                {.kinds = config.data.task_kinds});
  // Packing drops up to a sequence's length at both of its ends.
  const int64_t tokens =
      config.primer_steps * config.tokens_per_step() + 2 * config.sequence_length;
  K3_RETURN_IF_ERROR(CheckRoom("primer_steps", config.primer_steps, static_cast<double>(tokens)));
  for (int64_t n = 0; corpus.tokens_count() < tokens; ++n) {
    K3_RETURN_IF_ERROR(AddText(tokenizer, generator.MakePrimer(n, config.data.conversation_shape),
                               fmt::format("primer {}", n), {}, corpus));
  }
  return OkStatus();
}

}  // namespace

Result<TrainingData> LoadTrainingData(FileSystem& files, const Tokenizer& tokenizer,
                                      const TrainingConfig& config) {
  TrainingData data;
  K3_RETURN_IF_ERROR(AddTexts(files, tokenizer, config, data));
  Corpus chats;
  for (const std::string& path : config.data.chat_files) {
    K3_RETURN_IF_ERROR(AddChatFile(files, tokenizer, path, chats));
  }
  SplitDocuments(chats, CutsOff(config.validation) ? config.validation.fraction : 0.0,
                 data.training, data.validation);
  for (const std::string& path : config.validation.chat_files) {
    K3_RETURN_IF_ERROR(AddChatFile(files, tokenizer, path, data.validation));
  }
  if (config.data.tasks_count > 0) {
    K3_RETURN_IF_ERROR(
        AddTasks(tokenizer, config, TaskSplit::kTraining, config.data.tasks_count, data.training));
    const bool validates = CutsOff(config.validation) || HasFiles(config.validation);
    const int64_t held_out = std::min(kValidationTasks, config.data.tasks_count);
    K3_RETURN_IF_ERROR(AddTasks(tokenizer, config, TaskSplit::kHeldOut, validates ? held_out : 0,
                                data.validation));
  }
  if (config.primer_steps > 0) {
    K3_RETURN_IF_ERROR(AddPrimer(tokenizer, config, data.primer));
  }
  return data;
}

}  // namespace k3::train

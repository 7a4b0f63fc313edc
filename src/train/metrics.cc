#include "train/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/limits.h"

namespace k3::train {
namespace {

constexpr int64_t kReadBytes = 1 << 20;
constexpr std::array<const char*, kOptimizerGroups> kGroupNames = {"per_head", "matrix", "expert",
                                                                   "table", "other"};

/// The step of a line, or nothing when it is no whole line of ours.
std::optional<int64_t> StepOfLine(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    return std::nullopt;
  }
  const int64_t step = json["step"].get<int64_t>();
  return step > 0 ? std::optional(step) : std::nullopt;
}

/// Copies the whole lines of steps up to `last_step`, a part of the file at a time.
Status CopyLines(FileSystem& files, const std::string& path, int64_t last_step, WritableFile& to) {
  K3_TRY(const std::unique_ptr<ReadableFile> from, files.OpenReadable(path));
  std::string text, kept;
  for (int64_t at = 0; at < from->size();) {
    const int64_t n = std::min(kReadBytes, from->size() - at);
    const size_t before = text.size();
    text.resize(before + static_cast<size_t>(n));
    K3_RETURN_IF_ERROR(from->ReadAt(at, std::as_writable_bytes(std::span(text).subspan(before))));
    at += n;
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = text.substr(begin, end - begin);
      const std::optional<int64_t> step = StepOfLine(line);
      if (step.has_value() && *step <= last_step) kept += line + "\n";
    }
    text.erase(0, begin);
    // Not the curve's: a line is a few kilobytes.
    if (std::ssize(text) > limits::kLineBytesMax) text.clear();
    K3_RETURN_IF_ERROR(to.Append(AsBytes(kept)));
    kept.clear();
  }
  return OkStatus();
}

}  // namespace

std::string FormatMetrics(const StepMetrics& m) {
  nlohmann::ordered_json json;
  json["step"] = m.step;
  json["tokens"] = m.tokens;
  json["loss"] = m.loss;
  json["val_loss"] = nullptr;
  if (m.val_loss.has_value()) {
    json["val_loss"] = m.val_loss->all;
    if (m.val_loss->text.has_value()) json["val_text_loss"] = *m.val_loss->text;
    if (m.val_loss->chat.has_value()) json["val_chat_loss"] = *m.val_loss->chat;
  }
  json["learning_rate"] = m.learning_rate;
  json["gradient_norm"] = m.gradient_norm;
  json["quantised"] = m.quantised;
  json["tokens_per_s"] = m.tokens_per_s;
  json["gemm_share"] = m.gemm_share;
  json["clipped_heads"] = m.clipped_heads;
  for (size_t i = 0; i < kGroupNames.size(); ++i) {
    json["update_rms"][kGroupNames[i]] = m.update_rms[i];
  }
  json["head_update_spread"] = m.head_update_spread;
  json["head_update_ratio"] = m.head_update_ratio;
  json["balance"] = nlohmann::ordered_json::array();
  for (const LayerBalance& layer : m.balance) {
    json["balance"].push_back({{"layer", layer.layer},
                               {"max_violation", layer.max_violation},
                               {"dead_experts", layer.dead_experts},
                               {"bias_min", layer.bias_min},
                               {"bias_max", layer.bias_max}});
  }
  for (const LayerHealth& layer : m.health) {
    nlohmann::ordered_json line = {
        {"layer", layer.layer}, {"hidden_rms", layer.hidden_rms}, {"hidden_max", layer.hidden_max}};
    if (layer.routed_rms.has_value()) line["routed_rms"] = *layer.routed_rms;
    if (layer.routed_max.has_value()) line["routed_max"] = *layer.routed_max;
    if (layer.expert_hidden_max.has_value()) line["expert_hidden_max"] = *layer.expert_hidden_max;
    if (layer.tile_log_decay_min.has_value()) {
      line["tile_log_decay_min"] = *layer.tile_log_decay_min;
    }
    if (layer.log_decay_min.has_value()) line["log_decay_min"] = *layer.log_decay_min;
    if (layer.log_decay_max.has_value()) line["log_decay_max"] = *layer.log_decay_max;
    json["health"].push_back(line);
  }
  return json.dump() + "\n";
}

Result<MetricsFile> MetricsFile::Open(FileSystem& files, const std::string& path,
                                      int64_t last_step) {
  // The kept lines are whole in the new file before it takes the old one's name; it stays open.
  const std::string partial = PartialPath(path);
  K3_TRY(std::unique_ptr<WritableFile> file, files.Create(partial));
  Status status = OkStatus();
  if (last_step > 0 && files.Exists(path)) status = CopyLines(files, path, last_step, *file);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = files.Rename(partial, path);
  if (!status.ok()) {
    // The failure above is the one to report, whether or not the partial file can be removed.
    (void)files.Remove(partial);
    return status;
  }
  return MetricsFile(std::move(file));
}

Status MetricsFile::Append(const StepMetrics& metrics) {
  return file_->Append(AsBytes(FormatMetrics(metrics)));
}

Status MetricsFile::Sync() { return file_->Sync(); }

}  // namespace k3::train

// The printed form of `k3 inspect` for people.

#include <fmt/format.h>

#include <array>

#include "inspect_report.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr size_t kShardsListedMax = 8;
constexpr size_t kNamesListedMax = 10;

/// "5,17,9 and 3 more".
std::string JoinSome(const std::vector<std::string>& names, std::string_view separator) {
  const size_t shown = std::min(names.size(), kNamesListedMax);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), separator));
  if (shown < names.size()) text += fmt::format("{}and {} more", separator, names.size() - shown);
  return text;
}

std::string ListMlaLayers(const ModelConfig& config) {
  std::vector<std::string> layers;
  for (size_t layer = 0; layer < config.is_mla.size(); ++layer) {
    if (config.is_mla[layer]) layers.push_back(std::to_string(layer));
  }
  if (layers.empty()) return "none";
  return fmt::format("{} (layers {})", layers.size(), fmt::join(layers, " "));
}

void AppendField(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format("  {:<22} {}\n", name, value);
}

void AppendAttention(std::string& out, const ModelConfig& config) {
  const KdaConfig& kda = config.kda;
  const MlaConfig& mla = config.mla;
  AppendField(
      out, "KDA",
      fmt::format("{} heads of {}, short convolution of {}, {}-rank output gate, {}", kda.heads,
                  kda.head_dim, kda.conv_kernel, kda.full_rank_gate ? "full" : "low",
                  kda.gate_lower_bound ? fmt::format("decay bounded at {}", *kda.gate_lower_bound)
                                       : std::string("unbounded decay")));
  AppendField(out, "MLA", ListMlaLayers(config));
  AppendField(out, "",
              fmt::format("{} heads, keys {} + {}, values {}, query rank {}, latent {}{}",
                          mla.heads, mla.qk_nope_dim, mla.qk_rope_dim, mla.v_dim,
                          mla.q_lora_rank > 0 ? std::to_string(mla.q_lora_rank) : "full",
                          mla.kv_lora_rank, mla.output_gate ? ", output gate" : ""));
}

void AppendConfig(std::string& out, const ModelConfig& config) {
  int64_t dense = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) dense += config.IsDense(layer);
  const MoeConfig& moe = config.moe;
  out += "configuration\n";
  AppendField(out, "layers",
              fmt::format("{}: {} with a dense MLP, {} with experts", config.layers, dense,
                          config.layers - dense));
  AppendField(out, "width", std::to_string(config.hidden_size));
  AppendField(out, "vocabulary", std::to_string(config.vocab_size));
  AppendField(out, "context", fmt::format("{} tokens", config.context_max));
  AppendField(out, "attention residuals",
              config.residual_block > 0 ? fmt::format("blocks of {} layers", config.residual_block)
                                        : "none: plain residuals");
  AppendAttention(out, config);
  if (dense > 0) AppendField(out, "dense MLP", fmt::format("hidden {}", config.dense_intermediate));
  if (dense < config.layers) {
    AppendField(out, "experts",
                fmt::format("{}, {} a token, hidden {}, {}; {} shared", moe.experts,
                            moe.experts_per_token, moe.intermediate,
                            moe.latent > 0 ? fmt::format("latent {}", moe.latent)
                                           : std::string("on the full width"),
                            moe.shared_experts));
  }
  AppendField(out, "stop ids",
              config.eos_token_ids.empty()
                  ? "none"
                  : fmt::format("{}", fmt::join(config.eos_token_ids, " ")));
  if (!config.unknown_fields.empty()) {
    AppendField(out, "unknown fields", JoinSome(config.unknown_fields, ", "));
  }
}

void AppendRow(std::string& out, std::string_view name, const ComponentRow& row) {
  out += fmt::format("  {:<22} {:>9} {:>11} {:>11} {:>12}  {}\n", name, row.tensors,
                     FormatCount(row.parameters), FormatCount(row.active_parameters),
                     FormatBytes(row.bytes), fmt::join(row.types, " "));
}

void AppendParameters(std::string& out, const InspectReport& report) {
  out += fmt::format("\nparameters\n  {:<22} {:>9} {:>11} {:>11} {:>12}  {}\n", "", "tensors",
                     "parameters", "per token", "stored", "types");
  for (int i = 0; i < kComponentsCount; ++i) {
    const Component component = static_cast<Component>(i);
    const ComponentRow& row = report.parameters[component];
    if (row.tensors > 0) AppendRow(out, ComponentName(component), row);
  }
  AppendRow(out, "total", report.parameters.total);
  out += fmt::format(
      "  one token uses {} parameters: all but the experts not chosen and the "
      "embedding\n",
      FormatCount(report.parameters.total.active_parameters));
  if (!report.checkpoint.has_value() && report.config.has_vision) {
    out += "  the vision tower is not counted: the configuration alone does not list it\n";
  }
}

void AppendNames(std::string& out, std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const bool cut = std::ssize(names) == kDifferenceListedMax;
  out += fmt::format("  {}, {}{}:\n    {}\n", what, cut ? "at least " : "", names.size(),
                     JoinSome(names, "\n    "));
}

void AppendFiles(std::string& out, const CheckpointFacts& facts) {
  int64_t bytes = 0;
  for (const ShardInfo& shard : facts.shards) bytes += shard.file_bytes;
  out += fmt::format("\nfiles\n  {} shards, {}\n", facts.shards.size(), FormatBytes(bytes));
  for (size_t i = 0; i < facts.shards.size() && i < kShardsListedMax; ++i) {
    const ShardInfo& shard = facts.shards[i];
    out += fmt::format("  {:<36} {:>12} {:>9} tensors\n", shard.file_name,
                       FormatBytes(shard.file_bytes), shard.tensors_count);
  }
  if (facts.shards.size() > kShardsListedMax) {
    out +=
        fmt::format("  and {} more (--json lists all)\n", facts.shards.size() - kShardsListedMax);
  }
  if (facts.partial_layers.has_value()) {
    out += fmt::format("  a part of the model: layers {} to {}; it cannot be run alone\n",
                       facts.partial_layers->first, facts.partial_layers->last);
  }
  if (facts.difference.missing.empty() && facts.difference.unexpected.empty()) {
    out += "  every tensor that the configuration asks for is there, and no other\n";
  }
  AppendNames(out, "missing tensors", facts.difference.missing);
  AppendNames(out, "unexpected tensors, which are not read", facts.difference.unexpected);
}

void AppendMemory(std::string& out, const InspectReport& report) {
  out += "\nmemory\n";
  AppendField(out, "weights",
              fmt::format("{}, {} of them read for a token", FormatBytes(report.text_bytes()),
                          FormatBytes(report.parameters.total.active_bytes)));
  for (const auto& [tokens, bytes] : report.state_bytes) {
    AppendField(out, fmt::format("state, {} tokens", tokens), FormatBytes(bytes));
  }
  AppendField(out, "this machine",
              fmt::format("{} available of {}", FormatBytes(report.memory.available_bytes),
                          FormatBytes(report.memory.total_bytes)));
  AppendField(out, "verdict",
              report.fits_in_memory()
                  ? std::string("the weights fit in memory")
                  : fmt::format("the weights are {} larger than the memory available: a run reads "
                                "them from disk as it goes",
                                FormatBytes(report.text_bytes() - report.memory.available_bytes)));
}

}  // namespace

int64_t InspectReport::text_bytes() const {
  return parameters.total.bytes - parameters[Component::kVision].bytes -
         parameters[Component::kOther].bytes;
}

std::string FormatCount(int64_t count) {
  constexpr std::array<std::pair<double, char>, 4> kUnits = {
      {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}}};
  for (const auto& [size, unit] : kUnits) {
    // 999,996 would print as 1000.00 K.
    if (static_cast<double>(count) >= size * 0.999995) {
      return fmt::format("{:.2f} {}", static_cast<double>(count) / size, unit);
    }
  }
  return std::to_string(count);
}

std::string FormatReportText(const InspectReport& report) {
  std::string out = fmt::format("{}\n\n", report.path);
  AppendConfig(out, report.config);
  AppendParameters(out, report);
  if (report.checkpoint.has_value()) AppendFiles(out, *report.checkpoint);
  AppendMemory(out, report);
  return out;
}

}  // namespace k3::cli

#include "train/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/writer.h"
#include "train/exported_config.h"

namespace k3::train {
namespace {

// The key in a shard's __metadata__ by which an export is known.
constexpr std::string_view kExportKey = "k3_export";

}  // namespace

Result<std::set<std::string>> IndexedShards(FileSystem& files, const std::string& dir) {
  std::set<std::string> shards;
  const std::string path = JoinPath(dir, kIndexFileName);
  if (!files.Exists(path)) return shards;
  K3_TRY(const std::string text, ReadWholeFile(files, path, limits::kIndexFileBytesMax));
  K3_RETURN_IF_ERROR(ReadShardIndex(text, path, [&](std::string_view, std::string_view shard) {
    shards.emplace(shard);
    return OkStatus();
  }));
  return shards;
}

Result<bool> IsExportedShard(FileSystem& files, const std::string& path) {
  K3_TRY(const std::unique_ptr<ReadableFile> file, files.OpenReadable(path));
  K3_TRY(const SafetensorsHeader header, ReadSafetensorsHeader(*file, path));
  return std::ranges::any_of(header.metadata,
                             [](const auto& entry) { return entry.first == kExportKey; });
}

namespace {

constexpr int64_t kChunk = 65536;  // values of one append
constexpr std::string_view kExportVersion = "1";

/// Refuses a directory whose checkpoint is not an export: its shards are not ours to remove.
Status CheckOrigin(FileSystem& files, const std::string& dir, std::set<std::string> shards) {
  if (shards.empty() && files.Exists(JoinPath(dir, kSingleShardFileName))) {
    shards.emplace(kSingleShardFileName);
  }
  for (const std::string& shard : shards) {
    const std::string path = JoinPath(dir, shard);
    if (!files.Exists(path)) continue;
    K3_TRY(const bool is_ours, IsExportedShard(files, path));
    if (is_ours) continue;
    return InvalidArgument(fmt::format(
        "{}: expected a directory without a checkpoint or with an earlier export, found "
        "the shard {} of another origin; choose another directory",
        dir, shard));
  }
  return OkStatus();
}

/// One stored tensor: its declaration and where its bytes come from.
struct Stored {
  TensorDeclaration declaration;
  std::span<const float> values;   // written as the declared type
  std::span<const uint8_t> bytes;  // or as they are
};

std::vector<Stored> StoredTensors(const ParameterSet& set) {
  const TensorNames names(/*nested=*/true);
  std::vector<Stored> stored;
  for (const TrainedTensor& tensor : set.tensors()) {
    const ExpectedTensor& spec = tensor.spec;
    const std::string name = names.Full(spec.name);
    if (spec.role == TensorRole::kExpert && set.rounding().quantize_experts) {
      const int64_t rows = spec.shape[0], cols = spec.shape[1];
      stored.push_back({{name + "_packed", DType::kU8, {rows, cols / 2}}, {}, set.Codes(tensor)});
      stored.push_back(
          {{name + "_scale", DType::kU8, {rows, cols / kMxfp4BlockSize}}, {}, set.Scales(tensor)});
      continue;
    }
    const DType dtype = spec.stored == StoredType::kF32 ? DType::kF32 : DType::kBF16;
    stored.push_back({{name, dtype, spec.shape}, set.Rounded(tensor), {}});
  }
  return stored;
}

Status AppendTensor(SafetensorsWriter& writer, const Stored& tensor) {
  if (tensor.declaration.dtype == DType::kU8) return writer.Append(std::as_bytes(tensor.bytes));
  if (tensor.declaration.dtype == DType::kF32) return writer.Append(std::as_bytes(tensor.values));
  std::vector<uint16_t> chunk;
  for (int64_t begin = 0; begin < std::ssize(tensor.values); begin += kChunk) {
    const int64_t n = std::min(kChunk, std::ssize(tensor.values) - begin);
    chunk.resize(static_cast<size_t>(n));
    const float* values = tensor.values.data() + begin;
    for (int64_t i = 0; i < n; ++i) chunk[static_cast<size_t>(i)] = FloatToBf16(values[i]);
    K3_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(chunk))));
  }
  return OkStatus();
}

Status WriteShard(FileSystem& files, const std::string& path, std::span<const Stored> tensors) {
  std::vector<TensorDeclaration> declarations;
  declarations.reserve(tensors.size());
  for (const Stored& tensor : tensors) declarations.push_back(tensor.declaration);
  const SafetensorsWriter::Metadata metadata = {
      {"format", "pt"}, {std::string(kExportKey), std::string(kExportVersion)}};
  K3_TRY(SafetensorsWriter writer, SafetensorsWriter::Create(files, path, declarations, metadata));
  for (const Stored& tensor : tensors) K3_RETURN_IF_ERROR(AppendTensor(writer, tensor));
  return writer.Finish();
}

Status WriteIndex(FileSystem& files, const std::string& dir, const std::string& shard,
                  std::span<const Stored> tensors) {
  K3_TRY(ShardIndexWriter index, ShardIndexWriter::Create(files, JoinPath(dir, kIndexFileName)));
  ShardIndexMetadata metadata;
  metadata.total_size = 0;
  for (const Stored& tensor : tensors) {
    const TensorDeclaration& declaration = tensor.declaration;
    K3_RETURN_IF_ERROR(index.Add(declaration.name, shard));
    *metadata.total_size += declaration.shape.Elements() * DTypeBytes(declaration.dtype);
  }
  return index.Finish(metadata);
}

}  // namespace

Status ExportCheckpoint(FileSystem& files, const ExportTarget& target, const ParameterSet& set) {
  const std::string& dir = target.dir;
  K3_TRY(const std::string config_json,
         WithQuantization(target.config_json, set.rounding().quantize_experts));
  K3_RETURN_IF_ERROR(files.MakeDirectories(dir));
  K3_TRY(const std::set<std::string> old_shards, IndexedShards(files, dir));
  K3_RETURN_IF_ERROR(CheckOrigin(files, dir, old_shards));
  std::string shard = target.shard_name + ".safetensors";
  // A shard that the present index names must stay as it is until the next index stands.
  for (int n = 2; old_shards.contains(shard); ++n) {
    shard = fmt::format("{}-{}.safetensors", target.shard_name, n);
  }
  const std::vector<Stored> tensors = StoredTensors(set);
  K3_RETURN_IF_ERROR(WriteShard(files, JoinPath(dir, shard), tensors));
  K3_RETURN_IF_ERROR(WriteConfigFile(files, dir, config_json));
  K3_RETURN_IF_ERROR(files.SyncDirectory(dir));
  K3_RETURN_IF_ERROR(WriteIndex(files, dir, shard, tensors));
  K3_RETURN_IF_ERROR(files.SyncDirectory(dir));
  for (const std::string& old : old_shards) {
    const std::string path = JoinPath(dir, old);
    if (!files.Exists(path)) continue;
    K3_RETURN_IF_ERROR(files.Remove(path).WithContext("the new checkpoint is whole"));
  }
  return OkStatus();
}

}  // namespace k3::train

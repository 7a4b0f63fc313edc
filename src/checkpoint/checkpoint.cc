#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "base/limits.h"
#include "config/json.h"

namespace k3 {
namespace {

size_t HashName(std::string_view name) { return std::hash<std::string_view>{}(name); }

/// A shard that the index names but nobody has is told apart from other missing files.
Status ExplainMissing(const Status& status) {
  if (status.code() != StatusCode::kNotFound) return status;
  return NotFound(status.message() + "; the checkpoint needs this file, download it");
}

}  // namespace

std::string JoinPath(std::string_view dir, std::string_view name) {
  const bool slash = !dir.empty() && dir.back() == '/';
  return fmt::format("{}{}{}", dir, slash ? "" : "/", name);
}

Result<Checkpoint> Checkpoint::Open(const std::string& dir) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const std::vector<std::string> names, files->List(dir));
  const auto has = [&](std::string_view name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  if (has(kIncompleteMarkerName)) {
    return Corruption(fmt::format(
        "{}: expected a whole checkpoint, found the marker {}: writing it did not finish; delete "
        "the directory and write it again",
        dir, kIncompleteMarkerName));
  }
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  K3_RETURN_IF_ERROR(checkpoint.ReadConfigs(*files));
  if (has(kIndexFileName)) {
    K3_RETURN_IF_ERROR(checkpoint.OpenIndexed(*files));
  } else if (has(kSingleShardFileName)) {
    K3_RETURN_IF_ERROR(checkpoint.OpenShards(*files, {std::string(kSingleShardFileName)}, 0));
  } else {
    return NotFound(fmt::format("{}: expected {} or {}, found neither; download the weights", dir,
                                kIndexFileName, kSingleShardFileName));
  }
  return checkpoint;
}

Status Checkpoint::ReadConfigs(FileSystem& files) {
  const std::string path = JoinPath(dir_, kConfigFileName);
  auto text = ReadWholeFile(files, path, limits::kConfigFileBytesMax);
  if (!text.ok()) return ExplainMissing(text.status());
  config_json_ = std::move(text).value();
  K3_TRY(config_, ParseModelConfig(config_json_, path));
  const std::string generation_path = JoinPath(dir_, kGenerationConfigFileName);
  if (!files.Exists(generation_path)) return OkStatus();
  K3_TRY(const std::string generation,
         ReadWholeFile(files, generation_path, limits::kConfigFileBytesMax));
  K3_TRY(generation_config_, ParseGenerationConfig(generation, generation_path));
  return OkStatus();
}

Status Checkpoint::OpenIndexed(FileSystem& files) {
  const std::string path = JoinPath(dir_, kIndexFileName);
  K3_TRY(const MappedFile mapped, MappedFile::Open(path));
  const std::span<const std::byte> bytes = mapped.bytes();
  if (std::ssize(bytes) > limits::kIndexFileBytesMax) {
    return InvalidArgument(fmt::format("{}: expected at most {} bytes, found {}", path,
                                       limits::kIndexFileBytesMax, bytes.size()));
  }
  const std::string_view index(reinterpret_cast<const char*>(bytes.data()), bytes.size());

  // The first reading only collects the shards; the second compares with what they hold. That is
  // cheaper than keeping a second copy of all the names.
  std::set<std::string, std::less<>> shard_names;
  std::string_view last_shard;
  int64_t tensors_count = 0;
  const auto collect = [&](std::string_view, std::string_view shard) {
    ++tensors_count;
    if (shard == last_shard) return OkStatus();
    auto at = shard_names.find(shard);
    if (at == shard_names.end()) at = shard_names.emplace(shard).first;
    last_shard = *at;
    if (std::ssize(shard_names) > limits::kShardsCountMax) {
      return Corruption(fmt::format("expected at most {} shards", limits::kShardsCountMax));
    }
    return OkStatus();
  };
  K3_TRY(const ShardIndexMetadata metadata, ReadShardIndex(index, path, collect));
  partial_layers_ = metadata.layers;
  K3_RETURN_IF_ERROR(OpenShards(
      files, std::vector<std::string>(shard_names.begin(), shard_names.end()), tensors_count));
  return CheckIndex(index, path);
}

Status Checkpoint::OpenShards(FileSystem& files, std::vector<std::string> file_names,
                              int64_t tensors_count_hint) {
  tensors_.reserve(static_cast<size_t>(tensors_count_hint));
  for (std::string& file_name : file_names) {
    ShardInfo shard{std::move(file_name), "", 0, 0, 0};
    shard.path = JoinPath(dir_, shard.file_name);
    auto file = files.OpenReadable(shard.path);
    if (!file.ok()) return ExplainMissing(file.status());
    K3_TRY(SafetensorsHeader header, ReadSafetensorsHeader(**file, shard.path));
    K3_TRY(MappedFile mapped, MappedFile::Open(shard.path));
    shard.file_bytes = header.data_offset + header.data_bytes;
    shard.data_offset = header.data_offset;
    shard.tensors_count = std::ssize(header.tensors);
    if (std::ssize(mapped.bytes()) != shard.file_bytes) {
      return Corruption(
          fmt::format("{}: the file changed while it was opened; try again when its "
                      "download has finished",
                      shard.path));
    }
    if (std::ssize(tensors_) + shard.tensors_count > limits::kTensorsCountMax) {
      return Corruption(
          fmt::format("{}: expected at most {} tensors", dir_, limits::kTensorsCountMax));
    }
    for (TensorInfo tensor : header.tensors) {
      tensor.shard = static_cast<int32_t>(shards_.size());
      tensor_bytes_ += tensor.bytes;
      tensors_.push_back(tensor);
    }
    names_.push_back(std::move(header.names));
    mapped_.push_back(std::move(mapped));
    shards_.push_back(std::move(shard));
  }
  return BuildTable();
}

Status Checkpoint::BuildTable() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  slots_.assign(std::bit_ceil(2 * tensors_.size() + 1), 0);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i > 0 && tensors_[i].name == tensors_[i - 1].name) {
      return Corruption(fmt::format(
          "{}: tensor {}: expected in one shard, found in {} and {}; remove the stale shard", dir_,
          QuoteForMessage(tensors_[i].name),
          shards_[static_cast<size_t>(tensors_[i - 1].shard)].file_name,
          shards_[static_cast<size_t>(tensors_[i].shard)].file_name));
    }
    size_t slot = HashName(tensors_[i].name) & (slots_.size() - 1);
    while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<uint32_t>(i + 1);
  }
  return OkStatus();
}

Status Checkpoint::CheckIndex(std::string_view index, const std::string& path) const {
  std::vector<bool> named(tensors_.size(), false);
  const auto compare = [&](std::string_view name, std::string_view shard) {
    const TensorInfo* tensor = Lookup(name);
    if (tensor == nullptr) {
      return Corruption(fmt::format(
          "tensor {}: expected in {}, found in no shard; download the index and that shard again",
          QuoteForMessage(name), shard));
    }
    const std::string& found = shards_[static_cast<size_t>(tensor->shard)].file_name;
    if (found != shard) {
      return Corruption(fmt::format(
          "tensor {}: expected in {}, found in {}; index and shards are not of one download",
          QuoteForMessage(name), shard, found));
    }
    const size_t at = static_cast<size_t>(tensor - tensors_.data());
    if (named[at]) {
      return Corruption(
          fmt::format("tensor {}: expected once, found twice", QuoteForMessage(name)));
    }
    named[at] = true;
    return OkStatus();
  };
  K3_RETURN_IF_ERROR(ReadShardIndex(index, path, compare));
  const auto missing = std::find(named.begin(), named.end(), false);
  if (missing == named.end()) return OkStatus();
  const TensorInfo& tensor = tensors_[static_cast<size_t>(missing - named.begin())];
  return Corruption(fmt::format(
      "{}: expected every tensor of the shards, found no entry for {} of {}; index and shards are "
      "not of one download",
      path, QuoteForMessage(tensor.name), shards_[static_cast<size_t>(tensor.shard)].file_name));
}

const TensorInfo* Checkpoint::Lookup(std::string_view name) const {
  if (slots_.empty()) return nullptr;
  size_t slot = HashName(name) & (slots_.size() - 1);
  for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
    const TensorInfo& tensor = tensors_[slots_[slot] - 1];
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::span<const TensorInfo> Checkpoint::WithPrefix(std::string_view prefix) const {
  const auto begin = std::lower_bound(
      tensors_.begin(), tensors_.end(), prefix,
      [](const TensorInfo& tensor, std::string_view text) { return tensor.name < text; });
  const auto end = std::partition_point(begin, tensors_.end(), [&](const TensorInfo& tensor) {
    return tensor.name.substr(0, prefix.size()) == prefix;
  });
  return {begin, end};
}

Result<TensorView> Checkpoint::Find(std::string_view name) const {
  const TensorInfo* tensor = Lookup(name);
  if (tensor == nullptr) {
    return NotFound(fmt::format("{}: expected the tensor {}, found none of that name", dir_,
                                QuoteForMessage(name)));
  }
  return View(*tensor);
}

TensorView Checkpoint::View(const TensorInfo& tensor) const {
  const std::span<const std::byte> bytes = mapped_[static_cast<size_t>(tensor.shard)].bytes();
  return {bytes.data() + tensor.file_offset, tensor.dtype, tensor.shape};
}

void Checkpoint::MapResident(ThreadPool& pool, int64_t bytes_max) const {
  struct Piece {
    const MappedFile* file;
    int64_t begin;
    int64_t end;
  };
  constexpr int64_t kPieceBytes = 64 << 20;
  std::vector<Piece> pieces;
  for (const MappedFile& file : mapped_) {
    const int64_t size = std::min(std::ssize(file.bytes()), bytes_max);
    for (int64_t begin = 0; begin < size; begin += kPieceBytes) {
      pieces.push_back({&file, begin, std::min(begin + kPieceBytes, size)});
    }
    bytes_max -= size;
  }
  pool.ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      piece.file->MapResident(piece.begin, piece.end);
    }
  });
}

}  // namespace k3

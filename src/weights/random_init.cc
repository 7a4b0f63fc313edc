#include "weights/random_init.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "config/model_config.h"
#include "sys/thread_pool.h"
#include "tensor/number_formats.h"
#include "weights/inventory.h"
#include "weights/random_values.h"

namespace k3 {
namespace {

constexpr int64_t kBufferBytes = 32 * kRandomChunkBytes;

struct StoredTensor {
  TensorDeclaration declaration;
  RandomSpec spec;
  int64_t bytes = 0;
};
using ShardPlan = std::vector<StoredTensor>;

/// Everything but the bytes: which tensor goes to which shard.
class Planner {
 public:
  Planner(const RandomCheckpointOptions& options, const ModelConfig& config, RandomFiller* filler)
      : options_(options), config_(config), filler_(filler) {}

  /// The shards of one layer, or of the outer part for layer -1.
  std::vector<ShardPlan> PlanPart(int64_t layer) {
    shards_.assign(1, {});
    shard_bytes_ = 0;
    unit_.clear();
    int64_t unit_expert = -1;
    const auto visit = [&](const ExpectedTensor& tensor) {
      // The matrices of one expert stay together, so that one read fetches an expert.
      if (tensor.expert < 0 || tensor.expert != unit_expert) CloseUnit();
      unit_expert = tensor.expert;
      AddStored(tensor);
    };
    if (layer >= 0) {
      VisitLayerTensors(config_, layer, visit);
    } else {
      VisitOuterTensors(config_, visit);
    }
    CloseUnit();
    return std::move(shards_);
  }

 private:
  void CloseUnit() {
    int64_t bytes = 0;
    for (const StoredTensor& tensor : unit_) bytes += tensor.bytes;
    if (!shards_.back().empty() && shard_bytes_ + bytes > options_.shard_bytes_max) {
      shards_.emplace_back();
      shard_bytes_ = 0;
    }
    shard_bytes_ += bytes;
    std::move(unit_.begin(), unit_.end(), std::back_inserter(shards_.back()));
    unit_.clear();
  }

  void Add(std::string name, DType dtype, const Shape& shape, RandomSpec spec) {
    spec.dtype = dtype;
    spec.seed = options_.seed;
    spec.stream = StreamOfName(name);
    const int64_t bytes = shape.Elements() * DTypeBytes(dtype);
    unit_.push_back({{std::move(name), dtype, shape}, spec, bytes});
  }

  void AddStored(const ExpectedTensor& tensor) {
    const std::string name = TensorNames(/*nested=*/true).Full(tensor.name);
    const RandomSpec spec = SpecOf(tensor);
    if (tensor.stored != StoredType::kMxfp4) {
      Add(name, tensor.stored == StoredType::kF32 ? DType::kF32 : DType::kBF16, tensor.shape, spec);
      return;
    }
    RandomSpec codes;
    codes.mxfp4 = filler_->PrepareMxfp4(spec.spread);
    codes.scale_stream = StreamOfName(name + "_scale");
    RandomSpec scales = codes;
    codes.law = RandomSpec::Law::kMxfp4Codes;
    scales.law = RandomSpec::Law::kMxfp4Scales;
    const int64_t rows = tensor.shape[0];
    const int64_t cols = tensor.shape[1];
    Add(name + "_packed", DType::kU8, {rows, cols / 2}, codes);
    Add(name + "_scale", DType::kU8, {rows, cols / kMxfp4BlockSize}, scales);
  }

  RandomSpec SpecOf(const ExpectedTensor& tensor) const {
    RandomSpec spec;
    const auto uniform = [&](float low, float high) {
      spec.law = RandomSpec::Law::kUniform;
      spec.center = low;
      spec.spread = high - low;
    };
    switch (tensor.role) {
      case TensorRole::kNorm:
        spec.center = 1.0f;
        spec.spread = 0.2f;
        break;
      case TensorRole::kConvolution:
        spec.spread = 0.5f;
        break;
      case TensorRole::kALog:
        uniform(-0.5f, 0.7f);
        spec.live_count = config_.kda.heads;
        break;
      case TensorRole::kDtBias:
        uniform(-4.0f, 1.0f);
        break;
      case TensorRole::kCorrectionBias:
        uniform(-0.1f, 0.1f);
        break;
      default:
        spec.spread = tensor.gain / std::sqrt(static_cast<float>(tensor.shape[1]));
    }
    return spec;
  }

  const RandomCheckpointOptions& options_;
  const ModelConfig& config_;
  RandomFiller* filler_;
  std::vector<ShardPlan> shards_;
  ShardPlan unit_;
  int64_t shard_bytes_ = 0;
};

Status CheckOptions(const RandomCheckpointOptions& options, const ModelConfig& config) {
  if (options.layers.has_value() &&
      (options.layers->first < 0 || options.layers->first > options.layers->last ||
       options.layers->last >= config.layers)) {
    return InvalidArgument(fmt::format("layers: expected a range in 0-{}, found {}-{}",
                                       config.layers - 1, options.layers->first,
                                       options.layers->last));
  }
  if (options.shard_bytes_max < 1) {
    return InvalidArgument(
        fmt::format("shard size: expected at least 1 byte, found {}", options.shard_bytes_max));
  }
  if (!config.quantized_experts || config.moe.experts == 0) return OkStatus();
  const int64_t outer = config.moe.latent > 0 ? config.moe.latent : config.hidden_size;
  for (const auto& [name, width] : {std::pair("the experts' input width", outer),
                                    std::pair("moe_intermediate_size", config.moe.intermediate)}) {
    if (width % kMxfp4BlockSize != 0) {
      return InvalidArgument(
          fmt::format("{}: expected a multiple of {} for MXFP4 experts, found {}", name,
                      kMxfp4BlockSize, width));
    }
  }
  return OkStatus();
}

Status CheckDirectory(FileSystem& files, const std::string& dir, bool owns_marker) {
  K3_TRY(const std::vector<std::string> names, files.List(dir));
  for (const std::string& name : names) {
    if ((name == kIncompleteMarkerName && !owns_marker) || name == kConfigFileName ||
        name == kIndexFileName || name == "tiktoken.model" || name == "tokenizer_config.json" ||
        name.ends_with(".safetensors") || name.ends_with(".partial")) {
      return InvalidArgument(
          fmt::format("{}: expected a directory without a checkpoint, found {}; choose another one "
                      "or delete it first",
                      dir, name));
    }
  }
  return OkStatus();
}

/// Writes the shards, index and configuration, and remembers what to remove after a failure.
class CheckpointWriter {
 public:
  CheckpointWriter(FileSystem& files, const RandomCheckpointOptions& options,
                   const ModelConfig& config)
      : files_(files),
        options_(options),
        config_(config),
        pool_(options.threads_count),
        planner_(options, config, &filler_) {}

  Result<RandomCheckpointSummary> Run() {
    CountAll();
    K3_RETURN_IF_ERROR(CheckSpace());
    const Status written = WriteAll();
    if (!written.ok()) {
      RemoveAll();
      return written.WithContext(
          fmt::format("{}: the checkpoint needs {} bytes and was not written", options_.out_dir,
                      summary_.tensor_bytes));
    }
    // From here on the files are whole: a failure leaves them, and the marker, where they are.
    K3_RETURN_IF_ERROR(files_.Remove(Path(kIncompleteMarkerName)));
    K3_RETURN_IF_ERROR(files_.SyncDirectory(options_.out_dir));
    return summary_;
  }

 private:
  bool whole() const {
    return !options_.layers.has_value() ||
           (options_.layers->first == 0 && options_.layers->last == config_.layers - 1);
  }
  std::vector<int64_t> Parts() const {
    const LayerRange all{0, config_.layers - 1};
    const LayerRange range = options_.layers.value_or(all);
    std::vector<int64_t> parts;
    for (int64_t layer = range.first; layer <= range.last; ++layer) parts.push_back(layer);
    if (whole()) parts.push_back(-1);
    return parts;
  }
  std::string Path(std::string_view name) const { return JoinPath(options_.out_dir, name); }

  void CountAll() {
    for (const int64_t part : Parts()) {
      for (const ShardPlan& shard : planner_.PlanPart(part)) {
        ++summary_.shards_count;
        summary_.tensors_count += std::ssize(shard);
        for (const StoredTensor& tensor : shard) summary_.tensor_bytes += tensor.bytes;
      }
    }
  }

  Status CheckSpace() const {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(options_.out_dir, error);
    // A file system that cannot tell is left to fail by itself.
    if (error || space.available >= static_cast<uint64_t>(summary_.tensor_bytes)) return OkStatus();
    return ResourceExhausted(
        fmt::format("{}: expected {} free bytes for the checkpoint, found {}; free some space, "
                    "choose another disk or write fewer layers",
                    options_.out_dir, summary_.tensor_bytes, space.available));
  }

  Status WriteAll() {
    K3_RETURN_IF_ERROR(WriteMarker());
    K3_TRY(ShardIndexWriter index, ShardIndexWriter::Create(files_, Path(kIndexFileName)));
    int64_t number = 0;
    for (const int64_t part : Parts()) {
      for (const ShardPlan& shard : planner_.PlanPart(part)) {
        const std::string file_name =
            fmt::format("model-{:05d}-of-{:05d}.safetensors", ++number, summary_.shards_count);
        created_.push_back(file_name);
        K3_RETURN_IF_ERROR(WriteShard(shard, file_name));
        for (const StoredTensor& tensor : shard) {
          K3_RETURN_IF_ERROR(index.Add(tensor.declaration.name, file_name));
        }
      }
    }
    created_.emplace_back(kConfigFileName);
    K3_RETURN_IF_ERROR(WriteConfigFile(files_, options_.out_dir, options_.config_json));
    ShardIndexMetadata metadata;
    metadata.total_size = summary_.tensor_bytes;
    if (!whole()) metadata.layers = options_.layers;
    created_.emplace_back(kIndexFileName);
    K3_RETURN_IF_ERROR(index.Finish(metadata));
    return files_.SyncDirectory(options_.out_dir);
  }

  Status WriteMarker() {
    K3_TRY(const std::unique_ptr<WritableFile> marker,
           files_.CreateNew(Path(kIncompleteMarkerName)));
    owns_marker_ = true;
    // Another process may have written all of its checkpoint since the directory was looked at.
    K3_RETURN_IF_ERROR(CheckDirectory(files_, options_.out_dir, true));
    const Status written =
        marker->Append(AsBytes("This checkpoint is being written, or writing it was cut off.\n"));
    const Status synced = written.ok() ? marker->Sync() : written;
    const Status closed = marker->Close();
    K3_RETURN_IF_ERROR(synced);
    K3_RETURN_IF_ERROR(closed);
    return files_.SyncDirectory(options_.out_dir);
  }

  Status WriteShard(const ShardPlan& shard, const std::string& file_name) {
    std::vector<TensorDeclaration> declarations;
    declarations.reserve(shard.size());
    for (const StoredTensor& tensor : shard) declarations.push_back(tensor.declaration);
    K3_TRY(SafetensorsWriter writer,
           SafetensorsWriter::Create(files_, Path(file_name), declarations));
    for (const StoredTensor& tensor : shard) {
      for (int64_t done = 0, chunk = 0; done < tensor.bytes; done += kRandomChunkBytes, ++chunk) {
        const int64_t bytes = std::min(kRandomChunkBytes, tensor.bytes - done);
        if (buffered_ + bytes > kBufferBytes) K3_RETURN_IF_ERROR(Flush(writer, file_name));
        pieces_.push_back({&tensor.spec, chunk, buffered_, bytes});
        buffered_ += bytes;
      }
    }
    K3_RETURN_IF_ERROR(Flush(writer, file_name));
    return writer.Finish();
  }

  /// Fills the pieces that the buffer holds, on all threads, and appends them.
  Status Flush(SafetensorsWriter& writer, const std::string& file_name) {
    pool_.ParallelFor(std::ssize(pieces_), 1, [&](int64_t begin, int64_t end, int /*worker*/) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces_[static_cast<size_t>(i)];
        filler_.Fill(*piece.spec, piece.chunk,
                     {buffer_.data() + piece.offset, static_cast<size_t>(piece.bytes)});
      }
    });
    K3_RETURN_IF_ERROR(writer.Append({buffer_.data(), static_cast<size_t>(buffered_)}));
    bytes_done_ += buffered_;
    pieces_.clear();
    buffered_ = 0;
    if (options_.progress) options_.progress({bytes_done_, summary_.tensor_bytes, file_name});
    return OkStatus();
  }

  void RemoveAll() {
    // The marker goes last, and stays when something else does: what is left must not open.
    // Without a marker of our own the directory is another process's.
    if (!owns_marker_) return;
    bool all_removed = true;
    for (const std::string& name : created_) {
      if (files_.Exists(Path(name)) && !files_.Remove(Path(name)).ok()) all_removed = false;
    }
    if (all_removed && files_.Exists(Path(kIncompleteMarkerName))) {
      // The failure that led here is the one to report.
      (void)files_.Remove(Path(kIncompleteMarkerName));
    }
  }

  struct Piece {
    const RandomSpec* spec;
    int64_t chunk;
    int64_t offset;  // in the buffer
    int64_t bytes;
  };

  FileSystem& files_;
  const RandomCheckpointOptions& options_;
  const ModelConfig& config_;
  ThreadPool pool_;
  RandomFiller filler_;
  Planner planner_;
  RandomCheckpointSummary summary_;
  bool owns_marker_ = false;
  std::vector<std::string> created_;  // file names, the marker left out
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBufferBytes);
  std::vector<Piece> pieces_;
  int64_t buffered_ = 0;
  int64_t bytes_done_ = 0;
};

}  // namespace

Result<RandomCheckpointSummary> WriteRandomCheckpoint(FileSystem& files,
                                                      const RandomCheckpointOptions& options) {
  K3_TRY(const ModelConfig config, ParseModelConfig(options.config_json, kConfigFileName));
  K3_RETURN_IF_ERROR(CheckOptions(options, config));
  K3_RETURN_IF_ERROR(files.MakeDirectories(options.out_dir));
  K3_RETURN_IF_ERROR(CheckDirectory(files, options.out_dir, false));
  return CheckpointWriter(files, options, config).Run();
}

}  // namespace k3

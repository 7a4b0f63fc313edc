#include "engine/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "base/check.h"
#include "checkpoint/gguf_rows.h"
#include "kernels/kernels.h"
#include "tensor/number_formats.h"

namespace k3 {
namespace {

// Rows are gathered up to about this much before they are written.
constexpr int64_t kBufferBytes = int64_t{4} << 20;

// Values of "general.file_type": what most of the file is.
constexpr uint32_t kFileF32 = 0;
constexpr uint32_t kFileQ8 = 7;
constexpr uint32_t kFileBf16 = 32;
constexpr uint32_t kFileMxfp4 = 38;

void WriteRow(std::span<const float> row, GgufType type, std::byte* out) {
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out, row.data(), row.size_bytes());
      return;
    case GgufType::kBf16:
      for (const float value : row) {
        const uint16_t bits = FloatToBf16(value);
        std::memcpy(out, &bits, sizeof(bits));
        out += sizeof(bits);
      }
      return;
    case GgufType::kQ8:
      PackQ8Row(row, out);
      return;
    case GgufType::kF16:
    case GgufType::kMxfp4:
      break;
  }
  K3_CHECK(false, "a type that rows are converted to");
}

/// Converts one part after the other and appends its rows to the file.
class ItemWriter {
 public:
  ItemWriter(const WeightStore& weights, const GgufExport& exported, GgufWriter& writer)
      : weights_(weights), exported_(exported), writer_(writer) {}

  Status Write(const GgufItem& item) {
    if (item.parts.empty()) return Flush(std::as_bytes(std::span(item.values)));
    for (size_t i = 0; i < item.parts.size(); ++i) {
      K3_RETURN_IF_ERROR(weights_.CheckScales(item.parts[i], item.part_names[i]));
      K3_RETURN_IF_ERROR(item.transposed ? WriteTransposed(item.parts[i], item.tensor.type)
                                         : WritePart(item.parts[i], item.tensor.type));
    }
    return OkStatus();
  }

 private:
  Status WritePart(const WeightMatrix& part, GgufType type) {
    const int64_t row_bytes = part.cols / GgufBlockElements(type) * GgufBlockBytes(type);
    std::vector<float> row(static_cast<size_t>(part.cols));
    return WriteRows(part.rows, row_bytes, [&](int64_t r, std::byte* out) {
      if (part.format == WeightFormat::kMxfp4 && type == GgufType::kMxfp4) {
        const auto* codes = static_cast<const uint8_t*>(part.data) + r * (part.cols / 2);
        RepackMxfp4Row(codes, part.scales + r * (part.cols / kMxfp4BlockSize), part.cols, out);
      } else {
        widen_(part, r, row.data());
        WriteRow(row, type, out);
      }
    });
  }

  Status WriteTransposed(const WeightMatrix& part, GgufType type) {
    const int64_t row_bytes = part.rows / GgufBlockElements(type) * GgufBlockBytes(type);
    std::vector<float> whole(static_cast<size_t>(part.rows * part.cols));
    for (int64_t r = 0; r < part.rows; ++r) {
      widen_(part, r, whole.data() + r * part.cols);
    }
    std::vector<float> row(static_cast<size_t>(part.rows));
    return WriteRows(part.cols, row_bytes, [&](int64_t column, std::byte* out) {
      for (int64_t r = 0; r < part.rows; ++r) {
        row[static_cast<size_t>(r)] = whole[static_cast<size_t>(r * part.cols + column)];
      }
      WriteRow(row, type, out);
    });
  }

  /// `make(row, out)` fills the bytes of one row.
  Status WriteRows(int64_t rows, int64_t row_bytes, const auto& make) {
    const int64_t group = std::max<int64_t>(1, kBufferBytes / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += group) {
      const int64_t count = std::min(group, rows - begin);
      buffer_.resize(static_cast<size_t>(count * row_bytes));
      for (int64_t i = 0; i < count; ++i) make(begin + i, buffer_.data() + i * row_bytes);
      K3_RETURN_IF_ERROR(Flush(buffer_));
    }
    return OkStatus();
  }

  Status Flush(std::span<const std::byte> bytes) {
    if (exported_.should_stop && exported_.should_stop()) {
      return Cancelled(exported_.out_path + ": interrupted, nothing is written");
    }
    K3_RETURN_IF_ERROR(writer_.Append(bytes));
    done_ += std::ssize(bytes);
    if (exported_.progress) exported_.progress(done_, writer_.file_bytes());
    return OkStatus();
  }

  const WeightStore& weights_;
  const GgufExport& exported_;
  GgufWriter& writer_;
  decltype(kernels::ElementwiseKernels::widen) widen_ =
      kernels::Kernels(BestSimdTarget()).elementwise.widen;
  std::vector<std::byte> buffer_;
  int64_t done_ = 0;
};

uint32_t FileType(const GgufPlan& plan, const GgufTypes& types) {
  const bool mxfp4 = std::ranges::any_of(
      plan.items, [](const GgufItem& item) { return item.tensor.type == GgufType::kMxfp4; });
  if (mxfp4) return kFileMxfp4;
  if (types.trunk == GgufTrunk::kF32) return kFileF32;
  return types.trunk == GgufTrunk::kQ8 ? kFileQ8 : kFileBf16;
}

int64_t StopId(const Checkpoint& checkpoint) {
  const std::vector<int64_t>& generation = checkpoint.generation_config().eos_token_ids;
  const std::vector<int64_t>& ids =
      generation.empty() ? checkpoint.config().eos_token_ids : generation;
  return ids.empty() ? -1 : ids.front();
}

/// Refuses a disk that is known to be too small; a system that does not say is tried.
Status CheckRoom(const std::string& path, int64_t bytes) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.available >= static_cast<uint64_t>(bytes)) return OkStatus();
  return ResourceExhausted(
      fmt::format("{}: expected room for {} bytes, found {}; free some space, choose another disk "
                  "or smaller types",
                  path, bytes, space.available));
}

/// An old export is replaced; a file of another kind, such as a shard of the model, never.
Status CheckReplaceable(FileSystem& files, const std::string& path) {
  if (path.empty()) return InvalidArgument("expected the name of a file to write, found none");
  if (!files.Exists(path)) return OkStatus();
  K3_TRY(const std::unique_ptr<ReadableFile> old, files.OpenReadable(path));
  std::array<std::byte, kGgufMagic.size()> start{};
  if (old->size() == 0) return OkStatus();
  if (old->size() >= std::ssize(start)) {
    K3_RETURN_IF_ERROR(old->ReadAt(0, start));
    if (std::ranges::equal(start, AsBytes(kGgufMagic))) return OkStatus();
  }
  return InvalidArgument(path +
                         ": expected a free name or an older GGUF file, found a file of another "
                         "kind; choose another name or remove it first");
}

Status CheckWhole(const Checkpoint& checkpoint) {
  const std::optional<LayerRange>& part = checkpoint.partial_layers();
  if (!part.has_value()) return OkStatus();
  return InvalidArgument(fmt::format(
      "{}: expected a whole model, found a slice that holds layers {} to {} only; take the "
      "checkpoint that it was cut from",
      checkpoint.dir(), part->first, part->last));
}

}  // namespace

Result<GgufExportSummary> ExportGguf(FileSystem& files, const GgufExport& exported) {
  const Checkpoint& checkpoint = *exported.checkpoint;
  K3_RETURN_IF_ERROR(CheckWhole(checkpoint));
  K3_RETURN_IF_ERROR(CheckReplaceable(files, exported.out_path));
  K3_RETURN_IF_ERROR(CheckGgufCanExpress(checkpoint.config()).WithContext(checkpoint.dir()));
  K3_TRY(const WeightStore weights, WeightStore::Bind(checkpoint, {.validate_scales = false}));
  K3_TRY(const GgufPlan plan, PlanGguf(weights, exported.types));

  GgufExportSummary summary;
  GgufMetadata metadata;
  metadata.AddString("general.architecture", "kimi-k3");
  metadata.AddString("general.type", "model");
  metadata.AddString("general.name", exported.name);
  metadata.AddU32("general.alignment", static_cast<uint32_t>(kGgufAlignment));
  metadata.AddU32("general.quantization_version", 2);
  metadata.AddU32("general.file_type", FileType(plan, exported.types));
  AddGgufArchitecture(checkpoint.config(), &metadata);
  summary.vocabulary =
      AddGgufVocabulary(exported.tokenizer, checkpoint.config(), StopId(checkpoint), &metadata);

  std::vector<GgufTensor> tensors;
  for (const GgufItem& item : plan.items) tensors.push_back(item.tensor);
  K3_TRY(summary.file_bytes, GgufFileBytes(metadata, tensors));
  K3_RETURN_IF_ERROR(CheckRoom(exported.out_path, summary.file_bytes));
  K3_TRY(GgufWriter writer, GgufWriter::Create(files, exported.out_path, metadata, tensors));
  ItemWriter rows(weights, exported, writer);
  for (const GgufItem& item : plan.items) K3_RETURN_IF_ERROR(rows.Write(item));
  K3_RETURN_IF_ERROR(writer.Finish());

  summary.tensors_count = std::ssize(tensors);
  summary.unblocked_count = plan.unblocked_count;
  summary.plain_banks_count = plan.plain_banks_count;
  summary.vision_count = std::ranges::count_if(
      checkpoint.tensors(), [](const TensorInfo& tensor) { return IsVisionTensor(tensor.name); });
  return summary;
}

}  // namespace k3

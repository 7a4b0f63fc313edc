#include "checkpoint/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_set>

#include "base/arithmetic.h"
#include "config/json.h"

namespace k3 {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 3;
// Numbers of the value types in the file.
constexpr uint32_t kU32 = 4;
constexpr uint32_t kI32 = 5;
constexpr uint32_t kF32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

template <typename T>
void Put(std::string* out, T value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  out->append(bytes.data(), bytes.size());
}

void PutString(std::string* out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out->append(text);
}

/// The bytes of a tensor; nothing when its shape cannot be stored.
std::optional<int64_t> CheckedBytes(const GgufTensor& tensor) {
  if (tensor.dims.empty() || std::ssize(tensor.dims) > kGgufRankMax ||
      tensor.dims[0] % GgufBlockElements(tensor.type) != 0) {
    return std::nullopt;
  }
  int64_t bytes = GgufBlockBytes(tensor.type);
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    const int64_t count = i == 0 ? tensor.dims[i] / GgufBlockElements(tensor.type) : tensor.dims[i];
    if (count <= 0 || !CheckedMultiply(bytes, count, &bytes)) return std::nullopt;
  }
  return bytes;
}

struct Layout {
  std::string header;  // up to the start of the data
  std::vector<int64_t> tensor_bytes;
  int64_t file_bytes = 0;
};

Result<Layout> LayOut(const GgufMetadata& metadata, std::span<const GgufTensor> tensors) {
  Layout layout;
  layout.header = kGgufMagic;
  Put(&layout.header, kVersion);
  Put<uint64_t>(&layout.header, tensors.size());
  Put<uint64_t>(&layout.header, static_cast<uint64_t>(metadata.count()));
  layout.header += metadata.bytes();
  std::unordered_set<std::string_view> names;
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.name.empty() || std::ssize(tensor.name) > kGgufNameBytesMax ||
        !names.insert(tensor.name).second) {
      return InvalidArgument(
          fmt::format("tensor {}: expected a name of 1 to {} bytes that is not used twice",
                      QuoteForMessage(tensor.name), kGgufNameBytesMax));
    }
    const std::optional<int64_t> bytes = CheckedBytes(tensor);
    int64_t end = 0;
    // The room for padding is part of the sum that must not overflow.
    if (!bytes.has_value() || !CheckedAdd(offset, *bytes, &end) ||
        !CheckedAdd(end, kGgufAlignment, &end)) {
      return InvalidArgument(fmt::format(
          "tensor {}: expected 1 to {} positive dimensions, rows of whole {} blocks of {} and "
          "below 2^63 bytes, found [{}] from the innermost on",
          QuoteForMessage(tensor.name), kGgufRankMax, GgufTypeName(tensor.type),
          GgufBlockElements(tensor.type), fmt::join(tensor.dims, ", ")));
    }
    PutString(&layout.header, tensor.name);
    Put<uint32_t>(&layout.header, static_cast<uint32_t>(tensor.dims.size()));
    for (const int64_t dim : tensor.dims) Put(&layout.header, static_cast<uint64_t>(dim));
    Put(&layout.header, static_cast<uint32_t>(tensor.type));
    Put(&layout.header, static_cast<uint64_t>(offset));
    layout.tensor_bytes.push_back(*bytes);
    offset = RoundUp(offset + *bytes, kGgufAlignment);
  }
  layout.header.resize(static_cast<size_t>(RoundUp(std::ssize(layout.header), kGgufAlignment)));
  layout.file_bytes = std::ssize(layout.header) + offset;
  return layout;
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return "F32";
    case GgufType::kF16:
      return "F16";
    case GgufType::kQ8:
      return "Q8_0";
    case GgufType::kBf16:
      return "BF16";
    case GgufType::kMxfp4:
      return "MXFP4";
  }
  return "?";
}

int64_t GgufBlockElements(GgufType type) {
  return type == GgufType::kQ8 || type == GgufType::kMxfp4 ? 32 : 1;
}

int64_t GgufBlockBytes(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 4;
    case GgufType::kF16:
    case GgufType::kBf16:
      return 2;
    case GgufType::kQ8:
      return 2 + 32;  // scale and 32 signed bytes
    case GgufType::kMxfp4:
      return 1 + 16;  // scale and 32 codes
  }
  return 0;
}

int64_t GgufTensor::bytes() const {
  const std::optional<int64_t> bytes = CheckedBytes(*this);
  K3_CHECK(bytes.has_value(), "a tensor that GGUF can hold");
  return *bytes;
}

void GgufMetadata::AddKey(std::string_view key, uint32_t type) {
  PutString(&bytes_, key);
  Put(&bytes_, type);
  ++count_;
}

void GgufMetadata::AddU32(std::string_view key, uint32_t value) {
  AddKey(key, kU32);
  Put(&bytes_, value);
}

void GgufMetadata::AddF32(std::string_view key, float value) {
  AddKey(key, kF32);
  Put(&bytes_, value);
}

void GgufMetadata::AddBool(std::string_view key, bool value) {
  AddKey(key, kBool);
  Put<uint8_t>(&bytes_, value ? 1 : 0);
}

void GgufMetadata::AddString(std::string_view key, std::string_view value) {
  AddKey(key, kString);
  PutString(&bytes_, value);
}

void GgufMetadata::AddI32Array(std::string_view key, std::span<const int32_t> values) {
  AddKey(key, kArray);
  Put(&bytes_, kI32);
  Put<uint64_t>(&bytes_, values.size());
  for (const int32_t value : values) Put(&bytes_, value);
}

void GgufMetadata::AddStringArray(std::string_view key, std::span<const std::string> values) {
  AddKey(key, kArray);
  Put(&bytes_, kString);
  Put<uint64_t>(&bytes_, values.size());
  for (const std::string& value : values) PutString(&bytes_, value);
}

Result<GgufWriter> GgufWriter::Create(FileSystem& files, std::string path,
                                      const GgufMetadata& metadata,
                                      std::span<const GgufTensor> tensors) {
  Result<Layout> layout = LayOut(metadata, tensors);
  if (!layout.ok()) return layout.status().WithContext(path);
  K3_TRY(AtomicFile file, AtomicFile::Create(files, std::move(path)));
  GgufWriter writer(std::move(file), std::move(layout->tensor_bytes), layout->file_bytes);
  K3_RETURN_IF_ERROR(writer.Explain(writer.file_.Append(AsBytes(layout->header))));
  return writer;
}

Status GgufWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  K3_CHECK(tensor_ < tensor_bytes_.size() && std::ssize(bytes) <= tensor_bytes_[tensor_] - done_,
           "more bytes than the tensor has");
  K3_RETURN_IF_ERROR(Explain(file_.Append(bytes)));
  done_ += std::ssize(bytes);
  if (done_ < tensor_bytes_[tensor_]) return OkStatus();
  const int64_t padding = RoundUp(done_, kGgufAlignment) - done_;
  ++tensor_;
  done_ = 0;
  return AppendZeros(padding);
}

Status GgufWriter::AppendZeros(int64_t count) {
  const std::array<std::byte, kGgufAlignment> zeros{};
  return count == 0 ? OkStatus()
                    : Explain(file_.Append(std::span(zeros).first(static_cast<size_t>(count))));
}

Status GgufWriter::Finish() {
  K3_CHECK(tensor_ == tensor_bytes_.size(), "fewer bytes than declared");
  return Explain(file_.Finish());
}

Status GgufWriter::Explain(const Status& status) const {
  if (status.code() != StatusCode::kResourceExhausted) return status;
  return status.WithContext(fmt::format("{}: the file needs {} bytes", file_.path(), file_bytes_));
}

Result<int64_t> GgufFileBytes(const GgufMetadata& metadata, std::span<const GgufTensor> tensors) {
  K3_TRY(const Layout layout, LayOut(metadata, tensors));
  return layout.file_bytes;
}

}  // namespace k3

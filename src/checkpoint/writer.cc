#include "checkpoint/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/arithmetic.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "config/json.h"
#include "config/model_config.h"

namespace k3 {
namespace {

// Data starts at a multiple of this, so that a mapped tensor is as aligned as its size allows.
constexpr int64_t kDataAlignment = 64;
constexpr size_t kIndexBufferBytes = size_t{1} << 20;

/// `text` as a JSON string; nothing when it is not UTF-8.
std::optional<std::string> JsonString(std::string_view text) {
  std::string json = nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                               nlohmann::json::error_handler_t::replace);
  // A replaced byte shows as U+FFFD, which no name of ours contains.
  if (json.find("\\ufffd") != std::string::npos) return std::nullopt;
  return json;
}

Result<std::string> BuildHeader(std::span<const TensorDeclaration> tensors,
                                const SafetensorsWriter::Metadata& metadata, int64_t* data_bytes) {
  nlohmann::json strings = nlohmann::json::object();
  for (const auto& [key, value] : metadata) strings[key] = value;
  std::string header = fmt::format(
      "{{\"__metadata__\":{}",
      strings.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace));
  std::unordered_set<std::string_view> names;
  int64_t end = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const std::optional<std::string> name = JsonString(tensor.name);
    if (!name.has_value() || std::ssize(tensor.name) > limits::kTensorNameBytesMax ||
        tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return InvalidArgument(fmt::format(
          "tensor {}: expected a name in UTF-8 of at most {} bytes that is not used twice",
          QuoteForMessage(tensor.name), limits::kTensorNameBytesMax));
    }
    const int64_t begin = end;
    const std::optional<int64_t> elements = tensor.shape.CheckedElements();
    int64_t bytes = 0;
    if (!elements.has_value() || !CheckedMultiply(*elements, DTypeBytes(tensor.dtype), &bytes) ||
        !CheckedAdd(begin, bytes, &end)) {
      return InvalidArgument(fmt::format("tensor {}: expected a shard below 2^63 bytes, found {}",
                                         QuoteForMessage(tensor.name), tensor.shape.ToString()));
    }
    header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", *name,
                          DTypeName(tensor.dtype), fmt::join(tensor.shape.dims(), ","), begin, end);
  }
  header += '}';
  const int64_t padded = RoundUp(std::ssize(header) + kSafetensorsLengthBytes, kDataAlignment) -
                         kSafetensorsLengthBytes;
  header.resize(static_cast<size_t>(padded), ' ');
  if (padded > limits::kShardHeaderBytesMax) {
    return InvalidArgument(fmt::format("expected a header of at most {} bytes, found {}",
                                       limits::kShardHeaderBytesMax, padded));
  }
  *data_bytes = end;
  return header;
}

}  // namespace

Result<AtomicFile> AtomicFile::Create(FileSystem& files, std::string path) {
  K3_TRY(std::unique_ptr<WritableFile> file, files.Create(k3::PartialPath(path)));
  return AtomicFile(files, std::move(path), std::move(file));
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  // Whatever stopped the writing has been reported; what is left is to leave no rubbish behind.
  (void)file_->Close();
  (void)files_->Remove(PartialPath());
}

Status AtomicFile::Append(std::span<const std::byte> bytes) { return file_->Append(bytes); }

Status AtomicFile::Finish() {
  K3_RETURN_IF_ERROR(file_->Sync());
  const std::unique_ptr<WritableFile> file = std::move(file_);
  Status status = file->Close();
  if (status.ok()) status = files_->Rename(PartialPath(), path_);
  if (!status.ok()) (void)files_->Remove(PartialPath());
  return status;
}

Result<SafetensorsWriter> SafetensorsWriter::Create(FileSystem& files, std::string path,
                                                    std::span<const TensorDeclaration> tensors,
                                                    const Metadata& metadata) {
  int64_t data_bytes = 0;
  auto header = BuildHeader(tensors, metadata, &data_bytes);
  if (!header.ok()) return header.status().WithContext(path);
  std::string prefix;
  for (size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    prefix += static_cast<char>(header->size() >> (8 * i) & 255);
  }
  prefix += *header;
  K3_TRY(AtomicFile file, AtomicFile::Create(files, std::move(path)));
  SafetensorsWriter writer(std::move(file), std::ssize(prefix) + data_bytes, data_bytes);
  K3_RETURN_IF_ERROR(writer.Explain(writer.file_.Append(AsBytes(prefix))));
  return writer;
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  K3_CHECK(std::ssize(bytes) <= remaining_bytes_, "more bytes than the header declares");
  remaining_bytes_ -= std::ssize(bytes);
  return Explain(file_.Append(bytes));
}

Status SafetensorsWriter::Finish() {
  K3_CHECK(remaining_bytes_ == 0, "fewer bytes than the header declares");
  return Explain(file_.Finish());
}

Status SafetensorsWriter::Explain(const Status& status) const {
  if (status.code() != StatusCode::kResourceExhausted) return status;
  return status.WithContext(fmt::format("{}: the shard needs {} bytes", file_.path(), file_bytes_));
}

Result<int64_t> SafetensorsFileBytes(std::span<const TensorDeclaration> tensors) {
  int64_t data_bytes = 0;
  K3_TRY(const std::string header, BuildHeader(tensors, {{"format", "pt"}}, &data_bytes));
  return kSafetensorsLengthBytes + std::ssize(header) + data_bytes;
}

Result<ShardIndexWriter> ShardIndexWriter::Create(FileSystem& files, std::string path) {
  K3_TRY(AtomicFile file, AtomicFile::Create(files, std::move(path)));
  ShardIndexWriter writer(std::move(file));
  writer.buffer_ = "{\n\"weight_map\": {";
  return writer;
}

Status ShardIndexWriter::Add(std::string_view tensor, std::string_view shard) {
  const std::optional<std::string> name = JsonString(tensor);
  const std::optional<std::string> file = JsonString(shard);
  if (!name.has_value() || !file.has_value()) {
    return InvalidArgument(
        fmt::format("tensor {}: expected a name in UTF-8", QuoteForMessage(tensor)));
  }
  buffer_ += fmt::format("{}\n{}: {}", empty_ ? "" : ",", *name, *file);
  empty_ = false;
  return buffer_.size() < kIndexBufferBytes ? OkStatus() : Flush();
}

Status ShardIndexWriter::Flush() {
  const Status status = file_.Append(AsBytes(buffer_));
  buffer_.clear();
  return status;
}

Status ShardIndexWriter::Finish(const ShardIndexMetadata& metadata) {
  // The metadata stands behind the map, because its total is known last.
  std::vector<std::string> fields;
  if (metadata.total_size.has_value()) {
    fields.push_back(fmt::format("\"total_size\": {}", *metadata.total_size));
  }
  if (metadata.layers.has_value()) {
    fields.push_back(fmt::format("\"{}\": {}, \"{}\": {}", kFirstLayerKey, metadata.layers->first,
                                 kLastLayerKey, metadata.layers->last));
  }
  buffer_ += fmt::format("\n}},\n\"metadata\": {{{}}}\n}}\n", fmt::join(fields, ", "));
  K3_RETURN_IF_ERROR(Flush());
  return file_.Finish();
}

Status WriteConfigFile(FileSystem& files, const std::string& dir, std::string_view json) {
  const std::string path = JoinPath(dir, kConfigFileName);
  K3_RETURN_IF_ERROR(ParseModelConfig(json, path));
  return WriteFileAtomically(files, path, json);
}

}  // namespace k3

#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/arithmetic.h"
#include "base/limits.h"
#include "config/json.h"

namespace k3 {
namespace {

constexpr std::string_view kDownloadAgain = "; the file is damaged, download the shard again";

/// Follows the parser through the three levels of a header.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader* header, int64_t data_bytes)
      : header_(header), data_bytes_(data_bytes) {}

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return Unexpected(fmt::format("{}", value)); }
  bool number_float(double /*value*/, const std::string& text) override { return Unexpected(text); }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return Unexpected("binary"); }

  bool number_unsigned(uint64_t value) override {
    if (level_ != Level::kNumbers || value > static_cast<uint64_t>(INT64_MAX)) {
      return Unexpected(fmt::format("{}", value));
    }
    if (numbers_count_ == numbers_.size()) {
      return Fail(field_, fmt::format("at most {} numbers", numbers_.size()), "more");
    }
    numbers_[numbers_count_++] = static_cast<int64_t>(value);
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      header_->metadata.emplace_back(std::move(metadata_key_), std::move(value));
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") return Unexpected(QuoteForMessage(value));
    const std::optional<DType> dtype = ParseDType(value);
    if (!dtype.has_value()) {
      return Fail("dtype", "a type this program knows (F32, F16, BF16, U8, ...)",
                  QuoteForMessage(value));
    }
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (level_ == Level::kStart) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop) {
      level_ = in_metadata_ ? Level::kMetadata : Level::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool start_array(size_t /*size*/) override {
    if (level_ != Level::kTensor || (field_ != "shape" && field_ != "data_offsets")) {
      return Unexpected("an array");
    }
    level_ = Level::kNumbers;
    numbers_count_ = 0;
    return true;
  }

  bool key(std::string& name) override {
    if (level_ == Level::kTop) return TopKey(name);
    if (level_ == Level::kMetadata) {
      metadata_key_ = std::move(name);
      return true;
    }
    constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
    const auto at = std::find(kFields.begin(), kFields.end(), name);
    if (at == kFields.end()) {
      return Fail(QuoteForMessage(name), "only dtype, shape and data_offsets", "this field");
    }
    const unsigned bit = 1u << (at - kFields.begin());
    field_ = *at;
    if ((fields_seen_ & bit) != 0) return Fail(field_, "the field once", "it twice");
    fields_seen_ |= bit;
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    const std::span<const int64_t> numbers(numbers_.data(), numbers_count_);
    if (field_ == "shape") {
      tensor_.shape = Shape(numbers);
      return true;
    }
    if (numbers.size() != 2) {
      return Fail(field_, "[begin, end]", fmt::format("{} numbers", numbers.size()));
    }
    if (numbers[0] > numbers[1] || numbers[1] > data_bytes_) {
      return Fail(field_, fmt::format("a range in the file's {} data bytes", data_bytes_),
                  fmt::format("[{}, {}]{}", numbers[0], numbers[1], kDownloadAgain));
    }
    tensor_.file_offset = header_->data_offset + numbers[0];
    tensor_.bytes = numbers[1] - numbers[0];
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kTop) {
      level_ = Level::kEnd;
      return true;
    }
    const bool tensor_ended = level_ == Level::kTensor;
    level_ = Level::kTop;
    return tensor_ended ? FinishTensor() : FinishMetadata();
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    failure_ = fmt::format("header: expected valid JSON, found a fault at byte {}: {}{}", position,
                           QuoteForMessage(error.what()), kDownloadAgain);
    return false;
  }

  const std::string& failure() const { return failure_; }

 private:
  enum class Level { kStart, kTop, kMetadata, kTensor, kNumbers, kEnd };

  bool Fail(std::string_view field, std::string_view expected, std::string_view found) {
    const std::string_view name = in_metadata_ ? "__metadata__" : tensor_.name;
    failure_ = fmt::format("tensor {}: {}: expected {}, found {}", QuoteForMessage(name), field,
                           expected, found);
    return false;
  }

  bool Unexpected(std::string_view found) {
    switch (level_) {
      case Level::kStart:
      case Level::kEnd:
        failure_ = fmt::format("header: expected an object, found {}", found);
        return false;
      case Level::kTop:
        return Fail("entry", "an object", found);
      case Level::kMetadata:
        return Fail(QuoteForMessage(metadata_key_), "a string", found);
      case Level::kTensor:
        return Fail(field_, field_ == "dtype" ? "a string" : "an array", found);
      case Level::kNumbers:
        return Fail(field_, "integers from 0", found);
    }
    return false;
  }

  bool TopKey(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) {
      if (metadata_seen_) return Fail("entry", "it once", "it twice");
      metadata_seen_ = true;
      return true;
    }
    if (std::ssize(name) > limits::kTensorNameBytesMax) {
      failure_ = fmt::format("tensor {}: expected a name of at most {} bytes, found {}",
                             QuoteForMessage(name), limits::kTensorNameBytesMax, name.size());
      return false;
    }
    if (std::ssize(header_->tensors) >= limits::kTensorsCountMax) {
      failure_ = fmt::format("expected at most {} tensors, found more", limits::kTensorsCountMax);
      return false;
    }
    tensor_ = {};
    tensor_.name = header_->names.Add(name);
    fields_seen_ = 0;
    return true;
  }

  bool FinishTensor() {
    if (fields_seen_ != 7) return Fail("entry", "dtype, shape and data_offsets", "fewer fields");
    const std::optional<int64_t> elements = tensor_.shape.CheckedElements();
    int64_t bytes = 0;
    if (!elements.has_value() || !CheckedMultiply(*elements, DTypeBytes(tensor_.dtype), &bytes)) {
      return Fail("shape", "a size below 2^63 bytes", tensor_.shape.ToString());
    }
    if (bytes != tensor_.bytes) {
      return Fail("data_offsets",
                  fmt::format("{} bytes for {} of {}", bytes, tensor_.shape.ToString(),
                              DTypeName(tensor_.dtype)),
                  fmt::format("{}", tensor_.bytes));
    }
    header_->tensors.push_back(tensor_);
    return true;
  }

  bool FinishMetadata() {
    auto& metadata = header_->metadata;
    std::sort(metadata.begin(), metadata.end());
    for (size_t i = 1; i < metadata.size(); ++i) {
      if (metadata[i].first == metadata[i - 1].first) {
        return Fail(QuoteForMessage(metadata[i].first), "the key once", "it twice");
      }
    }
    return true;
  }

  SafetensorsHeader* header_;
  const int64_t data_bytes_;
  Level level_ = Level::kStart;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  unsigned fields_seen_ = 0;
  TensorInfo tensor_;
  std::string_view field_ = "entry";
  std::string metadata_key_;
  std::array<int64_t, limits::kTensorRankMax> numbers_{};
  size_t numbers_count_ = 0;
  std::string failure_;
};

/// The tensors must tile the data section: no overlap, no hole, nothing behind the last.
Status CheckCoverage(const SafetensorsHeader& header, std::string_view where) {
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(header.tensors.size());
  for (const TensorInfo& tensor : header.tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->file_offset, a->bytes) < std::pair(b->file_offset, b->bytes);
  });
  int64_t end = header.data_offset;
  for (const TensorInfo* tensor : by_offset) {
    if (tensor->file_offset != end) {
      return Corruption(fmt::format(
          "{}: tensor {}: expected to start at data byte {}, found {} ({} the tensor before it){}",
          where, QuoteForMessage(tensor->name), end - header.data_offset,
          tensor->file_offset - header.data_offset,
          tensor->file_offset < end ? "it overlaps" : "it leaves a hole behind", kDownloadAgain));
    }
    end += tensor->bytes;
  }
  const int64_t rest = header.data_offset + header.data_bytes - end;
  if (rest != 0) {
    return Corruption(
        fmt::format("{}: expected {} data bytes, found {} more behind the last "
                    "tensor{}",
                    where, end - header.data_offset, rest, kDownloadAgain));
  }
  return OkStatus();
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_offset,
                                                 int64_t data_bytes, std::string_view where) {
  SafetensorsHeader header;
  header.data_offset = data_offset;
  header.data_bytes = data_bytes;
  HeaderReader reader(&header, data_bytes);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return Corruption(fmt::format("{}: {}", where, reader.failure()));
  }
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) {
      return Corruption(fmt::format("{}: tensor {}: expected the name once, found it twice", where,
                                    QuoteForMessage(tensors[i].name)));
    }
  }
  K3_RETURN_IF_ERROR(CheckCoverage(header, where));
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(ReadableFile& file, std::string_view where) {
  if (file.size() < kSafetensorsLengthBytes) {
    return Corruption(fmt::format("{}: expected at least {} bytes, found {}{}", where,
                                  kSafetensorsLengthBytes, file.size(), kDownloadAgain));
  }
  std::array<std::byte, kSafetensorsLengthBytes> raw;
  K3_RETURN_IF_ERROR(file.ReadAt(0, raw));
  uint64_t length = 0;
  for (size_t i = raw.size(); i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(raw[i]);
  const int64_t behind = file.size() - kSafetensorsLengthBytes;
  const uint64_t allowed = static_cast<uint64_t>(std::min(behind, limits::kShardHeaderBytesMax));
  if (length > allowed) {
    return Corruption(
        fmt::format("{}: header length: expected at most {} ({}), found {}{}", where, allowed,
                    behind > limits::kShardHeaderBytesMax ? "the limit of this program"
                                                          : "what the file has behind it",
                    length, kDownloadAgain));
  }
  std::string json(length, '\0');
  K3_RETURN_IF_ERROR(
      file.ReadAt(kSafetensorsLengthBytes, std::as_writable_bytes(std::span<char>(json))));
  const int64_t data_offset = kSafetensorsLengthBytes + static_cast<int64_t>(length);
  return ParseSafetensorsHeader(json, data_offset, file.size() - data_offset, where);
}

}  // namespace k3

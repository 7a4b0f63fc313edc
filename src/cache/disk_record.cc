#include "cache/disk_record.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "base/limits.h"

namespace k3::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::string_view kMagic = "K3CACHE\n";
constexpr uint32_t kVersion = 1;
/// Read and hashed piece by piece, so that the hash finds the bytes in the processor's cache.
constexpr int64_t kPieceBytes = 256 << 10;

constexpr int64_t kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr int64_t kTokenBytes = static_cast<int64_t>(sizeof(int32_t));
constexpr int64_t kHeaderBytesMax = kRecordFixedBytes + kPageTokens * kTokenBytes;

template <typename T>
void Put(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// Takes values off the front of a header whose length has been checked.
class FieldSource {
 public:
  explicit FieldSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

Status Unlike(std::string_view where, std::string_view what, std::string_view expected,
              std::string_view found) {
  return Corruption(fmt::format("{}: {}: expected {}, found {}", where, what, expected, found));
}

/// XXH3 of 64 bits over what is fed to it.
class Checksum {
 public:
  Checksum() { XXH3_64bits_reset(&state_); }
  void Add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

PrefixHash KeyOf(const PrefixHash& parent, std::span<const int32_t> tokens) {
  PrefixHash key = parent;
  const auto block = static_cast<size_t>(kHashBlockTokens);
  for (size_t at = 0; at < tokens.size(); at += block) {
    key = ExtendHash(key, tokens.subspan(at, block));
  }
  return key;
}

bool IsPageFill(int64_t tokens) {
  return tokens > 0 && tokens <= kPageTokens && tokens % kHashBlockTokens == 0;
}

Status CompareChecksum(const Checksum& sum, std::span<const std::byte> stored,
                       std::string_view where) {
  const auto expected = FieldSource(stored).Take<uint64_t>();
  if (expected == sum.value()) return OkStatus();
  return Unlike(where, "checksum", fmt::format("{:016x}", expected),
                fmt::format("{:016x}", sum.value()));
}

/// `start` holds the file's first bytes, kHeaderBytesMax or all; `size` is that of the file.
Result<RecordHeader> ParseHeader(std::span<const std::byte> start, int64_t size,
                                 std::string_view where) {
  const int64_t smallest = RecordBytes(kHashBlockTokens, 0);
  if (size < smallest) {
    return Unlike(where, "size", fmt::format("at least {} bytes", smallest), fmt::to_string(size));
  }
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    return Unlike(where, "first bytes", "\"K3CACHE\\n\"", "others");
  }
  FieldSource fields(start.subspan(kMagic.size()));
  if (const auto version = fields.Take<uint32_t>(); version != kVersion) {
    return Unlike(where, "version", fmt::to_string(kVersion), fmt::to_string(version));
  }
  RecordHeader header;
  const auto kind = fields.Take<uint32_t>();
  if (kind != static_cast<uint32_t>(RecordKind::kPage) &&
      kind != static_cast<uint32_t>(RecordKind::kSnapshot)) {
    return Unlike(where, "kind", "1 or 2", fmt::to_string(kind));
  }
  header.kind = static_cast<RecordKind>(kind);
  header.fingerprint = fields.Take<ModelFingerprintBytes>();
  header.parent.low = fields.Take<uint64_t>();
  header.parent.high = fields.Take<uint64_t>();
  header.key.low = fields.Take<uint64_t>();
  header.key.high = fields.Take<uint64_t>();
  header.begin = fields.Take<int64_t>();
  const auto tokens = fields.Take<int64_t>();
  header.payload_floats = fields.Take<int64_t>();
  if (header.begin < 0 || header.begin > limits::kContextTokensMax ||
      header.begin % kPageTokens != 0) {
    return Unlike(where, "begin", fmt::format("a multiple of {}", kPageTokens),
                  fmt::to_string(header.begin));
  }
  if (!IsPageFill(tokens)) {
    return Unlike(where, "tokens", fmt::format("16 to {} in blocks of 16", kPageTokens),
                  fmt::to_string(tokens));
  }
  // Beyond the file's own size the sum below cannot be right, nor could it be formed.
  if (header.payload_floats < 0 || header.payload_floats > size / kFloatBytes ||
      RecordBytes(tokens, header.payload_floats) != size) {
    return Unlike(where, "size",
                  fmt::format("that of {} tokens and {} floats", tokens, header.payload_floats),
                  fmt::format("{} bytes", size));
  }
  header.tokens.resize(static_cast<size_t>(tokens));
  std::memcpy(header.tokens.data(), start.data() + kRecordFixedBytes,
              static_cast<size_t>(tokens * kTokenBytes));
  if (KeyOf(header.parent, header.tokens) != header.key) {
    return Unlike(where, "key", "the hash of parent and tokens", header.key.ToHex());
  }
  return header;
}

Status WriteOpened(WritableFile& file, const RecordHeader& header,
                   std::span<const std::span<const float>> payload) {
  Checksum sum;
  const auto append = [&](std::span<const std::byte> bytes) {
    sum.Add(bytes);
    return file.Append(bytes);
  };
  K3_RETURN_IF_ERROR(append(AsBytes(EncodeRecordHeader(header))));
  for (const std::span<const float> part : payload) {
    if (!part.empty()) K3_RETURN_IF_ERROR(append(std::as_bytes(part)));
  }
  const uint64_t value = sum.value();
  K3_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span<const uint64_t>(&value, 1))));
  return file.Sync();
}

}  // namespace

std::string FingerprintHex(const ModelFingerprintBytes& fingerprint) {
  std::string hex;
  for (const uint8_t byte : fingerprint) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string_view RecordKindName(RecordKind kind) {
  return kind == RecordKind::kPage ? "page" : "snapshot";
}

int64_t RecordBytes(int64_t tokens, int64_t payload_floats) {
  return kRecordFixedBytes + tokens * kTokenBytes + payload_floats * kFloatBytes +
         kRecordChecksumBytes;
}

std::string EncodeRecordHeader(const RecordHeader& header) {
  std::string out(kMagic);
  Put(&out, kVersion);
  Put(&out, static_cast<uint32_t>(header.kind));
  Put(&out, header.fingerprint);
  Put(&out, header.parent.low);
  Put(&out, header.parent.high);
  Put(&out, header.key.low);
  Put(&out, header.key.high);
  Put(&out, header.begin);
  Put(&out, static_cast<int64_t>(std::ssize(header.tokens)));
  Put(&out, header.payload_floats);
  K3_CHECK(std::ssize(out) == kRecordFixedBytes, "the fields have their documented sizes");
  out.append(reinterpret_cast<const char*>(header.tokens.data()),
             header.tokens.size() * sizeof(int32_t));
  return out;
}

Result<RecordHeader> ReadRecordHeader(ReadableFile& file, std::string_view where) {
  std::array<std::byte, kHeaderBytesMax> bytes;
  const std::span<std::byte> start =
      std::span(bytes).first(static_cast<size_t>(std::min(file.size(), kHeaderBytesMax)));
  K3_RETURN_IF_ERROR(file.ReadAt(0, start));
  return ParseHeader(start, file.size(), where);
}

int64_t PayloadOffset(int64_t tokens) { return kRecordFixedBytes + tokens * kTokenBytes; }

Result<RecordHeader> ReadRecord(ReadableFile& file, std::span<std::byte> place,
                                std::string_view where) {
  const int64_t size = std::ssize(place);
  if (size != file.size() || size < kRecordFixedBytes + kRecordChecksumBytes) {
    return Unlike(where, "size", fmt::format("{} bytes", size), fmt::to_string(file.size()));
  }
  Checksum sum;
  const int64_t hashed = size - kRecordChecksumBytes;
  for (int64_t at = 0; at < size; at += kPieceBytes) {
    const int64_t end = std::min(at + kPieceBytes, size);
    K3_RETURN_IF_ERROR(
        file.ReadAt(at, place.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at))));
    // The checksum itself may begin in one piece and end in the next.
    const int64_t hashed_end = std::min(end, hashed);
    if (at < hashed_end) {
      sum.Add(place.subspan(static_cast<size_t>(at), static_cast<size_t>(hashed_end - at)));
    }
  }
  K3_TRY(RecordHeader header, ParseHeader(place, size, where));
  K3_RETURN_IF_ERROR(CompareChecksum(sum, place.subspan(static_cast<size_t>(hashed)), where));
  return header;
}

Status VerifyRecord(ReadableFile& file, const RecordHeader& header, std::string_view where) {
  Checksum sum;
  sum.Add(AsBytes(EncodeRecordHeader(header)));
  const int64_t hashed = file.size() - kRecordChecksumBytes;
  std::vector<std::byte> buffer(kPieceBytes);
  for (int64_t at = PayloadOffset(std::ssize(header.tokens)); at < hashed; at += kPieceBytes) {
    const std::span<std::byte> piece =
        std::span(buffer).first(static_cast<size_t>(std::min(kPieceBytes, hashed - at)));
    K3_RETURN_IF_ERROR(file.ReadAt(at, piece));
    sum.Add(piece);
  }
  const std::span<std::byte> stored = std::span(buffer).first(kRecordChecksumBytes);
  K3_RETURN_IF_ERROR(file.ReadAt(hashed, stored));
  return CompareChecksum(sum, stored, where);
}

Status WriteRecord(FileSystem& files, const std::string& path, const RecordHeader& header,
                   std::span<const std::span<const float>> payload) {
  const std::string partial = PartialPath(path);
  K3_TRY(const std::unique_ptr<WritableFile> file, files.Create(partial));
  Status status = WriteOpened(*file, header, payload);
  const Status closed = file->Close();
  if (status.ok()) status = closed;
  if (status.ok()) status = files.Rename(partial, path);
  // The failure is the one to report, whether or not the partial file can be removed.
  if (!status.ok()) (void)files.Remove(partial);
  return status;
}

}  // namespace k3::cache

// Fuzzes a record of the disk tier: whatever the bytes, both ways of reading agree, and what is
// read whole would be written as the same bytes. An input that starts with '#' is given the key
// that it should have, so that what lies behind it is reached.

#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "cache/disk_record.h"

namespace {

class BytesFile : public k3::ReadableFile {
 public:
  explicit BytesFile(std::string_view bytes) : bytes_(bytes) {}
  k3::Status ReadAt(int64_t offset, std::span<std::byte> out) override {
    if (offset < 0 || offset + std::ssize(out) > size()) return k3::Corruption("ends early");
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return k3::OkStatus();
  }
  int64_t size() const override { return std::ssize(bytes_); }

 private:
  std::string_view bytes_;
};

/// Makes parent and tokens, wherever they are, agree with the key.
void RepairKey(std::string* bytes) {
  constexpr size_t kParentAt = 32;
  constexpr size_t kKeyAt = 48;
  constexpr size_t kTokensAt = k3::cache::kRecordFixedBytes;
  if (bytes->size() < kTokensAt + k3::cache::kRecordChecksumBytes) return;
  int64_t count = 0;
  std::memcpy(&count, bytes->data() + 72, sizeof(count));
  const auto room = static_cast<int64_t>((bytes->size() - kTokensAt) / sizeof(int32_t));
  if (count <= 0 || count > room || count > k3::cache::kPageTokens) return;
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::memcpy(tokens.data(), bytes->data() + kTokensAt, tokens.size() * sizeof(int32_t));
  k3::cache::PrefixHash parent;
  std::memcpy(&parent.low, bytes->data() + kParentAt, sizeof(uint64_t));
  std::memcpy(&parent.high, bytes->data() + kParentAt + sizeof(uint64_t), sizeof(uint64_t));
  const k3::cache::PrefixHash key = k3::cache::ChainHashes(parent, tokens).back();
  std::memcpy(bytes->data() + kKeyAt, &key.low, sizeof(uint64_t));
  std::memcpy(bytes->data() + kKeyAt + sizeof(uint64_t), &key.high, sizeof(uint64_t));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with('#')) {
    bytes.erase(0, 1);
    RepairKey(&bytes);
  }
  BytesFile file(bytes);
  const auto header = k3::cache::ReadRecordHeader(file, "record");
  std::vector<std::byte> place(bytes.size());
  const auto whole = k3::cache::ReadRecord(file, place, "record");
  if (!header.ok()) {
    K3_CHECK(!whole.ok(), "a bad header is a bad record");
    K3_CHECK(!header.status().message().empty(), "a refusal says why");
    return 0;
  }
  K3_CHECK(
      k3::cache::RecordBytes(std::ssize(header->tokens), header->payload_floats) == file.size(),
      "the size is right");
  K3_CHECK(bytes.starts_with(k3::cache::EncodeRecordHeader(*header)), "written as it was read");
  K3_CHECK(k3::cache::VerifyRecord(file, *header, "record").ok() == whole.ok(), "both ways agree");
  return 0;
}

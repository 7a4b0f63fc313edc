#pragma once
// One file of the disk tier: the latents of up to 256 tokens (a page) or the KDA states at one
// boundary (a snapshot), with the tokens they stand for and a checksum over every byte.
//
// Both kinds stand for the tokens [begin, begin + tokens.size()) behind the prefix `parent`, begin
// a multiple of 256 and 1 to 16 whole hash blocks: for a snapshot the part of its last page that
// lies before its boundary. The key is the chain hash at their end, so a record names itself. What
// the payload's floats mean is the caller's affair. docs/formats.md has the bytes.
//
// Pure functions over files, any thread. A file that is not what it says is Corruption, also one of
// another version; NotFound and IoError are the system's. Nothing is allocated beyond the file's
// own size. Source: XXH3 (github.com/Cyan4973/xxHash) for the checksum.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/prefix_hash.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace k3::cache {

/// What a model and a build of the program must have in common to read each other's records.
using ModelFingerprintBytes = std::array<uint8_t, 16>;

/// 32 hexadecimal digits.
std::string FingerprintHex(const ModelFingerprintBytes& fingerprint);

enum class RecordKind : uint32_t { kPage = 1, kSnapshot = 2 };
/// "page" or "snapshot".
std::string_view RecordKindName(RecordKind kind);

struct RecordHeader {
  RecordKind kind = RecordKind::kPage;
  ModelFingerprintBytes fingerprint{};
  PrefixHash parent;  // of the tokens [0, begin)
  PrefixHash key;     // of the tokens [0, end())
  int64_t begin = 0;
  std::vector<int32_t> tokens;
  int64_t payload_floats = 0;

  int64_t end() const { return begin + std::ssize(tokens); }
};

inline constexpr int64_t kRecordFixedBytes = 88;    // before the tokens
inline constexpr int64_t kRecordChecksumBytes = 8;  // behind the payload

/// Size of the whole file.
int64_t RecordBytes(int64_t tokens, int64_t payload_floats);

/// The file's first bytes, up to the payload.
std::string EncodeRecordHeader(const RecordHeader& header);

/// Reads and checks everything up to the payload, and that the file has the size it should have.
Result<RecordHeader> ReadRecordHeader(ReadableFile& file, std::string_view where);

/// Reads the whole file into `place`, which must have its size, and checks everything. The payload
/// begins at PayloadOffset(tokens).
Result<RecordHeader> ReadRecord(ReadableFile& file, std::span<std::byte> place,
                                std::string_view where);
int64_t PayloadOffset(int64_t tokens);

/// Reads what is behind the header in pieces and compares the checksum: what verifying takes.
Status VerifyRecord(ReadableFile& file, const RecordHeader& header, std::string_view where);

/// Writes the record under PartialPath(path), syncs it and renames it; the directory is not synced.
/// The parts of the payload have header.payload_floats floats together. After a failure no file
/// under `path` and, if it can be removed, no partial one.
Status WriteRecord(FileSystem& files, const std::string& path, const RecordHeader& header,
                   std::span<const std::span<const float>> payload);

}  // namespace k3::cache

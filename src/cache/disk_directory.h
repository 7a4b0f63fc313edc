#pragma once
// The directory of a disk tier: which files it has, under which names.
//
//   k3-cache.lock                  held by the process that uses the directory; marks it as a cache
//   FINGERPRINT/page-KEY.k3c       one folder a model, the fingerprint's 32 hexadecimal digits
//   FINGERPRINT/snapshot-KEY.k3c   KEY the chain hash at the record's end, 32 digits
//   FINGERPRINT/*.partial          being written, or left by a process that was killed
//
// Files and folders of other names are not the tier's and are left alone. Any thread. Failures are
// IoError and NotFound; a file that goes away meanwhile is none.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/disk_record.h"
#include "sys/file.h"

namespace k3::cache {

inline constexpr std::string_view kCacheLockName = "k3-cache.lock";

std::string RecordFileName(RecordKind kind, const PrefixHash& key);
/// The kind that a file name tells, none for a name that no record has.
std::optional<RecordKind> ParseRecordFileName(std::string_view name);

struct RecordFile {
  std::string path;
  RecordKind kind = RecordKind::kPage;
  int64_t bytes = 0;
  int64_t last_use = 0;  // see UseClock
};

struct ModelFolder {
  std::string fingerprint_hex;
  std::string path;
  std::vector<RecordFile> records;    // by last use, oldest first
  std::vector<std::string> partials;  // paths
};

/// Every model's folder, by fingerprint. Sizes and times are of the files, nothing is opened.
Result<std::vector<ModelFolder>> ListCache(const std::string& dir);

/// InvalidArgument for a directory that exists and has not the mark of a cache, NotFound for none.
Status CheckIsCache(const std::string& dir);

/// Reads a record's header and checks that file name and folder are the ones it belongs under.
Result<RecordHeader> ReadRecordHeaderAt(ReadableFile& file, const std::string& path);

/// When a record was used last is its file's modification time, as nanoseconds since 1970.
int64_t UseClock();
/// Failures are ignored: they cost an order of eviction.
void SetLastUse(const std::string& path, int64_t last_use);
/// Seconds since 1970.
int64_t UnixSeconds(int64_t last_use);

}  // namespace k3::cache

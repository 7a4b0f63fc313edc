#include "cache/disk_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace k3::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecordSuffix = ".k3c";
constexpr std::string_view kPartialSuffix = ".partial";
constexpr size_t kHexDigits = 32;

int64_t UnixNanoseconds(fs::file_time_type time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::file_clock::to_sys(time).time_since_epoch())
      .count();
}

bool IsHexName(std::string_view text) {
  return text.size() == kHexDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status ListError(const std::string& path, const std::error_code& error) {
  std::string message = fmt::format("{}: cannot list the directory: {}", path, error.message());
  if (error == std::errc::no_such_file_or_directory) return NotFound(std::move(message));
  return IoError(std::move(message));
}

/// Calls `visit` for each entry.
template <typename Visit>
Status ForEachEntry(const std::string& path, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    visit(*it);
  }
  return error ? ListError(path, error) : OkStatus();
}

Result<ModelFolder> ListFolder(const std::string& path, const std::string& name) {
  ModelFolder folder{.fingerprint_hex = name, .path = path};
  K3_RETURN_IF_ERROR(ForEachEntry(path, [&](const fs::directory_entry& entry) {
    const std::string file = entry.path().filename().string();
    const size_t stem = file.find(kRecordSuffix);
    if (stem == std::string::npos) return;
    const std::optional<RecordKind> kind =
        ParseRecordFileName(std::string_view(file).substr(0, stem + kRecordSuffix.size()));
    std::error_code error;
    if (!kind.has_value() || !entry.is_regular_file(error)) return;
    if (file.ends_with(kPartialSuffix)) folder.partials.push_back(entry.path().string());
    if (!file.ends_with(kRecordSuffix)) return;
    const auto bytes = static_cast<int64_t>(entry.file_size(error));
    const fs::file_time_type time =
        error ? fs::file_time_type() : fs::last_write_time(entry.path(), error);
    if (error) return;
    folder.records.push_back({.path = entry.path().string(),
                              .kind = *kind,
                              .bytes = bytes,
                              // One in the future would stay the newest for ever.
                              .last_use = std::min(UnixNanoseconds(time), UseClock())});
  }));
  std::ranges::sort(folder.records, {}, [](const RecordFile& record) {
    return std::pair(record.last_use, std::string_view(record.path));
  });
  return folder;
}

}  // namespace

std::string RecordFileName(RecordKind kind, const PrefixHash& key) {
  return fmt::format("{}-{}{}", RecordKindName(kind), key.ToHex(), kRecordSuffix);
}

std::optional<RecordKind> ParseRecordFileName(std::string_view name) {
  for (const RecordKind kind : {RecordKind::kPage, RecordKind::kSnapshot}) {
    const std::string start = fmt::format("{}-", RecordKindName(kind));
    if (!name.starts_with(start) || !name.ends_with(kRecordSuffix)) continue;
    name.remove_prefix(start.size());
    name.remove_suffix(kRecordSuffix.size());
    if (IsHexName(name)) return kind;
    break;
  }
  return std::nullopt;
}

Result<std::vector<ModelFolder>> ListCache(const std::string& dir) {
  std::vector<std::pair<std::string, std::string>> names;
  K3_RETURN_IF_ERROR(ForEachEntry(dir, [&](const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    // A link could lead out of the cache.
    if (IsHexName(name) && entry.is_directory(error) && !entry.is_symlink(error)) {
      names.emplace_back(name, entry.path().string());
    }
  }));
  std::ranges::sort(names);
  std::vector<ModelFolder> folders;
  for (const auto& [name, path] : names) {
    Result<ModelFolder> folder = ListFolder(path, name);
    if (folder.status().code() == StatusCode::kNotFound) continue;
    K3_RETURN_IF_ERROR(folder.status());
    folders.push_back(std::move(*folder));
  }
  return folders;
}

Status CheckIsCache(const std::string& dir) {
  std::error_code error;
  if (!fs::exists(dir, error)) {
    return NotFound(fmt::format("{}: no such directory; `k3 serve --cache-dir` makes it", dir));
  }
  if (!fs::is_directory(dir, error)) {
    return InvalidArgument(fmt::format("{}: expected a cache's directory, found a file", dir));
  }
  if (!fs::is_regular_file(fs::path(dir) / kCacheLockName, error)) {
    return InvalidArgument(
        fmt::format("{}: expected a directory that `k3 serve --cache-dir` has made, found one "
                    "without {}",
                    dir, kCacheLockName));
  }
  return OkStatus();
}

Result<RecordHeader> ReadRecordHeaderAt(ReadableFile& file, const std::string& path) {
  K3_TRY(RecordHeader header, ReadRecordHeader(file, path));
  const fs::path place(path);
  if (place.filename() != RecordFileName(header.kind, header.key)) {
    return Corruption(fmt::format("{}: name: expected {}, found another", path,
                                  RecordFileName(header.kind, header.key)));
  }
  if (place.parent_path().filename() != FingerprintHex(header.fingerprint)) {
    return Corruption(fmt::format("{}: fingerprint: expected the folder's, found {}", path,
                                  FingerprintHex(header.fingerprint)));
  }
  return header;
}

int64_t UseClock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void SetLastUse(const std::string& path, int64_t last_use) {
  std::error_code ignored;
  const std::chrono::sys_time<std::chrono::nanoseconds> time{std::chrono::nanoseconds(last_use)};
  fs::last_write_time(path, std::chrono::file_clock::from_sys(time), ignored);
}

int64_t UnixSeconds(int64_t last_use) { return last_use / 1'000'000'000; }

}  // namespace k3::cache

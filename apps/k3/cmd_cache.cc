// k3 cache: what the disk tier of a server's prefix cache holds, whether it is whole, and away
// with it.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "cache/disk_directory.h"
#include "commands.h"
#include "sys/file.h"
#include "sys/file_lock.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CacheFlags {
  std::string action;
  std::string dir;
  bool remove = false;
  bool json = false;
};

/// What one model has in the cache.
struct ModelSummary {
  std::string fingerprint;
  int64_t pages = 0;
  int64_t snapshots = 0;
  int64_t damaged = 0;  // headers that cannot be read
  int64_t tokens = 0;   // of the pages
  int64_t bytes = 0;
  std::optional<int64_t> last_use;  // seconds since 1970
};

struct DamagedRecord {
  std::string path;
  std::string reason;
  bool removed = false;
};

std::string FormatTime(std::optional<int64_t> seconds) {
  if (!seconds.has_value()) return "-";
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(*seconds)));
}

/// Kept by the caller while files are removed: not under a server that uses them.
Result<FileLock> LockForRemoval(const std::string& dir) {
  Result<FileLock> lock = FileLock::Acquire(fmt::format("{}/{}", dir, cache::kCacheLockName));
  if (lock.status().code() != StatusCode::kUnavailable) return lock;
  return Unavailable(
      fmt::format("{}: expected a cache that nobody uses, found a server at work in it; end it "
                  "before anything is removed",
                  dir));
}

Result<cache::RecordHeader> ReadHeader(FileSystem& files, const std::string& path) {
  K3_TRY(const std::unique_ptr<ReadableFile> file, files.OpenReadable(path));
  return cache::ReadRecordHeaderAt(*file, path);
}

Status Verify(FileSystem& files, const std::string& path) {
  K3_TRY(const std::unique_ptr<ReadableFile> file, files.OpenReadable(path));
  K3_TRY(const cache::RecordHeader header, cache::ReadRecordHeaderAt(*file, path));
  return cache::VerifyRecord(*file, header, path);
}

ModelSummary Summarise(FileSystem& files, const cache::ModelFolder& folder) {
  ModelSummary summary{.fingerprint = folder.fingerprint_hex};
  for (const cache::RecordFile& record : folder.records) {
    const Result<cache::RecordHeader> header = ReadHeader(files, record.path);
    // A server that works in the cache may have evicted it meanwhile.
    if (header.status().code() == StatusCode::kNotFound) continue;
    summary.bytes += record.bytes;
    const int64_t last_use = cache::UnixSeconds(record.last_use);
    summary.last_use = std::max(summary.last_use.value_or(last_use), last_use);
    if (!header.ok()) {
      ++summary.damaged;
    } else if (record.kind == cache::RecordKind::kSnapshot) {
      ++summary.snapshots;
    } else {
      ++summary.pages;
      summary.tokens += std::ssize(header->tokens);
    }
  }
  return summary;
}

std::string ListText(const std::string& dir, const std::vector<ModelSummary>& models) {
  if (models.empty()) return fmt::format("{}: an empty cache\n", dir);
  std::string out;
  ModelSummary all;
  for (const ModelSummary& model : models) {
    out += fmt::format("{}  {} pages of {} tokens, {} snapshots, {}, last used {}\n",
                       model.fingerprint, model.pages, model.tokens, model.snapshots,
                       FormatBytes(model.bytes), FormatTime(model.last_use));
    if (model.damaged > 0) {
      out += fmt::format("  {} more cannot be read: `k3 cache verify` says why\n", model.damaged);
    }
    all.bytes += model.bytes;
  }
  return out + fmt::format("{} in all, of {} models\n", FormatBytes(all.bytes), models.size());
}

std::string ListJson(const std::string& dir, const std::vector<ModelSummary>& models) {
  Json out = {{"cache_dir", dir}, {"bytes", 0}, {"models", Json::array()}};
  int64_t bytes = 0;
  for (const ModelSummary& model : models) {
    bytes += model.bytes;
    out["models"].push_back(
        {{"fingerprint", model.fingerprint},
         {"pages", model.pages},
         {"snapshots", model.snapshots},
         {"damaged", model.damaged},
         {"tokens", model.tokens},
         {"bytes", model.bytes},
         {"last_use",
          model.last_use.has_value() ? Json(FormatTime(model.last_use)) : Json(nullptr)}});
  }
  out["bytes"] = bytes;
  return out.dump(2) + "\n";
}

Result<int> List(const CacheFlags& flags, FileSystem& files) {
  K3_TRY(const std::vector<cache::ModelFolder> folders, cache::ListCache(flags.dir));
  std::vector<ModelSummary> models;
  for (const cache::ModelFolder& folder : folders) models.push_back(Summarise(files, folder));
  K3_RETURN_IF_ERROR(
      WriteOutput(flags.json ? ListJson(flags.dir, models) : ListText(flags.dir, models)));
  return kExitOk;
}

std::string VerifyText(int64_t records, int64_t bytes, const std::vector<DamagedRecord>& damaged) {
  std::string out;
  for (const DamagedRecord& record : damaged) {
    out += fmt::format("{}{}\n", record.reason, record.removed ? "; removed" : "");
  }
  return out +
         fmt::format("{} records of {}, {} damaged\n", records, FormatBytes(bytes), damaged.size());
}

std::string VerifyJson(const std::string& dir, int64_t records, int64_t bytes,
                       const std::vector<DamagedRecord>& damaged) {
  Json out = {
      {"cache_dir", dir}, {"records", records}, {"bytes", bytes}, {"damaged", Json::array()}};
  for (const DamagedRecord& record : damaged) {
    out["damaged"].push_back(
        {{"path", record.path}, {"reason", record.reason}, {"removed", record.removed}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<int> VerifyAll(const CacheFlags& flags, FileSystem& files) {
  std::optional<FileLock> lock;
  if (flags.remove) {
    K3_TRY(FileLock taken, LockForRemoval(flags.dir));
    lock.emplace(std::move(taken));
  }
  K3_TRY(const std::vector<cache::ModelFolder> folders, cache::ListCache(flags.dir));
  int64_t records = 0;
  int64_t bytes = 0;
  std::vector<DamagedRecord> damaged;
  for (const cache::ModelFolder& folder : folders) {
    for (const cache::RecordFile& record : folder.records) {
      const Status status = Verify(files, record.path);
      if (status.code() == StatusCode::kNotFound) continue;
      ++records;
      bytes += record.bytes;
      if (status.ok()) continue;
      damaged.push_back({.path = record.path, .reason = status.ToString()});
      if (!flags.remove || status.code() != StatusCode::kCorruption) continue;
      K3_RETURN_IF_ERROR(files.Remove(record.path));
      damaged.back().removed = true;
    }
  }
  K3_RETURN_IF_ERROR(WriteOutput(flags.json ? VerifyJson(flags.dir, records, bytes, damaged)
                                            : VerifyText(records, bytes, damaged)));
  return damaged.empty() ? kExitOk : kExitFailure;
}

Result<int> Clear(const CacheFlags& flags, FileSystem& files) {
  K3_TRY(const FileLock lock, LockForRemoval(flags.dir));
  K3_TRY(const std::vector<cache::ModelFolder> folders, cache::ListCache(flags.dir));
  int64_t records = 0;
  int64_t bytes = 0;
  for (const cache::ModelFolder& folder : folders) {
    for (const cache::RecordFile& record : folder.records) {
      K3_RETURN_IF_ERROR(files.Remove(record.path));
      ++records;
      bytes += record.bytes;
    }
    for (const std::string& partial : folder.partials) K3_RETURN_IF_ERROR(files.Remove(partial));
    // Stays when it holds what is not the cache's.
    std::error_code ignored;
    std::filesystem::remove(folder.path, ignored);
  }
  const Json json = {
      {"cache_dir", flags.dir}, {"removed_records", records}, {"removed_bytes", bytes}};
  K3_RETURN_IF_ERROR(WriteOutput(
      flags.json ? json.dump(2) + "\n"
                 : fmt::format("removed {} records of {}\n", records, FormatBytes(bytes))));
  return kExitOk;
}

Result<int> RunCache(const CacheFlags& flags) {
  if (flags.remove && flags.action != "verify") {
    return InvalidArgument(
        fmt::format("--remove: expected `k3 cache verify`, found `k3 cache {}`", flags.action));
  }
  K3_RETURN_IF_ERROR(cache::CheckIsCache(flags.dir));
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  if (flags.action == "list") return List(flags, *files);
  if (flags.action == "verify") return VerifyAll(flags, *files);
  return Clear(flags, *files);
}

}  // namespace

void AddCacheCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* command = app.add_subcommand(
      "cache", "List, verify or clear what a server keeps of its prefixes on disk.");
  command->add_option("ACTION", flags->action, "list, verify or clear.")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember({"list", "verify", "clear"}).description(""));
  command->add_option("--cache-dir", flags->dir, "The directory that `k3 serve` was given.")
      ->required()
      ->type_name("DIR");
  command->add_flag("--remove", flags->remove, "With verify: removes the damaged records.");
  command->add_flag("--json", flags->json, "Prints JSON.");
  command->footer(
      "list     records, tokens, bytes and last use, for each model that has been served from "
      "here\n"
      "verify   reads every record and compares its checksum; exits with 1 if one is damaged\n"
      "clear    removes all records, without a question; other files stay\n\n"
      "Models are told apart by their fingerprint: another version of the program, SIMD target or\n"
      "file of the model has records of its own. Whatever is removed is computed again.\n\n"
      "Examples:\n"
      "  k3 cache list --cache-dir DIR\n"
      "  k3 cache verify --remove --cache-dir DIR");
  command->callback(
      [flags, &invocation] { invocation.command = [flags] { return RunCache(*flags); }; });
}

}  // namespace k3::cli

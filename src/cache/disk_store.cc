#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"
#include "cache/disk_tier_internal.h"

namespace k3::cache {
namespace {

constexpr int64_t kCacheLine = 64;
// In front of a file in memory, so that its payload begins with a cache line: tokens fill whole
// ones.
constexpr int64_t kPlacePadding = kCacheLine - kRecordFixedBytes % kCacheLine;
// A file has to be opened before it is read, which takes a disk's latency each: several at a time.
constexpr int64_t kReadersMax = 4;
constexpr int64_t kRecordsPerReader = 4;

/// Calls read(i) for each i in [0, count), in about that order, also on threads that live as long
/// as this takes.
template <typename Read>
void ReadInParallel(int64_t count, const Read& read) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) read(i);
  };
  std::vector<std::jthread> readers;
  try {
    while (std::ssize(readers) + 1 < std::min(kReadersMax, count / kRecordsPerReader)) {
      readers.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // The system has no more threads: those that there are do the work.
  }
  work();
}

Result<FileLock> LockCache(const std::string& dir) {
  Result<FileLock> lock = FileLock::Acquire(fmt::format("{}/{}", dir, kCacheLockName));
  if (lock.status().code() != StatusCode::kUnavailable) return lock;
  return Unavailable(fmt::format(
      "{}: expected a cache that nobody uses, found another process at work in it; give each "
      "server a directory of its own, or end the other",
      dir));
}

}  // namespace

DiskStore::DiskStore(std::string dir, const ModelFingerprintBytes& fingerprint,
                     DiskTierOptions options)
    : dir_(std::move(dir)),
      folder_(fmt::format("{}/{}", dir_, FingerprintHex(fingerprint))),
      fingerprint_(fingerprint),
      options_(std::move(options)),
      own_files_(options_.files == nullptr ? MakeRealFileSystem() : nullptr),
      files_(options_.files == nullptr ? own_files_.get() : options_.files) {}

Result<std::unique_ptr<DiskStore>> DiskStore::Open(const std::string& dir,
                                                   const ModelFingerprintBytes& fingerprint,
                                                   DiskTierOptions options) {
  if (options.bytes_max <= 0) {
    return InvalidArgument(fmt::format("{}: bytes of the cache: expected more than 0, found {}",
                                       dir, options.bytes_max));
  }
  K3_CHECK(options.page_floats_per_token >= 0 && options.snapshot_floats >= 0 &&
               options.queue_bytes_max >= 0,
           "sizes come from the model");
  std::unique_ptr<DiskStore> store(new DiskStore(dir, fingerprint, std::move(options)));
  K3_RETURN_IF_ERROR(store->files_->MakeDirectories(store->folder_));
  K3_TRY(FileLock lock, LockCache(dir));
  store->lock_.emplace(std::move(lock));
  K3_RETURN_IF_ERROR(store->ReadIndex());
  (void)store->MakeRoom(0, nullptr);
  return store;
}

Status DiskStore::ReadIndex() {
  K3_TRY(const std::vector<ModelFolder> folders, ListCache(dir_));
  for (const ModelFolder& folder : folders) {
    for (const std::string& partial : folder.partials) {
      if (const Status removed = files_->Remove(partial); !removed.ok()) Warn(removed.ToString());
    }
    const bool is_ours = folder.fingerprint_hex == FingerprintHex(fingerprint_);
    for (const RecordFile& file : folder.records) {
      if (is_ours) {
        IndexFile(file);
      } else {
        others_.push_back(file);
        counters.other_bytes += file.bytes;
      }
    }
  }
  std::ranges::sort(others_, {}, &RecordFile::last_use);
  return OkStatus();
}

void DiskStore::IndexFile(const RecordFile& file) {
  last_use_ = std::max(last_use_, file.last_use);
  Result<std::unique_ptr<ReadableFile>> opened = files_->OpenReadable(file.path);
  Result<RecordHeader> header =
      opened.ok() ? ReadRecordHeaderAt(**opened, file.path) : opened.status();
  if (header.ok() &&
      header->payload_floats != PayloadFloats(header->kind, std::ssize(header->tokens))) {
    header = Corruption(fmt::format("{}: floats: expected {}, found {}", file.path,
                                    PayloadFloats(header->kind, std::ssize(header->tokens)),
                                    header->payload_floats));
  }
  if (header.ok()) {
    index.Add(*header, file.bytes, file.last_use);
  } else {
    SetAside(file.path, file.bytes, header.status());
  }
}

RecordHeader DiskStore::HeaderOf(RecordKind kind, const RecordToStore& record) const {
  const int64_t tokens = std::ssize(record.tokens);
  K3_CHECK(record.begin >= 0 && record.begin % kPageTokens == 0, "records begin with a page");
  K3_CHECK(tokens > 0 && tokens <= kPageTokens && tokens % kHashBlockTokens == 0,
           "records end on the grid");
  int64_t floats = 0;
  for (const std::span<const float> part : record.payload) floats += std::ssize(part);
  K3_CHECK(floats == PayloadFloats(kind, tokens), "the payload has the size of its kind");
  return {.kind = kind,
          .fingerprint = fingerprint_,
          .parent = record.parent,
          .key = ChainHashes(record.parent, record.tokens).back(),
          .begin = record.begin,
          .tokens = record.tokens,
          .payload_floats = floats};
}

const IndexedRecord* DiskStore::FindStored(const RecordHeader& header) const {
  if (header.kind == RecordKind::kSnapshot) return index.Find(header.kind, header.key);
  return index.FindPage(header.parent, std::ssize(header.tokens), header.key);
}

void DiskStore::RunTouch(const RecordHeader& header) {
  const IndexedRecord* found = nullptr;
  {
    const std::lock_guard lock(mutex);
    found = FindStored(header);
  }
  if (found != nullptr) Touch(found);
}

void DiskStore::RunStore(const RecordHeader& header, const RecordToStore& record) {
  const int64_t bytes = RecordBytes(std::ssize(header.tokens), header.payload_floats);
  const IndexedRecord* stored = nullptr;
  const IndexedRecord* front = nullptr;
  {
    const std::lock_guard lock(mutex);
    stored = FindStored(header);
    front = index.PageInFrontOf(header);
    const bool needs_front = header.kind == RecordKind::kSnapshot || header.begin > 0;
    if (stored == nullptr && needs_front && front == nullptr) {
      ++counters.dropped_orphan;
      return;
    }
  }
  if (stored != nullptr) return Touch(stored);
  if (!MakeRoom(bytes, front)) {
    const std::lock_guard lock(mutex);
    ++counters.dropped_full;
    return;
  }
  const std::string path = PathOf(header.kind, header.key);
  if (const Status written = WriteRecord(*files_, path, header, record.payload); !written.ok()) {
    return WriteFailed(path, bytes, written);
  }
  writes_fail_ = false;
  unsynced_ = true;
  std::vector<const IndexedRecord*> beginnings;
  int64_t use = 0;
  {
    const std::lock_guard lock(mutex);
    use = NextUse();
    const IndexedRecord* added = index.Add(header, bytes, use);
    if (header.kind == RecordKind::kPage) beginnings = index.Beginnings(added);
    counters.written_bytes += bytes;
    ++counters.written_records;
  }
  // The system's own time of the write is coarser than the clock of uses.
  SetLastUse(path, use);
  for (const IndexedRecord* beginning : beginnings) RemoveRecord(beginning);
}

void DiskStore::RunSync() {
  if (!unsynced_) return;
  unsynced_ = false;
  if (const Status synced = files_->SyncDirectory(folder_); !synced.ok()) {
    WriteFailed(folder_, 0, synced);
  }
}

void DiskStore::RunFetch(const DiskFetch& fetch) {
  DiskHit hit;
  DiskPlan plan;
  int64_t length_max = std::min(fetch.length_max, std::ssize(fetch.tokens));
  while (length_max > fetch.length_min) {
    {
      const std::lock_guard lock(mutex);
      plan = index.Plan(fetch.ends, fetch.length_min, length_max, fetch.memory_pages_length);
    }
    if (plan.length == 0) break;
    const Attempt attempt = ReadPlan(plan, fetch, &hit);
    if (attempt.complete) break;
    hit = {};
    length_max = attempt.length_max;
  }
  const bool found = hit.length > 0;
  {
    const std::lock_guard lock(mutex);
    ++counters.fetches;
    if (found) ++counters.hits;
  }
  // Whoever waits need not wait for the times of the files.
  fetch.done(std::move(hit));
  if (found) TouchPlan(plan);
}

DiskStore::Attempt DiskStore::ReadPlan(const DiskPlan& plan, const DiskFetch& fetch, DiskHit* hit) {
  std::vector<const IndexedRecord*> records = plan.pages;
  records.push_back(plan.snapshot);
  std::vector<Status> statuses(records.size());
  std::vector<FetchedFloats> floats(records.size());
  const int64_t count = std::ssize(records);
  std::vector<int64_t> place_bytes;
  for (const IndexedRecord* record : records) {
    place_bytes.push_back(kPlacePadding + record->file_bytes);
  }
  const auto places = AllocateTogether(place_bytes);
  // The snapshot, the largest, first.
  ReadInParallel(count, [&](int64_t i) {
    const auto at = static_cast<size_t>(count - 1 - i);
    const int64_t end = std::min(records[at]->begin + records[at]->tokens, plan.length);
    Result<FetchedFloats> read = ReadOne(*records[at], fetch, end, places[at]);
    if (read.ok()) {
      floats[at] = std::move(*read);
    } else {
      statuses[at] = read.status();
    }
  });
  hit->length = plan.length;
  hit->snapshot = std::move(floats.back());
  for (size_t i = 0; i < plan.pages.size(); ++i) {
    hit->pages.push_back({plan.pages[i]->begin, plan.pages[i]->tokens, std::move(floats[i])});
  }
  int64_t read_bytes = 0;
  Attempt attempt{.complete = true, .length_max = plan.length};
  for (size_t i = 0; i < records.size(); ++i) {
    const IndexedRecord& record = *records[i];
    const StatusCode code = statuses[i].code();
    read_bytes += record.file_bytes;
    if (code == StatusCode::kOk) continue;
    attempt.complete = false;
    // No boundary behind a page that cannot be read; of a snapshot, the next shorter one.
    attempt.length_max =
        std::min(attempt.length_max,
                 record.kind == RecordKind::kPage ? record.begin : plan.length - kHashBlockTokens);
    if (code == StatusCode::kCorruption || code == StatusCode::kNotFound ||
        code == StatusCode::kInvalidArgument) {
      SetAside(PathOf(record.kind, record.key), record.file_bytes, statuses[i]);
      const std::lock_guard lock(mutex);
      index.Remove(&record);
    } else {
      Warn(statuses[i].ToString());
    }
  }
  const std::lock_guard lock(mutex);
  counters.read_bytes += read_bytes;
  return attempt;
}

Result<FetchedFloats> DiskStore::ReadOne(const IndexedRecord& record, const DiskFetch& fetch,
                                         int64_t end, SharedBytes block) const {
  FetchedFloats floats;
  floats.block = std::move(block);
  const std::span<std::byte> place(floats.block.get() + kPlacePadding,
                                   static_cast<size_t>(record.file_bytes));
  floats.values = {reinterpret_cast<float*>(place.data() + PayloadOffset(record.tokens)),
                   static_cast<size_t>(PayloadFloats(record.kind, record.tokens))};
  const std::string path = PathOf(record.kind, record.key);
  K3_TRY(const std::unique_ptr<ReadableFile> file, files_->OpenReadable(path));
  K3_TRY(const RecordHeader header, ReadRecord(*file, place, path));
  if (header.kind != record.kind || header.fingerprint != fingerprint_ ||
      header.key != record.key || header.begin != record.begin ||
      std::ssize(header.tokens) != record.tokens) {
    return Corruption(fmt::format("{}: expected the record that was indexed, found another", path));
  }
  const std::span<const int32_t> asked =
      std::span(fetch.tokens)
          .subspan(static_cast<size_t>(record.begin), static_cast<size_t>(end - record.begin));
  if (!std::equal(asked.begin(), asked.end(), header.tokens.begin())) {
    // Not damaged: another text with the same hash.
    return Unavailable(
        fmt::format("{}: tokens: expected those of the request, found others "
                    "under the same hash",
                    path));
  }
  return floats;
}

void DiskStore::TouchPlan(const DiskPlan& plan) {
  // From the end to the start: what is in front was used last, also for the file times.
  Touch(plan.snapshot);
  for (auto page = plan.pages.rbegin(); page != plan.pages.rend(); ++page) Touch(*page);
}

void DiskStore::Touch(const IndexedRecord* record) {
  int64_t use = 0;
  {
    const std::lock_guard lock(mutex);
    use = NextUse();
    index.Touch(record, use);
  }
  SetLastUse(PathOf(record->kind, record->key), use);
}

int64_t DiskStore::NextUse() {
  last_use_ = std::max(UseClock(), last_use_ + 1);
  return last_use_;
}

int64_t DiskStore::TotalBytes() const { return index.bytes() + counters.other_bytes + lost_bytes_; }

bool DiskStore::MakeRoom(int64_t bytes, const IndexedRecord* spared) {
  if (bytes > options_.bytes_max - lost_bytes_) return false;
  while (TotalBytes() + bytes > options_.bytes_max) {
    if (!others_.empty()) {
      const RecordFile oldest = std::move(others_.front());
      others_.pop_front();
      {
        const std::lock_guard lock(mutex);
        counters.other_bytes -= oldest.bytes;
        ++counters.evicted;
      }
      RemoveFile(oldest.path, oldest.bytes);
      continue;
    }
    const IndexedRecord* leaf = index.OldestLeaf(spared);
    if (leaf == nullptr) return false;
    {
      const std::lock_guard lock(mutex);
      ++counters.evicted;
    }
    RemoveRecord(leaf);
  }
  return true;
}

void DiskStore::RemoveRecord(const IndexedRecord* record) {
  const std::string path = PathOf(record->kind, record->key);
  const int64_t bytes = record->file_bytes;
  {
    const std::lock_guard lock(mutex);
    index.Remove(record);
  }
  RemoveFile(path, bytes);
}

void DiskStore::RemoveFile(const std::string& path, int64_t bytes) {
  const Status removed = files_->Remove(path);
  if (removed.ok() || removed.code() == StatusCode::kNotFound) return;
  lost_bytes_ += bytes;
  Warn(removed.ToString());
}

void DiskStore::SetAside(const std::string& path, int64_t bytes, const Status& reason) {
  {
    const std::lock_guard lock(mutex);
    ++counters.corrupt;
  }
  Warn(fmt::format("{}; the file is removed from the cache", reason.ToString()));
  RemoveFile(path, bytes);
}

void DiskStore::WriteFailed(const std::string& path, int64_t bytes, const Status& reason) {
  if (files_->Exists(PartialPath(path))) lost_bytes_ += bytes;
  {
    const std::lock_guard lock(mutex);
    ++counters.failed_writes;
  }
  if (!writes_fail_) {
    Warn(fmt::format("{}; the cache on disk goes without this record", reason.ToString()));
  }
  writes_fail_ = true;
}

void DiskStore::Warn(const std::string& message) const {
  if (options_.warn) options_.warn(message);
}

std::string DiskStore::PathOf(RecordKind kind, const PrefixHash& key) const {
  return fmt::format("{}/{}", folder_, RecordFileName(kind, key));
}

int64_t DiskStore::PayloadFloats(RecordKind kind, int64_t tokens) const {
  return kind == RecordKind::kPage ? tokens * options_.page_floats_per_token
                                   : options_.snapshot_floats;
}

}  // namespace k3::cache

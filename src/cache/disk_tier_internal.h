#pragma once
// The two halves of the disk tier: the store, which is what is on disk with the index of it, and
// the queue with its thread (disk_tier.cc).
//
// DiskStore's Run functions do the reading and writing and are called by one thread at a time. The
// index and the counters are guarded by `mutex`, which is never held while a file is touched;
// records are only removed by the Run functions, so a plan stays valid through them.

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "cache/disk_directory.h"
#include "cache/disk_index.h"
#include "cache/disk_tier.h"
#include "sys/file_lock.h"

namespace k3::cache {

class DiskStore {
 public:
  static Result<std::unique_ptr<DiskStore>> Open(const std::string& dir,
                                                 const ModelFingerprintBytes& fingerprint,
                                                 DiskTierOptions options);

  /// Header of a record that this store would keep; the arguments must be as documented.
  RecordHeader HeaderOf(RecordKind kind, const RecordToStore& record) const;
  /// Whether it is there already, in full. Under the mutex.
  const IndexedRecord* FindStored(const RecordHeader& header) const;

  void RunStore(const RecordHeader& header, const RecordToStore& record);
  /// Says only that a record that is there has been used.
  void RunTouch(const RecordHeader& header);
  /// Calls fetch.done.
  void RunFetch(const DiskFetch& fetch);
  /// Makes what was written durable, if anything was.
  void RunSync();

  const DiskTierOptions& options() const { return options_; }

  mutable std::mutex mutex;
  DiskIndex index;
  DiskTierStats counters;  // without what the index and the queue know

 private:
  /// How one attempt to read a plan's records ended.
  struct Attempt {
    bool complete = false;
    int64_t length_max = 0;  // where the next attempt may end
  };

  DiskStore(std::string dir, const ModelFingerprintBytes& fingerprint, DiskTierOptions options);

  Status ReadIndex();
  void IndexFile(const RecordFile& file);
  std::string PathOf(RecordKind kind, const PrefixHash& key) const;
  int64_t PayloadFloats(RecordKind kind, int64_t tokens) const;

  int64_t NextUse();
  void Touch(const IndexedRecord* record);
  /// Evicts until `bytes` more fit; false when they cannot.
  bool MakeRoom(int64_t bytes, const IndexedRecord* spared);
  int64_t TotalBytes() const;
  /// Out of the index and off the disk.
  void RemoveRecord(const IndexedRecord* record);
  void RemoveFile(const std::string& path, int64_t bytes);
  void SetAside(const std::string& path, int64_t bytes, const Status& reason);
  void WriteFailed(const std::string& path, int64_t bytes, const Status& reason);
  void Warn(const std::string& message) const;

  Attempt ReadPlan(const DiskPlan& plan, const DiskFetch& fetch, DiskHit* hit);
  /// Reads a record, of which the tokens before `end` were asked for, into `block`.
  Result<FetchedFloats> ReadOne(const IndexedRecord& record, const DiskFetch& fetch, int64_t end,
                                SharedBytes block) const;
  void TouchPlan(const DiskPlan& plan);

  const std::string dir_;
  const std::string folder_;
  const ModelFingerprintBytes fingerprint_;
  const DiskTierOptions options_;
  std::unique_ptr<FileSystem> own_files_;
  FileSystem* files_;
  std::optional<FileLock> lock_;
  std::deque<RecordFile> others_;  // of other models, oldest first
  int64_t lost_bytes_ = 0;         // of files that could not be removed
  int64_t last_use_ = 0;
  bool unsynced_ = false;
  bool writes_fail_ = false;
};

}  // namespace k3::cache

#include "cache/disk_tier.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cache/disk_tier_internal.h"

namespace k3::cache {
namespace {

class ThreadedDiskTier : public DiskTier {
 public:
  explicit ThreadedDiskTier(std::unique_ptr<DiskStore> store)
      : store_(std::move(store)), thread_([this] { Work(); }) {}
  ~ThreadedDiskTier() override {
    {
      const std::lock_guard lock(store_->mutex);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  int64_t StoredLength(std::span<const PrefixHash> ends) const override {
    const std::lock_guard lock(store_->mutex);
    return store_->index.StoredLength(ends);
  }
  int64_t Match(std::span<const PrefixHash> ends, int64_t length_max,
                int64_t memory_pages_length) const override {
    const std::lock_guard lock(store_->mutex);
    return store_->index.Plan(ends, 0, length_max, memory_pages_length).length;
  }

  void StorePage(RecordToStore page) override { Store(RecordKind::kPage, std::move(page)); }
  void StoreSnapshot(RecordToStore snapshot) override {
    Store(RecordKind::kSnapshot, std::move(snapshot));
  }
  void Fetch(DiskFetch fetch) override {
    {
      const std::lock_guard lock(store_->mutex);
      fetches_.push_back(std::move(fetch));
    }
    wake_.notify_all();
  }
  void Flush() override {
    std::unique_lock lock(store_->mutex);
    idle_.wait(lock, [this] { return is_idle_ && fetches_.empty() && stores_.empty(); });
  }
  DiskTierStats stats() const override {
    const std::lock_guard lock(store_->mutex);
    DiskTierStats stats = store_->counters;
    stats.pages = store_->index.pages_count();
    stats.snapshots = store_->index.snapshots_count();
    stats.bytes = store_->index.bytes();
    stats.queue_bytes = queue_bytes_;
    return stats;
  }

 private:
  struct Job {
    RecordHeader header;
    RecordToStore record;
    int64_t bytes = 0;  // of the payload; 0 for a mere touch
  };

  void Store(RecordKind kind, RecordToStore record) {
    Job job{.header = store_->HeaderOf(kind, record), .record = std::move(record)};
    // The names and tokens are in the header from here on.
    job.bytes = job.header.payload_floats * static_cast<int64_t>(sizeof(float));
    {
      const std::lock_guard lock(store_->mutex);
      if (store_->FindStored(job.header) != nullptr) {
        job.record = {};
        job.bytes = 0;
      } else if (queue_bytes_ > 0 && queue_bytes_ + job.bytes > store_->options().queue_bytes_max) {
        ++store_->counters.dropped_full;
        return;
      }
      queue_bytes_ += job.bytes;
      stores_.push_back(std::move(job));
    }
    wake_.notify_all();
  }

  void Work() {
    std::unique_lock lock(store_->mutex);
    while (true) {
      if (!fetches_.empty()) {
        RunNextFetch(&lock);
      } else if (!stores_.empty()) {
        RunNextStore(&lock);
      } else {
        lock.unlock();
        store_->RunSync();
        lock.lock();
        if (!fetches_.empty() || !stores_.empty()) continue;
        if (stop_) return;
        is_idle_ = true;
        idle_.notify_all();
        wake_.wait(lock, [this] { return stop_ || !fetches_.empty() || !stores_.empty(); });
        is_idle_ = false;
      }
    }
  }

  void RunNextFetch(std::unique_lock<std::mutex>* lock) {
    const DiskFetch fetch = std::move(fetches_.front());
    fetches_.pop_front();
    lock->unlock();
    store_->RunFetch(fetch);
    lock->lock();
  }

  void RunNextStore(std::unique_lock<std::mutex>* lock) {
    std::optional<Job> job = std::move(stores_.front());
    stores_.pop_front();
    lock->unlock();
    const int64_t bytes = job->bytes;
    if (bytes > 0) {
      store_->RunStore(job->header, job->record);
    } else {
      store_->RunTouch(job->header);
    }
    job.reset();  // Lets go of the payload before the queue counts it as free.
    lock->lock();
    queue_bytes_ -= bytes;
  }

  std::unique_ptr<DiskStore> store_;  // its mutex guards what follows, too
  std::deque<DiskFetch> fetches_;
  std::deque<Job> stores_;
  int64_t queue_bytes_ = 0;
  bool stop_ = false;
  bool is_idle_ = false;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const std::string& dir,
                                                 const ModelFingerprintBytes& fingerprint,
                                                 DiskTierOptions options) {
  K3_TRY(std::unique_ptr<DiskStore> store, DiskStore::Open(dir, fingerprint, std::move(options)));
  return std::unique_ptr<DiskTier>(std::make_unique<ThreadedDiskTier>(std::move(store)));
}

}  // namespace k3::cache

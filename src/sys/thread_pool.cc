#include "sys/thread_pool.h"

#include <algorithm>
#include <system_error>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/check.h"

namespace k3 {
namespace {

// About 50 microseconds of polling before a worker sleeps: longer than the serial parts between
// two loops of a token, shorter than anyone would notice as load.
constexpr int kSpinsMax = 20'000;

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;
constexpr int kJobShift = 32;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void SetFloatingPointMode() {
#if defined(__x86_64__)
  _mm_setcsr(0x1F80);  // all exceptions masked, round to nearest, no flush, no denormals-are-zero
#endif
}

ThreadPool::ThreadPool(int threads_count) : threads_count_(std::max(threads_count, 1)) {
  SetFloatingPointMode();
  for (int worker = 1; worker < threads_count_; ++worker) {
    try {
      threads_.emplace_back([this, worker] { WorkerLoop(worker); });
    } catch (const std::system_error&) {
      threads_count_ = worker;
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_release);
    gate_.fetch_add(uint64_t{1} << kJobShift, std::memory_order_seq_cst);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t count, int64_t grain, Body body, const void* fn) {
  K3_CHECK(!in_use_.exchange(true, std::memory_order_acquire), "ParallelFor does not nest");
  body_ = body;
  fn_ = fn;
  count_ = count;
  grain_ = std::max<int64_t>(grain, 1);
  next_.store(0, std::memory_order_relaxed);
  const uint64_t job = (gate_.load(std::memory_order_relaxed) >> kJobShift) + 1;
  gate_.store(job << kJobShift | kOpen, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  Work(0);
  // Every range is taken. Nobody may join any more; whoever is inside is at work.
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
    if (spins < kSpinsMax) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  in_use_.store(false, std::memory_order_release);
}

void ThreadPool::Work(int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    body_(fn_, begin, std::min(begin + grain_, count_), worker);
  }
}

uint64_t ThreadPool::AwaitJob(uint64_t seen) {
  const auto job = [&](std::memory_order order) { return gate_.load(order) >> kJobShift; };
  for (int spins = 0; spins < kSpinsMax; ++spins) {
    const uint64_t now = job(std::memory_order_acquire);
    if (now != seen) return now;
    Pause();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return job(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return job(std::memory_order_acquire);
}

bool ThreadPool::Join(uint64_t job) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  while (gate >> kJobShift == job && (gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadPool::WorkerLoop(int worker) {
  SetFloatingPointMode();
  uint64_t seen = 0;
  for (;;) {
    seen = AwaitJob(seen);
    if (stop_.load(std::memory_order_acquire)) return;
    if (!Join(seen)) continue;
    Work(worker);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace k3

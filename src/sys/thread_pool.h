#pragma once
// ThreadPool: a fixed set of workers for data-parallel loops inside one forward pass.
//
//   pool.ParallelFor(rows, 64, [&](int64_t begin, int64_t end, int worker) { ... });
//
// The caller works too, as worker 0. Ranges are multiples of `grain` (the last may be short) and
// which worker runs a range is not fixed, so a result must not depend on it: every output element
// is computed whole inside one range. No nesting. One ParallelFor at a time, from one thread.
// Idle workers spin for a short time, then sleep. A loop waits only for workers that have entered
// it: one that the system does not schedule holds nobody up. Every worker runs with the same
// floating-point control word: round to nearest, denormals kept.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace k3 {

/// Sets this thread's floating-point mode: round to nearest, denormals neither flushed nor read as
/// zero (an MXFP4 scale may be 2^-127). The one place where it is set.
void SetFloatingPointMode();

class ThreadPool {
 public:
  /// `threads_count` >= 1 counts the caller; 1 starts no thread. Where the system refuses threads,
  /// threads_count() says how many there are.
  explicit ThreadPool(int threads_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads_count() const { return threads_count_; }

  /// Runs fn(begin, end, worker) over [0, count) and returns when all of it is done.
  template <typename Fn>
  void ParallelFor(int64_t count, int64_t grain, const Fn& fn) {
    if (count <= 0) return;
    if (threads_count_ == 1 || count <= grain) {
      fn(int64_t{0}, count, 0);
      return;
    }
    Run(
        count, grain,
        [](const void* f, int64_t begin, int64_t end, int worker) {
          (*static_cast<const Fn*>(f))(begin, end, worker);
        },
        &fn);
  }

 private:
  using Body = void (*)(const void* fn, int64_t begin, int64_t end, int worker);

  void Run(int64_t count, int64_t grain, Body body, const void* fn);
  void WorkerLoop(int worker);
  /// Waits until the current job is another than `seen` and returns its number.
  uint64_t AwaitJob(uint64_t seen);
  /// Steps into a job, unless it is closed already.
  bool Join(uint64_t job);
  void Work(int worker);

  int threads_count_;  // fixed once constructed
  std::vector<std::thread> threads_;

  // The current job. Written by the caller while `gate_` is shut; a worker reads it only between
  // joining and leaving.
  Body body_ = nullptr;
  const void* fn_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<int64_t> next_{0};
  // The job's number in the upper 32 bits, kOpen while it may be joined, and the workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> in_use_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace k3

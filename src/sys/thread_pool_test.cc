#include "sys/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "sys/arena.h"

namespace k3 {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_LT(worker, threads);
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (auto& hit : hits) EXPECT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadPoolTest, ManySmallLoopsAndSleepsBetween) {
  ThreadPool pool(4);
  int64_t total = 0;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(16, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
    total += sum;
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(total, 2000 * 120);
}

TEST(ThreadPoolTest, WorkersKeepDenormals) {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  pool.ParallelFor(64, 1, [&](int64_t, int64_t, int) {
    volatile float tiny = 0x1p-127f;
    volatile float half = tiny * 0.5f;
    if (half != 0x1p-128f) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(AllocateTogetherTest, EachPartLivesAndGoesAlone) {
  constexpr int64_t kPage = 4096, kSizes[] = {100'000, 1, 0, 5'000'000, 4096};
  for (const bool is_large : {false, true}) {
    const std::span<const int64_t> sizes(kSizes, is_large ? 5 : 3);
    auto parts = AllocateTogether(sizes);
    ASSERT_EQ(parts.size(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(parts[i].get()) % 64, 0u);
      std::fill_n(parts[i].get(), sizes[i], static_cast<std::byte>(i + 1));
    }
    const auto resident = [](const std::byte* p, int64_t bytes) {
      const auto first = reinterpret_cast<uintptr_t>(p) / kPage * kPage;
      std::vector<unsigned char> pages(static_cast<size_t>(bytes / kPage));
      EXPECT_EQ(mincore(reinterpret_cast<void*>(first), pages.size() * kPage, pages.data()), 0);
      return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
    };
    const std::byte* first = parts[0].get();
    EXPECT_EQ(resident(first, kSizes[0]), kSizes[0] / kPage);
    parts[0].reset();
    EXPECT_EQ(resident(first, kSizes[0]), 0) << "its memory is the system's again";
    for (size_t i = 1; i < sizes.size(); ++i) {
      EXPECT_TRUE(std::all_of(parts[i].get(), parts[i].get() + sizes[i],
                              [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
    }
  }
  EXPECT_TRUE(AllocateTogether({}).empty());
}

TEST(ArenaTest, AlignedAndReused) {
  Arena arena;
  float* a = arena.Allocate<float>(3);
  float* b = arena.Allocate<float>(5'000'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
  b[4'999'999] = 1;
  arena.Reset();
  const int64_t capacity = arena.capacity_bytes();
  arena.Allocate<float>(3);
  arena.Allocate<float>(5'000'000);
  EXPECT_EQ(arena.capacity_bytes(), capacity);
}

TEST(ArenaTest, ScopeGivesBack) {
  Arena arena;
  arena.Allocate<float>(10);
  const int64_t used = arena.used_bytes();
  float* first = nullptr;
  {
    ArenaScope scope(arena);
    first = arena.Allocate<float>(100);
  }
  EXPECT_EQ(arena.used_bytes(), used);
  EXPECT_EQ(arena.Allocate<float>(100), first);
}

}  // namespace
}  // namespace k3

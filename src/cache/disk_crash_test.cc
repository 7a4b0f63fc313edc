// The disk tier with full disks and killed processes: what is there afterwards is whole.

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "cache/disk_test_util.h"
#include "sys/faulty_files.h"

namespace k3::cache {
namespace {

/// Opens what a crash has left: every record there is right, and nothing else is there.
void ExpectWhole(const std::string& dir, const std::vector<Conversation>& talks) {
  const Opened opened = OpenTier(dir);
  EXPECT_TRUE(opened.warnings->empty()) << opened.warnings->front();
  for (const Conversation& talk : talks) {
    const int64_t length_max = std::ssize(talk.tokens);
    const int64_t length = opened.tier->Match(talk.ends, length_max, 0);
    const DiskHit hit = FetchNow(*opened.tier, talk, length_max);
    EXPECT_EQ(hit.length, length);
    ExpectRight(hit, talk);
  }
  EXPECT_TRUE(opened.warnings->empty());
  for (const auto& [path, bytes] : FilesOnDisk(dir)) {
    EXPECT_TRUE(ParseRecordFileName(std::filesystem::path(path).filename().string())) << path;
  }
  EXPECT_EQ(opened.tier->stats().bytes, BytesOnDisk(dir));
}

void StoreAll(DiskTier& tier, const std::vector<Conversation>& talks) {
  for (const Conversation& talk : talks) {
    for (const int64_t length : {int64_t{272}, std::ssize(talk.tokens)}) {
      StoreTo(tier, talk, length);
    }
  }
  tier.Flush();
}

TEST(DiskCrashTest, EveryStepMayFail) {
  const Conversation first = Conversation::Random(1, 560);
  const std::vector<Conversation> talks = {first, first.Branch(300, 2, 400)};
  // So small that records are evicted, too, and so large that it does not matter.
  for (const int64_t bytes_max : {14'000, 1'000'000}) {
    for (const FaultyFiles::Fault fault :
         {FaultyFiles::Fault::kDiskFull, FaultyFiles::Fault::kShortWrite,
          FaultyFiles::Fault::kKilled}) {
      // A step is a file that is opened, a part of it written, its sync, its end or its new name.
      int64_t steps = 0;
      for (bool failed = true; failed; ++steps) {
        SCOPED_TRACE(testing::Message()
                     << bytes_max << " " << static_cast<int>(fault) << " " << steps);
        const CacheDirectory directory;
        FaultyFiles files(fault, steps);
        {
          const Opened opened = OpenTier(directory.path(), bytes_max, 1, &files);
          StoreAll(*opened.tier, talks);
          ASSERT_LE(BytesOnDisk(directory.path()), bytes_max);
          // Still right in the process to which it has happened.
          for (const Conversation& talk : talks) {
            ExpectRight(FetchNow(*opened.tier, talk, 560), talk);
          }
          failed = files.failed();
          EXPECT_EQ(failed, !opened.warnings->empty());
        }
        ExpectWhole(directory.path(), talks);
        if (testing::Test::HasFailure()) return;
      }
      EXPECT_GT(steps, 50) << "every write, sync and rename was one of them";
    }
  }
}

TEST(DiskCrashTest, AKilledProcessLeavesWholeRecords) {
  const CacheDirectory directory;
  const Conversation base = Conversation::Random(1, 3000);
  std::vector<Conversation> talks;
  for (uint64_t i = 0; i < 6; ++i) talks.push_back(base.Branch(700, i, 3000));
  int64_t most = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // No threads are running here: only this one was forked, and none were before.
      Opened opened = OpenTier(directory.path(), 60'000);
      for (uint64_t step = 0;; ++step) {
        StoreTo(*opened.tier, talks[step % 6], 16 * static_cast<int64_t>(1 + step * 37 % 187));
        opened.tier->Flush();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 17 * round));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "killed, not ended by itself";
    most = std::max(most, BytesOnDisk(directory.path()));
    ExpectWhole(directory.path(), talks);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(most, 0);
  EXPECT_LE(most, 60'000);
}

}  // namespace
}  // namespace k3::cache

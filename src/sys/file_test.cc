#include "sys/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/clock.h"
#include "sys/machine.h"

namespace k3 {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "k3_file_test_" + std::to_string(getpid());
    ASSERT_TRUE(files_->MakeDirectories(dir_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
  std::string dir_;
};

TEST_F(FileTest, WritesAtomicallyAndReadsBack) {
  const std::string path = dir_ + "/a.txt";
  ASSERT_TRUE(WriteFileAtomically(*files_, path, "hello").ok());
  EXPECT_EQ(*ReadWholeFile(*files_, path, 100), "hello");
  EXPECT_FALSE(files_->Exists(PartialPath(path)));
  EXPECT_EQ(files_->CreateNew(path).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*ReadWholeFile(*files_, path, 100), "hello");
  EXPECT_EQ(ReadWholeFile(*files_, path, 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*files_->List(dir_), std::vector<std::string>{"a.txt"});
}

TEST_F(FileTest, ErrorsNameThePath) {
  const auto missing = ReadWholeFile(*files_, dir_ + "/none", 10);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("/none"), std::string::npos);
  EXPECT_EQ(ReadWholeFile(*files_, dir_, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::Open(dir_).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, AFifoIsRefusedAndDoesNotBlock) {
  const std::string path = dir_ + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadWholeFile(*files_, path, 10).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, MapsWholeAndEmptyFiles) {
  ASSERT_TRUE(WriteFileAtomically(*files_, dir_ + "/m", "abc").ok());
  ASSERT_TRUE(WriteFileAtomically(*files_, dir_ + "/empty", "").ok());
  MappedFile mapped = *MappedFile::Open(dir_ + "/m");
  EXPECT_EQ(mapped.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(mapped.bytes()[2]), 'c');
  MappedFile moved = std::move(mapped);
  EXPECT_EQ(moved.bytes().size(), 3u);
  EXPECT_TRUE(MappedFile::Open(dir_ + "/empty")->bytes().empty());
}

/// How many pages of the first `bytes` this process has mapped, as the system counts them.
int64_t MappedPages(std::span<const std::byte> bytes) {
  std::ifstream pagemap("/proc/self/pagemap", std::ios::binary);
  const int64_t page = sysconf(_SC_PAGESIZE), pages = (std::ssize(bytes) + page - 1) / page;
  std::vector<uint64_t> entries(static_cast<size_t>(pages));
  pagemap.seekg(static_cast<std::streamoff>(reinterpret_cast<uintptr_t>(bytes.data()) /
                                            static_cast<uintptr_t>(page) * sizeof(uint64_t)));
  pagemap.read(reinterpret_cast<char*>(entries.data()),
               static_cast<std::streamsize>(entries.size() * sizeof(uint64_t)));
  EXPECT_TRUE(pagemap.good());
  return std::ranges::count_if(entries, [](uint64_t entry) { return entry >> 63 != 0; });
}

TEST_F(FileTest, WhatIsInMemoryIsMappedAtOnce) {
  constexpr int64_t kBytes = 8 << 20, kPages = kBytes / 4096;
  ASSERT_TRUE(WriteFileAtomically(*files_, dir_ + "/big", std::string(kBytes + 1, 'x')).ok());
  const MappedFile file = *MappedFile::Open(dir_ + "/big");
  EXPECT_EQ(MappedPages(file.bytes()), 0);
  file.MapResident(kBytes / 2, kBytes / 2 + 4096);
  EXPECT_GE(MappedPages(file.bytes()), 1);
  EXPECT_LT(MappedPages(file.bytes()), kPages);
  // What lies outside is cut off.
  file.MapResident(0, int64_t{1} << 40);
  EXPECT_EQ(MappedPages(file.bytes()), kPages + 1);
  file.MapResident(int64_t{1} << 30, int64_t{1} << 40);
  ASSERT_TRUE(WriteFileAtomically(*files_, dir_ + "/none", "").ok());
  MappedFile::Open(dir_ + "/none")->MapResident(0, 100);
}

TEST_F(FileTest, ReadPastTheEndIsCorruption) {
  ASSERT_TRUE(WriteFileAtomically(*files_, dir_ + "/s", "abc").ok());
  auto file = *files_->OpenReadable(dir_ + "/s");
  std::byte out[8];
  EXPECT_EQ(file->ReadAt(1, out).code(), StatusCode::kCorruption);
}

TEST(MachineTest, FactsArePlausible) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(ReadMemoryFacts().total_bytes, int64_t{1} << 26);
  EXPECT_GT(PeakResidentBytes(), 1 << 20);
  EXPECT_LE(ProcessStartNanoseconds(), MonotonicNanoseconds());
  EXPECT_GT(ProcessStartNanoseconds(), MonotonicNanoseconds() - int64_t{300'000'000'000});
}

}  // namespace
}  // namespace k3

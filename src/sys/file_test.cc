#include "sys/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

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

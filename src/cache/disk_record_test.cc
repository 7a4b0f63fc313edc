#include "cache/disk_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "cache/disk_test_util.h"

namespace k3::cache {
namespace {

class DiskRecordTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_.path()); }

  static RecordHeader Header(RecordKind kind, int64_t tokens, int64_t floats) {
    const Conversation conversation = Conversation::Random(3, 512 + tokens);
    return {.kind = kind,
            .fingerprint = TestFingerprint(),
            .parent = conversation.End(512),
            .key = conversation.End(512 + tokens),
            .begin = 512,
            .tokens = {conversation.tokens.begin() + 512, conversation.tokens.end()},
            .payload_floats = floats};
  }
  static std::vector<float> Payload(int64_t floats) {
    std::vector<float> payload;
    for (int64_t i = 0; i < floats; ++i) payload.push_back(static_cast<float>(i) / 4);
    return payload;
  }
  void Write(const RecordHeader& header, const std::vector<float>& payload) {
    const std::vector<std::span<const float>> parts = {payload};
    const Status written = WriteRecord(*files_, path_, header, parts);
    ASSERT_TRUE(written.ok()) << written.ToString();
  }
  void WriteBytes(std::string_view bytes) {
    // Not over the old one, which the file system would force to the disk.
    std::filesystem::remove(path_);
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file << bytes;
    ASSERT_TRUE(file.flush().good());
  }
  std::string Content() { return *ReadWholeFile(*files_, path_, 1 << 24); }
  /// The payload of what stands under the path, if all of it is right.
  Result<std::vector<float>> Read() {
    K3_TRY(const std::unique_ptr<ReadableFile> file, files_->OpenReadable(path_));
    std::vector<std::byte> bytes(static_cast<size_t>(file->size()));
    const Result<RecordHeader> read = ReadRecord(*file, bytes, path_);
    // The header alone, then the rest, is the other way.
    const Result<RecordHeader> header = ReadRecordHeader(*file, path_);
    Status verified = header.status();
    if (verified.ok()) verified = VerifyRecord(*file, *header, path_);
    EXPECT_EQ(verified.code(), read.status().code());
    K3_RETURN_IF_ERROR(read.status());
    std::vector<float> payload(static_cast<size_t>(read->payload_floats));
    std::memcpy(payload.data(), bytes.data() + PayloadOffset(std::ssize(read->tokens)),
                payload.size() * sizeof(float));
    return payload;
  }

  CacheDirectory directory_;
  std::string path_ = directory_.path() + "/record";
  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
};

TEST_F(DiskRecordTest, WhatIsWrittenIsRead) {
  for (const RecordKind kind : {RecordKind::kPage, RecordKind::kSnapshot}) {
    for (const int64_t tokens : {16, 48, 256}) {
      // Around the pieces that are read and hashed at once, 65,536 floats, and none at all.
      for (const int64_t floats : {0, 1, 65'535, 65'536, 65'537, 200'000}) {
        const RecordHeader header = Header(kind, tokens, floats);
        Write(header, Payload(floats));
        EXPECT_EQ(std::ssize(Content()), RecordBytes(tokens, floats));
        const auto payload = Read();
        ASSERT_TRUE(payload.ok()) << payload.status().ToString();
        EXPECT_EQ(*payload, Payload(floats));
        const auto file = files_->OpenReadable(path_);
        const auto read = ReadRecordHeader(**file, path_);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(read->kind, kind);
        EXPECT_EQ(read->fingerprint, header.fingerprint);
        EXPECT_EQ(read->parent, header.parent);
        EXPECT_EQ(read->key, header.key);
        EXPECT_EQ(read->begin, 512);
        EXPECT_EQ(read->end(), 512 + tokens);
        EXPECT_EQ(read->tokens, header.tokens);
      }
    }
  }
}

TEST_F(DiskRecordTest, TheBytesAreThoseOfTheGoldenFile) {
  const std::string golden = std::string(K3_SOURCE_DIR) + "/tests/golden/cache/page.k3c";
  Write(Header(RecordKind::kPage, 16, 5), Payload(5));
  const auto expected = ReadWholeFile(*files_, golden, 1 << 16);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  EXPECT_EQ(Content(), *expected);
  WriteBytes(*expected);
  EXPECT_TRUE(Read().ok());
}

TEST_F(DiskRecordTest, EveryDamagedByteIsNoticed) {
  Write(Header(RecordKind::kSnapshot, 32, 40), Payload(40));
  const std::string whole = Content();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      WriteBytes(damaged);
      const auto read = Read();
      ASSERT_EQ(read.status().code(), StatusCode::kCorruption) << at;
      ASSERT_NE(read.status().message().find(path_), std::string::npos);
    }
  }
}

TEST_F(DiskRecordTest, EveryOtherLengthIsNoticed) {
  Write(Header(RecordKind::kPage, 16, 4), Payload(4));
  const std::string whole = Content();
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteBytes(whole.substr(0, size));
    ASSERT_EQ(Read().status().code(), StatusCode::kCorruption) << size;
  }
  WriteBytes(whole + std::string(4, '\0'));
  EXPECT_EQ(Read().status().code(), StatusCode::kCorruption);
  WriteBytes(whole + std::string(1, '\0'));
  EXPECT_EQ(Read().status().code(), StatusCode::kCorruption);
}

TEST_F(DiskRecordTest, MessagesNameTheField) {
  Write(Header(RecordKind::kPage, 16, 4), Payload(4));
  const std::string whole = Content();
  const auto expect = [&](size_t at, char byte, std::string_view word) {
    std::string other = whole;
    other[at] = byte;
    WriteBytes(other);
    const auto read = Read();
    EXPECT_NE(read.status().message().find(word), std::string::npos) << read.status().ToString();
  };
  expect(0, 'k', "first bytes");
  expect(8, 2, "version: expected 1, found 2");
  expect(12, 3, "kind: expected 1 or 2, found 3");
  expect(32, 'x', "key");
  expect(64, 1, "begin");
  expect(72, 17, "tokens");
  expect(80, 5, "size");
  expect(whole.size() - 9, 'x', "checksum");
}

}  // namespace
}  // namespace k3::cache

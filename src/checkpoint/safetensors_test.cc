#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/random.h"
#include "checkpoint/memory_file.h"

namespace k3 {
namespace {

std::string LengthPrefix(uint64_t length) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(length >> (8 * i) & 255);
  return prefix;
}

std::string FileOf(std::string_view header, size_t data_bytes) {
  return LengthPrefix(header.size()) + std::string(header) + std::string(data_bytes, 'd');
}

Result<SafetensorsHeader> Read(std::string_view file_bytes) {
  MemoryFile file(AsBytes(file_bytes));
  return ReadSafetensorsHeader(file, "x.safetensors");
}

/// The header must be refused with a message that names the file and holds each of `parts`.
void ExpectRefused(std::string_view header, size_t data_bytes,
                   std::initializer_list<std::string_view> parts) {
  const auto result = Read(FileOf(header, data_bytes));
  ASSERT_FALSE(result.ok()) << header;
  EXPECT_EQ(result.status().code(), StatusCode::kCorruption);
  const std::string message = result.status().message();
  EXPECT_EQ(message.rfind("x.safetensors: ", 0), 0u) << message;
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  }
}

TEST(SafetensorsTest, ReadsTensorsInNameOrder) {
  const SafetensorsHeader header =
      *Read(FileOf(R"({"__metadata__":{"format":"pt","a":"b"},)"
                   R"("z":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                   R"("empty":{"shape":[0,7],"data_offsets":[12,12],"dtype":"F32"},)"
                   R"("scalar":{"data_offsets":[13,17],"dtype":"I32","shape":[]},)"
                   R"("é":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[12,13]}}   )",
                   17));
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "empty");
  EXPECT_EQ(header.tensors[1].name, "scalar");
  EXPECT_EQ(header.tensors[2].name, "z");
  EXPECT_EQ(header.tensors[3].name, "é");
  EXPECT_EQ(header.tensors[0].bytes, 0);
  EXPECT_EQ(header.tensors[1].shape.rank(), 0);
  EXPECT_EQ(header.tensors[2].shape, (Shape{2, 3}));
  EXPECT_EQ(header.tensors[2].dtype, DType::kBF16);
  EXPECT_EQ(header.tensors[2].file_offset, header.data_offset);
  EXPECT_EQ(header.tensors[1].file_offset, header.data_offset + 13);
  EXPECT_EQ(header.data_bytes, 17);
  EXPECT_EQ(header.metadata.size(), 2u);
  EXPECT_TRUE(Read(FileOf("{}", 0))->tensors.empty());
}

TEST(SafetensorsTest, RefusesBadLengths) {
  EXPECT_NE(Read("").status().message().find("at least 8 bytes"), std::string::npos);
  EXPECT_NE(Read("1234567").status().message().find("found 7"), std::string::npos);
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 31, UINT64_MAX, uint64_t{1} << 63}) {
    const auto result = Read(LengthPrefix(length) + "{}");
    EXPECT_EQ(result.status().code(), StatusCode::kCorruption);
    EXPECT_NE(result.status().message().find("header length: expected at most 2"),
              std::string::npos);
  }
}

TEST(SafetensorsTest, RefusesRangesThatDoNotTile) {
  const auto two = [](std::string_view first, std::string_view second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(second) + "}}";
  };
  EXPECT_TRUE(Read(FileOf(two("[4,8]", "[0,4]"), 8)).ok());
  ExpectRefused(two("[0,4]", "[3,7]"), 7, {"tensor \"b\"", "overlaps", "download the shard again"});
  ExpectRefused(two("[0,4]", "[0,4]"), 4, {"overlaps"});
  ExpectRefused(two("[0,4]", "[5,9]"), 9, {"tensor \"b\"", "hole"});
  ExpectRefused(two("[1,5]", "[5,9]"), 9, {"tensor \"a\"", "hole"});
  ExpectRefused(two("[0,4]", "[4,8]"), 9, {"1 more behind the last tensor"});
  ExpectRefused(two("[0,4]", "[4,8]"), 7, {"tensor \"b\"", "data_offsets", "7 data bytes"});
  ExpectRefused(two("[0,4]", "[8,4]"), 8, {"data_offsets"});
  ExpectRefused(two("[0,4]", "[4,9]"), 9, {"expected 4 bytes for [4] of U8, found 5"});
  ExpectRefused(two("[0,4]", "[4]"), 8, {"[begin, end]"});
  ExpectRefused(two("[0,4]", "[4,8,9]"), 9, {"[begin, end]"});
  ExpectRefused(two("[0,4]", "[-4,8]"), 8, {"integers from 0"});
  ExpectRefused(two("[0,4]", "[4,9223372036854775807]"), 8, {"data_offsets"});
  ExpectRefused(two("[0,4]", "[4,18446744073709551615]"), 8, {"integers from 0"});
  // An empty tensor inside another one is an overlap too.
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                4, {"tensor \"b\"", "overlaps"});
}

TEST(SafetensorsTest, RefusesBadEntries) {
  const auto entry = [](std::string_view fields) {
    return R"({"t":{)" + std::string(fields) + "}}";
  };
  ExpectRefused(entry(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1,
                {"tensor \"t\"", "dtype", "\"F4\""});
  ExpectRefused(entry(R"("dtype":3,"shape":[2],"data_offsets":[0,2])"), 2, {"dtype", "found 3"});
  ExpectRefused(entry(R"("dtype":"U8","shape":2,"data_offsets":[0,2])"), 2, {"shape", "an array"});
  ExpectRefused(entry(R"("dtype":"U8","shape":"2","data_offsets":[0,2])"), 2, {"shape"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[-2],"data_offsets":[0,2])"), 2, {"shape"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[2.0],"data_offsets":[0,2])"), 2, {"shape"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[null],"data_offsets":[0,2])"), 2, {"shape"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[[2]],"data_offsets":[0,2])"), 2, {"shape"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[1,1,1,1,1,2],"data_offsets":[0,2])"), 2,
                {"at most 5"});
  ExpectRefused(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,2])"), 2,
                {"below 2^63"});
  ExpectRefused(entry(R"("dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,2])"), 2,
                {"below 2^63"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[2])"), 2, {"fewer fields"});
  ExpectRefused(entry(R"("dtype":"U8","shape":[2],"data_offsets":[0,2],"extra":1)"), 2,
                {"\"extra\""});
  ExpectRefused(entry(R"("dtype":{},"shape":[2],"data_offsets":[0,2])"), 2, {"dtype"});
  ExpectRefused(R"({"t":[1]})", 0, {"an object"});
  ExpectRefused(R"({"t":3})", 0, {"an object"});
  ExpectRefused("[]", 0, {"an object"});
  ExpectRefused("3", 0, {"an object"});
  ExpectRefused("", 0, {"valid JSON"});
  ExpectRefused("{\"t\":", 0, {"valid JSON"});
  ExpectRefused("{} {}", 0, {"valid JSON"});
  ExpectRefused("{\"\xff\xfe\":{}}", 0, {"valid JSON"});
  ExpectRefused("{\"" + std::string(limits::kTensorNameBytesMax + 1, 'n') + "\":{}}", 0,
                {"at most 1024 bytes"});
  ExpectRefused(std::string(1'000'000, '['), 0, {"an object"});
  ExpectRefused(R"({"__metadata__":)" + std::string(1'000'000, '['), 0, {"a"});
}

TEST(SafetensorsTest, RefusesRepeatedKeysAtEveryLevel) {
  constexpr std::string_view kEntry = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const std::string entry(kEntry);
  ExpectRefused("{\"t\":" + entry + ",\"t\":" + entry + "}", 2, {"tensor \"t\"", "twice"});
  ExpectRefused(R"({"t":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
                {"dtype", "twice"});
  ExpectRefused(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"shape":[2]}})", 2,
                {"shape", "twice"});
  ExpectRefused(R"({"__metadata__":{"a":"1","b":"2","a":"3"}})", 0, {"\"a\"", "twice"});
  ExpectRefused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"});
}

TEST(SafetensorsTest, MetadataIsStringsOnly) {
  ExpectRefused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "\"a\"", "a string"});
  ExpectRefused(R"({"__metadata__":{"a":{}}})", 0, {"a string"});
  ExpectRefused(R"({"__metadata__":[]})", 0, {"__metadata__"});
  ExpectRefused(R"({"__metadata__":"pt"})", 0, {"__metadata__"});
}

TEST(SafetensorsTest, MutatedFilesNeverPassWrongly) {
  const std::string good = FileOf(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("b":{"dtype":"U8","shape":[5],"data_offsets":[12,17]}})",
      17);
  Random random(1, 2);
  int passed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = good;
    for (uint64_t edits = 1 + random.NextBelow(3); edits > 0 && !file.empty(); --edits) {
      const size_t at = random.NextBelow(file.size());
      switch (random.NextBelow(4)) {
        case 0:
          file[at] = static_cast<char>(random.NextBelow(256));
          break;
        case 1:
          file.erase(at, 1 + random.NextBelow(4));
          break;
        case 2:
          file.insert(at, file.substr(at / 2, random.NextBelow(20)));
          break;
        default:
          file[at] = "0123456789[]{},\":"[random.NextBelow(17)];
      }
    }
    const auto header = Read(file);
    if (!header.ok()) continue;
    ++passed;
    int64_t total = 0;
    for (const TensorInfo& tensor : header->tensors) {
      EXPECT_EQ(tensor.shape.Elements() * DTypeBytes(tensor.dtype), tensor.bytes);
      EXPECT_LE(tensor.file_offset + tensor.bytes, std::ssize(file));
      total += tensor.bytes;
    }
    EXPECT_EQ(total, header->data_bytes);
  }
  EXPECT_GT(passed, 0);  // changes inside the data or a name leave a good file
}

}  // namespace
}  // namespace k3

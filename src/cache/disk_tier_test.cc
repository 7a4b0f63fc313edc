#include "cache/disk_tier.h"

#include <gtest/gtest.h>

#include <ctime>

#include <fstream>
#include <latch>
#include <thread>

#include "cache/disk_test_util.h"

namespace k3::cache {
namespace {

using testing::Test;

int64_t PageBytes(int64_t tokens) { return RecordBytes(tokens, tokens * kTestPageFloats); }
int64_t SnapshotBytes(int64_t tokens) { return RecordBytes(tokens, kTestSnapshotFloats); }

class DiskTierTest : public Test {
 protected:
  const std::string& dir() const { return directory_.path(); }
  std::string PathOf(RecordKind kind, const PrefixHash& key) const {
    return dir() + "/" + FingerprintHex(TestFingerprint()) + "/" + RecordFileName(kind, key);
  }
  void FlipByte(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }

  CacheDirectory directory_;
};

TEST_F(DiskTierTest, WhatIsStoredIsFoundAlsoAfterARestart) {
  const Conversation talk = Conversation::Random(1, 1000);
  for (const int64_t length : {16, 240, 256, 272, 512, 768, 992}) {
    Opened opened = OpenTier(dir());
    StoreTo(*opened.tier, talk, length);
    opened.tier->Flush();
    EXPECT_EQ(opened.tier->Match(talk.ends, 1000, 0), length);
    EXPECT_EQ(opened.tier->StoredLength(talk.ends), length);
    opened = {};
    opened = OpenTier(dir());
    EXPECT_EQ(opened.tier->Match(talk.ends, 1000, 0), length);
    EXPECT_EQ(opened.tier->StoredLength(talk.ends), length);
    const DiskHit hit = FetchNow(*opened.tier, talk, 1000);
    EXPECT_EQ(hit.length, length);
    ExpectRight(hit, talk);
    EXPECT_TRUE(opened.warnings->empty());
  }
  // One at each of the lengths, of which any may be asked for.
  const Opened opened = OpenTier(dir());
  for (const auto& [length_max, length] :
       {std::pair(15, 0), {16, 16}, {255, 240}, {271, 256}, {511, 272}, {991, 768}, {992, 992}}) {
    EXPECT_EQ(opened.tier->Match(talk.ends, length_max, 0), length);
    const DiskHit hit = FetchNow(*opened.tier, talk, length_max);
    EXPECT_EQ(hit.length, length);
    ExpectRight(hit, talk);
  }
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1000, 0, 992).length, 0) << "not behind length_min";
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1000, 0, 991).length, 992);
}

TEST_F(DiskTierTest, AFullerPageServesEveryBoundaryInIt) {
  const Opened opened = OpenTier(dir());
  const Conversation talk = Conversation::Random(1, 600);
  StoreTo(*opened.tier, talk, 304);
  StoreTo(*opened.tier, talk, 400);
  StoreTo(*opened.tier, talk, 320);  // its page is there already, as the beginning of the last
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->stats().pages, 2) << "the page of 48 tokens is the beginning of another";
  EXPECT_EQ(opened.tier->stats().snapshots, 3);
  EXPECT_EQ(BytesOnDisk(dir()), opened.tier->stats().bytes);
  for (const int64_t length : {304, 320, 400}) {
    const DiskHit hit = FetchNow(*opened.tier, talk, length);
    EXPECT_EQ(hit.length, length);
    ExpectRight(hit, talk);
  }
  // Another continuation of the same page stands beside it.
  const Conversation branch = talk.Branch(320, 5, 600);
  StoreTo(*opened.tier, branch, 352);
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->stats().pages, 3);
  ExpectRight(FetchNow(*opened.tier, branch, 600), branch);
  EXPECT_EQ(FetchNow(*opened.tier, branch, 600).length, 352);
  ExpectRight(FetchNow(*opened.tier, branch, 340), branch);
  EXPECT_EQ(FetchNow(*opened.tier, branch, 340).length, 320);
}

TEST_F(DiskTierTest, ConversationsShareThePagesOfTheirBeginning) {
  const Opened opened = OpenTier(dir());
  const Conversation first = Conversation::Random(1, 1024);
  StoreTo(*opened.tier, first, 1024);
  StoreTo(*opened.tier, first.Branch(800, 2, 1024), 1024);
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->stats().pages, 3 + 1 + 1);
  EXPECT_EQ(opened.tier->stats().written_records, 3 + 1 + 1 + 2);
  EXPECT_EQ(std::ssize(FilesOnDisk(dir())), 3 + 1 + 1 + 2);
  EXPECT_EQ(BytesOnDisk(dir()), 5 * PageBytes(256) + 2 * SnapshotBytes(256));
}

TEST_F(DiskTierTest, PagesInMemoryAreNotRead) {
  const Opened opened = OpenTier(dir());
  const Conversation talk = Conversation::Random(1, 1024);
  StoreTo(*opened.tier, talk, 848);
  opened.tier->Flush();
  for (const int64_t in_memory : {0, 16, 256, 300, 512, 768, 832, 848, 1024}) {
    const DiskHit hit = FetchNow(*opened.tier, talk, 1024, in_memory);
    EXPECT_EQ(hit.length, 848);
    ExpectRight(hit, talk, in_memory);
  }
  // Not even when they are gone.
  std::filesystem::remove(PathOf(RecordKind::kPage, talk.End(256)));
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1024, 256).length, 848);
  EXPECT_TRUE(opened.warnings->empty());
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1024, 0).length, 0);
  EXPECT_EQ(opened.tier->Match(talk.ends, 1024, 255), 0);
  EXPECT_EQ(opened.tier->Match(talk.ends, 1024, 256), 848);
  EXPECT_EQ(opened.tier->StoredLength(talk.ends), 0) << "its first page is missing";
  // Stored once more, it closes the gap.
  opened.tier->StorePage(ToStore(talk, 0, 256, PageFloats(talk, 0, 256)));
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->StoredLength(talk.ends), 848);
  ExpectRight(FetchNow(*opened.tier, talk, 1024), talk);
}

TEST_F(DiskTierTest, RecordsWithoutAPageInFrontAreDropped) {
  const Opened opened = OpenTier(dir());
  const Conversation talk = Conversation::Random(1, 1024);
  opened.tier->StorePage(ToStore(talk, 256, 512, PageFloats(talk, 256, 512)));
  opened.tier->StoreSnapshot(ToStore(talk, 0, 64, SnapshotFloats(talk.End(64))));
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->stats().dropped_orphan, 2);
  EXPECT_TRUE(FilesOnDisk(dir()).empty());
}

TEST_F(DiskTierTest, OneProcessAtATime) {
  Opened opened = OpenTier(dir());
  const auto second = DiskTier::Open(dir(), TestFingerprint(2), {.bytes_max = 1});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(dir()), std::string::npos);
  opened = {};
  EXPECT_TRUE(DiskTier::Open(dir(), TestFingerprint(2), {.bytes_max = 1}).ok());
  EXPECT_EQ(DiskTier::Open(dir(), TestFingerprint(2), {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(DiskTierTest, ADamagedRecordIsAMissWithAWarning) {
  const Conversation talk = Conversation::Random(1, 1024);
  struct Case {
    RecordKind kind;
    int64_t end;
    int64_t byte;
    int64_t length;  // what is still served
  };
  for (const Case& test :
       {Case{RecordKind::kSnapshot, 800, -1, 528}, Case{RecordKind::kSnapshot, 800, 9, 528},
        Case{RecordKind::kPage, 800, 300, 528}, Case{RecordKind::kPage, 768, 500, 64},
        Case{RecordKind::kPage, 512, 200, 64}, Case{RecordKind::kPage, 256, 17, 0},
        Case{RecordKind::kPage, 256, -1, 0}}) {
    SCOPED_TRACE(testing::Message() << test.end << " " << test.byte);
    std::filesystem::remove_all(dir());
    const Opened opened = OpenTier(dir());
    for (const int64_t length : {64, 528, 800}) StoreTo(*opened.tier, talk, length);
    opened.tier->Flush();
    const std::string path = PathOf(test.kind, talk.End(test.end));
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    FlipByte(path, test.byte < 0 ? size + test.byte : test.byte);
    const DiskHit hit = FetchNow(*opened.tier, talk, 1024);
    EXPECT_EQ(hit.length, test.length);
    ExpectRight(hit, talk);
    EXPECT_EQ(opened.warnings->size(), 1u);
    EXPECT_NE(opened.warnings->at(0).find(path), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(opened.tier->stats().corrupt, 1);
    EXPECT_EQ(opened.tier->stats().bytes, BytesOnDisk(dir()));
    // It heals.
    StoreTo(*opened.tier, talk, 800);
    opened.tier->Flush();
    EXPECT_EQ(FetchNow(*opened.tier, talk, 1024).length, 800);
    EXPECT_EQ(opened.warnings->size(), 1u);
  }
}

TEST_F(DiskTierTest, WhatCannotBeIndexedIsRemovedWhenOpening) {
  const Conversation talk = Conversation::Random(1, 1024);
  {
    const Opened opened = OpenTier(dir());
    StoreTo(*opened.tier, talk, 528);
    StoreTo(*opened.tier, talk, 800);
  }
  const std::string snapshot = PathOf(RecordKind::kSnapshot, talk.End(800));
  const std::string folder = std::filesystem::path(snapshot).parent_path().string();
  FlipByte(snapshot, 40);                                          // its parent
  std::filesystem::copy(PathOf(RecordKind::kPage, talk.End(256)),  // a page under another's name
                        PathOf(RecordKind::kPage, talk.End(16)));
  std::ofstream(snapshot + ".123.partial") << "half";
  std::ofstream(folder + "/notes.txt") << "somebody's";
  const Opened opened = OpenTier(dir());
  EXPECT_EQ(opened.warnings->size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(snapshot));
  EXPECT_FALSE(std::filesystem::exists(snapshot + ".123.partial"));
  EXPECT_FALSE(std::filesystem::exists(PathOf(RecordKind::kPage, talk.End(16))));
  EXPECT_TRUE(std::filesystem::exists(folder + "/notes.txt"));
  EXPECT_EQ(opened.tier->Match(talk.ends, 1024, 0), 528);
}

TEST_F(DiskTierTest, AnEqualHashIsNoProof) {
  const Conversation talk = Conversation::Random(1, 1024);
  const Opened opened = OpenTier(dir());
  for (const int64_t length : {64, 528, 800}) StoreTo(*opened.tier, talk, length);
  opened.tier->Flush();
  // Other tokens with the hashes of these: as if the hash had collided.
  Conversation liar = talk;
  liar.tokens[780] ^= 1;
  EXPECT_EQ(FetchNow(*opened.tier, liar, 1024).length, 528);
  liar.tokens[100] ^= 1;
  EXPECT_EQ(FetchNow(*opened.tier, liar, 1024).length, 0);
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1024).length, 800) << "the records are innocent";
}

TEST_F(DiskTierTest, OtherModelsCountAndGoFirst) {
  const Conversation talk = Conversation::Random(1, 1024);
  const int64_t each = 4 * PageBytes(256) + SnapshotBytes(256);
  for (const uint8_t model : {1, 2})
    StoreTo(*OpenTier(dir(), each * 9 / 4, model).tier, talk, 1024);
  EXPECT_EQ(BytesOnDisk(dir()), 2 * each);
  const Opened opened = OpenTier(dir(), each * 9 / 4, 3);
  EXPECT_EQ(opened.tier->stats().other_bytes, 2 * each);
  EXPECT_EQ(FetchNow(*opened.tier, talk, 1024).length, 0) << "not of this model";
  StoreTo(*opened.tier, talk, 1024);
  opened.tier->Flush();
  EXPECT_LE(BytesOnDisk(dir()), each * 9 / 4);
  EXPECT_EQ(opened.tier->stats().bytes, each);
  EXPECT_EQ(opened.tier->stats().bytes + opened.tier->stats().other_bytes, BytesOnDisk(dir()));
  ExpectRight(FetchNow(*opened.tier, talk, 1024), talk);
  const auto folders = ListCache(dir());
  ASSERT_TRUE(folders.ok());
  EXPECT_LT(folders->at(0).records.size(), 5u) << "the oldest model's went first";
  EXPECT_EQ(folders->at(1).records.size(), 5u);
}

/// Every snapshot on disk has every page in front of it.
void ExpectClosed(const std::string& dir) {
  std::map<PrefixHash, RecordHeader> pages;
  std::vector<RecordHeader> snapshots;
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  for (const auto& [path, bytes] : FilesOnDisk(dir)) {
    const auto file = files->OpenReadable(path);
    ASSERT_TRUE(file.ok());
    const auto header = ReadRecordHeaderAt(**file, path);
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    ASSERT_TRUE(VerifyRecord(**file, *header, path).ok());
    if (header->kind == RecordKind::kSnapshot) {
      snapshots.push_back(*header);
      continue;
    }
    const std::vector<PrefixHash> ends = ChainHashes(header->parent, header->tokens);
    for (const PrefixHash& end : ends) {
      if (end != header->parent) pages[end] = *header;
    }
  }
  for (const RecordHeader& snapshot : snapshots) {
    ASSERT_TRUE(pages.contains(snapshot.key)) << snapshot.end();
    for (RecordHeader page = pages[snapshot.key]; page.begin > 0; page = pages[page.parent]) {
      ASSERT_TRUE(pages.contains(page.parent)) << snapshot.end() << " " << page.begin;
    }
  }
}

TEST_F(DiskTierTest, TheBudgetHoldsAndNoSnapshotLosesItsPages) {
  UnsyncedFiles files;
  for (const uint64_t seed : {1, 2, 3}) {
    std::filesystem::remove_all(dir());
    Random random(seed, 1);
    std::vector<Conversation> talks;
    for (uint64_t i = 0; i < 4; ++i) talks.push_back(Conversation::Random(10 * seed + i, 1500));
    for (uint64_t i = 0; i < 8; ++i) {
      talks.push_back(talks[random.NextBelow(talks.size())].Branch(
          static_cast<int64_t>(random.NextBelow(1400)), 100 * seed + i, 1500));
    }
    const int64_t bytes_max = 60'000;  // some 15 of the 80 or so pages that there are
    Opened opened = OpenTier(dir(), bytes_max, 1, &files);
    int64_t hits = 0;
    for (int step = 0; step < 300; ++step) {
      const Conversation& talk = talks[random.NextBelow(talks.size())];
      const int64_t length = 16 * static_cast<int64_t>(1 + random.NextBelow(93));
      if (random.NextBelow(3) > 0) {
        StoreTo(*opened.tier, talk, length, opened.tier->StoredLength(talk.ends));
        opened.tier->Flush();
      } else {
        const int64_t expected = opened.tier->Match(talk.ends, length, 0);
        const DiskHit hit = FetchNow(*opened.tier, talk, length);
        EXPECT_EQ(hit.length, expected);
        ExpectRight(hit, talk);
        hits += hit.length > 0 ? 1 : 0;
      }
      ASSERT_LE(BytesOnDisk(dir()), bytes_max);
      ASSERT_EQ(BytesOnDisk(dir()), opened.tier->stats().bytes);
      if (step % 30 == 29) {
        ExpectClosed(dir());
        opened = {};
        opened = OpenTier(dir(), bytes_max, 1, &files);
      }
    }
    EXPECT_GT(hits, 10);
    EXPECT_TRUE(opened.warnings->empty());
    // A smaller budget holds from the start.
    opened = {};
    opened = OpenTier(dir(), 10'000);
    EXPECT_LE(BytesOnDisk(dir()), 10'000);
    EXPECT_GT(BytesOnDisk(dir()), 0);
    ExpectClosed(dir());
  }
}

TEST_F(DiskTierTest, TheLeastRecentlyUsedGoFirstAlsoAfterARestart) {
  std::vector<Conversation> talks;
  for (uint64_t i = 0; i < 4; ++i) talks.push_back(Conversation::Random(i, 256));
  const int64_t each = PageBytes(256) + SnapshotBytes(256);
  Opened opened = OpenTier(dir(), 4 * each);
  for (const Conversation& talk : talks) StoreTo(*opened.tier, talk, 256);
  opened.tier->Flush();
  EXPECT_EQ(FetchNow(*opened.tier, talks[0], 256).length, 256);
  opened = {};
  opened = OpenTier(dir(), 4 * each);
  const Conversation fifth = Conversation::Random(9, 256);
  StoreTo(*opened.tier, fifth, 256);
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->Match(talks[0].ends, 256, 0), 256) << "used after the others";
  EXPECT_EQ(opened.tier->Match(talks[1].ends, 256, 0), 0);
  EXPECT_EQ(opened.tier->Match(talks[2].ends, 256, 0), 256);
  EXPECT_EQ(opened.tier->Match(fifth.ends, 256, 0), 256);
  // Uses are times of the day, so that other processes' and older runs' files compare with them.
  const Result<std::vector<ModelFolder>> folders = ListCache(dir());
  ASSERT_TRUE(folders.ok());
  for (const RecordFile& file : folders->front().records) {
    EXPECT_NEAR(static_cast<double>(UnixSeconds(file.last_use)),
                static_cast<double>(std::time(nullptr)), 600);
  }
}

TEST_F(DiskTierTest, WhatIsLargerThanTheBudgetEvictsNothing) {
  const Conversation small = Conversation::Random(1, 256);
  Opened opened = OpenTier(dir(), PageBytes(16) + SnapshotBytes(16) + 10);
  StoreTo(*opened.tier, small, 16);
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->Match(small.ends, 256, 0), 16);
  StoreTo(*opened.tier, Conversation::Random(2, 256), 256);
  opened.tier->Flush();
  EXPECT_EQ(opened.tier->Match(small.ends, 256, 0), 16);
  EXPECT_EQ(opened.tier->stats().evicted, 0);
  EXPECT_EQ(opened.tier->stats().dropped_full, 1);
  EXPECT_EQ(opened.tier->stats().dropped_orphan, 1);
}

TEST_F(DiskTierTest, AFullQueueDropsTheNewest) {
  const Conversation talk = Conversation::Random(1, 1024);
  const int64_t page_bytes = 256 * kTestPageFloats * 4;
  auto opened = DiskTier::Open(dir(), TestFingerprint(),
                               {.bytes_max = 1 << 30,
                                .page_floats_per_token = kTestPageFloats,
                                .snapshot_floats = kTestSnapshotFloats,
                                .queue_bytes_max = 2 * page_bytes});
  ASSERT_TRUE(opened.ok());
  // The tier's thread waits in a callback, so that everything stays queued.
  std::latch entered(1);
  std::latch leave(1);
  (*opened)->Fetch({.ends = talk.ends, .tokens = talk.tokens, .done = [&](const DiskHit&) {
                      entered.count_down();
                      leave.wait();
                    }});
  entered.wait();
  std::weak_ptr<const void> dropped;
  for (int64_t begin = 0; begin < 1024; begin += 256) {
    RecordToStore page = ToStore(talk, begin, begin + 256, PageFloats(talk, begin, begin + 256));
    if (begin == 512) dropped = page.keeper;
    (*opened)->StorePage(std::move(page));
  }
  EXPECT_EQ((*opened)->stats().queue_bytes, 2 * page_bytes);
  EXPECT_EQ((*opened)->stats().dropped_full, 2);
  EXPECT_TRUE(dropped.expired()) << "what is dropped is let go of";
  leave.count_down();
  (*opened)->Flush();
  EXPECT_EQ((*opened)->stats().queue_bytes, 0);
  EXPECT_EQ((*opened)->StoredLength(talk.ends), 512);
}

TEST_F(DiskTierTest, ManyThreadsAskAtOnce) {
  std::vector<Conversation> talks;
  const Conversation base = Conversation::Random(1, 1200);
  for (uint64_t i = 0; i < 4; ++i) talks.push_back(base.Branch(500, i, 1200));
  const Opened opened = OpenTier(dir(), 40'000);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(5, t);
      for (int step = 0; step < 40; ++step) {
        const Conversation& talk = talks[random.NextBelow(4)];
        const int64_t length = 16 * static_cast<int64_t>(1 + random.NextBelow(75));
        if (step % 2 == 0) StoreTo(*opened.tier, talk, length);
        (void)opened.tier->Match(talk.ends, length, 0);
        ExpectRight(FetchNow(*opened.tier, talk, length), talk);
        (void)opened.tier->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  opened.tier->Flush();
  EXPECT_LE(BytesOnDisk(dir()), 40'000);
  EXPECT_TRUE(opened.warnings->empty());
  ExpectClosed(dir());
}

}  // namespace
}  // namespace k3::cache

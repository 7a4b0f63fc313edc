#include "cache/prefix_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace k3::cache {
namespace {

std::vector<int32_t> Ids(int count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

TEST(PrefixHash, CoversEverythingBeforeItsEnd) {
  const std::vector<int32_t> ids = Ids(100);
  const std::vector<PrefixHash> ends = ChainHashes(NamespaceHash(""), ids);
  ASSERT_EQ(ends.size(), 7u);
  for (size_t changed = 0; changed < ids.size(); ++changed) {
    std::vector<int32_t> other = ids;
    other[changed] += 1;
    const std::vector<PrefixHash> other_ends = ChainHashes(NamespaceHash(""), other);
    for (size_t n = 0; n < ends.size(); ++n) {
      EXPECT_EQ(other_ends[n] == ends[n], 16 * n <= changed) << changed << " " << n;
    }
  }
}

TEST(PrefixHash, BeginningsShareTheirHashes) {
  const std::vector<PrefixHash> whole = ChainHashes(NamespaceHash("a"), Ids(1000));
  for (int count = 0; count <= 64; ++count) {
    const std::vector<PrefixHash> part = ChainHashes(NamespaceHash("a"), Ids(count));
    ASSERT_EQ(part.size(), static_cast<size_t>(count / 16 + 1));
    for (size_t n = 0; n < part.size(); ++n) EXPECT_EQ(part[n], whole[n]);
  }
}

TEST(PrefixHash, TenantsShareNothing) {
  const std::vector<PrefixHash> a = ChainHashes(NamespaceHash("a"), Ids(64));
  const std::vector<PrefixHash> b = ChainHashes(NamespaceHash("b"), Ids(64));
  for (size_t n = 0; n < a.size(); ++n) EXPECT_NE(a[n], b[n]);
}

TEST(PrefixHash, TailsOfEveryLengthDiffer) {
  const std::vector<int32_t> ids(16, 0);
  std::set<PrefixHash> seen;
  for (size_t count = 0; count <= ids.size(); ++count) {
    seen.insert(ExtendHash(NamespaceHash(""), std::span(ids).first(count)));
  }
  EXPECT_EQ(seen.size(), ids.size() + 1);
}

// What stands in files of the disk tier: it must not change with a library or a machine.
TEST(PrefixHash, IsWhatItAlwaysWas) {
  EXPECT_EQ(ChainHashes(NamespaceHash("tenant"), Ids(32)).back().ToHex(),
            "f7d9c8113ad45867f54a2bfe149b0747");
}

}  // namespace
}  // namespace k3::cache

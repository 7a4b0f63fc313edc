#include "cache/prefix_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <cstring>

#include "base/check.h"

namespace k3::cache {
namespace {

PrefixHash FromXxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

std::string PrefixHash::ToHex() const { return fmt::format("{:016x}{:016x}", high, low); }

PrefixHash NamespaceHash(std::string_view salt) {
  return FromXxh(XXH3_128bits(salt.data(), salt.size()));
}

PrefixHash ExtendHash(const PrefixHash& before, std::span<const int32_t> tokens) {
  K3_CHECK(std::ssize(tokens) <= kHashBlockTokens, "one block at a time");
  static_assert(std::endian::native == std::endian::little, "ids are hashed as little-endian");
  std::array<std::byte, 2 * sizeof(uint64_t) + kHashBlockTokens * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), &before.low, sizeof(uint64_t));
  std::memcpy(bytes.data() + sizeof(uint64_t), &before.high, sizeof(uint64_t));
  std::memcpy(bytes.data() + 2 * sizeof(uint64_t), tokens.data(), tokens.size_bytes());
  return FromXxh(XXH3_128bits(bytes.data(), 2 * sizeof(uint64_t) + tokens.size_bytes()));
}

std::vector<PrefixHash> ChainHashes(const PrefixHash& start, std::span<const int32_t> tokens) {
  const size_t block = static_cast<size_t>(kHashBlockTokens);
  std::vector<PrefixHash> ends = {start};
  ends.reserve(tokens.size() / block + 1);
  for (size_t at = 0; at + block <= tokens.size(); at += block) {
    ends.push_back(ExtendHash(ends.back(), tokens.subspan(at, block)));
  }
  return ends;
}

}  // namespace k3::cache

#pragma once
// PrefixHash: names a sequence's first tokens, in steps of 16. Each hash covers every token before
// its end, so that an equal hash at one end stands for an equal beginning. Still only a name: what
// is found by it is used after its tokens were compared.
//
//   const std::vector<PrefixHash> ends = ChainHashes(NamespaceHash(salt), tokens);
//   ends[n]  // of tokens [0, 16 n)
//
// Pure functions, any thread. XXH3 of 128 bits over the hash before and the ids, little-endian.
// Source: technical report, section 5.4.1 (hash blocks apart from pages and snapshots).

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/sequence_state.h"

namespace k3::cache {

/// The grid on which prefixes can be named, and on which a KDA state needs no open rows.
inline constexpr int64_t kHashBlockTokens = kChunkTokens;

struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;

  auto operator<=>(const PrefixHash&) const = default;
  /// 32 hexadecimal digits, high half first.
  std::string ToHex() const;
};

/// For unordered containers.
struct PrefixHasher {
  size_t operator()(const PrefixHash& hash) const { return static_cast<size_t>(hash.low); }
};

/// The empty sequence of one tenant: those with different salts share nothing.
PrefixHash NamespaceHash(std::string_view salt);

/// The hash behind `tokens` when `before` is the hash in front of them. At most kHashBlockTokens.
PrefixHash ExtendHash(const PrefixHash& before, std::span<const int32_t> tokens);

/// [tokens.size() / 16 + 1]: entry n covers tokens [0, 16 n); entry 0 is `start`.
std::vector<PrefixHash> ChainHashes(const PrefixHash& start, std::span<const int32_t> tokens);

}  // namespace k3::cache

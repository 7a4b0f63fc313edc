#pragma once
// TokenTrie: the byte strings of a vocabulary as tries, and the masks that a JsonState gives on
// them. Built once, immutable, any thread.
//
//   TokenTrie trie(tokens);                                  // view i is token i
//   trie.AddAllowed(state, scratch, mask);                   // sets bits, clears none
//
// Most of a vocabulary is ordinary text, and where a string goes on, all of that may come: those
// ids are known beforehand by their code points, and only the others are walked. Elsewhere few
// bytes may come, so that a walk ends soon. Time follows what is allowed, not the vocabulary.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/json_state.h"

namespace k3 {

/// Byte strings in one order: a node comes before its children, children by byte.
class ByteTrie {
 public:
  struct Node {
    uint32_t end = 0;    // the first node that is not below this one
    uint32_t first = 0;  // tokens() before this node's own
    int32_t token = -1;  // that ends here
    uint8_t byte = 0;
    bool is_plain_below = false;  // all that follows is ASCII that stands in a JSON string as it is
  };

  /// `ids` are indices of `tokens`; empty strings and strings that come twice are left out.
  ByteTrie(std::span<const std::string_view> tokens, std::vector<int32_t> ids);
  ByteTrie() = default;

  /// Node 0 is the root.
  std::span<const Node> nodes() const { return nodes_; }
  /// Tokens in the order of the nodes at which they end.
  std::span<const int32_t> tokens() const { return tokens_; }
  /// Those below a node, its own among them.
  std::span<const int32_t> TokensBelow(uint32_t node) const;

 private:
  void MarkPlain();

  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
};

class TokenTrie {
 public:
  /// What a walk needs, kept between calls by the caller.
  struct Scratch {
    std::vector<JsonState::Threads> levels;
    std::vector<uint32_t> ends;
  };

  /// The views must live as long as the constructor runs. Fewer than 2^31 bytes together.
  explicit TokenTrie(std::span<const std::string_view> tokens);

  /// Sets the bits of the tokens that `state` accepts in `mask`, which has at least a bit for each.
  void AddAllowed(const JsonState& state, Scratch& scratch, std::span<uint32_t> mask) const;

  /// Sets the bits of all tokens that are not empty.
  void AddAll(std::span<uint32_t> mask) const;

 private:
  /// Tokens that go on with a string whatever they are: whole characters, nothing special.
  struct FreeTokens {
    std::vector<uint32_t> mask;
    std::vector<int32_t> by_size;   // ids, by their code points
    std::vector<size_t> size_ends;  // [n]: how many have at most n code points
    ByteTrie others;
  };

  static FreeTokens Sort(std::span<const std::string_view> tokens, bool is_raw);
  void AddFree(const FreeTokens& free, int64_t room, std::span<uint32_t> mask) const;
  void Walk(const ByteTrie& trie, const JsonState& state, const JsonThread& thread,
            Scratch& scratch, std::span<uint32_t> mask) const;

  ByteTrie all_;
  FreeTokens json_;
  FreeTokens raw_;
  std::vector<uint32_t> all_mask_;
  int64_t longest_ = 0;  // bytes of a token
};

}  // namespace k3

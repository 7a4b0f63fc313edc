#pragma once
// TokenVocabulary: a tokenizer as constraints need it: a trie over the bytes of its ordinary ids,
// what each id is to a JSON string, and the ids of XTML's markup. Built once for a tokenizer
// (163,840 ids take some 10 MB), immutable, any thread.
//
//   K3_TRY(const TokenVocabulary vocabulary, TokenVocabulary::Create(tokenizer));
//
// It borrows the tokenizer, which must outlive it unmoved.

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/token_trie.h"
#include "text/tokenizer.h"
#include "text/xtml_markers.h"

namespace k3 {

class TokenVocabulary {
 public:
  /// NotFound when the tokenizer has no markers of XTML.
  static Result<TokenVocabulary> Create(const Tokenizer& tokenizer);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const XtmlMarkers& markers() const { return markers_; }
  const TokenTrie& trie() const { return trie_; }
  int64_t vocab_size() const { return tokenizer_->vocab_size(); }

  /// Sets the bits of the ids that can be a part of any name in an attribute: whole characters,
  /// nothing that is escaped there.
  void AddNames(std::span<uint32_t> mask) const;
  bool IsName(int32_t id) const {
    return id >= 0 && id / 32 < std::ssize(names_) &&
           (names_[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0;
  }

  /// The ids of `text`, a part of markup that is valid UTF-8.
  std::vector<int32_t> Encode(std::string_view text) const;

 private:
  TokenVocabulary(const Tokenizer& tokenizer, const XtmlMarkers& markers, TokenTrie trie)
      : tokenizer_(&tokenizer), markers_(markers), trie_(std::move(trie)) {}

  const Tokenizer* tokenizer_;
  XtmlMarkers markers_;
  TokenTrie trie_;
  std::vector<uint32_t> names_;
};

}  // namespace k3

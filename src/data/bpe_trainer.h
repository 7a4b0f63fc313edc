#pragma once
// Byte-pair training: from texts to the ranks of a tokenizer with the K3 pre-split.
//
//   K3_TRY(auto tokens, TrainBpe(texts, {.ranks = 1952}));
//   std::string model = FormatTiktokenFile(tokens);   // the content of a tiktoken.model
//
// Each text is cut into the pieces of text/pre_split.h, and equal pieces are one word with a count.
// A word starts as its bytes. Again and again the pair of neighbours that stands most often in the
// words is merged everywhere, from left to right, and its bytes become the next rank; of pairs that
// stand equally often the largest is taken, by the bytes of its left half and then of its right.
// So the result depends on nothing but the texts, and not on their order. Neighbours whose bytes
// together are a token already are merged without a new rank.
//
// Time is about proportional to the bytes of the distinct words, not to words times ranks: a merge
// visits only the places of its pair. Memory is 20 to 40 bytes for each byte of the distinct words
// beside the texts, which belong to the caller. Pure functions, any thread. Source: the training of
// "Neural Machine Translation of Rare Words with Subword Units" (Sennrich et al., 2016), on bytes.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace k3 {

/// Every single byte is a token.
inline constexpr int64_t kBpeRanksMin = 256;
inline constexpr int64_t kBpeRanksMax = 1'000'000;

struct BpeTrainerOptions {
  int64_t ranks = kBpeRanksMin;  // to reach, kBpeRanksMin to kBpeRanksMax
  int64_t pair_count_min = 2;    // a pair that stands less often is not merged; at least 1
};

/// The bytes of each token by rank: the 256 bytes, then the merges in their order. There are fewer
/// than `options.ranks` if no pair is left that stands `pair_count_min` times. No string is there
/// twice. InvalidArgument for options out of range and a text that is not UTF-8 (the text's number
/// from 0 and the byte offset); ResourceExhausted for distinct words of more than 4 GiB.
Result<std::vector<std::string>> TrainBpe(std::span<const std::string_view> texts,
                                          const BpeTrainerOptions& options);

/// The content of a tiktoken.model file: a line of base64, a space and the rank for each token.
std::string FormatTiktokenFile(std::span<const std::string> tokens);

}  // namespace k3

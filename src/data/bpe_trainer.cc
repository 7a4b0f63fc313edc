#include "data/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/limits.h"
#include "text/character_classes.h"
#include "text/pre_split.h"
#include "text/token_table.h"
#include "text/utf8.h"

namespace k3 {
namespace {

// A distinct piece of the texts.
struct Word {
  std::string_view bytes;
  int64_t count = 0;
};

// Two neighbouring tokens.
struct Pair {
  int32_t left = 0;
  int32_t right = 0;

  uint64_t Key() const {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
};

// Where a pair stands.
struct Occurrences {
  int64_t count = 0;   // weighted by the counts of the words
  int64_t queued = 0;  // the count of its latest entry in the queue
  // Places of its left halves. Some may have been merged otherwise since.
  std::vector<uint32_t> places;
};

struct QueueEntry {
  int64_t count;  // when it was queued
  Pair pair;
};

// Orders the queue: the most frequent pair first, then the largest bytes.
class QueueOrder {
 public:
  explicit QueueOrder(const TokenTable* tokens) : tokens_(tokens) {}

  bool operator()(const QueueEntry& a, const QueueEntry& b) const {
    if (a.count != b.count) return a.count < b.count;
    if (a.pair.left != b.pair.left) {
      return tokens_->Bytes(a.pair.left) < tokens_->Bytes(b.pair.left);
    }
    return tokens_->Bytes(a.pair.right) < tokens_->Bytes(b.pair.right);
  }

 private:
  const TokenTable* tokens_;
};

// The distinct pieces in the order in which they first stand.
std::vector<Word> CountWords(std::span<const std::string_view> texts) {
  const CharacterClasses classes;
  std::vector<Word> words;
  std::unordered_map<std::string_view, size_t> numbers;
  std::vector<uint32_t> ends;
  for (const std::string_view text : texts) {
    SegmentCutter cutter(classes, text);
    for (std::string_view segment = cutter.Next(); !segment.empty(); segment = cutter.Next()) {
      ends.clear();
      SplitSegment(classes, segment, &ends);
      uint32_t start = 0;
      for (const uint32_t end : ends) {
        const std::string_view piece = segment.substr(start, end - start);
        start = end;
        if (piece.size() < 2) continue;  // nothing to merge
        const auto [found, is_new] = numbers.try_emplace(piece, words.size());
        if (is_new) words.push_back({piece, 0});
        ++words[found->second].count;
      }
    }
  }
  return words;
}

class Trainer {
 public:
  Trainer(std::vector<Word> words, const BpeTrainerOptions& options);
  Trainer(const Trainer&) = delete;  // the queue's order points into it
  Trainer& operator=(const Trainer&) = delete;

  std::vector<std::string> Run();

 private:
  static constexpr int32_t kBoundary = -1;  // between words
  static constexpr int32_t kInside = -2;    // of a token, behind its first byte, before its last

  uint32_t Length(int32_t token) const {
    return static_cast<uint32_t>(tokens_.Bytes(token).size());
  }

  void PlaceWords();
  void Queue(Pair pair, Occurrences& occurrences);
  void Add(Pair pair, uint32_t place, int64_t count);
  void Remove(Pair pair, int64_t count);
  void Merge(Pair pair);
  void MergeAt(uint32_t place, Pair pair, int32_t merged);

  const BpeTrainerOptions options_;
  const std::vector<Word> words_;
  TokenTable tokens_;
  // One place for each byte of each word and a boundary before, between and behind words. The first
  // and the last byte of a token hold its number, so that both neighbours are found in one step.
  std::vector<int32_t> symbols_;
  std::vector<uint32_t> word_at_;  // the number of the word at a place
  std::unordered_map<uint64_t, Occurrences> pairs_;
  // Every pair that stands often enough has an entry with its count or more; a pair that became
  // rarer is queued again when its entry comes up.
  std::priority_queue<QueueEntry, std::vector<QueueEntry>, QueueOrder> queue_;
  std::vector<Pair> grown_;  // by the merge that goes on; repetitions are possible
};

Trainer::Trainer(std::vector<Word> words, const BpeTrainerOptions& options)
    : options_(options), words_(std::move(words)), queue_(QueueOrder(&tokens_)) {
  for (int byte = 0; byte < 256; ++byte) {
    tokens_.Append(std::string(1, static_cast<char>(byte)));
  }
  PlaceWords();
}

void Trainer::PlaceWords() {
  size_t places = 1;
  for (const Word& word : words_) places += word.bytes.size() + 1;
  symbols_.reserve(places);
  word_at_.reserve(places);
  symbols_.push_back(kBoundary);
  word_at_.push_back(0);
  for (size_t number = 0; number < words_.size(); ++number) {
    const Word& word = words_[number];
    for (const char c : word.bytes) {
      const int32_t symbol = tokens_.FindByte(static_cast<uint8_t>(c));
      const auto place = static_cast<uint32_t>(symbols_.size());
      if (symbols_.back() != kBoundary) Add({symbols_.back(), symbol}, place - 1, word.count);
      symbols_.push_back(symbol);
    }
    symbols_.push_back(kBoundary);
    word_at_.resize(symbols_.size(), static_cast<uint32_t>(number));
  }
}

void Trainer::Queue(Pair pair, Occurrences& occurrences) {
  occurrences.queued = occurrences.count;
  if (occurrences.count >= options_.pair_count_min) queue_.push({occurrences.count, pair});
}

void Trainer::Add(Pair pair, uint32_t place, int64_t count) {
  Occurrences& occurrences = pairs_[pair.Key()];
  // A pair is noted when it passes what the queue knows; later growth in the same merge is seen
  // when the merge ends.
  if (occurrences.count <= occurrences.queued && occurrences.count + count > occurrences.queued) {
    grown_.push_back(pair);
  }
  occurrences.count += count;
  occurrences.places.push_back(place);
}

void Trainer::Remove(Pair pair, int64_t count) { pairs_[pair.Key()].count -= count; }

void Trainer::MergeAt(uint32_t place, Pair pair, int32_t merged) {
  const uint32_t middle = place + Length(pair.left);
  if (symbols_[place] != pair.left || symbols_[middle] != pair.right) return;  // merged otherwise
  const uint32_t end = middle + Length(pair.right);
  const int64_t count = words_[word_at_[place]].count;
  if (const int32_t before = symbols_[place - 1]; before != kBoundary) {
    Remove({before, pair.left}, count);
    Add({before, merged}, place - Length(before), count);
  }
  if (const int32_t behind = symbols_[end]; behind != kBoundary) {
    Remove({pair.right, behind}, count);
    Add({merged, behind}, place, count);
  }
  symbols_[middle - 1] = kInside;
  symbols_[middle] = kInside;
  symbols_[place] = merged;
  symbols_[end - 1] = merged;
}

void Trainer::Merge(Pair pair) {
  std::string bytes(tokens_.Bytes(pair.left));
  bytes += tokens_.Bytes(pair.right);
  int32_t merged = tokens_.Append(bytes);
  if (merged == TokenTable::kNotFound) merged = tokens_.Find(bytes);
  std::vector<uint32_t> places = std::move(pairs_[pair.Key()].places);
  // From left to right, which matters where a token stands several times in a row.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  for (const uint32_t place : places) MergeAt(place, pair, merged);
  pairs_.erase(pair.Key());
  for (const Pair grown : grown_) {
    const auto found = pairs_.find(grown.Key());
    if (found != pairs_.end() && found->second.count > found->second.queued) {
      Queue(grown, found->second);
    }
  }
  grown_.clear();
}

std::vector<std::string> Trainer::Run() {
  for (const Pair pair : grown_) Queue(pair, pairs_[pair.Key()]);
  grown_.clear();
  while (tokens_.size() < options_.ranks && !queue_.empty()) {
    const QueueEntry entry = queue_.top();
    queue_.pop();
    const auto found = pairs_.find(entry.pair.Key());
    if (found == pairs_.end()) continue;
    if (entry.count != found->second.count) {
      // Of a count that grew a larger entry has come up before this one.
      if (entry.count > found->second.count) Queue(entry.pair, found->second);
      continue;
    }
    const int64_t length = int64_t{Length(entry.pair.left)} + Length(entry.pair.right);
    if (length > limits::kTokenBytesMax) continue;  // a tokenizer would refuse it
    Merge(entry.pair);
  }
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<size_t>(tokens_.size()));
  for (int32_t rank = 0; rank < tokens_.size(); ++rank) tokens.emplace_back(tokens_.Bytes(rank));
  return tokens;
}

Status Check(std::span<const std::string_view> texts, const BpeTrainerOptions& options) {
  if (options.ranks < kBpeRanksMin || options.ranks > kBpeRanksMax) {
    return InvalidArgument(fmt::format("ranks: expected {} (every single byte) to {}, found {}",
                                       kBpeRanksMin, kBpeRanksMax, options.ranks));
  }
  if (options.pair_count_min < 1) {
    return InvalidArgument(
        fmt::format("pair_count_min: expected at least 1, found {}", options.pair_count_min));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t invalid = FindInvalidUtf8(texts[i]);
    if (invalid < 0) continue;
    return InvalidArgument(
        fmt::format("text {}: expected UTF-8, found other bytes at byte offset {}", i, invalid));
  }
  return OkStatus();
}

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < count ? static_cast<uint8_t>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      out += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> TrainBpe(std::span<const std::string_view> texts,
                                          const BpeTrainerOptions& options) {
  K3_RETURN_IF_ERROR(Check(texts, options));
  std::vector<Word> words = CountWords(texts);
  size_t places = 1;
  for (const Word& word : words) places += word.bytes.size() + 1;
  if (places > std::numeric_limits<uint32_t>::max()) {
    return ResourceExhausted(fmt::format(
        "the distinct words of the texts are {} bytes, expected less than 4 GiB; train on a part "
        "of the texts",
        places));
  }
  Trainer trainer(std::move(words), options);
  return trainer.Run();
}

std::string FormatTiktokenFile(std::span<const std::string> tokens) {
  std::string out;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    out += fmt::format("{} {}\n", Base64(tokens[rank]), rank);
  }
  return out;
}

}  // namespace k3

#include "data/packed_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace k3 {
namespace {

/// What an epoch draws, each from a stream of its own.
enum class Draw : uint64_t { kDocuments = 0, kOpening = 1, kSequences = 2 };
constexpr uint64_t kStreamsPerEpoch = 4;
/// More than any run has, and far from where counting them overflows.
constexpr int64_t kEpochMax = int64_t{1} << 40;

Random RandomOf(uint64_t seed, int64_t epoch, Draw draw) {
  return {seed, static_cast<uint64_t>(epoch) * kStreamsPerEpoch + static_cast<uint64_t>(draw)};
}

/// 0 to count - 1 in random order (Fisher and Yates).
void Shuffle(int64_t count, Random random, std::vector<int64_t>& order) {
  order.resize(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.NextBelow(i)]);
}

}  // namespace

PackedBatches::PackedBatches(const Corpus& corpus, const PackingOptions& options)
    : corpus_(&corpus),
      options_(options),
      fingerprint_(corpus.Fingerprint()),
      sequences_count_((corpus.tokens_count() - 1) / options.sequence_length) {
  StartEpoch(0);
}

Result<PackedBatches> PackedBatches::Create(const Corpus& corpus, const PackingOptions& options) {
  const int64_t length = options.sequence_length;
  const int64_t tokens = corpus.tokens_count();
  if (length < 1) {
    return InvalidArgument(fmt::format("sequence length: expected at least 1, found {}", length));
  }
  if (tokens == 0) {
    return InvalidArgument("the training data have no tokens; give at least one text or chat file");
  }
  // Not length + 1, which the largest length would overflow.
  if (tokens <= length) {
    const std::string advice =
        tokens > 1 ? fmt::format(" or lower the sequence length to at most {}", tokens - 1) : "";
    return InvalidArgument(fmt::format(
        "the training data have {} tokens in {} documents, one sequence of length {} needs {}; "
        "give more text{}",
        tokens, corpus.documents_count(), length, static_cast<uint64_t>(length) + 1, advice));
  }
  if (corpus.CountSupervisedTargets() == 0) {
    return InvalidArgument(
        fmt::format("the training data have {} tokens in {} documents, but none that can be "
                    "learned: expected a document with a supervised token behind its first",
                    tokens, corpus.documents_count()));
  }
  return PackedBatches(corpus, options);
}

void PackedBatches::StartEpoch(int64_t epoch) {
  epoch_ = epoch;
  next_ = 0;
  const int64_t documents_count = corpus_->documents_count();
  Shuffle(documents_count, RandomOf(options_.seed, epoch, Draw::kDocuments), documents_);
  stream_starts_.assign(1, 0);
  for (const int64_t document : documents_) {
    stream_starts_.push_back(stream_starts_.back() + std::ssize(corpus_->Document(document)));
  }
  Random opening = RandomOf(options_.seed, epoch, Draw::kOpening);
  opened_at_ =
      static_cast<int64_t>(opening.NextBelow(static_cast<uint64_t>(corpus_->tokens_count())));
  Shuffle(sequences_count_, RandomOf(options_.seed, epoch, Draw::kSequences), sequences_);
}

PackedSequence PackedBatches::Cut(int64_t sequence) const {
  const int64_t tokens = corpus_->tokens_count();
  const int64_t length = options_.sequence_length;
  PackedSequence cut;
  cut.ids.reserve(static_cast<size_t>(length) + 1);
  cut.segment_starts.push_back(0);
  cut.supervised.reserve(static_cast<size_t>(length));

  // At most 2 tokens - 2, so there is no overflow.
  int64_t ring_at = (opened_at_ + sequence * length) % tokens;
  auto at = static_cast<size_t>(std::ranges::upper_bound(stream_starts_, ring_at) -
                                stream_starts_.begin() - 1);
  while (std::ssize(cut.ids) <= length) {
    const int64_t document_at = ring_at - stream_starts_[at];
    const int64_t place = corpus_->DocumentStart(documents_[at]) + document_at;
    const int64_t count =
        std::min(stream_starts_[at + 1] - ring_at, length + 1 - std::ssize(cut.ids));
    const auto ids = corpus_->ids().subspan(static_cast<size_t>(place), static_cast<size_t>(count));
    const int64_t begin = std::ssize(cut.ids);
    // A document that begins with the last target has no input here.
    if (document_at == 0 && begin > 0 && begin < length) cut.segment_starts.push_back(begin);
    for (int64_t i = 0; i < count; ++i) {
      if (begin + i == 0) continue;  // the first id is no target
      cut.supervised.push_back(document_at + i > 0 && corpus_->IsSupervised(place + i) ? 1 : 0);
      cut.supervised_count += cut.supervised.back();
    }
    cut.ids.insert(cut.ids.end(), ids.begin(), ids.end());
    ring_at += count;
    if (ring_at == stream_starts_[at + 1]) ++at;
    if (ring_at == tokens) {
      ring_at = 0;
      at = 0;
    }
  }
  return cut;
}

PackedSequence PackedBatches::Next() {
  // Ends: there is a supervised target (Create), and an epoch leaves it out only for some of the
  // places at which its ring may be opened.
  for (;;) {
    if (next_ == sequences_count_) StartEpoch(epoch_ + 1);
    PackedSequence cut = Cut(sequences_[static_cast<size_t>(next_++)]);
    if (cut.supervised_count > 0) return cut;
  }
}

PackingState PackedBatches::state() const {
  return {options_.seed, fingerprint_, options_.sequence_length, epoch_, next_};
}

Status PackedBatches::Seek(const PackingState& state) {
  if (state.fingerprint != fingerprint_) {
    return InvalidArgument(
        fmt::format("the training data are others than before: expected the fingerprint {:016x}, "
                    "found {:016x}; give the same files, options and tokenizer as before",
                    state.fingerprint, fingerprint_));
  }
  if (state.sequence_length != options_.sequence_length) {
    return InvalidArgument(fmt::format("sequence length: expected {} as before, found {}",
                                       state.sequence_length, options_.sequence_length));
  }
  if (state.epoch < 0 || state.epoch > kEpochMax || state.sequence < 0 ||
      state.sequence > sequences_count_) {
    return InvalidArgument(
        fmt::format("position in the training data: expected an epoch from 0 to {} and a sequence "
                    "from 0 to {}, found epoch {} and sequence {}",
                    kEpochMax, sequences_count_, state.epoch, state.sequence));
  }
  options_.seed = state.seed;
  StartEpoch(state.epoch);
  next_ = state.sequence;
  return OkStatus();
}

PackedSequence WindowSequence(const Corpus& corpus, const TokenWindow& window) {
  K3_CHECK(
      window.begin >= 0 && window.end - window.begin >= 2 && window.end <= corpus.tokens_count(),
      "a window has at least two ids of the corpus");
  PackedSequence sequence;
  const auto ids = corpus.ids().subspan(static_cast<size_t>(window.begin),
                                        static_cast<size_t>(window.end - window.begin));
  sequence.ids.assign(ids.begin(), ids.end());
  sequence.segment_starts.push_back(0);
  for (int64_t place = window.begin + 1; place < window.end; ++place) {
    sequence.supervised.push_back(corpus.IsSupervised(place) ? 1 : 0);
    sequence.supervised_count += sequence.supervised.back();
  }
  return sequence;
}

}  // namespace k3

#include "data/packed_batches.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"

namespace k3 {
namespace {

/// Documents of these lengths in which every id is its own place, so that a sequence tells where it
/// comes from. With `masked`, about half of the ids are supervised.
Corpus PlaceCorpus(const std::vector<int64_t>& lengths, bool masked = false) {
  Corpus corpus;
  Random random(9, 0);
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(corpus.tokens_count()));
    std::vector<uint8_t> mask;
    for (int64_t i = 0; i < length; ++i) mask.push_back(random.NextBelow(2) == 0);
    if (masked) {
      corpus.AddDocument(ids, mask);
    } else {
      corpus.AddDocument(ids);
    }
  }
  return corpus;
}

std::set<int64_t> FirstPlaces(const Corpus& corpus) {
  std::set<int64_t> places;
  for (int64_t i = 0; i < corpus.documents_count(); ++i) places.insert(corpus.DocumentStart(i));
  return places;
}

PackedBatches Make(const Corpus& corpus, int64_t length, uint64_t seed = 1) {
  Result<PackedBatches> batches =
      PackedBatches::Create(corpus, {.sequence_length = length, .seed = seed});
  EXPECT_TRUE(batches.ok()) << batches.status().ToString();
  return std::move(batches).value();
}

/// The sequences of epochs 0 to `epochs - 1`.
std::vector<std::vector<PackedSequence>> ReadEpochs(PackedBatches batches, size_t epochs) {
  std::vector<std::vector<PackedSequence>> read(epochs);
  for (;;) {
    PackedSequence sequence = batches.Next();
    const auto epoch = static_cast<size_t>(batches.state().epoch);
    if (epoch >= epochs) return read;
    read[epoch].push_back(std::move(sequence));
  }
}

/// Everything that one sequence must hold by itself.
void CheckSequence(const Corpus& corpus, int64_t length, const PackedSequence& sequence) {
  const std::set<int64_t> first_places = FirstPlaces(corpus);
  ASSERT_EQ(std::ssize(sequence.ids), length + 1);
  ASSERT_EQ(std::ssize(sequence.supervised), length);
  std::vector<int64_t> starts = {0};
  int64_t count = 0;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t target = sequence.ids[static_cast<size_t>(i + 1)];
    const bool begins = first_places.contains(target);
    if (begins && i + 1 < length) starts.push_back(i + 1);
    // Within a document places follow each other.
    EXPECT_TRUE(begins || target == sequence.ids[static_cast<size_t>(i)] + 1) << target;
    const bool supervised = !begins && corpus.IsSupervised(target);
    EXPECT_EQ(sequence.supervised[static_cast<size_t>(i)], supervised ? 1 : 0);
    count += supervised ? 1 : 0;
  }
  EXPECT_EQ(sequence.segment_starts, starts);
  EXPECT_EQ(sequence.supervised_count, count);
  EXPECT_GT(count, 0);
}

/// The supervised targets of an epoch come once, but for those that one remainder may take.
void CheckEpoch(const Corpus& corpus, int64_t length, const std::vector<PackedSequence>& epoch) {
  std::multiset<int64_t> seen;
  for (const PackedSequence& sequence : epoch) {
    CheckSequence(corpus, length, sequence);
    for (size_t i = 0; i < sequence.supervised.size(); ++i) {
      if (sequence.supervised[i] != 0) seen.insert(sequence.ids[i + 1]);
    }
  }
  const std::set<int64_t> distinct(seen.begin(), seen.end());
  EXPECT_EQ(seen.size(), distinct.size()) << "a target came twice";
  const int64_t missing = corpus.CountSupervisedTargets() - std::ssize(distinct);
  EXPECT_GE(missing, 0);
  EXPECT_LE(missing, (corpus.tokens_count() - 1) % length + 1);
}

TEST(PackedBatchesTest, EveryTargetComesOnceAnEpoch) {
  Random random(4, 0);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths;
    for (uint64_t i = 1 + random.NextBelow(8); i > 0; --i) {
      const uint64_t longest = random.NextBelow(4) == 0 ? 60 : 9;
      lengths.push_back(static_cast<int64_t>(1 + random.NextBelow(longest)));
    }
    const Corpus corpus = PlaceCorpus(lengths, random.NextBelow(2) == 0);
    if (corpus.tokens_count() < 2 || corpus.CountSupervisedTargets() == 0) continue;
    const auto length = static_cast<int64_t>(
        1 +
        random.NextBelow(static_cast<uint64_t>(std::min<int64_t>(corpus.tokens_count() - 1, 20))));
    SCOPED_TRACE(
        fmt::format("round {}, {} tokens, length {}", round, corpus.tokens_count(), length));
    const PackedBatches batches = Make(corpus, length, random.NextUint64());
    EXPECT_EQ(batches.sequences_per_epoch(), (corpus.tokens_count() - 1) / length);
    for (const auto& epoch : ReadEpochs(batches, 3)) CheckEpoch(corpus, length, epoch);
  }
}

TEST(PackedBatchesTest, ShapesOfTinyCorpora) {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t length;
  };
  for (const Case& one :
       {Case{{2}, 1}, Case{{5}, 4}, Case{{5}, 1}, Case{{1, 1, 2}, 1}, Case{{1, 1, 2}, 3},
        Case{{5, 5, 5}, 4}, Case{{1, 9, 1, 1}, 4}, Case{{6}, 4}, Case{{100, 1}, 4}}) {
    const Corpus corpus = PlaceCorpus(one.lengths);
    SCOPED_TRACE(fmt::format("{} tokens, length {}", corpus.tokens_count(), one.length));
    PackedBatches batches = Make(corpus, one.length);
    for (int i = 0; i < 50; ++i) CheckSequence(corpus, one.length, batches.Next());
  }
}

TEST(PackedBatchesTest, SequencesWithoutATargetAreSkipped) {
  // One token in 61 can be learned.
  Corpus corpus = PlaceCorpus(std::vector<int64_t>(30, 1));
  corpus.AddDocument(std::vector<int32_t>{30, 31}, std::vector<uint8_t>{0, 1});
  for (int32_t i = 32; i < 61; ++i) corpus.AddDocument(std::vector<int32_t>{i});
  PackedBatches batches = Make(corpus, 4);
  int64_t last_epoch = -1;
  for (int i = 0; i < 50; ++i) {
    CheckSequence(corpus, 4, batches.Next());
    EXPECT_GT(batches.state().epoch, last_epoch) << "a target came twice in an epoch";
    last_epoch = batches.state().epoch;
  }
}

TEST(PackedBatchesTest, ALongDocumentIsCutElsewhereEachEpoch) {
  const Corpus corpus = PlaceCorpus({101});
  constexpr int64_t kLength = 10;
  std::set<int64_t> grids;
  std::set<int64_t> targets;
  int64_t orders_in_line = 0;
  for (const auto& epoch : ReadEpochs(Make(corpus, kLength), 60)) {
    ASSERT_EQ(epoch.size(), 10);
    std::vector<int64_t> begins;
    for (const PackedSequence& sequence : epoch) {
      begins.push_back(sequence.ids[0]);
      for (size_t i = 0; i < sequence.supervised.size(); ++i) {
        if (sequence.supervised[i] != 0) targets.insert(sequence.ids[i + 1]);
      }
    }
    // The sequence that the end of the document ends and its beginning goes on is on a grid of its
    // own, so the lowest beginning may be of either; the highest is always on the first grid.
    grids.insert(*std::ranges::max_element(begins) % kLength);
    orders_in_line += std::ranges::is_sorted(begins) ? 1 : 0;
  }
  // 60 draws of 10 offsets miss one of them with a chance of 2 %, two with less than 0.1 %; what is
  // drawn is fixed by the seed.
  EXPECT_GE(grids.size(), 9);
  EXPECT_EQ(targets.size(), 100) << "every token but the first is learned some time";
  EXPECT_EQ(orders_in_line, 0);
}

TEST(PackedBatchesTest, DependsOnSeedAndPositionAlone) {
  const Corpus corpus = PlaceCorpus({40, 3, 1, 17, 25});
  const auto once = ReadEpochs(Make(corpus, 6, 11), 3);
  EXPECT_EQ(once, ReadEpochs(Make(corpus, 6, 11), 3));
  EXPECT_NE(once, ReadEpochs(Make(corpus, 6, 12), 3));
  EXPECT_NE(once[0], once[1]);
  EXPECT_NE(once[1], once[2]);
  // A checkpoint outlives the program: these must stay.
  EXPECT_EQ(once[0][0].ids, (std::vector<int32_t>{25, 26, 27, 28, 29, 30, 31}));
  EXPECT_EQ(once[2][1].ids, (std::vector<int32_t>{55, 56, 57, 58, 59, 60, 40}));
}

TEST(PackedBatchesTest, GoesOnFromAnyState) {
  const Corpus corpus = PlaceCorpus({40, 3, 1, 17, 25, 1, 1, 1, 1, 1, 1}, true);
  PackedBatches batches = Make(corpus, 5, 21);
  std::vector<PackingState> states;
  std::vector<PackedSequence> sequences;
  for (int i = 0; i < 60; ++i) {
    states.push_back(batches.state());
    sequences.push_back(batches.Next());
  }
  ASSERT_GT(states.back().epoch, 2);
  PackedBatches other = Make(corpus, 5, 99);
  for (size_t i = states.size(); i-- > 0;) {
    ASSERT_TRUE(other.Seek(states[i]).ok());
    EXPECT_EQ(other.state(), states[i]);
    for (size_t k = i; k < std::min(i + 20, sequences.size()); ++k) {
      EXPECT_EQ(other.Next(), sequences[k]) << "from " << i << " to " << k;
    }
  }
}

TEST(PackedBatchesTest, RefusesDataThatCannotBeCut) {
  const auto message = [](const Corpus& corpus, int64_t length) {
    const Status status = PackedBatches::Create(corpus, {.sequence_length = length}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message(PlaceCorpus({5}), 0), "sequence length: expected at least 1, found 0");
  EXPECT_EQ(message(Corpus(), 4),
            "the training data have no tokens; give at least one text or chat file");
  EXPECT_EQ(message(PlaceCorpus({4, 8}), 12),
            "the training data have 12 tokens in 2 documents, one sequence of length 12 needs 13; "
            "give more text or lower the sequence length to at most 11");
  EXPECT_EQ(message(PlaceCorpus({1}), std::numeric_limits<int64_t>::max()),
            "the training data have 1 tokens in 1 documents, one sequence of length "
            "9223372036854775807 needs 9223372036854775808; give more text");
  EXPECT_EQ(
      message(PlaceCorpus({1, 1, 1}), 2),
      "the training data have 3 tokens in 3 documents, but none that can be learned: expected "
      "a document with a supervised token behind its first");
}

TEST(PackedBatchesTest, RefusesAStateOfOtherDataAndStaysWhereItIs) {
  const Corpus corpus = PlaceCorpus({50});
  PackedBatches batches = Make(corpus, 5);
  batches.Next();
  const PackingState before = batches.state();
  const auto message = [&](PackingState state) {
    const Status status = batches.Seek(state);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(batches.state(), before);
    return status.message();
  };
  PackingState state = Make(PlaceCorpus({25, 25}), 5).state();
  EXPECT_EQ(message(state),
            fmt::format("the training data are others than before: expected the fingerprint "
                        "{:016x}, found {:016x}; give the same files, options and tokenizer as "
                        "before",
                        state.fingerprint, before.fingerprint));
  state = before;
  state.sequence_length = 6;
  EXPECT_EQ(message(state), "sequence length: expected 6 as before, found 5");
  for (const auto& [epoch, sequence] : {std::pair<int64_t, int64_t>{-1, 0},
                                        {0, -1},
                                        {0, 10},
                                        {std::numeric_limits<int64_t>::max(), 0}}) {
    state = before;
    state.epoch = epoch;
    state.sequence = sequence;
    EXPECT_NE(message(state).find("position in the training data: expected"), std::string::npos);
  }
}

TEST(WindowSequenceTest, IsOneSegment) {
  Corpus corpus = PlaceCorpus({3});
  corpus.AddDocument(std::vector<int32_t>{3, 4, 5, 6, 7}, std::vector<uint8_t>{1, 0, 1, 1, 0});
  const PackedSequence sequence = WindowSequence(corpus, {3, 7});
  EXPECT_EQ(sequence, (PackedSequence{.ids = {3, 4, 5, 6},
                                      .segment_starts = {0},
                                      .supervised = {0, 1, 1},
                                      .supervised_count = 2}));
}

}  // namespace
}  // namespace k3

#include "train/training_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "train/state_test_util.h"

namespace k3::train {
namespace {

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// A run of a few steps on made-up gradients.
class TestRun {
 public:
  explicit TestRun(int threads = 1, const std::string& json = FullConfigJson(),
                   const OptimizerOptions& options = {})
      : pool_(threads), set(ParsedConfig(json)), optimizer(&pool_, &kernels_, options, &set) {
    set.Initialise(&pool_, 1);
    Bias()[2] = 0.25f;
  }
  void Steps(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      FillGradients(&set, static_cast<uint64_t>(i));
      optimizer.Step(1e-2f, std::vector<float>(4, 150.0f));
    }
  }
  std::span<float> Bias() {
    return set.Master(*set.Lookup("layers.1.block_sparse_moe.gate.e_score_correction_bias"));
  }

 private:
  ThreadPool pool_;
  kernels::KernelTable kernels_ = kernels::Kernels(BestSimdTarget());

 public:
  ParameterSet set;
  Optimizer optimizer;
};

class TrainingStateTest : public ::testing::Test {
 protected:
  Status Save(TestRun& run, FileSystem& files, int64_t step = 3) {
    return SaveTrainingState(files, path_, {step, 4096, R"({"shard": "é", "at": 7})", "f00d"},
                             run.set, run.optimizer);
  }
  Result<TrainingProgress> Load(TestRun& run, std::string_view fingerprint = "f00d") {
    return LoadTrainingState(*files_, path_, fingerprint, &run.set, &run.optimizer);
  }
  /// Loading must fail so and leave the run as it was.
  void ExpectRefused(TestRun& run, StatusCode code, std::string_view words,
                     std::string_view fingerprint = "f00d") {
    const std::vector<float> before(run.set.masters().begin(), run.set.masters().end());
    const auto loaded = Load(run, fingerprint);
    EXPECT_EQ(loaded.status().code(), code) << loaded.status().ToString();
    EXPECT_NE(loaded.status().message().find(words), std::string::npos)
        << loaded.status().message();
    EXPECT_NE(loaded.status().message().find(path_), std::string::npos);
    EXPECT_TRUE(SameBits(before, run.set.masters()));
    EXPECT_EQ(run.optimizer.steps(), 0);
  }
  std::string Content() { return *ReadWholeFile(*files_, path_, int64_t{1} << 30); }
  void Write(const std::string& content) {
    ASSERT_TRUE(WriteFileAtomically(*files_, path_, content).ok());
  }
  void Replace(const std::string& from, const std::string& to) {
    std::string content = Content();
    const size_t at = content.find(from);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(from.size(), to.size());
    Write(content.replace(at, from.size(), to));
  }

  TestDirectory directory_{"k3_training_state_test"};
  std::string path_ = directory_.path() + "/state.safetensors";
  std::unique_ptr<FileSystem> files_ = MakeRealFileSystem();
};

TEST_F(TrainingStateTest, ALoadedRunGoesOnToTheSameBits) {
  for (const OptimizerKind kind : {OptimizerKind::kMuon, OptimizerKind::kAdamW}) {
    const OptimizerOptions options{.kind = kind};
    TestRun whole(1, FullConfigJson(), options);
    whole.Steps(0, 3);
    const Status saved = Save(whole, *files_);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    whole.Steps(3, 6);
    TestRun resumed(3, FullConfigJson(), options);
    const auto progress = Load(resumed);
    ASSERT_TRUE(progress.ok()) << progress.status().ToString();
    EXPECT_EQ(progress->step, 3);
    EXPECT_EQ(progress->tokens, 4096);
    EXPECT_EQ(progress->data_state, R"({"shard": "é", "at": 7})");
    EXPECT_EQ(progress->fingerprint, "f00d");
    EXPECT_EQ(resumed.optimizer.steps(), 3);
    EXPECT_EQ(resumed.Bias()[2], 0.25f);
    resumed.Steps(3, 6);
    EXPECT_TRUE(SameBits(whole.set.masters(), resumed.set.masters()));
  }
}

TEST_F(TrainingStateTest, WhatDoesNotFitIsRefused) {
  TestRun run;
  ExpectRefused(run, StatusCode::kNotFound, "state.safetensors");
  ASSERT_TRUE(Save(run, *files_).ok());
  ExpectRefused(run, StatusCode::kInvalidArgument, "fingerprint: expected", "beef");
  EXPECT_TRUE(Load(run, "").ok());
  TestRun adamw(1, FullConfigJson(), {.kind = OptimizerKind::kAdamW});
  ExpectRefused(adamw, StatusCode::kInvalidArgument, "moment1.");
  TestRun plain(1, PlainConfigJson());
  ExpectRefused(plain, StatusCode::kInvalidArgument, "optimizer that wrote it");
  // A state with more than this run has.
  TestRun more(
      1, TinyConfigJson(R"("num_shared_experts": 2,)", R"("use_full_rank_gate": false,)", true));
  ASSERT_TRUE(Save(more, *files_).ok());
  ExpectRefused(plain, StatusCode::kInvalidArgument, "found");
}

TEST_F(TrainingStateTest, DamageIsSeenBeforeAnythingChanges) {
  TestRun run;
  TestRun other;
  other.Steps(0, 1);
  ASSERT_TRUE(Save(other, *files_).ok());
  const std::string good = Content();
  const size_t data = good.size() - 4 * other.set.masters().size();
  for (size_t at = data; at < good.size(); at += good.size() / 11) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    Write(bad);
    ExpectRefused(run, StatusCode::kCorruption, "checksum");
  }
  Write(good.substr(0, good.size() - 4));
  ExpectRefused(run, StatusCode::kCorruption, "");
  Write("no state");
  ExpectRefused(run, StatusCode::kCorruption, "");
  Write(good);
  Replace(R"("version":"1")", R"("version":"2")");
  ExpectRefused(run, StatusCode::kInvalidArgument, "version: expected");
  Write(good);
  Replace(R"("format":"k3-training")", R"("format":"k4-training")");
  ExpectRefused(run, StatusCode::kInvalidArgument, "format: expected");
  Write(good);
  Replace(R"("step":"3")", R"("step":"x")");
  ExpectRefused(run, StatusCode::kCorruption, "step: expected a whole number");
  Write(good);
  Replace(R"("tokens")", R"("tokans")");
  ExpectRefused(run, StatusCode::kCorruption, "expected the field tokens");
  Write(good);
  EXPECT_TRUE(Load(run).ok());
}

TEST_F(TrainingStateTest, AFailureAtAnyMomentLeavesAWholeState) {
  using Fault = FaultyFiles::Fault;
  TestRun old_run(1, PlainConfigJson());
  TestRun new_run(1, PlainConfigJson());
  new_run.Steps(0, 1);
  TestRun loaded(1, PlainConfigJson());
  for (const Fault fault : {Fault::kDiskFull, Fault::kShortWrite, Fault::kKilled}) {
    bool failed = true;
    int64_t step = 11, old_left = 0;
    for (int64_t allowed = 0; failed; allowed += step) {
      SCOPED_TRACE(allowed);
      ASSERT_TRUE(Save(old_run, *files_, 1).ok());
      FaultyFiles faulty(fault, allowed);
      const Status status = Save(new_run, faulty, 2);
      failed = faulty.failed();
      EXPECT_EQ(status.ok(), !failed);
      const auto progress = Load(loaded);
      ASSERT_TRUE(progress.ok()) << progress.status().ToString();
      const TestRun& expected = progress->step == 1 ? old_run : new_run;
      EXPECT_TRUE(SameBits(loaded.set.masters(), expected.set.masters()));
      if (!failed) {
        EXPECT_EQ(progress->step, 2);
      }
      old_left += progress->step == 1 ? 1 : 0;
      if (allowed > 400) step = 1;
      if (fault != Fault::kKilled) {
        EXPECT_EQ(directory_.Names().size(), 1u);
      }
    }
    EXPECT_GT(old_left, 20);
  }
}

TEST(FingerprintTest, StandsForItsText) {
  // XXH3's published value for an empty text and seed 0.
  EXPECT_EQ(Fingerprint(""), "2d06800538d394c2");
  EXPECT_EQ(Fingerprint("a"), Fingerprint("a"));
  EXPECT_NE(Fingerprint("a"), Fingerprint("b"));
}

}  // namespace
}  // namespace k3::train

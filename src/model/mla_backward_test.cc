// MLA's training forward and gradient against the formulas in float64 and central differences of
// them, and bit for bit against the inference forward, other thread counts and SIMD targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/mla.h"
#include "ops/linear.h"

namespace k3::model {
namespace {

using Doubles = std::vector<double>;

/// What has a gradient: the weights, and the input rows as the last.
enum Kind { kQ, kQA, kQB, kKvA, kKvB, kGate, kOutput, kQNorm, kKvNorm, kX, kKindsCount };
constexpr const char* kNames[kKindsCount] = {"q",    "q_a",    "q_b",    "kv_a",    "kv_b",
                                             "gate", "output", "q_norm", "kv_norm", "x"};

struct Shape {
  int64_t hidden = 36;
  MlaConfig mla = {.heads = 3,
                   .q_lora_rank = 24,
                   .kv_lora_rank = 40,
                   .qk_nope_dim = 20,
                   .qk_rope_dim = 8,
                   .v_dim = 24,
                   .output_gate = true};
  std::vector<int64_t> segments = {5, 19, 1, 33};
};

int64_t TokensCount(const Shape& shape) {
  int64_t count = 0;
  for (int64_t length : shape.segments) count += length;
  return count;
}

/// Rows and columns of a kind; no rows where the variant has none.
std::pair<int64_t, int64_t> SizeOf(const Shape& shape, int kind) {
  const MlaConfig& m = shape.mla;
  const int64_t d = shape.hidden, query = m.heads * (m.qk_nope_dim + m.qk_rope_dim);
  const bool low = m.q_lora_rank > 0;
  switch (kind) {
    case kQ:
      return {low ? 0 : query, d};
    case kQA:
      return {m.q_lora_rank, d};
    case kQB:
      return {low ? query : 0, m.q_lora_rank};
    case kKvA:
      return {m.kv_lora_rank + m.qk_rope_dim, d};
    case kKvB:
      return {m.heads * (m.qk_nope_dim + m.v_dim), m.kv_lora_rank};
    case kGate:
      return {m.output_gate ? m.heads * m.v_dim : 0, d};
    case kOutput:
      return {d, m.heads * m.v_dim};
    case kQNorm:
      return {1, m.q_lora_rank};
    case kKvNorm:
      return {1, m.kv_lora_rank};
    default:
      return {TokensCount(shape), d};
  }
}

/// Random weights and input of a shape, and random factors of the outputs: loss = sum(c out).
struct Problem {
  explicit Problem(const Shape& of) : shape(of) {
    for (int kind = 0; kind < kKindsCount; ++kind) {
      const auto [rows, cols] = SizeOf(shape, kind);
      const bool norm = kind == kQNorm || kind == kKvNorm, matrix = !norm && kind != kX;
      Random random(5, static_cast<uint64_t>(kind));
      // Scores of about 3, so that the softmax is far from even.
      const bool sharp = kind == kQ || kind == kQB;
      const double size = matrix ? (sharp ? 3.0 : 1.0) / std::sqrt(double(cols)) : 1.0;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const double value = norm ? 1 + 0.3 * random.NextNormal() : size * random.NextNormal();
        values[kind].push_back(static_cast<float>(value));
      }
    }
    Random random(5, kKindsCount);
    for (int64_t i = 0; i < TokensCount(shape) * shape.hidden; ++i) {
      factors.push_back(random.NextNormal());
    }
  }

  ModelConfig Config() const {
    ModelConfig config;
    config.hidden_size = shape.hidden;
    config.layers = 1;
    config.is_mla = {true};
    config.mla = shape.mla;
    return config;
  }
  MlaParameters Parameters() const {
    const auto matrix = [&](int kind) {
      const auto [rows, cols] = SizeOf(shape, kind);
      if (rows == 0) return WeightMatrix{};
      return WeightMatrix{
          .data = values[kind].data(), .rows = rows, .cols = cols, .format = WeightFormat::kF32};
    };
    return {matrix(kQ),    matrix(kQA),     matrix(kQB),    matrix(kKvA),   matrix(kKvB),
            matrix(kGate), matrix(kOutput), values[kQNorm], values[kKvNorm]};
  }

  Shape shape;
  std::vector<float> values[kKindsCount];
  std::vector<float> factors;
};

Doubles Rms(const double* x, const Doubles& w) {
  double sum = 0;
  for (size_t i = 0; i < w.size(); ++i) sum += x[i] * x[i];
  const double r = 1 / std::sqrt(sum / static_cast<double>(w.size()) + double{kLowRankNormEps});
  Doubles y;
  for (size_t i = 0; i < w.size(); ++i) y.push_back(w[i] * x[i] * r);
  return y;
}

Doubles Multiply(const Doubles& w, const double* x, int64_t cols) {
  Doubles y(w.size() / static_cast<size_t>(cols));
  for (size_t r = 0; r < y.size(); ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r] += w[r * static_cast<size_t>(cols) + c] * x[c];
  }
  return y;
}

/// The block in float64, from the formulas.
struct Reference {
  Doubles out, log_sum, score_max;
};

/// Attention of one query; `keys` and `values` of its document up to it, for one head.
void Attend(const double* q, const std::vector<Doubles>& keys, const std::vector<Doubles>& values,
            double* out, double* log_sum, double* score_max) {
  Doubles scores;
  *score_max = -INFINITY;
  for (const Doubles& key : keys) {
    double dot = 0;
    for (size_t i = 0; i < key.size(); ++i) dot += q[i] * key[i];
    scores.push_back(dot / std::sqrt(static_cast<double>(key.size())));
    *score_max = std::max(*score_max, scores.back());
  }
  double sum = 0;
  for (double score : scores) sum += std::exp(score - *score_max);
  *log_sum = *score_max + std::log(sum);
  for (size_t s = 0; s < scores.size(); ++s) {
    const double p = std::exp(scores[s] - *log_sum);
    for (size_t i = 0; i < values[s].size(); ++i) out[i] += p * values[s][i];
  }
}

Reference RunReference(const Shape& shape, const Doubles (&w)[kKindsCount]) {
  const MlaConfig& m = shape.mla;
  const int64_t key = m.qk_nope_dim + m.qk_rope_dim, d = shape.hidden;
  Reference result;
  const double* x = w[kX].data();
  for (int64_t length : shape.segments) {
    std::vector<std::vector<Doubles>> keys(static_cast<size_t>(m.heads)), values = keys;
    for (int64_t t = 0; t < length; ++t, x += d) {
      const Doubles kv = Multiply(w[kKvA], x, d);
      const Doubles heads = Multiply(w[kKvB], Rms(kv.data(), w[kKvNorm]).data(), m.kv_lora_rank);
      Doubles q;
      if (m.q_lora_rank > 0) {
        const Doubles low = Multiply(w[kQA], x, d);
        q = Multiply(w[kQB], Rms(low.data(), w[kQNorm]).data(), m.q_lora_rank);
      } else {
        q = Multiply(w[kQ], x, d);
      }
      Doubles attended(static_cast<size_t>(m.heads * m.v_dim));
      for (int64_t h = 0; h < m.heads; ++h) {
        const auto head = heads.begin() + h * (m.qk_nope_dim + m.v_dim);
        Doubles k(head, head + m.qk_nope_dim);
        k.insert(k.end(), kv.begin() + m.kv_lora_rank, kv.end());
        keys[static_cast<size_t>(h)].push_back(k);
        values[static_cast<size_t>(h)].emplace_back(head + m.qk_nope_dim,
                                                    head + m.qk_nope_dim + m.v_dim);
        result.log_sum.push_back(0);
        result.score_max.push_back(0);
        Attend(q.data() + h * key, keys[static_cast<size_t>(h)], values[static_cast<size_t>(h)],
               attended.data() + h * m.v_dim, &result.log_sum.back(), &result.score_max.back());
      }
      if (m.output_gate) {
        const Doubles gate = Multiply(w[kGate], x, d);
        for (size_t i = 0; i < gate.size(); ++i) attended[i] /= 1 + std::exp(-gate[i]);
      }
      const Doubles y = Multiply(w[kOutput], attended.data(), m.heads * m.v_dim);
      result.out.insert(result.out.end(), y.begin(), y.end());
    }
  }
  return result;
}

struct RunOptions {
  int threads = 1;
  bool keep_tape = true;
  int calls = 1;  // of the backward pass, all into the same gradients
  SimdTarget target = BestSimdTarget();
};

/// What a training pass gives; gradients in the order of Kind.
struct Trained {
  std::vector<float> out, log_sum, score_max;
  std::vector<float> gradients[kKindsCount];
};

Trained Train(const Problem& problem, const RunOptions& options) {
  const Shape& shape = problem.shape;
  const ModelConfig config = problem.Config();
  const MlaParameters parameters = problem.Parameters();
  const kernels::KernelTable kernels = kernels::Kernels(options.target);
  ThreadPool pool(options.threads);
  Arena arena;
  // Scratch that holds NaN: whatever is read before it is written shows.
  constexpr int64_t kPoisonFloats = 4 << 20;
  std::fill_n(arena.Allocate<float>(kPoisonFloats), kPoisonFloats, NAN);
  arena.Reset();
  const ops::ExecContext exec{&pool, &arena, &kernels};
  const int64_t tokens = TokensCount(shape);
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  Batch batch;
  for (int64_t length : shape.segments) {
    batch.segments.push_back({.tokens = std::span(ids).first(static_cast<size_t>(length))});
  }
  Trained run;
  run.out.resize(static_cast<size_t>(tokens * shape.hidden));
  const float* x = problem.values[kX].data();
  MlaTape tape = MlaTape::Allocate(arena, shape.mla, tokens);
  const ops::RowSet rows = ops::SplitRows(exec, x, tokens, shape.hidden, shape.hidden);
  Mla(exec, config, parameters, 0, batch, rows, run.out.data(),
      options.keep_tape ? &tape : nullptr);
  if (options.keep_tape) {
    run.log_sum.assign(tape.log_sum, tape.log_sum + tokens * shape.mla.heads);
    run.score_max.assign(tape.score_max, tape.score_max + tokens * shape.mla.heads);
  }
  const auto gradient = [&](int kind) {
    const auto [r, c] = SizeOf(shape, kind);
    run.gradients[kind].resize(static_cast<size_t>(r * c));
    return GradientMatrix{run.gradients[kind].data(), r, c};
  };
  MlaGradients gradients{gradient(kQ),
                         gradient(kQA),
                         gradient(kQB),
                         gradient(kKvA),
                         gradient(kKvB),
                         gradient(kGate),
                         gradient(kOutput),
                         Vector(problem.values[kQNorm].size()),
                         Vector(problem.values[kKvNorm].size())};
  // dx is overwritten, whatever stands there.
  run.gradients[kX].assign(problem.values[kX].size(), NAN);
  for (int i = 0; i < options.calls; ++i) {
    MlaBackward(exec, config, parameters, batch, x, options.keep_tape ? &tape : nullptr,
                problem.factors.data(), run.gradients[kX].data(), gradients);
  }
  run.gradients[kQNorm] = gradients.q_norm;
  run.gradients[kKvNorm] = gradients.kv_norm;
  return run;
}

/// The same tokens through the inference forward, prefill form.
std::vector<float> Infer(const Problem& problem) {
  const Shape& shape = problem.shape;
  const ModelConfig config = problem.Config();
  const kernels::KernelTable kernels = kernels::Kernels(BestSimdTarget());
  ThreadPool pool(2);
  Arena arena;
  const ops::ExecContext exec{&pool, &arena, &kernels};
  const int64_t tokens = TokensCount(shape);
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::vector<cache::SequenceState> states;
  for (size_t i = 0; i < shape.segments.size(); ++i) states.emplace_back(config);
  Batch batch;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto length = static_cast<size_t>(shape.segments[i]);
    batch.segments.push_back({&states[i], std::span(ids).first(length)});
  }
  std::vector<float> out(static_cast<size_t>(tokens * shape.hidden));
  const ops::RowSet rows =
      ops::SplitRows(exec, problem.values[kX].data(), tokens, shape.hidden, shape.hidden);
  Mla(exec, config, problem.Parameters(), 0, batch, rows, out.data(), nullptr);
  return out;
}

double RootMeanSquare(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += double{value} * value;
  return std::sqrt(sum / std::max<double>(1, static_cast<double>(x.size())));
}

double LargestError(const std::vector<float>& found, const Doubles& expected) {
  double largest = 0;
  EXPECT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::fabs(found[i] - expected[i]));
  }
  return largest;
}

/// Loss in float64, as a function of the weights.
double Loss(const Problem& problem, const Doubles (&w)[kKindsCount]) {
  const Reference reference = RunReference(problem.shape, w);
  double loss = 0;
  for (size_t i = 0; i < reference.out.size(); ++i) loss += reference.out[i] * problem.factors[i];
  return loss;
}

/// Central difference of the loss along `direction` of one kind. In float64 with this step its own
/// error is below 1e-8 of the derivative.
double Derivative(const Problem& problem, Doubles (&w)[kKindsCount], int kind,
                  const Doubles& direction) {
  constexpr double kStep = 1e-5;
  const Doubles saved = w[kind];
  double loss[2];
  for (int side = 0; side < 2; ++side) {
    const double step = side == 0 ? -kStep : kStep;
    for (size_t i = 0; i < saved.size(); ++i) w[kind][i] = saved[i] + step * direction[i];
    loss[side] = Loss(problem, w);
  }
  w[kind] = saved;
  return (loss[1] - loss[0]) / (2 * kStep);
}

struct Check {
  int elements_max = 20;  // of each kind, one by one
  int directions = 2;     // of each kind, all elements at once
};

void CheckGradients(const Shape& shape, const Check& check) {
  const Problem problem(shape);
  Doubles w[kKindsCount];
  for (int kind = 0; kind < kKindsCount; ++kind) {
    w[kind].assign(problem.values[kind].begin(), problem.values[kind].end());
  }
  const Trained run = Train(problem, {});
  const Reference reference = RunReference(shape, w);
  // Measured: 1.2e-6 for outputs of about 0.5, and 3.6e-6 for scores of up to 15.
  EXPECT_LT(LargestError(run.out, reference.out), 2e-5);
  EXPECT_LT(LargestError(run.log_sum, reference.log_sum), 2e-5);
  EXPECT_LT(LargestError(run.score_max, reference.score_max), 2e-5);

  for (int kind = 0; kind < kKindsCount; ++kind) {
    const std::vector<float>& gradient = run.gradients[kind];
    const size_t n = gradient.size();
    if (n == 0) continue;
    const double size = RootMeanSquare(gradient);
    ASSERT_GT(size, 0) << kNames[kind];
    Random random(9, static_cast<uint64_t>(kind));
    const auto compare = [&](const Doubles& direction, double found, double unit) {
      const double error =
          std::fabs(found - Derivative(problem, w, kind, direction)) / (size * unit);
      // Float32 sums: at most 4e-6 of the gradient's root mean square was measured.
      EXPECT_LT(error, 3e-5) << kNames[kind];
    };
    const bool small = n <= static_cast<size_t>(2 * check.elements_max);
    for (size_t i = 0; i < (small ? n : static_cast<size_t>(check.elements_max)); ++i) {
      const size_t at = small ? i : random.NextBelow(n);
      Doubles direction(n);
      direction[at] = 1;
      compare(direction, gradient[at], 1);
    }
    for (int i = 0; i < check.directions; ++i) {
      Doubles direction(n);
      double found = 0;
      for (size_t j = 0; j < n; ++j) {
        direction[j] = random.NextNormal();
        found += direction[j] * gradient[j];
      }
      compare(direction, found, std::sqrt(static_cast<double>(n)));
    }
  }
}

TEST(MlaBackwardTest, MatchesDifferencesInFloat64) { CheckGradients({}, {}); }

TEST(MlaBackwardTest, MatchesWithoutLowRankQueries) {
  Shape shape;
  shape.mla.q_lora_rank = 0;
  CheckGradients(shape, {});
}

TEST(MlaBackwardTest, MatchesWithoutOutputGate) {
  Shape shape;
  shape.mla.output_gate = false;
  CheckGradients(shape, {});
}

TEST(MlaBackwardTest, MatchesWithoutSharedDims) {
  Shape shape;
  shape.mla.qk_rope_dim = 0;
  CheckGradients(shape, {});
}

TEST(MlaBackwardTest, MatchesOverSeveralBlocks) {
  // More than one block of 256 tokens in the forward, five of 64 in the backward.
  Shape shape;
  shape.segments = {300};
  CheckGradients(shape, {.elements_max = 3, .directions = 2});
}

/// Names what differs between two runs, bit for bit; empty when nothing does.
std::string Difference(const Trained& a, const Trained& b) {
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), 4 * x.size()) == 0);
  };
  std::string names;
  if (!same(a.out, b.out)) names += " out";
  if (!a.log_sum.empty() && !b.log_sum.empty()) {
    if (!same(a.log_sum, b.log_sum)) names += " log_sum";
    if (!same(a.score_max, b.score_max)) names += " score_max";
  }
  for (int kind = 0; kind < kKindsCount; ++kind) {
    if (!same(a.gradients[kind], b.gradients[kind])) names += std::string(" ") + kNames[kind];
  }
  return names;
}

std::vector<Shape> Variants() {
  std::vector<Shape> shapes(4);
  shapes[0].segments = {37, 1, 256, 5, 257};
  shapes[1].segments = {700, 3};
  shapes[1].mla.q_lora_rank = 0;
  shapes[2].mla.output_gate = false;
  shapes[3].mla.qk_rope_dim = 0;
  return shapes;
}

TEST(MlaBackwardTest, TrainingForwardIsInferenceForward) {
  for (const Shape& shape : Variants()) {
    const Problem problem(shape);
    const std::vector<float> expected = Infer(problem);
    for (const bool keep_tape : {true, false}) {
      const Trained run = Train(problem, {.keep_tape = keep_tape, .calls = 0});
      ASSERT_EQ(run.out.size(), expected.size());
      EXPECT_EQ(std::memcmp(run.out.data(), expected.data(), 4 * expected.size()), 0);
    }
  }
}

TEST(MlaBackwardTest, BitsDependOnNeitherThreadsNorTape) {
  for (const Shape& shape : Variants()) {
    const Problem problem(shape);
    const Trained expected = Train(problem, {});
    for (const int threads : {1, 2, 3}) {
      for (const bool keep_tape : {true, false}) {
        const Trained run = Train(problem, {.threads = threads, .keep_tape = keep_tape});
        EXPECT_EQ(Difference(expected, run), "") << threads << " threads, tape " << keep_tape;
      }
    }
  }
}

TEST(MlaBackwardTest, BitsAreThoseOfEveryTarget) {
  for (const Shape& shape : {Variants()[0], Variants()[2]}) {
    const Problem problem(shape);
    const Trained expected = Train(problem, {});
    for (const SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
      if (!IsSupported(target)) continue;
      EXPECT_EQ(Difference(expected, Train(problem, {.target = target})), "")
          << static_cast<int>(target);
    }
  }
}

TEST(MlaBackwardTest, AddsToTheGradientsOfWeights) {
  const Problem problem({});
  const Trained once = Train(problem, {}), twice = Train(problem, {.calls = 2});
  for (int kind = 0; kind < kKindsCount; ++kind) {
    const double factor = kind == kX ? 1 : 2;
    const double size = RootMeanSquare(once.gradients[kind]);
    for (size_t i = 0; i < once.gradients[kind].size(); ++i) {
      // The second call's terms are added one by one to a larger start: rounding differs.
      EXPECT_NEAR(twice.gradients[kind][i], factor * once.gradients[kind][i], 1e-5 * size)
          << kNames[kind];
    }
  }
}

TEST(MlaBackwardTest, DocumentsDoNotSeeEachOther) {
  // The input's gradient of a document is the same alone and in a batch.
  Shape both, alone;
  both.segments = {70, 33};
  alone.segments = {70};
  const Problem problem(both);
  Problem part(alone);
  const size_t count = part.values[kX].size();
  std::copy_n(problem.values[kX].begin(), count, part.values[kX].begin());
  std::copy_n(problem.factors.begin(), count, part.factors.begin());
  const Trained whole = Train(problem, {}), first = Train(part, {});
  EXPECT_EQ(std::memcmp(whole.gradients[kX].data(), first.gradients[kX].data(), 4 * count), 0);
}

}  // namespace
}  // namespace k3::model

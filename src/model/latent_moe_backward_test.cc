// Gradients of the feed-forward blocks against central differences of the formulas in float64, and
// bit for bit: training forward and inference, any threads, SIMD target and tape.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/latent_moe.h"
#include "tensor/number_formats.h"

namespace k3::model {
namespace {

using Doubles = std::vector<double>;

/// What has a gradient: the weights, the experts' one behind the other, and the input rows.
enum Kind {
  kRouter,
  kLatentDown,
  kLatentUp,
  kLatentNorm,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kX,
  kKindsCount
};
constexpr const char* kNames[kKindsCount] = {
    "router",    "latent_down", "latent_up",   "latent_norm", "shared_gate",
    "shared_up", "shared_down", "expert_gate", "expert_up",   "expert_down",
    "x"};

struct Variant {
  std::string name;
  int64_t latent = 24;
  bool latent_norm = true;
  int64_t shared_experts = 2;
  bool renormalize = true;
  float routed_scaling_factor = 1.0f;
  float linear_beta = 3.0f;
  bool biased = true;
  bool mxfp8 = false;
  bool dense = false;  // a dense MLP of width shared_experts F alone
  int64_t experts_per_token = 3;
  uint64_t seed = 7;  // one that leaves no value on the border between two roundings or choices
};

constexpr int64_t kTokens = 37, kHidden = 40, kWidth = 20, kExperts = 8;
/// Nobody chooses this expert: its bias keeps it away.
constexpr int64_t kIdle = 5;

std::vector<Variant> Variants() {
  return {
      {.name = "Released"},
      {.name = "NoLatent", .latent = 0},
      {.name = "NoLatentNorm", .latent_norm = false},
      {.name = "NoShared", .shared_experts = 0},
      {.name = "RawScores", .renormalize = false},
      {.name = "Scaled", .routed_scaling_factor = 2.5f},
      {.name = "RawScaled", .renormalize = false, .routed_scaling_factor = 2.5f},
      {.name = "LinearUp", .linear_beta = 0.0f},
      {.name = "NoBias", .biased = false},
      {.name = "OneExpert", .experts_per_token = 1},
      {.name = "AllExperts", .biased = false, .experts_per_token = kExperts},
      {.name = "Bare", .latent = 0, .shared_experts = 0, .renormalize = false},
      {.name = "Mxfp8", .mxfp8 = true, .seed = 8},
      {.name = "Mxfp8NoNorm", .latent_norm = false, .linear_beta = 0.0f, .mxfp8 = true, .seed = 8},
      {.name = "Dense", .dense = true},
      {.name = "DenseLinearUp", .linear_beta = 0.0f, .dense = true}};
}

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::pair<int64_t, int64_t> SizeOf(const Variant& v, int kind) {
  const int64_t width = v.latent > 0 ? v.latent : kHidden, f = kWidth * v.shared_experts;
  const bool shared = kind >= kSharedGate && kind <= kSharedDown;
  if (v.dense && !shared && kind != kX) return {0, 0};
  switch (kind) {
    case kRouter:
      return {kExperts, kHidden};
    case kLatentDown:
      return {v.latent, kHidden};
    case kLatentUp:
      return {v.latent > 0 ? kHidden : 0, v.latent};
    case kLatentNorm:
      return {v.latent > 0 && v.latent_norm ? 1 : 0, v.latent};
    case kSharedGate:
    case kSharedUp:
      return {f, kHidden};
    case kSharedDown:
      return {f > 0 ? kHidden : 0, f};
    case kExpertGate:
    case kExpertUp:
      return {kExperts * kWidth, width};
    case kExpertDown:
      return {kExperts * width, kWidth};
    default:
      return {kTokens, kHidden};
  }
}

/// Random weights and input, and random factors of the outputs: loss = sum(c out).
struct Problem {
  explicit Problem(const Variant& of) : v(of) {
    for (int kind = 0; kind < kKindsCount; ++kind) {
      const auto [rows, cols] = SizeOf(v, kind);
      Random random(v.seed, static_cast<uint64_t>(kind));
      // Branches of SiTU reach into their saturation.
      const double gain = kind == kX || kind == kRouter ? 1.0 : 1.5;
      const double size = kind == kX ? gain : gain / std::sqrt(static_cast<double>(cols));
      for (int64_t i = 0; i < rows * cols; ++i) {
        const double normal = random.NextNormal();
        const double value = kind == kLatentNorm ? 1 + 0.3 * normal : size * normal;
        values[kind].push_back(static_cast<float>(value));
      }
    }
    Random random(v.seed, kKindsCount);
    for (int64_t i = 0; i < kTokens * kHidden; ++i) factors.push_back(random.NextNormal());
    for (int64_t e = 0; e < kExperts; ++e) {
      bias.push_back(v.biased ? 0.1f * random.NextNormal() : 0.0f);
    }
    if (v.biased) bias[kIdle] = -10.0f;
  }

  ModelConfig Config() const {
    ModelConfig config;
    config.hidden_size = kHidden;
    config.layers = 1;
    if (v.linear_beta != 0) config.situ_linear_beta = v.linear_beta;
    config.situ_beta = 2.0f;
    config.moe = {.experts = kExperts,
                  .experts_per_token = v.experts_per_token,
                  .shared_experts = v.shared_experts,
                  .intermediate = kWidth,
                  .latent = v.latent,
                  .latent_norm = v.latent_norm,
                  .renormalize = v.renormalize,
                  .routed_scaling_factor = v.routed_scaling_factor};
    return config;
  }

  /// Weights or gradients over arrays in the order of Kind.
  template <typename Matrix, typename Arrays>
  MoeParametersOf<Matrix> Bind(Arrays& arrays) const {
    const auto matrix = [&](int kind, int64_t part = 0, int64_t parts = 1) {
      auto [rows, cols] = SizeOf(v, kind);
      rows /= parts;
      Matrix m;
      if (rows == 0) return m;
      m.data = arrays[kind].data() + part * rows * cols;
      m.rows = rows;
      m.cols = cols;
      if constexpr (std::is_same_v<Matrix, WeightMatrix>) m.format = WeightFormat::kF32;
      return m;
    };
    MoeParametersOf<Matrix> p;
    p.router = matrix(kRouter);
    p.correction_bias = bias;
    p.latent_down = matrix(kLatentDown);
    p.latent_up = matrix(kLatentUp);
    p.latent_norm = arrays[kLatentNorm];
    p.shared = {matrix(kSharedGate), matrix(kSharedUp), matrix(kSharedDown)};
    for (int64_t e = 0; e < kExperts; ++e) {
      p.experts.push_back({matrix(kExpertGate, e, kExperts), matrix(kExpertUp, e, kExperts),
                           matrix(kExpertDown, e, kExperts)});
    }
    return p;
  }

  Variant v;
  std::vector<float> values[kKindsCount];
  std::vector<float> factors;
  std::vector<float> bias;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Doubles Multiply(const double* w, int64_t rows, const Doubles& x) {
  Doubles y(static_cast<size_t>(rows));
  const int64_t cols = std::ssize(x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r] += w[r * cols + c] * x[c];
  }
  return y;
}

/// The block in float64, from the formulas. The first run chooses the experts and, with MXFP8,
/// says by how much each rounding moves its value; later runs keep both, which makes the loss a
/// smooth function whose gradient is the straight-through one.
class Reference {
 public:
  explicit Reference(const Problem& problem) : problem_(problem), v_(problem.v) {
    for (int kind = 0; kind < kKindsCount; ++kind) {
      weights[kind].assign(problem.values[kind].begin(), problem.values[kind].end());
    }
    out = Run();
    first_ = false;
  }

  double Loss() {
    const Doubles result = Run();
    double loss = 0;
    for (size_t i = 0; i < result.size(); ++i) loss += result[i] * problem_.factors[i];
    return loss;
  }

  Doubles weights[kKindsCount];
  Doubles out;                  // of the first run
  std::vector<int32_t> chosen;  // [T, k] ascending
  double margin = INFINITY;     // between the last chosen and the first refused expert

 private:
  Doubles Run() {
    rounding_ = 0;
    Doubles result;
    for (int64_t t = 0; t < kTokens; ++t) {
      const Doubles x(weights[kX].begin() + t * kHidden, weights[kX].begin() + (t + 1) * kHidden);
      Doubles y(static_cast<size_t>(kHidden));
      if (!v_.dense) y = Routed(x, t);
      if (v_.shared_experts > 0) {
        const int64_t f = kWidth * v_.shared_experts;
        const Doubles shared = Multiply(weights[kSharedDown].data(), kHidden,
                                        Situ(Multiply(weights[kSharedGate].data(), f, x),
                                             Multiply(weights[kSharedUp].data(), f, x)));
        for (int64_t i = 0; i < kHidden; ++i) y[i] += shared[i];
      }
      result.insert(result.end(), y.begin(), y.end());
    }
    return result;
  }

  Doubles Situ(const Doubles& gate, const Doubles& up) const {
    Doubles y;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double b2 = double{v_.linear_beta};
      const double linear = b2 != 0 ? b2 * std::tanh(up[i] / b2) : up[i];
      y.push_back(2 * std::tanh(gate[i] / 2) * Sigmoid(gate[i]) * linear);
    }
    return y;
  }

  void Round(Doubles& row) {
    if (!v_.mxfp8) return;
    if (first_) {
      std::vector<float> rounded(row.begin(), row.end());
      FakeQuantMxfp8Row(rounded, rounded.data());
      for (size_t i = 0; i < row.size(); ++i) moved_.push_back(double{rounded[i]} - row[i]);
    }
    for (double& value : row) value += moved_[rounding_++];
  }

  void Choose(const Doubles& s) {
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    const auto biased = [&](int32_t e) { return s[e] + double{problem_.bias[e]}; };
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return biased(a) > biased(b); });
    const size_t k = static_cast<size_t>(v_.experts_per_token);
    if (k < order.size()) margin = std::min(margin, biased(order[k - 1]) - biased(order[k]));
    std::sort(order.begin(), order.begin() + k);
    chosen.insert(chosen.end(), order.begin(), order.begin() + k);
  }

  Doubles Routed(const Doubles& x, int64_t t) {
    Doubles s = Multiply(weights[kRouter].data(), kExperts, x);
    for (double& value : s) value = Sigmoid(value);
    if (first_) Choose(s);
    const int32_t* experts = chosen.data() + t * v_.experts_per_token;
    double sum = v_.renormalize ? 0 : 1;
    for (int64_t i = 0; v_.renormalize && i < v_.experts_per_token; ++i) sum += s[experts[i]];
    const int64_t width = v_.latent > 0 ? v_.latent : kHidden;
    Doubles z = v_.latent > 0 ? Multiply(weights[kLatentDown].data(), width, x) : x;
    if (v_.latent > 0) Round(z);
    Doubles routed(static_cast<size_t>(width));
    for (int64_t i = 0; i < v_.experts_per_token; ++i) {
      const int64_t e = experts[i], at = e * kWidth * width;
      Doubles hidden = Situ(Multiply(weights[kExpertGate].data() + at, kWidth, z),
                            Multiply(weights[kExpertUp].data() + at, kWidth, z));
      Round(hidden);
      const Doubles y = Multiply(weights[kExpertDown].data() + at, width, hidden);
      const double p = s[e] / sum * double{v_.routed_scaling_factor};
      for (int64_t c = 0; c < width; ++c) routed[c] += p * y[c];
    }
    if (v_.latent == 0) return routed;
    if (v_.latent_norm) {
      double squares = 0;
      for (double value : routed) squares += value * value;
      const double r = 1 / std::sqrt(squares / static_cast<double>(width) + double{1e-5f});
      for (int64_t c = 0; c < width; ++c) routed[c] *= r * weights[kLatentNorm][c];
    }
    return Multiply(weights[kLatentUp].data(), kHidden, routed);
  }

  const Problem& problem_;
  const Variant& v_;
  bool first_ = true;
  Doubles moved_;
  size_t rounding_ = 0;
};

struct RunOptions {
  int threads = 1;
  bool keep_experts = true;
  bool keep_mlp = true;
  SimdTarget target = BestSimdTarget();
  float start = 0;  // what the gradients hold before
};

struct Trained {
  std::vector<float> out;
  std::vector<float> inferred;  // the same without a tape
  std::vector<int32_t> chosen;
  std::vector<float> gradients[kKindsCount];
};

Trained Train(const Problem& problem, const RunOptions& options) {
  const ModelConfig config = problem.Config();
  const kernels::KernelTable kernels = kernels::Kernels(options.target);
  ThreadPool pool(options.threads);
  Arena arena;
  // Scratch that holds NaN: whatever is read before it is written shows.
  constexpr int64_t kPoisonFloats = 1 << 20;
  std::fill_n(arena.Allocate<float>(kPoisonFloats), kPoisonFloats, NAN);
  arena.Reset();
  const ForwardContext ctx{.exec = {&pool, &arena, &kernels},
                           .mxfp8_expert_inputs = problem.v.mxfp8};
  const MoeParameters parameters = problem.Bind<WeightMatrix>(problem.values);
  Trained run;
  for (int kind = 0; kind < kKindsCount; ++kind) {
    run.gradients[kind].assign(problem.values[kind].size(), options.start);
  }
  // dx is overwritten, whatever stands there.
  std::fill(run.gradients[kX].begin(), run.gradients[kX].end(), NAN);
  MoeGradients gradients = problem.Bind<GradientMatrix>(run.gradients);
  const float* x = problem.values[kX].data();
  float* dx = run.gradients[kX].data();
  run.out.assign(problem.factors.size(), NAN);
  run.inferred = run.out;
  const ops::RowSet rows = ops::SplitRows(ctx.exec, x, kTokens, kHidden, kHidden);
  if (problem.v.dense) {
    MlpTape tape;
    const int64_t f = kTokens * parameters.shared.gate.rows;
    if (options.keep_mlp) tape = {arena.Allocate<float>(f), arena.Allocate<float>(f)};
    DenseMlp(ctx.exec, config, parameters.shared, rows, run.inferred.data(), nullptr);
    DenseMlp(ctx.exec, config, parameters.shared, rows, run.out.data(), &tape);
    DenseMlpBackward(ctx.exec, config, parameters.shared, kTokens, x, tape, problem.factors.data(),
                     dx, gradients.shared);
    return run;
  }
  const MoeTape tape =
      MoeTape::Allocate(arena, config, kTokens, options.keep_experts, options.keep_mlp);
  MoeTape written = tape;
  EXPECT_TRUE(LatentMoe(ctx, config, parameters, 0, rows, run.inferred.data(), nullptr).ok());
  EXPECT_TRUE(LatentMoe(ctx, config, parameters, 0, rows, run.out.data(), &written).ok());
  run.chosen.assign(tape.routing.experts,
                    tape.routing.experts + kTokens * problem.v.experts_per_token);
  LatentMoeBackward(ctx, config, parameters, kTokens, x, tape, problem.factors.data(), dx,
                    gradients);
  run.gradients[kLatentNorm] = gradients.latent_norm;
  EXPECT_EQ(gradients.correction_bias, problem.bias);  // has no gradient
  return run;
}

double RootMeanSquare(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += double{value} * value;
  return std::sqrt(sum / std::max<double>(1, static_cast<double>(x.size())));
}

/// Largest error of a kind's gradient against central differences, by random directions and single
/// elements, in units of what random errors of the gradient's own size would give.
double GradientError(Reference& reference, int kind, const std::vector<float>& gradient) {
  // In float64 this step's own error is below 1e-7 of the derivative.
  constexpr double kStep = 1e-5;
  constexpr int kDirections = 6, kElements = 30;
  const double size = RootMeanSquare(gradient);
  Random random(13, static_cast<uint64_t>(kind));
  Doubles& w = reference.weights[kind];
  const Doubles saved = w;
  double worst = 0;
  for (int i = 0; i < kDirections + kElements; ++i) {
    Doubles direction(w.size());
    double norm = 1;
    if (i < kDirections) {
      for (double& value : direction) value = random.NextNormal();
      norm = std::sqrt(static_cast<double>(w.size()));
    } else {
      direction[random.NextBelow(w.size())] = 1;
    }
    double loss[2], found = 0;
    for (int side = 0; side < 2; ++side) {
      for (size_t j = 0; j < w.size(); ++j) {
        w[j] = saved[j] + (side == 0 ? -kStep : kStep) * direction[j];
      }
      loss[side] = reference.Loss();
    }
    w = saved;
    for (size_t j = 0; j < w.size(); ++j) found += direction[j] * double{gradient[j]};
    worst = std::max(worst, std::fabs(found - (loss[1] - loss[0]) / (2 * kStep)) / (norm * size));
  }
  return worst;
}

class LatentMoeBackwardTest : public ::testing::TestWithParam<Variant> {};

TEST_P(LatentMoeBackwardTest, EqualsCentralDifferences) {
  const Problem problem(GetParam());
  Reference reference(problem);
  const Trained run = Train(problem, {.threads = 2});
  ASSERT_EQ(run.chosen, reference.chosen);
  if (!GetParam().dense) {
    ASSERT_GT(reference.margin, 1e-5)
        << "another seed is needed: the choice is a matter of rounding";
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < run.out.size(); ++i) {
    error += (run.out[i] - reference.out[i]) * (run.out[i] - reference.out[i]);
    norm += reference.out[i] * reference.out[i];
  }
  // Measured: 1.7e-7 at the most.
  EXPECT_LE(std::sqrt(error / norm), 1e-6);
  double worst = 0;
  for (int kind = 0; kind < kKindsCount; ++kind) {
    if (problem.values[kind].empty()) continue;
    const double found = GradientError(reference, kind, run.gradients[kind]);
    // Float32 sums of tens of terms; measured: 1.3e-6 at the most.
    EXPECT_LE(found, 4e-6) << kNames[kind];
    worst = std::max(worst, found);
  }
  RecordProperty("worst_error", fmt::format("{:.2e}", worst));
}

TEST_P(LatentMoeBackwardTest, TrainingForwardEqualsInference) {
  const Problem problem(GetParam());
  for (bool keep : {false, true}) {
    const Trained run = Train(problem, {.threads = 2, .keep_experts = keep, .keep_mlp = keep});
    EXPECT_EQ(0, std::memcmp(run.out.data(), run.inferred.data(), run.out.size() * 4));
  }
}

TEST_P(LatentMoeBackwardTest, SameBitsForThreadsTargetsAndTapes) {
  const Problem problem(GetParam());
  const Trained want = Train(problem, {});
  std::vector<RunOptions> options = {{.threads = 2},
                                     {.threads = 3},
                                     {.threads = 2, .keep_experts = false},
                                     {.threads = 3, .keep_mlp = false},
                                     {.threads = 2, .keep_experts = false, .keep_mlp = false}};
  for (SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2}) {
    if (IsSupported(target)) options.push_back({.threads = 2, .target = target});
  }
  for (size_t i = 0; i < options.size(); ++i) {
    const Trained run = Train(problem, options[i]);
    EXPECT_EQ(0, std::memcmp(run.out.data(), want.out.data(), want.out.size() * 4)) << i;
    for (int kind = 0; kind < kKindsCount; ++kind) {
      ASSERT_EQ(run.gradients[kind].size(), want.gradients[kind].size());
      if (want.gradients[kind].empty()) continue;
      EXPECT_EQ(0, std::memcmp(run.gradients[kind].data(), want.gradients[kind].data(),
                               want.gradients[kind].size() * 4))
          << kNames[kind] << ", options " << i;
    }
  }
}

TEST_P(LatentMoeBackwardTest, AddsToWhatStandsAndLeavesIdleExpertsAlone) {
  const Problem problem(GetParam());
  const Trained zero = Train(problem, {.threads = 2}),
                one = Train(problem, {.threads = 2, .start = 1.0f});
  for (int kind = 0; kind < kX; ++kind) {
    for (size_t i = 0; i < zero.gradients[kind].size(); ++i) {
      // Each of the sum's up to 37 roundings is half a unit of a sum that is larger by the start.
      ASSERT_NEAR(
          one.gradients[kind][i], zero.gradients[kind][i] + 1.0f,
          3e-6 * (1 + std::fabs(zero.gradients[kind][i]) + RootMeanSquare(zero.gradients[kind])))
          << kNames[kind] << " " << i;
    }
  }
  if (GetParam().dense || !GetParam().biased) return;
  for (int kind : {kExpertGate, kExpertUp, kExpertDown}) {
    const int64_t count = std::ssize(one.gradients[kind]) / kExperts;
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(one.gradients[kind][static_cast<size_t>(kIdle * count + i)], 1.0f);
    }
  }
  EXPECT_EQ(0, std::count(zero.chosen.begin(), zero.chosen.end(), kIdle));
  // The router's row of an expert that nobody chose has no gradient either.
  for (int64_t i = 0; i < kHidden; ++i) {
    ASSERT_EQ(zero.gradients[kRouter][static_cast<size_t>(kIdle * kHidden + i)], 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LatentMoeBackwardTest, ::testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace k3::model

// Attention residuals: a toy network whose sublayers are fixed matrices, forward and backward
// against the formulas in float64 and central differences of them.
#include "model/attention_residuals.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "ops/gradients.h"
#include "ops/rows.h"

namespace k3::model {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Shape {
  int64_t layers, block;
  int64_t tokens = 5, width = 19;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.layers << " layers, blocks of " << shape.block;
}

/// Inputs with a gradient: the embedding, then of every sublayer and of the output the mix and the
/// norm. Sublayer 2 l is layer l's attention, 2 l + 1 its MLP, 2 layers the output.
struct Problem {
  explicit Problem(const Shape& of) : shape(of), sublayers(2 * of.layers) {
    const int64_t n = shape.width;
    uint64_t stream = 0;
    const auto normals = [&](int64_t count, double size, double mean) {
      Random random(31, stream++);
      Floats values;
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(static_cast<float>(mean + size * random.NextNormal()));
      }
      return values;
    };
    inputs.push_back(normals(shape.tokens * n, 1, 0));
    for (int64_t s = 0; s <= sublayers; ++s) {
      // Scores some units apart.
      inputs.push_back(normals(shape.block > 0 ? n : 0, 0.4, 0));
      inputs.push_back(normals(n, 0.3, 1));
    }
    for (int64_t s = 0; s < sublayers; ++s) {
      matrices.push_back(normals(n * n, 1 / std::sqrt(static_cast<double>(n)), 0));
    }
    factors = normals(shape.tokens * n, 1, 0);
  }

  const Floats& mix(int64_t s) const { return inputs[static_cast<size_t>(1 + 2 * s)]; }
  const Floats& norm(int64_t s) const { return inputs[static_cast<size_t>(2 + 2 * s)]; }
  AttentionResiduals::Options Options() const {
    return {
        .tokens = shape.tokens, .width = shape.width, .layers = shape.layers, .block = shape.block};
  }
  WeightMatrix Matrix(int64_t s) const {
    return {matrices[static_cast<size_t>(s)].data(), nullptr, shape.width, shape.width,
            WeightFormat::kF32};
  }

  Shape shape;
  int64_t sublayers;
  std::vector<Floats> inputs;
  std::vector<Floats> matrices;
  Floats factors;
};

double Inverse(const Doubles& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + double{1e-5f});
}

/// One token's normed output from the formulas, in float64.
class Reference {
 public:
  Reference(const Problem& problem, const std::vector<Doubles>& in) : problem_(problem), in_(in) {}

  Doubles Token(int64_t t) {
    const int64_t n = problem_.shape.width, block = problem_.shape.block;
    const Doubles& embedding = in_[0];
    bank_.clear();
    prefix_.assign(embedding.begin() + t * n, embedding.begin() + (t + 1) * n);
    for (int64_t layer = 0; layer < problem_.shape.layers; ++layer) {
      const Doubles attention = Sublayer(2 * layer);
      if (block > 0 && layer % block == 0) {
        bank_.push_back(prefix_);
        prefix_.assign(static_cast<size_t>(n), 0.0);
      }
      for (int64_t i = 0; i < n; ++i) prefix_[i] += attention[i];
      const Doubles mlp = Sublayer(2 * layer + 1);
      for (int64_t i = 0; i < n; ++i) prefix_[i] += mlp[i];
    }
    return Normed(problem_.sublayers);
  }

 private:
  Doubles Normed(int64_t s) const {
    const Doubles& mix = in_[static_cast<size_t>(1 + 2 * s)];
    const Doubles& norm = in_[static_cast<size_t>(2 + 2 * s)];
    Doubles h = prefix_;
    if (!bank_.empty()) {
      std::vector<Doubles> sources = bank_;
      sources.push_back(prefix_);
      Doubles p;
      double sum = 0;
      for (const Doubles& source : sources) {
        double score = 0;
        for (size_t i = 0; i < source.size(); ++i) score += mix[i] * source[i];
        p.push_back(std::exp(score * Inverse(source)));
        sum += p.back();
      }
      std::fill(h.begin(), h.end(), 0.0);
      for (size_t k = 0; k < sources.size(); ++k) {
        for (size_t i = 0; i < h.size(); ++i) h[i] += p[k] / sum * sources[k][i];
      }
    }
    const double r = Inverse(h);
    for (size_t i = 0; i < h.size(); ++i) h[i] *= r * norm[i];
    return h;
  }

  Doubles Sublayer(int64_t s) const {
    const Doubles x = Normed(s);
    Doubles y(x.size());
    const Floats& w = problem_.matrices[static_cast<size_t>(s)];
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{w[r * x.size() + c]} * x[c];
    }
    return y;
  }

  const Problem& problem_;
  const std::vector<Doubles>& in_;
  std::vector<Doubles> bank_;
  Doubles prefix_;
};

double Loss(const Problem& problem, const std::vector<Doubles>& in) {
  const int64_t n = problem.shape.width;
  double loss = 0;
  Reference reference(problem, in);
  for (int64_t t = 0; t < problem.shape.tokens; ++t) {
    const Doubles row = reference.Token(t);
    for (int64_t i = 0; i < n; ++i) {
      loss += row[i] * problem.factors[static_cast<size_t>(t * n + i)];
    }
  }
  return loss;
}

/// The network with the class under test.
class Network {
 public:
  Network(const Problem& problem, int threads)
      : problem_(problem), pool_(threads), floats_(problem.shape.tokens * problem.shape.width) {
    // Memory that holds NaN: whatever is read before it is written shows.
    for (Arena* arena : {&arena_, &tape_}) {
      constexpr int64_t kPoisonFloats = 1 << 18;
      std::fill_n(arena->Allocate<float>(kPoisonFloats), kPoisonFloats, NAN);
      arena->Reset();
    }
  }

  /// Normed outputs [T, D]; keeps the sums if `keep`.
  Floats Forward(bool keep) {
    AttentionResiduals::Options options = problem_.Options();
    options.keep = keep ? &tape_ : nullptr;
    AttentionResiduals residuals(exec_, options);
    std::copy_n(problem_.inputs[0].data(), floats_, residuals.prefix());
    float* out = arena_.Allocate<float>(floats_);
    for (int64_t s = 0; s < problem_.sublayers; ++s) {
      const ops::RowSet x = Input(s, residuals);
      if (s % 2 == 0) residuals.OpenBlock(s / 2);
      const ops::LinearTask task{&x, problem_.Matrix(s), out, problem_.shape.width};
      ops::Linear(exec_, {&task, 1});
      residuals.Add(out);
    }
    Input(problem_.sublayers, residuals);
    bank_.assign(residuals.bank().begin(), residuals.bank().end());
    return normed_.back();
  }

  /// Gradients by every input, after Forward(true).
  std::vector<Floats> Backward() {
    std::vector<Floats> gradients;
    for (const Floats& input : problem_.inputs) gradients.emplace_back(input.size());
    AttentionResidualsBackward residuals(exec_, problem_.Options(), bank_);
    float* dx = arena_.Allocate<float>(floats_);
    Floats again(static_cast<size_t>(floats_));
    const auto mix = [&](int64_t s, const float* d) {
      // The inputs are computed again to the last bit.
      const float* prefix = prefixes_[static_cast<size_t>(s)];
      residuals.Input(prefix, problem_.mix(s), problem_.norm(s), again.data());
      EXPECT_EQ(0, std::memcmp(again.data(), normed_[static_cast<size_t>(s)].data(),
                               again.size() * sizeof(float)))
          << s;
      residuals.Mix(prefix, problem_.mix(s), problem_.norm(s), d,
                    gradients[static_cast<size_t>(1 + 2 * s)],
                    gradients[static_cast<size_t>(2 + 2 * s)]);
    };
    mix(problem_.sublayers, problem_.factors.data());
    for (int64_t s = problem_.sublayers - 1; s >= 0; --s) {
      const ops::InputGradientTerm term{residuals.prefix(), problem_.shape.width,
                                        problem_.Matrix(s)};
      const ops::InputGradientTask task{
          {&term, 1}, problem_.shape.tokens, dx, problem_.shape.width};
      ops::LinearInputGradient(exec_, {&task, 1});
      if (s % 2 == 0) residuals.CloseBlock(s / 2);
      mix(s, dx);
    }
    gradients[0].assign(residuals.prefix(), residuals.prefix() + floats_);
    return gradients;
  }

 private:
  ops::RowSet Input(int64_t s, AttentionResiduals& residuals) {
    prefixes_.push_back(residuals.prefix());
    const float* h = residuals.Mix(problem_.mix(s));
    normed_.emplace_back(static_cast<size_t>(floats_));
    return ops::NormRows(exec_, h, problem_.shape.tokens, problem_.norm(s), 1e-5f,
                         normed_.back().data());
  }

  const Problem& problem_;
  ThreadPool pool_;
  Arena arena_, tape_;
  kernels::KernelTable kernels_ = kernels::Kernels(BestSimdTarget());
  ops::ExecContext exec_{&pool_, &arena_, &kernels_};
  int64_t floats_;
  std::vector<const float*> prefixes_, bank_;
  std::vector<Floats> normed_;
};

class AttentionResidualsTest : public ::testing::TestWithParam<Shape> {};

TEST_P(AttentionResidualsTest, EqualsCentralDifferences) {
  const Problem problem(GetParam());
  Network network(problem, 2);
  const Floats out = network.Forward(true);
  const std::vector<Floats> gradients = network.Backward();
  std::vector<Doubles> in;
  for (const Floats& input : problem.inputs) in.emplace_back(input.begin(), input.end());
  Reference reference(problem, in);
  double forward = 0, worst = 0;
  for (int64_t t = 0; t < problem.shape.tokens; ++t) {
    const Doubles row = reference.Token(t);
    for (int64_t i = 0; i < problem.shape.width; ++i) {
      forward = std::max(forward, std::fabs(out[t * problem.shape.width + i] - row[i]));
    }
  }
  for (size_t kind = 0; kind < in.size(); ++kind) {
    double error = 0, largest = 0;
    for (size_t i = 0; i < in[kind].size(); ++i) {
      // In float64 this step's own error is below 1e-7 of the largest derivative.
      constexpr double kStep = 1e-5;
      const double saved = in[kind][i];
      in[kind][i] = saved + kStep;
      const double above = Loss(problem, in);
      in[kind][i] = saved - kStep;
      const double want = (above - Loss(problem, in)) / (2 * kStep);
      in[kind][i] = saved;
      error = std::max(error, std::fabs(gradients[kind][i] - want));
      largest = std::max(largest, std::fabs(want));
    }
    // The mixes before the first block have no gradient.
    const double relative = largest > 0 ? error / largest : error;
    // Float32 rounding; a mix's gradient is made of differences between its sources, which may be
    // small beside them. Measured: 9.4e-6 at width 3, 6.6e-6 else.
    EXPECT_LE(relative, 3e-5) << "input " << kind;
    worst = std::max(worst, relative);
  }
  RecordProperty("worst_error", fmt::format("{:.2e}", worst));
  // Values of about 1; measured: 2.1e-6 at width 3, 1.1e-6 else.
  EXPECT_LE(forward, 5e-6);
}

TEST_P(AttentionResidualsTest, SameBitsForAnyThreadsAndWithoutATape) {
  const Problem problem(GetParam());
  Network one(problem, 1);
  const Floats out = one.Forward(true);
  const std::vector<Floats> want = one.Backward();
  for (int threads : {1, 2, 3}) {
    Network untaped(problem, threads), taped(problem, threads);
    const Floats a = untaped.Forward(false), b = taped.Forward(true);
    EXPECT_EQ(0, std::memcmp(a.data(), out.data(), out.size() * sizeof(float)));
    EXPECT_EQ(0, std::memcmp(b.data(), out.data(), out.size() * sizeof(float)));
    const std::vector<Floats> got = taped.Backward();
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      if (want[i].empty()) continue;
      EXPECT_EQ(0, std::memcmp(got[i].data(), want[i].data(), want[i].size() * sizeof(float))) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionResidualsTest,
    ::testing::Values(Shape{1, 0}, Shape{1, 1}, Shape{5, 0}, Shape{5, 1}, Shape{5, 2}, Shape{6, 2},
                      Shape{6, 3}, Shape{7, 3}, Shape{5, 4}, Shape{5, 12},
                      Shape{.layers = 4, .block = 3, .tokens = 70, .width = 3}));

}  // namespace
}  // namespace k3::model

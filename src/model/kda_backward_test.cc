// KDA's training passes: gradients of the whole block against central differences of a plain
// implementation in float64, token by token; the forward pass against inference; bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "base/random.h"
#include "model/kda.h"

namespace k3::model {
namespace {

constexpr int64_t kHidden = 40, kHeads = 3, kDim = 24, kChannels = kHeads * kDim, kTaps = 4;
// Documents that begin inside what would be another's chunk, and one of a single token.
const std::vector<int64_t> kLengths = {5, 19, 1, 33};

struct Variant {
  bool full_rank_gate;
  std::optional<float> lower_bound;
};

/// A block's parameters as plain arrays, by name; "x" is its input.
using Arrays = std::map<std::string, std::vector<float>>;
using Doubles = std::map<std::string, std::vector<double>>;

ModelConfig MakeConfig(const Variant& variant) {
  ModelConfig config;
  config.hidden_size = kHidden;
  config.layers = 1;
  config.is_mla = {false};
  config.kda.heads = kHeads;
  config.kda.head_dim = kDim;
  config.kda.conv_kernel = kTaps;
  config.kda.full_rank_gate = variant.full_rank_gate;
  config.kda.gate_lower_bound = variant.lower_bound;
  return config;
}

std::vector<float> RandomFloats(int64_t count, uint64_t stream, float gain, float shift = 0.0f) {
  Random random(29, stream);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.NextNormal() * gain + shift;
  return values;
}

Arrays MakeArrays(const Variant& variant, int64_t tokens) {
  Arrays a;
  uint64_t stream = 0;
  const auto add = [&](const char* name, int64_t count, float gain, float shift = 0.0f) {
    a[name] = RandomFloats(count, ++stream, gain, shift);
  };
  for (const char* name : {"q", "k", "v"}) add(name, kChannels * kHidden, 0.2f);
  add("decay_a", kDim * kHidden, 0.3f);
  add("decay_b", kChannels * kDim, 0.2f);
  add("beta", kHeads * kHidden, 0.2f);
  if (variant.full_rank_gate) {
    add("gate", kChannels * kHidden, 0.2f);
  } else {
    add("gate_a", kDim * kHidden, 0.3f);
    add("gate_b", kChannels * kDim, 0.2f);
  }
  add("output", kHidden * kChannels, 0.2f);
  for (const char* name : {"conv_q", "conv_k", "conv_v"}) add(name, kTaps * kChannels, 0.5f);
  add("rate", kHeads, 0.1f, 1.0f);
  add("dt_bias", kChannels, 0.5f, -1.0f);
  add("output_norm", kDim, 0.2f, 1.0f);
  add("x", tokens * kHidden, 1.0f);
  return a;
}

/// Runs the block's passes on arrays.
class Block {
 public:
  Block(const Variant& variant, const Arrays& arrays, const std::vector<int64_t>& lengths,
        int threads)
      : config_(MakeConfig(variant)), arrays_(arrays), pool_(threads) {
    for (int64_t length : lengths) {
      batch_.segments.push_back({nullptr, std::span(ids_).first(static_cast<size_t>(length))});
      tokens_ += length;
    }
    for (const auto& [name, matrix] : Matrices(parameters_)) {
      const auto found = arrays_.find(name);
      if (found == arrays_.end()) continue;
      const int64_t cols = Columns(name);
      const int64_t rows = static_cast<int64_t>(found->second.size()) / cols;
      *matrix = {found->second.data(), nullptr, rows, cols, WeightFormat::kF32};
    }
    for (const auto& [name, vector] : Vectors(parameters_)) *vector = arrays_.at(name);
  }

  std::vector<float> Forward(KdaTape* tape) {
    std::vector<float> out(static_cast<size_t>(tokens_ * kHidden));
    arena_.Reset();
    Kda(exec_, config_, parameters_, 0, batch_, Rows(), out.data(), tape);
    return out;
  }

  /// The same tokens as inference sees them: every segment a sequence of its own.
  std::vector<float> Inference() {
    std::vector<cache::SequenceState> states;
    for (size_t i = 0; i < batch_.segments.size(); ++i) states.emplace_back(config_);
    for (size_t i = 0; i < states.size(); ++i) batch_.segments[i].state = &states[i];
    std::vector<float> out = Forward(nullptr);
    for (Segment& segment : batch_.segments) segment.state = nullptr;
    return out;
  }

  /// Gradients of sum(c out), by every array; dx as "x".
  Arrays Backward(const std::vector<float>& c, bool keep_tape) {
    Arena tape_arena;
    KdaTape tape = KdaTape::Allocate(tape_arena, config_.kda, tokens_);
    Forward(keep_tape ? &tape : nullptr);
    Arrays g;
    KdaGradients gradients;
    for (const auto& [name, matrix] : Matrices(gradients)) {
      if (!arrays_.contains(name)) continue;
      std::vector<float>& to = g[name];
      to.resize(arrays_.at(name).size());
      const int64_t cols = Columns(name);
      *matrix = {to.data(), static_cast<int64_t>(to.size()) / cols, cols};
    }
    for (const auto& [name, vector] : Vectors(gradients)) vector->resize(arrays_.at(name).size());
    g["x"].resize(arrays_.at("x").size());
    arena_.Reset();
    KdaBackward(exec_, config_, parameters_, batch_, arrays_.at("x").data(),
                keep_tape ? &tape : nullptr, c.data(), g["x"].data(), gradients);
    for (const auto& [name, vector] : Vectors(gradients)) g[name] = *vector;
    return g;
  }

 private:
  template <typename Matrix>
  static std::map<std::string, Matrix*> Matrices(KdaParametersOf<Matrix>& p) {
    return {{"q", &p.q},
            {"k", &p.k},
            {"v", &p.v},
            {"decay_a", &p.decay_a},
            {"decay_b", &p.decay_b},
            {"beta", &p.beta},
            {"gate", &p.gate},
            {"gate_a", &p.gate_a},
            {"gate_b", &p.gate_b},
            {"output", &p.output}};
  }
  template <typename Matrix>
  static std::map<std::string, Vector*> Vectors(KdaParametersOf<Matrix>& p) {
    return {{"conv_q", &p.conv_q}, {"conv_k", &p.conv_k},   {"conv_v", &p.conv_v},
            {"rate", &p.rate},     {"dt_bias", &p.dt_bias}, {"output_norm", &p.output_norm}};
  }
  static int64_t Columns(const std::string& name) {
    if (name == "output") return kChannels;
    return name == "decay_b" || name == "gate_b" ? kDim : kHidden;
  }
  ops::RowSet Rows() {
    return ops::SplitRows(exec_, arrays_.at("x").data(), tokens_, kHidden, kHidden);
  }

  const ModelConfig config_;
  const Arrays arrays_;
  ThreadPool pool_;
  Arena arena_;
  const kernels::KernelTable kernels_ = kernels::Kernels(BestSimdTarget());
  const ops::ExecContext exec_{&pool_, &arena_, &kernels_};
  const std::vector<int32_t> ids_ = std::vector<int32_t>(600);
  Batch batch_;
  int64_t tokens_ = 0;
  KdaParameters parameters_;
};

using Row = std::vector<double>;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Row Times(const std::vector<double>& w, const double* x, int64_t cols) {
  Row y(w.size() / static_cast<size_t>(cols));
  for (size_t r = 0; r < y.size(); ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r] += w[r * static_cast<size_t>(cols) + c] * x[c];
  }
  return y;
}

/// The block from the formulas (kda.cc), one token after another.
class Reference {
 public:
  Reference(const Variant& variant, const std::vector<double>& c) : variant_(variant), c_(c) {}

  double Loss(const Doubles& p) const {
    double loss = 0;
    int64_t begin = 0;
    for (int64_t length : kLengths) {
      loss += Document(p, begin, length);
      begin += length;
    }
    return loss;
  }

 private:
  double Document(const Doubles& p, int64_t begin, int64_t length) const {
    std::map<std::string, std::vector<Row>> inputs;
    std::vector<Row> states(kHeads, Row(kDim * kDim));
    double loss = 0;
    for (int64_t t = 0; t < length; ++t) {
      const double* x = &p.at("x")[(begin + t) * kHidden];
      for (const char* name : {"q", "k", "v"}) {
        inputs[name].push_back(Times(p.at(name), x, kHidden));
      }
      const Row decay = Times(p.at("decay_b"), Times(p.at("decay_a"), x, kHidden).data(), kDim);
      const Row beta = Times(p.at("beta"), x, kHidden);
      const Row gate = variant_.full_rank_gate
                           ? Times(p.at("gate"), x, kHidden)
                           : Times(p.at("gate_b"), Times(p.at("gate_a"), x, kHidden).data(), kDim);
      Row y(kChannels);
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t at = head * kDim;
        Row q = Convolved(inputs["q"], p.at("conv_q"), at);
        Row k = Convolved(inputs["k"], p.at("conv_k"), at);
        Normalize(q, std::sqrt(1.0 / kDim));
        Normalize(k, 1.0);
        const Row v = Convolved(inputs["v"], p.at("conv_v"), at);
        const Row alpha = Decays(p, decay, head);
        const Row o = Step(states[head], q, k, v, alpha, Sigmoid(beta[head]));
        double squares = 0;
        for (double value : o) squares += value * value;
        const double scale = 1.0 / std::sqrt(squares / kDim + double{1e-5f});
        for (int64_t d = 0; d < kDim; ++d) {
          y[at + d] = p.at("output_norm")[d] * o[d] * scale * Sigmoid(gate[at + d]);
        }
      }
      const Row out = Times(p.at("output"), y.data(), kChannels);
      for (int64_t d = 0; d < kHidden; ++d) loss += c_[(begin + t) * kHidden + d] * out[d];
    }
    return loss;
  }

  static Row Convolved(const std::vector<Row>& u, const std::vector<double>& taps, int64_t at) {
    Row y(kDim);
    for (int64_t d = 0; d < kDim; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < kTaps; ++j) {
        const int64_t source = static_cast<int64_t>(u.size()) - kTaps + j;
        if (source >= 0) sum += taps[j * kChannels + at + d] * u[source][at + d];
      }
      y[d] = sum * Sigmoid(sum);
    }
    return y;
  }

  static void Normalize(Row& x, double scale) {
    double squares = double{1e-6f};
    for (double value : x) squares += value * value;
    for (double& value : x) value *= scale / std::sqrt(squares);
  }

  Row Decays(const Doubles& p, const Row& raw, int64_t head) const {
    Row alpha(kDim);
    for (int64_t d = 0; d < kDim; ++d) {
      const double z = raw[head * kDim + d] + p.at("dt_bias")[head * kDim + d];
      const double rate = p.at("rate")[head];
      alpha[d] = variant_.lower_bound.has_value()
                     ? std::exp(*variant_.lower_bound * Sigmoid(rate * z))
                     : std::exp(-rate * std::log1p(std::exp(z)));
    }
    return alpha;
  }

  static Row Step(Row& state, const Row& q, const Row& k, const Row& v, const Row& alpha,
                  double beta) {
    Row u = v, o(kDim);
    for (int64_t i = 0; i < kDim * kDim; ++i) {
      state[i] *= alpha[i / kDim];
      u[i % kDim] -= state[i] * k[i / kDim];
    }
    for (int64_t i = 0; i < kDim * kDim; ++i) {
      state[i] += k[i / kDim] * beta * u[i % kDim];
      o[i % kDim] += state[i] * q[i / kDim];
    }
    return o;
  }

  const Variant variant_;
  const std::vector<double> c_;
};

int64_t TotalTokens() {
  int64_t total = 0;
  for (int64_t length : kLengths) total += length;
  return total;
}

class KdaGradientTest : public testing::TestWithParam<Variant> {};

TEST_P(KdaGradientTest, EqualsCentralDifferences) {
  const Arrays arrays = MakeArrays(GetParam(), TotalTokens());
  const std::vector<float> c = RandomFloats(TotalTokens() * kHidden, 99, 1.0f);
  const Arrays gradients = Block(GetParam(), arrays, kLengths, 2).Backward(c, true);
  const Reference reference(GetParam(), {c.begin(), c.end()});
  Doubles p;
  for (const auto& [name, values] : arrays) p[name] = {values.begin(), values.end()};
  double largest = 0;
  for (const auto& [name, values] : arrays) {
    // Every element of the small vectors, about 24 of the others.
    const size_t step = values.size() <= 72 ? 1 : values.size() / 24;
    double error = 0, norm = 0;
    for (size_t i = 0; i < values.size(); i += step) {
      constexpr double kStep = 1e-4;
      double& moved = p[name][i];
      const double before = moved;
      moved = before + kStep;
      const double above = reference.Loss(p);
      moved = before - kStep;
      const double want = (above - reference.Loss(p)) / (2 * kStep);
      moved = before;
      error += std::pow(gradients.at(name)[i] - want, 2);
      norm += want * want;
    }
    const double relative = std::sqrt(error / norm);
    // Float32 through the whole block, against differences that are good to 1e-7.
    EXPECT_LE(relative, 1e-5) << name;
    EXPECT_GT(norm, 0.0) << name;
    largest = std::max(largest, relative);
  }
  RecordProperty("largest_error", std::to_string(largest * 1e6) + "e-6");
}

INSTANTIATE_TEST_SUITE_P(Variants, KdaGradientTest,
                         testing::Values(Variant{true, -5.0f}, Variant{false, -5.0f},
                                         Variant{true, -8.0f}, Variant{false, std::nullopt}));

TEST(KdaTrainingTest, ForwardEqualsInference) {
  const std::vector<int64_t> lengths = {5, 16, 1, 37, 512};
  for (const Variant& variant : {Variant{true, -5.0f}, Variant{false, std::nullopt}}) {
    const Arrays arrays = MakeArrays(variant, 571);
    Block block(variant, arrays, lengths, 2);
    Arena arena;
    KdaTape tape = KdaTape::Allocate(arena, MakeConfig(variant).kda, 571);
    const std::vector<float> want = block.Inference();
    EXPECT_EQ(block.Forward(nullptr), want);
    EXPECT_EQ(block.Forward(&tape), want);
  }
}

TEST(KdaTrainingTest, GradientsDependOnNeitherThreadsNorTape) {
  for (const Variant& variant : {Variant{true, -5.0f}, Variant{false, std::nullopt}}) {
    const Arrays arrays = MakeArrays(variant, TotalTokens());
    const std::vector<float> c = RandomFloats(TotalTokens() * kHidden, 99, 1.0f);
    const Arrays want = Block(variant, arrays, kLengths, 1).Backward(c, true);
    for (int threads : {1, 2, 3}) {
      Block block(variant, arrays, kLengths, threads);
      EXPECT_EQ(block.Backward(c, true), want) << threads << " threads";
      EXPECT_EQ(block.Backward(c, false), want) << threads << " threads, no tape";
    }
  }
}

TEST(KdaTrainingTest, DocumentsDoNotSeeEachOther) {
  const Variant variant{true, -5.0f};
  const Arrays arrays = MakeArrays(variant, TotalTokens());
  const std::vector<float> c = RandomFloats(TotalTokens() * kHidden, 99, 1.0f);
  const Arrays whole = Block(variant, arrays, kLengths, 1).Backward(c, true);
  int64_t begin = 0;
  for (int64_t length : kLengths) {
    const auto part = [&](const std::vector<float>& rows) {
      return std::vector<float>(rows.begin() + begin * kHidden,
                                rows.begin() + (begin + length) * kHidden);
    };
    Arrays alone = arrays;
    alone["x"] = part(arrays.at("x"));
    EXPECT_EQ(Block(variant, alone, {length}, 1).Backward(part(c), true).at("x"),
              part(whole.at("x")))
        << "the document of " << length << " tokens";
    begin += length;
  }
}

}  // namespace
}  // namespace k3::model

// Row kernels. Tails are loaded and stored under a mask, so an element's value never depends on
// where in the row, or at which address, it stands.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/tables.h"
#include "tensor/number_formats.h"
#include "kernels/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {
namespace {

/// y[i] = f(x[i], ...) over n elements of each input.
template <typename F, typename... X>
HWY_INLINE void Map(int64_t n, float* y, const F& f, const X*... x) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreU(f(LoadU(x + i)...), y + i);
  if (i < n) StoreN(f(LoadN(x + i, n - i)...), y + i, n - i);
}

/// Sum of f(x[i], ...): lane l takes the elements l mod 16 in order.
template <typename F, typename... X>
HWY_INLINE float Sum(int64_t n, const F& f, const X*... x) {
  V sum = Set(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = f(LoadU(x + i)..., sum);
  if (i < n) sum = f(LoadN(x + i, n - i)..., sum);
  return ReduceSum(sum);
}

void ExpRow(const float* x, int64_t n, float* y) {
  Map(n, y, [](V a) HWY_ATTR { return Exp(a); }, x);
}
void SigmoidRow(const float* x, int64_t n, float* y) {
  Map(n, y, [](V a) HWY_ATTR { return Sigmoid(a); }, x);
}
void TanhRow(const float* x, int64_t n, float* y) {
  Map(n, y, [](V a) HWY_ATTR { return Tanh(a); }, x);
}
void SoftplusRow(const float* x, int64_t n, float* y) {
  Map(n, y, [](V a) HWY_ATTR { return Softplus(a); }, x);
}

float Dot(const float* x, const float* y, int64_t n) {
  return Sum(n, [](V a, V b, V sum) HWY_ATTR { return Fma(a, b, sum); }, x, y);
}
HWY_INLINE float SumSquares(const float* x, int64_t n) {
  return Sum(n, [](V a, V sum) HWY_ATTR { return Fma(a, a, sum); }, x);
}
HWY_INLINE float InverseRms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(SumSquares(x, n) / static_cast<float>(n) + eps);
}

void RmsNorm(const float* x, const float* w, int64_t n, float eps, float* y) {
  const V scale = Set(InverseRms(x, n, eps));
  Map(n, y, [&](V a, V b) HWY_ATTR { return Mul(Mul(a, scale), b); }, x, w);
}

void GatedRmsNorm(const float* x, const float* w, const float* gate, int64_t n, float eps,
                  float* y) {
  const V scale = Set(InverseRms(x, n, eps));
  Map(
      n, y, [&](V a, V b, V g) HWY_ATTR { return Mul(Mul(Mul(a, scale), b), Sigmoid(g)); }, x, w,
      gate);
}

void L2Norm(const float* x, int64_t n, float eps, float scale, float* y) {
  const V factor = Set(scale / std::sqrt(SumSquares(x, n) + eps));
  Map(n, y, [&](V a) HWY_ATTR { return Mul(a, factor); }, x);
}

void Situ(const float* gate, const float* up, int64_t n, float beta, float linear_beta, float* y) {
  const V b1 = Set(beta), b2 = Set(linear_beta);
  const bool linear = linear_beta == 0.0f;
  Map(
      n, y,
      [&](V g, V u) HWY_ATTR {
        const V capped = Mul(Mul(b1, Tanh(Div(g, b1))), Sigmoid(g));
        return Mul(capped, linear ? u : Mul(b2, Tanh(Div(u, b2))));
      },
      gate, up);
}

void SigmoidGate(const float* x, const float* gate, int64_t n, float* y) {
  Map(n, y, [](V a, V g) HWY_ATTR { return Mul(a, Sigmoid(g)); }, x, gate);
}
void AddRow(const float* x, int64_t n, float* y) {
  Map(n, y, [](V a, V b) HWY_ATTR { return Add(a, b); }, x, static_cast<const float*>(y));
}
void ScaledAdd(float a, const float* x, int64_t n, float* y) {
  const V factor = Set(a);
  Map(n, y, [&](V b, V c) HWY_ATTR { return Fma(factor, b, c); }, x, static_cast<const float*>(y));
}
void Scale(float a, const float* x, int64_t n, float* y) {
  const V factor = Set(a);
  Map(n, y, [&](V b) HWY_ATTR { return Mul(factor, b); }, x);
}

void ConvSilu(const float* const* u, const float* w, int64_t ldw, int64_t taps, int64_t n,
              float* y) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    V sum = Set(0.0f);
    for (int64_t j = 0; j < taps; ++j) {
      sum = Fma(LoadN(w + j * ldw + i, count), LoadN(u[j] + i, count), sum);
    }
    StoreN(Silu(sum), y + i, count);
  }
}

void BoundedDecay(const float* raw, const float* bias, float rate, float lower_bound, int64_t n,
                  float* y) {
  const V a = Set(rate), bound = Set(lower_bound);
  Map(
      n, y, [&](V z, V b) HWY_ATTR { return Exp(Mul(bound, Sigmoid(Mul(a, Add(z, b))))); }, raw,
      bias);
}
void UnboundedDecay(const float* raw, const float* bias, float rate, int64_t n, float* y) {
  const V a = Set(-rate);
  Map(n, y, [&](V z, V b) HWY_ATTR { return Exp(Mul(a, Softplus(Add(z, b)))); }, raw, bias);
}

void ExpBlock(float* x, int64_t n, float scale, float* max, float* sum) {
  const V factor = Set(scale);
  const V lowest = Set(-INFINITY);
  V largest = lowest;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V scaled = Mul(factor, LoadU(x + i));
    StoreU(scaled, x + i);
    largest = Max(largest, scaled);
  }
  for (; i < n; ++i) {
    x[i] = scale * x[i];
    largest = Max(largest, Set(x[i]));
  }
  *max = ReduceMax(largest);
  if (*max == -INFINITY) {
    for (i = 0; i < n; ++i) x[i] = 0.0f;
    *sum = 0.0f;
    return;
  }
  const V shift = Set(*max);
  Map(n, x, [&](V a) HWY_ATTR { return Exp(Sub(a, shift)); }, static_cast<const float*>(x));
  *sum = Sum(n, [](V a, V s) HWY_ATTR { return Add(a, s); }, static_cast<const float*>(x));
}

float MixScore(const float* x, const float* w, int64_t n, float eps) {
  V dot = Set(0.0f), squares = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = HWY_MIN(n - i, int64_t{kLanes});
    const V a = LoadN(x + i, count);
    dot = Fma(a, LoadN(w + i, count), dot);
    squares = Fma(a, a, squares);
  }
  return ReduceSum(dot) / std::sqrt(ReduceSum(squares) / static_cast<float>(n) + eps);
}

void WeightedSum(const float* const* sources, const float* p, int64_t count, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t width = HWY_MIN(n - i, int64_t{kLanes});
    V sum = Set(0.0f);
    for (int64_t s = 0; s < count; ++s) sum = Fma(Set(p[s]), LoadN(sources[s] + i, width), sum);
    StoreN(sum, y + i, width);
  }
}

void Widen(const WeightMatrix& w, int64_t row, float* y) {
  const int64_t n = w.cols;
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data) + row * w.ElementBytes(n);
  if (w.format == WeightFormat::kF32) {
    std::memcpy(y, bytes, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (w.format == WeightFormat::kMxfp4) {
    UnpackMxfp4Row(bytes, w.scales + row * (n / kMxfp4BlockSize), {y, static_cast<size_t>(n)});
    return;
  }
  const bool half = w.format == WeightFormat::kF16;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    StoreU(half ? LoadHalf(bytes + 2 * i) : LoadBf16(bytes + 2 * i), y + i);
  }
  for (; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    y[i] = half ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

}  // namespace

ElementwiseKernels ElementwiseTable() {
  return {.exp = ExpRow,
          .sigmoid = SigmoidRow,
          .tanh = TanhRow,
          .softplus = SoftplusRow,
          .dot = Dot,
          .rms_norm = RmsNorm,
          .gated_rms_norm = GatedRmsNorm,
          .l2_norm = L2Norm,
          .situ = Situ,
          .sigmoid_gate = SigmoidGate,
          .add = AddRow,
          .scaled_add = ScaledAdd,
          .scale = Scale,
          .conv_silu = ConvSilu,
          .bounded_decay = BoundedDecay,
          .unbounded_decay = UnboundedDecay,
          .exp_block = ExpBlock,
          .mix_score = MixScore,
          .weighted_sum = WeightedSum,
          .widen = Widen};
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

ElementwiseKernels MakeElementwiseKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::ElementwiseTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::ElementwiseTable();
  return N_SCALAR::ElementwiseTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE

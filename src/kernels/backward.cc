// Gradients of the row kernels (elementwise.cc). Everything the forward pass can give again from
// its inputs is computed again here: a row is in the cache by then, and a tape that kept it would
// have to be read from memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
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

/// f(i, count) for every group of sixteen elements of n, the last one short.
template <typename F>
HWY_INLINE void EachGroup(int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += kLanes) f(i, HWY_MIN(n - i, int64_t{kLanes}));
}

// y_i = w_i x_i r, r = (mean(x^2) + eps)^-1/2:
//   dx_i = r (w_i dy_i - x_i r^2 mean_j(w_j dy_j x_j)),  dw_i = dy_i x_i r
void RmsNormBackward(const float* x, const float* w, const float* dy, int64_t n, float eps,
                     float* dx, float* dw) {
  V squares = Set(0.0f), product = Set(0.0f);
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V a = LoadN(x + i, count);
    squares = Fma(a, a, squares);
    product = Fma(Mul(LoadN(w + i, count), LoadN(dy + i, count)), a, product);
  });
  const float size = static_cast<float>(n);
  const float r = 1.0f / std::sqrt(ReduceSum(squares) / size + eps);
  const V inverse = Set(r), pull = Set(r * r * (ReduceSum(product) / size));
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V a = LoadN(x + i, count), g = LoadN(dy + i, count);
    StoreN(Fma(g, Mul(a, inverse), LoadN(dw + i, count)), dw + i, count);
    StoreN(Mul(inverse, Fnma(a, pull, Mul(LoadN(w + i, count), g))), dx + i, count);
  });
}

// y = a b with a = b1 tanh(g / b1) sigmoid(g), b = b2 tanh(u / b2):
//   dg = dy b (sech^2(g / b1) sigmoid(g) + a (1 - sigmoid(g))),  du = dy a sech^2(u / b2)
void SituBackward(const float* gate, const float* up, const float* dy, int64_t n, float beta,
                  float linear_beta, float* y, float* dgate, float* dup) {
  const V b1 = Set(beta), b2 = Set(linear_beta), one = Set(1.0f);
  const bool linear = linear_beta == 0.0f;
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V g = LoadN(gate + i, count), u = LoadN(up + i, count), d = LoadN(dy + i, count);
    const V t = Tanh(Div(g, b1)), sigmoid = Sigmoid(g);
    const V a = Mul(Mul(b1, t), sigmoid);
    V b = u, slope = one;
    if (!linear) {
      const V t2 = Tanh(Div(u, b2));
      b = Mul(b2, t2);
      slope = Fnma(t2, t2, one);
    }
    const V rise = Fma(a, Sub(one, sigmoid), Mul(Fnma(t, t, one), sigmoid));
    StoreN(Mul(a, b), y + i, count);
    StoreN(Mul(Mul(d, b), rise), dgate + i, count);
    StoreN(Mul(Mul(d, a), slope), dup + i, count);
  });
}

// y = x s, s = sigmoid(gate): dx = dy s, dgate = dy x s (1 - s)
void SigmoidGateBackward(const float* x, const float* gate, const float* dy, int64_t n, float* y,
                         float* dx, float* dgate) {
  const V one = Set(1.0f);
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V s = Sigmoid(LoadN(gate + i, count)), d = LoadN(dy + i, count);
    const V result = Mul(LoadN(x + i, count), s);
    StoreN(result, y + i, count);
    StoreN(Mul(d, s), dx + i, count);
    StoreN(Mul(Mul(d, result), Sub(one, s)), dgate + i, count);
  });
}

// s = r (w . x), r = (mean(x^2) + eps)^-1/2: ds/dx = r w - s r^2 x / n, ds/dw = r x
void MixSourceBackward(const float* x, const float* w, const float* dy, int64_t n, float eps,
                       float p, float ds, float* dx, float* dw) {
  V squares = Set(0.0f), product = Set(0.0f);
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V a = LoadN(x + i, count);
    squares = Fma(a, a, squares);
    product = Fma(a, LoadN(w + i, count), product);
  });
  const float size = static_cast<float>(n);
  const float r = 1.0f / std::sqrt(ReduceSum(squares) / size + eps);
  const float score = r * ReduceSum(product);
  const V weight = Set(p), along = Set(ds * r), pull = Set(ds * score * (r * r / size));
  EachGroup(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V a = LoadN(x + i, count);
    V sum = Fma(weight, LoadN(dy + i, count), LoadN(dx + i, count));
    sum = Fma(along, LoadN(w + i, count), sum);
    StoreN(Fnma(pull, a, sum), dx + i, count);
    StoreN(Fma(along, a, LoadN(dw + i, count)), dw + i, count);
  });
}

}  // namespace

BackwardKernels BackwardTable() {
  return {.rms_norm = RmsNormBackward,
          .situ = SituBackward,
          .sigmoid_gate = SigmoidGateBackward,
          .mix_source = MixSourceBackward};
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace k3::kernels {

BackwardKernels MakeBackwardKernels(SimdTarget target) {
  if (target == SimdTarget::kAvx512) return N_AVX3::BackwardTable();
  if (target == SimdTarget::kAvx2) return N_AVX2::BackwardTable();
  return N_SCALAR::BackwardTable();
}

}  // namespace k3::kernels
#endif  // HWY_ONCE

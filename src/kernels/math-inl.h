// exp, sigmoid, tanh, SiLU and softplus on sixteen lanes: the only ones this engine uses, so that a
// value never depends on its place in a vector, on libm or on the target. Errors against the exact
// functions, measured by math_test.cc over every exponent: exp and tanh within 2 ulp, sigmoid and
// softplus within 3 ulp. Polynomials: Cephes (expf, tanhf); log1p by its atanh series.

#if defined(K3_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef K3_KERNELS_MATH_INL_H_
#undef K3_KERNELS_MATH_INL_H_
#else
#define K3_KERNELS_MATH_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

/// 2^n for whole n in [-126, 127].
HWY_INLINE V PowerOfTwo(VI n) { return AsFloat(ShiftLeftInt<23>(AddInt(n, SetInt(127)))); }

/// e^x; overflows to infinity, underflows through the denormals to 0, keeps NaN.
HWY_INLINE V Exp(V x) {
  x = Max(Set(-104.0f), Min(Set(89.0f), x));
  // Adding 1.5 x 2^23 rounds to a whole number whose bits stand at the end of the mantissa.
  const V magic = Set(12582912.0f);
  const V shifted = Fma(x, Set(1.44269504088896341f), magic);
  const V n = Sub(shifted, magic);
  V r = Fnma(n, Set(0.693359375f), x);
  r = Fnma(n, Set(-2.12194440e-4f), r);
  V p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  const V y = Add(Fma(p, Mul(r, r), r), Set(1.0f));
  // Two factors, since 2^n alone may be no normal number.
  const VI whole = SubInt(AsInt(shifted), AsInt(magic));
  const VI half = ShiftRightInt<1>(whole);
  return Mul(Mul(y, PowerOfTwo(half)), PowerOfTwo(SubInt(whole, half)));
}

/// 1 / (1 + e^-x), without overflow on either side.
HWY_INLINE V Sigmoid(V x) {
  const V e = Exp(Neg(Abs(x)));
  const V one = Set(1.0f);
  return Div(Select(Less(x, Set(0.0f)), e, one), Add(one, e));
}

HWY_INLINE V Tanh(V x) {
  const V magnitude = Abs(x);
  const V square = Mul(x, x);
  V p = Set(-5.70498872745e-3f);
  p = Fma(p, square, Set(2.06390887954e-2f));
  p = Fma(p, square, Set(-5.37397155531e-2f));
  p = Fma(p, square, Set(1.33314422036e-1f));
  p = Fma(p, square, Set(-3.33332819422e-1f));
  const V small = Fma(Mul(p, square), x, x);
  const V e = Exp(Add(magnitude, magnitude));
  const V large = Sub(Set(1.0f), Div(Set(2.0f), Add(e, Set(1.0f))));
  return Select(Less(magnitude, Set(0.625f)), small, CopySign(large, x));
}

HWY_INLINE V Silu(V x) { return Mul(x, Sigmoid(x)); }

/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
HWY_INLINE V Softplus(V x) {
  const V y = Exp(Neg(Abs(x)));
  // log1p(y) = 2 atanh(y / (2 + y)), with y / (2 + y) at most 1/3.
  const V s = Div(y, Add(y, Set(2.0f)));
  const V square = Mul(s, s);
  V p = Set(1.0f / 17);
  p = Fma(p, square, Set(1.0f / 15));
  p = Fma(p, square, Set(1.0f / 13));
  p = Fma(p, square, Set(1.0f / 11));
  p = Fma(p, square, Set(1.0f / 9));
  p = Fma(p, square, Set(1.0f / 7));
  p = Fma(p, square, Set(1.0f / 5));
  p = Fma(p, square, Set(1.0f / 3));
  const V twice = Add(s, s);
  const V log1p = Fma(Mul(p, square), twice, twice);
  return Add(Max(Set(0.0f), x), log1p);
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

// Sixteen float lanes on every target: one AVX-512 register, two AVX2 registers or a plain array.
// Every operation is a correctly rounded IEEE operation on each lane and the reduction tree is
// fixed, so a kernel written with these gives the same bits on every target. Included once for
// each Highway target, hence no #pragma once.

#if defined(K3_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef K3_KERNELS_SIMD_INL_H_
#undef K3_KERNELS_SIMD_INL_H_
#else
#define K3_KERNELS_SIMD_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace k3::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kLanes = 16;

/// Calls f(integral_constant 0) ... f(integral_constant N-1), unrolled at compile time.
template <int N, typename F>
HWY_INLINE HWY_ATTR void Unroll(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) HWY_ATTR {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU = hn::ScalableTag<uint32_t>;
inline constexpr int kParts = kLanes / static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kPartLanes = kLanes / kParts;
inline constexpr bool kScalarTarget = false;

struct V {
  hn::Vec<DF> p[kParts];
};
struct VI {
  hn::Vec<DI> p[kParts];
};
struct M {
  hn::Mask<DF> p[kParts];
};

#define K3_FOR_PARTS(i) for (int i = 0; i < kParts; ++i)

HWY_INLINE V Set(float x) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::Set(DF(), x);
  return r;
}
HWY_INLINE VI SetInt(int32_t x) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::Set(DI(), x);
  return r;
}
HWY_INLINE V LoadU(const float* HWY_RESTRICT x) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::LoadU(DF(), x + i * kPartLanes);
  return r;
}
HWY_INLINE void StoreU(V v, float* HWY_RESTRICT x) {
  K3_FOR_PARTS(i) hn::StoreU(v.p[i], DF(), x + i * kPartLanes);
}
/// The first n (0 to 16) lanes from memory, zero in the others; touches no byte beyond.
HWY_INLINE V LoadN(const float* HWY_RESTRICT x, int64_t n) {
  V r;
  K3_FOR_PARTS(i) {
    const int64_t left = HWY_MIN(HWY_MAX(n - i * kPartLanes, int64_t{0}), int64_t{kPartLanes});
    r.p[i] = hn::MaskedLoad(hn::FirstN(DF(), static_cast<size_t>(left)), DF(), x + i * kPartLanes);
  }
  return r;
}
HWY_INLINE void StoreN(V v, float* HWY_RESTRICT x, int64_t n) {
  K3_FOR_PARTS(i) {
    const int64_t left = HWY_MIN(HWY_MAX(n - i * kPartLanes, int64_t{0}), int64_t{kPartLanes});
    hn::BlendedStore(v.p[i], hn::FirstN(DF(), static_cast<size_t>(left)), DF(), x + i * kPartLanes);
  }
}
#define K3_UNARY(name, expression)                   \
  HWY_INLINE V name(V a) {                           \
    V r;                                             \
    K3_FOR_PARTS(i) r.p[i] = hn::expression(a.p[i]); \
    return r;                                        \
  }
K3_UNARY(Neg, Neg)
K3_UNARY(Abs, Abs)
K3_UNARY(Sqrt, Sqrt)
#undef K3_UNARY
#define K3_BINARY(name, expression)                          \
  HWY_INLINE V name(V a, V b) {                              \
    V r;                                                     \
    K3_FOR_PARTS(i) r.p[i] = hn::expression(a.p[i], b.p[i]); \
    return r;                                                \
  }
K3_BINARY(Add, Add)
K3_BINARY(Sub, Sub)
K3_BINARY(Mul, Mul)
K3_BINARY(Div, Div)
/// a < b ? a : b, so that a NaN in b is kept.
K3_BINARY(Min, Min)
/// a > b ? a : b, so that a NaN in b is kept.
K3_BINARY(Max, Max)
#undef K3_BINARY
/// a * b + c, rounded once.
HWY_INLINE V Fma(V a, V b, V c) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::MulAdd(a.p[i], b.p[i], c.p[i]);
  return r;
}
/// c - a * b, rounded once.
HWY_INLINE V Fnma(V a, V b, V c) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::NegMulAdd(a.p[i], b.p[i], c.p[i]);
  return r;
}
HWY_INLINE M Less(V a, V b) {
  M r;
  K3_FOR_PARTS(i) r.p[i] = hn::Lt(a.p[i], b.p[i]);
  return r;
}
HWY_INLINE V Select(M mask, V yes, V no) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::IfThenElse(mask.p[i], yes.p[i], no.p[i]);
  return r;
}
HWY_INLINE V CopySign(V magnitude, V sign) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::CopySign(magnitude.p[i], sign.p[i]);
  return r;
}
HWY_INLINE VI AsInt(V a) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::BitCast(DI(), a.p[i]);
  return r;
}
HWY_INLINE V AsFloat(VI a) {
  V r;
  K3_FOR_PARTS(i) r.p[i] = hn::BitCast(DF(), a.p[i]);
  return r;
}
HWY_INLINE VI AddInt(VI a, VI b) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::Add(a.p[i], b.p[i]);
  return r;
}
HWY_INLINE VI SubInt(VI a, VI b) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::Sub(a.p[i], b.p[i]);
  return r;
}
template <int kBits>
HWY_INLINE VI ShiftLeftInt(VI a) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::ShiftLeft<kBits>(a.p[i]);
  return r;
}
/// Arithmetic: rounds towards minus infinity.
template <int kBits>
HWY_INLINE VI ShiftRightInt(VI a) {
  VI r;
  K3_FOR_PARTS(i) r.p[i] = hn::ShiftRight<kBits>(a.p[i]);
  return r;
}

/// Lane l + lane l+8, then +4, +2, +1.
HWY_INLINE float ReduceSum(V v) {
#if HWY_TARGET == HWY_AVX3
  const __m512 x = v.p[0].raw;
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
  const __m256 a = _mm256_add_ps(v.p[0].raw, v.p[1].raw);
#endif
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/// ReduceSum of four vectors, one after the other in memory: the same trees side by side.
HWY_INLINE void ReduceSums4(V a, V b, V c, V d, float* HWY_RESTRICT y) {
#if HWY_TARGET == HWY_AVX3
  const auto halves = [](V one, V two) HWY_ATTR {
    const __m512 x = one.p[0].raw, z = two.p[0].raw;
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, z, 0x44), _mm512_shuffle_f32x4(x, z, 0xEE));
  };
  const __m512 ab = halves(a, b), cd = halves(c, d);
  const __m512 four =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
  const __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
  _mm_storeu_ps(y, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
#else
  const auto halves = [](V v) HWY_ATTR { return _mm256_add_ps(v.p[0].raw, v.p[1].raw); };
  const auto quarters = [](__m256 x, __m256 z) HWY_ATTR {
    return _mm256_add_ps(_mm256_permute2f128_ps(x, z, 0x20), _mm256_permute2f128_ps(x, z, 0x31));
  };
  const __m256 ab = quarters(halves(a), halves(b)), cd = quarters(halves(c), halves(d));
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xB1));  // a a c c, b b d d
  _mm_storeu_ps(y, _mm_blend_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1), 10));
#endif
}
#if HWY_TARGET == HWY_AVX3
/// y[r * ldy + c] = ReduceSum(sum[r][c]): sixteen of the same trees at once. Four sums share a
/// vector after the first two steps, so that every later addition is of sixteen lanes that count.
HWY_INLINE void ReduceSums4x4(const V (&sum)[4][4], float* HWY_RESTRICT y, int64_t ldy) {
  const auto halves = [](V one, V two) HWY_ATTR {
    const __m512 x = one.p[0].raw, z = two.p[0].raw;
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, z, 0x44), _mm512_shuffle_f32x4(x, z, 0xEE));
  };
  // Column c of all rows: one row in each quarter.
  const auto quarters = [&](int c) HWY_ATTR {
    const __m512 x = halves(sum[0][c], sum[1][c]), z = halves(sum[2][c], sum[3][c]);
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, z, 0x88), _mm512_shuffle_f32x4(x, z, 0xDD));
  };
  const auto pairs = [](__m512 x, __m512 z) HWY_ATTR {
    return _mm512_add_ps(_mm512_shuffle_ps(x, z, 0x44), _mm512_shuffle_ps(x, z, 0xEE));
  };
  const __m512 low = pairs(quarters(0), quarters(1)), high = pairs(quarters(2), quarters(3));
  const __m512 all =
      _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xDD));
  _mm_storeu_ps(y, _mm512_castps512_ps128(all));
  _mm_storeu_ps(y + ldy, _mm512_extractf32x4_ps(all, 1));
  _mm_storeu_ps(y + 2 * ldy, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(y + 3 * ldy, _mm512_extractf32x4_ps(all, 3));
}
#endif
HWY_INLINE float ReduceMax(V v) {
#if HWY_TARGET == HWY_AVX3
  const __m512 x = v.p[0].raw;
  const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
  const __m256 a = _mm256_max_ps(v.p[0].raw, v.p[1].raw);
#endif
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/// 32 consecutive bfloat16 (any alignment): the even ones and the odd ones, widened.
HWY_INLINE void LoadBf16Pairs(const uint8_t* HWY_RESTRICT x, V& even, V& odd) {
  K3_FOR_PARTS(i) {
    const hn::Vec<DU> bits =
        hn::BitCast(DU(), hn::LoadU(hn::Repartition<uint8_t, DU>(), x + i * kPartLanes * 4));
    even.p[i] = hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
    odd.p[i] = hn::BitCast(DF(), hn::And(bits, hn::Set(DU(), 0xFFFF0000u)));
  }
}
/// One half of LoadBf16Pairs: the even elements, or the odd ones.
template <bool kOdd>
HWY_INLINE V LoadBf16Half(const uint8_t* HWY_RESTRICT x) {
  V r;
  K3_FOR_PARTS(i) {
    const hn::Vec<DU> bits =
        hn::BitCast(DU(), hn::LoadU(hn::Repartition<uint8_t, DU>(), x + i * kPartLanes * 4));
    r.p[i] = hn::BitCast(
        DF(), kOdd ? hn::And(bits, hn::Set(DU(), 0xFFFF0000u)) : hn::ShiftLeft<16>(bits));
  }
  return r;
}
/// 16 consecutive bfloat16, widened.
HWY_INLINE V LoadBf16(const uint8_t* HWY_RESTRICT x) {
  V r;
  K3_FOR_PARTS(i) {
    const hn::Rebind<uint16_t, DU> d16;
    uint16_t lanes[kPartLanes];
    std::memcpy(lanes, x + i * kPartLanes * 2, sizeof(lanes));
    r.p[i] = hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, lanes))));
  }
  return r;
}
/// 32 consecutive floats: the even ones and the odd ones.
HWY_INLINE void Deinterleave(V first, V second, V& even, V& odd) {
#if HWY_TARGET == HWY_AVX3
  const __m512i even_at =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd_at = _mm512_add_epi32(even_at, _mm512_set1_epi32(1));
  even.p[0].raw = _mm512_permutex2var_ps(first.p[0].raw, even_at, second.p[0].raw);
  odd.p[0].raw = _mm512_permutex2var_ps(first.p[0].raw, odd_at, second.p[0].raw);
#else
  const V source[2] = {first, second};
  const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
  for (int i = 0; i < 2; ++i) {
    const __m256 a = source[i].p[0].raw, b = source[i].p[1].raw;
    even.p[i].raw = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0x88), order);
    odd.p[i].raw = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0xDD), order);
  }
#endif
}

/// One MXFP4 block of 32 (16 bytes of codes): the even elements and the odd ones, scaled.
HWY_INLINE void LoadMxfp4Block(const uint8_t* HWY_RESTRICT codes, float scale, V& even, V& odd) {
#if HWY_TARGET == HWY_AVX3
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                      -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  const __m512 scaled = _mm512_mul_ps(table, _mm512_set1_ps(scale));
  __m128i packed;
  std::memcpy(&packed, codes, sizeof(packed));
  const __m512i low = _mm512_cvtepu8_epi32(packed);
  // permutexvar reads the low four bits of each index alone, so the nibbles need no masking.
  even.p[0].raw = _mm512_permutexvar_ps(low, scaled);
  odd.p[0].raw = _mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), scaled);
#else
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 scaled = _mm256_mul_ps(table, _mm256_set1_ps(scale));
  const __m256i sign_bit = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  for (int i = 0; i < 2; ++i) {
    int64_t packed;
    std::memcpy(&packed, codes + 8 * i, sizeof(packed));
    const __m256i low = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(packed));
    const __m256i high = _mm256_srli_epi32(low, 4);
    const __m256i low_sign = _mm256_and_si256(_mm256_slli_epi32(low, 28), sign_bit);
    const __m256i high_sign = _mm256_and_si256(_mm256_slli_epi32(low, 24), sign_bit);
    even.p[i].raw =
        _mm256_xor_ps(_mm256_permutevar8x32_ps(scaled, low), _mm256_castsi256_ps(low_sign));
    odd.p[i].raw =
        _mm256_xor_ps(_mm256_permutevar8x32_ps(scaled, high), _mm256_castsi256_ps(high_sign));
  }
#endif
}

/// Sixteen E8M0 scales: 2^(scale - 127), with the subnormal 2^-127 for 0.
HWY_INLINE V LoadE8m0(const uint8_t* HWY_RESTRICT scales) {
  V r;
  K3_FOR_PARTS(i) {
    const hn::Rebind<uint8_t, DU> d8;
    const hn::Vec<DU> bits =
        hn::ShiftLeft<23>(hn::PromoteTo(DU(), hn::LoadU(d8, scales + i * kPartLanes)));
    r.p[i] = hn::BitCast(DF(), hn::Max(bits, hn::Set(DU(), 0x00400000u)));
  }
  return r;
}

HWY_INLINE V LoadHalf(const uint8_t* HWY_RESTRICT x) {
  V r;
  K3_FOR_PARTS(i) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    hwy::float16_t lanes[kPartLanes];
    std::memcpy(lanes, x + i * kPartLanes * 2, sizeof(lanes));
    r.p[i] = hn::PromoteTo(DF(), hn::LoadU(d16, lanes));
  }
  return r;
}

#undef K3_FOR_PARTS

#else  // the scalar target

inline constexpr int kParts = kLanes;
inline constexpr bool kScalarTarget = true;

struct V {
  float p[kLanes];
};
struct VI {
  int32_t p[kLanes];
};
struct M {
  bool p[kLanes];
};

#define K3_LANES(type, expression)                        \
  type r;                                                 \
  for (int i = 0; i < kLanes; ++i) r.p[i] = (expression); \
  return r

HWY_INLINE V Set(float x) { K3_LANES(V, x); }
HWY_INLINE VI SetInt(int32_t x) { K3_LANES(VI, x); }
HWY_INLINE V LoadU(const float* x) { K3_LANES(V, x[i]); }
HWY_INLINE void StoreU(V v, float* x) { std::memcpy(x, v.p, sizeof(v.p)); }
HWY_INLINE V LoadN(const float* x, int64_t n) { K3_LANES(V, i < n ? x[i] : 0.0f); }
HWY_INLINE void StoreN(V v, float* x, int64_t n) {
  for (int i = 0; i < kLanes && i < n; ++i) x[i] = v.p[i];
}
HWY_INLINE V Neg(V a) { K3_LANES(V, -a.p[i]); }
HWY_INLINE V Abs(V a) { K3_LANES(V, std::fabs(a.p[i])); }
HWY_INLINE V Sqrt(V a) { K3_LANES(V, std::sqrt(a.p[i])); }
HWY_INLINE V Add(V a, V b) { K3_LANES(V, a.p[i] + b.p[i]); }
HWY_INLINE V Sub(V a, V b) { K3_LANES(V, a.p[i] - b.p[i]); }
HWY_INLINE V Mul(V a, V b) { K3_LANES(V, a.p[i] * b.p[i]); }
HWY_INLINE V Div(V a, V b) { K3_LANES(V, a.p[i] / b.p[i]); }
HWY_INLINE V Min(V a, V b) { K3_LANES(V, a.p[i] < b.p[i] ? a.p[i] : b.p[i]); }
HWY_INLINE V Max(V a, V b) { K3_LANES(V, a.p[i] > b.p[i] ? a.p[i] : b.p[i]); }
HWY_INLINE V Fma(V a, V b, V c) { K3_LANES(V, std::fma(a.p[i], b.p[i], c.p[i])); }
HWY_INLINE V Fnma(V a, V b, V c) { K3_LANES(V, std::fma(-a.p[i], b.p[i], c.p[i])); }
HWY_INLINE M Less(V a, V b) { K3_LANES(M, a.p[i] < b.p[i]); }
HWY_INLINE V Select(M m, V yes, V no) { K3_LANES(V, m.p[i] ? yes.p[i] : no.p[i]); }
HWY_INLINE V CopySign(V a, V s) { K3_LANES(V, std::copysign(a.p[i], s.p[i])); }
HWY_INLINE VI AsInt(V a) { K3_LANES(VI, std::bit_cast<int32_t>(a.p[i])); }
HWY_INLINE V AsFloat(VI a) { K3_LANES(V, std::bit_cast<float>(a.p[i])); }
// Integer lanes wrap, as they do in registers.
HWY_INLINE int32_t Wrap(uint32_t x) { return std::bit_cast<int32_t>(x); }
HWY_INLINE VI AddInt(VI a, VI b) {
  K3_LANES(VI, Wrap(static_cast<uint32_t>(a.p[i]) + static_cast<uint32_t>(b.p[i])));
}
HWY_INLINE VI SubInt(VI a, VI b) {
  K3_LANES(VI, Wrap(static_cast<uint32_t>(a.p[i]) - static_cast<uint32_t>(b.p[i])));
}
template <int kBits>
HWY_INLINE VI ShiftLeftInt(VI a) {
  K3_LANES(VI, Wrap(static_cast<uint32_t>(a.p[i]) << kBits));
}
template <int kBits>
HWY_INLINE VI ShiftRightInt(VI a) {
  K3_LANES(VI, a.p[i] >> kBits);
}
HWY_INLINE float ReduceSum(V v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.p[i] += v.p[i + width];
  }
  return v.p[0];
}
HWY_INLINE void ReduceSums4(V a, V b, V c, V d, float* y) {
  const float sums[4] = {ReduceSum(a), ReduceSum(b), ReduceSum(c), ReduceSum(d)};
  std::memcpy(y, sums, sizeof(sums));
}
HWY_INLINE float ReduceMax(V v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.p[i] = v.p[i] > v.p[i + width] ? v.p[i] : v.p[i + width];
  }
  return v.p[0];
}
HWY_INLINE uint16_t Load16(const uint8_t* x) {
  uint16_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return bits;
}
HWY_INLINE V LoadBf16(const uint8_t* x) { K3_LANES(V, Bf16ToFloat(Load16(x + 2 * i))); }
HWY_INLINE V LoadHalf(const uint8_t* x) { K3_LANES(V, HalfToFloat(Load16(x + 2 * i))); }
HWY_INLINE V LoadE8m0(const uint8_t* scales) { K3_LANES(V, E8m0ToFloat(scales[i])); }
HWY_INLINE void LoadBf16Pairs(const uint8_t* x, V& even, V& odd) {
  for (int i = 0; i < kLanes; ++i) {
    even.p[i] = Bf16ToFloat(Load16(x + 4 * i));
    odd.p[i] = Bf16ToFloat(Load16(x + 4 * i + 2));
  }
}
template <bool kOdd>
HWY_INLINE V LoadBf16Half(const uint8_t* x) {
  V r;
  for (int i = 0; i < kLanes; ++i) r.p[i] = Bf16ToFloat(Load16(x + 4 * i + (kOdd ? 2 : 0)));
  return r;
}
HWY_INLINE void Deinterleave(V first, V second, V& even, V& odd) {
  for (int i = 0; i < kLanes / 2; ++i) {
    even.p[i] = first.p[2 * i];
    odd.p[i] = first.p[2 * i + 1];
    even.p[i + 8] = second.p[2 * i];
    odd.p[i + 8] = second.p[2 * i + 1];
  }
}
HWY_INLINE void LoadMxfp4Block(const uint8_t* codes, float scale, V& even, V& odd) {
  for (int i = 0; i < kLanes; ++i) {
    even.p[i] = kE2m1Values[codes[i] & 15] * scale;
    odd.p[i] = kE2m1Values[codes[i] >> 4] * scale;
  }
}
#undef K3_LANES

#endif

/// y[i] = ReduceSum(sum[i]).
template <int kCount>
HWY_INLINE void ReduceSums(const V (&sum)[kCount], float* HWY_RESTRICT y) {
  constexpr int kFours = kCount / 4 * 4;
  Unroll<kFours / 4>([&](auto i) HWY_ATTR {
    ReduceSums4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3], y + 4 * i);
  });
  Unroll<kCount - kFours>([&](auto i) HWY_ATTR { y[kFours + i] = ReduceSum(sum[kFours + i]); });
}

}  // namespace HWY_NAMESPACE
}  // namespace k3::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

#pragma once
// The SIMD targets that kernels are compiled for. All of them give the same bits: sixteen lanes,
// the same order of operations, fused multiply-add everywhere.

#include <optional>
#include <string_view>

namespace k3 {

enum class SimdTarget { kScalar, kAvx2, kAvx512 };

/// "scalar", "avx2", "avx512".
std::string_view SimdTargetName(SimdTarget target);
std::optional<SimdTarget> ParseSimdTarget(std::string_view name);

/// Whether this processor can run `target`.
bool IsSupported(SimdTarget target);
/// The widest target this processor can run.
SimdTarget BestSimdTarget();

}  // namespace k3

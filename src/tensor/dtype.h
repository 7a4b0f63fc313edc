#pragma once
// Element types of stored tensors, with the names that safetensors headers use.

#include <cstdint>
#include <optional>
#include <string_view>

namespace k3 {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kBool,
  kF8E4M3,
  kF8E5M2
};

/// Bytes of one element.
int64_t DTypeBytes(DType dtype);
/// "F32", "BF16", ...
std::string_view DTypeName(DType dtype);
/// The type a safetensors header names; nothing for an unknown name.
std::optional<DType> ParseDType(std::string_view name);

}  // namespace k3

#include "tensor/dtype.h"

#include <array>

namespace k3 {
namespace {
struct Entry {
  std::string_view name;
  int64_t bytes;
};
// In the order of the enumeration.
constexpr std::array<Entry, 12> kEntries = {{{"F32", 4},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"F64", 8},
                                             {"U8", 1},
                                             {"I8", 1},
                                             {"I16", 2},
                                             {"I32", 4},
                                             {"I64", 8},
                                             {"BOOL", 1},
                                             {"F8_E4M3", 1},
                                             {"F8_E5M2", 1}}};
}  // namespace

int64_t DTypeBytes(DType dtype) { return kEntries[static_cast<size_t>(dtype)].bytes; }
std::string_view DTypeName(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace k3

#include "checkpoint/name_arena.h"

#include <algorithm>
#include <cstring>

namespace k3 {

std::string_view NameArena::Add(std::string_view name) {
  constexpr size_t kBlockBytes = size_t{64} << 10;
  if (name.empty()) return {};
  if (name.size() > free_bytes_) {
    const size_t bytes = std::max(kBlockBytes, name.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
    free_ = blocks_.back().get();
    free_bytes_ = bytes;
  }
  char* copy = free_;
  std::memcpy(copy, name.data(), name.size());
  free_ += name.size();
  free_bytes_ -= name.size();
  return {copy, name.size()};
}

}  // namespace k3

#pragma once
// NameArena: half a million tensor names in a few large blocks instead of as many strings. Views
// into it stay valid while it lives, over moves too. One thread while adding, any when reading.

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace k3 {

class NameArena {
 public:
  /// Copies `name`; the view is valid until the arena is destroyed.
  std::string_view Add(std::string_view name);

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t free_bytes_ = 0;
  char* free_ = nullptr;
};

}  // namespace k3

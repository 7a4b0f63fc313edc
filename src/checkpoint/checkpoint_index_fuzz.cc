// Feeds arbitrary bytes to the index reader. Every shard name it hands out must be a plain file
// name.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  int64_t entries = 0;
  const auto result =
      k3::ReadShardIndex(text, "index", [&](std::string_view, std::string_view shard) {
        K3_CHECK(!shard.empty() && shard.find('/') == std::string_view::npos,
                 "stays in the directory");
        K3_CHECK(shard.find("..") == std::string_view::npos, "stays in the directory");
        // A visitor may stop the reading at any entry.
        return ++entries == 100 ? k3::Cancelled("enough") : k3::OkStatus();
      });
  if (result.ok() && result->layers.has_value()) {
    K3_CHECK(0 <= result->layers->first && result->layers->first <= result->layers->last,
             "a range of layers");
  }
  if (!result.ok()) K3_CHECK(!result.status().message().empty(), "a failure says why");
  return 0;
}

// Feeds arbitrary bytes to both configuration parsers. A configuration that passes must describe
// layers consistently, because everything behind it trusts that.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "config/json.h"
#include "config/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = k3::ParseModelConfig(text, "config.json");
  if (config.ok()) {
    K3_CHECK(std::ssize(config->is_mla) == config->layers, "one kind for each layer");
    K3_CHECK(config->hidden_size > 0 && config->vocab_size > 0, "sizes are positive");
    for (int64_t layer = 0; layer < config->layers; ++layer) {
      K3_CHECK(config->IsDense(layer) || config->moe.experts > 0, "a mixture has experts");
    }
  } else {
    K3_CHECK(!config.status().message().empty(), "a failure says why");
  }
  (void)k3::ParseGenerationConfig(text, "generation_config.json").ok();
  return 0;
}

#include <fmt/format.h>

#include <limits>

#include "base/limits.h"
#include "config/field_reader.h"
#include "config/json.h"
#include "config/model_config.h"

namespace k3 {
namespace {
constexpr int64_t kStopTokensMax = 64;
}  // namespace

// Fields other than these belong to other programs' samplers and are left alone.
Result<GenerationConfig> ParseGenerationConfig(std::string_view json, std::string_view where) {
  K3_TRY(const JsonValue root, ParseJson(json, where));
  if (root.members() == nullptr) {
    return InvalidArgument(fmt::format("{}: expected an object, found {}", where, root.Describe()));
  }
  Status failure;
  FieldReader reader(root, where, "", &failure);
  GenerationConfig config;
  config.eos_token_ids =
      reader.IntegerList("eos_token_id", {0, limits::kVocabularyMax - 1}, kStopTokensMax);
  config.temperature = reader.OptionalFloat(
      "temperature", {0, std::numeric_limits<float>::max(), /*inclusive=*/true});
  config.top_p = reader.OptionalFloat("top_p", {0, 1});
  config.top_k = reader.OptionalInteger("top_k", {0, limits::kVocabularyMax});
  config.max_length = reader.OptionalInteger("max_length", {1, limits::kContextTokensMax});
  K3_RETURN_IF_ERROR(failure);
  return config;
}

}  // namespace k3

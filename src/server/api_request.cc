#include "server/api_request.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "base/limits.h"
#include "server/api_chat.h"
#include "server/api_fields.h"
#include "text/stop_matcher.h"

namespace k3::server {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr float kFloatMax = std::numeric_limits<float>::max();
// What OpenAI generates for a text completion that does not say how much.
constexpr int64_t kTextTokensDefault = 16;

Result<JsonValue> ParseBody(std::string_view body) {
  K3_TRY(JsonValue json, ParseJson(body, "body"));
  if (json.members() == nullptr) return Expected("body", "an object", json);
  return json;
}

Status CheckModel(const FieldsReader& reader, const RequestContext& context) {
  std::string model = context.model;
  K3_RETURN_IF_ERROR(reader.Read("model", model));
  if (model == context.model) return OkStatus();
  return NotFound(fmt::format("model: expected {}, which is what is served here, found {}",
                              QuoteForMessage(context.model), QuoteForMessage(model)));
}

/// Fields that change no answer, and are taken as long as they ask for nothing.
Status CheckHarmless(const FieldsReader& reader) {
  std::string text;
  for (const std::string_view name : {"user", "safety_identifier", "prompt_cache_key"}) {
    K3_RETURN_IF_ERROR(reader.Read(name, text));
  }
  const JsonValue* metadata = reader.Get("metadata");
  if (metadata != nullptr && metadata->members() == nullptr) {
    return Expected("metadata", "an object", *metadata);
  }
  K3_RETURN_IF_ERROR(reader.RefuseTrue("store", "the server stores no completions"));
  std::string tier = "auto";
  K3_RETURN_IF_ERROR(reader.Read("service_tier", tier));
  if (tier == "auto" || tier == "default") return OkStatus();
  return Unimplemented(
      fmt::format("service_tier: expected auto or default, found {}", QuoteForMessage(tier)));
}

Status ReadStreaming(const FieldsReader& reader, CompletionParams& params) {
  K3_RETURN_IF_ERROR(reader.Read("stream", params.stream));
  const JsonValue* options = reader.Get("stream_options");
  if (options == nullptr) return OkStatus();
  if (options->members() == nullptr) return Expected("stream_options", "an object", *options);
  if (!params.stream) {
    return Expected("stream_options", "nothing unless stream is true", *options);
  }
  constexpr std::array<std::string_view, 2> kFields = {"include_usage", "include_obfuscation"};
  K3_RETURN_IF_ERROR(CheckNames(*options, "stream_options", kFields));
  const FieldsReader options_reader(*options, "stream_options");
  K3_RETURN_IF_ERROR(options_reader.RefuseTrue("include_obfuscation", "not supported"));
  return options_reader.Read("include_usage", params.include_usage);
}

Status ReadLogitBias(const FieldsReader& reader, int64_t vocab_size, SamplingOptions& sampling) {
  const JsonValue* bias = reader.Get("logit_bias");
  if (bias == nullptr) return OkStatus();
  if (bias->members() == nullptr) {
    return Expected("logit_bias", "an object of token ids and numbers", *bias);
  }
  if (std::ssize(*bias->members()) > limits::kApiLogitBiasMax) {
    return Expected("logit_bias", fmt::format("at most {} entries", limits::kApiLogitBiasMax),
                    *bias);
  }
  for (const auto& [name, value] : *bias->members()) {
    LogitBias entry;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data(), end, entry.id);
    // One id has one spelling, so that none can stand there twice.
    const bool is_id = error == std::errc() && at == end && std::to_string(entry.id) == name;
    if (!is_id || entry.id < 0 || entry.id >= vocab_size) {
      return InvalidArgument(
          fmt::format("logit_bias: expected ids of tokens from 0 to {}, found {}", vocab_size - 1,
                      QuoteForMessage(name)));
    }
    K3_RETURN_IF_ERROR(ReadNumber(value, fmt::format("logit_bias.{}", name), entry.bias,
                                  {.min = -kLogitBiasMax, .max = kLogitBiasMax}));
    sampling.logit_bias.push_back(entry);
  }
  return OkStatus();
}

Status ReadSampling(const FieldsReader& reader, int64_t vocab_size, CompletionParams& params) {
  SamplingOptions& sampling = params.sampling;
  K3_RETURN_IF_ERROR(reader.Read("temperature", sampling.temperature, {.max = kFloatMax}));
  K3_RETURN_IF_ERROR(reader.Read("top_p", sampling.top_p, {.max = 1, .above = true}));
  K3_RETURN_IF_ERROR(reader.Read("min_p", sampling.min_p, {.max = 1}));
  std::optional<int64_t> top_k;
  K3_RETURN_IF_ERROR(reader.Read("top_k", top_k, -1, kInt64Max));
  // Some clients say -1 for all tokens.
  if (top_k.has_value()) sampling.top_k = *top_k == -1 ? 0 : *top_k;
  constexpr Bounds kPenalty = {.min = -kCountPenaltyMax, .max = kCountPenaltyMax};
  K3_RETURN_IF_ERROR(reader.Read("presence_penalty", sampling.presence_penalty, kPenalty));
  K3_RETURN_IF_ERROR(reader.Read("frequency_penalty", sampling.frequency_penalty, kPenalty));
  K3_RETURN_IF_ERROR(reader.Read("repetition_penalty", sampling.repetition_penalty,
                                 {.max = kFloatMax, .above = true}));
  std::optional<int64_t> seed;
  K3_RETURN_IF_ERROR(reader.Read("seed", seed, std::numeric_limits<int64_t>::min(), kInt64Max));
  params.has_seed = seed.has_value();
  if (seed.has_value()) sampling.seed = static_cast<uint64_t>(*seed);
  K3_RETURN_IF_ERROR(ReadLogitBias(reader, vocab_size, sampling));
  // The defaults may come from a file, and have to be valid as well.
  return sampling.Validate();
}

Status CheckStop(const JsonValue& value, const std::string& path) {
  const std::string expected = fmt::format("a string of 1 to {} bytes", kStopStringBytesMax);
  if (value.string() == nullptr || value.string()->empty() ||
      std::ssize(*value.string()) > kStopStringBytesMax) {
    return Expected(path, expected, value);
  }
  return OkStatus();
}

Status ReadStop(const FieldsReader& reader, std::vector<std::string>& stop) {
  const JsonValue* found = reader.Get("stop");
  if (found == nullptr) return OkStatus();
  if (found->string() != nullptr) {
    K3_RETURN_IF_ERROR(CheckStop(*found, "stop"));
    stop.push_back(*found->string());
    return OkStatus();
  }
  if (found->items() == nullptr || std::ssize(*found->items()) > limits::kApiStopStringsMax) {
    return Expected("stop",
                    fmt::format("a string or an array of at most {}", limits::kApiStopStringsMax),
                    *found);
  }
  for (size_t i = 0; i < found->items()->size(); ++i) {
    const JsonValue& item = (*found->items())[i];
    K3_RETURN_IF_ERROR(CheckStop(item, fmt::format("stop[{}]", i)));
    stop.push_back(*item.string());
  }
  return OkStatus();
}

/// All that both kinds of completion take, but for the log-probabilities.
Status ReadCommon(const FieldsReader& reader, const RequestContext& context,
                  CompletionParams& params) {
  params.sampling = context.sampling;
  K3_RETURN_IF_ERROR(CheckModel(reader, context));
  K3_RETURN_IF_ERROR(CheckHarmless(reader));
  K3_RETURN_IF_ERROR(ReadStreaming(reader, params));
  K3_RETURN_IF_ERROR(reader.Read("max_tokens", params.max_tokens, 1, kInt64Max));
  K3_RETURN_IF_ERROR(ReadSampling(reader, context.vocab_size, params));
  K3_RETURN_IF_ERROR(ReadStop(reader, params.stop));
  std::optional<int64_t> count;
  K3_RETURN_IF_ERROR(reader.Read("n", count, 1, limits::kApiChoicesMax));
  params.choices_count = count.value_or(1);
  K3_RETURN_IF_ERROR(reader.Read("cache_salt", params.cache_salt));
  if (std::ssize(params.cache_salt) > limits::kApiCacheSaltBytesMax) {
    return InvalidArgument(fmt::format("cache_salt: expected at most {} bytes, found {}",
                                       limits::kApiCacheSaltBytesMax, params.cache_salt.size()));
  }
  return OkStatus();
}

Status ReadChatLimits(const FieldsReader& reader, CompletionParams& params) {
  std::optional<int64_t> completion;
  K3_RETURN_IF_ERROR(reader.Read("max_completion_tokens", completion, 1, kInt64Max));
  if (completion.has_value() && params.max_tokens.has_value() && completion != params.max_tokens) {
    return InvalidArgument(
        fmt::format("max_completion_tokens: expected one limit, found {} beside max_tokens {}",
                    *completion, *params.max_tokens));
  }
  if (completion.has_value()) params.max_tokens = completion;
  K3_RETURN_IF_ERROR(reader.Read("logprobs", params.logprobs));
  std::optional<int64_t> top;
  K3_RETURN_IF_ERROR(reader.Read("top_logprobs", top, 0, kTopLogProbsMax));
  if (top.value_or(0) > 0 && !params.logprobs) {
    return InvalidArgument(
        fmt::format("top_logprobs: expected nothing unless logprobs is true, found {}", *top));
  }
  params.sampling.top_log_probs = top.value_or(0);
  return OkStatus();
}

Status CheckModalities(const FieldsReader& reader) {
  const JsonValue* modalities = reader.Get("modalities");
  if (modalities == nullptr) return OkStatus();
  const JsonValue::Items* items = modalities->items();
  if (items == nullptr) return Expected("modalities", "an array", *modalities);
  for (const JsonValue& item : *items) {
    if (item.string() != nullptr && *item.string() == "text") continue;
    return Unimplemented(
        fmt::format("modalities: the model answers with text alone, found {}", item.Describe()));
  }
  return OkStatus();
}

Result<std::vector<int32_t>> ReadIds(const JsonValue& json, const std::string& path,
                                     int64_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(json.items()->size());
  for (size_t i = 0; i < json.items()->size(); ++i) {
    const JsonValue& item = (*json.items())[i];
    const std::optional<int64_t> id = IntegerOf(item);
    if (!id.has_value() || *id < 0 || *id >= vocab_size) {
      return Expected(fmt::format("{}[{}]", path, i),
                      fmt::format("a token's id from 0 to {}", vocab_size - 1), item);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Result<TextPrompt> ReadPrompt(const JsonValue& json, const std::string& path, int64_t vocab_size) {
  TextPrompt prompt;
  if (json.string() != nullptr && !json.string()->empty()) {
    prompt.text = *json.string();
    return prompt;
  }
  if (json.items() == nullptr || json.items()->empty()) {
    return Expected(path, "text or an array of token ids, not empty", json);
  }
  K3_TRY(prompt.ids, ReadIds(json, path, vocab_size));
  return prompt;
}

/// A string, ids, or an array of either.
Result<std::vector<TextPrompt>> ReadPrompts(const JsonValue& json, int64_t vocab_size) {
  std::vector<TextPrompt> prompts;
  const JsonValue::Items* items = json.items();
  const bool is_list =
      items != nullptr && !items->empty() && items->front().number() == std::nullopt;
  if (!is_list) {
    K3_TRY(TextPrompt prompt, ReadPrompt(json, "prompt", vocab_size));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (std::ssize(*items) > limits::kApiChoicesMax) {
    return Expected("prompt", fmt::format("at most {} prompts", limits::kApiChoicesMax), json);
  }
  for (size_t i = 0; i < items->size(); ++i) {
    K3_TRY(TextPrompt prompt, ReadPrompt((*items)[i], fmt::format("prompt[{}]", i), vocab_size));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Status ReadTextOptions(const FieldsReader& reader, TextCompletionRequest& request) {
  CompletionParams& params = request.params;
  if (!params.max_tokens.has_value()) params.max_tokens = kTextTokensDefault;
  std::optional<int64_t> top;
  K3_RETURN_IF_ERROR(reader.Read("logprobs", top, 0, kTopLogProbsMax));
  params.logprobs = top.has_value();
  params.sampling.top_log_probs = top.value_or(0);
  K3_RETURN_IF_ERROR(reader.RefuseTrue("echo", "the prompt is not given back"));
  std::optional<int64_t> best_of;
  K3_RETURN_IF_ERROR(reader.Read("best_of", best_of, 1, kInt64Max));
  if (best_of.value_or(params.choices_count) != params.choices_count) {
    return Unimplemented(
        fmt::format("best_of: expected n, which is {}, found {}; every answer is "
                    "given out",
                    params.choices_count, *best_of));
  }
  const int64_t choices = params.choices_count * std::ssize(request.prompts);
  if (choices > limits::kApiChoicesMax) {
    return InvalidArgument(fmt::format("n: expected at most {} answers for all prompts, found {}",
                                       limits::kApiChoicesMax, choices));
  }
  return OkStatus();
}

}  // namespace

RequestContext MakeRequestContext(std::string model, int64_t vocab_size,
                                  const GenerationConfig& generation) {
  RequestContext context{.model = std::move(model), .vocab_size = vocab_size};
  SamplingOptions& sampling = context.sampling;
  sampling.temperature = generation.temperature.value_or(sampling.temperature);
  sampling.top_p = generation.top_p.value_or(sampling.top_p);
  sampling.top_k = generation.top_k.value_or(sampling.top_k);
  return context;
}

Result<ChatCompletionRequest> ParseChatCompletion(std::string_view body,
                                                  const RequestContext& context) {
  K3_TRY(const JsonValue json, ParseBody(body));
  K3_RETURN_IF_ERROR(CheckTopNames(json, ChatFields()));
  const FieldsReader reader(json, "");
  ChatCompletionRequest request;
  K3_RETURN_IF_ERROR(ReadCommon(reader, context, request.params));
  K3_RETURN_IF_ERROR(ReadChatLimits(reader, request.params));
  K3_RETURN_IF_ERROR(CheckModalities(reader));
  K3_RETURN_IF_ERROR(reader.Read("parallel_tool_calls", request.parallel_tool_calls));
  K3_TRY(request.chat, ReadChat(json));
  if (!request.chat.add_generation_prompt) {
    return Unimplemented("add_generation_prompt: an answer needs the prompt for it; leave it out");
  }
  if (reader.Get("response_schema") != nullptr) request.schema_path = "response_schema";
  return request;
}

Result<TextCompletionRequest> ParseTextCompletion(std::string_view body,
                                                  const RequestContext& context) {
  K3_TRY(const JsonValue json, ParseBody(body));
  K3_RETURN_IF_ERROR(CheckTopNames(json, TextFields()));
  const FieldsReader reader(json, "");
  TextCompletionRequest request;
  K3_RETURN_IF_ERROR(ReadCommon(reader, context, request.params));
  const JsonValue* prompt = reader.Get("prompt");
  K3_TRY(request.prompts,
         ReadPrompts(prompt == nullptr ? JsonValue() : *prompt, context.vocab_size));
  K3_RETURN_IF_ERROR(ReadTextOptions(reader, request));
  return request;
}

Result<TokenizeRequest> ParseTokenize(std::string_view body, const RequestContext& context) {
  K3_TRY(const JsonValue json, ParseBody(body));
  K3_RETURN_IF_ERROR(CheckTopNames(json, TokenizeFields()));
  const FieldsReader reader(json, "");
  K3_RETURN_IF_ERROR(CheckModel(reader, context));
  K3_RETURN_IF_ERROR(
      reader.RefuseTrue("add_special_tokens", "prompts of this model begin with no such token"));
  TokenizeRequest request;
  K3_RETURN_IF_ERROR(reader.Read("return_token_strs", request.with_strings));
  const JsonValue* prompt = reader.Get("prompt");
  const JsonValue* messages = reader.Get("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    return InvalidArgument(fmt::format("prompt: expected either prompt or messages, found {}",
                                       prompt == nullptr ? "neither" : "both"));
  }
  if (messages != nullptr) {
    K3_TRY(request.chat, ReadChat(json));
    return request;
  }
  for (const auto& [name, value] : *json.members()) {
    const bool is_of_prompts = name == "model" || name == "prompt" ||
                               name == "add_special_tokens" || name == "return_token_strs";
    if (is_of_prompts || value.is_null()) continue;
    return Expected(name, "nothing unless messages are there", value);
  }
  request.prompt.emplace();
  K3_RETURN_IF_ERROR(reader.Read("prompt", *request.prompt));
  return request;
}

Result<DetokenizeRequest> ParseDetokenize(std::string_view body, const RequestContext& context) {
  K3_TRY(const JsonValue json, ParseBody(body));
  K3_RETURN_IF_ERROR(CheckTopNames(json, DetokenizeFields()));
  const FieldsReader reader(json, "");
  K3_RETURN_IF_ERROR(CheckModel(reader, context));
  const JsonValue* tokens = reader.Get("tokens");
  if (tokens == nullptr || tokens->items() == nullptr) {
    return Expected("tokens", "an array of token ids", tokens == nullptr ? JsonValue() : *tokens);
  }
  DetokenizeRequest request;
  K3_TRY(request.ids, ReadIds(*tokens, "tokens", context.vocab_size));
  return request;
}

}  // namespace k3::server

#pragma once
// The bodies of requests, read into structs and checked completely:
//
//   K3_TRY(const ChatCompletionRequest request, ParseChatCompletion(body, context));
//
// Every field is either read here or refused by name: nothing is ignored that would change an
// answer. A field that is null is absent. Failures, for ApiErrorOf (api_errors.h):
//   InvalidArgument  no JSON, a wrong type or a value out of range: "top_p: expected ..., found 2"
//   Unimplemented    a field or value that is unknown or not supported: "audio: ..."
//   NotFound         another model than the one that is served: "model: ..."
// The message begins with the field's path. What needs the prompt's tokens (room in the context)
// and the subset of JSON schemas is checked by others.
//
// Pure functions and plain values that own their text; any thread. Limits stand in base/limits.h.
// Source: OpenAI's API reference; vLLM's names for what it lacks (top_k, min_p, cache_salt, ...).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/model_config.h"
#include "sample/sampling_options.h"
#include "text/chat_request.h"

namespace k3::server {

/// What a request is read against: the model that is served, and what holds where it is silent.
struct RequestContext {
  std::string model;       // the served name
  int64_t vocab_size = 0;  // ids must be below it
  SamplingOptions sampling = {.temperature = 1.0f, .top_p = 0.95f};
};

/// With the temperature, top_p and top_k of generation_config.json, where it has them.
RequestContext MakeRequestContext(std::string model, int64_t vocab_size,
                                  const GenerationConfig& generation);

/// What both kinds of completion take.
struct CompletionParams {
  bool stream = false;
  bool include_usage = false;         // of a stream: a last chunk with the usage
  std::optional<int64_t> max_tokens;  // at least 1; nothing: what the context has room for
  SamplingOptions sampling;           // top_log_probs as asked for; valid, also for the vocabulary
  bool has_seed = false;              // otherwise sampling.seed is to be drawn
  std::vector<std::string> stop;
  int64_t choices_count = 1;  // n
  bool logprobs = false;      // every token of the answer with its log-probability
  std::string cache_salt;     // separates tenants in the prefix cache; empty: none
};

struct ChatCompletionRequest {
  ChatRequest chat;
  CompletionParams params;
  bool parallel_tool_calls = true;
  /// Where the request has the schema of a response, for messages about it.
  std::string schema_path = "response_format.json_schema.schema";
};

/// Text, or the ids of its tokens.
struct TextPrompt {
  std::string text;
  std::vector<int32_t> ids;  // not empty: `text` is
};

struct TextCompletionRequest {
  /// At least one. Choice c of prompt p has the index p * params.choices_count + c.
  std::vector<TextPrompt> prompts;
  CompletionParams params;
};

/// Either a prompt or a conversation.
struct TokenizeRequest {
  std::optional<std::string> prompt;
  std::optional<ChatRequest> chat;
  bool with_strings = false;  // also each token's text
};

struct DetokenizeRequest {
  std::vector<int32_t> ids;
};

Result<ChatCompletionRequest> ParseChatCompletion(std::string_view body,
                                                  const RequestContext& context);
Result<TextCompletionRequest> ParseTextCompletion(std::string_view body,
                                                  const RequestContext& context);
Result<TokenizeRequest> ParseTokenize(std::string_view body, const RequestContext& context);
Result<DetokenizeRequest> ParseDetokenize(std::string_view body, const RequestContext& context);

}  // namespace k3::server

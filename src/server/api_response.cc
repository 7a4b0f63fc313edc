#include "server/api_response.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fnv1a.h"
#include "base/random.h"
#include "text/utf8_stream.h"

namespace k3::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kChatPrefix = "chatcmpl-";
constexpr std::string_view kTextPrefix = "cmpl-";
constexpr std::string_view kChatObject = "chat.completion";
constexpr std::string_view kChunkObject = "chat.completion.chunk";
// Whole or in parts, text completions have one name.
constexpr std::string_view kTextObject = "text_completion";
// What OpenAI says in place of minus infinity, which JSON cannot.
constexpr double kLogProbMin = -9999.0;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Frame(const Json& json) { return fmt::format("data: {}\n\n", Dump(json)); }

/// The float's shortest decimal, not that of the double it becomes.
double LogProbJson(float log_prob) {
  if (!std::isfinite(log_prob)) return kLogProbMin;
  return std::strtod(fmt::format("{}", log_prob).c_str(), nullptr);
}

/// Bytes as text; U+FFFD for what is none.
std::string ValidText(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Feed(bytes);
  text += stream.Finish();
  return text;
}

Json Head(const ResponseInfo& info, std::string_view prefix, std::string_view object) {
  return {{"id", fmt::format("{}{}", prefix, info.id)},
          {"object", object},
          {"created", info.created},
          {"model", info.model},
          {"system_fingerprint", info.system_fingerprint}};
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json ChanceJson(const TokenChance& chance) {
  Json bytes = Json::array();
  for (const char c : chance.bytes) bytes.push_back(static_cast<uint8_t>(c));
  return {{"token", ValidText(chance.bytes)},
          {"logprob", LogProbJson(chance.log_prob)},
          {"bytes", std::move(bytes)}};
}

Json ChatLogProbs(std::span<const AnswerToken> tokens) {
  Json content = Json::array();
  for (const AnswerToken& token : tokens) {
    Json entry = ChanceJson(token.chosen);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const TokenChance& chance : token.top) top.push_back(ChanceJson(chance));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

/// A token as the old form names it: text, or its bytes in hexadecimal where it is none by itself.
std::string LegacyToken(std::string_view bytes) {
  std::string text = ValidText(bytes);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

Json TextLogProbs(std::span<const AnswerToken> tokens) {
  Json names = Json::array();
  Json log_probs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const AnswerToken& token : tokens) {
    const std::string name = LegacyToken(token.chosen.bytes);
    names.push_back(name);
    log_probs.push_back(LogProbJson(token.chosen.log_prob));
    Json top = Json::object();
    for (const TokenChance& chance : token.top) {
      top.emplace(LegacyToken(chance.bytes), LogProbJson(chance.log_prob));
    }
    // The drawn token may be beyond the most probable ones; OpenAI adds it.
    top.emplace(name, LogProbJson(token.chosen.log_prob));
    tops.push_back(std::move(top));
    offsets.push_back(token.text_offset);
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(log_probs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json MessageJson(const ResponseInfo& info, const Choice& choice) {
  const ParsedAnswer& answer = choice.answer;
  Json message = {{"role", "assistant"}};
  const bool is_calls_only = answer.content.empty() && !answer.tool_calls.empty();
  message["content"] = is_calls_only ? Json() : Json(answer.content);
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  message["refusal"] = nullptr;
  if (answer.tool_calls.empty()) return message;
  Json& calls = message["tool_calls"] = Json::array();
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    const ParsedToolCall& call = answer.tool_calls[i];
    Json entry = {{"id", ToolCallId(info.id, choice.index, static_cast<int64_t>(i))},
                  {"type", "function"},
                  {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
    if (!call.complete) entry["incomplete"] = true;
    calls.push_back(std::move(entry));
  }
  return message;
}

/// A chunk with one choice; the caller fills the choice in.
Json Chunk(const ResponseInfo& info, std::string_view prefix, std::string_view object,
           Json choice) {
  Json chunk = Head(info, prefix, object);
  chunk["choices"] = Json::array({std::move(choice)});
  if (info.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

std::string ChatChunk(const ResponseInfo& info, int64_t choice, Json delta, Json log_probs,
                      Json finish_reason) {
  Json entry = {{"index", choice}, {"delta", std::move(delta)}};
  if (info.logprobs) entry["logprobs"] = std::move(log_probs);
  entry["finish_reason"] = std::move(finish_reason);
  return Frame(Chunk(info, kChatPrefix, kChunkObject, std::move(entry)));
}

std::string TextChunk(const ResponseInfo& info, int64_t choice, const std::string& text,
                      Json log_probs, Json finish_reason) {
  Json entry = {{"index", choice},
                {"text", text},
                {"logprobs", std::move(log_probs)},
                {"finish_reason", std::move(finish_reason)}};
  return Frame(Chunk(info, kTextPrefix, kTextObject, std::move(entry)));
}

std::string UsageFrame(Json chunk, const Usage& usage) {
  chunk["choices"] = Json::array();
  chunk["usage"] = UsageJson(usage);
  return Frame(chunk);
}

/// One event of a call, into the deltas of calls that its chunk has so far.
void AddCallDelta(const ResponseInfo& info, int64_t choice, const XtmlEvent& event, Json& calls) {
  if (event.kind == XtmlEvent::Kind::kToolCallStart) {
    calls.push_back({{"index", event.call},
                     {"id", ToolCallId(info.id, choice, event.call)},
                     {"type", "function"},
                     {"function", {{"name", event.text}, {"arguments", ""}}}});
    return;
  }
  if (event.kind != XtmlEvent::Kind::kToolCallArguments) return;
  if (calls.empty() || calls.back()["index"] != event.call) {
    calls.push_back({{"index", event.call}, {"function", {{"arguments", ""}}}});
  }
  Json& arguments = calls.back()["function"]["arguments"];
  arguments = arguments.get<std::string>() + event.text;
}

Json ModelJson(const ModelInfo& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "k3"},
          {"max_model_len", model.context_max}};
}

}  // namespace

std::string ToolCallId(std::string_view response_id, int64_t choice, int64_t call) {
  Fnv1a hash;
  hash.AddText(response_id);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(hash.hash()),
                                       static_cast<uint32_t>(hash.hash() >> 32)};
  // A permutation of the counters: no two calls of a response get the same words.
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(choice), static_cast<uint32_t>(call), 0, 0}, key);
  constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr size_t kWordDigits = 6;  // 62^6 > 2^32
  std::string id = "call_";
  for (uint32_t word : words) {
    for (size_t digit = 0; digit < kWordDigits; ++digit, word /= kAlphabet.size()) {
      id += kAlphabet[word % kAlphabet.size()];
    }
  }
  return id;
}

std::string ChatCompletionBody(const ResponseInfo& info, std::span<const Choice> choices,
                               const Usage& usage) {
  Json body = Head(info, kChatPrefix, kChatObject);
  Json& entries = body["choices"] = Json::array();
  for (const Choice& choice : choices) {
    entries.push_back({{"index", choice.index},
                       {"message", MessageJson(info, choice)},
                       {"logprobs", info.logprobs ? ChatLogProbs(choice.tokens) : Json()},
                       {"finish_reason", choice.finish_reason}});
  }
  body["usage"] = UsageJson(usage);
  return Dump(body);
}

std::string ChatRoleFrame(const ResponseInfo& info, int64_t choice) {
  return ChatChunk(info, choice, {{"role", "assistant"}}, nullptr, nullptr);
}

std::string ChatDeltaFrame(const ResponseInfo& info, int64_t choice, const AnswerDelta& delta) {
  std::string reasoning;
  std::string content;
  Json calls = Json::array();
  for (const XtmlEvent& event : delta.events) {
    if (event.kind == XtmlEvent::Kind::kReasoning) {
      reasoning += event.text;
    } else if (event.kind == XtmlEvent::Kind::kContent) {
      content += event.text;
    } else {
      AddCallDelta(info, choice, event, calls);
    }
  }
  Json fields = Json::object();
  if (!reasoning.empty()) fields["reasoning_content"] = std::move(reasoning);
  if (!content.empty()) fields["content"] = std::move(content);
  if (!calls.empty()) fields["tool_calls"] = std::move(calls);
  const bool has_tokens = info.logprobs && !delta.tokens.empty();
  if (fields.empty() && !has_tokens) return {};
  return ChatChunk(info, choice, std::move(fields),
                   has_tokens ? ChatLogProbs(delta.tokens) : Json(), nullptr);
}

std::string ChatFinishFrame(const ResponseInfo& info, int64_t choice, const ParsedAnswer& answer,
                            std::string_view finish_reason) {
  Json marks = Json::array();
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    if (!answer.tool_calls[i].complete) marks.push_back({{"index", i}, {"incomplete", true}});
  }
  std::string frames;
  if (!marks.empty()) {
    frames = ChatChunk(info, choice, {{"tool_calls", std::move(marks)}}, nullptr, nullptr);
  }
  return frames + ChatChunk(info, choice, Json::object(), nullptr, finish_reason);
}

std::string ChatUsageFrame(const ResponseInfo& info, const Usage& usage) {
  return UsageFrame(Head(info, kChatPrefix, kChunkObject), usage);
}

std::string TextCompletionBody(const ResponseInfo& info, std::span<const Choice> choices,
                               const Usage& usage) {
  Json body = Head(info, kTextPrefix, kTextObject);
  Json& entries = body["choices"] = Json::array();
  for (const Choice& choice : choices) {
    entries.push_back({{"index", choice.index},
                       {"text", choice.answer.content},
                       {"logprobs", info.logprobs ? TextLogProbs(choice.tokens) : Json()},
                       {"finish_reason", choice.finish_reason}});
  }
  body["usage"] = UsageJson(usage);
  return Dump(body);
}

std::string TextDeltaFrame(const ResponseInfo& info, int64_t choice, const AnswerDelta& delta) {
  std::string text;
  for (const XtmlEvent& event : delta.events) {
    if (event.kind == XtmlEvent::Kind::kContent) text += event.text;
  }
  const bool has_tokens = info.logprobs && !delta.tokens.empty();
  if (text.empty() && !has_tokens) return {};
  return TextChunk(info, choice, text, has_tokens ? TextLogProbs(delta.tokens) : Json(), nullptr);
}

std::string TextFinishFrame(const ResponseInfo& info, int64_t choice,
                            std::string_view finish_reason) {
  return TextChunk(info, choice, "", nullptr, finish_reason);
}

std::string TextUsageFrame(const ResponseInfo& info, const Usage& usage) {
  return UsageFrame(Head(info, kTextPrefix, kTextObject), usage);
}

std::string ModelsBody(std::span<const ModelInfo> models) {
  Json data = Json::array();
  for (const ModelInfo& model : models) data.push_back(ModelJson(model));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelBody(const ModelInfo& model) { return Dump(ModelJson(model)); }

std::string TokenizeBody(std::span<const int32_t> ids, std::span<const std::string> strings,
                         int64_t context_max) {
  Json body = {{"count", ids.size()}, {"max_model_len", context_max}, {"tokens", ids}};
  Json& texts = body["token_strs"];
  for (const std::string& text : strings) texts.push_back(ValidText(text));
  return Dump(body);
}

std::string DetokenizeBody(std::string_view text) { return Dump({{"prompt", ValidText(text)}}); }

}  // namespace k3::server

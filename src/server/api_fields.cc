#include "server/api_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace k3::server {
namespace {

// The first 23 names, sampling and delivery, stand in both lists.
constexpr std::array<std::string_view, 37> kChatFields = {
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "n",
    "logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "cache_salt",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "response_schema",
    "reasoning_effort",
    "thinking_effort",
    "thinking",
    "add_generation_prompt",
    "chat_template_kwargs",
    "modalities",
};
constexpr size_t kCommonFieldsCount = 23;
constexpr std::array<std::string_view, kCommonFieldsCount + 3> kTextFields = [] {
  std::array<std::string_view, kCommonFieldsCount + 3> names;
  std::copy_n(kChatFields.begin(), kCommonFieldsCount, names.begin());
  names[kCommonFieldsCount] = "prompt";
  names[kCommonFieldsCount + 1] = "echo";
  names[kCommonFieldsCount + 2] = "best_of";
  return names;
}();
constexpr std::array<std::string_view, 14> kTokenizeFields = {"model",
                                                              "prompt",
                                                              "add_special_tokens",
                                                              "return_token_strs",
                                                              "messages",
                                                              "tools",
                                                              "tool_choice",
                                                              "response_format",
                                                              "response_schema",
                                                              "reasoning_effort",
                                                              "thinking_effort",
                                                              "thinking",
                                                              "add_generation_prompt",
                                                              "chat_template_kwargs"};
constexpr std::array<std::string_view, 2> kDetokenizeFields = {"model", "tokens"};

struct Refusal {
  std::string_view name;
  std::string_view reason;
};

// Names that clients are known to send, where they are not known; any other gets a common reason.
constexpr std::array<Refusal, 24> kRefusals = {{
    {"audio", "the model speaks text alone"},
    {"functions", "this old form is not supported; use tools"},
    {"function_call", "this old form is not supported; use tool_choice"},
    {"prediction", "predicted outputs are not supported"},
    {"web_search_options", "the server does not search; declare a tool for it"},
    {"verbosity", "not supported; ask for it in a message"},
    {"suffix", "inserting text is not supported"},
    {"ignore_eos", "not supported; use max_tokens"},
    {"min_tokens", "not supported"},
    {"continue_final_message", "not supported; every answer is a message of its own"},
    {"reasoning", "not supported; use reasoning_effort"},
    {"guided_json", "not supported; use response_format"},
    {"guided_regex", "not supported; use response_format with a schema"},
    {"guided_choice", "not supported; use response_format with a schema that has an enum"},
    {"guided_grammar", "not supported; use response_format with a schema"},
    {"structured_outputs", "not supported; use response_format"},
    {"stop_token_ids", "not supported; use stop"},
    {"max_completion_tokens", "a field of chat completions; use max_tokens"},
    {"top_logprobs", "a field of chat completions; use logprobs"},
    {"messages", "a field of chat completions; use prompt"},
    {"response_format", "a field of chat completions"},
    {"prompt", "a field of text completions; use messages"},
    {"echo", "a field of text completions"},
    {"best_of", "a field of text completions; use n"},
}};

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Refusal* FindRefusal(std::string_view name) {
  const auto* found = std::ranges::find(kRefusals, name, &Refusal::name);
  return found == kRefusals.end() ? nullptr : found;
}

bool IsNullOrFalse(const JsonValue& value) {
  return value.is_null() || (value.boolean() != nullptr && !*value.boolean());
}

}  // namespace

bool IsRequestField(std::string_view name) {
  return Has(kChatFields, name) || Has(kTextFields, name) || Has(kTokenizeFields, name) ||
         Has(kDetokenizeFields, name) || FindRefusal(name) != nullptr;
}

std::span<const std::string_view> ChatFields() { return kChatFields; }
std::span<const std::string_view> TextFields() { return kTextFields; }
std::span<const std::string_view> TokenizeFields() { return kTokenizeFields; }
std::span<const std::string_view> DetokenizeFields() { return kDetokenizeFields; }

Status Expected(std::string_view path, std::string_view expected, const JsonValue& found) {
  return InvalidArgument(
      fmt::format("{}: expected {}, found {}", path, expected, found.Describe()));
}

std::string NameForPath(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  const bool is_short = !name.empty() && name.size() <= 64;
  return is_short && std::ranges::all_of(name, is_plain) ? std::string(name)
                                                         : QuoteForMessage(name);
}

Status CheckNames(const JsonValue& object, std::string_view path,
                  std::span<const std::string_view> known) {
  for (const auto& [name, value] : *object.members()) {
    if (Has(known, name)) continue;
    return Unimplemented(
        fmt::format("{}.{}: this field is not known here; leave it out", path, NameForPath(name)));
  }
  return OkStatus();
}

Status CheckTopNames(const JsonValue& object, std::span<const std::string_view> known) {
  for (const auto& [name, value] : *object.members()) {
    if (Has(known, name)) continue;
    const Refusal* refusal = FindRefusal(name);
    if (refusal != nullptr && IsNullOrFalse(value)) continue;
    return Unimplemented(fmt::format(
        "{}: {}", NameForPath(name),
        refusal == nullptr ? "this field is not known here; leave it out" : refusal->reason));
  }
  return OkStatus();
}

std::optional<int64_t> IntegerOf(const JsonValue& json) {
  if (json.integer() != nullptr) return *json.integer();
  constexpr double kExactEnd = 0x1p53;
  const double* fraction = json.fraction();
  if (fraction == nullptr || std::abs(*fraction) >= kExactEnd) return std::nullopt;
  if (std::trunc(*fraction) != *fraction) return std::nullopt;
  return static_cast<int64_t>(*fraction);
}

Status ReadNumber(const JsonValue& json, std::string_view path, float& value, Bounds bounds) {
  const std::optional<double> number = json.number();
  const bool is_within =
      number.has_value() && *number >= bounds.min && *number <= bounds.max &&
      // What is closer to the bound than a float can say is as good as on it.
      (!bounds.above || static_cast<double>(static_cast<float>(*number)) > bounds.min);
  if (is_within) {
    value = static_cast<float>(*number);
    return OkStatus();
  }
  const std::string_view begin = bounds.above ? "above" : "from";
  const bool has_max = bounds.max < static_cast<double>(std::numeric_limits<float>::max());
  return Expected(path,
                  has_max ? fmt::format("a number {} {} to {}", begin, bounds.min, bounds.max)
                          : fmt::format("a number {} {}", begin, bounds.min),
                  json);
}

const JsonValue* FieldsReader::Get(std::string_view name) const {
  const JsonValue* value = object_.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string FieldsReader::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

Status FieldsReader::Read(std::string_view name, bool& value) const {
  const JsonValue* found = Get(name);
  if (found == nullptr) return OkStatus();
  if (found->boolean() == nullptr) return Expected(PathOf(name), "true or false", *found);
  value = *found->boolean();
  return OkStatus();
}

Status FieldsReader::Read(std::string_view name, std::string& value) const {
  const JsonValue* found = Get(name);
  if (found == nullptr) return OkStatus();
  if (found->string() == nullptr) return Expected(PathOf(name), "a string", *found);
  value = *found->string();
  return OkStatus();
}

Status FieldsReader::Read(std::string_view name, std::optional<int64_t>& value, int64_t min,
                          int64_t max) const {
  const JsonValue* found = Get(name);
  if (found == nullptr) return OkStatus();
  const std::optional<int64_t> integer = IntegerOf(*found);
  if (!integer.has_value() || *integer < min || *integer > max) {
    return Expected(PathOf(name), fmt::format("an integer from {} to {}", min, max), *found);
  }
  value = integer;
  return OkStatus();
}

Status FieldsReader::Read(std::string_view name, float& value, Bounds bounds) const {
  const JsonValue* found = Get(name);
  return found == nullptr ? OkStatus() : ReadNumber(*found, PathOf(name), value, bounds);
}

Status FieldsReader::RefuseTrue(std::string_view name, std::string_view reason) const {
  bool value = false;
  K3_RETURN_IF_ERROR(Read(name, value));
  if (!value) return OkStatus();
  return Unimplemented(fmt::format("{}: {}", PathOf(name), reason));
}

}  // namespace k3::server

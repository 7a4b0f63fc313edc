#include "remote_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/clock.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr size_t kMessageBytesMax = 1000;
constexpr std::string_view kDone = "[DONE]";

struct ErrorRow {
  int http_status;
  std::string_view error_code;  // of an event's error
  StatusCode code;
};
constexpr std::array<ErrorRow, 6> kErrors = {{
    {404, "not_found", StatusCode::kNotFound},
    {429, "rate_limit_exceeded", StatusCode::kResourceExhausted},
    {501, "unsupported_parameter", StatusCode::kUnimplemented},
    {502, "bad_gateway", StatusCode::kUnavailable},
    {503, "service_unavailable", StatusCode::kUnavailable},
    {504, "gateway_timeout", StatusCode::kUnavailable},
}};

std::string TextOf(const JsonValue* json) {
  return json == nullptr || json->string() == nullptr ? "" : *json->string();
}

/// A server's message fit for one line of ours.
std::string OneLine(std::string_view text) {
  std::string line(text.substr(0, kMessageBytesMax));
  std::ranges::replace_if(line, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return line;
}

Status Unexpected(std::string_view expected, const JsonValue* found) {
  return Corruption(fmt::format("expected {} in an answer's event, found {}", expected,
                                found == nullptr ? "nothing" : found->Describe()));
}

/// The member when it is there and not null.
const JsonValue* Get(const JsonValue& object, std::string_view name) {
  const JsonValue* found = object.Find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

int64_t CountOf(const JsonValue* object, std::string_view name) {
  const JsonValue* found = object == nullptr ? nullptr : object->Find(name);
  return found == nullptr || found->integer() == nullptr ? 0
                                                         : std::max<int64_t>(0, *found->integer());
}

}  // namespace

Status ErrorOf(int http_status, const JsonValue& json, std::string_view text) {
  const JsonValue* error = Get(json, "error");
  const std::string error_code = error == nullptr ? "" : TextOf(error->Find("code"));
  std::string message = error == nullptr ? "" : OneLine(TextOf(error->Find("message")));
  if (message.empty()) {
    message = text.empty() ? "no reason was given" : fmt::format("{}", QuoteForMessage(text));
  }
  if (http_status != 0) message = fmt::format("{}: {}", http_status, message);
  if (http_status == 401) message += "; --api-key-file gives one";
  StatusCode code =
      http_status == 0 || http_status >= 500 ? StatusCode::kInternal : StatusCode::kInvalidArgument;
  for (const ErrorRow& row : kErrors) {
    if (row.http_status == http_status || row.error_code == error_code) code = row.code;
  }
  return {code, std::move(message)};
}

RemoteAnswer::RemoteAnswer(ChatSink& sink) : sink_(sink), start_ns_(MonotonicNanoseconds()) {}

bool RemoteAnswer::KeepsWaiting() {
  if (first_ns_ == 0) return sink_.OnPrefillProgress(0, 1);
  return !WasInterrupted();
}

Result<bool> RemoteAnswer::Take(std::string_view data) {
  if (data == kDone) return is_wanted_;
  Result<JsonValue> event = ParseJson(data, "event");
  if (!event.ok()) return Corruption(event.status().message());
  if (Get(*event, "error") != nullptr) return ErrorOf(0, *event, data);
  if (const JsonValue* usage = Get(*event, "usage"); usage != nullptr) TakeUsage(*usage);
  const JsonValue* choices = Get(*event, "choices");
  if (choices == nullptr || choices->items() == nullptr) return Unexpected("choices", choices);
  if (choices->items()->empty()) return is_wanted_;
  const JsonValue& choice = choices->items()->front();
  if (const JsonValue* delta = Get(choice, "delta"); delta != nullptr) {
    K3_RETURN_IF_ERROR(TakeDelta(*delta));
  }
  if (const JsonValue* reason = Get(choice, "finish_reason"); reason != nullptr) {
    is_finished_ = true;
    answer_.finish_reason =
        TextOf(reason) == "length" ? FinishReason::kLength : FinishReason::kStop;
  }
  return is_wanted_;
}

Status RemoteAnswer::TakeDelta(const JsonValue& delta) {
  const std::string reasoning = TextOf(Get(delta, "reasoning_content"));
  const std::string content = TextOf(Get(delta, "content"));
  const JsonValue* calls = Get(delta, "tool_calls");
  if (calls != nullptr && calls->items() == nullptr) return Unexpected("an array of calls", calls);
  if (reasoning.empty() && content.empty() && calls == nullptr) return OkStatus();
  last_ns_ = MonotonicNanoseconds();
  if (first_ns_ == 0) {
    first_ns_ = last_ns_;
    is_wanted_ = sink_.OnPrefillProgress(1, 1);
  }
  // A delta is a token, as far as can be seen; the usage will tell how many there were.
  ++answer_.generated_tokens;
  is_wanted_ = is_wanted_ && sink_.OnToken({});
  if (!reasoning.empty()) Emit(XtmlEvent::Kind::kReasoning, reasoning);
  if (!content.empty()) Emit(XtmlEvent::Kind::kContent, content);
  if (calls == nullptr) return OkStatus();
  for (const JsonValue& call : *calls->items()) K3_RETURN_IF_ERROR(TakeCall(call));
  return OkStatus();
}

Status RemoteAnswer::TakeCall(const JsonValue& call) {
  const JsonValue* index = Get(call, "index");
  const auto count = std::ssize(answer_.parsed.tool_calls);
  if (index == nullptr || index->integer() == nullptr || *index->integer() < 0 ||
      *index->integer() > count) {
    return Unexpected(fmt::format("the index of a call, at most {},", count), index);
  }
  const JsonValue* incomplete = Get(call, "incomplete");
  if (incomplete != nullptr && incomplete->boolean() != nullptr && *incomplete->boolean()) {
    if (*index->integer() == count) return Unexpected("a call that has begun", index);
    incomplete_.push_back(static_cast<size_t>(*index->integer()));
    return OkStatus();
  }
  const JsonValue* function = Get(call, "function");
  if (function == nullptr) return Unexpected("the function of a call", function);
  if (*index->integer() == count) {
    EndCall();
    Emit(XtmlEvent::Kind::kToolCallStart, TextOf(Get(*function, "name")));
    is_call_open_ = true;
  } else if (*index->integer() + 1 < count || !is_call_open_) {
    return Unexpected("a call that goes on", index);
  }
  const std::string arguments = TextOf(Get(*function, "arguments"));
  if (!arguments.empty()) Emit(XtmlEvent::Kind::kToolCallArguments, arguments);
  return OkStatus();
}

void RemoteAnswer::TakeUsage(const JsonValue& usage) {
  answer_.prompt_tokens = CountOf(&usage, "prompt_tokens");
  answer_.cached_tokens = CountOf(Get(usage, "prompt_tokens_details"), "cached_tokens");
  answer_.generated_tokens = CountOf(&usage, "completion_tokens");
}

void RemoteAnswer::Emit(XtmlEvent::Kind kind, std::string text) {
  const bool goes_on = kind == XtmlEvent::Kind::kToolCallArguments;
  if (!goes_on && kind != XtmlEvent::Kind::kToolCallEnd) EndCall();
  std::vector<ParsedToolCall>& calls = answer_.parsed.tool_calls;
  const bool starts = kind == XtmlEvent::Kind::kToolCallStart;
  const XtmlEvent event{.kind = kind,
                        .call = static_cast<int32_t>(std::ssize(calls) - (starts ? 0 : 1)),
                        .text = std::move(text)};
  AddXtmlEvent(event, answer_.parsed);
  is_wanted_ = sink_.OnEvent(event) && is_wanted_;
}

void RemoteAnswer::EndCall() {
  if (!is_call_open_) return;
  is_call_open_ = false;
  Emit(XtmlEvent::Kind::kToolCallEnd, "");
}

Result<ChatAnswer> RemoteAnswer::Finish(bool was_stopped) {
  if (!is_finished_ && !was_stopped) {
    return Unavailable("the answer ended without saying why");
  }
  std::vector<ParsedToolCall>& calls = answer_.parsed.tool_calls;
  const bool is_last_open =
      !is_finished_ || (!incomplete_.empty() && incomplete_.back() + 1 == calls.size());
  if (!is_last_open) EndCall();
  for (const size_t call : incomplete_) calls[call].complete = false;
  if (!is_finished_) answer_.finish_reason = FinishReason::kCancelled;
  if (first_ns_ != 0) {
    answer_.prefill_seconds = SecondsBetween(start_ns_, first_ns_);
    answer_.decode_seconds = SecondsBetween(first_ns_, last_ns_);
    // The first token belongs to the prompt's pass.
    answer_.decode_passes = std::max<int64_t>(0, answer_.generated_tokens - 1);
  }
  return std::move(answer_);
}

}  // namespace k3::cli

#include "server/api_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "server/api_fields.h"

namespace k3::server {
namespace {

constexpr std::string_view kRequestError = "invalid_request_error";
constexpr std::string_view kServerError = "server_error";

struct Row {
  StatusCode status;
  int http_status;
  std::string_view type;
  std::string_view code;
};

// What is not listed is a failure of the server's own.
constexpr std::array<Row, 6> kTable = {{
    {StatusCode::kInvalidArgument, 400, kRequestError, "invalid_value"},
    {StatusCode::kUnimplemented, 400, kRequestError, "unsupported_parameter"},
    {StatusCode::kNotFound, 404, kRequestError, "not_found"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
    {StatusCode::kUnavailable, 503, kServerError, "service_unavailable"},
    {StatusCode::kCancelled, 499, kServerError, "request_cancelled"},
}};
constexpr Row kOther = {StatusCode::kInternal, 500, kServerError, "internal_error"};

bool IsPathCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '$' || c == '.' || c == '[' || c == ']';
}

nlohmann::ordered_json NullIfEmpty(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

std::string ParamOfMessage(std::string_view message) {
  const auto* const end = std::ranges::find_if_not(message, IsPathCharacter);
  const std::string_view path(message.begin(), end);
  if (IsRequestField(path.substr(0, path.find_first_of(".[")))) return std::string(path);
  return {};
}

ApiError ApiErrorOf(const Status& status) {
  const auto* found = std::ranges::find(kTable, status.code(), &Row::status);
  const Row& row = found == kTable.end() ? kOther : *found;
  ApiError error{.http_status = row.http_status,
                 .type = std::string(row.type),
                 .message = status.message(),
                 .code = std::string(row.code)};
  if (row.type != kRequestError) return error;
  error.param = ParamOfMessage(error.message);
  // A field that nobody knows is in no list; its message begins with what it is called.
  if (error.param.empty() && status.code() == StatusCode::kUnimplemented) {
    const std::string path = error.message.substr(0, error.message.find(": "));
    if (std::ranges::all_of(path, IsPathCharacter)) error.param = path;
  }
  if (status.code() == StatusCode::kNotFound && error.param == "model") {
    error.code = "model_not_found";
  }
  return error;
}

ApiError ContextLengthExceeded(int64_t prompt_tokens, int64_t context_max, std::string_view param) {
  return {.http_status = 400,
          .type = std::string(kRequestError),
          .message = fmt::format(
              "{}: {} tokens leave no room for an answer in the model's context of {}; shorten it",
              param, prompt_tokens, context_max),
          .param = std::string(param),
          .code = "context_length_exceeded"};
}

std::string ApiErrorBody(const ApiError& error) {
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message},
                                         {"type", error.type},
                                         {"param", NullIfEmpty(error.param)},
                                         {"code", NullIfEmpty(error.code)}}}};
  // A message may quote what is no UTF-8; an error must reach the client all the same.
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ApiErrorFrame(const ApiError& error) {
  return fmt::format("data: {}\n\n", ApiErrorBody(error));
}

}  // namespace k3::server

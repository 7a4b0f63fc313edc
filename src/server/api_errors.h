#pragma once
// ApiError: a failed request as its client sees it, in OpenAI's shape:
//
//   {"error": {"message": "...", "type": "invalid_request_error", "param": "n", "code": "..."}}
//
//   exchange.Respond(error.http_status, "application/json", ApiErrorBody(error));
//
// Statuses become errors by one table (api_errors.cc). `param` is the field that a message begins
// with ("messages[2].content: expected ..."). Plain values and pure functions, any thread; nothing
// here fails.
// Source: the error object of OpenAI's API reference; 499 is nginx's for a client that left.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace k3::server {

struct ApiError {
  int http_status = 500;
  std::string type = "server_error";
  std::string message;
  std::string param;  // the field's path; empty: null
  std::string code;   // empty: null
};

/// `status` must not be ok.
ApiError ApiErrorOf(const Status& status);

/// 400 for a prompt that leaves no room for an answer, code context_length_exceeded. `param` is
/// messages or prompt.
ApiError ContextLengthExceeded(int64_t prompt_tokens, int64_t context_max, std::string_view param);

/// The response's JSON.
std::string ApiErrorBody(const ApiError& error);

/// The same as the last event of a stream that had begun.
std::string ApiErrorFrame(const ApiError& error);

/// The path of a field at the start of a message, or nothing.
std::string ParamOfMessage(std::string_view message);

}  // namespace k3::server

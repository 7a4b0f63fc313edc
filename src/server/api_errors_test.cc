#include "server/api_errors.h"

#include <gtest/gtest.h>

#include "config/json.h"

namespace k3::server {
namespace {

TEST(ApiErrors, EveryStatusHasItsHttpStatus) {
  struct Case {
    StatusCode status;
    int http_status;
    std::string_view type;
    std::string_view code;
  };
  for (const Case& c :
       {Case{StatusCode::kInvalidArgument, 400, "invalid_request_error", "invalid_value"},
        Case{StatusCode::kUnimplemented, 400, "invalid_request_error", "unsupported_parameter"},
        Case{StatusCode::kNotFound, 404, "invalid_request_error", "not_found"},
        Case{StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
        Case{StatusCode::kUnavailable, 503, "server_error", "service_unavailable"},
        Case{StatusCode::kCancelled, 499, "server_error", "request_cancelled"},
        Case{StatusCode::kCorruption, 500, "server_error", "internal_error"},
        Case{StatusCode::kIoError, 500, "server_error", "internal_error"},
        Case{StatusCode::kInternal, 500, "server_error", "internal_error"}}) {
    const ApiError error = ApiErrorOf(Status(c.status, "prompt: why"));
    EXPECT_EQ(error.http_status, c.http_status);
    EXPECT_EQ(error.type, c.type);
    EXPECT_EQ(error.code, c.code);
    EXPECT_EQ(error.message, "prompt: why");
    EXPECT_EQ(error.param, c.type == "invalid_request_error" ? "prompt" : "");
  }
}

TEST(ApiErrors, TheParamIsTheFieldAtTheStart) {
  EXPECT_EQ(ParamOfMessage("messages[2].content: expected text"), "messages[2].content");
  EXPECT_EQ(ParamOfMessage("temperature is -1, expected 0"), "temperature");
  EXPECT_EQ(ParamOfMessage("response_format.json_schema.schema.properties.age.minimum: no"),
            "response_format.json_schema.schema.properties.age.minimum");
  EXPECT_EQ(ParamOfMessage("n"), "n");
  for (const std::string_view none :
       {"", ": x", "body: byte 3", "the conversation", "nn: x", "\xFF: x", "reading prompt: x"}) {
    EXPECT_EQ(ParamOfMessage(none), "") << none;
  }
}

TEST(ApiErrors, BodiesHaveOpenAisShape) {
  EXPECT_EQ(ApiErrorBody(ApiErrorOf(InvalidArgument("n: expected \"1\""))),
            R"({"error":{"message":"n: expected \"1\"","type":"invalid_request_error",)"
            R"("param":"n","code":"invalid_value"}})");
  EXPECT_EQ(ApiErrorBody({.http_status = 500, .type = "server_error", .message = "\xFF\n"}),
            "{\"error\":{\"message\":\"\uFFFD\\n\",\"type\":\"server_error\",\"param\":null,"
            "\"code\":null}}");
  EXPECT_EQ(ApiErrorFrame({.message = "x"}),
            "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"param\":null,"
            "\"code\":null}}\n\n");
  const ApiError error = ContextLengthExceeded(5000, 4096, "messages");
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(error.message,
            "messages: 5000 tokens leave no room for an answer in the model's context of 4096; "
            "shorten it");
}

}  // namespace
}  // namespace k3::server

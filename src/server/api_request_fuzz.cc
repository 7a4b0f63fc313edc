// Fuzzes the readers of request bodies: the first byte chooses the reader, the rest is the body. A
// request that is taken must hold what its reader promises; one that is not must become an error
// that is JSON and names its field the same way in message and param.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/limits.h"
#include "config/json.h"
#include "server/api_errors.h"
#include "server/api_request.h"

namespace {

using k3::server::ApiError;
using k3::server::RequestContext;

constexpr int64_t kVocabSize = 1000;

void CheckFailure(const k3::Status& status) {
  if (status.ok()) return;
  const ApiError error = k3::server::ApiErrorOf(status);
  K3_CHECK(error.http_status == 400 || error.http_status == 404, status.message().c_str());
  K3_CHECK(error.message.starts_with(error.param), "param begins the message");
  const auto body = k3::ParseJson(k3::server::ApiErrorBody(error), "error");
  K3_CHECK(body.ok() && body->Find("error") != nullptr, "an error is JSON");
}

void CheckParams(const k3::server::CompletionParams& params) {
  K3_CHECK(params.sampling.Validate().ok(), "sampling options are valid");
  K3_CHECK(params.sampling.ValidateFor(kVocabSize).ok(), "biases are in the vocabulary");
  K3_CHECK(params.choices_count >= 1 && params.choices_count <= k3::limits::kApiChoicesMax, "n");
  K3_CHECK(params.max_tokens.value_or(1) >= 1, "max_tokens");
  K3_CHECK(!params.include_usage || params.stream, "usage of a stream");
  K3_CHECK(params.logprobs || params.sampling.top_log_probs == 0, "alternatives need logprobs");
}

void CheckIds(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) K3_CHECK(id >= 0 && id < kVocabSize, "ids are in the vocabulary");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const RequestContext context{.model = "m", .vocab_size = kVocabSize};
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto request = k3::server::ParseChatCompletion(body, context);
      CheckFailure(request.status());
      if (!request.ok()) return 0;
      CheckParams(request->params);
      K3_CHECK(!request->chat.messages.empty(), "a conversation has messages");
      K3_CHECK(request->chat.add_generation_prompt, "an answer is asked for");
      break;
    }
    case 1: {
      const auto request = k3::server::ParseTextCompletion(body, context);
      CheckFailure(request.status());
      if (!request.ok()) return 0;
      CheckParams(request->params);
      K3_CHECK(!request->prompts.empty(), "there is a prompt");
      for (const auto& prompt : request->prompts) {
        K3_CHECK(prompt.text.empty() != prompt.ids.empty(), "a prompt is text or ids");
        CheckIds(prompt.ids);
      }
      break;
    }
    case 2: {
      const auto request = k3::server::ParseTokenize(body, context);
      CheckFailure(request.status());
      if (!request.ok()) return 0;
      K3_CHECK(request->prompt.has_value() != request->chat.has_value(), "one of two");
      break;
    }
    default: {
      const auto request = k3::server::ParseDetokenize(body, context);
      CheckFailure(request.status());
      if (request.ok()) CheckIds(request->ids);
    }
  }
  return 0;
}

#pragma once
// The bodies of responses and the frames of streams, in OpenAI's shapes:
//
//   ChatCompletionBody(info, choices, usage)                     // an answer in one piece
//
//   for each choice: ChatRoleFrame(info, c)                      // a stream
//   for each delta:  ChatDeltaFrame(info, c, delta)              // nothing for an empty delta
//   for each choice: ChatFinishFrame(info, c, unfinished, "stop")
//   UsageFrame(info, usage), kDoneFrame                          // the former if include_usage
//
// Frames are whole: `data: {json}` and a blank line. Deltas leave out what is empty, and joined
// they are the message of the unstreamed body. A tool call that was cut off or cannot be understood
// has "incomplete": true, which is no field of OpenAI's: it is not to be run. Text must be valid
// UTF-8; a log-probability that is no finite number is -9999.
//
// Pure functions and plain values, any thread; nothing fails.
// Source: OpenAI's API reference; vLLM for /tokenize and /detokenize.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_stream.h"
#include "text/xtml_parser.h"

namespace k3::server {

inline constexpr std::string_view kDoneFrame = "data: [DONE]\n\n";
/// A comment, which clients skip.
inline constexpr std::string_view kKeepAliveFrame = ": keep-alive\n\n";

/// What all parts of one response repeat.
struct ResponseInfo {
  std::string id;       // hexadecimal digits, without the prefix (chatcmpl-)
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;
  bool logprobs = false;       // asked for
  bool include_usage = false;  // every chunk of the stream has the field
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the completion
};

/// Pieces that belong together: of one choice, or of a whole answer.
struct Choice {
  int64_t index = 0;
  ParsedAnswer answer;  // of a text completion, the content alone
  std::vector<AnswerToken> tokens;
  std::string finish_reason;
};

/// `call_` and 24 letters and digits; the same for the same response, choice and call.
std::string ToolCallId(std::string_view response_id, int64_t choice, int64_t call);

// Chat completions.
std::string ChatCompletionBody(const ResponseInfo& info, std::span<const Choice> choices,
                               const Usage& usage);
std::string ChatRoleFrame(const ResponseInfo& info, int64_t choice);
/// Empty for a delta that says nothing.
std::string ChatDeltaFrame(const ResponseInfo& info, int64_t choice, const AnswerDelta& delta);
/// The last frames of a choice: marks the calls of `answer` that are not complete, and ends it.
std::string ChatFinishFrame(const ResponseInfo& info, int64_t choice, const ParsedAnswer& answer,
                            std::string_view finish_reason);
std::string ChatUsageFrame(const ResponseInfo& info, const Usage& usage);

// Text completions.
std::string TextCompletionBody(const ResponseInfo& info, std::span<const Choice> choices,
                               const Usage& usage);
/// Empty for a delta that says nothing.
std::string TextDeltaFrame(const ResponseInfo& info, int64_t choice, const AnswerDelta& delta);
std::string TextFinishFrame(const ResponseInfo& info, int64_t choice,
                            std::string_view finish_reason);
std::string TextUsageFrame(const ResponseInfo& info, const Usage& usage);

// Models and tokens.
struct ModelInfo {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  int64_t context_max = 0;
};
std::string ModelsBody(std::span<const ModelInfo> models);
std::string ModelBody(const ModelInfo& model);
/// `strings` are the tokens' bytes, or empty when they were not asked for.
std::string TokenizeBody(std::span<const int32_t> ids, std::span<const std::string> strings,
                         int64_t context_max);
std::string DetokenizeBody(std::string_view text);

}  // namespace k3::server

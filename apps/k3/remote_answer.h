#pragma once
// RemoteAnswer: the events of a streamed chat completion, put together to the answer that they make
// and passed on to a sink as they come.
//
// A server marks calls that are not complete when the answer ends, so until then a call counts as
// closed once something else begins; of an answer that breaks off, the last call is not complete.
// One answer each; one thread. Failures: Corruption for what is no such event, and the error that
// an event brings.
// Source: OpenAI's API reference, chat.completion.chunk; docs/serving.md for `incomplete`.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/json.h"
#include "engine/chat.h"

namespace k3::cli {

/// The failure that an answer with an HTTP status of 400 and above stands for; 0 is an event's.
/// `json` may have OpenAI's error object. `text` is shown where it has none.
Status ErrorOf(int http_status, const JsonValue& json, std::string_view text);

class RemoteAnswer {
 public:
  /// The time to the first token counts from here.
  explicit RemoteAnswer(ChatSink& sink);

  /// False when the user has enough while nothing comes.
  bool KeepsWaiting();

  /// Takes the data of one event. False when the sink or the user has enough.
  Result<bool> Take(std::string_view data);

  /// Ends the answer. Not to be called after a failure. `was_stopped`: by this side.
  Result<ChatAnswer> Finish(bool was_stopped);

 private:
  Status TakeDelta(const JsonValue& delta);
  Status TakeCall(const JsonValue& call);
  void TakeUsage(const JsonValue& usage);
  void Emit(XtmlEvent::Kind kind, std::string text);
  void EndCall();

  ChatSink& sink_;
  ChatAnswer answer_;
  bool is_wanted_ = true;
  bool is_finished_ = false;   // a reason came
  bool is_call_open_ = false;  // the last one
  std::vector<size_t> incomplete_;
  int64_t start_ns_ = 0;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace k3::cli

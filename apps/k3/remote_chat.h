#pragma once
// RemoteChat: a `k3 serve` as the one that answers a chat (chat_session.h).
//
//   K3_TRY(const std::unique_ptr<RemoteChat> server,
//          RemoteChat::Connect({.url = "http://127.0.0.1:8080", .sampling = fields}));
//
// The whole conversation goes to the server each time, which knows what it has of it ready; the
// answer comes as a stream of events. Ctrl-C ends the stream, and what came is the answer. Owns its
// connections; one thread at a time. Failures have the server's URL, status and message in one
// line: InvalidArgument for what it refuses (a bad key included), NotFound, ResourceExhausted when
// it has too much to do, Unavailable when it is not there or not ready, Corruption for what is no
// such answer, Internal for its own failures.
// Source: docs/serving.md, section 3.

#include <memory>
#include <string>

#include "base/status.h"
#include "chat_session.h"
#include "config/json.h"
#include "sampling_flags.h"
#include "server/http_client.h"

namespace k3::cli {

/// The flags that were given, but for --seed and --stop, as fields of a request: what is not given
/// is the server's to choose.
Result<JsonValue::Members> RemoteSampling(const SamplingFlags& flags);

struct RemoteChatOptions {
  std::string url;
  std::string api_key;          // empty: none is sent
  JsonValue::Members sampling;  // of every request
};

class RemoteChat : public ChatBackend {
 public:
  /// Asks the server for its model, and so fails early.
  static Result<std::unique_ptr<RemoteChat>> Connect(RemoteChatOptions options);

  /// Of `options`, max_tokens, stop and sampling.seed count.
  Result<ChatAnswer> Answer(const ChatRequest& request, const ChatOptions& options,
                            ChatSink& sink) override;
  std::string DescribeMemory() override;

  /// As the server calls it.
  const std::string& model() const { return model_; }
  std::string url() const { return client_.url().Text(); }

 private:
  RemoteChat(server::HttpUrl url, RemoteChatOptions options)
      : client_(std::move(url)), options_(std::move(options)) {}

  server::HttpHeaders Headers() const;
  std::string Body(const ChatRequest& request, const ChatOptions& options) const;
  Status RefusalOf(const server::HttpResponse& response) const;

  server::HttpClient client_;
  RemoteChatOptions options_;
  std::string model_;
};

}  // namespace k3::cli

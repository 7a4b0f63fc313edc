#include "remote_chat.h"

#include <fmt/format.h>

#include "base/limits.h"
#include "remote_answer.h"
#include "sys/file.h"
#include "text/chat_json.h"
#include "text/utf8.h"

namespace k3::cli {
namespace {

constexpr std::string_view kVersionPath = "/v1";

JsonValue Number(float value) { return JsonValue(static_cast<double>(value)); }

/// The JSON of a body; null when it is none.
JsonValue BodyJson(const server::HttpResponse& response) {
  Result<JsonValue> json = ParseJson(response.body, "answer");
  return json.ok() ? std::move(*json) : JsonValue();
}

Result<std::string> FirstModel(const server::HttpResponse& response) {
  const JsonValue json = BodyJson(response);
  const JsonValue* data = json.Find("data");
  const bool has_models = data != nullptr && data->items() != nullptr && !data->items()->empty();
  const JsonValue* id = has_models ? data->items()->front().Find("id") : nullptr;
  if (id != nullptr && id->string() != nullptr) return *id->string();
  return Corruption(fmt::format("expected a list of models, as k3 serve gives it, found {}",
                                QuoteForMessage(response.body)));
}

}  // namespace

Result<JsonValue::Members> RemoteSampling(const SamplingFlags& flags) {
  // Checks what the command line could not, and reads the biases.
  K3_TRY(const SamplingOptions sampling, ChooseSampling(flags, {}));
  JsonValue::Members fields;
  const auto add = [&fields](std::string name, JsonValue value) {
    fields.emplace_back(std::move(name), std::move(value));
  };
  const SamplingFlags defaults;
  if (flags.greedy || flags.temperature.has_value()) {
    add("temperature", Number(sampling.temperature));
  }
  if (flags.top_k.has_value()) add("top_k", JsonValue(*flags.top_k));
  if (flags.top_p.has_value()) add("top_p", Number(*flags.top_p));
  if (flags.min_p != defaults.min_p) add("min_p", Number(flags.min_p));
  if (flags.repetition_penalty != defaults.repetition_penalty) {
    add("repetition_penalty", Number(flags.repetition_penalty));
  }
  if (flags.presence_penalty != defaults.presence_penalty) {
    add("presence_penalty", Number(flags.presence_penalty));
  }
  if (flags.frequency_penalty != defaults.frequency_penalty) {
    add("frequency_penalty", Number(flags.frequency_penalty));
  }
  if (!sampling.logit_bias.empty()) {
    JsonValue::Members biases;
    for (const LogitBias& entry : sampling.logit_bias) {
      biases.emplace_back(std::to_string(entry.id), Number(entry.bias));
    }
    add("logit_bias", JsonValue(std::move(biases)));
  }
  for (const std::string& stop : flags.stops) {
    if (FindInvalidUtf8(stop) < 0) continue;
    return InvalidArgument(
        fmt::format("--stop: expected text in UTF-8, as a server takes no other bytes, found {}",
                    QuoteForMessage(stop)));
  }
  return fields;
}

Result<std::unique_ptr<RemoteChat>> RemoteChat::Connect(RemoteChatOptions options) {
  Result<server::HttpUrl> url = server::ParseHttpUrl(options.url);
  if (!url.ok()) return url.status().WithContext("--server");
  // As `k3 serve` prints it, and as other clients want it.
  if (url->path.ends_with(kVersionPath)) {
    url->path.resize(url->path.size() - kVersionPath.size());
  }
  std::unique_ptr<RemoteChat> chat(new RemoteChat(std::move(*url), std::move(options)));
  K3_TRY(const server::HttpResponse response,
         chat->client_.Call({.method = "GET", .target = "/v1/models", .headers = chat->Headers()}));
  if (response.status != 200) return chat->RefusalOf(response);
  Result<std::string> model = FirstModel(response);
  if (!model.ok()) return model.status().WithContext(chat->url());
  chat->model_ = std::move(*model);
  return chat;
}

server::HttpHeaders RemoteChat::Headers() const {
  server::HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (!options_.api_key.empty()) {
    headers.emplace_back("Authorization", "Bearer " + options_.api_key);
  }
  return headers;
}

std::string RemoteChat::Body(const ChatRequest& request, const ChatOptions& options) const {
  ChatRequest open = request;
  // Whatever a file says: without an open answer there is nothing to go on with.
  open.add_generation_prompt = true;
  JsonValue json = ChatRequestJson(open);
  JsonValue::Members& fields = *json.members();
  fields.emplace_back("model", JsonValue(model_));
  fields.emplace_back("stream", JsonValue(true));
  fields.emplace_back("stream_options",
                      JsonValue(JsonValue::Members{{"include_usage", JsonValue(true)}}));
  fields.emplace_back("max_tokens", JsonValue(options.max_tokens));
  // The API's seeds are signed; the server takes the same 64 bits.
  fields.emplace_back("seed", JsonValue(static_cast<int64_t>(options.sampling.seed)));
  if (!options.stop.empty()) {
    JsonValue::Items stops;
    for (const std::string& stop : options.stop) stops.emplace_back(stop);
    fields.emplace_back("stop", JsonValue(std::move(stops)));
  }
  fields.insert(fields.end(), options_.sampling.begin(), options_.sampling.end());
  return DumpJson(json);
}

Status RemoteChat::RefusalOf(const server::HttpResponse& response) const {
  return ErrorOf(response.status, BodyJson(response), response.body).WithContext(url());
}

Result<ChatAnswer> RemoteChat::Answer(const ChatRequest& request, const ChatOptions& options,
                                      ChatSink& sink) {
  const std::string body = Body(request, options);
  RemoteAnswer answer(sink);
  Status failure;
  bool was_stopped = false;
  const Result<server::HttpResponse> response =
      client_.Call({.method = "POST",
                    .target = "/v1/chat/completions",
                    .headers = Headers(),
                    .body = body,
                    .keep_going = [&] { return answer.KeepsWaiting(); },
                    .on_event =
                        [&](std::string_view data) {
                          const Result<bool> goes_on = answer.Take(data);
                          failure = goes_on.status();
                          was_stopped = goes_on.ok() && !*goes_on;
                          return failure.ok() && !was_stopped;
                        }});
  if (!failure.ok()) return failure.WithContext(url());
  if (!response.ok()) {
    if (response.status().code() != StatusCode::kCancelled) return response.status();
    was_stopped = true;
  } else if (response->status != 200) {
    return RefusalOf(*response);
  } else if (!response->was_stream) {
    return Corruption(fmt::format("{}: expected an answer as a stream of events, found {}", url(),
                                  QuoteForMessage(response->content_type)));
  }
  Result<ChatAnswer> whole = answer.Finish(was_stopped);
  if (!whole.ok()) return whole.status().WithContext(url());
  return whole;
}

std::string RemoteChat::DescribeMemory() { return fmt::format("kept by {}", url()); }

}  // namespace k3::cli

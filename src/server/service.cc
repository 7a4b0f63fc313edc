#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/limits.h"
#include "engine/chat.h"
#include "grammar/answer_grammar.h"
#include "text/xtml_renderer.h"

namespace k3::server {
namespace {

constexpr auto kTickEvery = std::chrono::seconds(1);
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kModelsPath = "/v1/models";

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr Route kWorkRoutes[] = {{"/v1/chat/completions", "POST"},
                                 {"/v1/completions", "POST"},
                                 {"/tokenize", "POST"},
                                 {"/detokenize", "POST"}};

ApiError NoSuchRoute(const HttpRequest& request) {
  return {404, "invalid_request_error",
          fmt::format("{} {}: there is nothing here; see docs/serving.md for the routes",
                      request.method, QuoteForMessage(request.path)),
          "", "not_found"};
}

/// With the methods of the path in Allow, as RFC 9110, 15.5.6 wants it.
void RespondWrongMethod(HttpExchange& exchange, const HttpRequest& request,
                        std::string_view expected) {
  const ApiError error = {
      405, "invalid_request_error",
      fmt::format("{}: expected {}, found {}", request.path, expected, request.method), "",
      "method_not_allowed"};
  exchange.Respond(
      405, std::string(kJson), ApiErrorBody(error),
      {{"Allow", expected == "GET" ? "GET, HEAD, OPTIONS" : fmt::format("{}, OPTIONS", expected)}});
}

/// Messages in front of the conversation's first answer or question: what a system prompt renders.
int64_t LeadingSystemMessages(const ChatRequest& chat) {
  int64_t count = 0;
  if (const JsonValue::Items* tools = chat.tools.items(); tools != nullptr && !tools->empty()) {
    ++count;
  }
  if (chat.thinking && chat.effort.has_value()) ++count;
  for (const ChatMessage& message : chat.messages) {
    if (message.role != ChatRole::kSystem) break;
    ++count;
  }
  return count;
}

/// Where the first `count` messages of a rendered prompt end, 0 if there are not so many.
int64_t EndOfMessages(std::span<const int32_t> prompt, int64_t count, int32_t end_of_message) {
  if (count == 0) return 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] == end_of_message && --count == 0) return static_cast<int64_t>(i) + 1;
  }
  return 0;
}

/// Ends of what later prompts will begin with: the system prompt and tools, and the last message in
/// front of what is said about this turn alone.
std::vector<int64_t> Boundaries(const ChatRequest& chat, std::span<const int32_t> prompt,
                                int32_t end_of_message) {
  std::vector<int64_t> ends = {EndOfMessages(prompt, LeadingSystemMessages(chat), end_of_message)};
  int64_t options = chat.response_format != ResponseFormat::kText ? 1 : 0;
  if (chat.tool_choice == ToolChoice::kRequired || chat.tool_choice == ToolChoice::kNone) ++options;
  if (options > 0) {
    const int64_t all = std::ranges::count(prompt, end_of_message);
    ends.push_back(EndOfMessages(prompt, all - options, end_of_message));
  }
  return ends;
}

}  // namespace

Service::Service(ServiceOptions options)
    : options_(std::move(options)),
      created_(UnixSeconds()),
      metrics_(options_.metrics),
      random_(std::random_device{}()),
      thread_([this] { Loop(); }) {}

Service::~Service() { Close(); }

Status Service::Open(Engine& engine, Scheduler& scheduler) {
  engine_ = &engine;
  scheduler_ = &scheduler;
  context_ = MakeRequestContext(options_.model_name, engine.config().vocab_size,
                                engine.checkpoint().generation_config());
  if (const Result<XtmlMarkers> markers = XtmlMarkers::Find(engine.tokenizer()); markers.ok()) {
    markers_ = *markers;
    K3_TRY(vocabulary_, TokenVocabulary::Create(engine.tokenizer()));
  }
  metrics_.Attach(scheduler);
  const std::lock_guard lock(mutex_);
  if (state_ == State::kLoading) state_ = State::kReady;
  return OkStatus();
}

void Service::Drain() {
  const std::lock_guard lock(mutex_);
  state_ = State::kDraining;
}

void Service::Close() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kDraining;
    closing_ = true;
  }
  work_arrived_.notify_all();
  if (thread_.joinable()) thread_.join();
  metrics_.Detach();
}

Service::State Service::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Service::RespondError(HttpExchange& exchange, const ApiError& error) {
  HttpHeaders headers;
  if (error.http_status == 429 || error.http_status == 503) headers = {{"Retry-After", "1"}};
  exchange.Respond(error.http_status, std::string(kJson), ApiErrorBody(error), std::move(headers));
}

void Service::RespondHealth(HttpExchange& exchange) const {
  switch (state()) {
    case State::kLoading:
      return exchange.Respond(503, std::string(kJson), R"({"status":"loading"})");
    case State::kReady:
      return exchange.Respond(200, std::string(kJson), R"({"status":"ready"})");
    case State::kDraining:
      return exchange.Respond(503, std::string(kJson), R"({"status":"draining"})");
  }
}

void Service::RespondModels(HttpExchange& exchange, std::string_view path) const {
  const ModelInfo model{options_.model_name, created_, engine_->config().context_max};
  if (path == kModelsPath) {
    return exchange.Respond(200, std::string(kJson), ModelsBody({&model, 1}));
  }
  const std::string_view name = path.substr(kModelsPath.size() + 1);
  if (name == options_.model_name) {
    return exchange.Respond(200, std::string(kJson), ModelBody(model));
  }
  ApiError error = ApiErrorOf(NotFound(fmt::format("model: there is no model {}; {} is served",
                                                   QuoteForMessage(name), options_.model_name)));
  RespondError(exchange, error);
}

void Service::Handle(HttpExchangePtr exchange, HttpRequest request) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (request.path == "/health" || request.path == "/metrics") {
    if (!reads) return RespondWrongMethod(*exchange, request, "GET");
    if (request.path == "/health") return RespondHealth(*exchange);
    return exchange->Respond(200, std::string(kMetricsContentType),
                             options_.metrics != nullptr ? options_.metrics->Render() : "");
  }
  if (state() == State::kLoading) {
    return RespondError(*exchange,
                        ApiErrorOf(Unavailable("the model is being loaded; try again soon")));
  }
  if (request.path == kModelsPath || request.path.starts_with(std::string(kModelsPath) + "/")) {
    if (!reads) return RespondWrongMethod(*exchange, request, "GET");
    return RespondModels(*exchange, request.path);
  }
  const auto route = std::ranges::find(kWorkRoutes, request.path, &Route::path);
  if (route == std::end(kWorkRoutes)) return RespondError(*exchange, NoSuchRoute(request));
  if (request.method != route->method) {
    return RespondWrongMethod(*exchange, request, route->method);
  }
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kReady && std::ssize(incoming_) < limits::kServiceBacklogMax) {
      incoming_.push_back({std::move(exchange), std::move(request)});
    }
  }
  if (exchange != nullptr) {
    return RespondError(*exchange, ApiErrorOf(state() == State::kReady
                                                  ? ResourceExhausted("too many requests wait to "
                                                                      "be read; try again later")
                                                  : Unavailable("the server is shutting down")));
  }
  work_arrived_.notify_one();
}

void Service::Loop() {
  auto tick_at = std::chrono::steady_clock::now() + kTickEvery;
  while (true) {
    std::optional<Incoming> next;
    std::optional<FinishedTurn> turn;
    {
      std::unique_lock lock(mutex_);
      work_arrived_.wait_until(
          lock, tick_at, [this] { return closing_ || !incoming_.empty() || !finished_.empty(); });
      if (closing_) break;
      if (!incoming_.empty()) {
        next = std::move(incoming_.front());
        incoming_.pop_front();
      } else if (!finished_.empty()) {
        turn = std::move(finished_.front());
        finished_.pop_front();
      }
    }
    if (next.has_value()) Process(std::move(*next));
    if (turn.has_value()) Settle(*turn);
    if (std::chrono::steady_clock::now() >= tick_at) {
      TickRuns();
      tick_at = std::chrono::steady_clock::now() + kTickEvery;
    }
  }
  const std::lock_guard lock(mutex_);
  for (Incoming& incoming : incoming_) {
    RespondError(*incoming.exchange, ApiErrorOf(Unavailable("the server is shutting down")));
  }
  incoming_.clear();
}

void Service::TickRuns() {
  std::erase_if(runs_, [](const std::weak_ptr<CompletionRun>& run) {
    const CompletionRunPtr alive = run.lock();
    if (alive == nullptr || alive->over()) return true;
    alive->Tick();
    return false;
  });
}

void Service::Process(Incoming incoming) {
  HttpExchange& exchange = *incoming.exchange;
  if (exchange.gone()) return;
  const std::string& path = incoming.request.path;
  const std::string_view body = incoming.request.body;
  Failure failure;
  if (path == "/v1/chat/completions") {
    failure = ProcessChat(incoming.exchange, body);
  } else if (path == "/v1/completions") {
    failure = ProcessText(incoming.exchange, body);
  } else if (path == "/tokenize") {
    failure = ProcessTokenize(exchange, body);
  } else {
    failure = ProcessDetokenize(exchange, body);
  }
  if (!failure.has_value()) return;
  if (options_.logger != nullptr) {
    options_.logger->Info("request_refused", {{"request", incoming.request.id},
                                              {"path", path},
                                              {"status", failure->http_status},
                                              {"code", failure->code},
                                              {"param", failure->param}});
  }
  RespondError(exchange, *failure);
}

ResponseInfo Service::MakeInfo(const CompletionParams& params) {
  return {.id = fmt::format("{:016x}{:016x}", random_(), random_()),
          .created = UnixSeconds(),
          .model = options_.model_name,
          .system_fingerprint = "k3-" + options_.version,
          .logprobs = params.logprobs,
          .include_usage = params.include_usage};
}

ScheduledRequest Service::MakeRequest(const CompletionParams& params, std::vector<int32_t> prompt,
                                      uint64_t seed) const {
  ScheduledRequest request;
  request.max_tokens = params.max_tokens.value_or(
      std::min(options_.answer_tokens_default, scheduler_->RoomBehind(std::ssize(prompt))));
  request.prompt = std::move(prompt);
  request.sampling = params.sampling;
  request.sampling.seed = seed;
  for (const int64_t id : engine_->stop_ids()) request.stop_ids.push_back(id);
  request.cache_salt = params.cache_salt;
  return request;
}

Service::Failure Service::ProcessChat(const HttpExchangePtr& exchange, std::string_view body) {
  if (!markers_.has_value()) {
    return ApiErrorOf(Unimplemented("messages: this model's tokenizer has no chat markup"));
  }
  Result<ChatCompletionRequest> parsed = ParseChatCompletion(body, context_);
  if (!parsed.ok()) return ApiErrorOf(parsed.status());
  parsed->chat.add_generation_prompt = true;
  const Result<std::vector<int32_t>> prompt = EncodeChat(*engine_, parsed->chat);
  if (!prompt.ok()) return ApiErrorOf(prompt.status());
  if (std::ssize(*prompt) >= engine_->config().context_max) {
    return ContextLengthExceeded(std::ssize(*prompt), engine_->config().context_max, "messages");
  }
  const Result<AnswerGrammarPtr> grammar = AnswerGrammar::Compile(
      *vocabulary_, parsed->chat,
      {.parallel_tool_calls = parsed->parallel_tool_calls, .schema_path = parsed->schema_path});
  if (!grammar.ok()) return ApiErrorOf(grammar.status());
  const Result<StopMatcher> stop = StopMatcher::Create(parsed->params.stop);
  if (!stop.ok()) return ApiErrorOf(stop.status());

  const CompletionParams params = parsed->params;
  const std::vector<int64_t> boundaries =
      Boundaries(parsed->chat, *prompt, markers_->end_of_message);
  const CompletionRunPtr run = CompletionRun::Create(exchange,
                                                     {.chat = std::move(*parsed),
                                                      .params = params,
                                                      .info = MakeInfo(params),
                                                      .choices_count = params.choices_count,
                                                      .prompt_tokens = std::ssize(*prompt)},
                                                     MakeHooks());
  const uint64_t seed = params.has_seed ? params.sampling.seed : random_();
  std::vector<ScheduledRequest> requests;
  for (int64_t c = 0; c < params.choices_count; ++c) {
    run->AddChoice(std::make_unique<ChatAnswerStream>(engine_->tokenizer(), *markers_,
                                                      run->plan().chat->chat, *stop),
                   *prompt);
    requests.push_back(MakeRequest(params, *prompt, seed + static_cast<uint64_t>(c)));
    requests.back().stop_ids.push_back(markers_->end_of_message);
    requests.back().boundaries = boundaries;
    requests.back().constraint = MakeConstraint(*grammar);
  }
  SubmitAll(run, std::move(requests));
  return {};
}

Service::Failure Service::ProcessText(const HttpExchangePtr& exchange, std::string_view body) {
  const Result<TextCompletionRequest> parsed = ParseTextCompletion(body, context_);
  if (!parsed.ok()) return ApiErrorOf(parsed.status());
  const Result<StopMatcher> stop = StopMatcher::Create(parsed->params.stop);
  if (!stop.ok()) return ApiErrorOf(stop.status());
  std::vector<std::vector<int32_t>> prompts;
  int64_t prompt_tokens = 0;
  for (const TextPrompt& prompt : parsed->prompts) {
    std::vector<int32_t> ids = prompt.ids;
    if (ids.empty()) {
      Result<std::vector<int32_t>> encoded = engine_->tokenizer().Encode(prompt.text);
      if (!encoded.ok()) return ApiErrorOf(encoded.status().WithContext("prompt"));
      ids = std::move(*encoded);
    }
    if (ids.empty()) {
      return ApiErrorOf(InvalidArgument("prompt: expected at least one token, found none"));
    }
    if (std::ssize(ids) >= engine_->config().context_max) {
      return ContextLengthExceeded(std::ssize(ids), engine_->config().context_max, "prompt");
    }
    prompt_tokens += std::ssize(ids);
    prompts.push_back(std::move(ids));
  }
  const CompletionParams& params = parsed->params;
  const CompletionRunPtr run =
      CompletionRun::Create(exchange,
                            {.params = params,
                             .info = MakeInfo(params),
                             .choices_count = std::ssize(prompts) * params.choices_count,
                             .prompt_tokens = prompt_tokens},
                            MakeHooks());
  const uint64_t seed = params.has_seed ? params.sampling.seed : random_();
  std::vector<ScheduledRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    for (int64_t c = 0; c < params.choices_count; ++c) {
      run->AddChoice(std::make_unique<TextAnswerStream>(engine_->tokenizer(), *stop), prompt);
      requests.push_back(MakeRequest(params, prompt, seed + static_cast<uint64_t>(c)));
    }
  }
  SubmitAll(run, std::move(requests));
  return {};
}

void Service::SubmitAll(const CompletionRunPtr& run, std::vector<ScheduledRequest> requests) {
  std::vector<uint64_t> ids;
  // All or none: choices that fill the queue must not be what refuses the last of them.
  Status refused = scheduler_->HasPlacesFor(std::ssize(requests));
  for (size_t c = 0; c < requests.size(); ++c) {
    const int64_t choice = static_cast<int64_t>(c);
    if (refused.ok()) {
      const Result<uint64_t> id = scheduler_->Submit(std::move(requests[c]), run->MakeSink(choice));
      if (id.ok()) {
        ids.push_back(*id);
        continue;
      }
      refused = id.status();
    }
    run->NotSubmitted(choice, refused);
  }
  run->Start(*scheduler_, std::move(ids));
  runs_.push_back(run);
}

Service::Failure Service::ProcessTokenize(HttpExchange& exchange, std::string_view body) const {
  const Result<TokenizeRequest> parsed = ParseTokenize(body, context_);
  if (!parsed.ok()) return ApiErrorOf(parsed.status());
  const Result<std::vector<int32_t>> ids = parsed->chat.has_value()
                                               ? EncodeChat(*engine_, *parsed->chat)
                                               : engine_->tokenizer().Encode(*parsed->prompt);
  if (!ids.ok()) return ApiErrorOf(ids.status());
  std::vector<std::string> strings;
  if (parsed->with_strings) {
    for (const int32_t id : *ids) strings.emplace_back(engine_->tokenizer().TokenBytes(id));
  }
  exchange.Respond(200, std::string(kJson),
                   TokenizeBody(*ids, strings, engine_->config().context_max));
  return {};
}

Service::Failure Service::ProcessDetokenize(HttpExchange& exchange, std::string_view body) const {
  const Result<DetokenizeRequest> parsed = ParseDetokenize(body, context_);
  if (!parsed.ok()) return ApiErrorOf(parsed.status());
  const Result<std::string> text = engine_->tokenizer().Decode(parsed->ids);
  if (!text.ok()) return ApiErrorOf(text.status());
  Utf8Stream valid;
  std::string out = valid.Feed(*text);
  out += valid.Finish();
  exchange.Respond(200, std::string(kJson), DetokenizeBody(out));
  return {};
}

CompletionRun::Hooks Service::MakeHooks() {
  return {.on_answer = [this](const CompletionRun& run, int64_t choice) { KeepTurn(run, choice); },
          .on_end =
              [this](const CompletionRecord& record) {
                metrics_.Record(record);
                if (options_.logger == nullptr) return;
                options_.logger->Info("completion",
                                      {{"id", record.id},
                                       {"route", record.chat ? "chat" : "text"},
                                       {"stream", record.stream},
                                       {"outcome", record.outcome},
                                       {"prompt_tokens", record.usage.prompt_tokens},
                                       {"cached_tokens", record.usage.cached_tokens},
                                       {"completion_tokens", record.usage.completion_tokens},
                                       {"from_disk", record.from_disk},
                                       {"decoded_tokens", record.decoded_tokens},
                                       {"queue_s", record.queue_seconds},
                                       {"first_token_s", record.first_token_seconds.value_or(-1)},
                                       {"total_s", record.total_seconds}});
              }};
}

void Service::KeepTurn(const CompletionRun& run, int64_t choice) {
  if (!options_.settles_turns) return;
  FinishedTurn turn;
  turn.cache_salt = run.plan().params.cache_salt;
  if (run.plan().chat.has_value()) {
    turn.chat = run.plan().chat->chat;
    AddAnswer(run.answer(choice), turn.chat.messages);
  } else {
    turn.text = run.tokens(choice);
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::ssize(finished_) >= limits::kServiceBacklogMax) finished_.pop_front();
    finished_.push_back(std::move(turn));
  }
  work_arrived_.notify_one();
}

void Service::Settle(const FinishedTurn& turn) {
  ScheduledRequest request;
  if (turn.text.empty()) {
    Result<std::vector<int32_t>> ids = EncodeHistory(*engine_, turn.chat);
    if (!ids.ok()) return;
    request.prompt = std::move(*ids);
  } else {
    request.prompt = turn.text;
  }
  if (std::ssize(request.prompt) > engine_->config().context_max) return;
  request.max_tokens = 0;
  request.background = true;
  request.cache_salt = turn.cache_salt;
  class Silent : public RequestSink {
    SinkVerdict OnToken(const SampledToken&) override { return SinkVerdict::kContinue; }
    void OnEnd(const Result<ScheduledResult>&) override {}
  };
  // Refused while much else waits: the next turn then computes more, and says the same.
  (void)scheduler_->Submit(std::move(request), std::make_unique<Silent>());
}

}  // namespace k3::server

#pragma once
// Service: the routes of the API, over one engine and its scheduler.
//
//   Service service(options);                       // answers /health with "loading"
//   HttpServer::Start(http, [&](auto e, auto r) { service.Handle(std::move(e), std::move(r)); });
//   service.Open(*engine, *scheduler);              // from now on it serves
//   service.Close();                                // before the scheduler goes
//
// Handle is called by the HTTP server's thread and only sorts: reading bodies, rendering prompts
// and compiling grammars is done by a thread of the service's own, in order of arrival. The same
// thread runs what makes a finished turn reusable: its conversation is rendered with the answer and
// submitted as background work.
//
//   POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize
//   GET  /v1/models, /v1/models/NAME, /health, /metrics
//
// The engine, scheduler, logger and registry must outlive it. Source: serving contract, section 4.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "grammar/token_vocabulary.h"
#include "server/completion_run.h"
#include "server/http_types.h"
#include "server/log.h"
#include "server/service_metrics.h"

namespace k3::server {

struct ServiceOptions {
  std::string model_name;
  std::string version;  // of the program, for system_fingerprint
  /// Of an answer whose request does not say; fewer where the context or the memory ends first.
  int64_t answer_tokens_default = 16'384;
  bool settles_turns = true;  // runs finished turns through prefill form
  Logger* logger = nullptr;
  MetricsRegistry* metrics = nullptr;
};

class Service {
 public:
  explicit Service(ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void Handle(HttpExchangePtr exchange, HttpRequest request);

  /// NotFound when the tokenizer has no chat markup: then chat requests are refused, no more.
  Status Open(Engine& engine, Scheduler& scheduler);
  /// Says "draining" from now on; new requests are refused.
  void Drain();
  /// Ends the service's thread. Requests that it has not read are refused.
  void Close();

 private:
  enum class State { kLoading, kReady, kDraining };
  struct Incoming {
    HttpExchangePtr exchange;
    HttpRequest request;
  };
  /// What the client is to be told, if anything went wrong.
  using Failure = std::optional<ApiError>;
  struct FinishedTurn {
    ChatRequest chat;           // with the answer as its last message
    std::vector<int32_t> text;  // of a text completion: its ids instead
    std::string cache_salt;
  };

  void Loop();
  void Process(Incoming incoming);
  // A failure is answered by Process.
  Failure ProcessChat(const HttpExchangePtr& exchange, std::string_view body);
  Failure ProcessText(const HttpExchangePtr& exchange, std::string_view body);
  Failure ProcessTokenize(HttpExchange& exchange, std::string_view body) const;
  Failure ProcessDetokenize(HttpExchange& exchange, std::string_view body) const;
  void Settle(const FinishedTurn& turn);
  void KeepTurn(const CompletionRun& run, int64_t choice);
  void TickRuns();

  CompletionRun::Hooks MakeHooks();
  ResponseInfo MakeInfo(const CompletionParams& params);
  ScheduledRequest MakeRequest(const CompletionParams& params, std::vector<int32_t> prompt,
                               uint64_t seed) const;
  /// Submits all choices or refuses them together.
  void SubmitAll(const CompletionRunPtr& run, std::vector<ScheduledRequest> requests);
  void RespondHealth(HttpExchange& exchange) const;
  void RespondModels(HttpExchange& exchange, std::string_view path) const;
  static void RespondError(HttpExchange& exchange, const ApiError& error);
  State state() const;

  const ServiceOptions options_;
  const int64_t created_;  // seconds since 1970
  ServiceMetrics metrics_;

  // Set by Open, read by the service's thread once the state is ready.
  Engine* engine_ = nullptr;
  Scheduler* scheduler_ = nullptr;
  RequestContext context_;
  std::optional<XtmlMarkers> markers_;
  std::optional<TokenVocabulary> vocabulary_;

  // The service's thread alone.
  std::mt19937_64 random_;
  std::list<std::weak_ptr<CompletionRun>> runs_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_arrived_;
  State state_ = State::kLoading;
  bool closing_ = false;
  std::deque<Incoming> incoming_;
  std::deque<FinishedTurn> finished_;

  std::thread thread_;
};

}  // namespace k3::server

// k3 serve: an OpenAI-style API over one model, for many clients at once.

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "api_key_file.h"
#include "base/limits.h"
#include "byte_count.h"
#include "commands.h"
#include "engine/scheduler.h"
#include "engine_options.h"
#include "number_check.h"
#include "server/http_server.h"
#include "server/service.h"
#include "sys/file.h"
#include "sys/machine.h"
#include "terminal/terminal.h"

namespace k3::cli {
namespace {

constexpr double kAbandonSeconds = 60;
constexpr int64_t kDiskBytesDefault = int64_t{16} << 30;

struct ServeFlags {
  std::string dir;
  std::string name;
  int threads = 0;
  std::string prefill_chunk = std::to_string(kDefaultPrefillChunk);
  std::string log_level = "info";
  std::string api_key_file;
  int64_t cache_bytes = -1;  // negative: a quarter of the memory
  int64_t memory_bytes = 0;  // 0: three quarters of what is available
  int64_t pass_ms = 80;
  int64_t grace_seconds = 30;
  uint16_t port = 8080;
  server::HttpServerOptions http;
  server::ServiceOptions service;
  SchedulerOptions scheduler{.prefix = {.disk_bytes_max = kDiskBytesDefault}};
};

/// The signals that end the server, taken by whoever waits for them instead of by a handler.
sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

/// Waits for a signal; false after `seconds` without one. Negative: for ever.
bool AwaitSignal(double seconds) {
  const sigset_t signals = EndingSignals();
  if (seconds < 0) {
    int number = 0;
    return sigwait(&signals, &number) == 0;
  }
  const timespec timeout{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<int64_t>(seconds))) * 1e9)};
  return sigtimedwait(&signals, nullptr, &timeout) > 0;
}

/// The model and what runs it, opened beside the server, so that /health can say that it loads.
class LoadedModel {
 public:
  explicit LoadedModel(const ServeFlags& flags)
      : thread_([this, &flags] {
          status_ = Open(flags);
          done_ = true;
        }) {}
  ~LoadedModel() {
    if (thread_.joinable()) thread_.join();
  }

  bool done() const { return done_; }
  /// Once done.
  const Status& status() const { return status_; }
  Engine& engine() { return *engine_; }
  Scheduler& scheduler() { return *scheduler_; }

 private:
  Status Open(const ServeFlags& flags) {
    K3_TRY(const EngineOptions options, MakeEngineOptions(flags.threads, true));
    K3_TRY(engine_, Engine::Open(flags.dir, options));
    K3_RETURN_IF_ERROR(engine_->WarmUp());
    K3_TRY(scheduler_, Scheduler::Start(*engine_, flags.scheduler));
    return OkStatus();
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  Status status_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

/// Says that it is over, lets what runs finish, and cancels the rest.
void EndServing(const ServeFlags& flags, server::Service& service, server::HttpServer& http,
                LoadedModel& model, server::Logger& logger) {
  service.Drain();
  logger.Info("draining", {{"grace_s", flags.grace_seconds}});
  std::atomic<bool> drained = false;
  std::thread waiter([&] {
    if (!model.scheduler().Drain(static_cast<double>(flags.grace_seconds))) {
      // Their clients are told.
      model.scheduler().Abandon();
      model.scheduler().Drain(kAbandonSeconds);
    }
    drained = true;
  });
  while (!drained) {
    if (AwaitSignal(0.05)) {
      // Whoever asks twice does not want to wait.
      PrintNotice("interrupted again: ending at once");
      std::_Exit(kExitInterrupted);
    }
  }
  waiter.join();
  service.Close();
  http.Stop(1000);
  logger.Info("stopped");
}

/// What the API calls a model: its directory's name.
std::string ModelName(const std::string& dir) {
  const std::filesystem::path path =
      std::filesystem::weakly_canonical(std::filesystem::absolute(dir));
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

/// Fills in what the options leave open, and checks what they say together.
Status CompleteFlags(ServeFlags& flags) {
  SchedulerOptions& scheduler = flags.scheduler;
  K3_TRY(scheduler.budget.chunk_tokens_max, ParsePrefillChunk(flags.prefill_chunk));
  scheduler.budget.pass_seconds_max = static_cast<double>(flags.pass_ms) * 1e-3;
  if (!flags.api_key_file.empty()) {
    K3_TRY(flags.http.api_keys, ReadApiKeys(flags.api_key_file));
  }
  if (flags.memory_bytes == 0) flags.memory_bytes = ReadMemoryFacts().available_bytes / 4 * 3;
  scheduler.memory_bytes_max = flags.memory_bytes;
  scheduler.prefix.memory_bytes_max =
      flags.cache_bytes >= 0 ? flags.cache_bytes : flags.memory_bytes / 3;
  if (scheduler.prefix.memory_bytes_max == 0 && !scheduler.prefix.disk_dir.empty()) {
    return InvalidArgument(
        "--cache-bytes 0 keeps nothing, so that --cache-dir has nothing to store; give both or "
        "neither");
  }
  if (flags.name.empty()) flags.name = ModelName(flags.dir);
  flags.service.model_name = flags.name;
  flags.service.version = K3_VERSION;
  flags.service.settles_turns = scheduler.prefix.memory_bytes_max > 0;
  flags.http.port = flags.port;
  if (scheduler.prefix.reuse_decoded) {
    PrintNotice(
        "--reuse-decoded: answers after a reused turn may differ by rounding from those of a cold "
        "run");
  }
  return OkStatus();
}

Status AnnounceAddress(const ServeFlags& flags, uint16_t port) {
  const std::string& host = flags.http.host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return WriteOutput(fmt::format("Serving {} at http://{}:{}/v1\n", flags.name,
                                 is_ipv6 ? "[" + host + "]" : host, port));
}

Result<int> Serve(ServeFlags flags) {
  K3_TRY(const server::LogLevel level, server::ParseLogLevel(flags.log_level));
  K3_RETURN_IF_ERROR(CompleteFlags(flags));
  // Before any thread, so that all of them leave the signals to this one.
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  server::Logger logger(level);
  server::MetricsRegistry metrics;
  flags.scheduler.prefix.warn = [&logger](const std::string& message) {
    logger.Warn("cache", {{"message", message}});
  };
  flags.service.logger = flags.http.logger = &logger;
  flags.service.metrics = flags.http.metrics = &metrics;
  server::Service service(flags.service);
  K3_TRY(const std::unique_ptr<server::HttpServer> http,
         server::HttpServer::Start(
             flags.http, [&service](server::HttpExchangePtr exchange, server::HttpRequest request) {
               service.Handle(std::move(exchange), std::move(request));
             }));
  K3_RETURN_IF_ERROR(AnnounceAddress(flags, http->port()));
  LoadedModel model(flags);
  while (!model.done()) {
    // Nothing runs yet, and opening cannot be interrupted.
    if (AwaitSignal(0.005)) std::_Exit(kExitInterrupted);
  }
  // By this thread: from the first request on, a signal waits until it is looked for below.
  const Status opened =
      model.status().ok() ? service.Open(model.engine(), model.scheduler()) : model.status();
  if (!opened.ok()) {
    service.Close();
    http->Stop(100);
    return opened;
  }
  const std::optional<cache::DiskTierStats> disk = model.scheduler().Stats().prefix.disk;
  logger.Info("ready", {{"model", flags.name},
                        {"memory_bytes", flags.memory_bytes},
                        {"cache_bytes", flags.scheduler.prefix.memory_bytes_max},
                        {"streams", flags.scheduler.streams_max},
                        {"disk_snapshots", disk.has_value() ? disk->snapshots : int64_t{0}}});
  AwaitSignal(-1);
  EndServing(flags, service, *http, model, logger);
  return kExitOk;
}

template <typename T>
CLI::Option* AddNumber(CLI::App& command, const std::string& name, T* value, uint64_t most,
                       const std::string& help) {
  return command.add_option(name, *value, help)
      ->transform(WholeNumber(most))
      ->type_name("N")
      ->capture_default_str();
}

void AddServerOptions(CLI::App& command, ServeFlags& flags) {
  command
      .add_option("--host", flags.http.host,
                  "The address to listen on; 0.0.0.0 opens it to the network.")
      ->type_name("ADDRESS")
      ->capture_default_str();
  AddNumber(command, "--port", &flags.port, 65535, "The port; 0 takes any free one.");
  command.add_option("--name", flags.name,
                     "What the API calls the model, in place of its directory's name.");
  command
      .add_option("--api-key-file", flags.api_key_file,
                  "Only requests with one of these keys, a line each, are answered.")
      ->type_name("FILE");
  command
      .add_option("--cors-origin", flags.http.cors_origins,
                  "A web page's origin that may call the API, or * for all; may be repeated.")
      ->type_name("ORIGIN");
  command.add_option("--log-level", flags.log_level, "What is logged on standard error, as JSON.")
      ->type_name("debug|info|warn|error|off")
      ->capture_default_str();
  AddNumber(command, "--max-connections", &flags.http.connections_max, 65536, "Open connections.");
  AddBytesOption(command, "--max-body-bytes", &flags.http.body_bytes_max,
                 "Of one request's body (64 MiB).");
  AddNumber(command, "--grace-seconds", &flags.grace_seconds, 86400,
            "How long SIGTERM lets running requests finish.");
}

void AddSchedulerOptions(CLI::App& command, ServeFlags& flags) {
  SchedulerOptions& scheduler = flags.scheduler;
  AddNumber(command, "--max-streams", &scheduler.streams_max, 4096, "Sequences that run at once.");
  AddNumber(command, "--max-queue", &scheduler.queue_max, 1 << 20,
            "Requests that wait; more get 429.");
  AddNumber(command, "--max-tokens-default", &flags.service.answer_tokens_default,
            limits::kContextTokensMax, "Of an answer whose request does not say.");
  AddNumber(command, "--pass-ms", &flags.pass_ms, 60'000,
            "How long a pass may take while somebody is being answered.");
  command
      .add_option("--prefill-chunk", flags.prefill_chunk,
                  "Tokens of prompts in one pass at most, or all. Results do not depend on it.")
      ->type_name("N")
      ->capture_default_str();
  AddBytesOption(command, "--memory-bytes", &flags.memory_bytes,
                 "For running sequences and the cache (three quarters of what is free).");
  AddThreadsOption(command, &flags.threads);
}

void AddCacheOptions(CLI::App& command, ServeFlags& flags) {
  PrefixStoreOptions& prefix = flags.scheduler.prefix;
  AddBytesOption(command, "--cache-bytes", &flags.cache_bytes,
                 "Of --memory-bytes, for prefixes (a third of it); 0 keeps none.");
  command
      .add_option("--cache-dir", prefix.disk_dir,
                  "Keeps prefixes in this directory too, across restarts.")
      ->type_name("DIR");
  AddBytesOption(command, "--cache-disk-bytes", &prefix.disk_bytes_max,
                 "The directory's budget (16 GiB).");
  command.add_flag("--reuse-decoded", prefix.reuse_decoded,
                   "Goes on from generated state as it is: faster, but what follows may differ by "
                   "rounding from a cold run.");
}

}  // namespace

void AddServeCommand(CLI::App& app, Invocation& invocation) {
  // Shared with the callback, which CLI11 copies.
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command =
      app.add_subcommand("serve", "Answer many clients through an OpenAI-style API.");
  AddModelArgument(*command, &flags->dir, "The model's directory.");
  AddServerOptions(*command, *flags);
  AddSchedulerOptions(*command, *flags);
  AddCacheOptions(*command, *flags);
  command->footer(
      "Ctrl-C or SIGTERM lets running requests finish; a second one ends at once.\n"
      "docs/serving.md has the API, its limits and examples.\n\n"
      "Example:\n"
      "  k3 serve models/nano --port 8080 --cache-dir prefixes &\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 347 + 85?\"}]}'");
  command->callback(
      [flags, &invocation] { invocation.command = [flags] { return Serve(*flags); }; });
}

}  // namespace k3::cli

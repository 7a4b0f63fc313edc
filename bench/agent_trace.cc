// How much of a day's prompts a prefix cache of one tenth of the memory serves: a trace of
// conversations with tools through the real PrefixCache, one row for each policy.
//
//   cmake --preset release && ninja -C build/release agent-trace
//   build/release/bench/agent-trace --model models/nano --seed 1
//
// The trace. Every prompt starts with the same 8,000 tokens (system prompt and tools). A
// conversation has ten turns of 500 to 4,000 tokens, evenly distributed; the last quarter of a turn
// is the model's answer, and the next request of the conversation sends everything again. From the
// third turn on a quarter of the turns go on from an earlier turn of the conversation than the last
// one, any of them alike. A user makes some turns in a row, pauses once, after any turn but the
// last alike, and returns when 20 other conversations were served a turn or more since. Whoever may
// return goes first, the longest waiting in front; else the next conversation starts; when none is
// left, the waiting return as they stand. --pauses 9 makes every turn but the first a return.
//
// What is cached are names: a page and a snapshot count as the bytes that they have in the model of
// --model, but all share one array, which nobody reads. Pages are registered and a snapshot is
// taken at the end of every turn's second pass (in prefill form), at the end of the system prompt
// and where the look-up found a branch point. Budget: a tenth of what the pages of the whole trace
// and one snapshot a turn weigh; the loose one takes a tenth of the pages alone, and all snapshots.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "cache/prefix_cache.h"
#include "sys/file.h"

namespace k3 {
namespace {

using cache::PrefixCache;
using cache::SnapshotKind;

struct TraceOptions {
  std::string model = "models/nano";
  int64_t seed = 1;
  int64_t conversations = 40;
  int64_t turns = 10;
  int64_t others = 20;
  int64_t pauses = 1;
  int64_t work_weight_percent = -1;  // negative: the default of the cache
  int64_t share_min_percent = 0;
};

constexpr int64_t kSystemTokens = 8000;
constexpr int64_t kTurnTokensMin = 500;
constexpr int64_t kTurnTokensMax = 4000;
constexpr int64_t kAlignedTokens = 6144;

int64_t OnGrid(int64_t tokens) {
  return tokens / cache::kHashBlockTokens * cache::kHashBlockTokens;
}

/// One turn as it is sent: everything before, the new message, and the answer behind it.
struct Request {
  std::vector<int32_t> tokens;
  int64_t prompt = 0;  // tokens in front of the answer
};

class Conversation {
 public:
  Conversation(const TraceOptions& options, int64_t number)
      : number_(number),
        random_(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(number)) {
    std::set<int64_t> after;
    const int64_t pauses = std::min(options.pauses, options.turns - 1);
    while (std::ssize(after) < pauses) after.insert(1 + Below(options.turns - 1));
    pauses_ = {after.begin(), after.end()};
  }

  int64_t number() const { return number_; }
  int64_t turns() const { return std::ssize(turns_); }
  bool pauses_now() {
    if (pauses_.empty() || pauses_.front() != turns()) return false;
    pauses_.pop_front();
    return true;
  }

  /// The next turn's request.
  Request Next(const std::vector<int32_t>& system) {
    int64_t parent = turns() - 1;
    if (turns() >= 2 && Below(4) == 0) parent = Below(turns() - 1);
    Request request{.tokens = parent < 0 ? system : turns_[static_cast<size_t>(parent)]};
    const int64_t count = kTurnTokensMin + Below(kTurnTokensMax - kTurnTokensMin + 1);
    for (int64_t i = 0; i < count; ++i)
      request.tokens.push_back(static_cast<int32_t>(Below(1 << 17)));
    request.prompt = std::ssize(request.tokens) - count / 4;
    turns_.push_back(request.tokens);
    return request;
  }

 private:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_.NextBelow(static_cast<uint64_t>(bound)));
  }

  int64_t number_;
  Random random_;
  std::deque<int64_t> pauses_;               // after which turns, ascending
  std::vector<std::vector<int32_t>> turns_;  // all tokens up to the end of each
};

struct Trace {
  std::vector<Request> requests;
  int64_t system_end = kSystemTokens;
  int64_t early_returns = 0;  // because nobody else was left
};

Trace MakeTrace(const TraceOptions& options) {
  struct Waiting {
    Conversation* who;
    std::set<int64_t> others;
  };
  Trace trace;
  Random random(static_cast<uint64_t>(options.seed), ~uint64_t{0});
  std::vector<int32_t> system;
  for (int64_t i = 0; i < kSystemTokens; ++i) {
    system.push_back(static_cast<int32_t>(random.NextBelow(1 << 17)));
  }
  std::vector<std::unique_ptr<Conversation>> all;
  std::deque<Waiting> waiting;
  for (;;) {
    Conversation* now = nullptr;
    const auto due = std::ranges::find_if(
        waiting, [&](const Waiting& user) { return std::ssize(user.others) >= options.others; });
    if (due != waiting.end()) {
      now = due->who;
      waiting.erase(due);
    } else if (std::ssize(all) < options.conversations) {
      now = all.emplace_back(std::make_unique<Conversation>(options, std::ssize(all))).get();
    } else if (!waiting.empty()) {
      now = waiting.front().who;
      waiting.pop_front();
      ++trace.early_returns;
    } else {
      return trace;
    }
    for (Waiting& user : waiting) user.others.insert(now->number());
    do {
      trace.requests.push_back(now->Next(system));
    } while (now->turns() < options.turns && !now->pauses_now());
    if (now->turns() < options.turns) waiting.push_back({now, {}});
  }
}

struct Policy {
  std::string name;
  int64_t bytes_max = 0;  // 0: no cache
  double work_weight = cache::PrefixCacheOptions{}.work_weight;
  int64_t alignment = cache::kHashBlockTokens;
  bool has_disk = false;
};

struct Outcome {
  int64_t served = 0;
  int64_t from_disk = 0;
  int64_t computed = 0;
  cache::PrefixCacheStats stats;
  int64_t bytes_peak = 0;
};

/// One policy's caches over the trace.
class Simulation {
 public:
  Simulation(const ModelConfig& config, const Policy& policy)
      : policy_(policy),
        memory_(config, {.bytes_max = std::max<int64_t>(policy.bytes_max, 1),
                         .work_weight = policy.work_weight,
                         .alignment = policy.alignment}),
        disk_(config, {.bytes_max = int64_t{1} << 50}),
        // Shared: one stands for all.
        snapshot_(std::make_shared<cache::KdaSnapshot>(cache::KdaSnapshot::Unfilled(config))) {
    for (auto& rows : memory_.MakePageRows()) rows_.push_back(std::move(rows));
  }

  Outcome Run(const Trace& trace) {
    for (const Request& request : trace.requests) Serve(request, trace.system_end);
    outcome_.stats = memory_.stats();
    return outcome_;
  }

 private:
  void Serve(const Request& request, int64_t system_end) {
    cache::PrefixLease lease = memory_.Lookup(start_, request.tokens, request.prompt - 1);
    const int64_t in_memory = lease.length();
    int64_t hit = in_memory;
    if (policy_.has_disk) {
      hit = std::max(hit, disk_.Peek(start_, request.tokens, request.prompt - 1));
      if (hit > in_memory) Add(memory_, request, hit, SnapshotKind::kTurn);
    }
    outcome_.served += hit;
    outcome_.from_disk += hit - in_memory;
    outcome_.computed += request.prompt - hit;
    if (policy_.bytes_max > 0) AddBoundaries(request, lease, hit, system_end);
    lease.Release();
    outcome_.bytes_peak = std::max(outcome_.bytes_peak, memory_.bytes());
  }

  void AddBoundaries(const Request& request, const cache::PrefixLease& lease, int64_t hit,
                     int64_t system_end) {
    const int64_t end = OnGrid(std::ssize(request.tokens));
    if (policy_.alignment != cache::kHashBlockTokens) {
      for (int64_t at = policy_.alignment; at <= end; at += policy_.alignment) {
        if (at > hit) Add(memory_, request, at, SnapshotKind::kTurn);
      }
      AddPages(memory_, request, end);
      return;
    }
    if (hit < OnGrid(system_end)) Keep(request, OnGrid(system_end), SnapshotKind::kSystem);
    if (lease.branch_point() > hit) Keep(request, *lease.branch_point(), SnapshotKind::kBranch);
    Keep(request, end, SnapshotKind::kTurn);
  }

  void Keep(const Request& request, int64_t end, SnapshotKind kind) {
    Add(memory_, request, end, kind);
    if (policy_.has_disk) Add(disk_, request, end, kind);
  }

  void AddPages(PrefixCache& cache, const Request& request, int64_t end) {
    std::vector<cache::PageRows> pages;
    for (int64_t begin = 0; begin < end; begin += cache::kPageTokens) {
      pages.push_back({.begin = begin, .layers = rows_});
    }
    const auto tokens = std::span(request.tokens).first(static_cast<size_t>(end));
    cache.AddLoadedPages(start_, tokens, pages);
  }

  void Add(PrefixCache& cache, const Request& request, int64_t end, SnapshotKind kind) {
    AddPages(cache, request, end);
    const auto tokens = std::span(request.tokens).first(static_cast<size_t>(end));
    cache.AddSnapshot(start_, tokens, snapshot_, kind);
  }

  const Policy policy_;
  const cache::PrefixHash start_ = cache::NamespaceHash("");
  PrefixCache memory_;
  PrefixCache disk_;
  std::vector<cache::SharedRows> rows_;
  cache::SharedSnapshot snapshot_;
  Outcome outcome_;
};

void PrintRow(const Policy& policy, const Outcome& row, int64_t unlimited) {
  fmt::print("| {} | {:.1f} | {} | {:.1f} % | {} | {} | {} | {} | {} | {:.1f} |\n", policy.name,
             static_cast<double>(policy.bytes_max > int64_t{1} << 40 ? 0 : policy.bytes_max) / 1e6,
             row.served, 100.0 * static_cast<double>(row.served) / static_cast<double>(unlimited),
             row.from_disk, row.computed, row.stats.hits, row.stats.misses_no_pages,
             row.stats.misses_no_snapshot, static_cast<double>(row.bytes_peak) / 1e6);
}

/// Whether the option is known and its value fits.
bool SetOption(std::string_view name, std::string_view value, TraceOptions* options) {
  if (name == "--model") {
    options->model = value;
    return true;
  }
  struct Number {
    std::string_view name;
    int64_t* to;
    int64_t min, max;
  };
  const Number numbers[] = {{"--seed", &options->seed, 0, 1'000'000'000},
                            {"--conversations", &options->conversations, 1, 1000},
                            {"--turns", &options->turns, 2, 30},
                            {"--others", &options->others, 0, 1000},
                            {"--pauses", &options->pauses, 0, 30},
                            {"--work-weight-percent", &options->work_weight_percent, 0, 100'000},
                            {"--share-min-percent", &options->share_min_percent, 0, 100}};
  for (const Number& number : numbers) {
    if (name != number.name) continue;
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), *number.to);
    return error == std::errc() && end == value.data() + value.size() && *number.to >= number.min &&
           *number.to <= number.max;
  }
  return false;
}

std::vector<Policy> Policies(const TraceOptions& options, int64_t budget, int64_t loose_budget) {
  double weight = cache::PrefixCacheOptions{}.work_weight;
  if (options.work_weight_percent >= 0) {
    weight = static_cast<double>(options.work_weight_percent) / 100;
  }
  return {
      {.name = "ours", .bytes_max = budget, .work_weight = weight},
      {.name = "ours, least recently used first", .bytes_max = budget, .work_weight = 0},
      {.name = "ours, loose budget", .bytes_max = loose_budget, .work_weight = weight},
      {.name = "ours + disk tier", .bytes_max = budget, .work_weight = weight, .has_disk = true},
      {.name = fmt::format("aligned to {}", kAlignedTokens),
       .bytes_max = budget,
       .work_weight = weight,
       .alignment = kAlignedTokens},
      {.name = "no cache"}};
}

int Run(const TraceOptions& options) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const std::string path = options.model + "/config.json";
  const Result<std::string> json = ReadWholeFile(*files, path, 1 << 20);
  const Result<ModelConfig> config =
      json.ok() ? ParseModelConfig(json.value(), path) : Result<ModelConfig>(json.status());
  if (!config.ok()) {
    fmt::print(stderr, "{}\n", config.status().ToString());
    return 1;
  }
  const Trace trace = MakeTrace(options);
  const Policy unlimited{.name = "unlimited", .bytes_max = int64_t{1} << 50};
  const Outcome best = Simulation(config.value(), unlimited).Run(trace);
  const PrefixCache sizes(config.value(), {.bytes_max = 1});
  const int64_t pages = best.stats.pages * sizes.page_bytes();
  const int64_t snapshots = std::ssize(trace.requests) * sizes.snapshot_bytes();

  fmt::print(
      "{} requests of {} conversations, seed {}, {} pauses, {} early returns\n"
      "page {} B, snapshot {} B; all pages {:.1f} MB, a snapshot a turn {:.1f} MB\n\n"
      "| policy | budget MB | tokens served | of unlimited | from disk | computed | hits | no "
      "pages "
      "| no snapshot | peak MB |\n|---|---|---|---|---|---|---|---|---|---|\n",
      trace.requests.size(), options.conversations, options.seed, options.pauses,
      trace.early_returns, sizes.page_bytes(), sizes.snapshot_bytes(),
      static_cast<double>(pages) / 1e6, static_cast<double>(snapshots) / 1e6);
  PrintRow(unlimited, best, best.served);
  int result = 0;
  for (const Policy& policy : Policies(options, (pages + snapshots) / 10, pages / 10 + snapshots)) {
    const Outcome row = Simulation(config.value(), policy).Run(trace);
    PrintRow(policy, row, best.served);
    const int64_t floor = policy.has_disk         ? 100
                          : policy.name == "ours" ? options.share_min_percent
                                                  : 0;
    if (row.bytes_peak <= policy.bytes_max && row.served <= best.served &&
        row.served * 100 >= best.served * floor) {
      continue;
    }
    fmt::print(stderr, "{}: expected at least {} % and no byte above the budget\n", policy.name,
               floor);
    result = 1;
  }
  return result;
}

}  // namespace
}  // namespace k3

int main(int argc, char** argv) {
  k3::TraceOptions options;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && k3::SetOption(argv[i], argv[i + 1], &options)) continue;
    fmt::print(
        stderr,
        "{}: unknown or without a fitting value\nusage: agent-trace [--model DIR] [--seed N] "
        "[--conversations N] [--turns N] [--others N] [--pauses N] "
        "[--work-weight-percent N] [--share-min-percent N]\n",
        argv[i]);
    return 2;
  }
  return k3::Run(options);
}

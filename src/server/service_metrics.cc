#include "server/service_metrics.h"

namespace k3::server {
namespace {

std::vector<double> SecondsBounds() {
  return {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250};
}

}  // namespace

SchedulerStats ServiceMetrics::Source::Read() {
  const std::lock_guard lock(mutex);
  return scheduler != nullptr ? scheduler->Stats() : SchedulerStats{};
}

ServiceMetrics::ServiceMetrics(MetricsRegistry* registry)
    // Shared with the readers.
    : registry_(registry), source_(std::make_shared<Source>()) {}

template <typename Read>
void ServiceMetrics::AddGauge(std::string_view name, std::string_view help, Read read,
                              MetricLabels labels) {
  registry_->AddGaugeReader(
      name, help, [source = source_, read] { return static_cast<double>(read(source->Read())); },
      std::move(labels));
}

template <typename Read>
void ServiceMetrics::AddCounter(std::string_view name, std::string_view help, Read read,
                                MetricLabels labels) {
  registry_->AddCounterReader(
      name, help, [source = source_, read] { return static_cast<double>(read(source->Read())); },
      std::move(labels));
}

void ServiceMetrics::Attach(const Scheduler& scheduler) {
  {
    const std::lock_guard lock(source_->mutex);
    source_->scheduler = &scheduler;
  }
  if (registry_ == nullptr) return;
  AddSchedulerReaders();
  AddCacheReaders();
  if (scheduler.Stats().prefix.disk.has_value()) AddDiskReaders();
}

void ServiceMetrics::Detach() {
  const std::lock_guard lock(source_->mutex);
  source_->scheduler = nullptr;
}

void ServiceMetrics::AddSchedulerReaders() {
  using Stats = const SchedulerStats&;
  AddGauge("k3_queue_length", "Requests that wait.", [](Stats s) { return s.queued; },
           {{"class", "foreground"}});
  AddGauge("k3_queue_length", "Requests that wait.", [](Stats s) { return s.queued_background; },
           {{"class", "background"}});
  AddGauge("k3_streams_running", "Sequences that run.", [](Stats s) { return s.running; });
  AddGauge("k3_streams_decoding", "Of them, those that generate.",
           [](Stats s) { return s.decoding; });
  AddGauge("k3_batch_tokens", "Tokens of the last pass.",
           [](Stats s) { return s.last_batch_tokens; });
  AddGauge("k3_batch_streams", "Sequences in the last pass.",
           [](Stats s) { return s.last_batch_streams; });
  AddGauge("k3_planned_bytes", "Memory that running sequences may grow to.",
           [](Stats s) { return s.planned_bytes; });
  AddGauge("k3_memory_bytes_max", "The ceiling of running sequences and the cache.",
           [](Stats s) { return s.memory_bytes_max; });
  AddGauge("k3_prefill_tokens_per_second", "Speed of prompts in the latest passes.",
           [](Stats s) { return s.prefill_tokens_per_second; });
  AddCounter("k3_passes_total", "Forward passes.", [](Stats s) { return s.passes; });
  AddCounter("k3_tokens_total", "Tokens that were run.", [](Stats s) { return s.prefill_tokens; },
             {{"phase", "prefill"}});
  AddCounter("k3_tokens_total", "Tokens that were run.", [](Stats s) { return s.decode_tokens; },
             {{"phase", "decode"}});
  AddCounter("k3_sequences_total", "Sequences by their end.", [](Stats s) { return s.finished; },
             {{"end", "finished"}});
  AddCounter("k3_sequences_total", "Sequences by their end.", [](Stats s) { return s.failed; },
             {{"end", "failed"}});
  AddCounter("k3_sequences_total", "Sequences by their end.", [](Stats s) { return s.cancelled; },
             {{"end", "cancelled"}});
  AddCounter("k3_sequences_total", "Sequences by their end.", [](Stats s) { return s.refused; },
             {{"end", "refused"}});
}

void ServiceMetrics::AddCacheReaders() {
  using Stats = const SchedulerStats&;
  constexpr const char* kHits = "Look-ups that found a prefix, by where it came from.";
  // What the disk had is imported into memory and found there.
  AddCounter("k3_cache_hits_total", kHits,
             [](Stats s) { return s.prefix.memory.hits - s.prefix.disk_hits; },
             {{"kind", "memory"}});
  AddCounter("k3_cache_hits_total", kHits, [](Stats s) { return s.prefix.disk_hits; },
             {{"kind", "disk"}});
  AddCounter("k3_cache_hits_total", kHits, [](Stats s) { return s.prefix.decoded_hits; },
             {{"kind", "decoded"}});
  constexpr const char* kMisses = "Look-ups in memory that found nothing, by reason.";
  AddCounter("k3_cache_misses_total", kMisses,
             [](Stats s) { return s.prefix.memory.misses_no_pages; }, {{"reason", "no_pages"}});
  AddCounter("k3_cache_misses_total", kMisses,
             [](Stats s) { return s.prefix.memory.misses_no_snapshot; },
             {{"reason", "no_snapshot"}});
  AddCounter("k3_cache_hit_tokens_total", "Prompt tokens that were not run again.",
             [](Stats s) { return s.prefix.memory.hit_tokens; });
  AddGauge("k3_cache_bytes", "Bytes kept.", [](Stats s) { return s.prefix.memory.bytes; },
           {{"tier", "memory"}});
  AddGauge("k3_cache_bytes_max", "The budget.", [](Stats s) { return s.prefix.memory.bytes_max; },
           {{"tier", "memory"}});
  AddGauge("k3_cache_entries", "What is kept.", [](Stats s) { return s.prefix.memory.pages; },
           {{"tier", "memory"}, {"kind", "page"}});
  AddGauge("k3_cache_entries", "What is kept.", [](Stats s) { return s.prefix.memory.snapshots; },
           {{"tier", "memory"}, {"kind", "snapshot"}});
  AddGauge("k3_cache_pinned", "Look-ups that hold something at this moment.",
           [](Stats s) { return s.prefix.memory.pinned; });
  constexpr const char* kEvicted = "Evictions.";
  AddCounter("k3_cache_evictions_total", kEvicted,
             [](Stats s) { return s.prefix.memory.evicted_pages; },
             {{"tier", "memory"}, {"kind", "page"}});
  AddCounter("k3_cache_evictions_total", kEvicted,
             [](Stats s) { return s.prefix.memory.evicted_snapshots; },
             {{"tier", "memory"}, {"kind", "snapshot"}});
}

void ServiceMetrics::AddDiskReaders() {
  using Stats = const SchedulerStats&;
  const auto disk = [](Stats s) { return s.prefix.disk.value_or(cache::DiskTierStats{}); };
  AddGauge("k3_cache_bytes", "Bytes kept.", [disk](Stats s) { return disk(s).bytes; },
           {{"tier", "disk"}});
  AddGauge("k3_cache_entries", "What is kept.", [disk](Stats s) { return disk(s).pages; },
           {{"tier", "disk"}, {"kind", "page"}});
  AddGauge("k3_cache_entries", "What is kept.", [disk](Stats s) { return disk(s).snapshots; },
           {{"tier", "disk"}, {"kind", "snapshot"}});
  AddCounter("k3_cache_disk_read_bytes_total", "Bytes read from the disk tier.",
             [disk](Stats s) { return disk(s).read_bytes; });
  AddCounter("k3_cache_disk_written_bytes_total", "Bytes written to the disk tier.",
             [disk](Stats s) { return disk(s).written_bytes; });
  AddCounter("k3_cache_disk_dropped_total", "Records that were not stored.", [disk](Stats s) {
    const cache::DiskTierStats d = disk(s);
    return d.dropped_full + d.dropped_orphan + d.failed_writes;
  });
  AddCounter("k3_cache_disk_corrupt_total", "Damaged files that were set aside.",
             [disk](Stats s) { return disk(s).corrupt; });
  AddCounter("k3_cache_evictions_total", "Evictions.", [disk](Stats s) { return disk(s).evicted; },
             {{"tier", "disk"}, {"kind", "record"}});
}

void ServiceMetrics::Record(const CompletionRecord& record) {
  if (registry_ == nullptr) return;
  const std::string route = record.chat ? "chat" : "text";
  registry_
      ->AddCounter("k3_completions_total", "Completions by their end.",
                   {{"route", route}, {"outcome", record.outcome}})
      ->Add();
  registry_->AddCounter("k3_prompt_tokens_total", "Tokens of prompts, cached ones included.")
      ->Add(static_cast<double>(record.usage.prompt_tokens));
  registry_->AddCounter("k3_completion_tokens_total", "Tokens of answers.")
      ->Add(static_cast<double>(record.usage.completion_tokens));
  registry_
      ->AddHistogram("k3_queue_seconds", "Time before a completion was started.", SecondsBounds())
      ->Observe(record.queue_seconds);
  if (record.first_token_seconds.has_value()) {
    registry_->AddHistogram("k3_first_token_seconds", "Time to the first token.", SecondsBounds())
        ->Observe(*record.first_token_seconds);
  }
  registry_->AddHistogram("k3_completion_seconds", "Time of whole completions.", SecondsBounds())
      ->Observe(record.total_seconds);
}

}  // namespace k3::server

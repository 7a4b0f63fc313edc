#pragma once
// ServiceMetrics: what the service counts, under the names that /metrics has. docs/serving.md lists
// them. Owns nothing but pointers into the registry; any thread.

#include <memory>
#include <mutex>

#include "engine/scheduler.h"
#include "server/completion_run.h"
#include "server/metrics.h"

namespace k3::server {

class ServiceMetrics {
 public:
  /// Null: nothing is counted.
  explicit ServiceMetrics(MetricsRegistry* registry);

  /// From now on the scheduler's figures are read whenever the registry is written, until Detach.
  void Attach(const Scheduler& scheduler);
  void Detach();
  void Record(const CompletionRecord& record);

 private:
  /// Shared with the readers, which the registry keeps.
  struct Source {
    std::mutex mutex;
    const Scheduler* scheduler = nullptr;  // guarded
    SchedulerStats Read();
  };

  void AddSchedulerReaders();
  void AddCacheReaders();
  void AddDiskReaders();
  template <typename Read>
  void AddGauge(std::string_view name, std::string_view help, Read read, MetricLabels labels = {});
  template <typename Read>
  void AddCounter(std::string_view name, std::string_view help, Read read,
                  MetricLabels labels = {});

  MetricsRegistry* registry_;
  std::shared_ptr<Source> source_;  // shared: see Source
};

}  // namespace k3::server

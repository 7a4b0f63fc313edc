#pragma once
// MetricsRegistry: counters, gauges and histograms, written as Prometheus text (format 0.0.4).
//
//   Counter* hits = registry.AddCounter("k3_cache_hits_total", "Prefixes found.", {{"kind",
//   "disk"}}); hits->Add(); exchange->Respond(200, std::string(kMetricsContentType),
//   registry.Render());
//
// The registry owns every metric; pointers stay valid as long as it does. All of it may be used
// from any thread: values are atomics, the registry itself has one mutex. Asking again for the same
// name and labels gives the same metric. A name or label that Prometheus does not allow, or a
// second kind under one name, is a broken invariant of ours and ends the program. Label values may
// be any UTF-8, but must come from a small set: every one is a time series.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace k3::server {

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

/// Only grows.
class Counter {
 public:
  void Add(double amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// Counts of values at or below each bound, their sum and their number.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  /// NaN is not counted.
  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  /// Values in the bucket of bounds()[index] alone; index bounds().size() is everything above.
  uint64_t count(size_t index) const { return counts_[index].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;  // ascending
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  Counter* AddCounter(std::string_view name, std::string_view help, MetricLabels labels = {});
  Gauge* AddGauge(std::string_view name, std::string_view help, MetricLabels labels = {});
  /// `bounds` ascend; the bucket of everything is added. One family has one set of bounds.
  Histogram* AddHistogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                          MetricLabels labels = {});
  /// A gauge or counter whose value is asked for whenever it is written, under the registry's
  /// mutex: `read` must not touch the registry, and must stay callable as long as it lives. A
  /// second one of the same name and labels takes the first one's place.
  void AddGaugeReader(std::string_view name, std::string_view help, std::function<double()> read,
                      MetricLabels labels = {});
  void AddCounterReader(std::string_view name, std::string_view help, std::function<double()> read,
                        MetricLabels labels = {});

  /// Families in the order of their names, series in the order of their labels.
  std::string Render() const;

 private:
  struct Family;
  struct Series;
  enum class Kind { kCounter, kGauge, kHistogram };

  Series& Find(std::string_view name, std::string_view help, Kind kind, const MetricLabels& labels);

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Family>, std::less<>> families_;
};

}  // namespace k3::server

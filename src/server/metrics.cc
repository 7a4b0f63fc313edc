#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace k3::server {
namespace {

bool IsNameStart(char c, bool colon) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon && c == ':');
}

bool IsName(std::string_view name, bool colon) {
  return !name.empty() && IsNameStart(name[0], colon) &&
         std::all_of(name.begin(), name.end(),
                     [colon](char c) { return IsNameStart(c, colon) || (c >= '0' && c <= '9'); });
}

/// Backslashes and line feeds, in label values quotes as well.
std::string Escape(std::string_view text, bool quotes) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
    } else if (c == '\\' || (quotes && c == '"')) {
      escaped += '\\';
      escaped += c;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// `a="1",b="2"`: what stands between the braces, and the key of a series.
std::string LabelText(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}=\"{}\"", name, Escape(value, true));
  }
  return text;
}

std::string Braced(const std::string& labels) {
  return labels.empty() ? std::string() : "{" + labels + "}";
}

std::string_view KindName(int kind) {
  constexpr std::string_view kNames[] = {"counter", "gauge", "histogram"};
  return kNames[kind];
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {
  K3_CHECK(std::is_sorted(bounds_.begin(), bounds_.end(), std::less_equal<>()),
           "a histogram's bounds ascend");
}

void Histogram::Observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

struct MetricsRegistry::Series {
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;
  std::function<double()> read;  // in place of the counter or gauge

  double value() const {
    if (read) return read();
    return counter ? counter->value() : gauge ? gauge->value() : 0;
  }
};

struct MetricsRegistry::Family {
  Kind kind;
  std::string help;
  std::map<std::string, Series> series;  // by the text of their labels
};

MetricsRegistry::MetricsRegistry() = default;
MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry::Series& MetricsRegistry::Find(std::string_view name, std::string_view help,
                                               Kind kind, const MetricLabels& labels) {
  K3_CHECK(IsName(name, true), "a metric's name has letters, digits, _ and :");
  for (const auto& [label, value] : labels) {
    K3_CHECK(IsName(label, false) && !label.starts_with("__") && label != "le",
             "a label's name has letters, digits and _, and is not reserved");
  }
  auto& family = families_[std::string(name)];
  if (!family) {
    family = std::make_unique<Family>();
    family->kind = kind;
    family->help = help;
  }
  K3_CHECK(family->kind == kind, "one name has one kind of metric");
  return family->series[LabelText(labels)];
}

Counter* MetricsRegistry::AddCounter(std::string_view name, std::string_view help,
                                     MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Series& series = Find(name, help, Kind::kCounter, labels);
  if (!series.counter) series.counter = std::make_unique<Counter>();
  return series.counter.get();
}

Gauge* MetricsRegistry::AddGauge(std::string_view name, std::string_view help,
                                 MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Series& series = Find(name, help, Kind::kGauge, labels);
  if (!series.gauge) series.gauge = std::make_unique<Gauge>();
  return series.gauge.get();
}

Histogram* MetricsRegistry::AddHistogram(std::string_view name, std::string_view help,
                                         std::vector<double> bounds, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Series& series = Find(name, help, Kind::kHistogram, labels);
  if (!series.histogram) series.histogram = std::make_unique<Histogram>(std::move(bounds));
  return series.histogram.get();
}

void MetricsRegistry::AddGaugeReader(std::string_view name, std::string_view help,
                                     std::function<double()> read, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Find(name, help, Kind::kGauge, labels).read = std::move(read);
}

void MetricsRegistry::AddCounterReader(std::string_view name, std::string_view help,
                                       std::function<double()> read, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  Find(name, help, Kind::kCounter, labels).read = std::move(read);
}

namespace {

void AppendHistogram(const std::string& name, const std::string& labels, const Histogram& histogram,
                     std::string* text) {
  const std::string before = labels.empty() ? std::string() : labels + ",";
  uint64_t total = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    total += histogram.count(i);
    const std::string bound =
        i < histogram.bounds().size() ? Number(histogram.bounds()[i]) : "+Inf";
    *text += fmt::format("{}_bucket{{{}le=\"{}\"}} {}\n", name, before, bound, total);
  }
  *text += fmt::format("{}_sum{} {}\n", name, Braced(labels), Number(histogram.sum()));
  *text += fmt::format("{}_count{} {}\n", name, Braced(labels), total);
}

}  // namespace

std::string MetricsRegistry::Render() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, family] : families_) {
    text += fmt::format("# HELP {} {}\n", name, Escape(family->help, false));
    text += fmt::format("# TYPE {} {}\n", name, KindName(static_cast<int>(family->kind)));
    for (const auto& [labels, series] : family->series) {
      if (series.histogram) {
        AppendHistogram(name, labels, *series.histogram, &text);
      } else {
        text += fmt::format("{}{} {}\n", name, Braced(labels), Number(series.value()));
      }
    }
  }
  return text;
}

}  // namespace k3::server

#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace k3::server {
namespace {

TEST(Metrics, WritesEveryKindInTheTextFormat) {
  MetricsRegistry registry;
  registry.AddGauge("k3_queue", "Requests that wait.")->Set(2.5);
  registry.AddCounter("k3_hits_total", "Hits.", {{"kind", "memory"}})->Add();
  registry.AddCounter("k3_hits_total", "Hits.", {{"kind", "disk"}})->Add(3);
  Histogram* seconds = registry.AddHistogram("k3_seconds", "Time.", {0.5, 1, 10}, {{"c", "x"}});
  for (const double value : {0.25, 0.5, 0.75, 100.0, std::nan("")}) seconds->Observe(value);
  EXPECT_EQ(registry.Render(),
            "# HELP k3_hits_total Hits.\n"
            "# TYPE k3_hits_total counter\n"
            "k3_hits_total{kind=\"disk\"} 3\n"
            "k3_hits_total{kind=\"memory\"} 1\n"
            "# HELP k3_queue Requests that wait.\n"
            "# TYPE k3_queue gauge\n"
            "k3_queue 2.5\n"
            "# HELP k3_seconds Time.\n"
            "# TYPE k3_seconds histogram\n"
            "k3_seconds_bucket{c=\"x\",le=\"0.5\"} 2\n"
            "k3_seconds_bucket{c=\"x\",le=\"1\"} 3\n"
            "k3_seconds_bucket{c=\"x\",le=\"10\"} 3\n"
            "k3_seconds_bucket{c=\"x\",le=\"+Inf\"} 4\n"
            "k3_seconds_sum{c=\"x\"} 101.5\n"
            "k3_seconds_count{c=\"x\"} 4\n");
}

TEST(Metrics, EscapesHelpAndLabelValues) {
  MetricsRegistry registry;
  registry.AddGauge("g", "a\\b\n\"c\"", {{"l", "a\\b\n\"c\""}})->Set(1);
  EXPECT_EQ(registry.Render(),
            "# HELP g a\\\\b\\n\"c\"\n# TYPE g gauge\ng{l=\"a\\\\b\\n\\\"c\\\"\"} 1\n");
}

TEST(Metrics, NamesWhatIsNotFiniteAndKeepsLargeCountsExact) {
  MetricsRegistry registry;
  registry.AddGauge("a", "")->Set(std::numeric_limits<double>::infinity());
  registry.AddGauge("b", "")->Set(-std::numeric_limits<double>::infinity());
  registry.AddGauge("c", "")->Set(std::nan(""));
  registry.AddCounter("d", "")->Add(9007199254740991.0);  // 2^53 - 1, the largest exact count
  const std::string text = registry.Render();
  EXPECT_NE(text.find("\na +Inf\n"), std::string::npos);
  EXPECT_NE(text.find("\nb -Inf\n"), std::string::npos);
  EXPECT_NE(text.find("\nc NaN\n"), std::string::npos);
  EXPECT_NE(text.find("\nd 9007199254740991\n"), std::string::npos) << text;
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  MetricsRegistry registry;
  Counter* first = registry.AddCounter("n_total", "", {{"a", "1"}});
  EXPECT_EQ(registry.AddCounter("n_total", "", {{"a", "1"}}), first);
  EXPECT_NE(registry.AddCounter("n_total", "", {{"a", "2"}}), first);
}

TEST(Metrics, ReadersAreAskedWhenWriting) {
  MetricsRegistry registry;
  int value = 1;
  registry.AddGaugeReader("g", "", [&] { return value; });
  registry.AddCounterReader("c_total", "", [&] { return value * 10; });
  value = 2;
  EXPECT_EQ(registry.Render(),
            "# HELP c_total \n# TYPE c_total counter\nc_total 20\n"
            "# HELP g \n# TYPE g gauge\ng 2\n");
}

TEST(MetricsDeathTest, RefusesNamesThatPrometheusDoesNotAllow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MetricsRegistry registry;
  EXPECT_DEATH(registry.AddGauge("1up", ""), "name");
  EXPECT_DEATH(registry.AddGauge("up", "", {{"le", "1"}}), "label");
  registry.AddGauge("up", "");
  EXPECT_DEATH(registry.AddCounter("up", ""), "one kind");
  EXPECT_DEATH(Histogram({1, 1}), "ascend");
}

TEST(Metrics, CountsFromManyThreadsWhileItIsWritten) {
  MetricsRegistry registry;
  constexpr int kThreadsCount = 4;
  constexpr int kAdds = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreadsCount; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAdds; ++i) {
        registry.AddCounter("n_total", "")->Add();
        registry.AddHistogram("h", "", {1, 2})->Observe(i % 4);
      }
    });
  }
  for (int i = 0; i < 50; ++i) (void)registry.Render();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.AddCounter("n_total", "")->value(), kThreadsCount * kAdds);
  Histogram* histogram = registry.AddHistogram("h", "", {1, 2});
  EXPECT_EQ(histogram->count(0) + histogram->count(1) + histogram->count(2),
            uint64_t{kThreadsCount * kAdds});
}

}  // namespace
}  // namespace k3::server

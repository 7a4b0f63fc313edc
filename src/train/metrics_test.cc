#include "train/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace k3::train {
namespace {

TEST(MetricsTest, ALineHasTheOptimizersFigures) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.clipped_heads = 2;
  metrics.update_rms = {0.5, 0.25, 0.125, 1, 2};
  metrics.head_update_spread = 0.75;
  metrics.head_update_ratio = 12.5;
  const std::string line = FormatMetrics(metrics);
  EXPECT_TRUE(line.ends_with("}\n"));
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["clipped_heads"], 2);
  EXPECT_EQ(json["update_rms"]["per_head"], 0.5);
  EXPECT_EQ(json["update_rms"]["other"], 2);
  EXPECT_EQ(json["head_update_spread"], 0.75);
  EXPECT_EQ(json["head_update_ratio"], 12.5);
}

}  // namespace
}  // namespace k3::train

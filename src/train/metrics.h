#pragma once
// Metrics: the curve of a run, one JSON object a line in DIR/metrics.jsonl, for people and plots.
//
// Lines are appended and synced when a checkpoint is written. A resumed run drops the lines of
// steps behind its checkpoint first, so that the file is one curve without repeats. The file is no
// part of the checkpoint: a line that cannot be written fails the run, which keeps its last
// checkpoint. One thread.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "sys/file.h"
#include "train/balancer.h"
#include "train/health.h"
#include "train/optimizer.h"

namespace k3::train {

/// Nats a supervised token. Text and conversations apart: they have losses of very different sizes.
struct ValidationLoss {
  double all = 0;
  std::optional<double> text;
  std::optional<double> chat;
};

struct StepMetrics {
  int64_t step = 0;    // steps done
  int64_t tokens = 0;  // read since the start
  double loss = 0;     // nats a supervised token
  std::optional<ValidationLoss> val_loss;
  float learning_rate = 0;
  double gradient_norm = 0;
  bool quantised = false;
  double tokens_per_s = 0;
  double gemm_share = 0;  // 3 x the forward matmuls over time and peak
  int64_t clipped_heads = 0;
  std::array<double, kOptimizerGroups> update_rms{};
  double head_update_spread = 0;  // both as in OptimizerReport
  double head_update_ratio = 0;
  std::vector<LayerBalance> balance;
  std::vector<LayerHealth> health;  // at validation steps
};

/// One line, its end included.
std::string FormatMetrics(const StepMetrics& metrics);

class MetricsFile {
 public:
  /// Keeps the lines of steps up to `last_step` and appends from there; 0 starts anew.
  static Result<MetricsFile> Open(FileSystem& files, const std::string& path, int64_t last_step);

  Status Append(const StepMetrics& metrics);
  Status Sync();

 private:
  explicit MetricsFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  std::unique_ptr<WritableFile> file_;
};

}  // namespace k3::train

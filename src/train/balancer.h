#pragma once
// Balancer: the selection biases of all MoE layers over a run. Counts what a step's tokens require,
// micro-batch by micro-batch, and sets the biases for the next step; tells how even the step was.
//
//   Balancer balancer(rule, sign_step, &set);
//   balancer.Start();                              // of a step
//   balancer.Add(&pool, tape);                     // after each micro-batch's forward
//   std::vector<LayerBalance> layers = balancer.Finish();
//
// The biases are tensors of the set, which outlives this; the optimizer leaves them alone. Exact
// quantiles keep the scores of a whole step, histograms do not. One thread drives it; the result
// does not depend on the pool's threads or on how a step is cut into micro-batches. Source:
// technical report, section 2.3.3; quantile_balancing.h has the rules.

#include <cstdint>
#include <vector>

#include "model/tape.h"
#include "sys/thread_pool.h"
#include "train/parameter_set.h"
#include "train/quantile_balancing.h"
#include "train/training_config.h"

namespace k3::train {

struct LayerBalance {
  int64_t layer = 0;
  double max_violation = 0;  // largest load over the mean, less 1
  int64_t dead_experts = 0;  // without a token in this step
  float bias_min = 0;        // that this step was routed with
  float bias_max = 0;
};

class Balancer {
 public:
  Balancer(BalancingRule rule, float sign_step, ParameterSet* set);

  void Start();
  void Add(ThreadPool* pool, const model::Tape& tape);
  /// Writes the next step's biases into the masters.
  std::vector<LayerBalance> Finish();

 private:
  struct Layer {
    int64_t layer = 0;
    const TrainedTensor* bias = nullptr;
    std::vector<int64_t> loads;                // [E]
    std::vector<QuantileHistogram> histogram;  // none or one
    std::vector<float> scores, cutoffs;        // of the whole step, for exact quantiles
  };
  void AddLayer(Layer& layer, const model::MoeTape& tape, int64_t tokens);
  std::vector<float> NextBias(const Layer& layer);

  BalancingRule rule_;
  float sign_step_;
  ParameterSet* set_;
  int64_t experts_;
  int64_t active_;
  std::vector<Layer> layers_;
};

}  // namespace k3::train

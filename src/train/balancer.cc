#include "train/balancer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace k3::train {

Balancer::Balancer(BalancingRule rule, float sign_step, ParameterSet* set)
    : rule_(rule),
      sign_step_(sign_step),
      set_(set),
      experts_(set->config().moe.experts),
      active_(set->config().moe.experts_per_token) {
  for (int64_t layer = 0; layer < set->config().layers; ++layer) {
    if (set->config().IsDense(layer)) continue;
    const TrainedTensor* bias =
        set->Lookup(fmt::format("layers.{}.block_sparse_moe.gate.e_score_correction_bias", layer));
    K3_CHECK(bias != nullptr, "a MoE layer without a selection bias");
    layers_.push_back({.layer = layer, .bias = bias});
  }
}

void Balancer::Start() {
  for (Layer& layer : layers_) {
    layer.loads.assign(static_cast<size_t>(experts_), 0);
    layer.histogram.clear();
    layer.scores.clear();
    layer.cutoffs.clear();
    if (rule_ == BalancingRule::kHistogram) {
      layer.histogram.emplace_back(set_->Master(*layer.bias), active_);
    }
  }
}

void Balancer::Add(ThreadPool* pool, const model::Tape& tape) {
  pool->ParallelFor(std::ssize(layers_), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      Layer& layer = layers_[static_cast<size_t>(i)];
      AddLayer(layer, tape.layers[static_cast<size_t>(layer.layer)].moe, tape.tokens());
    }
  });
}

void Balancer::AddLayer(Layer& layer, const model::MoeTape& tape, int64_t tokens) {
  const std::span<const int32_t> chosen(tape.routing.experts,
                                        static_cast<size_t>(tokens * active_));
  for (int32_t expert : chosen) ++layer.loads[static_cast<size_t>(expert)];
  if (rule_ != BalancingRule::kHistogram && rule_ != BalancingRule::kExact) return;
  const std::span<const float> scores(tape.scores, static_cast<size_t>(tokens * experts_));
  const Routing routing = Route(scores, set_->Master(*layer.bias), active_);
  if (rule_ == BalancingRule::kHistogram) {
    layer.histogram[0].Add(scores, routing.cutoffs);
  } else {
    layer.scores.insert(layer.scores.end(), scores.begin(), scores.end());
    layer.cutoffs.insert(layer.cutoffs.end(), routing.cutoffs.begin(), routing.cutoffs.end());
  }
}

std::vector<float> Balancer::NextBias(const Layer& layer) {
  const std::span<const float> bias = set_->Master(*layer.bias);
  switch (rule_) {
    case BalancingRule::kHistogram:
      return Centred(layer.histogram[0].Solve());
    case BalancingRule::kExact:
      return Centred(ExactQuantileBias(layer.scores, layer.cutoffs, bias, active_));
    case BalancingRule::kSign:
      return SignRuleBias(layer.loads, bias, sign_step_);
    case BalancingRule::kNone:
      break;
  }
  return {bias.begin(), bias.end()};
}

std::vector<LayerBalance> Balancer::Finish() {
  std::vector<LayerBalance> report;
  for (const Layer& layer : layers_) {
    const std::span<float> bias = set_->Master(*layer.bias);
    const auto [least, most] = std::minmax_element(bias.begin(), bias.end());
    report.push_back({.layer = layer.layer,
                      .max_violation = MaxViolation(layer.loads),
                      .dead_experts = std::count(layer.loads.begin(), layer.loads.end(), 0),
                      .bias_min = *least,
                      .bias_max = *most});
    const std::vector<float> next = NextBias(layer);
    std::copy(next.begin(), next.end(), bias.begin());
  }
  return report;
}

}  // namespace k3::train

#include "engine/checked_experts.h"

#include <fmt/format.h>

#include <mutex>

namespace k3 {

CheckedExperts::CheckedExperts(const WeightStore& weights, const model::Parameters& parameters)
    : weights_(weights), parameters_(parameters) {
  for (const model::LayerParameters& layer : parameters.layers) {
    checked_.emplace_back(layer.moe.experts.size(), false);
  }
}

Status CheckedExperts::Check(int64_t layer, int64_t expert) const {
  const auto& moe = parameters_.layers[static_cast<size_t>(layer)].moe;
  const model::ExpertParameters& p = moe.experts[static_cast<size_t>(expert)];
  const std::string name = fmt::format("layers.{}.block_sparse_moe.experts.{}.", layer, expert);
  K3_RETURN_IF_ERROR(weights_.CheckScales(p.gate, name + "w1"));
  K3_RETURN_IF_ERROR(weights_.CheckScales(p.up, name + "w3"));
  return weights_.CheckScales(p.down, name + "w2");
}

Status CheckedExperts::CheckAtLoad(ThreadPool& pool) {
  struct Item {
    int64_t layer;
    int64_t expert;
  };
  std::vector<Item> items;
  int64_t bytes = 0;
  for (size_t layer = 0; layer < checked_.size(); ++layer) {
    const auto& experts = parameters_.layers[layer].moe.experts;
    for (size_t e = 0; e < experts.size(); ++e) {
      items.push_back({static_cast<int64_t>(layer), static_cast<int64_t>(e)});
      for (const WeightMatrix* w : {&experts[e].gate, &experts[e].up, &experts[e].down}) {
        if (w->format == WeightFormat::kMxfp4) bytes += w->rows * (w->cols / 32);
      }
    }
  }
  if (bytes > kEagerScaleBytes) return OkStatus();
  std::mutex mutex;
  Status first;
  int64_t first_item =
      -1;  // the lowest failing item, so that the message does not depend on threads
  pool.ParallelFor(static_cast<int64_t>(items.size()), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Item& item = items[static_cast<size_t>(i)];
      Status status = Check(item.layer, item.expert);
      if (status.ok()) continue;
      std::lock_guard lock(mutex);
      if (first_item < 0 || i < first_item) {
        first_item = i;
        first = std::move(status);
      }
    }
  });
  K3_RETURN_IF_ERROR(first);
  for (std::vector<bool>& layer : checked_) layer.assign(layer.size(), true);
  return OkStatus();
}

Status CheckedExperts::Prepare(int64_t layer, std::span<const int32_t> experts) {
  std::vector<bool>& checked = checked_[static_cast<size_t>(layer)];
  for (int32_t expert : experts) {
    if (checked[static_cast<size_t>(expert)]) continue;
    K3_RETURN_IF_ERROR(Check(layer, expert));
    checked[static_cast<size_t>(expert)] = true;
  }
  return OkStatus();
}

}  // namespace k3

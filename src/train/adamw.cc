#include "train/adamw.h"

#include <cmath>

#include "base/check.h"

namespace k3::train {
namespace {

constexpr int64_t kGrain = 16384;  // elements

}  // namespace

void AdamWStep(ThreadPool* pool, const AdamWOptions& options, float lr,
               std::span<const float> gradient, std::span<float> weights, AdamWState* state) {
  K3_CHECK(gradient.size() == weights.size() && state->m.size() == weights.size() &&
               state->v.size() == weights.size(),
           "one gradient and one state for each weight");
  ++state->steps;
  // In double: 1 - beta^t loses digits in float32 while t is small.
  const auto steps = static_cast<double>(state->steps);
  const auto correct1 =
      static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta1), steps)));
  const auto correct2 =
      static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta2), steps)));
  const AdamWOptions o = options;
  const float* g = gradient.data();
  float* w = weights.data();
  float* m = state->m.data();
  float* v = state->v.data();
  pool->ParallelFor(std::ssize(weights), kGrain, [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      const float step = m[i] * correct1 / (std::sqrt(v[i] * correct2) + o.epsilon);
      w[i] -= lr * (step + o.weight_decay * w[i]);
    }
  });
}

}  // namespace k3::train

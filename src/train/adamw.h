#pragma once
// AdamW: Adam with decoupled weight decay, for what Muon does not take (embeddings, norms, biases,
// convolutions, rank-1 rows).
//
//   AdamWState state(n);                           // lives as long as the parameter
//   AdamWStep(&pool, options, lr, gradient, weights, &state);
//
//   m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
//   w <- w - lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w)
//
// float32, each element by itself, so the result does not depend on the threads. The caller owns
// the arrays [n] and the state; one thread calls, the pool's workers compute. Arrays of different
// length are a broken invariant (K3_CHECK); a gradient that is not finite makes weights that are
// not. Source: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).

#include <cstdint>
#include <span>
#include <vector>

#include "sys/thread_pool.h"

namespace k3::train {

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // 0 for norms, biases and KDA's decay parameters
};

/// The moments of one parameter of n elements, and how many steps they have seen.
struct AdamWState {
  explicit AdamWState(int64_t n) : m(static_cast<size_t>(n)), v(static_cast<size_t>(n)) {}

  std::vector<float> m;
  std::vector<float> v;
  int64_t steps = 0;
};

/// One step. gradient, weights [n].
void AdamWStep(ThreadPool* pool, const AdamWOptions& options, float lr,
               std::span<const float> gradient, std::span<float> weights, AdamWState* state);

}  // namespace k3::train

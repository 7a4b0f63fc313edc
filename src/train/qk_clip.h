#pragma once
// QK-Clip: after the optimizer's step, shrinks the query and key weights of the MLA heads whose
// largest attention logit was above a threshold. ("Weight clipping"; KDA needs none, its queries
// and keys being normalised.)
//
// For a head with largest scaled logit S > tau, gamma = tau / S. A logit is the content part (this
// head's query and its key from kv_b) plus the shared-key part (its query and one key common to all
// heads). So both content sides take sqrt(gamma) and the shared part's query takes all of gamma:
// the same latents then give logits that are gamma times as large.
//
// The caller owns the arrays; one thread calls, nothing is kept. A wrong size or an S that is not
// finite is a broken invariant (K3_CHECK). Source: technical report, section 3.3, and the report on
// Kimi K2, which has the rule.

#include <cstdint>
#include <span>

namespace k3::train {

/// Sizes of one MLA layer.
struct QkClipShape {
  int64_t heads = 0;
  int64_t nope = 0;     // content part of a query and a key
  int64_t rope = 0;     // shared-key part of a query; may be 0
  int64_t value = 0;    // a head's value rows in kv_b
  int64_t q_rank = 0;   // columns of q_b
  int64_t kv_rank = 0;  // columns of kv_b
};

/// Clips the heads with largest_logits [heads] above tau > 0 and returns how many there were.
/// q_b [heads (nope + rope), q_rank], a head's nope rows first; kv_b [heads (nope + value),
/// kv_rank], a head's key rows first. Both in place, other heads untouched.
int64_t QkClip(const QkClipShape& shape, std::span<const float> largest_logits, float tau,
               std::span<float> q_b, std::span<float> kv_b);

}  // namespace k3::train

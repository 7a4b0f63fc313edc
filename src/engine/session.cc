#include "engine/session.h"

#include <algorithm>

namespace k3 {

Status Session::Prefill(std::span<const int32_t> tokens, std::span<float> logits, int64_t chunk) {
  if (tokens.empty()) return InvalidArgument("the prompt is empty: expected at least one token");
  const size_t step = static_cast<size_t>(std::max<int64_t>(chunk, 1));
  for (size_t at = 0; at < tokens.size(); at += step) {
    const std::span<const int32_t> part = tokens.subspan(at, std::min(step, tokens.size() - at));
    const bool last = at + part.size() == tokens.size();
    const int32_t row = static_cast<int32_t>(part.size()) - 1;
    const bool wanted = last && !logits.empty();
    const model::Batch batch{{{&state_, part, model::AttentionForm::kPrefill}}};
    K3_RETURN_IF_ERROR(engine_->Run(batch, {&row, wanted ? 1u : 0u}, logits.data()));
    // Behind a decoded token nothing is as in a sequence of prompt tokens alone.
    const bool all_prefilled = prefilled_ == std::ssize(tokens_);
    tokens_.insert(tokens_.end(), part.begin(), part.end());
    if (all_prefilled) prefilled_ = std::ssize(tokens_);
  }
  return OkStatus();
}

Status Session::Decode(int32_t token, std::span<float> logits) {
  if (prefilled_ == std::ssize(tokens_)) MarkBoundary();
  const int32_t row = 0;
  const model::Batch batch{{{&state_, {&token, 1}, model::AttentionForm::kDecode}}};
  K3_RETURN_IF_ERROR(engine_->Run(batch, {&row, 1}, logits.data()));
  tokens_.push_back(token);
  return OkStatus();
}

void Session::MarkBoundary() {
  if (!keeps_boundaries_) return;
  const int64_t end = std::ssize(tokens_);
  // A state that was filled without tokens cannot be named by them.
  if (prefilled_ != end || state_.length() != end || end == 0) return;
  if (!boundaries_.empty() && boundaries_.back().length == end) return;
  if (boundaries_.size() == kBoundariesMax) boundaries_.erase(boundaries_.begin());
  boundaries_.push_back(state_.Mark());
}

bool Session::Holds(std::span<const int32_t> tokens) const {
  const bool all_prefilled = prefilled_ == std::ssize(tokens_) && state_.length() == prefilled_;
  return all_prefilled && std::equal(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end());
}

bool Session::HasPrefix(std::span<const int32_t> prompt, int64_t length) const {
  const size_t count = static_cast<size_t>(length);
  return count < prompt.size() && std::equal(prompt.begin(), prompt.begin() + length,
                                             tokens_.begin(), tokens_.begin() + length);
}

int64_t Session::Reuse(std::span<const int32_t> prompt) {
  const int64_t end = std::ssize(tokens_);
  if (prefilled_ == end && state_.length() == end && HasPrefix(prompt, end)) return end;
  while (!boundaries_.empty() && !HasPrefix(prompt, boundaries_.back().length)) {
    boundaries_.pop_back();
  }
  if (boundaries_.empty()) {
    Reset();
    return 0;
  }
  state_.Rewind(boundaries_.back());
  prefilled_ = state_.length();
  tokens_.resize(static_cast<size_t>(prefilled_));
  return prefilled_;
}

void Session::Reset() {
  state_ = cache::SequenceState(engine_->config());
  tokens_.clear();
  prefilled_ = 0;
  boundaries_.clear();
}

}  // namespace k3

#pragma once
// TokenConstraint: what a sequence may say next, step by step. It is what the engine knows of
// grammars: it asks for a mask before each draw and tells what was drawn.
//
//   K3_TRY(SampledToken next, sampler.Next(logits, constraint.Allowed()));
//   constraint.Accept(next.id);
//   if (constraint.done()) ...
//
// A mask is words [ceil(V / 32)]: bit `id % 32` of word `id / 32` says whether `id` may come. One
// constraint belongs to one sequence and is used by one thread at a time. Nothing fails: a
// constraint always allows at least one id until it is done.

#include <cstddef>
#include <cstdint>
#include <span>

namespace k3 {

/// The words of a mask for `vocab_size` ids.
constexpr size_t MaskWordsCount(int64_t vocab_size) {
  return static_cast<size_t>((vocab_size + 31) / 32);
}

inline bool IsAllowed(std::span<const uint32_t> mask, int64_t id) {
  return (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0;
}

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// The ids that may come next; empty when any may. Lasts until the next call of anything here.
  virtual std::span<const uint32_t> Allowed() = 0;

  /// Takes what was drawn. An id that was not allowed, such as one that is forced from outside,
  /// ends the constraint: from then on anything is allowed, until the message ends.
  virtual void Accept(int32_t id) = 0;

  /// The answer is complete and nothing may follow. Allowed() is not to be asked any more.
  virtual bool done() const = 0;
};

}  // namespace k3

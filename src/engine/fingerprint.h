#pragma once
// ModelFingerprint: what has to be the same for states of an earlier process to be this one's, bit
// for bit. 16 bytes of XXH3 over
//
//   kNumericsVersion, the SIMD target's name, the latents' type, page and grid sizes;
//   config.json, generation_config.json if there is one, tiktoken.model, tokenizer_config.json;
//   each shard's name, size, modification time and whole header;
//   the first 4 KiB of each tensor.
//
// It reads 4 KiB a tensor, so some seconds for half a million tensors on a disk; on the engine's
// threads, between passes (one ParallelFor runs at a time). Failures are those of reading files.

#include <array>
#include <cstdint>

#include "base/status.h"
#include "engine/engine.h"

namespace k3 {

/// Raised with every change that may change any bit of a latent, a KDA state or a logit, on any
/// machine: the order of a sum, a constant, what is rounded where, the layout of a page or of a
/// snapshot. States on disk of another version are not used.
inline constexpr uint32_t kNumericsVersion = 1;

Result<std::array<uint8_t, 16>> ModelFingerprint(Engine& engine);

}  // namespace k3

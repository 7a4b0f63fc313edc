#pragma once
// Small configurations of every variant of the architecture, for tests.

#include <string>
#include <vector>

namespace k3 {

struct NamedConfig {
  std::string name;
  std::string json;
};

/// Nine tiny layers with KDA, MLA, a dense layer and MXFP4 experts, and one variant for each
/// optional part: low-rank gate, no low-rank query, no output gate, no latent, no latent norm, no
/// shared experts, plain residuals, plain bf16 experts, dense only, an interleaved dense layer.
std::vector<NamedConfig> TestConfigs();

/// The released model's configuration, as far as tensors depend on it.
std::string ReleasedConfigJson();

}  // namespace k3

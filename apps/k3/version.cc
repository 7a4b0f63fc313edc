#include <fmt/format.h>

#include <string>

#include "commands.h"
#include "engine_options.h"
#include "k3_commit.h"
#include "kernels/target.h"

namespace k3::cli {

Result<std::string> VersionText() {
  K3_TRY(const std::optional<SimdTarget> forced, TargetFromEnvironment());
  std::string targets;
  for (const SimdTarget target : {SimdTarget::kScalar, SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    targets += fmt::format(" {}{}", SimdTargetName(target),
                           IsSupported(target) ? "" : " (not on this processor)");
  }
  return fmt::format("k3 {}\ncommit: {}\ncompiler: {}\nSIMD targets:{}\nSIMD target in use: {}\n",
                     K3_VERSION, K3_COMMIT, K3_COMPILER, targets,
                     SimdTargetName(forced.value_or(BestSimdTarget())));
}

}  // namespace k3::cli

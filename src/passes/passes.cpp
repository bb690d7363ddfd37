#include "passes/passes.h"

namespace obelisk::passes {

std::span<const Pass> table() {
  static constexpr Pass kPasses[] = {
      {"expand", "composite ops are told in simpler ones, which fuse", expand},
      {"remove_dead", "nodes that no output needs are removed, values are renumbered", remove_dead},
  };
  return kPasses;
}

}  // namespace obelisk::passes

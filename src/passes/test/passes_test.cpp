#include "passes/passes.h"

#include "graph/test_cases.h"

namespace obelisk::passes {

TEST(Passes, Expand) { graph::run_cases("src/passes/test/expand.ir", expand); }
TEST(Passes, StageConvInputs) { graph::run_cases("src/passes/test/stage_conv_inputs.ir", stage_conv_inputs); }
TEST(Passes, RemoveDead) { graph::run_cases("src/passes/test/remove_dead.ir", remove_dead); }

TEST(Passes, FoldConstants) {
  graph::run_cases("src/passes/test/fold_constants.ir", fold_constants);
}
TEST(Passes, MergeEqual) { graph::run_cases("src/passes/test/merge_equal.ir", merge_equal); }

}  // namespace obelisk::passes

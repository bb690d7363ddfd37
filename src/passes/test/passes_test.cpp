#include "passes/passes.h"

#include "graph/test_cases.h"

namespace obelisk::passes {

TEST(Passes, Expand) { graph::run_cases("src/passes/test/expand.ir", expand); }
TEST(Passes, RemoveDead) { graph::run_cases("src/passes/test/remove_dead.ir", remove_dead); }

}  // namespace obelisk::passes

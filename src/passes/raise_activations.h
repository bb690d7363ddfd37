/// passes/raise_activations.h — activations that exporters decompose become one op again.
///
///   x * (1 + Erf(x / sqrt 2)) / 2                             →  Gelu(x)
///   x * (1 + Tanh(sqrt(2/pi) * (x + 0.044715 * x³))) / 2      →  Gelu(x) {approximate = "tanh"}
///   x * Sigmoid(a * x)                                        →  Swish(x) {alpha = a}
///   x * HardSigmoid(x) {1/6, 1/2},  x * Clip(x + 3, 0, 6) / 6 →  HardSwish(x)
///
/// The factors may come in any order and grouping; what is read elsewhere stays beside the new op.
/// Stands   after simplify_algebra, which turns powers into products and divisions into factors.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_activations(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

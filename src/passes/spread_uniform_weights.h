/// passes/spread_uniform_weights.h — a product with weights that are all one number is computed
/// once and spread over its channels.
///
///   in   %w = ConstantOfShape of [512,256,3,3]   %y = Conv(%x, %w, %b)
///   out  %1 = Conv(%x, const [1,256,3,3])        %y = Add(Expand(%1), %b)
///
/// Networks that were published without their weights have a shape and a number instead; writing
/// such weights out would take the memory and the time of the real ones. Conv, MatMul and Gemm,
/// where the weights are a ConstantOfShape too large to be folded.
///
/// Stands   after fold_constants, which takes the small ones.
/// Errors   none.    Cost  O(nodes + one channel of the weights).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> spread_uniform_weights(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

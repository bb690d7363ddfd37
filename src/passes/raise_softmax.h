/// passes/raise_softmax.h — a decomposed softmax becomes one op again.
///
///   e = Exp(x - ReduceMax(x)),  e / ReduceSum(e)   →   Softmax(x)
///
/// Axis     any one, the same in both reductions, which keep it. The sum may divide, or its
///          reciprocal multiply.
/// Not      without the maximum: Exp(x) / ReduceSum(Exp(x)) overflows where the op does not.
/// Stands   after merge_equal (e is one value); before raise_attention, which looks for Softmax.
/// Differs  f16 and bf16 stay: the whole op computes in f32, the parts did not.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_softmax(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

/// passes/expand.h — composite ops are decomposed into simpler ones, as their rows say
/// (ops::expand).
///
///   in   Graph                                Softmax(x)
///   out  Graph of ops that have a loop form   Div(e, ReduceSum(e)), e = Exp(Sub(x, ReduceMax(x)))
///
/// Stands   after the passes that look for whole composite ops; before ops are grouped into bodies,
///          which composes single loops.
/// Whole    Attention and Recurrence stay one op: a target's tile or block may compute them; so do
/// norms
///          that may be folded into a product (fold_norms.h) and what is left of those that were.
///          Where the target has neither, expand_for_machine.h follows once the target is known.
/// Names    the new nodes keep the name of the node that they come from.
/// Errors   none for users; an expansion whose types differ from the call's is our bug.
/// Cost     O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> expand(graph::Graph graph);

}  // namespace obelisk::passes

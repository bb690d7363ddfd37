/// passes/expand_for_machine.h — ops that `expand` left whole for the machine, decomposed into
/// simpler ones where no tile or block of the machine takes them.
///
///   in   %1 = Attention(%0, ...)          no tile for its type
///   out  MatMul, Softmax's parts, MatMul  as `expand` would have told it
///
/// `keep` says which nodes the machine takes. Those are Attention and Recurrence, norms that did
/// not go through a product, and the statistics of those that did.
///
/// Stands   after fold_norms; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include <functional>

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

/// `why`: gets the reason where it is false.
using KeepWhole = std::function<bool(const graph::Graph&, graph::NodeId, std::string* why)>;

/// `remarks`: of every node that was asked about, what came of it.
Result<graph::Graph> expand_for_machine(graph::Graph graph, const KeepWhole& keep,
                                        Remarks* remarks = nullptr);

}  // namespace obelisk::passes

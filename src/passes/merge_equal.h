/// passes/merge_equal.h — what is computed twice is computed once.
///
///   in   Graph   %1 = Exp(%0), %2 = Exp(%0), %3 = Add(%1, %2)
///   out  Graph   %1 = Exp(%0), %2 = Add(%1, %1)
///
/// Equal    the same op, attributes, inputs and number of outputs; constants of the same type and
///          bytes. Two answers of the graph stay two values. (No graph holds a node that draws
///          random numbers: the op table refuses them.)
/// Stands   after fold_constants, which makes constants equal.
/// Errors   none.    Cost  O(nodes + bytes of constants whose types and first bytes are equal).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> merge_equal(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

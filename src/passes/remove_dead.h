/// passes/remove_dead.h — nodes that no output needs are removed, and values get the numbers that
/// print() shows.
///
///   in   Graph   %1 = Exp(%0), %2 = Neg(%0), out %2
///   out  Graph   %1 = Neg(%0), out %1
///
/// Stands   last, so that later rooms count only what runs.    Errors  none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> remove_dead(graph::Graph graph);

}  // namespace obelisk::passes

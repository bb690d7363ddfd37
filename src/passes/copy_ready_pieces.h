/// passes/copy_ready_pieces.h — a concatenation's operand that cannot be stored inside it is copied
/// there while the others are computed.
///
///   in   %3 = Conv(first half of %0), %4 = Concat(%3, second half of %0)
///   out  %5 = Identity(second half of %0), %3 = Conv(…), %4 = Concat(%3, %5)
///
/// What     A slice, or an operand of two concatenations, has no place in this one. All operands
///          are copied then, when the last of them is ready. With a copy of its own that waits for
///          none of the others, the rest are stored in place by what computes them.
/// Needs    operands that can be stored inside the concatenation, the last of them behind what the
///          copies read by a product, convolution or reduction at least; or all of them before it,
///          and no more than half to copy. No more than two runs of neighbours to copy.
/// Beside   copy_early_pieces, which does the same for any target with what is known before a run
///          begins (a cache), and asks nothing of how operands are stored.
/// Not      where only elementwise ops and moves read the concatenation: they may read the
/// operands. Stands   last of machine_passes: after everything that removes Identity. Errors none.
/// Cost  O(nodes + edges).
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "graph/graph.h"

namespace obelisk::passes {

/// Of the concatenations that are copied as they are: which of the operands could be stored inside.
using Placeable =
    std::function<std::map<graph::NodeId, std::vector<bool>>(const graph::Graph& graph)>;

Result<graph::Graph> copy_ready_pieces(graph::Graph graph, const Placeable& placeable);

}  // namespace obelisk::passes

/// passes/fold_pads.h — zeros that are put around a convolution's or an average pool's input are
/// its own padding.
///
///   in   %1 = Pad(%0, [0, 0, 1, 1, 0, 0, 2, 2]);  %2 = Conv(%1, W)
///   out  %2 = Conv(%0, W) {pads = [1, 1, 2, 2]}
///
/// Zeros behind channels or images stay, and so does what crops. An average pool has no padding
/// before, or one that it counts; afterwards it counts all of it.
/// Stands   after fold_constants and simplify_algebra, before convolutions get other inputs.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> fold_pads(graph::Graph graph);

}  // namespace obelisk::passes

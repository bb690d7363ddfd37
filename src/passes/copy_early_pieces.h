/// passes/copy_early_pieces.h — what a concatenation takes from long ago gets a copy of its own.
///
///   in   %2 = Concat(%past, %new)          %past a graph input, or moves and casts of inputs
///   out  %3 = Identity(%past), %2 = Concat(%3, %new)
///
/// What     A cache of keys or values: most of its elements are there before anything is computed.
///          Pieces that are made are stored inside the concatenation later; one that only
///          is there, or that others read too, is not. With a copy of its own each piece is stored in
///          place, and the early one's copy waits for nothing: the schedule runs it where workers
///          are idle, off the path of what is computed.
/// Not      where the early pieces are less than half of the elements, or small: then one walk over
///          the whole is less than two.
/// Stands   after everything that removes Identity.
/// Errors   none.    Cost  O(nodes + edges).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> copy_early_pieces(graph::Graph graph);

}  // namespace obelisk::passes

/// passes/copy_early_pieces.h — a concatenation's operand that is known from the start is copied
/// separately.
///
///   in   %2 = Concat(%past, %new)          %past a graph input, or moves and casts of inputs
///   out  %3 = Identity(%past), %2 = Concat(%3, %new)
///
/// What     A cache of keys or values: most of its elements are there before anything is computed.
///          Operands that are computed are stored inside the concatenation; one that is an input,
///          or that others read too, is not. With a copy of its own each operand is stored in
///          place, and the early copy depends on nothing: the schedule runs it where workers are
///          idle, off the critical path. Early neighbours, as rows of many embedding tables, are
///          one copy.
/// Not      where the early pieces are less than half of the elements, or small: then one walk over
///          the whole is less than two.
/// Stands   after everything that removes Identity.
/// Errors   none.    Cost  O(nodes + edges).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> copy_early_pieces(graph::Graph graph);

}  // namespace obelisk::passes

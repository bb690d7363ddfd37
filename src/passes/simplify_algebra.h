/// passes/simplify_algebra.h — removes ops that change nothing, merges ops done twice in a row.
///
///   x + -0, x - 0, x * 1, x / 1, Pow(x, 1)      →  x        (x + 0 only of integers: -0 + 0 is 0)
///   x / 2^k                                     →  x * 2^-k
///   Pow(x, 2), Pow(x, 3), Pow(x, -1)            →  x * x, x * x * x, Reciprocal(x)
///   Neg(Neg(x)), Not(Not(x))                    →  x
///   Cast(Cast(x)) whose first loses nothing     →  Cast(x)
///   Reshape(Reshape(x)), also Squeeze and kin   →  Reshape(x)
///   Transpose(Transpose(x))                     →  Transpose(x)
///   Gather of one known index                   →  Reshape(Slice(x))
///   Identity, Dropout, and Cast, Reshape, Transpose, Expand, Slice, Pad, Concat ... to the same
///   Concat of all parts of a Split, in order    →  Concat of what was split
///   Where of a condition that is known          →  its branch
///
/// Stands   after merge_equal; before the passes that look for patterns, which then see fewer
/// spellings. Keeps    NaN, infinities and the sign of zero: a rule that would not is not here.
/// Errors   none.    Cost  O(nodes), a few rounds.
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> simplify_algebra(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

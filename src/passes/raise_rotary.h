/// passes/raise_rotary.h — rotary embeddings that exporters decompose become one op.
///
///   x * cos + Concat(-x[h:], x[:h]) * sin   →   RotaryEmbedding(x, cos[:h], sin[:h])
///
/// Angles   cos and sin over the whole head whose halves are equal: a constant, rows gathered from
///          one, or made of Concat(f, f) by elementwise ops and reshapes; only the half is
///          computed.
/// Form     x [batch, heads, length, size], or [batch, length, heads, size] with the angles of a
///          token beside all heads.
/// Stands   after simplify_algebra; before raise_attention, whose operands these are.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_rotary(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

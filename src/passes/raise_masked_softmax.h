/// passes/raise_masked_softmax.h — a mask that is applied to the scores of a softmax becomes part
/// of it.
///
///   Softmax(x * scale + mask)                →  MaskedSoftmax(x, mask) {scale}
///   Softmax(Where(seen, x * scale, fill))    →  MaskedSoftmax(x, seen) {scale, fill}
///   Softmax(Where(hidden, fill, x * scale))  →  MaskedSoftmax(x, hidden) {scale, fill, forbids =
///   1}
///
/// Mask     broadcasts into the scores; subtracted ones are negated. Of two operands as large as
///          the answer a constant is the mask, else the second one. The fill is one number of
///          -10000 or less: what is filled with more is not forbidden.
/// Not      a constant along the last axis alone that forbids nothing: that is a bias, and its
///          product's.
/// Scale    one finite number that multiplies or divides.
/// Stands   after raise_attention, which takes the masks of its scores itself. `expand` decomposes
///          the op again, and its parts are fused.
/// Differs  x / scale is x * (1 / scale); the parts round f16 and bf16 at each step, the op at the
///          end. A row with nothing allowed is what it was (ops/norm.h).
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_masked_softmax(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

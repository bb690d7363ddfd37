/// passes/raise_layer_norm.h — normalisations that exporters decompose become one op again.
///
///   d = x - mean(x),  d / sqrt(mean(d * d) + eps) * scale + bias
///       →  LayerNormalization(x, scale, bias)
///   x / sqrt(mean(x * x) + eps) * scale
///       →  RMSNormalization(x, scale)
///
/// Means    over the last axes; the root may divide, or its reciprocal multiply. Scale and bias
///          have the shape of these axes; a missing scale is one.
/// Stands   after simplify_algebra (squares are products there) and merge_equal (d is one value).
/// Differs  f16 and bf16 stay: the whole op computes in f32, the parts did not.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> raise_layer_norm(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

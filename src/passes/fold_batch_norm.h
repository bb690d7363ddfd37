/// passes/fold_batch_norm.h — a scale and shift of the channels of a product is folded into its
/// weights.
///
///   y = (Conv(x, W, B)) * s + t   →   Conv(x, W * s, B * s + t)      s, t constants, one a channel
///
/// Producers  Conv, ConvTranspose, Gemm, MatMul of two matrices (constant weights and bias, read by
///            nobody else)
/// Followers  BatchNormalization; Add, Sub, Mul and Div with a constant, one value a channel or one
/// Stands     after fold_constants and simplify_algebra.    Arithmetic is in f64.
/// Differs    f16 and bf16 stay: rounding their scaled weights again would cost accuracy.
/// Errors     none; a parameter that is not finite leaves the node alone.    Cost  O(weights).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> fold_batch_norm(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

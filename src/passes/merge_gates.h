/// passes/merge_gates.h — a gate and what it gates, two products of one input, become one product.
///
///   SiLU(MatMul(x, Wg)) * MatMul(x, Wu)
///       →  Split(MatMul(x, [Wg Wu])) into g, u;  SiLU(g) * u
///
/// What     Two MatMul or plain Gemm with constant matrices of equal shapes, transposed alike,
/// whose
///          results are operands of one elementwise op. Biases, a Gemm's too, are added to the
///          halves. A task then gets the same columns of both halves, so that one wave computes
///          both and the op that combines them, and neither half is stored (a dual GEMM).
/// Not      fewer than 16 columns: no tile is so narrow.
/// Stands   after merge_qkv, which leaves such products apart; before fold_batch_norm.
/// Errors   none.    Cost  O(nodes), and a copy of the weights.
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> merge_gates(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

/// passes/hoist_halves.h — the halves of a gated linear unit are cut from its product before the
/// bias, so that a task computes the same columns of both halves and what combines them, and
/// neither half is stored (a dual GEMM).
///
///   in   %3 = MatMul(%1, w),  %4 = Add(%3, b),  %5, %6 = Split(%4),  %7 = Mul(%5, Gelu(%6))
///   out  %4, %5 = Split(%3),  %6 = Add(%4, b0),  %7 = Add(%5, b1),  %8 = Mul(%6, Gelu(%7))
///
/// What     GLU, GEGLU and SwiGLU of one weight matrix, halves by Split or by two Slices;
///          merge_gates has those of two. Where two products are quicker than a dual GEMM, `pays`
///          says no and the product becomes two, also one that merge_gates made; the second's
///          epilogue combines them.
/// Needs    between product and halves elementwise ops with constants, that nothing else reads; an
///          elementwise op that both halves reach through elementwise ops and moves.
/// Stands   before fold_norms, which keeps halves apart; after unflatten_gemm.
/// Errors   none.    Cost  O(nodes + constants that are cut).
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// Of [rows, depth] by two matrices [depth, columns].
using DualGemmPays = std::function<bool(DType type, int64_t rows, int64_t columns, int64_t depth)>;

Result<graph::Graph> hoist_halves(graph::Graph graph, const DualGemmPays& pays);

}  // namespace obelisk::passes

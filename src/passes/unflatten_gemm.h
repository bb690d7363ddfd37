/// passes/unflatten_gemm.h — a Gemm becomes a MatMul and an Add, of its rows as they were before
/// they were flattened, so that it is what other passes know: norms go through it, its sum is
/// split, batches of products are.
///
///   in   %3 = Reshape(%1: [2,128,768] → [256,768]),  %4 = Gemm(%3, w, b),  %5 = Reshape(%4)
///   out  %5 = Add(MatMul(%1, w), b)
///
/// What     How PyTorch's addmm is exported, a linear layer of two dimensions. A transposed
///          constant is transposed once more. Rows stay flat where the bias is not one of columns.
/// Needs    a constant matrix, an input that is not transposed, alpha and beta of 1.
/// Stands   first of machine_passes, for machines with epilogues: elsewhere a Gemm with its bias is
///          one kernel and these are two. `expand` leaves norms before such a Gemm.
/// Errors   none.    Cost  O(nodes + weights that are transposed), on all cores.
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> unflatten_gemm(graph::Graph graph);

}  // namespace obelisk::passes

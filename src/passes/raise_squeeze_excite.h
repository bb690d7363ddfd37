/// passes/raise_squeeze_excite.h — the ops of a squeeze-and-excitation block become one
/// (ops/squeeze_excite.h), which a gang of workers computes at once.
///
///   in   %1 = ReduceMean(%0, [2, 3]); %2 = Conv(%1, W1, B1); %3 = Relu(%2);
///        %4 = Conv(%3, W2, B2); %5 = Sigmoid(%4); %6 = Mul(%0, %5)
///   out  %6 = SqueezeExcite(%0, W1, B1, W2, B2) {activation "Relu", gate "Sigmoid"}
///
/// Found by what is computed: the mean of all pixels by ReduceMean or GlobalAveragePool, also
/// through Casts; products with constant weights as Conv of kernel 1, Gemm or MatMul, with or
/// without an Add; moves of [N, C] to [N, C, 1, 1] and back between them; Relu, Swish or HardSwish,
/// then Sigmoid or HardSigmoid. What lies between x and the Mul must have no other readers. Means
/// and products are then f32, where those of 16 bits were rounded in between.
///
/// `takes` says of each such op, in a graph where all blocks are raised, whether a block computes
/// it; what none takes stays as it is.
///
/// Stands   before expand_for_machine; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes), twice the weights of what is found, and what `takes` costs.
#pragma once

#include "graph/graph.h"
#include "passes/expand_for_machine.h"

namespace obelisk::passes {

Result<graph::Graph> raise_squeeze_excite(graph::Graph graph, const KeepWhole& takes);

}  // namespace obelisk::passes

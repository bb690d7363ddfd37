/// passes/sink_concatenations.h — elementwise ops behind a concatenation go before it, so that the
/// product or convolution that gives its last piece computes them of that piece in its epilogue.
///
///   in   %3 = Concat(%1, %2),  %4 = Relu(%3),  %5 = Conv(%4, w)         %2 = Conv(…)
///   out  %3 = Relu(%1),  %4 = Relu(%2),  %5 = Conv(Concat(%3, %4), w)
///
/// What     As in dense blocks, whose every layer normalises what all layers before it gave: of the
///          pieces that were there earlier the ops are work beside the last layer's, and no wave
///          lies between one convolution and the next. Where pieces are stored inside the
///          concatenation, that one is no work either.
/// Needs    a chain of elementwise ops with constants, from the concatenation to convolutions and
///          products; every piece that is ready last given by a convolution or product, perhaps
///          behind elementwise ops. The pieces that are ready earlier may be in two runs of
///          neighbours at most: each run is a kernel.
/// Not      where outputs of the graph are on the way.
/// Stands   among machine_passes, for machines with epilogues; behind expand_for_machine, which
///          makes elementwise ops of norms.
/// Errors   none.    Cost  O(nodes + constants that are cut).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> sink_concatenations(graph::Graph graph);

}  // namespace obelisk::passes

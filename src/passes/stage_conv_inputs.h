/// passes/stage_conv_inputs.h — a convolution's input that must stay row-major gets a copy of its
/// own, which may be stored channels-last.
///
///   in   %2 = Conv(%0, %1)            %0 a graph input
///   out  %3 = Identity(%0), %2 = Conv(%3, %1)
///
/// Stands   after everything that removes Identity; before layouts are chosen, which then covers
///          the copy.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> stage_conv_inputs(graph::Graph graph);

}  // namespace obelisk::passes

/// passes/sink_transposes.h — transposes move through elementwise ops to where they cancel or
/// merge.
///
///   in   %2 = Transpose(%0)  %3 = Relu(%2)  %4 = Transpose(%3), the inverse
///   out  %4 = Relu(%0)
///   in   %2 = Transpose(%0)  %3 = Transpose(%1)  %4 = Add(%2, %3)
///   out  %2 = Add(%0, %1)    %4 = Transpose(%2)
///
/// How      A Transpose is moved up to what it reads, through any chain of elementwise ops that
///          nobody else reads, where fewer transposes are left than before; an elementwise op whose
///          inputs are transposed alike gets one Transpose after it instead. Constants are
///          transposed at compile time.
/// Stands   after the passes that look for patterns, which know transposes where exporters put
///          them; before fold_batch_norm, which then sees the convolution that a Transpose hid.
/// Bounds   chains of 32 ops; constants of a million elements. There are fewer transposes after
///          each step, so it ends.
/// Errors   none.    Cost  O(nodes * chain).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

Result<graph::Graph> sink_transposes(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

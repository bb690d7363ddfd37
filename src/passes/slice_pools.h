/// passes/slice_pools.h — a pool whose windows are single elements is a slice with steps.
///
///   in   %1: f32[1,8,5,5] = AveragePool(%0) {kernel_shape = [1, 1], strides = [2, 2]}, %0 of 9 x 9
///   out  %1: f32[1,8,5,5] = Slice(%0, starts [0, 0], ends [9, 9], axes [2, 3], steps [2, 2])
///
/// A convolution of single elements behind it takes its steps instead. Of a pool behind a Pad of
/// zeros that crops or adds, what is sampled is sliced first and padded then: reductions of NASNet
/// and PNASNet take every other pixel this way, once from the first and once from the second.
/// Stands   after fold_constants and simplify_algebra, before fold_pads.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> slice_pools(graph::Graph graph);

}  // namespace obelisk::passes

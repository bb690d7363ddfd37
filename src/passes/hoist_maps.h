/// passes/hoist_maps.h — elementwise ops behind moves of what a product or convolution gives go
/// before the moves, into its epilogue.
///
///   in   %2 = Conv(%1, w),  %3 = Transpose(Reshape(%2)),  %4 = Gelu(%3),  %5 = MatMul(%4, v)
///   out  %3 = Gelu(Conv(%1, w)),  %4 = Transpose(Reshape(%3)),  %5 = MatMul(%4, v)
///
/// What     An image that becomes tokens or tokens that become an image, as around the depthwise
///          convolutions of SegFormer and PVT: the same elements in memory, but the epilogue and
///          what follows count them by other dimensions.
/// Needs    values on the way that nothing else reads; the product's columns or channels last after
///          the moves, or channels of an image. Besides what is moved: constants of one number or
///          along one axis; a value of its shape that no more products and reductions lie before
///          than before what is moved (stages_of), and that no other epilogue gives, if the moves
///          only put the channels elsewhere.
/// Not      Casts: what is stored would be wider.
/// Stands   among machine_passes, for machines with epilogues; before fold_norms.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> hoist_maps(graph::Graph graph);

}  // namespace obelisk::passes

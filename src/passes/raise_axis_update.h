/// passes/raise_axis_update.h — an update of an input along one axis, whose memory an output takes,
/// becomes one op.
///
///   in   %1 = Transpose(%past) {perm = [2, 0, 1, 3]}, %2 = ScatterND(%1, %rows, %new)
///        %3 = Transpose(%2) {perm = [1, 2, 0, 3]}, out %3 "now" in_place_of "past"
///   out  %3 = ScatterElements(%past, Expand(%rows), Transpose(%new)) {axis = 2}
///
/// What     How exporters write index_copy, index_put of one index, and a store into a slice: they
///          move the axis to the front, where ScatterND wants it, and back. Between the moves all
///          of the input would be copied; the one op can update it where it lies. The indices
///          are expanded to the updates' shape, which is small beside the input's.
/// Not      outputs that take no input's memory; indices of several axes.
/// Stands   first, so that indices that are known are expanded when constants are folded.
/// Errors   none.    Cost  O(outputs + readers).
#pragma once

#include "passes/rewrite.h"

namespace obelisk::passes {

Result<graph::Graph> raise_axis_update(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

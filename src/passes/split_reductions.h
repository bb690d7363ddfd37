/// passes/split_reductions.h — a reduction with few rows or columns becomes one over parts of it,
/// and an ordered one over the partial results: several workers share a long row, and the bits are
/// the same from run to run.
///
///   in   %1 = ReduceSum(%0) {axis 1}                       %0 f16[2,1000000]
///   out  %2 = ReduceSum(Cast(%0) as [2,50,20000]) {axis 2}     f32[2,50]
///        %1 = Cast(ReduceSum(%2) {axis 1})
///
/// Where the reduction's longest run of neighbouring axes has no fitting divisor, what is left of
/// it is a part of its own, shorter. Sums, means, products, extremes, norms; of integers what wraps
/// or compares. Between parts and their end 16-bit numbers are f32. `parts` says in how many; 1: as
/// it is. Equal but for the order of sums.
///
/// Stands   after expand_for_machine; for the machine that is compiled for.
/// Paper    Zheng et al. (ASPLOS'22) §4.2, task splitting of adaptive thread mapping; there partial
/// sums are added atomically, in any order. Errors   none.    Cost  O(nodes).
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// A reduction of a value of this type has `outputs` results, of which runs of `inner` are
/// contiguous.
using ReductionParts = std::function<int64_t(const Type& type, int64_t outputs, int64_t inner)>;

Result<graph::Graph> split_reductions(graph::Graph graph, const ReductionParts& parts);

}  // namespace obelisk::passes

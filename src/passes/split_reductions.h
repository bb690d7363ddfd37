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
/// it is. Where a value lies with its channels last, as convolutions have it, the channels of a
/// mean over pixels are neighbours. Equal but for the order of sums.
///
/// A mean and the variance about it (group, instance and layer norms over few long rows) are taken
/// in one go: each part gives its mean and the sum of squares about that, from which both follow
/// as in Chan, Golub, LeVeque (1979). Where such a row is all pixels of some channels that are
/// stored last, a part is pixels with those channels: it reads neighbours.
///
/// Stands   after expand_for_machine; for the machine that is compiled for.
/// Paper    Zheng et al. (ASPLOS'22) §4.2, task splitting of adaptive thread mapping; there partial
/// sums are added atomically, in any order. Errors   none.    Cost  O(nodes).
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"

namespace obelisk::passes {

/// A reduction of a value of this type has `outputs` results, of which runs of `inner` are
/// neighbours in memory. Of what each of them folds, `length` elements may be split. Workers of
/// a result go over them `passes` times: once, or for the mean, the variance and the norm.
/// `scattered`: as the graph has it, neighbours of a row lie apart in memory; those of a part do
/// not.
struct Reduction {
  Type type;
  int64_t outputs = 0, inner = 1, length = 0, passes = 1;
  bool scattered = false;
};
using ReductionParts = std::function<int64_t(const Reduction& reduction)>;

/// By value: whether the machine's tiles have it stored with channels last.
using ChannelsLast = std::function<std::vector<bool>(const graph::Graph& graph)>;

Result<graph::Graph> split_reductions(graph::Graph graph, const ReductionParts& parts,
                                      const ChannelsLast& channels_last = {});

}  // namespace obelisk::passes

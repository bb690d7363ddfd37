/// passes/split_products.h — split-K: a product with a long sum and few columns becomes a batch of
/// products over parts of k, computed in parallel, and an ordered sum of the partial results, in
/// f32.
///
///   in   %2 = MatMul(%0, %1)                              %0 f16[128,3072], %1 a constant
///   f16[3072,768] out  %3 = MatMul(%0 as [2,128,1536], %1 as [2,1536,768])    f32: products of
///   16-bit numbers
///        %2 = Cast(Sum(%3[0], %3[1]))
///
/// Where there are rows enough for all workers, or where groups of workers add the parts themselves
/// (`whole`), the product stays whole, and its tiles add the parts in that order:
///
///        %3 = MatMul(%0, %1) {parts = 2} f32,  %2 = Cast(%3)
///
/// So the order of a row's sum does not depend on the number of rows; what is rounded to 16 bits
/// does, since a norm may read the f32 partial sums or the stored result. `any_batch`: always
/// partial sums. Only where a reduction (a norm) follows over elementwise ops without other
/// readers, or over a residual sum that is read through a cast: its body adds the parts as it reads
/// them. `parts` says in how many; 1: not split, as where the target's tiles of many rows sum k in
/// one chain. Equal in f32 but for the order of the sum.
///
/// Stands   after convert_precision and expand; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

using SplitK = std::function<int64_t(DType type, int64_t rows, int64_t columns, int64_t depth)>;

using StaysWhole = std::function<bool(int64_t rows, int64_t columns, int64_t parts)>;

Result<graph::Graph> split_products(graph::Graph graph, const SplitK& parts,
                                    const StaysWhole& whole = {}, bool any_batch = false);

}  // namespace obelisk::passes

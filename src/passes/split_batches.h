/// passes/split_batches.h — a batch of products whose last round of tiles would leave most workers
/// idle becomes two: as many products as fill the rounds before, and the others, in smaller tiles.
///
///   in   %2 = MatMul(%0, %1)          %0 f16[72,256,1152], %1 f16[72,1152,128]
///        %3 = Relu(%2)
///   out  %4 = Relu(MatMul(%0[:66], %1[:66]))
///        %5 = Relu(MatMul(%0[66:], %1[66:]))
///        %3 = Concat(%4, %5) {axis 0}
///
/// Elementwise ops that alone read the products are computed of each part. `first` says how many
/// products are in the first part; 0: the batch stays one. Equal but for the order of the sums,
/// since tiles differ. Where stream-K (Osama et al., PPoPP'23) cuts the last tiles along k inside
/// one kernel, here the rest of the batch has tiles of its own.
///
/// Stands   after split_products; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes), and a copy of constants that are split.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// A batch of `count` products [rows, depth] x [depth, columns]; `constant`: of weights.
struct BatchOfProducts {
  DType type = DType::f32;
  bool constant = false;
  int64_t count = 0, rows = 0, columns = 0, depth = 0;
};
using FirstOfBatch = std::function<int64_t(const BatchOfProducts& batch)>;

Result<graph::Graph> split_batches(graph::Graph graph, const FirstOfBatch& first);

}  // namespace obelisk::passes

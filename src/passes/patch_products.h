/// passes/patch_products.h — a convolution whose kernel steps by its own size is a product: its
/// patches are the rows.
///
///   in   %2 = Conv(%0, %1) {strides = kernel}             %0 f16[1,3,224,224], %1 a constant
///   f16[768,3,16,16] out  %3 = %0 as [1,3,14,16,14,16], transposed to [1,14,14,3,16,16], as
///   [196,768]
///        %2 = MatMul(%3, %1 as [768,768]), as [1,14,14,768], transposed to [1,768,14,14]
///
/// Only of an input of the graph, perhaps cast: it is copied anyway, and the copy is laid out patch
/// by patch. A bias is added to the product. `wanted` says for which type, rows, columns and depth;
/// without padding, dilation and groups. Equal but for the order of the sum.
///
/// Stands   after convert_precision and expand; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes), and a copy of the weights.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

using WantedProduct = std::function<bool(DType type, int64_t rows, int64_t columns, int64_t depth)>;

Result<graph::Graph> patch_products(graph::Graph graph, const WantedProduct& wanted);

}  // namespace obelisk::passes

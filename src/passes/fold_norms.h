/// passes/fold_norms.h — a norm before a product with constant weights is folded into it, so that
/// the product reads what the norm would read and there is no wave between them.
///
///   y = LayerNormalization(x, g, b),  y W + c      mean m and 1 / deviation r of each row of x
///       →  ((x (g W)) - m s) r + c'                s = column sums of g W,  c' = c + b W
///   RMSNormalization                               the same without m
///
/// m and r are NormStatistics (ops/norm.h) of the product: its tile reads whole rows of x anyway. g
/// W is rounded to the weights' type once, s is the sum of what was rounded, so that a row's mean
/// cancels as exactly as f32 sums do. Readers that are no products (a residual) compute the norm of
/// their own elements from m and r.
///
/// Needs    f16 or bf16; constant scale and shift of the last axis; a reader that is such a product
///          and which `takes` accepts (perhaps after moves of dimensions of extent one, which then
///          follow it); other readers elementwise; x made by a product's epilogue (moves between
///          may add, remove or permute dimensions of extent one), which leaves partial statistics
///          of it, and no sum of parts (split_products.h), which the norm's body adds up.
/// Stands   among machine_passes, because the target's tiles compute the statistics; before
///          expand_for_machine, which decomposes the norms that stay. `expand` leaves norms that
///          may fold.
/// Paper    hierarchical reuse (ASPLOS'22 §4.2) across a product; barrier merging (MonoNN §4.4).
/// Errors   none.    Cost  O(nodes + weights that are scaled), on all cores.
#pragma once

#include <functional>

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

/// Whether a norm could be folded into some product, whatever the target.
bool may_fold_norm(const graph::Graph& graph, graph::NodeId norm);

/// A property of the target's tiles of a product of `rows` rows by weights [depth, columns].
using OfProduct = std::function<bool(DType type, int64_t rows, int64_t columns, int64_t depth)>;
/// `takes`: they compute the statistics of its rows; `in_planes`: they compute split-K partial sums
/// for the next body to add.
Result<graph::Graph> fold_norms(graph::Graph graph, const OfProduct& takes,
                                const OfProduct& in_planes, Remarks* remarks = nullptr);

/// The product of a NormStatistics, where its tile can compute them: x, or x widened, by constant
/// weights. kNone: there is none.
graph::NodeId product_of_statistics(const graph::Graph& graph, graph::NodeId statistics);

}  // namespace obelisk::passes

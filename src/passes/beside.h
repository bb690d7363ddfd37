/// passes/beside.h — what passes that make one product of several have in common.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "passes/rewrite.h"

namespace obelisk::passes {

/// A MatMul or Gemm with a constant matrix, and what is added to it.
struct Product {
  NodeId node = kNone;
  ValueId weights = kNone, bias = kNone;  // bias: a Gemm's third input
  ValueId answer = kNone;
  int64_t columns = 0;
  bool transposed = false;  // transposed: weights [columns, depth]
};

/// The node as such a product. None for other ops and matrices, and, with a reason, for a Gemm that
/// scales or transposes its input.
std::optional<Product> constant_product(const Graph& graph, NodeId id, Reason& why);

/// Matrices concatenated along their columns.
Tensor beside(const std::vector<const Tensor*>& parts);
/// Concatenated along their rows.
Tensor below(const std::vector<const Tensor*>& parts, const Shape& shape);

/// The elementwise ops that a value reaches through elementwise ops and moves.
std::set<NodeId> reached(const Graph& graph, ValueId from);
/// Whether some elementwise op reads what both become.
bool meet(const Graph& graph, ValueId a, ValueId b);

/// Of a half of a dual GEMM: no tile is so narrow.
inline constexpr int64_t kFewestHalfColumns = 16;

}  // namespace obelisk::passes

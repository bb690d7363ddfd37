/// passes/moves.h — reshapes and transposes of a value, built so that few remain.
///
/// Each answers a value that is equal to the move of `value`; moves that `value` is made of are
/// looked through, so that what undoes itself leaves no node. Names: new nodes get `name`.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace obelisk::passes {

/// Reshape, Flatten, Squeeze or Unsqueeze.
bool keeps_order(ops::Op op);

/// The axes in their new order, written or standing for "reversed".
std::vector<int64_t> order_of(const graph::Graph& graph, graph::NodeId transpose);

/// The order that undoes another one.
std::vector<int64_t> inverse(const std::vector<int64_t>& order);

graph::ValueId reshaped(graph::Graph& graph, graph::ValueId value, const Shape& shape,
                        const std::string& name);
graph::ValueId transposed(graph::Graph& graph, graph::ValueId value, std::vector<int64_t> order,
                          const std::string& name);

/// With the last two axes swapped, through reshapes of the axes before them.
graph::ValueId transposed(graph::Graph& graph, graph::ValueId value, const std::string& name);

/// Which elements [begin, end) of the last axis of `of` a Slice or an output of Split is; of: kNone
/// where a value is neither, or has steps.
struct PartOfAxis {
  graph::ValueId of = graph::kNone;
  int64_t begin = 0, end = 0;
};
PartOfAxis part_of(const graph::Graph& graph, graph::ValueId value);

/// `value` is `factor` times `rest`: uniform factors are taken off, also from under moves.
struct Factored {
  graph::ValueId rest = graph::kNone;
  double factor = 1;
};
Factored without_factors(graph::Graph& graph, graph::ValueId value);

}  // namespace obelisk::passes

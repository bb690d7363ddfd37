/// passes/fold_constants.h — nodes whose inputs are all known are computed now, by the reference.
///
///   in   Graph   %3 = Add(%1, %2) of constants 1 and 2
///   out  Graph   constant 3 in its place
///
/// Stands   first, so that later passes see constants; bounded, since a weight that is spread out
///          costs more to keep than to compute: a result of more than kMostFolded elements stays a
///          node unless it is no larger than its inputs, and so does what takes much arithmetic.
/// Errors   none: where the reference refuses, the node stays and speaks when it runs.
/// Cost     O(elements made).
#pragma once

#include "graph/graph.h"
#include "passes/remarks.h"

namespace obelisk::passes {

inline constexpr int64_t kMostFolded = int64_t{4} << 20;  // elements of one node
inline constexpr double kMostFoldedFlops = 1e8;  // of one node: about a second of reference

/// What a node of one output answers, where its inputs are constants, some are there, and neither
/// they nor the output have more than `most` elements.
std::optional<Tensor> known_answer(const graph::Graph& graph, graph::NodeId id, int64_t most);

Result<graph::Graph> fold_constants(graph::Graph graph, Remarks* remarks = nullptr);

}  // namespace obelisk::passes

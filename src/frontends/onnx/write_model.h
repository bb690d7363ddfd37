/// frontends/onnx/write_model.h — a graph as a model file again: for viewers, and for other
/// runtimes.
///
///   in   Graph, notes by node (any words: group, wave, body)
///   out  FILE, and FILE.weights beside it when the weights are larger than kInlineWeights
///
/// The graph's ops keep their names, for they have the newest operator set's meaning; the file asks
/// for the oldest set that has all of them, so that runtimes behind the newest can read it. Inputs
/// and outputs keep names and types; notes become the nodes' metadata.
/// Errors  kUsage, kMemory of writing. What is written is read again by read_model to the same
///         graph, up to names of values.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace obelisk::frontends {

inline constexpr int64_t kInlineWeights = int64_t{64} << 20;

using Notes = std::vector<std::pair<std::string, std::string>>;

Status write_onnx(const graph::Graph& graph, const std::string& path,
                  const std::function<Notes(graph::NodeId)>& notes = nullptr);

/// The oldest operator set, 21 at least, that has every op, attribute and type of the graph.
int64_t needed_opset(const graph::Graph& graph);

}  // namespace obelisk::frontends

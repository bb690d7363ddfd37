/// passes/rewrite.h — what passes that replace values have in common.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace obelisk::passes {

/// Every reader of `from` reads `to` instead, which takes over the user's name if it has none.
/// False, and nothing changes, where `from` is an output of the graph and `to` an input, a constant
/// or an output already: an answer stays a value of its own.
bool replace_value(graph::Graph& graph, graph::ValueId from, graph::ValueId to);

/// The one value that all elements of a constant have: +0 and -0 differ, NaN and constants without
/// elements have none.
std::optional<double> uniform_value(const graph::Graph& graph, graph::ValueId id);

/// Read by one node and not an answer: this value may vanish into its reader.
bool has_one_reader(const graph::Graph& graph, graph::ValueId id);

/// Orders, drops what is not read and renumbers: how passes that add nodes end.
graph::Graph tidy(graph::Graph graph);

}  // namespace obelisk::passes

/// passes/expand_nodes.h — nodes decomposed into simpler ops, one by one: what expand and
/// expand_for_machine share.
#pragma once

#include <deque>
#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// What stays whole until the machine is known: it may have a tile or a block for it.
bool waits_for_machine(const graph::Graph& graph, graph::NodeId id);

/// The nodes of `open`, and what their expansions consist of, but for those that are to stay
/// `whole`.
graph::Graph expanded(graph::Graph graph, std::deque<graph::NodeId> open,
                      const std::function<bool(const graph::Graph&, graph::NodeId)>& whole);

}  // namespace obelisk::passes

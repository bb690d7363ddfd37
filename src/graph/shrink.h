/// graph/shrink.h — the smallest graph near a given one that still fails, for tests over random
/// graphs.
///
///   in   a graph, and a predicate that it satisfies
///   out  a graph that satisfies it, of which no single step below leaves one that does
///
/// Steps: fewer outputs, earlier values as outputs, values that become inputs, nodes left out where
/// a node reads what it gives, pieces of a concatenation left out, smaller extents. All types are
/// inferred again; a step whose graph is not sound is not tried.
#pragma once

#include <functional>
#include <string>

#include "graph/graph.h"

namespace obelisk::graph {

/// `most`: how often the predicate is asked. Deterministic when the predicate is.
Graph shrink(const Graph& graph, const std::function<bool(const Graph&)>& fails, int most = 500);

/// The graph as text for parse_random (graph/test_texts.h): float constants of more elements than
/// that are @random, each in [-most, most].
std::string text_with_random_weights(const Graph& graph, int64_t longest = 8);

}  // namespace obelisk::graph

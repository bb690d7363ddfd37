#include "passes/stage_conv_inputs.h"

#include <map>

namespace obelisk::passes {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;

Result<Graph> stage_conv_inputs(Graph graph) {
  std::map<ValueId, ValueId> copies;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op != graph::Op::Conv) continue;
    const ValueId x = graph.node(id).inputs[0];
    const bool fixed = graph.value(x).producer == graph::kNone || graph.is_output(x);
    if (!fixed || graph.value(x).is_constant()) continue;
    auto [copy, fresh] = copies.try_emplace(x, graph::kNone);
    if (fresh) copy->second = graph.must_add(graph::Op::Identity, {x}, {}, graph.node(id).name);
    std::vector<ValueId> inputs = graph.node(id).inputs;
    inputs[0] = copy->second;
    graph.set_inputs(id, std::move(inputs));
  }
  graph.sort();
  return graph;
}

}  // namespace obelisk::passes

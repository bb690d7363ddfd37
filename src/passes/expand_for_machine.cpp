#include "passes/expand_for_machine.h"

#include "passes/expand_nodes.h"
#include "passes/fold_norms.h"

namespace obelisk::passes {

using graph::Graph;
using graph::NodeId;

Result<Graph> expand_for_machine(Graph graph, const KeepWhole& keep, Remarks* remarks) {
  const auto stays = [&](NodeId id) {
    std::string why = "no product's tile gives them";
    const bool statistics = graph.node(id).op == ops::Op::NormStatistics;
    const bool kept =
        statistics ? product_of_statistics(graph, id) != graph::kNone : keep(graph, id, &why);
    if (remarks)
      remarks->left(graph, id,
                    kept ? "stays whole: the machine has a tile or a block for it"
                         : "in simpler ops: " + why);
    return kept;
  };
  std::deque<NodeId> open(graph.order().begin(), graph.order().end());
  std::erase_if(open, [&](NodeId id) { return !waits_for_machine(graph, id) || stays(id); });
  if (open.empty()) return graph;
  return expanded(std::move(graph), std::move(open), [](const Graph&, NodeId) { return false; })
      .compacted();
}

}  // namespace obelisk::passes

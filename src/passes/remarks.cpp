#include "passes/remarks.h"

namespace obelisk::passes {

void Remarks::left(const graph::Graph& graph, graph::NodeId id, std::string why) {
  if (!told_.insert(id).second) return;
  const graph::Node& node = graph.node(id);
  std::string name(ops::to_string(node.op));
  if (!node.name.empty()) name += fmt::format(" '{}'", node.name);
  all_.push_back({std::move(name), std::move(why)});
}

}  // namespace obelisk::passes

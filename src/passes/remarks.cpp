#include "passes/remarks.h"

#include <algorithm>
#include <set>

namespace obelisk::passes {

void Remarks::left(const graph::Graph& graph, graph::NodeId id, std::string why) {
  if (std::find(of_.begin(), of_.end(), id) != of_.end()) return;
  const graph::Node& node = graph.node(id);
  std::string name(ops::to_string(node.op));
  if (!node.name.empty()) name += fmt::format(" '{}'", node.name);
  all_.push_back({std::move(name), std::move(why)});
  of_.push_back(id);
}

void Remarks::keep_those_of(const graph::Graph& graph) {
  const std::set<graph::NodeId> there(graph.order().begin(), graph.order().end());
  size_t kept = 0;
  for (size_t k = 0; k < all_.size(); ++k) {
    if (!there.count(of_[k])) continue;
    all_[kept] = all_[k], of_[kept] = of_[k];
    ++kept;
  }
  all_.resize(kept), of_.resize(kept);
}

}  // namespace obelisk::passes

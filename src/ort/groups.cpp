// Depth of a node: how many refused stretches lie on the worst path to it. Along a path it never
// falls, and it rises where a taken node reads from a refused one; so a path that leaves the taken
// nodes of one depth through a refused node never comes back to them.
#include <algorithm>

#include "ort/graph.h"

namespace obelisk::ort {
namespace {

/// Nodes that only say how large something is: alone they are not worth a program.
bool computes(const Node& node) {
  static const std::set<std::string> shapes = {
      "Shape",   "Size",   "Constant", "Identity", "Cast",    "Gather", "Unsqueeze",
      "Squeeze", "Concat", "Slice",    "Reshape",  "Flatten", "Range",  "ConstantOfShape"};
  return !shapes.contains(node.op);
}

}  // namespace

std::vector<Group> groups_of(const Graph& graph, const std::vector<bool>& refused) {
  std::map<std::string, size_t> producers;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const std::string& name : graph.nodes[n].outputs)
      if (!name.empty()) producers[name] = n;
  std::vector<size_t> depths(graph.nodes.size(), 0);
  std::map<size_t, Group> by_depth;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const auto* names : {&graph.nodes[n].inputs, &graph.nodes[n].outer})
      for (const std::string& name : *names)
        if (const auto found = producers.find(name); found != producers.end())
          depths[n] = std::max(
              depths[n], depths[found->second] + (!refused[n] && refused[found->second] ? 1 : 0));
    if (!refused[n]) by_depth[depths[n]].push_back(n);
  }
  std::vector<Group> groups;
  for (auto& [depth, group] : by_depth)
    if (std::any_of(group.begin(), group.end(), [&](size_t n) { return computes(graph.nodes[n]); }))
      groups.push_back(std::move(group));
  return groups;
}

}  // namespace obelisk::ort

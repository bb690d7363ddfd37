#include "passes/fold_pads.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// The window's attributes with those zeros as padding; nothing where it cannot have them.
std::optional<Attrs> padded_window(const Node& node, const std::vector<int64_t>& around) {
  const size_t rank = around.size() / 2, spatial = rank - 2;
  const std::string mode = node.attrs.get_string("auto_pad", "NOTSET");
  if (mode != "NOTSET" && mode != "VALID" && !mode.empty()) return std::nullopt;
  std::vector<int64_t> pads = node.attrs.get_ints("pads");
  if (pads.empty() || mode == "VALID") pads.assign(2 * spatial, 0);
  const bool has_own =
      std::any_of(pads.begin(), pads.end(), [](int64_t each) { return each != 0; });
  for (size_t axis = 0; axis < rank; ++axis)
    for (size_t side = 0; side < 2; ++side) {
      const int64_t zeros = around[axis + side * rank];
      if (zeros < 0 || (axis < 2 && zeros > 0)) return std::nullopt;
      if (axis < 2) continue;
      int64_t& own = pads[axis - 2 + side * spatial];
      if (own < 0) return std::nullopt;
      own += zeros;
    }
  Attrs attrs = node.attrs;
  if (node.op == Op::AveragePool) {
    const bool counts = node.attrs.get_int("count_include_pad", 0) != 0;
    if ((has_own && !counts) || node.attrs.get_int("ceil_mode", 0) != 0) return std::nullopt;
    attrs.set("count_include_pad", int64_t{1});
  }
  attrs.erase("auto_pad");
  attrs.set("pads", std::move(pads));
  return attrs;
}

}  // namespace

Result<Graph> fold_pads(Graph graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    Node node = graph.node(id);
    if (node.op != Op::Conv && node.op != Op::AveragePool) continue;
    const NodeId pad = graph.producer(node.inputs[0], Op::Pad);
    if (pad == kNone || graph.type(node.inputs[0]).shape.size() < 3 || node.outputs.size() != 1)
      continue;
    const std::vector<int64_t> around = zeros_around(graph, graph.node(pad));
    if (around.empty()) continue;
    std::optional<Attrs> attrs = padded_window(node, around);
    if (!attrs) continue;
    node.inputs[0] = graph.node(pad).inputs[0];
    const ValueId made = graph.must_add(node.op, node.inputs, std::move(*attrs), node.name);
    changed = replace_value(graph, node.outputs[0], made) || changed;
  }
  return changed ? tidy(std::move(graph)) : graph;
}

}  // namespace obelisk::passes

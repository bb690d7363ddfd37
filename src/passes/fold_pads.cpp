#include "passes/fold_pads.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// How many zeros are before each axis, [rank], then how many behind each, [rank]. Empty for other
/// pads.
std::vector<int64_t> zeros_around(const Graph& graph, const Node& node) {
  const auto rank = static_cast<int64_t>(graph.type(node.inputs[0]).shape.size());
  const Tensor* pads = constant_input(graph, node, 1);
  if (!pads || node.attrs.get_string("mode", "constant") != "constant") return {};
  const bool has_value = node.inputs.size() > 2 && node.inputs[2] != kNone;
  if (has_value && uniform_value(graph, node.inputs[2]).value_or(1) != 0) return {};
  std::vector<int64_t> axes;
  if (node.inputs.size() > 3 && node.inputs[3] != kNone) {
    const Tensor* given = constant_input(graph, node, 3);
    if (!given) return {};
    for (int64_t k = 0; k < given->count(); ++k)
      axes.push_back(given->get_int(k) + (given->get_int(k) < 0 ? rank : 0));
  } else {
    for (int64_t k = 0; k < rank; ++k) axes.push_back(k);
  }
  const auto count = static_cast<int64_t>(axes.size());
  std::vector<int64_t> around(static_cast<size_t>(2 * rank), 0);
  for (int64_t k = 0; k < count; ++k) {
    const auto axis = static_cast<size_t>(axes[static_cast<size_t>(k)]);
    around[axis] = pads->get_int(k);
    around[axis + static_cast<size_t>(rank)] = pads->get_int(k + count);
  }
  return around;
}

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

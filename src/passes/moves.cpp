#include "passes/moves.h"

#include <algorithm>
#include <numeric>

#include "passes/rewrite.h"

namespace obelisk::passes {

bool keeps_order(Op op) {
  return op == Op::Reshape || op == Op::Flatten || op == Op::Squeeze || op == Op::Unsqueeze;
}

std::vector<int64_t> order_of(const Graph& graph, NodeId transpose) {
  const Node& node = graph.node(transpose);
  std::vector<int64_t> reversed(graph.type(node.inputs[0]).shape.size());
  std::iota(reversed.rbegin(), reversed.rend(), int64_t{0});
  return node.attrs.get_ints("perm", reversed);
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> out(order.size());
  for (size_t k = 0; k < order.size(); ++k)
    out[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  return out;
}

ValueId reshaped(Graph& graph, ValueId value, const Shape& shape, const std::string& name) {
  for (;;) {
    if (graph.type(value).shape == shape) return value;
    const NodeId made_by = graph.value(value).producer;
    if (made_by == kNone || !keeps_order(graph.node(made_by).op)) break;
    value = graph.node(made_by).inputs[0];
  }
  const ValueId to = graph.add_constant(tensor_of(shape));
  return graph.must_add(Op::Reshape, {value, to}, ops::Attrs().set("allowzero", int64_t{1}), name);
}

ValueId transposed(Graph& graph, ValueId value, std::vector<int64_t> order,
                   const std::string& name) {
  for (;;) {
    if (std::is_sorted(order.begin(), order.end())) return value;
    const NodeId made_by = graph.producer(value, Op::Transpose);
    if (made_by == kNone) break;
    const std::vector<int64_t> first = order_of(graph, made_by);
    for (int64_t& axis : order) axis = first[static_cast<size_t>(axis)];
    value = graph.node(made_by).inputs[0];
  }
  return graph.must_add(Op::Transpose, {value}, ops::Attrs().set("perm", std::move(order)), name);
}

ValueId transposed(Graph& graph, ValueId value, const std::string& name) {
  Shape shape = graph.type(value).shape;
  const size_t rank = shape.size();
  const NodeId made_by = graph.value(value).producer;
  if (made_by != kNone && keeps_order(graph.node(made_by).op)) {
    const ValueId from = graph.node(made_by).inputs[0];
    const Shape& before = graph.type(from).shape;
    const bool keeps_last_two = before.size() >= 2 && before.back() == shape.back() &&
                                before[before.size() - 2] == shape[rank - 2];
    if (keeps_last_two && graph.producer(from, Op::Transpose) != kNone) {
      std::swap(shape[rank - 1], shape[rank - 2]);
      return reshaped(graph, transposed(graph, from, name), shape, name);
    }
  }
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::swap(order[rank - 1], order[rank - 2]);
  return transposed(graph, value, std::move(order), name);
}

namespace {

/// The factor where `value` is a product of one uniform constant and something of its own type.
Factored one_factor(const Graph& graph, ValueId value) {
  const NodeId id = graph.value(value).producer;
  if (id == kNone) return {};
  const Node& node = graph.node(id);
  if (node.op != Op::Mul && node.op != Op::Div) return {};
  for (size_t side : {1, 0}) {
    if (node.op == Op::Div && side == 0) break;
    const std::optional<double> factor = uniform_value(graph, node.inputs[side]);
    if (!factor || graph.type(node.inputs[1 - side]) != graph.type(value)) continue;
    if (node.op == Op::Div && *factor == 0) continue;
    return {node.inputs[1 - side], node.op == Op::Mul ? *factor : 1 / *factor};
  }
  return {};
}

}  // namespace

Factored without_factors(Graph& graph, ValueId value) {
  Factored all{value, 1};
  for (;;) {
    std::vector<NodeId> moves;
    ValueId at = all.rest;
    Factored one;
    while ((one = one_factor(graph, at)).rest == kNone) {
      const NodeId id = graph.value(at).producer;
      if (id == kNone) return all;
      const Op op = graph.node(id).op;
      if (!keeps_order(op) && op != Op::Transpose && op != Op::Expand) return all;
      moves.push_back(id);
      at = graph.node(id).inputs[0];
    }
    at = one.rest;
    for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
      const Node node = graph.node(*move);
      std::vector<ValueId> inputs = node.inputs;
      inputs[0] = at;
      at = graph.must_add(node.op, std::move(inputs), node.attrs, node.name);
    }
    all = {at, all.factor * one.factor};
  }
}

PartOfAxis part_of(const Graph& graph, ValueId value) {
  const NodeId id = graph.value(value).producer;
  if (id == kNone) return {};
  const Node& node = graph.node(id);
  const int64_t rank = graph.type(value).rank();
  const auto ints = [&](size_t input) -> std::vector<int64_t> {
    const Tensor* known = constant_input(graph, node, input);
    return known ? to_ints(*known) : std::vector<int64_t>{};
  };
  const auto is_last = [&](int64_t axis) { return axis == -1 || axis == rank - 1; };
  const int64_t length = rank > 0 ? graph.type(node.inputs[0]).shape.back() : 0;
  const int64_t own = rank > 0 ? graph.type(value).shape.back() : 0;
  if (node.op == Op::Split) {
    if (!is_last(node.attrs.get_int("axis", 0))) return {};
    int64_t begin = 0;
    for (ValueId output : node.outputs) {
      if (output == value) return {node.inputs[0], begin, begin + own};
      if (output == kNone) return {};
      begin += graph.type(output).shape.back();
    }
    return {};
  }
  if (node.op != Op::Slice) return {};
  const std::vector<int64_t> starts = ints(1), axes = ints(3), steps = ints(4);
  if (starts.size() != 1 || axes.size() != 1 || !is_last(axes[0])) return {};
  if (node.inputs.size() > 4 && steps != std::vector<int64_t>{1}) return {};
  const int64_t begin =
      std::clamp<int64_t>(starts[0] < 0 ? starts[0] + length : starts[0], 0, length);
  return {node.inputs[0], begin, begin + own};
}

}  // namespace obelisk::passes

#include "passes/raise_softmax.h"

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// The one axis over which `value` is this reduction of `of`, kept with length 1.
std::optional<int64_t> reduced_axis(const Graph& graph, ValueId value, Op op, ValueId of) {
  const NodeId id = graph.producer(value, op);
  if (id == kNone) return std::nullopt;
  const Node& node = graph.node(id);
  const Tensor* axes = constant_input(graph, node, 1);
  if (node.inputs[0] != of || !axes || axes->count() != 1) return std::nullopt;
  if (node.attrs.get_int("keepdims", 1) == 0) return std::nullopt;
  const int64_t axis = to_ints(*axes)[0];
  return axis < 0 ? axis + graph.type(of).rank() : axis;
}

/// The sum that divides `e` in e / sum or e * Reciprocal(sum), else kNone.
ValueId divisor(const Graph& graph, const Node& node, size_t side) {
  const ValueId by = node.inputs[1 - side];
  if (node.op == Op::Div) return side == 0 ? by : kNone;
  const NodeId id = graph.producer(by, Op::Reciprocal);
  return id == kNone ? kNone : graph.node(id).inputs[0];
}

/// The x and the axis where e / sum is a softmax.
struct Found {
  ValueId x;
  int64_t axis;
};

std::optional<Found> softmax(const Graph& graph, const Type& type, ValueId e, ValueId sum,
                             Reason& why) {
  const NodeId exp = graph.producer(e, Op::Exp);
  if (exp == kNone || sum == kNone || graph.type(e) != type) return std::nullopt;
  const NodeId reduced = graph.producer(sum, Op::ReduceSum);
  if (reduced == kNone || graph.node(reduced).inputs[0] != e) return std::nullopt;
  const auto no = [&](std::string_view reason) {
    why.no(std::string(reason));
    return std::nullopt;
  };
  const auto axis = reduced_axis(graph, sum, Op::ReduceSum, e);
  if (!axis) return no("its sum is not over one known axis that stays");
  const NodeId sub = graph.producer(graph.node(exp).inputs[0], Op::Sub);
  if (sub == kNone)
    return no("no maximum is subtracted: its exponentials overflow where the op's do not");
  const ValueId x = graph.node(sub).inputs[0];
  if (graph.type(x) != type) return no("what is subtracted has more axes");
  if (reduced_axis(graph, graph.node(sub).inputs[1], Op::ReduceMax, x) != axis)
    return no("what is subtracted is not the maximum over the axis of its sum");
  if (type.dtype != DType::f32 && type.dtype != DType::f64)
    return no(
        fmt::format("it computes in {}: the whole op would round less", to_string(type.dtype)));
  return Found{x, *axis};
}

void raise(Graph& graph, NodeId id, Remarks* remarks) {
  const Node node = graph.node(id);
  const Type type = graph.type(node.outputs[0]);
  Reason why;
  for (size_t side : {0, 1}) {
    const auto found = softmax(graph, type, node.inputs[side], divisor(graph, node, side), why);
    if (!found) continue;
    const Attrs attrs = Attrs().set("axis", found->axis);
    replace_value(graph, node.outputs[0],
                  graph.must_add(Op::Softmax, {found->x}, attrs, node.name));
    return;
  }
  why.tell(remarks, graph, id);
}

}  // namespace

Result<Graph> raise_softmax(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op == Op::Div || graph.node(id).op == Op::Mul) raise(graph, id, remarks);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

#include "passes/raise_layer_norm.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// The input of a ReduceMean over the last axes that keeps them, and the first of these axes.
struct Mean {
  ValueId of = kNone;
  int64_t axis = 0;
};

std::optional<Mean> mean(const Graph& graph, ValueId value) {
  const NodeId id = graph.producer(value, Op::ReduceMean);
  if (id == kNone) return std::nullopt;
  const Node& node = graph.node(id);
  const Tensor* last = constant_input(graph, node, 1);
  if (node.attrs.get_int("keepdims", 1) == 0 || !last) return std::nullopt;
  const int64_t rank = graph.type(node.inputs[0]).rank();
  std::vector<int64_t> axes = to_ints(*last);
  if (axes.empty()) return std::nullopt;
  for (int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  std::sort(axes.begin(), axes.end());
  for (size_t k = 0; k < axes.size(); ++k) {
    if (axes[k] != rank - static_cast<int64_t>(axes.size() - k)) return std::nullopt;
  }
  return Mean{node.inputs[0], axes[0]};
}

/// `of` / sqrt(mean(of * of) + epsilon)
struct Scaled {
  ValueId of = kNone;
  int64_t axis = 0;
  double epsilon = 0;
};

/// The s in 1 / s.
ValueId inverted(const Graph& graph, ValueId value) {
  if (const NodeId id = graph.producer(value, Op::Reciprocal); id != kNone) {
    return graph.node(id).inputs[0];
  }
  const NodeId id = graph.producer(value, Op::Div);
  if (id == kNone || uniform_value(graph, graph.node(id).inputs[0]) != 1.0) return kNone;
  return graph.node(id).inputs[1];
}

/// `under`: mean(of * of) + epsilon.
std::optional<Scaled> mean_square(const Graph& graph, ValueId under, ValueId of, Reason& why) {
  const NodeId add = graph.producer(under, Op::Add);
  if (add == kNone) {
    if (graph.producer(under, Op::ReduceMean) != kNone)
      why.no("nothing is added to the mean under the root: it has no epsilon");
    return std::nullopt;
  }
  for (size_t side : {0, 1}) {
    const ValueId middle = graph.node(add).inputs[side];
    if (graph.producer(middle, Op::ReduceMean) == kNone) continue;
    const NodeId square =
        graph.producer(graph.node(graph.producer(middle, Op::ReduceMean)).inputs[0], Op::Mul);
    if (square == kNone || graph.node(square).inputs != std::vector<ValueId>{of, of}) {
      why.no("the mean under the root is not of the square of what is divided");
      continue;
    }
    const std::optional<double> epsilon = uniform_value(graph, graph.node(add).inputs[1 - side]);
    const std::optional<Mean> squares = mean(graph, middle);
    if (!squares)
      why.no("its means are not over the last axes, known and kept", 2);
    else if (!epsilon)
      why.no("its epsilon is not one known number", 2);
    else if (graph.type(middle) != graph.type(under))
      why.no("its epsilon has more axes than the mean", 2);
    else
      return Scaled{of, squares->axis, *epsilon};
  }
  return std::nullopt;
}

std::optional<Scaled> scaled(const Graph& graph, const Node& node, Reason& why) {
  if (graph.value(node.inputs[0]).is_constant()) return std::nullopt;  // 1 / root
  for (size_t side : {0, 1}) {
    const ValueId of = node.inputs[side], by = node.inputs[1 - side];
    ValueId root = by;
    if (node.op == Op::Div && side == 1) break;
    if (node.op == Op::Mul) {
      if (const NodeId id = graph.producer(by, Op::Rsqrt); id != kNone) {
        if (const auto found = mean_square(graph, graph.node(id).inputs[0], of, why)) return found;
        continue;
      }
      root = inverted(graph, by);
    }
    const NodeId id = graph.producer(root, Op::Sqrt);
    if (id == kNone) continue;
    if (const auto found = mean_square(graph, graph.node(id).inputs[0], of, why)) return found;
  }
  return std::nullopt;
}

/// The x where `value` is x - mean(x) over the same axes.
ValueId centred(const Graph& graph, ValueId value, int64_t axis) {
  const NodeId id = graph.producer(value, Op::Sub);
  if (id == kNone) return kNone;
  const std::optional<Mean> middle = mean(graph, graph.node(id).inputs[1]);
  if (!middle || middle->axis != axis || middle->of != graph.node(id).inputs[0]) return kNone;
  return middle->of;
}

/// Where the only reader of `at` is this op with a parameter of the normalised shape: that
/// parameter, and `at` moves on to the result.
ValueId take_parameter(const Graph& graph, Op op, const Type& parameter, ValueId& at) {
  if (!has_one_reader(graph, at)) return kNone;
  const Node& reader = graph.node(graph.users(at)[0]);
  if (reader.op != op || reader.inputs[0] == reader.inputs[1]) return kNone;
  const ValueId other = reader.inputs[reader.inputs[0] == at ? 1 : 0];
  if (graph.type(other) != parameter) return kNone;
  at = reader.outputs[0];
  return other;
}

void raise(Graph& graph, NodeId id, Remarks* remarks) {
  const Node node = graph.node(id);
  const Type type = graph.type(node.outputs[0]);
  Reason why;
  std::optional<Scaled> found = scaled(graph, node, why);
  if (found && type.dtype != DType::f32 && type.dtype != DType::f64) {
    why.no(fmt::format("it computes in {}: the whole op would round less", to_string(type.dtype)),
           3);
    found.reset();
  }
  if (found && graph.type(found->of) != type) {
    why.no("the root has more axes than what it divides", 3);
    found.reset();
  }
  if (!found) return why.tell(remarks, graph, id);

  const Type parameter{type.dtype, Shape(type.shape.begin() + found->axis, type.shape.end())};
  const ValueId x = centred(graph, found->of, found->axis);
  ValueId last = node.outputs[0];
  ValueId scale = take_parameter(graph, Op::Mul, parameter, last);
  if (scale == kNone) {
    const std::vector<double> ones(static_cast<size_t>(parameter.count()), 1.0);
    scale = graph.add_constant(tensor_of(parameter.dtype, parameter.shape, ones));
  }
  ops::Attrs attrs;
  attrs.set("axis", found->axis).set("epsilon", found->epsilon);
  attrs.set("stash_type", ops::number_of_dtype(type.dtype));
  ValueId raised = kNone;
  if (x == kNone) {
    raised = graph.must_add(Op::RMSNormalization, {found->of, scale}, attrs, node.name);
  } else {
    std::vector<ValueId> inputs{x, scale};
    const ValueId bias = take_parameter(graph, Op::Add, parameter, last);
    if (bias != kNone) inputs.push_back(bias);
    raised = graph.must_add(Op::LayerNormalization, inputs, attrs, node.name);
  }
  replace_value(graph, last, raised);
}

}  // namespace

Result<Graph> raise_layer_norm(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op == Op::Div || graph.node(id).op == Op::Mul) raise(graph, id, remarks);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

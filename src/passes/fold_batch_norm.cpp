#include "passes/fold_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// y = x * scale + shift, channel by channel.
struct Affine {
  std::vector<double> scale, shift;  // [C]
};

/// One value a channel, from a constant that broadcasts to `out` (channels are axis 1) and varies
/// along channels only, without making the result larger.
std::optional<std::vector<double>> by_channel(const Tensor& tensor, const Shape& out) {
  const Shape& shape = tensor.shape();
  if (shape.size() > out.size() || tensor.count() == 0) return std::nullopt;
  const size_t missing = out.size() - shape.size();
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] != 1 && axis + missing != 1) return std::nullopt;
  }
  std::vector<double> values(static_cast<size_t>(out[1]));
  for (size_t c = 0; c < values.size(); ++c) {
    values[c] = tensor.get_double(tensor.count() == 1 ? 0 : static_cast<int64_t>(c));
  }
  return values;
}

std::optional<Affine> batch_norm(const Graph& graph, const Node& node) {
  const Tensor* parameters[4];
  for (size_t k = 0; k < 4; ++k) {
    parameters[k] = constant_input(graph, node, k + 1);
    if (parameters[k] == nullptr) return std::nullopt;
  }
  if (node.attrs.get_int("training_mode", 0) != 0 || node.outputs.size() != 1) return std::nullopt;
  const double epsilon = node.attrs.get_float("epsilon", 1e-5);
  Affine made;
  for (int64_t c = 0; c < parameters[0]->count(); ++c) {
    const double variance = parameters[3]->get_double(c);
    const double scale = parameters[0]->get_double(c) / std::sqrt(variance + epsilon);
    made.scale.push_back(scale);
    made.shift.push_back(parameters[1]->get_double(c) - parameters[2]->get_double(c) * scale);
  }
  return made;
}

/// How `id` changes `x`, one of its inputs.
std::optional<Affine> affine(const Graph& graph, NodeId id, ValueId x) {
  const Node& node = graph.node(id);
  if (node.op == Op::BatchNormalization) {
    return node.inputs[0] == x ? batch_norm(graph, node) : std::nullopt;
  }
  if (node.op != Op::Add && node.op != Op::Sub && node.op != Op::Mul && node.op != Op::Div) {
    return std::nullopt;
  }
  const size_t side = node.inputs[0] == x ? 1 : 0;
  const Tensor* tensor = constant_input(graph, node, side);
  if (tensor == nullptr) return std::nullopt;
  const auto values = by_channel(*tensor, graph.type(x).shape);
  if (!values) return std::nullopt;
  Affine made{std::vector<double>(values->size(), 1), std::vector<double>(values->size(), 0)};
  switch (node.op) {
    case Op::Add:
      made.shift = *values;
      break;
    case Op::Sub:
      made.shift = *values;
      if (side == 0) std::fill(made.scale.begin(), made.scale.end(), -1.0);
      if (side == 1)
        for (double& shift : made.shift) shift = -shift;
      break;
    case Op::Mul:
      made.scale = *values;
      break;
    default:  // Div
      if (side == 0) return std::nullopt;
      for (size_t c = 0; c < values->size(); ++c) made.scale[c] = 1 / (*values)[c];
  }
  return made;
}

bool all_finite(const Affine& affine) {
  const auto finite = [](double value) { return std::isfinite(value); };
  return std::all_of(affine.scale.begin(), affine.scale.end(), finite) &&
         std::all_of(affine.shift.begin(), affine.shift.end(), finite);
}

/// The channel of element `index` of the weights; `inner` is the length of their rows.
int64_t channel_of(const Node& node, const Shape& weights, int64_t inner, int64_t index) {
  const int64_t row = index / inner;
  if (node.op == Op::Conv) return row;  // [M, C / groups, k...]
  if (node.op == Op::Gemm) {            // [K, N], or [N, K]
    return node.attrs.get_int("transB", 0) != 0 ? row : index % inner;
  }
  const int64_t groups = node.attrs.get_int("group", 1);  // ConvTranspose: [C, M / groups, k...]
  const int64_t in_group = weights[0] / groups;
  const int64_t column = index % inner / (inner / weights[1]);
  return row / in_group * weights[1] + column;
}

Tensor scaled_weights(const Node& node, const Tensor& weights, const Affine& by) {
  Tensor made = Tensor::allocate(weights.type());
  const int64_t inner = weights.count() / weights.shape()[0];
  for (int64_t k = 0; k < weights.count(); ++k) {
    const auto channel = static_cast<size_t>(channel_of(node, weights.shape(), inner, k));
    made.set_double(k, weights.get_double(k) * by.scale[channel]);
  }
  return made;
}

/// Whether a node is a product with weights [.., N] or [N, ..] whose channels are axis 1 of its
/// answer.
bool is_product(const Graph& graph, const Node& node) {
  if (node.op == Op::MatMul) {  // two matrices: a Gemm that has no bias yet
    return graph.type(node.inputs[0]).rank() == 2 && graph.type(node.inputs[1]).rank() == 2;
  }
  return node.op == Op::Conv || node.op == Op::ConvTranspose || node.op == Op::Gemm;
}

/// Whether `id` does something to x channel by channel, or might.
bool follows(const Graph& graph, NodeId id, ValueId x) {
  const Node& node = graph.node(id);
  if (node.op == Op::BatchNormalization) return node.inputs[0] == x;
  const bool maps =
      node.op == Op::Add || node.op == Op::Sub || node.op == Op::Mul || node.op == Op::Div;
  return maps && constant_input(graph, node, node.inputs[0] == x ? 1 : 0) != nullptr;
}

/// The product with the affine map inside, or kNone.
ValueId fold(Graph& graph, NodeId follower, ValueId x, Reason& why) {
  const auto no = [&](std::string_view reason, int near) {
    if (follows(graph, follower, x)) why.no(std::string(reason), near);
    return kNone;
  };
  const NodeId producer = graph.value(x).producer;
  if (producer == kNone || !is_product(graph, graph.node(producer))) {
    const bool norm = graph.node(follower).op == Op::BatchNormalization;
    return norm ? no("no product stands before it", 1) : kNone;
  }
  const Type type = graph.type(x);
  if (type.rank() < 2) return no("the product before it has no channels", 2);
  if (type.dtype != DType::f32 && type.dtype != DType::f64)
    return no(fmt::format("weights in {} would be rounded again", to_string(type.dtype)), 2);
  if (!has_one_reader(graph, x)) return no("the product before it has another reader", 2);
  if (graph.type(graph.node(follower).outputs[0]) != type)
    return no("it has more axes than the product before it", 2);
  Node node = graph.node(producer);
  if (node.op == Op::MatMul) node.op = Op::Gemm;
  const Tensor* weights = constant_input(graph, node, 1);
  const bool has_bias = node.inputs.size() > 2 && node.inputs[2] != kNone;
  const Tensor* bias = constant_input(graph, node, 2);
  if (weights == nullptr || weights->count() == 0 || (has_bias && bias == nullptr))
    return no("the weights or the bias of the product before it are no constants", 2);
  const std::optional<Affine> by = affine(graph, follower, x);
  if (!by) return no("its parameters are not known, or not one number a channel", 2);
  if (!all_finite(*by)) return no("its parameters are not finite", 2);

  std::vector<double> old(static_cast<size_t>(type.shape[1]), 0.0);
  if (has_bias) {
    const Shape flat{1, type.shape[1]};  // a product's bias is [C], or for Gemm what broadcasts so
    const auto values = node.op == Op::Gemm ? by_channel(*bias, flat)
                                            : by_channel(bias->reshaped({1, bias->count()}), flat);
    if (!values) return no("the bias of the product before it is not one number a channel", 2);
    old = *values;
  }
  ops::Attrs attrs = node.attrs;
  if (node.op == Op::Gemm) {
    const double beta = attrs.get_float("beta", 1.0);
    for (double& value : old) value *= beta;
    attrs.erase("beta");
  }
  for (size_t c = 0; c < old.size(); ++c) old[c] = old[c] * by->scale[c] + by->shift[c];
  const bool scales =
      std::any_of(by->scale.begin(), by->scale.end(), [](double s) { return s != 1; });
  const ValueId new_weights =
      scales ? graph.add_constant(scaled_weights(node, *weights, *by),
                                  std::string(graph.value(node.inputs[1]).name))
             : node.inputs[1];
  const ValueId new_bias = graph.add_constant(tensor_of(type.dtype, {type.shape[1]}, old));
  return graph.must_add(node.op, {node.inputs[0], new_weights, new_bias}, std::move(attrs),
                        node.name);
}

}  // namespace

Result<Graph> fold_batch_norm(Graph graph, Remarks* remarks) {
  std::map<NodeId, Reason> left;
  for (bool changed = true; changed;) {  // a chain folds one link a round
    changed = false;
    left.clear();
    const std::vector<NodeId> order = graph.order();
    for (NodeId id : order) {
      const Node node = graph.node(id);
      if (node.outputs.empty() ||
          (graph.users(node.outputs[0]).empty() && !graph.is_output(node.outputs[0])))
        continue;  // replaced before
      for (size_t k = 0; k < std::min<size_t>(node.inputs.size(), 2); ++k) {
        if (node.inputs[k] == kNone) continue;
        const ValueId folded = fold(graph, id, node.inputs[k], left[id]);
        if (folded == kNone) continue;
        changed = replace_value(graph, node.outputs[0], folded);
        left.erase(id);
        break;
      }
    }
    graph.sort();
    graph.remove_dead();
  }
  for (const auto& [id, why] : left) why.tell(remarks, graph, id);
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

#include "passes/rewrite.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace obelisk::passes {

bool replace_value(Graph& graph, ValueId from, ValueId to) {
  if (graph.is_output(from)) {
    if (graph.value(to).producer == kNone || graph.is_output(to)) return false;
  }
  if (graph.value(to).name.empty()) graph.value(to).name = graph.value(from).name;
  graph.replace_uses(from, to);
  return true;
}

const Tensor* constant(const Graph& graph, ValueId id) {
  return id != kNone && graph.value(id).is_constant() ? &graph.value(id).constant : nullptr;
}

const Tensor* constant_input(const Graph& graph, const Node& node, size_t input) {
  return input < node.inputs.size() ? constant(graph, node.inputs[input]) : nullptr;
}

ValueId scalar(Graph& graph, DType dtype, double value) {
  return graph.add_constant(tensor_of(dtype, {}, {value}));
}

std::optional<double> uniform_value(const Graph& graph, ValueId id) {
  const Tensor* known = constant(graph, id);
  if (!known || known->count() == 0) return std::nullopt;
  const Tensor& tensor = *known;
  const double first = tensor.get_double(0);
  if (first != first) return std::nullopt;
  for (int64_t k = 1; k < tensor.count(); ++k) {
    if (std::bit_cast<uint64_t>(tensor.get_double(k)) != std::bit_cast<uint64_t>(first)) {
      return std::nullopt;
    }
  }
  return first;
}

namespace {

/// Elements [from, to) of a constant's axis.
Tensor cut(const Tensor& whole, size_t axis, int64_t from, int64_t to) {
  Shape shape = whole.shape();
  const int64_t extent = shape[axis];
  const Shape inside(shape.begin() + static_cast<int64_t>(axis) + 1, shape.end());
  const int64_t inner = byte_size(whole.dtype(), element_count(inside));
  shape[axis] = to - from;
  Tensor out = Tensor::allocate({whole.dtype(), shape});
  const auto* source = static_cast<const std::byte*>(whole.data());
  auto* target = static_cast<std::byte*>(out.mutable_data());
  const auto bytes = static_cast<size_t>((to - from) * inner);
  for (int64_t k = 0; k * extent * inner < whole.bytes(); ++k)
    std::memcpy(target + k * bytes, source + (k * extent + from) * inner, bytes);
  return out;
}

}  // namespace

ValueId part_of_operand(Graph& graph, ValueId operand, int64_t from_end, int64_t from, int64_t to) {
  const Tensor& all = graph.value(operand).constant;
  const int64_t axis = static_cast<int64_t>(all.shape().size()) - from_end;
  if (axis < 0 || all.shape()[static_cast<size_t>(axis)] == 1) return operand;
  return graph.add_constant(cut(all, static_cast<size_t>(axis), from, to));
}

std::vector<int64_t> pads_by_axis(const Graph& graph, const Node& pad) {
  const auto rank = static_cast<int64_t>(graph.type(pad.inputs[0]).shape.size());
  const Tensor *pads = constant_input(graph, pad, 1), *given = constant_input(graph, pad, 3);
  const bool has_axes = pad.inputs.size() > 3 && pad.inputs[3] != kNone;
  if (!pads || (has_axes && !given)) return {};
  const int64_t count = has_axes ? given->count() : rank;
  std::vector<int64_t> by_axis(static_cast<size_t>(2 * rank), 0);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t named = has_axes ? given->get_int(k) : k;
    const auto axis = static_cast<size_t>(named < 0 ? named + rank : named);
    by_axis[axis] = pads->get_int(k);
    by_axis[axis + static_cast<size_t>(rank)] = pads->get_int(k + count);
  }
  return by_axis;
}

std::vector<int64_t> zeros_around(const Graph& graph, const Node& pad) {
  if (pad.attrs.get_string("mode", "constant") != "constant") return {};
  const bool has_value = pad.inputs.size() > 2 && pad.inputs[2] != kNone;
  if (has_value && uniform_value(graph, pad.inputs[2]).value_or(1) != 0) return {};
  return pads_by_axis(graph, pad);
}

bool is_elementwise(const Node& node) {
  if (ops::row(node.op).kind != ops::Kind::kMap || node.outputs.size() != 1) return false;
  switch (node.op) {
    case Op::Range:
    case Op::Resize:
    case Op::GridSample:
    case Op::AffineGrid:
    case Op::LRN:
    case Op::HannWindow:
    case Op::HammingWindow:
    case Op::BlackmanWindow:
    case Op::Dropout:
    case Op::RotaryEmbedding:
    case Op::CastLike:
    case Op::QuantizeLinear:
    case Op::DequantizeLinear:
      return false;
    default:
      return true;
  }
}

bool is_product(Op op) {
  return op == Op::Conv || op == Op::MatMul || op == Op::Gemm || op == Op::ConvTranspose;
}

NodeId product_behind(const Graph& graph, ValueId value) {
  constexpr size_t kMost = 32;  // values that are looked at
  const Shape& shape = graph.type(value).shape;
  std::vector<ValueId> seen{value};
  for (size_t k = 0; k < seen.size() && k < kMost; ++k) {
    const NodeId id = graph.value(seen[k]).producer;
    if (id == kNone) continue;
    const Node& node = graph.node(id);
    if (is_product(node.op)) return id;
    if (!is_elementwise(node)) continue;
    for (ValueId v : node.inputs)
      if (v != kNone && graph.type(v).shape == shape &&
          std::find(seen.begin(), seen.end(), v) == seen.end())
        seen.push_back(v);
  }
  return kNone;
}

std::vector<int> stages_of(const Graph& graph) {
  std::vector<int> out(static_cast<size_t>(graph.value_count()), 0);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const ops::Kind kind = ops::row(node.op).kind;
    int before = 0;
    for (ValueId v : node.inputs)
      if (v != kNone) before = std::max(before, out[static_cast<size_t>(v)]);
    const int own = kind == ops::Kind::kMap || kind == ops::Kind::kMove ? 0 : 1;
    for (ValueId v : node.outputs)
      if (v != kNone) out[static_cast<size_t>(v)] = before + own;
  }
  return out;
}

bool has_one_reader(const Graph& graph, ValueId id) {
  return graph.users(id).size() == 1 && !graph.is_output(id);
}

Graph tidy(Graph graph, Remarks* remarks) {
  graph.sort();
  graph.remove_dead();
  if (remarks) remarks->keep_those_of(graph);
  return graph.compacted();
}

}  // namespace obelisk::passes

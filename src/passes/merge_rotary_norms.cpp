#include "passes/merge_rotary_norms.h"

#include <limits>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 17;  // of a table; chosen, not measured

/// Whether a cast loses nothing of a constant, or is loose: rounding is for storage only.
bool keeps_numbers(const Graph& graph, const Node& cast) {
  const DType from = graph.type(cast.inputs[0]).dtype, to = graph.type(cast.outputs[0]).dtype;
  const bool wide = to == DType::f32 || to == DType::f64;
  return is_half(from) ? wide : from == DType::f32 && (wide || cast.attrs.get_int("loose", 0) != 0);
}

/// The numbers of a constant, perhaps behind casts and reshapes; none: it is no constant.
std::vector<float> numbers_of(const Graph& graph, ValueId value) {
  while (!graph.value(value).is_constant()) {
    const NodeId id = graph.value(value).producer;
    if (id == kNone) return {};
    const Node& node = graph.node(id);
    if (node.op == Op::Cast ? !keeps_numbers(graph, node) : !keeps_order(node.op)) return {};
    value = graph.node(id).inputs[0];
  }
  const Tensor& tensor = graph.value(value).constant;
  std::vector<float> out;
  for (int64_t k = 0; k < tensor.count(); ++k)
    out.push_back(static_cast<float>(tensor.get_double(k)));
  return out;
}

/// What a cast reads that nothing else does, else the value itself.
ValueId behind_cast(const Graph& graph, ValueId value) {
  const NodeId cast = graph.producer(value, Op::Cast);
  return cast != kNone && has_one_reader(graph, value) ? graph.node(cast).inputs[0] : value;
}

/// x * r * g, where nothing else reads the products.
struct ScaledRows {
  ValueId x = kNone, r = kNone;
  std::vector<float> g;
};
std::optional<ScaledRows> scaled_rows(const Graph& graph, ValueId value) {
  value = behind_cast(graph, value);
  const Shape shape = graph.type(value).shape;
  if (!has_one_reader(graph, value)) return std::nullopt;
  ScaledRows out;
  for (const bool by_scale : {true, false}) {
    const NodeId id = graph.producer(value, Op::Mul);
    if (id == kNone || !has_one_reader(graph, value)) return std::nullopt;
    ValueId rows = kNone, other = kNone;
    for (ValueId v : graph.node(id).inputs) (graph.type(v).shape == shape ? rows : other) = v;
    if (rows == kNone || other == kNone) return std::nullopt;
    value = rows;
    if (by_scale) {
      out.g = numbers_of(graph, other);
      if (graph.type(other).shape != Shape{shape.back()} || out.g.empty()) return std::nullopt;
    } else {
      Shape of_rows = shape;
      of_rows.back() = 1;
      if (graph.type(other).shape != of_rows) return std::nullopt;
      out.x = rows, out.r = other;
    }
  }
  return out;
}

void merge(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const ValueId y = node.outputs[0];
  const Shape shape = graph.type(y).shape;
  const bool has_positions = node.inputs.size() > 3 && node.inputs[3] != kNone;
  if (node.op != Op::RotaryEmbedding || has_positions || shape.size() != 4 ||
      graph.type(y).count() == 0 || shape[2] * shape[3] > kMostElements ||
      bits(graph.type(y).dtype) > 32 || node.attrs.get_int("interleaved", 0) != 0 ||
      (node.attrs.get_int("rotary_embedding_dim", 0) % shape[3]) != 0)
    return;
  const auto rows = scaled_rows(graph, node.inputs[0]);
  if (!rows || graph.type(rows->x).dtype != DType::f32) return;
  const std::vector<float> cosines = numbers_of(graph, node.inputs[1]),
                           sines = numbers_of(graph, node.inputs[2]);
  const int64_t length = shape[2], size = shape[3], half = size / 2;
  if (shape[0] != 1 || cosines.empty() || sines.empty()) return;
  const Type table{DType::f32, {length, size}};
  Tensor a = Tensor::allocate(table), b = Tensor::allocate(table);
  for (int64_t token = 0; token < length; ++token)
    for (int64_t k = 0; k < half; ++k) {
      const auto angle = static_cast<size_t>(token * half + k);
      const auto low = static_cast<size_t>(k), high = static_cast<size_t>(k + half);
      float* own = a.as_mutable<float>() + token * size;
      float* other = b.as_mutable<float>() + token * size;
      own[k] = cosines[angle] * rows->g[low], own[k + half] = cosines[angle] * rows->g[high];
      other[k] = -sines[angle] * rows->g[high], other[k + half] = sines[angle] * rows->g[low];
    }
  const auto op = [&](Op what, ValueId left, ValueId right) {
    return graph.must_add(what, {left, right}, {}, node.name);
  };
  const auto number = [&](int64_t one) { return graph.add_constant(tensor_of({one})); };
  // The halves change places: a slice from the second to the first.
  const NodeId widened = graph.producer(rows->x, Op::Cast);
  const ValueId x = widened == kNone ? rows->x : graph.node(widened).inputs[0];
  ValueId swapped = reshaped(graph, x, {shape[0], shape[1], length, 2, half}, node.name);
  swapped = graph.must_add(
      Op::Slice,
      {swapped, number(1), number(std::numeric_limits<int64_t>::min()), number(3), number(-1)}, {},
      node.name);
  swapped = reshaped(graph, swapped, shape, node.name);
  if (widened != kNone)
    swapped = graph.must_add(Op::Cast, {swapped}, graph.node(widened).attrs, node.name);
  const ValueId own = op(Op::Mul, rows->x, graph.add_constant(std::move(a)));
  const ValueId other = op(Op::Mul, swapped, graph.add_constant(std::move(b)));
  ValueId turned = op(Op::Mul, op(Op::Add, own, other), rows->r);
  if (const DType to = graph.type(y).dtype; to != DType::f32)
    turned = graph.must_add(Op::Cast, {turned},
                            Attrs().set("to", ops::number_of_dtype(to)).set("loose", int64_t{1}),
                            node.name);
  replace_value(graph, y, turned);
}

}  // namespace

Result<Graph> merge_rotary_norms(Graph graph) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) merge(graph, id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

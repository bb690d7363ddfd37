#include "passes/split_products.h"

#include "machine/machine.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;
using ops::Kind;
using ops::Op;

/// Whether a reduction reads `value`, perhaps through elementwise ops that alone read what comes
/// before them: a body that walks over the value anyway.
bool meets_reduction(const Graph& graph, ValueId value) {
  constexpr int kMost = 6;
  for (int step = 0; step < kMost; ++step) {
    const Shape& shape = graph.type(value).shape;
    NodeId next = kNone;
    for (NodeId id : graph.users(value)) {
      const Kind kind = ops::row(graph.node(id).op).kind;
      if (kind == Kind::kReduce) return true;
      const bool maps = kind == Kind::kMap && graph.type(graph.node(id).outputs[0]).shape == shape;
      if (maps && (next == kNone || graph.node(id).op == Op::Cast)) next = id;
    }
    // A residual sum is stored for others too; its norm reads it through a cast.
    const bool alone = has_one_reader(graph, value);
    if (next == kNone || (!alone && graph.node(next).op != Op::Cast)) return false;
    value = graph.node(next).outputs[0];
  }
  return false;
}

ValueId cast(Graph& graph, ValueId value, DType to, const std::string& name) {
  ops::Attrs attrs = ops::Attrs().set("to", ops::number_of_dtype(to));
  if (bits(to) < bits(graph.type(value).dtype)) attrs.set("loose", int64_t{1});
  return graph.must_add(Op::Cast, {value}, std::move(attrs), name);
}

ValueId numbers(Graph& graph, const std::vector<int64_t>& values) {
  return graph.add_constant(tensor_of(values));
}

ValueId reshaped(Graph& graph, ValueId value, const Shape& shape, const std::string& name) {
  return graph.must_add(Op::Reshape, {value, numbers(graph, {shape.begin(), shape.end()})}, {},
                        name);
}

/// A matrix [depth, columns] as [parts, depth / parts, columns]; of a constant the same bytes.
ValueId weights_of(Graph& graph, ValueId matrix, const Shape& shape, const std::string& name) {
  if (!graph.value(matrix).is_constant()) return reshaped(graph, matrix, shape, name);
  return graph.add_constant(graph.value(matrix).constant.reshaped(shape));
}

bool is_weight(const Graph& graph, ValueId value) {
  if (graph.value(value).is_constant()) return true;
  const NodeId transposed = graph.producer(value, Op::Transpose);
  return transposed != kNone && graph.value(graph.node(transposed).inputs[0]).is_constant();
}

}  // namespace

Result<Graph> split_products(Graph graph, const SplitK& parts, const StaysWhole& whole,
                             bool any_batch) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op != Op::MatMul) continue;
    const ValueId a = graph.node(id).inputs[0], b = graph.node(id).inputs[1],
                  y = graph.node(id).outputs[0];
    const Type type = graph.type(a);
    if (!is_half(type.dtype) || graph.type(b).dtype != type.dtype || graph.type(b).rank() != 2 ||
        type.rank() < 2)
      continue;
    const int64_t depth = type.shape.back(), columns = graph.type(b).shape[1];
    if (type.count() == 0 || columns == 0 || !is_weight(graph, b) || !meets_reduction(graph, y))
      continue;
    const int64_t count = parts(type.dtype, type.count() / depth, columns, depth);
    if (count < 2 || depth % count != 0) continue;
    const std::string name = graph.node(id).name;
    const int64_t rows = type.count() / depth, part = depth / count;
    if (!any_batch &&
        (rows > machine::thresholds::kManyRows || (whole && whole(rows, columns, count)))) {
      const ValueId wide_a = cast(graph, a, DType::f32, name);
      const ValueId wide_b = cast(graph, b, DType::f32, name);
      const ValueId product =
          graph.must_add(Op::MatMul, {wide_a, wide_b}, ops::Attrs().set("parts", count), name);
      replace_value(graph, y, cast(graph, product, graph.type(y).dtype, name));
      continue;
    }
    const ValueId by_parts =
        graph.must_add(Op::Transpose, {reshaped(graph, a, {rows, count, part}, name)},
                       ops::Attrs().set("perm", std::vector<int64_t>{1, 0, 2}), name);
    const ValueId weights = weights_of(graph, b, {count, part, columns}, name);
    const ValueId products = graph.must_add(
        Op::MatMul,
        {cast(graph, by_parts, DType::f32, name), cast(graph, weights, DType::f32, name)}, {},
        name);
    std::vector<ValueId> sums;
    for (int64_t k = 0; k < count; ++k)
      sums.push_back(graph.must_add(
          Op::Slice, {products, numbers(graph, {k}), numbers(graph, {k + 1}), numbers(graph, {0})},
          {}, name));
    const ValueId sum = reshaped(graph, graph.must_add(Op::Sum, std::move(sums), {}, name),
                                 graph.type(y).shape, name);
    replace_value(graph, y, cast(graph, sum, graph.type(y).dtype, name));
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

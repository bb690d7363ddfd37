#include "passes/unflatten_gemm.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "passes/beside.h"
#include "passes/moves.h"

namespace obelisk::passes {
namespace {

/// A matrix [columns, depth] as [depth, columns].
Tensor transposed(const Tensor& from) {
  constexpr int64_t kBlock = 64;  // lines of both matrices stay near
  const int64_t columns = from.shape()[0], depth = from.shape()[1];
  Tensor out = Tensor::allocate({from.dtype(), {depth, columns}});
  const auto width = static_cast<size_t>(byte_size(from.dtype(), 1));
  const auto* source = from.as<char>();
  auto* target = out.as_mutable<char>();
  for_each_on_all_cores(static_cast<size_t>((depth + kBlock - 1) / kBlock), [&](size_t block) {
    const int64_t first = static_cast<int64_t>(block) * kBlock,
                  last = std::min(first + kBlock, depth);
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock)
      for (int64_t k = first; k < last; ++k)
        for (int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
          std::memcpy(target + static_cast<size_t>(k * columns + c) * width,
                      source + static_cast<size_t>(c * depth + k) * width, width);
  });
  return out;
}

bool is_of_columns(const Graph& graph, ValueId bias) {
  if (bias == kNone) return true;
  const Shape& shape = graph.type(bias).shape;
  return shape.empty() || element_count(shape) == shape.back();
}

/// What a Gemm's rows are flattened from, or they themselves. Rows that a transpose or slice has
/// put there stay flat: a tile reads rows of many small matrices worse.
ValueId rows_of(const Graph& graph, ValueId a) {
  const auto keeps_rows = [&](ValueId whole) {
    const Shape& shape = graph.type(whole).shape;
    return shape.size() >= 2 && shape.back() > 0 && shape.back() == graph.type(a).shape.back();
  };
  ValueId whole = a, rows = a;
  for (NodeId n; (n = graph.producer(whole, Op::Reshape)) != kNone;) {
    whole = graph.node(n).inputs[0];
    if (keeps_rows(whole)) rows = whole;
  }
  const NodeId maker = graph.value(whole).producer;
  const bool moved = maker != kNone && !keeps_order(graph.node(maker).op) &&
                     ops::row(graph.node(maker).op).kind == ops::Kind::kMove;
  return moved ? a : rows;
}

void rewrite(Graph& graph, const Product& product) {
  const Node node = graph.node(product.node);
  const ValueId a = node.inputs[0],
                rows = is_of_columns(graph, product.bias) ? rows_of(graph, a) : a;
  const Shape flat = graph.type(product.answer).shape;
  const ValueId weights =
      product.transposed ? graph.add_constant(transposed(graph.value(product.weights).constant))
                         : product.weights;
  ValueId y = graph.must_add(Op::MatMul, {rows, weights}, {}, node.name);
  if (product.bias != kNone) y = graph.must_add(Op::Add, {y, product.bias}, {}, node.name);
  const Shape shape = graph.type(y).shape;
  if (shape != flat) {
    for (NodeId user : std::vector<NodeId>(graph.users(product.answer))) {
      const Node& reader = graph.node(user);
      if (reader.op == Op::Reshape && reader.inputs[0] == product.answer &&
          graph.type(reader.outputs[0]).shape == shape)
        replace_value(graph, reader.outputs[0], y);
    }
    y = graph.must_add(Op::Reshape, {y, graph.add_constant(tensor_of(flat))}, {}, node.name);
  }
  replace_value(graph, product.answer, y);
}

}  // namespace

Result<Graph> unflatten_gemm(Graph graph) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op != Op::Gemm) continue;
    Reason ignored;
    if (const auto product = constant_product(graph, id, ignored)) rewrite(graph, *product);
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

#include "passes/split_batches.h"

#include <cstring>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

using graph::kNone;

struct Range {
  int64_t from = 0, to = 0;
};

Tensor rows_of(const Tensor& whole, Range range) {
  Shape shape = whole.shape();
  const int64_t each = whole.bytes() / shape[0];
  shape[0] = range.to - range.from;
  Tensor part = Tensor::allocate({whole.dtype(), std::move(shape)});
  std::memcpy(part.mutable_data(), static_cast<const std::byte*>(whole.data()) + range.from * each,
              static_cast<size_t>(part.bytes()));
  return part;
}

/// What a cast from 16 bits to f32 widens, which a tile reads as it is; else the value itself.
ValueId before_widening(const Graph& graph, ValueId value) {
  const NodeId cast = graph.producer(value, Op::Cast);
  if (cast == kNone || graph.type(value).dtype != DType::f32 ||
      !is_half(graph.type(graph.node(cast).inputs[0]).dtype))
    return value;
  return graph.node(cast).inputs[0];
}

/// Rows `range` of the first axis; of a constant their bytes.
ValueId rows_of(Graph& graph, ValueId value, Range range, const std::string& name) {
  if (const Tensor* whole = constant(graph, value))
    return graph.add_constant(rows_of(*whole, range));
  if (const ValueId source = before_widening(graph, value); source != value) {
    const Node cast = graph.node(graph.value(value).producer);
    return graph.must_add(Op::Cast, {rows_of(graph, source, range, name)}, cast.attrs, name);
  }
  const auto number = [&](int64_t one) { return graph.add_constant(tensor_of({one})); };
  const ValueId from = number(range.from), to = number(range.to), axis = number(0);
  return graph.must_add(Op::Slice, {value, from, to, axis}, {}, name);
}

/// The batch that this node multiplies, if it is one of matrices of one size on both sides.
std::optional<BatchOfProducts> batch_of(const Graph& graph, const Node& node) {
  if (node.op != Op::MatMul) return std::nullopt;
  const ValueId left = before_widening(graph, node.inputs[0]),
                right = before_widening(graph, node.inputs[1]);
  const Type &a = graph.type(left), &b = graph.type(right);
  if (a.rank() != 3 || b.rank() != 3 || a.dtype != b.dtype || a.shape[0] != b.shape[0] ||
      a.count() == 0 || b.count() == 0 || constant(graph, left))
    return std::nullopt;
  return BatchOfProducts{.type = a.dtype,
                         .constant = constant(graph, right) != nullptr,
                         .count = a.shape[0],
                         .rows = a.shape[1],
                         .columns = b.shape[2],
                         .depth = a.shape[2]};
}

/// The elementwise op of this shape that alone reads `value`; kNone.
NodeId map_behind(const Graph& graph, ValueId value) {
  if (!has_one_reader(graph, value)) return kNone;
  const NodeId id = graph.users(value)[0];
  const Node& node = graph.node(id);
  const bool alike = is_elementwise(node) && node.outputs.size() == 1 &&
                     graph.type(node.outputs[0]).shape == graph.type(value).shape;
  return alike ? id : kNone;
}

/// The same node of a part: operands with the batch's axis are cut.
ValueId of_part(Graph& graph, const Node& node, Range range, ValueId before, ValueId instead) {
  const int64_t count = graph.type(node.outputs[0]).shape[0];
  std::vector<ValueId> inputs = node.inputs;
  for (ValueId& input : inputs) {
    if (input == before) {
      input = instead;
    } else if (input != kNone && graph.type(input).rank() == 3 &&
               graph.type(input).shape[0] == count) {
      input = rows_of(graph, input, range, node.name);
    }
  }
  return graph.must_add(node.op, std::move(inputs), node.attrs, node.name);
}

}  // namespace

Result<Graph> split_batches(Graph graph, const FirstOfBatch& first) {
  const std::vector<NodeId> order = graph.order();  // nodes are added meanwhile
  for (const NodeId id : order) {
    const auto batch = batch_of(graph, graph.node(id));
    if (!batch || batch->count < 2) continue;
    const int64_t full = first(*batch);
    if (full <= 0 || full >= batch->count) continue;
    std::vector<NodeId> chain = {id};
    const auto end = [&] { return graph.node(chain.back()).outputs[0]; };
    for (NodeId next = map_behind(graph, end()); next != kNone; next = map_behind(graph, end()))
      chain.push_back(next);
    std::vector<ValueId> parts;
    for (const Range range : {Range{0, full}, Range{full, batch->count}}) {
      ValueId before = kNone, instead = kNone;
      for (const NodeId each : chain) {
        const Node node = graph.node(each);
        instead = of_part(graph, node, range, before, instead);
        before = node.outputs[0];
      }
      parts.push_back(instead);
    }
    const std::string name = graph.node(chain.back()).name;
    const ValueId whole =
        graph.must_add(Op::Concat, std::move(parts), Attrs().set("axis", int64_t{0}), name);
    replace_value(graph, end(), whole);
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

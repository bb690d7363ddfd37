#include "passes/hoist_halves.h"

#include <algorithm>
#include <array>

#include "passes/beside.h"
#include "passes/moves.h"

namespace obelisk::passes {
namespace {

constexpr size_t kLongestChain = 8;  // of elementwise ops

/// A product whose columns are cut into halves, and the elementwise ops between.
struct Cut {
  ValueId product = kNone;
  std::vector<NodeId> chain;  // first op first
  std::array<ValueId, 2> halves = {kNone, kNone};
  bool is_split = false;  // one node gives both halves
};

/// The halves of `value`, where nothing else reads it.
bool read_halves(const Graph& graph, ValueId value, Cut& cut) {
  if (graph.is_output(value) || graph.type(value).rank() == 0) return false;
  std::vector<ValueId> parts;
  const std::vector<NodeId> users = graph.users(value);
  for (NodeId user : users) {
    const Node& node = graph.node(user);
    if (node.op != Op::Split && node.op != Op::Slice) return false;
    parts.insert(parts.end(), node.outputs.begin(), node.outputs.end());
  }
  if (parts.size() != 2) return false;
  const int64_t columns = graph.type(value).shape.back(), half = columns / 2;
  if (columns % 2 != 0 || half < kFewestHalfColumns) return false;
  for (ValueId v : parts) {
    if (v == kNone || graph.is_output(v)) return false;
    const PartOfAxis part = part_of(graph, v);
    if (part.of != value || part.end - part.begin != half || part.begin % half != 0) return false;
    cut.halves[part.begin > 0] = v;
  }
  cut.is_split = users.size() == 1;
  return cut.halves[0] != kNone && cut.halves[1] != kNone;
}

/// The one operand of an elementwise op that is no constant, as large as what the op gives; kNone.
ValueId only_operand(const Graph& graph, const Node& node) {
  if (!is_elementwise(node) || node.outputs.size() != 1) return kNone;
  ValueId found = kNone;
  for (ValueId v : node.inputs) {
    if (v == kNone) continue;
    if (graph.value(v).is_constant()) {
      if (bits(graph.type(v).dtype) < 8) return kNone;
    } else if (found != kNone) {
      return kNone;
    } else {
      found = v;
    }
  }
  const bool whole = found != kNone && graph.type(found).shape == graph.type(node.outputs[0]).shape;
  return whole ? found : kNone;
}

/// The product that `value` is made of, by elementwise ops that nothing else reads.
bool read_chain(const Graph& graph, ValueId value, Cut& cut) {
  while (cut.chain.size() <= kLongestChain) {
    const NodeId id = graph.value(value).producer;
    if (id == kNone) return false;
    Reason ignored;
    if (const auto product = constant_product(graph, id, ignored)) {
      cut.product = value;
      std::reverse(cut.chain.begin(), cut.chain.end());
      return product->bias == kNone;
    }
    const ValueId operand = only_operand(graph, graph.node(id));
    if (operand == kNone || !has_one_reader(graph, operand)) return false;
    cut.chain.push_back(id), value = operand;
  }
  return false;
}

/// The halves of the product itself: by a split, or as products of their own.
std::vector<ValueId> halves_of(Graph& graph, const Cut& cut, bool dual) {
  const Node product = graph.node(graph.value(cut.product).producer);
  const int64_t half = graph.type(cut.product).shape.back() / 2;
  if (!dual) {
    std::vector<ValueId> out;
    for (const int64_t side : {0, 1}) {
      const bool transposed = product.op == Op::Gemm && product.attrs.get_int("transB", 0) != 0;
      const ValueId weights = part_of_operand(graph, product.inputs[1], transposed ? 2 : 1,
                                              side * half, (side + 1) * half);
      out.push_back(
          graph.must_add(product.op, {product.inputs[0], weights}, product.attrs, product.name));
    }
    return out;
  }
  const ValueId sizes = graph.add_constant(tensor_of(std::vector<int64_t>{half, half}));
  const Attrs last = Attrs().set("axis", int64_t{graph.type(cut.product).rank() - 1});
  const auto split = graph.add_node(Op::Split, {cut.product, sizes}, last, product.name, 2);
  CHECK(split.ok(), "halves of a product: {}", split.error().text());
  return graph.node(*split).outputs;
}

void hoist(Graph& graph, const Cut& cut, bool dual) {
  const int64_t half = graph.type(cut.product).shape.back() / 2;
  const std::vector<ValueId> parts = halves_of(graph, cut, dual);
  for (const int64_t side : {0, 1}) {
    ValueId value = parts[static_cast<size_t>(side)], whole = cut.product;
    for (NodeId id : cut.chain) {
      const Node op = graph.node(id);
      std::vector<ValueId> inputs;
      for (ValueId v : op.inputs)
        inputs.push_back(v == whole ? value
                         : v == kNone
                             ? kNone
                             : part_of_operand(graph, v, 1, side * half, (side + 1) * half));
      value = graph.must_add(op.op, std::move(inputs), op.attrs, op.name);
      whole = op.outputs[0];
    }
    replace_value(graph, cut.halves[static_cast<size_t>(side)], value);
  }
}

}  // namespace

Result<Graph> hoist_halves(Graph graph, const DualGemmPays& pays) {
  const std::vector<NodeId> order = graph.order();
  std::set<ValueId> seen;
  for (NodeId id : order) {
    const Node& node = graph.node(id);
    if ((node.op != Op::Split && node.op != Op::Slice) || !seen.insert(node.inputs[0]).second)
      continue;
    Cut cut;
    if (!read_halves(graph, node.inputs[0], cut) || !read_chain(graph, node.inputs[0], cut) ||
        !meet(graph, cut.halves[0], cut.halves[1]))
      continue;
    const Type& type = graph.type(cut.product);
    const ValueId x = graph.node(graph.value(cut.product).producer).inputs[0];
    const int64_t columns = type.shape.back();
    const bool dual =
        pays(type.dtype, type.count() / columns, columns / 2, graph.type(x).shape.back());
    if (dual && cut.chain.empty() && cut.is_split) continue;  // as it should be
    hoist(graph, cut, dual);
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

#include "passes/sink_transposes.h"

#include <algorithm>
#include <cstring>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

using Order = std::vector<int64_t>;

constexpr int kLongestChain = 32;
constexpr int64_t kMostElements = int64_t{1} << 20;

Order after(const Order& order, const Order& first) {
  Order both;
  for (const int64_t axis : order) both.push_back(first[static_cast<size_t>(axis)]);
  return both;
}

bool changes_nothing(const Order& order) { return std::is_sorted(order.begin(), order.end()); }

/// A constant of at most that rank with ones in front, its axes in `order`.
Tensor transposed_constant(const Tensor& from, const Order& order) {
  const size_t rank = order.size();
  Shape aligned(rank - from.shape().size(), 1), shape;
  aligned.insert(aligned.end(), from.shape().begin(), from.shape().end());
  const Shape strides = row_major_strides(aligned);
  for (const int64_t axis : order) shape.push_back(aligned[static_cast<size_t>(axis)]);
  Tensor out = Tensor::allocate({from.dtype(), shape});
  const auto width = static_cast<size_t>(byte_size(from.dtype(), 1));
  std::vector<int64_t> at(rank, 0);
  for (int64_t k = 0; k < out.count(); ++k) {
    int64_t source = 0;
    for (size_t d = 0; d < rank; ++d) source += at[d] * strides[static_cast<size_t>(order[d])];
    std::memcpy(out.as_mutable<char>() + static_cast<size_t>(k) * width,
                from.as<char>() + static_cast<size_t>(source) * width, width);
    for (size_t d = rank; d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
  }
  return out;
}

class Sinker {
 public:
  explicit Sinker(Graph& graph) : graph_(graph) {}

  /// What the node's answer is with fewer transposes, or kNone.
  ValueId run(NodeId id) {
    const Node node = graph_.node(id);
    if (node.op == Op::Transpose) {
      const ValueId x = node.inputs[0];
      if (!chained(x)) return kNone;
      const NodeId behind = graph_.value(x).producer;
      const Order order = order_of(graph_, id);
      const std::optional<int> more = inputs_cost(behind, order, 0);
      return more && *more < 1 ? build_node(behind, order, 0) : kNone;
    }
    if (!is_elementwise(node)) return kNone;
    for (const ValueId input : node.inputs) {
      if (input == kNone || graph_.producer(input, Op::Transpose) == kNone) continue;
      const Order order = order_of(graph_, graph_.value(input).producer);
      if (order.size() != graph_.type(node.outputs[0]).shape.size()) continue;
      const std::optional<int> more = inputs_cost(id, inverse(order), 0);
      if (!more || *more > -2) continue;
      return transposed(graph_, build_node(id, inverse(order), 0), order, node.name);
    }
    return kNone;
  }

  /// Why a Transpose is still there.
  void tell(NodeId id, Remarks& remarks) const {
    const ValueId x = graph_.node(id).inputs[0];
    const NodeId behind = graph_.value(x).producer;
    const auto left = [&](std::string why) { remarks.left(graph_, id, std::move(why)); };
    if (behind == kNone) return left("it turns what the network is given");
    if (!is_elementwise(graph_.node(behind)))
      return left(fmt::format("it turns what {} gives, which is no elementwise op",
                              ops::to_string(graph_.node(behind).op)));
    if (!has_one_reader(graph_, x)) return left("what it turns has other readers");
    if (!inputs_cost(behind, order_of(graph_, id), 0))
      return left("what the op before it reads cannot be put into its order");
    left("the op before it would read as many transposes or more");
  }

 private:
  bool chained(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer != kNone && has_one_reader(graph_, value) &&
           is_elementwise(graph_.node(producer));
  }
  bool fits_as_it_is(ValueId value) const {
    return value == kNone || graph_.type(value).count() == 1;
  }

  /// Transposes that telling the value in that order adds, less those that go; nothing: it cannot.
  std::optional<int> cost(ValueId value, const Order& order, int depth) const {
    if (fits_as_it_is(value)) return 0;
    const Type& type = graph_.type(value);
    if (graph_.value(value).is_constant()) {
      if (bits(type.dtype) < 8 || type.count() > kMostElements) return std::nullopt;
      return 0;
    }
    if (type.shape.size() != order.size()) return std::nullopt;
    const NodeId transpose = graph_.producer(value, Op::Transpose);
    if (transpose != kNone) {
      const bool goes = changes_nothing(after(order, order_of(graph_, transpose)));
      return (goes ? 0 : 1) - (has_one_reader(graph_, value) ? 1 : 0);
    }
    if (sinks_further(value, order, depth))
      return inputs_cost(graph_.value(value).producer, order, depth + 1);
    return 1;
  }
  std::optional<int> inputs_cost(NodeId id, const Order& order, int depth) const {
    int sum = 0;
    const std::vector<ValueId>& inputs = graph_.node(id).inputs;
    for (auto input = inputs.begin(); input != inputs.end(); ++input) {
      if (std::find(inputs.begin(), input, *input) != input) continue;  // read twice, told once
      const std::optional<int> one = cost(*input, order, depth);
      if (!one) return std::nullopt;
      sum += *one;
    }
    return sum;
  }
  /// Whether going through the op that makes the value costs less than a Transpose behind it.
  bool sinks_further(ValueId value, const Order& order, int depth) const {
    if (depth >= kLongestChain || !chained(value)) return false;
    const std::optional<int> more = inputs_cost(graph_.value(value).producer, order, depth + 1);
    return more && *more < 1;
  }

  ValueId build(ValueId value, const Order& order, int depth) {
    if (fits_as_it_is(value)) return value;
    if (graph_.value(value).is_constant())
      return graph_.add_constant(transposed_constant(graph_.value(value).constant, order));
    if (graph_.producer(value, Op::Transpose) == kNone && sinks_further(value, order, depth))
      return build_node(graph_.value(value).producer, order, depth + 1);
    return transposed(graph_, value, order, "");
  }
  ValueId build_node(NodeId id, const Order& order, int depth) {
    const Node node = graph_.node(id);
    std::vector<ValueId> inputs;
    for (const ValueId input : node.inputs) {
      const auto same = std::find(node.inputs.begin(), node.inputs.end(), input);
      const auto before = static_cast<size_t>(same - node.inputs.begin());
      inputs.push_back(before < inputs.size() ? inputs[before] : build(input, order, depth));
    }
    return graph_.must_add(node.op, std::move(inputs), node.attrs, node.name);
  }

  Graph& graph_;
};

}  // namespace

Result<Graph> sink_transposes(Graph graph, Remarks* remarks) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<NodeId> order = graph.order();
    for (const NodeId id : order) {
      const std::vector<ValueId> outputs = graph.node(id).outputs;
      const ValueId made = outputs.size() == 1 ? Sinker(graph).run(id) : kNone;
      if (made == kNone) continue;
      changed = replace_value(graph, outputs[0], made) || changed;
    }
    graph = tidy(std::move(graph));
  }
  if (remarks)
    for (const NodeId id : graph.order())
      if (graph.node(id).op == Op::Transpose) Sinker(graph).tell(id, *remarks);
  return graph;
}

}  // namespace obelisk::passes

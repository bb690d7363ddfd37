#include "passes/hoist_maps.h"

#include <algorithm>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr size_t kMostMoves = 8;  // chosen, not measured

using Order = std::vector<int64_t>;

/// What is moved, and the moves, the first one first.
struct Moved {
  ValueId source = kNone;
  std::vector<NodeId> moves;
};

class Hoister {
 public:
  explicit Hoister(Graph& graph) : graph_(graph), stages_(stages_of(graph)) {}

  void hoist(NodeId id) {
    const Node node = graph_.node(id);
    if (!is_elementwise(node) || node.op == Op::Cast || node.outputs.size() != 1) return;
    const ValueId y = node.outputs[0];
    for (ValueId x : node.inputs) {
      if (x == kNone || graph_.type(x) != graph_.type(y)) continue;
      const Moved moved = moved_product(x);
      if (moved.moves.empty() || !takes_others(node, x, moved)) continue;
      std::vector<ValueId> inputs;
      for (ValueId v : node.inputs)
        inputs.push_back(
            v == x       ? moved.source
            : v == kNone ? kNone
            : graph_.value(v).is_constant()
                ? graph_.add_constant(graph_.value(v).constant.reshaped(*constant_before(v, moved)))
                : before(v, moved));
      ValueId value = graph_.must_add(node.op, std::move(inputs), node.attrs, node.name);
      for (NodeId move : moved.moves) {
        const Node step = graph_.node(move);
        std::vector<ValueId> operands = step.inputs;
        operands[0] = value;
        value = graph_.must_add(step.op, std::move(operands), step.attrs, step.name);
      }
      replace_value(graph_, y, value);
      return;
    }
  }

 private:
  Moved moved_product(ValueId x) const {
    Moved out;
    ValueId value = x;
    while (out.moves.size() <= kMostMoves && has_one_reader(graph_, value)) {
      const NodeId id = graph_.value(value).producer;
      if (id == kNone) return {};
      const Op op = graph_.node(id).op;
      if (!keeps_order(op) && op != Op::Transpose) {
        const NodeId product = product_behind(graph_, value);
        if (product == kNone || graph_.type(value).rank() < 2) return {};
        out.source = value;
        std::reverse(out.moves.begin(), out.moves.end());
        return channels_stay_inside(out, graph_.node(product).op) ? out : Moved{};
      }
      out.moves.push_back(id), value = graph_.node(id).inputs[0];
    }
    return {};
  }

  /// An axis of `shape` in another shape of the same elements; -1: it is taken apart or joined.
  static int64_t same_axis(const Shape& shape, int64_t axis, const Shape& other) {
    const Shape outside(shape.begin(), shape.begin() + axis);
    int64_t found = -1, count = 1;
    for (size_t d = 0; d < other.size(); count *= other[d], ++d)
      if (count == element_count(outside) && other[d] == shape[static_cast<size_t>(axis)])
        found = static_cast<int64_t>(d);
    return found;
  }

  /// Whether what is moved can lie in memory as the product stores it: its columns or channels are
  /// the last axis, or the channels of an image, which tiles store last.
  bool channels_stay_inside(const Moved& moved, Op product) const {
    const auto turns = [&](NodeId id) { return graph_.node(id).op == Op::Transpose; };
    if (std::none_of(moved.moves.begin(), moved.moves.end(), turns)) return true;
    const bool rows = product == Op::MatMul || product == Op::Gemm;
    int64_t axis = rows ? graph_.type(moved.source).rank() - 1 : 1;
    for (NodeId id : moved.moves) {
      const Node& node = graph_.node(id);
      const Shape& to = graph_.type(node.outputs[0]).shape;
      if (turns(id)) {
        const Order order = order_of(graph_, id);
        axis = std::find(order.begin(), order.end(), axis) - order.begin();
      } else {
        axis = same_axis(graph_.type(node.inputs[0]).shape, axis, to);
        if (axis < 0) return false;
      }
    }
    const int64_t rank = graph_.type(graph_.node(moved.moves.back()).outputs[0]).rank();
    return axis == rank - 1 || (axis == 1 && rank >= 4);
  }

  bool takes_others(const Node& node, ValueId x, const Moved& moved) const {
    const auto stage = [&](ValueId v) { return stages_[static_cast<size_t>(v)]; };
    const auto is_old = [&](ValueId v) { return static_cast<size_t>(v) < stages_.size(); };
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      if (v == x || v == kNone) return true;
      if (graph_.value(v).is_constant()) return constant_before(v, moved).has_value();
      return graph_.type(v).shape == graph_.type(x).shape && is_old(v) && is_old(moved.source) &&
             stage(v) <= stage(moved.source) && moves_channels(moved) &&
             !(has_one_reader(graph_, v) && product_behind(graph_, v) != kNone);
    });
  }

  /// Whether pixels stay in their order: at most the channels go behind them or before.
  bool moves_channels(const Moved& moved) const {
    int turned = 0;
    for (NodeId id : moved.moves) {
      if (graph_.node(id).op != Op::Transpose) continue;
      const Order order = order_of(graph_, id);
      if (order != Order{0, 2, 1} && order != Order{0, 2, 3, 1} && order != Order{0, 3, 1, 2})
        return false;
      ++turned;
    }
    return turned <= 1;
  }

  /// The shape that a constant has before the moves; none where it is no constant of one number or
  /// along one axis that the moves keep.
  std::optional<Shape> constant_before(ValueId value, const Moved& moved) const {
    const Shape& shape = graph_.type(value).shape;
    if (element_count(shape) == 1)
      return Shape(static_cast<size_t>(graph_.type(moved.source).rank()), 1);
    const ValueId x = graph_.node(moved.moves.back()).outputs[0];
    const auto own = std::find_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; });
    if (element_count(shape) != *own) return std::nullopt;
    int64_t axis = graph_.type(x).rank() - (shape.end() - own);
    for (auto id = moved.moves.rbegin(); id != moved.moves.rend(); ++id) {
      const Node& node = graph_.node(*id);
      if (node.op == Op::Transpose) {
        axis = order_of(graph_, *id)[static_cast<size_t>(axis)];
        continue;
      }
      axis = same_axis(graph_.type(node.outputs[0]).shape, axis, graph_.type(node.inputs[0]).shape);
      if (axis < 0) return std::nullopt;
    }
    Shape out(static_cast<size_t>(graph_.type(moved.source).rank()), 1);
    out[static_cast<size_t>(axis)] = *own;
    return out;
  }

  /// A value of the moved one's shape, as it is before the moves.
  ValueId before(ValueId value, const Moved& moved) {
    for (auto id = moved.moves.rbegin(); id != moved.moves.rend(); ++id) {
      const Node node = graph_.node(*id);
      if (node.op == Op::Transpose) {
        value = transposed(graph_, value, inverse(order_of(graph_, *id)), node.name);
      } else {
        value = reshaped(graph_, value, graph_.type(node.inputs[0]).shape, node.name);
      }
    }
    return value;
  }

  Graph& graph_;
  const std::vector<int> stages_;
};

}  // namespace

Result<Graph> hoist_maps(Graph graph) {
  Hoister hoister(graph);
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) hoister.hoist(id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

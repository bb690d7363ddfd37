#include "passes/hoist_row_moves.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr size_t kMostMoves = 16;  // behind one norm

/// Whether a move leaves rows of the last axis whole.
bool moves_rows(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.inputs.empty() || node.inputs[0] == kNone) return false;
  const Shape& from = graph.type(node.inputs[0]).shape;
  if (from.empty()) return false;
  for (ValueId v : node.outputs)
    if (v != kNone && (graph.type(v).rank() == 0 || graph.type(v).shape.back() != from.back()))
      return false;
  const auto last = static_cast<int64_t>(from.size()) - 1;
  const auto is_last = [&](int64_t axis) { return axis == last || axis == -1; };
  if (keeps_order(node.op)) return true;
  switch (node.op) {
    case Op::Transpose:
      return order_of(graph, id).back() == last;
    case Op::Split:
    case Op::Concat:
      return !is_last(node.attrs.get_int("axis", 0));
    case Op::Slice: {
      const Tensor* axes = constant_input(graph, node, 3);
      if (!axes) return false;
      const std::vector<int64_t> all = to_ints(*axes);
      return std::none_of(all.begin(), all.end(), is_last);
    }
    case Op::Gather: {
      const Tensor* indices = constant_input(graph, node, 1);
      const int64_t axis = node.attrs.get_int("axis", 0);
      return indices && !is_last(axis) && axis >= 0 &&
             graph.type(node.outputs[0]).count() <= graph.type(node.inputs[0]).count();
    }
    default:
      return false;
  }
}

/// What of a move's inputs it moves: the others say how.
size_t moved_inputs(const Node& node) { return node.op == Op::Concat ? node.inputs.size() : 1; }

/// The moves behind a norm, in order, and the one value that others read.
struct Region {
  std::vector<NodeId> moves;
  ValueId end = kNone;
};

std::optional<Region> region_behind(const Graph& graph, ValueId norm) {
  Region region;
  std::set<ValueId> inside{norm};
  std::set<NodeId> taken;
  for (bool grew = true; grew && region.moves.size() < kMostMoves;) {
    grew = false;
    const std::vector<ValueId> values(inside.begin(), inside.end());
    for (ValueId value : values)
      for (NodeId user : graph.users(value)) {
        const Node& node = graph.node(user);
        const auto moved = node.inputs.begin() + static_cast<int64_t>(moved_inputs(node));
        if (taken.count(user) || !moves_rows(graph, user) ||
            !std::all_of(node.inputs.begin(), moved,
                         [&](ValueId v) { return inside.count(v) > 0; }))
          continue;
        taken.insert(user), region.moves.push_back(user), grew = true;
        for (ValueId v : node.outputs)
          if (v != kNone) inside.insert(v);
      }
  }
  for (ValueId value : inside) {
    const std::vector<NodeId> users = graph.users(value);
    const bool leaves =
        graph.is_output(value) || std::any_of(users.begin(), users.end(),
                                              [&](NodeId user) { return taken.count(user) == 0; });
    if (!leaves) continue;
    if (region.end != kNone) return std::nullopt;
    region.end = value;
  }
  if (region.end == kNone || region.end == norm) return std::nullopt;
  const bool turns = std::any_of(region.moves.begin(), region.moves.end(),
                                 [&](NodeId id) { return !keeps_order(graph.node(id).op); });
  return turns ? std::optional(std::move(region)) : std::nullopt;
}

/// Adds the region's moves once more, of `value` in place of `norm`; what its end is then, and the
/// moves that were added.
struct Again {
  ValueId end = kNone;
  std::vector<NodeId> moves;
};
/// `from`: where the region's other inputs are, constants, if not in `graph` itself.
std::optional<Again> again(Graph& graph, const Graph& from, const Region& region, ValueId norm,
                           ValueId value) {
  std::map<ValueId, ValueId> moved{{norm, value}};
  Again out;
  for (NodeId each : region.moves) {
    const Node move = from.node(each);
    std::vector<ValueId> inputs = move.inputs;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (k < moved_inputs(move)) {
        inputs[k] = moved.at(inputs[k]);
      } else if (&graph != &from && inputs[k] != kNone) {
        if (!from.value(inputs[k]).is_constant()) return std::nullopt;
        inputs[k] = graph.add_constant(from.value(inputs[k]).constant);
      }
    }
    const auto made = graph.add_node(move.op, std::move(inputs), move.attrs, move.name,
                                     static_cast<int>(move.outputs.size()));
    CHECK(made.ok(), "{}", made.error().text());
    out.moves.push_back(*made);
    for (size_t k = 0; k < move.outputs.size(); ++k)
      if (move.outputs[k] != kNone) moved[move.outputs[k]] = graph.node(*made).outputs[k];
  }
  out.end = moved.at(region.end);
  return out;
}

/// Which rows of the norm the rows of the region's end are, found by moving their numbers; empty
/// where that would be much.
std::vector<int64_t> rows_at_end(const Graph& graph, const Region& region, ValueId norm) {
  constexpr int64_t kMostElements = int64_t{1} << 21;
  const Shape& shape = graph.type(norm).shape;
  const int64_t width = shape.back(), count = element_count(shape);
  if (count > kMostElements || graph.type(region.end).count() > kMostElements) return {};
  Tensor numbers = Tensor::allocate({DType::i64, shape});
  for (int64_t k = 0; k < count; ++k) numbers.as_mutable<int64_t>()[k] = k / width;
  Graph small;
  const auto moved = again(small, graph, region, norm, small.add_constant(std::move(numbers)));
  if (!moved) return {};
  std::map<ValueId, Tensor> known;
  const auto tensor = [&](ValueId v) -> const Tensor* {
    if (v == kNone) return nullptr;
    return small.value(v).is_constant() ? &small.value(v).constant : &known.at(v);
  };
  for (NodeId id : moved->moves) {
    const Node& node = small.node(id);
    std::vector<const Tensor*> inputs;
    for (ValueId v : node.inputs) inputs.push_back(tensor(v));
    std::vector<Tensor> outputs;
    for (ValueId v : node.outputs)
      outputs.push_back(v == kNone ? Tensor() : Tensor::allocate(small.type(v)));
    if (!ops::reference(small.call(id), inputs, outputs).ok()) return {};
    for (size_t k = 0; k < node.outputs.size(); ++k)
      if (node.outputs[k] != kNone) known[node.outputs[k]] = std::move(outputs[k]);
  }
  const Tensor& end = *tensor(moved->end);
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < end.count(); k += width) rows.push_back(end.get_int(k));
  return rows;
}

/// The region's moves of `value`: where some of them copy, one Gather of its rows, [rows, width].
ValueId moved_rows(Graph& graph, const Region& region, ValueId norm, ValueId value) {
  const bool copies = std::any_of(region.moves.begin(), region.moves.end(),
                                  [&](NodeId id) { return graph.node(id).op == Op::Concat; });
  const std::vector<int64_t> rows =
      copies ? rows_at_end(graph, region, norm) : std::vector<int64_t>();
  if (rows.empty()) return again(graph, graph, region, norm, value)->end;
  const std::string name = graph.node(region.moves.front()).name;
  const Shape shape = graph.type(value).shape;
  const ValueId flat =
      reshaped(graph, value, {element_count(shape) / shape.back(), shape.back()}, name);
  return graph.must_add(Op::Gather, {flat, graph.add_constant(tensor_of(rows))},
                        Attrs().set("axis", int64_t{0}), name);
}

void hoist(Graph& graph, NodeId id) {
  const Node norm = graph.node(id);
  if (norm.op != Op::LayerNormalization && norm.op != Op::RMSNormalization) return;
  const ValueId x = norm.inputs[0], y = norm.outputs[0];
  const int64_t rank = graph.type(x).rank(), axis = norm.attrs.get_int("axis", -1);
  const bool alone = std::all_of(norm.outputs.begin() + 1, norm.outputs.end(), [&](ValueId v) {
    return v == kNone || (graph.users(v).empty() && !graph.is_output(v));
  });
  const bool of_rows = std::all_of(norm.inputs.begin() + 1, norm.inputs.end(), [&](ValueId v) {
    return v == kNone || graph.type(v).rank() <= 1;
  });
  if (!alone || !of_rows || (axis != -1 && axis != rank - 1) ||
      graph.type(x).dtype != graph.type(y).dtype)
    return;
  const auto region = region_behind(graph, y);
  if (!region) return;
  std::vector<ValueId> inputs = norm.inputs;
  inputs[0] = moved_rows(graph, *region, y, x);
  const ValueId normed = graph.must_add(norm.op, std::move(inputs),
                                        Attrs(norm.attrs).set("axis", int64_t{-1}), norm.name);
  replace_value(graph, region->end,
                reshaped(graph, normed, graph.type(region->end).shape, norm.name));
}

}  // namespace

Result<Graph> hoist_row_moves(Graph graph) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) hoist(graph, id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

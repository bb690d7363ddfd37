#include "passes/raise_axis_update.h"

#include "passes/moves.h"

namespace obelisk::passes {
namespace {

/// The nodes of one such update.
struct Update {
  NodeId front = kNone, scatter = kNone, back = kNone;
  std::vector<int64_t> order, inverse;  // of the moves
};

std::optional<Update> match(const Graph& graph, size_t output, Reason& why) {
  Update found;
  found.back = graph.producer(graph.outputs()[output], Op::Transpose);
  if (found.back == kNone) return std::nullopt;
  found.scatter = graph.producer(graph.node(found.back).inputs[0], Op::ScatterND);
  if (found.scatter == kNone) return std::nullopt;
  const Node& scatter = graph.node(found.scatter);
  found.front = graph.producer(scatter.inputs[0], Op::Transpose);
  const ValueId old = graph.inputs()[static_cast<size_t>(graph.in_place_of(output))];
  if (found.front == kNone || graph.node(found.front).inputs[0] != old) {
    why.no("it updates another value than the input whose memory it takes");
    return std::nullopt;
  }
  found.order = order_of(graph, found.front), found.inverse = order_of(graph, found.back);
  for (size_t d = 0; d < found.order.size(); ++d)
    if (found.order[static_cast<size_t>(found.inverse[d])] != static_cast<int64_t>(d)) {
      why.no("it is not moved back as it was moved");
      return std::nullopt;
    }
  if (graph.type(scatter.inputs[1]).shape.back() != 1) {
    why.no("its indices are of several axes");
    return std::nullopt;
  }
  return found;
}

void replace(Graph& graph, const Update& update) {
  const Node scatter = graph.node(update.scatter);
  const ValueId old = graph.node(update.front).inputs[0];
  const ValueId now = graph.node(update.back).outputs[0];
  const auto axis = static_cast<size_t>(update.order[0]);
  const Shape moved = graph.type(scatter.inputs[0]).shape;
  const int64_t rows = graph.type(scatter.inputs[1]).count();
  Shape by_row = moved;
  by_row[0] = rows;
  const ValueId updates =
      transposed(graph, reshaped(graph, scatter.inputs[2], by_row, scatter.name), update.inverse,
                 scatter.name);
  Shape column(moved.size(), 1);
  column[axis] = rows;
  const Shape all = graph.type(updates).shape;
  Tensor extents = Tensor::allocate({DType::i64, {static_cast<int64_t>(all.size())}});
  for (size_t d = 0; d < all.size(); ++d) extents.set_int(static_cast<int64_t>(d), all[d]);
  const ValueId indices = graph.must_add(Op::Expand,
                                         {reshaped(graph, scatter.inputs[1], column, scatter.name),
                                          graph.add_constant(std::move(extents))},
                                         {}, scatter.name);
  Attrs attrs;
  attrs.set("axis", static_cast<int64_t>(axis));
  if (scatter.attrs.has("reduction"))
    attrs.set("reduction", scatter.attrs.get_string("reduction", "none"));
  const ValueId made =
      graph.must_add(Op::ScatterElements, {old, indices, updates}, attrs, scatter.name);
  replace_value(graph, now, made);
  Attrs move;
  move.set("perm", update.order);
  replace_value(graph, scatter.outputs[0],
                graph.must_add(Op::Transpose, {made}, move, scatter.name));
}

}  // namespace

Result<graph::Graph> raise_axis_update(graph::Graph graph, Remarks* remarks) {
  bool changed = false;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    if (graph.in_place_of(k) == kNone) continue;
    Reason why;
    if (const auto update = match(graph, k, why)) {
      replace(graph, *update);
      changed = true;
    } else if (const NodeId back = graph.producer(graph.outputs()[k], Op::Transpose);
               back != kNone) {
      why.tell(remarks, graph, back);
    }
  }
  return changed ? tidy(std::move(graph), remarks) : std::move(graph);
}

}  // namespace obelisk::passes

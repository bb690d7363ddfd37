#include "passes/raise_masked_softmax.h"

#include <cmath>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr double kForbids = -1e4;  // a score as low as this is meant to weigh nothing

struct Masked {
  ValueId scores, mask;
  Attrs attrs;
  bool negated = false;  // the mask is subtracted
};

/// Numbers along the last axis alone, none of which forbids.
bool is_bias(const Graph& graph, ValueId value) {
  const Tensor* known = constant(graph, value);
  if (!known || known->shape().empty() || known->count() != known->shape().back()) return false;
  for (int64_t k = 0; k < known->count(); ++k)
    if (!(known->get_double(k) > kForbids)) return false;
  return true;
}

std::optional<Masked> added(const Graph& graph, const Node& node, Reason& why) {
  const Type& type = graph.type(node.outputs[0]);
  const bool whole[] = {graph.type(node.inputs[0]) == type, graph.type(node.inputs[1]) == type};
  size_t scores = whole[0] ? 0 : 1;
  if (node.op == Op::Add && whole[0] && whole[1] && graph.value(node.inputs[0]).is_constant())
    scores = 1;
  if (!whole[scores] || (node.op == Op::Sub && scores == 1)) {
    why.no("what is added widens the scores");
    return std::nullopt;
  }
  const ValueId mask = node.inputs[1 - scores];
  if (is_bias(graph, mask)) {
    why.no("what is added is a bias: it forbids nothing");
    return std::nullopt;
  }
  return Masked{node.inputs[scores], mask, {}, node.op == Op::Sub};
}

std::optional<Masked> filled(const Graph& graph, const Node& node, Reason& why) {
  const Type& type = graph.type(node.outputs[0]);
  for (size_t side : {1, 2}) {
    const std::optional<double> fill = uniform_value(graph, node.inputs[3 - side]);
    if (!fill) continue;
    if (!(*fill <= kForbids)) {
      why.no(fmt::format("it puts {} in place of scores, which forbids nothing", *fill));
      continue;
    }
    if (graph.type(node.inputs[side]) != type) {
      why.no("the mask widens the scores");
      continue;
    }
    Masked made{node.inputs[side], node.inputs[0], {}};
    if (!std::isinf(*fill)) made.attrs.set("fill", *fill);
    if (side == 2) made.attrs.set("forbids", int64_t{1});
    return made;
  }
  why.no("what it puts in place of scores is not one known number");
  return std::nullopt;
}

/// Takes a factor off the scores where nobody else reads the product.
void take_scale(const Graph& graph, Masked& masked) {
  const NodeId id = graph.value(masked.scores).producer;
  if (id == kNone || !has_one_reader(graph, masked.scores)) return;
  const Node& node = graph.node(id);
  const Type& type = graph.type(masked.scores);
  const bool divides = node.op == Op::Div;
  if (!divides && node.op != Op::Mul) return;
  for (size_t side : {1, 0}) {
    const std::optional<double> by = uniform_value(graph, node.inputs[side]);
    if (!by || *by == 0 || !std::isfinite(*by) || (divides && side == 0)) continue;
    if (graph.type(node.inputs[1 - side]) != type) continue;
    masked.attrs.set("scale", divides ? 1 / *by : *by);
    masked.scores = node.inputs[1 - side];
    return;
  }
}

void raise(Graph& graph, NodeId id, Remarks* remarks) {
  const Node softmax = graph.node(id);
  const NodeId last = graph.value(softmax.inputs[0]).producer;
  if (last == kNone) return;
  const Node node = graph.node(last);
  const bool adds = node.op == Op::Add || node.op == Op::Sub;
  if (!adds && node.op != Op::Where) return;
  Reason why;
  std::optional<Masked> masked = adds ? added(graph, node, why) : filled(graph, node, why);
  if (masked && !has_one_reader(graph, softmax.inputs[0])) {
    why.no("the masked scores have another reader");
    masked.reset();
  }
  if (!masked) return why.tell(remarks, graph, id);
  take_scale(graph, *masked);
  if (masked->negated) masked->mask = graph.must_add(Op::Neg, {masked->mask}, {}, node.name);
  masked->attrs.set("axis", softmax.attrs.get_int("axis", -1));
  replace_value(graph, softmax.outputs[0],
                graph.must_add(Op::MaskedSoftmax, {masked->scores, masked->mask}, masked->attrs,
                               softmax.name));
}

}  // namespace

Result<Graph> raise_masked_softmax(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op == Op::Softmax) raise(graph, id, remarks);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

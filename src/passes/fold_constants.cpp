#include "passes/fold_constants.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

bool can_fold(const Graph& graph, NodeId id, Reason& why) {
  const graph::Node& node = graph.node(id);
  int64_t in = 0, out = 0;
  for (ValueId input : node.inputs) {
    if (input == graph::kNone) continue;
    if (!graph.value(input).is_constant()) return false;
    in += graph.type(input).count();
  }
  for (ValueId output : node.outputs) {
    if (graph.is_output(output)) return why.no("it is an output, which stays a value of its own");
    out += graph.type(output).count();
  }
  if (out > std::max(in, kMostFolded))
    return why.no(
        fmt::format("its {} elements are more than {} and than it reads", out, kMostFolded));
  const double flops = ops::cost(graph.call(id)).flops.count;
  return flops <= kMostFoldedFlops ||
         why.no(fmt::format("its {:.2g} flops are more than {:.0e}", flops, kMostFoldedFlops));
}

/// The node's answers, or nothing where its reference refuses.
std::vector<Tensor> answers(const Graph& graph, NodeId id) {
  const graph::Node& node = graph.node(id);
  std::vector<const Tensor*> inputs;
  for (ValueId input : node.inputs) {
    inputs.push_back(input == graph::kNone ? nullptr : &graph.value(input).constant);
  }
  std::vector<Tensor> outputs;
  for (ValueId output : node.outputs) outputs.push_back(Tensor::allocate(graph.type(output)));
  if (!ops::reference(graph.call(id), inputs, outputs).ok()) outputs.clear();
  return outputs;
}

}  // namespace

std::optional<Tensor> known_answer(const Graph& graph, NodeId id, int64_t most) {
  const graph::Node& node = graph.node(id);
  if (node.outputs.size() != 1 || graph.type(node.outputs[0]).count() > most) return std::nullopt;
  bool some = false;
  for (ValueId input : node.inputs) {
    if (input == graph::kNone) continue;
    if (!graph.value(input).is_constant() || graph.type(input).count() > most) return std::nullopt;
    some = true;
  }
  Reason why;
  if (!some || !can_fold(graph, id, why)) return std::nullopt;
  std::vector<Tensor> made = answers(graph, id);
  if (made.empty()) return std::nullopt;
  return std::move(made[0]);
}

Result<Graph> fold_constants(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    Reason why;
    if (!can_fold(graph, id, why)) {
      why.tell(remarks, graph, id);
      continue;
    }
    const std::vector<Tensor> made = answers(graph, id);
    if (made.empty()) {
      why.no("the reference refuses it");
      why.tell(remarks, graph, id);
      continue;
    }
    const graph::Node node = graph.node(id);
    for (size_t k = 0; k < made.size(); ++k) {
      const ValueId folded = graph.add_constant(made[k], graph.value(node.outputs[k]).name);
      graph.replace_uses(node.outputs[k], folded);
    }
    graph.erase_node(id);
    for (ValueId input :
         node.inputs) {  // a step between may be as large as a weight: let it go now
      if (input == graph::kNone || !graph.users(input).empty() || graph.is_output(input)) continue;
      graph.value(input).constant = Tensor();
    }
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

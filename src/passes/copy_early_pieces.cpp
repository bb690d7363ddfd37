#include "passes/copy_early_pieces.h"

#include <algorithm>

#include "machine/machine.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// By value: whether it is an input, a constant, or moves and casts of such.
std::vector<bool> early_values(const Graph& graph) {
  std::vector<bool> early(graph.value_count(), false);
  for (ValueId v = 0; v < graph.value_count(); ++v)
    early[v] = graph.value(v).is_constant() || graph.value(v).producer == kNone;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (ops::row(node.op).kind != ops::Kind::kMove && node.op != Op::Cast) continue;
    const bool all = std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId v) { return v == kNone || early[v]; });
    for (ValueId v : node.outputs)
      if (v != kNone) early[v] = all;
  }
  return early;
}

/// Whether the node that makes a value can store it inside the concatenation.
bool is_stored_in_place(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  if (producer == kNone || !has_one_reader(graph, value)) return false;
  const Op op = graph.node(producer).op;
  return op == Op::Concat || op == Op::Identity || ops::row(op).kind != ops::Kind::kMove;
}

bool takes_early_pieces(const Graph& graph, const Node& concat, const std::vector<bool>& early) {
  int64_t before = 0, made = 0;
  for (ValueId v : concat.inputs) (early[v] ? before : made) += graph.type(v).count();
  return made > 0 && before >= std::max(made, machine::thresholds::kEarlyElements);
}

}  // namespace

Result<Graph> copy_early_pieces(Graph graph) {
  const std::vector<bool> early = early_values(graph);
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op != Op::Concat || !takes_early_pieces(graph, graph.node(id), early))
      continue;
    const Node concat = graph.node(id);
    std::vector<ValueId> inputs, copied;
    const auto copy = [&](ValueId v) {
      inputs.push_back(graph.must_add(Op::Identity, {v}, {}, concat.name));
    };
    const auto copy_early = [&] {  // neighbours together: one kernel
      if (copied.size() > 1)
        inputs.push_back(graph.must_add(Op::Concat, std::move(copied), concat.attrs, concat.name));
      else if (!copied.empty())
        copy(copied.front());
      copied.clear();
    };
    for (ValueId v : concat.inputs) {
      const bool again = std::count(concat.inputs.begin(), concat.inputs.end(), v) > 1,
                 stored = !again && is_stored_in_place(graph, v);
      if (early[v] && !stored) {
        copied.push_back(v);
        continue;
      }
      copy_early();
      if (stored)
        inputs.push_back(v);
      else
        copy(v);
    }
    copy_early();
    graph.set_inputs(id, std::move(inputs));
  }
  graph.sort();
  return graph;
}

}  // namespace obelisk::passes

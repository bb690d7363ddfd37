#include "passes/expand.h"

#include <deque>

#include "passes/expand_nodes.h"
#include "passes/fold_constants.h"
#include "passes/fold_norms.h"

namespace obelisk::passes {
namespace {

using graph::Graph;
using graph::NodeId;

/// Elements that are computed now where a batch norm's expansion makes them of constants: no run
/// computes them again. Other norms' scales stay in their narrower type, in which they are read.
constexpr int64_t kMostKnown = int64_t{1} << 16;

/// Adds an expansion's nodes at the end of the graph.
class IntoGraph : public ops::Expander {
 public:
  IntoGraph(Graph& graph, NodeId of)
      : graph_(graph), inputs_(graph.node(of).inputs), name_(graph.node(of).name) {
    computes_now_ = graph.node(of).op == ops::Op::BatchNormalization &&
                    !graph.value(inputs_[0]).is_constant();  // else fold_constants has left it
  }

  Value input(int index) override {
    return index < static_cast<int>(inputs_.size()) ? inputs_[index] : kAbsent;
  }
  Value constant(Tensor tensor) override { return graph_.add_constant(std::move(tensor)); }
  Value add(ops::Op op, std::vector<Value> inputs, ops::Attrs attrs) override {
    const Value value = graph_.must_add(op, std::move(inputs), std::move(attrs), name_);
    const NodeId node = graph_.value(value).producer;
    if (auto known = computes_now_ ? known_answer(graph_, node, kMostKnown) : std::nullopt) {
      graph_.erase_node(node);
      return graph_.add_constant(std::move(*known));
    }
    made.push_back(node);
    return value;
  }
  std::vector<Value> add_all(ops::Op op, std::vector<Value> inputs, ops::Attrs attrs,
                             int outputs) override {
    const auto added = graph_.add_node(op, std::move(inputs), std::move(attrs), name_, outputs);
    CHECK(added.ok(), "{}", added.error().text());
    made.push_back(*added);
    return graph_.node(*added).outputs;
  }
  const Type& type(Value value) const override { return graph_.type(value); }

  std::vector<NodeId> made;

 private:
  static_assert(kAbsent == graph::kNone);
  Graph& graph_;
  const std::vector<graph::ValueId> inputs_;
  const std::string name_;
  bool computes_now_ = false;
};

}  // namespace

bool waits_for_machine(const Graph& graph, NodeId id) {
  switch (graph.node(id).op) {
    case ops::Op::Attention:
    case ops::Op::Recurrence:
    case ops::Op::SqueezeExcite:
    case ops::Op::NormStatistics:
      return true;
    case ops::Op::LayerNormalization:
    case ops::Op::RMSNormalization:
      return may_fold_norm(graph, id);
    default:
      return false;
  }
}

Graph expanded(Graph graph, std::deque<NodeId> open,
               const std::function<bool(const Graph&, NodeId)>& whole) {
  while (!open.empty()) {
    const NodeId id = open.front();
    open.pop_front();
    if (ops::row(graph.node(id).op).expand == nullptr || whole(graph, id)) continue;
    const graph::Node node = graph.node(id);
    IntoGraph into(graph, id);
    // The call borrows types from the graph's values, which move when values are added: it gets
    // copies.
    std::vector<Type> types;
    ops::Call call = graph.call(id);
    types.reserve(call.inputs.size() + call.results.size());
    for (auto* list : {&call.inputs, &call.results})
      for (const Type*& type : *list)
        if (type) type = &types.emplace_back(*type);
    std::vector<Tensor> constants;
    constants.reserve(call.constants.size());
    for (const Tensor*& constant : call.constants)
      if (constant) constant = &constants.emplace_back(*constant);
    const ops::Attrs attrs = node.attrs;
    ops::Call kept{call.op, attrs, call.inputs, call.constants, call.outputs, call.results};
    const ops::Expansion expansion = ops::expand(kept, into);
    if (expansion.empty()) continue;
    CHECK(expansion.size() >= node.outputs.size(), "{} has {} outputs, its expansion {}",
          ops::to_string(node.op), node.outputs.size(), expansion.size());
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const graph::ValueId value = expansion[k];
      if (value == graph::kNone) {
        CHECK(graph.users(node.outputs[k]).empty() && !graph.is_output(node.outputs[k]),
              "output {} of {} is read but not expanded", k, ops::to_string(node.op));
        continue;
      }
      CHECK(graph.type(value) == graph.type(node.outputs[k]), "{}: expanded to {}, not {}",
            ops::to_string(node.op), to_string(graph.type(value)),
            to_string(graph.type(node.outputs[k])));
      if (graph.value(value).name.empty())
        graph.value(value).name = graph.value(node.outputs[k]).name;
      graph.replace_uses(node.outputs[k], value);
    }
    graph.erase_node(id);
    open.insert(open.begin(), into.made.begin(), into.made.end());
  }
  graph.sort();
  graph.remove_dead();
  return graph;
}

Result<Graph> expand(Graph graph) {
  std::deque<NodeId> open(graph.order().begin(), graph.order().end());
  return expanded(std::move(graph), std::move(open), waits_for_machine);
}

}  // namespace obelisk::passes

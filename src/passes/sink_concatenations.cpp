#include "passes/sink_concatenations.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr int kLongestChain = 8;  // of elementwise ops
constexpr size_t kMostRuns = 2;   // of early pieces, a kernel each; chosen, not measured

/// The next op of a chain: elementwise, with constants besides `value`, as large as it.
bool continues(const Graph& graph, NodeId id, ValueId value) {
  const Node& node = graph.node(id);
  if (!is_elementwise(node) || graph.type(node.outputs[0]).shape != graph.type(value).shape ||
      graph.is_output(node.outputs[0]) || bits(graph.type(node.outputs[0]).dtype) < 8)
    return false;
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
    return v == value || v == kNone ||
           (graph.value(v).is_constant() && bits(graph.type(v).dtype) >= 8);
  });
}

/// The elementwise ops from `value` by one of its readers on to products that read what they give;
/// none where others read it.
std::vector<NodeId> chain_behind(const Graph& graph, ValueId value, NodeId first) {
  std::vector<NodeId> chain;
  for (NodeId id = first; chain.size() < kLongestChain; id = graph.users(value).front()) {
    if (!continues(graph, id, value)) return {};
    chain.push_back(id), value = graph.node(id).outputs[0];
    const std::vector<NodeId> users = graph.users(value);
    if (users.empty()) return {};
    if (std::all_of(users.begin(), users.end(), [&](NodeId user) {
          return is_product(graph.node(user).op) && graph.node(user).inputs[0] == value;
        }))
      return chain;
    if (!has_one_reader(graph, value)) return {};
  }
  return {};
}

class Sinker {
 public:
  explicit Sinker(Graph& graph) : graph_(graph), stages_(stages_of(graph)) {}

  void sink(NodeId concat) {
    const Node node = graph_.node(concat);
    axis_ = node.attrs.get_int("axis", 0);
    if (axis_ < 0) axis_ += graph_.type(node.outputs[0]).rank();
    if (node.inputs.size() < 2 || !find_parts(node.inputs)) return;
    for (NodeId user : graph_.users(node.outputs[0])) {
      const std::vector<NodeId> chain = chain_behind(graph_, node.outputs[0], user);
      if (!chain.empty()) sink(node, chain);
    }
  }

 private:
  /// Pieces that lie next to each other and for which the ops are one work; or one of them, for
  /// which its producer computes them.
  struct Part {
    std::vector<ValueId> pieces;
    int64_t from = 0, to = 0;  // of the axis
    bool fused = false;
  };

  int stage(ValueId v) const {
    return static_cast<size_t>(v) < stages_.size() ? stages_[static_cast<size_t>(v)] : 0;
  }

  /// False where nothing would be won.
  bool find_parts(const std::vector<ValueId>& pieces) {
    parts_.clear();
    int last = 0;
    for (ValueId v : pieces) last = std::max(last, stage(v));
    bool wins = false;
    size_t runs = 0;
    int64_t at = 0;
    for (ValueId v : pieces) {
      const bool late = stage(v) == last;
      const bool fused = product_behind(graph_, v) != kNone && (late || has_one_reader(graph_, v));
      if (late && !fused) return false;  // the others wait for a work of its own
      wins = wins || late;
      const int64_t end = at + graph_.type(v).shape[static_cast<size_t>(axis_)];
      if (!fused && !parts_.empty() && !parts_.back().fused) {
        parts_.back().pieces.push_back(v), parts_.back().to = end;
      } else {
        parts_.push_back({{v}, at, end, fused});
        runs += fused ? 0 : 1;
      }
      at = end;
    }
    return wins && runs <= kMostRuns;
  }

  void sink(const Node& concat, const std::vector<NodeId>& chain) {
    std::vector<ValueId> made;
    for (const Part& part : parts_) {
      ValueId value = part.pieces.front();
      if (part.pieces.size() > 1)
        value = graph_.must_add(Op::Concat, part.pieces, Attrs().set("axis", axis_), concat.name);
      ValueId whole = concat.outputs[0];
      const int64_t from_end = graph_.type(whole).rank() - axis_;
      for (NodeId id : chain) {
        const Node op = graph_.node(id);
        std::vector<ValueId> inputs;
        for (ValueId v : op.inputs)
          inputs.push_back(v == whole   ? value
                           : v == kNone ? kNone
                                        : part_of_operand(graph_, v, from_end, part.from, part.to));
        value = graph_.must_add(op.op, std::move(inputs), op.attrs, op.name);
        whole = op.outputs[0];
      }
      made.push_back(value);
    }
    const ValueId joined =
        graph_.must_add(Op::Concat, std::move(made), Attrs().set("axis", axis_), concat.name);
    replace_value(graph_, graph_.node(chain.back()).outputs[0], joined);
  }
  Graph& graph_;
  const std::vector<int> stages_;
  int64_t axis_ = 0;  // of the concatenation that sinks
  std::vector<Part> parts_;
};

}  // namespace

Result<Graph> sink_concatenations(Graph graph) {
  Sinker sinker(graph);
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order)
    if (graph.node(id).op == Op::Concat) sinker.sink(id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

/// graph/graph.h — the door of `graph`: a network with all shapes known, as values and nodes.
///
/// A Graph is in static single assignment: every value has one producer (a node, the input list or a constant). Nodes are kept
/// in a topological order that insertion and sort() maintain; every loop over a graph is over that order, so that every output of the
/// compiler is deterministic. Control flow does not exist here: the frontend resolves or refuses it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"
#include "ops/ops.h"

namespace obelisk::graph {

using ops::Op;
using obelisk::to_string;
using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr int32_t kNone = -1;

struct Value {
  std::string name;      // the user's name, may be empty for values that passes make
  Type type;
  Tensor constant;       // not empty: the value is known when compiling
  NodeId producer = kNone;
  int producer_output = 0;
  bool is_constant() const { return !constant.empty(); }
};

struct Node {
  Op op;
  ops::Attrs attrs;
  std::vector<ValueId> inputs;   // kNone where an optional input is absent
  std::vector<ValueId> outputs;  // never kNone: an output that is skipped over is a value nobody reads
  std::string name;              // the user's node this came from; fused nodes join names with '+'
  bool erased = false;
};

class Graph {
 public:
  std::string name;

  // ---- building ----
  ValueId add_input(std::string name, Type type);
  ValueId add_constant(Tensor tensor, std::string name = "");
  /// Adds a node at the end, infers its types and makes its outputs. Errors: those of ops::infer, with the node's name.
  Result<NodeId> add_node(Op op, std::vector<ValueId> inputs, ops::Attrs attrs = {}, std::string name = "", int outputs = 1);
  /// The same for passes, where failure is our bug: CHECKs, returns the first output.
  ValueId must_add(Op op, std::vector<ValueId> inputs, ops::Attrs attrs = {}, std::string name = "");
  void mark_output(ValueId value, std::string name);

  // ---- looking ----
  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  Node& node(NodeId id) { return nodes_[id]; }  // inputs only through set_inputs, which keeps users()
  const Type& type(ValueId id) const { return values_[id].type; }
  int value_count() const { return static_cast<int>(values_.size()); }
  int node_count() const { return static_cast<int>(nodes_.size()); }  // erased ones included
  /// Topological, without erased nodes. A pass that changes the graph while it walks copies it first.
  const std::vector<NodeId>& order() const { return order_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  const std::vector<std::string>& output_names() const { return output_names_; }  // parallel to outputs()
  /// Nodes that read a value, in order, each once.
  std::vector<NodeId> users(ValueId id) const;
  bool is_output(ValueId id) const;
  /// The node that makes a value when it is of this op, else kNone.
  NodeId producer(ValueId id, Op op) const;
  /// The call of a node, for the functions of `ops`. Borrows from the graph.
  ops::Call call(NodeId id) const;

  // ---- changing ----
  /// Every reader of `from`, and the output list, reads `to` instead.
  void replace_uses(ValueId from, ValueId to);
  void erase_node(NodeId id);  // its outputs keep their ids, but nobody may read them any more
  void set_inputs(NodeId id, std::vector<ValueId> inputs);
  /// Removes nodes whose outputs nobody reads. Inputs and outputs stay. Returns how many.
  int remove_dead();
  /// Restores a topological order after a pass has added nodes at the end: each node stays where it is, and what it needs from
  /// further on comes just before it. An order that is topological already is not changed. CHECKs that there is no cycle.
  void sort();
  /// A copy without erased nodes and unused values, values renumbered: inputs, constants by first use, nodes' outputs.
  Graph compacted() const;

 private:
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  void use(ValueId id, NodeId reader);
  void unuse(ValueId id, NodeId reader);
  ValueId add_value(Value value);

  std::vector<NodeId> order_;
  std::vector<int64_t> position_;            // by node, grows along order_
  std::vector<std::vector<NodeId>> users_;   // by value, each reader once, unordered
  std::vector<ValueId> inputs_, outputs_;
  std::vector<std::string> output_names_;
};

/// All invariants: types agree with ops::infer, one producer, topological order, known values, outputs exist.
/// A failure after a step is our bug; the text names the node.
Status verify(const Graph& graph);

/// The text form, deterministic. Large constants print as type and hash and cannot be parsed back unless `weights` is given.
///
///   graph "tiny" {
///     in %0 "x": f32[2,3]
///     const %1 "w": f32[3] = [1, 2, 3]
///     %2: f32[2,3] = Add(%0, %1) "layer/add"
///     %3: f32[2,3] = Gelu(%2) {approximate = "tanh"}
///     out %3 "y"
///   }
std::string print(const Graph& graph);
/// Errors: kUsage with line and column.
Result<Graph> parse(std::string_view text);

/// Interprets a graph with the reference. `exact`: every floating tensor is carried in f64 (constants are widened as they are read).
/// `probe`, when set, receives every node's outputs as they come (for bisecting); returning false stops.
struct Interpretation {
  bool exact = false;
  std::function<bool(NodeId, std::span<const Tensor>)> probe;
};
Result<std::vector<Tensor>> interpret(const Graph& graph, std::span<const Tensor> inputs, const Interpretation& how = {});

}  // namespace obelisk::graph

/// graph/graph.h — the door of `graph`: a network with all shapes known, as values and nodes.
///
/// A Graph is in static single assignment: every value has one producer (a node, the input list or
/// a constant). Nodes are kept in a topological order that insertion and sort() maintain; every
/// loop over a graph is over that order, so that every output of the compiler is deterministic.
/// Control flow does not exist here: the frontend resolves or refuses it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"
#include "ops/ops.h"

namespace obelisk::graph {

using obelisk::to_string;
using ops::Op;
using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr int32_t kNone = -1;

struct Value {
  std::string name;  // the user's name, may be empty for values that passes make
  Type type;
  Tensor constant;  // not empty: the value is known when compiling
  NodeId producer = kNone;
  int producer_output = 0;
  bool is_constant() const { return !constant.empty(); }
};

struct Node {
  Op op;
  ops::Attrs attrs;
  std::vector<ValueId> inputs;  // kNone where an optional input is absent
  std::vector<ValueId>
      outputs;       // never kNone: an output that is skipped is a value without readers
  std::string name;  // the user's node this came from; fused nodes join names with '+'
  bool erased = false;
};

class Graph {
 public:
  std::string name;

  // ---- building ----
  ValueId add_input(std::string name, Type type);
  ValueId add_constant(Tensor tensor, std::string name = "");
  /// Adds a node at the end, infers its types and makes its outputs. Errors: those of ops::infer,
  /// with the node's name.
  Result<NodeId> add_node(Op op, std::vector<ValueId> inputs, ops::Attrs attrs = {},
                          std::string name = "", int outputs = 1);
  /// The same for passes, where failure is our bug: CHECKs, returns the first output.
  ValueId must_add(Op op, std::vector<ValueId> inputs, ops::Attrs attrs = {},
                   std::string name = "");
  /// `in_place_of`: which of inputs() the output takes the memory of, or kNone. What the graph
  /// means does not depend on it: a caller that gives both the same memory finds the output there
  /// after a run, and a program may write only the elements that differ.
  void mark_output(ValueId value, std::string name, int in_place_of = kNone);

  // ---- looking ---- References to values, nodes and types hold while the graph grows.
  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  Node& node(NodeId id) {
    return nodes_[id];
  }  // inputs only through set_inputs, which keeps users()
  const Type& type(ValueId id) const { return values_[id].type; }
  int value_count() const { return static_cast<int>(values_.size()); }
  int node_count() const { return static_cast<int>(nodes_.size()); }  // erased ones included
  /// Topological, without erased nodes. A pass that changes the graph while it walks copies it
  /// first.
  const std::vector<NodeId>& order() const { return order_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  const std::vector<std::string>& output_names() const {
    return output_names_;
  }  // parallel to outputs()
  /// Of an output: the input whose memory it takes, by its place in inputs(), or kNone.
  int in_place_of(size_t output) const { return in_place_of_[output]; }
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
  void erase_node(NodeId id);  // its outputs keep their ids, but may not be read any more
  void set_inputs(NodeId id, std::vector<ValueId> inputs);
  /// Removes nodes whose outputs have no readers. Inputs and outputs stay. Returns how many.
  int remove_dead();
  /// Restores a topological order after a pass has added nodes at the end: each node stays where it
  /// is, and what it needs from further on comes just before it. An order that is topological
  /// already is not changed. CHECKs that there is no cycle.
  void sort();
  /// A copy without erased nodes and unused values, values renumbered: inputs, constants by first
  /// use, nodes' outputs.
  Graph compacted() const;

 private:
  std::deque<Value> values_;
  std::deque<Node> nodes_;
  void use(ValueId id, NodeId reader);
  void unuse(ValueId id, NodeId reader);
  ValueId add_value(Value value);

  std::vector<NodeId> order_;
  std::vector<int64_t> position_;           // by node, grows along order_
  std::vector<std::vector<NodeId>> users_;  // by value, each reader once, unordered
  std::vector<ValueId> inputs_, outputs_;
  std::vector<std::string> output_names_;
  std::vector<int> in_place_of_;  // parallel to outputs_
};

/// All invariants: types agree with ops::infer, one producer, topological order, known values,
/// outputs exist. A failure after a step is our bug; the text names the node.
Status verify(const Graph& graph);

/// The text form, deterministic: values are numbered as compacted() numbers them, whatever their
/// ids are.
///
///   graph "tiny" {
///     in %0 "x": f32[2,3]
///     const %1 "w": f32[3] = [1, 2, 3]
///     const %2 "table": f32[512,64] = #53c24ff42a1b0b1c9aa1c1f4d2f1a6f0
///     %3: f32[2,3] = Add(%0, %1) "layer/add"
///     %4 "top": f32[2,1], %5: i64[2,1] = TopK(%3, %6) {axis = 1, largest = 1}
///     out %4 "y"
///   }
///
/// The string before a colon is the value's name, the one at the end of a line the node's. An
/// absent input is `_`. `out %4 "y" in_place_of "x"`: the output takes the memory of the input "x",
/// which has its type.  Attributes are 1 (an integer), 1.0 (a float), "text", [1, 2], [1.0, 2.0],
/// `floats []`, `tensor f32[2] [1, 2]`. A tensor is a list of its elements, `0x` and its bytes
/// (where a list would lose NaN payloads), or `#` and the hash of its bytes. `//` starts a comment.
/// Hashes that need not be computed again, by the address and the number of a tensor's bytes.
using KnownHashes = std::map<std::pair<const void*, int64_t>, Hash>;
struct PrintOptions {
  bool all_data = false;  // every tensor in full, so that the text alone can be parsed back
  int64_t list_limit =
      32;  // tensors of more elements are printed as their hash (or bytes, with all_data)
  const KnownHashes* hashes = nullptr;
};
std::string print(const Graph& graph, const PrintOptions& options = {});
std::string print(const Graph& graph,
                  NodeId id);  // one node's line, with ids for numbers, for messages

/// Tensors by the hash of their bytes, for the text form. collect_weights finds those that print()
/// shows as a hash.
using Weights = std::map<Hash, Tensor>;
Weights collect_weights(const Graph& graph, const PrintOptions& options = {});
/// The hashes of those tensors, computed on all cores; valid while the graph's tensors live.
KnownHashes hash_weights(const Graph& graph, const PrintOptions& options = {});

/// Every type is inferred again and compared with what the text says. Memory is bounded by the
/// length of the text. Errors: kUsage with line and column.
Result<Graph> parse(std::string_view text, const Weights& weights = {});

/// Interprets a graph with the reference. `exact`: every f64, f32, f16 and bf16 tensor is carried
/// in f64 (constants are widened as they are read), the answers too; the 8- and 4-bit floats stay
/// what they are, for they store and do not compute. A Cast still rounds its values to the type it
/// names, since that is its meaning. `sums`: what the references of f32 and narrower values add up
/// in (those of f64 always in f64). `probe`, when set, receives every node's outputs as they come
/// (for bisecting); returning false stops, and there are no answers. Errors: kUsage when the inputs
/// are not the graph's, kMemory, and those of the references, with the node's name.
struct Interpretation {
  bool exact = false;
  ops::Sums sums = ops::Sums::kDouble;
  std::function<bool(NodeId, std::span<const Tensor>)> probe;
};
Result<std::vector<Tensor>> interpret(const Graph& graph, std::span<const Tensor> inputs,
                                      const Interpretation& how = {});
/// Whether the interpreter reads that input, a constant, in its own type where others are widened:
/// it gives the same numbers, for what multiplies weights reads each once, and of a table few rows
/// are looked up (a Gather's output is widened instead).
bool reads_as_stored(const Graph& graph, const Node& node, size_t input);

}  // namespace obelisk::graph

#include "graph/compare.h"  // last, because they speak of the types above
#include "graph/random.h"

/// frontends/onnx/site.h — one node on its way into the graph, and what the walk knows around it.
///
///   Item      what a name stands for: a constant, a value of the graph, a list (sequence or
///             optional), or unknown
///   Scope     names of one body: the model's graph, an inner graph (sees its parent) or a function
///             (does not)
///   Site      a node with its inputs and attributes, and emit(), which adds ops of the newest
///             spelling or folds them
///   Importer  the walk
///
/// A handler rewrites one op: it reads the site, emits, and sets site.outputs. Errors stick to the
/// site: after the first, emit() answers unknown items, so that handlers need no checks between
/// steps.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/onnx/import.h"

namespace obelisk::frontends::onnx {

struct Item {
  enum class Kind : uint8_t { kAbsent, kUnknown, kTensor, kSequence, kOptional };
  Kind kind = Kind::kAbsent;
  Type type;                         // of tensors
  Tensor constant;                   // of tensors known when importing
  graph::ValueId id = graph::kNone;  // of tensors in the graph; constants enter it when needed
  std::shared_ptr<const std::vector<Item>> list;  // of a sequence; of an optional, none or one
  std::string name;                               // the user's name of a constant
  std::string reason;  // why an unknown item is unknown, when no node has been blamed for it yet

  bool is_tensor() const { return kind == Kind::kTensor; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_constant() const { return is_tensor() && !constant.empty(); }
  static Item of(Tensor tensor, std::string name = "");
  static Item sequence(std::vector<Item> items);
  static Item optional(std::vector<Item> items);
  static Item unknown(std::string reason = "");
};
using Items = std::vector<Item>;

struct Scope {
  const Scope* parent = nullptr;
  std::string prefix;  // of node names: "layer_3/"
  const Opsets* opsets = nullptr;
  /// Of the call of the function that this is in.
  const std::map<std::string_view, const AttributeDef*>* attributes = nullptr;
  std::map<std::string_view, Item> names;

  const Item* find(std::string_view name) const;
};

class Importer;

class Site {
 public:
  Site(Importer& importer, const NodeDef& node, const Scope& scope)
      : importer(importer), node(node), scope(scope) {}

  Importer& importer;
  const NodeDef& node;
  const Scope& scope;
  std::string name;  // the user's, or "Conv_17"
  std::string op;
  int64_t opset = 0;  // of the node's domain
  ops::Attrs attrs;
  std::map<std::string_view, const Body*> bodies;  // attributes that are graphs
  Items inputs;
  Items outputs;

  // ---- looking ----
  bool has(int input) const { return in(input).kind != Item::Kind::kAbsent; }
  const Item& in(int input) const;
  const Type& type(int input) const { return in(input).type; }
  const Shape& shape(int input) const { return in(input).type.shape; }
  int rank(int input) const { return in(input).type.rank(); }
  bool wants(int output) const;  // it has a name
  int wanted() const;            // outputs up to the last named one
  /// An axis counted from the front; out of range it is the model's fault.
  int64_t axis(int64_t axis, int64_t rank);
  /// The integers of an input that has to be known now; refuses the node otherwise.
  std::vector<int64_t> ints(int input, std::string_view what);

  // ---- making ----
  Items emit(std::string_view op, Items inputs, ops::Attrs attrs, int outputs);
  Item emit(std::string_view op, Items inputs, ops::Attrs attrs = {}) {
    return emit(op, std::move(inputs), std::move(attrs), 1)[0];
  }
  /// The node as it stands: its inputs, attributes and outputs under `op`.
  void pass_through();
  void finish(Item item) { outputs.assign(1, std::move(item)); }
  Item scalar(DType dtype, double value);
  Item vector(const std::vector<int64_t>& values) { return Item::of(tensor_of(values)); }
  Item cast(const Item& item, DType dtype);
  Item reshape(const Item& item, const Shape& shape);
  Item filled(DType dtype, const Shape& shape, double value);
  Item expand(const Item& item, const Shape& shape);
  Item slice(const Item& item, int64_t axis, int64_t begin, int64_t end, int64_t step = 1);
  Item concat(const Items& items, int64_t axis);
  Item transpose(const Item& item, const std::vector<int64_t>& order);

  // ---- failing ----
  bool ok() const { return !failure; }
  void refuse(std::string reason, std::string hint = "");       // a valid node that cannot be run
  void contradict(std::string message, std::string hint = "");  // a node that is wrong
  void fail(Error error);
  std::optional<Error> failure;
};

using Handler = void (*)(Site&);
/// The handler of an op, nullptr when its newest spelling goes straight into the graph.
Handler find_handler(std::string_view domain, std::string_view op);

/// What nothing binds, for one message about all of it.
struct Unbound {
  std::vector<std::string> what, flags;  // "dimension 'batch' of input 'x'", "--shape batch=2"
  std::set<std::string> symbols;         // of them, each once
};

class Importer {
 public:
  Importer(const Model& model, const ImportOptions& options, ImportReport& report);
  Result<graph::Graph> run();

  /// Runs an inner graph on its inputs: its outputs. Its node names get `prefix`.
  Result<Items> run_body(const Body& body, const Scope& parent, Items inputs, std::string prefix);
  const Model& model() const { return model_; }
  const ImportOptions& options() const { return options_; }
  /// Adds one op, or folds it.
  Result<Items> emit(std::string_view op, Items inputs, ops::Attrs attrs, const std::string& name,
                     int outputs);

 private:
  Status bind_symbols();
  Result<Shape> bound_shape(const ValueDef& input, Unbound& missing);
  Status enter_inputs(Scope& scope);
  Status enter_initializers(const Body& body, Scope& scope);
  Status run_nodes(const std::vector<NodeDef>& nodes, Scope& scope);
  Status run_node(const NodeDef& node, Scope& scope, int64_t index);
  Status read_inputs(Site& site);
  Status read_attributes(Site& site);
  Status call_function(Site& site, const FunctionDef& function);
  void dispatch(Site& site);
  void blame(const Site& site, const Error& error);
  void name_outputs(Site& site, Scope& scope);
  std::optional<Items> fold(ops::Call& call, const ops::Types& types);
  graph::ValueId enter(const Item& item);
  Status count_node(const std::string& name);
  Result<int> in_place_of_output(const std::string& name, graph::ValueId value);
  Result<graph::Graph> finish(const Scope& scope);

  const Model& model_;
  const ImportOptions& options_;
  ImportReport& report_;
  graph::Graph graph_;
  std::map<std::string, int64_t, std::less<>> symbols_;  // of dimensions
  std::map<std::string, std::string> ambiguous_;         // symbols with two values, and where
  std::map<std::string, const FunctionDef*, std::less<>> functions_;
  std::vector<const FunctionDef*> active_;          // being inlined, outermost first
  std::map<const void*, std::vector<int>> orders_;  // of the nodes of each body
  std::map<std::pair<const void*, std::string>, graph::ValueId> constants_;
  int64_t nodes_ = 0;
  int body_depth_ = 0;
  int64_t root_ = -1;  // the model's own node that is being imported
  double fold_flops_ = 0;
  int64_t fold_bytes_ = 0;
};

}  // namespace obelisk::frontends::onnx

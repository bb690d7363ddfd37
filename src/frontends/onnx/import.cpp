// The walk: inputs and weights enter the scope, nodes follow in topological order, each through its
// handler.
#include <algorithm>

#include "frontends/onnx/order.h"
#include "frontends/onnx/site.h"

namespace obelisk::frontends {
namespace onnx {
namespace {

constexpr int64_t kFoldElements =
    1 << 20;                    // of the outputs of one node: larger constants stay computations
constexpr int kMaxBodies = 64;  // of inner graphs and functions within each other
constexpr int64_t kNewestOpset = 28;

bool is_random(std::string_view op) {
  return op.starts_with("Random") || op == "Bernoulli" || op == "Multinomial" || op == "Dropout";
}

/// Rows of the op table that the standard lacks: a model that names them means something else.
bool is_ours(std::string_view op) {
  return op == "Rsqrt" || op == "Recurrence" || op == "MaskedSoftmax" || op == "NormStatistics";
}

std::string function_key(std::string_view domain, std::string_view name,
                         std::string_view overload) {
  return fmt::format("{}:{}:{}", domain, name, overload);
}

std::string type_text(const Item& item) {
  switch (item.kind) {
    case Item::Kind::kAbsent:
      return "";
    case Item::Kind::kUnknown:
      return "?";
    case Item::Kind::kTensor:
      return std::string(to_string(item.type.dtype));
    case Item::Kind::kSequence:
      return "sequence";
    case Item::Kind::kOptional:
      return "optional";
  }
  return "";
}

Error wrong_in_place(std::string message) {
  return {Code::kUsage, "frontends", std::move(message), "",
          "an output takes the memory of one input of its own type"};
}

}  // namespace

Importer::Importer(const Model& model, const ImportOptions& options, ImportReport& report)
    : model_(model), options_(options), report_(report) {}

Result<graph::Graph> Importer::run() {
  graph_.name = std::string(model_.graph.name);
  for (const FunctionDef& function : model_.functions)
    functions_[function_key(function.domain == "ai.onnx" ? "" : function.domain, function.name,
                            function.overload)] = &function;
  Scope scope;
  scope.opsets = &model_.opsets;
  TRY_STATUS(bind_symbols());
  TRY_STATUS(enter_initializers(model_.graph, scope));
  TRY_STATUS(enter_inputs(scope));
  TRY_STATUS(run_nodes(model_.graph.nodes, scope));
  return finish(scope);
}

Status Importer::enter_initializers(const Body& body, Scope& scope) {
  const auto add = [&](std::string_view name, Result<Tensor> tensor) -> Status {
    if (tensor.ok())
      scope.names[name] = Item::of(*std::move(tensor), scope.prefix + std::string(name));
    else if (tensor.error().code == Code::kUnsupported)
      scope.names[name] = Item::unknown(tensor.error().message);
    else
      return std::move(tensor.error());
    return ok_status();
  };
  for (const TensorDef& tensor : body.initializers)
    TRY_STATUS(add(tensor.name, decode(model_, tensor)));
  for (const SparseTensorDef& tensor : body.sparse_initializers)
    TRY_STATUS(add(tensor.values.name, decode(model_, tensor)));
  return ok_status();
}

// ---- nodes ----------------------------------------------------------------------------------

Status Importer::count_node(const std::string& name) {
  if (++nodes_ <= options_.max_nodes) return ok_status();
  return Error{Code::kMemory, "frontends",
               fmt::format("the model has more than {} nodes when functions are inlined and loops "
                           "are unrolled",
                           options_.max_nodes),
               name, "shorten the loop, or raise the limit"};
}

Status Importer::run_nodes(const std::vector<NodeDef>& nodes, Scope& scope) {
  auto found = orders_.find(&nodes);
  if (found == orders_.end()) {
    TRY(std::vector<int> order, topological_order(nodes));
    found = orders_.emplace(&nodes, std::move(order)).first;
  }
  for (const int at : found->second) TRY_STATUS(run_node(nodes[at], scope, at));
  return ok_status();
}

Status Importer::run_node(const NodeDef& node, Scope& scope, int64_t index) {
  Site site(*this, node, scope);
  site.op = std::string(node.op);
  site.name = scope.prefix +
              (node.name.empty() ? fmt::format("{}_{}", node.op, index) : std::string(node.name));
  if (active_.empty() && body_depth_ == 0) root_ = index;
  TRY_STATUS(count_node(site.name));
  if (site.wanted() == 0) return ok_status();
  TRY_STATUS(read_inputs(site));

  const auto unknown = std::find_if(site.inputs.begin(), site.inputs.end(), [](const Item& item) {
    return item.kind == Item::Kind::kUnknown;
  });
  if (unknown != site.inputs.end()) {
    if (!unknown->reason.empty()) site.refuse(unknown->reason);
    site.outputs.assign(node.outputs.size(), Item::unknown());
  } else if (const Status attributes = read_attributes(site); !attributes.ok()) {
    site.fail(attributes.error());
  } else if (const auto function =
                 functions_.find(function_key(node.domain, node.op, node.overload));
             function != functions_.end()) {
    TRY_STATUS(call_function(site, *function->second));
  } else {
    dispatch(site);
  }

  if (!site.ok()) {
    if (site.failure->code != Code::kUnsupported) return std::move(*site.failure);
    blame(site, *site.failure);
    site.outputs.assign(node.outputs.size(), Item::unknown());
  }
  name_outputs(site, scope);
  return ok_status();
}

Status Importer::read_inputs(Site& site) {
  for (const std::string_view input : site.node.inputs) {
    if (input.empty()) {
      site.inputs.emplace_back();
      continue;
    }
    const Item* item = site.scope.find(input);
    if (!item)
      return bad_model(fmt::format("reads '{}', which nothing writes", input), site.name,
                       "the model is incomplete");
    site.inputs.push_back(*item);
  }
  return ok_status();
}

void Importer::dispatch(Site& site) {
  const std::string_view domain = site.node.domain;
  const auto version = site.scope.opsets->find(domain);
  if (version != site.scope.opsets->end()) {
    site.opset = version->second;
  } else if (const auto outer = model_.opsets.find(domain); outer != model_.opsets.end()) {
    site.opset = outer->second;
  } else if (domain.empty()) {
    return site.contradict("the model does not say which version of the operator set it uses",
                           "add an opset_import for the domain 'ai.onnx'");
  }
  // A newer set may give an op another meaning or attributes that say it: answers would be wrong
  // without a word.
  if (domain.empty() && site.opset > kNewestOpset)
    return site.refuse(
        fmt::format("the operator set {} is newer than {}, the newest known", site.opset,
                    kNewestOpset),
        fmt::format("export the model with opset_version={} or older", kNewestOpset));
  if (const Handler handler = find_handler(domain, site.op)) {
    handler(site);
    if (site.ok() && static_cast<int>(site.outputs.size()) < site.wanted())
      site.refuse(fmt::format("output {} is not supported", site.wanted() - 1));
  } else if (domain.empty() && is_ours(site.op)) {
    site.refuse(fmt::format("there is no implementation of the op '{}'", site.op));
  } else if (domain.empty()) {
    site.pass_through();
  } else {
    site.refuse(fmt::format("the op '{}' of the domain '{}' is not known", site.op, domain),
                "export the model without custom operators, or with their function bodies");
  }
}

Status Importer::call_function(Site& site, const FunctionDef& function) {
  if (std::find(active_.begin(), active_.end(), &function) != active_.end())
    return bad_model(fmt::format("the function '{}' calls itself", function.name), site.name);
  if (static_cast<int>(active_.size()) + body_depth_ >= kMaxBodies)
    return bad_model(fmt::format("functions call each other deeper than {}", kMaxBodies),
                     site.name);
  if (site.inputs.size() > function.inputs.size())
    return bad_model(fmt::format("gives {} inputs to the function '{}', which takes {}",
                                 site.inputs.size(), function.name, function.inputs.size()),
                     site.name);
  std::map<std::string_view, const AttributeDef*> attributes;
  for (const AttributeDef& attribute : function.attribute_defaults)
    attributes[attribute.name] = &attribute;
  for (const AttributeDef& attribute : site.node.attributes) {
    const AttributeDef* given = &attribute;
    if (!attribute.reference.empty()) {
      if (!site.scope.attributes || !site.scope.attributes->contains(attribute.reference)) continue;
      given = site.scope.attributes->at(attribute.reference);
    }
    attributes[attribute.name] = given;
  }
  Scope scope;
  scope.prefix = site.name + "/";
  scope.opsets = &function.opsets;
  scope.attributes = &attributes;
  for (size_t at = 0; at < function.inputs.size(); ++at)
    scope.names[function.inputs[at]] = site.in(static_cast<int>(at));

  active_.push_back(&function);
  TRY_STATUS(run_nodes(function.nodes, scope));
  active_.pop_back();
  for (const std::string_view output : function.outputs) {
    const Item* item = scope.find(output);
    if (!item)
      return bad_model(
          fmt::format("the function '{}' never writes its output '{}'", function.name, output),
          site.name);
    site.outputs.push_back(*item);
  }
  if (site.outputs.size() < site.node.outputs.size())
    return bad_model(fmt::format("wants {} outputs of the function '{}', which has {}",
                                 site.node.outputs.size(), function.name, site.outputs.size()),
                     site.name);
  return ok_status();
}

Result<Items> Importer::run_body(const Body& body, const Scope& parent, Items inputs,
                                 std::string prefix) {
  if (inputs.size() != body.inputs.size())
    return bad_model(fmt::format("the inner graph '{}' takes {} inputs but gets {}", body.name,
                                 body.inputs.size(), inputs.size()));
  if (static_cast<int>(active_.size()) + body_depth_ >= kMaxBodies)
    return bad_model(fmt::format("graphs nest deeper than {}", kMaxBodies));
  Scope scope;
  scope.parent = &parent;
  scope.prefix = std::move(prefix);
  scope.opsets = parent.opsets;
  scope.attributes = parent.attributes;
  TRY_STATUS(enter_initializers(body, scope));
  for (size_t at = 0; at < inputs.size(); ++at)
    scope.names[body.inputs[at].name] = std::move(inputs[at]);
  ++body_depth_;
  TRY_STATUS(run_nodes(body.nodes, scope));
  --body_depth_;
  Items outputs;
  for (const ValueDef& output : body.outputs) {
    const Item* item = scope.find(output.name);
    if (!item)
      return bad_model(
          fmt::format("the inner graph '{}' never writes its output '{}'", body.name, output.name));
    outputs.push_back(*item);
  }
  return outputs;
}

void Importer::blame(const Site& site, const Error& error) {
  Unsupported one;
  one.node = error.node.empty() ? site.name : error.node;
  one.op = site.op;
  one.domain = std::string(site.node.domain);
  one.opset = site.opset;
  one.root = root_;
  one.inputs.assign(site.node.inputs.begin(), site.node.inputs.end());
  one.inputs.resize(site.inputs.size());
  for (const Item& input : site.inputs) {
    one.types.push_back(type_text(input));
    one.shapes.push_back(input.is_tensor()                   ? to_string(input.type.shape)
                         : input.kind == Item::Kind::kAbsent ? ""
                                                             : "?");
  }
  // Rules of ops begin with the op, which stands beside the reason.
  const std::string prefix = site.op + ": ";
  one.reason = error.message.substr(error.message.starts_with(prefix) ? prefix.size() : 0);
  one.hint = error.hint;
  report_.unsupported.push_back(std::move(one));
}

void Importer::name_outputs(Site& site, Scope& scope) {
  for (int at = 0; at < static_cast<int>(site.node.outputs.size()); ++at) {
    if (!site.wants(at)) continue;
    const std::string_view name = site.node.outputs[at];
    Item item = site.outputs[at];
    const std::string full = scope.prefix + std::string(name);
    if (item.is_constant() && item.name.empty()) item.name = full;
    if (item.id != graph::kNone) {  // a name from inside of this node gives way to the one outside
      std::string& known = graph_.value(item.id).name;
      if (known.empty() || known.starts_with(site.name + "/")) known = full;
    }
    scope.names[name] = std::move(item);
  }
}

// ---- ops ------------------------------------------------------------------------------------

Result<Items> Importer::emit(std::string_view op_name, Items inputs, ops::Attrs attrs,
                             const std::string& name, int outputs) {
  const std::optional<ops::Op> op = ops::parse_op(op_name);
  if (!op)
    return Error{Code::kUnsupported, "frontends",
                 fmt::format("there is no implementation of the op '{}'", op_name), name, ""};
  while (!inputs.empty() && inputs.back().kind == Item::Kind::kAbsent) inputs.pop_back();
  ops::Call call{.op = *op, .attrs = attrs, .outputs = outputs};
  bool constant = !is_random(op_name);
  for (const Item& input : inputs) {
    if (input.kind == Item::Kind::kUnknown) return Items(outputs, Item::unknown());
    if (input.kind == Item::Kind::kSequence || input.kind == Item::Kind::kOptional)
      return Error{Code::kUnsupported, "frontends",
                   fmt::format("{} takes no {}", op_name, type_text(input)), name, ""};
    constant = constant && (input.kind == Item::Kind::kAbsent || input.is_constant());
    call.inputs.push_back(input.is_tensor() ? &input.type : nullptr);
    call.constants.push_back(input.is_constant() ? &input.constant : nullptr);
  }
  TRY_STATUS(count_node(name));
  TRY(const ops::Types types, ops::infer(call));
  for (const Type& type : types) TRY_STATUS(check_extents(type.shape, op_name));
  if (constant)
    if (std::optional<Items> folded = fold(call, types)) return *std::move(folded);

  std::vector<graph::ValueId> ids;
  for (const Item& input : inputs) ids.push_back(enter(input));
  TRY(const graph::NodeId id,
      graph_.add_node(*op, std::move(ids), std::move(attrs), name, outputs));
  Items made;
  for (const graph::ValueId value : graph_.node(id).outputs) {
    Item item;
    item.kind = Item::Kind::kTensor;
    item.type = graph_.type(value);
    item.id = value;
    made.push_back(std::move(item));
  }
  return made;
}

/// The answer of a call whose inputs are all constants, where it is small and cheap.
std::optional<Items> Importer::fold(ops::Call& call, const ops::Types& types) {
  int64_t elements = 0, bytes = 0;
  for (const Type& type : types) {
    elements += type.count();
    bytes += type.bytes();
    call.results.push_back(&type);
  }
  if (elements > kFoldElements || !ops::row(call.op).reference) return std::nullopt;
  fold_flops_ += ops::cost(call).flops.count;
  fold_bytes_ += bytes;
  if (fold_flops_ > options_.fold_flops || fold_bytes_ > options_.fold_bytes) return std::nullopt;
  std::vector<Tensor> outputs;
  for (const Type& type : types) outputs.push_back(Tensor::allocate(type));
  if (!ops::reference(call, call.constants, outputs).ok()) return std::nullopt;
  Items folded;
  for (Tensor& output : outputs) folded.push_back(Item::of(std::move(output)));
  return folded;
}

/// The value of a tensor in the graph. A constant enters once, however many nodes read it.
graph::ValueId Importer::enter(const Item& item) {
  if (item.kind == Item::Kind::kAbsent) return graph::kNone;
  if (item.id != graph::kNone) return item.id;
  const auto key = std::make_pair(item.constant.data(), to_string(item.type));
  const auto found = constants_.find(key);
  if (found != constants_.end() && item.type.count() > 0) return found->second;
  return constants_[key] = graph_.add_constant(item.constant, item.name);
}

/// Which of the graph's inputs an output takes the memory of, or kNone.
Result<int> Importer::in_place_of_output(const std::string& name, graph::ValueId value) {
  const auto wanted = options_.in_place.find(name);
  if (wanted == options_.in_place.end()) return graph::kNone;
  int found = graph::kNone;
  for (size_t k = 0; k < graph_.inputs().size(); ++k)
    if (graph_.value(graph_.inputs()[k]).name == wanted->second) found = static_cast<int>(k);
  if (found == graph::kNone)
    return wrong_in_place(fmt::format("output '{}' is to be in place of '{}', which is no input",
                                      name, wanted->second));
  const Type& old = graph_.type(graph_.inputs()[static_cast<size_t>(found)]);
  if (old != graph_.type(value))
    return wrong_in_place(
        fmt::format("output '{}' is {}, but input '{}', in whose place it is to be, {}", name,
                    to_string(graph_.type(value)), wanted->second, to_string(old)));
  for (size_t k = 0; k < graph_.outputs().size(); ++k)
    if (graph_.in_place_of(k) == found)
      return wrong_in_place(
          fmt::format("two outputs are to be in place of input '{}'", wanted->second));
  return found;
}

Result<graph::Graph> Importer::finish(const Scope& scope) {
  for (const auto& wanted : options_.in_place)
    if (std::none_of(model_.graph.outputs.begin(), model_.graph.outputs.end(),
                     [&](const ValueDef& output) { return output.name == wanted.first; }))
      return wrong_in_place(fmt::format("the model has no output '{}'", wanted.first));
  std::set<std::string_view> seen;
  for (const ValueDef& output : model_.graph.outputs) {
    const std::string name(output.name);
    if (!seen.insert(output.name).second)
      return bad_model(fmt::format("the model has two outputs '{}'", name));
    const Item* item = scope.find(output.name);
    if (!item) return bad_model(fmt::format("nothing writes the model's output '{}'", name));
    if (item->is_tensor()) {
      const graph::ValueId value = enter(*item);
      TRY(const int in_place_of, in_place_of_output(name, value));
      graph_.mark_output(value, name, in_place_of);
      continue;
    }
    const std::string reason =
        item->kind == Item::Kind::kUnknown
            ? item->reason
            : fmt::format("it is no tensor but a value of type {}", type_text(*item));
    if (!reason.empty())
      report_.unsupported.push_back({.node = name,
                                     .op = "output",
                                     .reason = reason,
                                     .hint = "return its parts as outputs of their own"});
  }
  if (!report_.unsupported.empty()) {
    const Unsupported& first = report_.unsupported.front();
    const size_t more = report_.unsupported.size() - 1;
    return Error{Code::kUnsupported, "frontends",
                 fmt::format("{}: {}{}", first.op, first.reason,
                             more ? fmt::format(" (and {} more nodes cannot be run)", more) : ""),
                 first.node, first.hint};
  }
  graph_.remove_dead();
  return graph_.compacted();
}

}  // namespace onnx

Result<graph::Graph> import_onnx(const onnx::Model& model, const ImportOptions& options,
                                 ImportReport* report) {
  ImportReport own;
  return onnx::Importer(model, options, report ? *report : own).run();
}

}  // namespace obelisk::frontends

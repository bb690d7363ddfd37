#include "host_tail.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "frontends/onnx/order.h"

namespace obelisk::compiler {

using frontends::onnx::Body;
using frontends::onnx::DimensionDef;
using frontends::onnx::Model;
using frontends::onnx::NodeDef;
using frontends::onnx::TypeDef;
using frontends::onnx::ValueDef;
using Names = std::set<std::string_view>;

namespace {

/// Nodes as they were, those that are wanted.
std::vector<NodeDef> chosen(const std::vector<NodeDef>& nodes, const std::vector<bool>& wanted) {
  std::vector<NodeDef> out;
  for (size_t k = 0; k < nodes.size(); ++k)
    if (wanted[k]) out.push_back(nodes[k]);
  return out;
}

Names outputs_of(const std::vector<NodeDef>& nodes) {
  Names names;
  for (const NodeDef& node : nodes) names.insert(node.outputs.begin(), node.outputs.end());
  names.erase("");
  return names;
}

/// What nodes read and do not write themselves, in the order of the reads.
std::vector<std::string_view> read_from_outside(const std::vector<NodeDef>& nodes) {
  const Names own = outputs_of(nodes);
  Names seen;
  std::vector<std::string_view> out;
  for (const NodeDef& node : nodes)
    frontends::onnx::for_each_read(node, [&](std::string_view name) {
      if (!name.empty() && !own.contains(name) && seen.insert(name).second) out.push_back(name);
    });
  return out;
}

template <typename Tensors, typename NameOf>
void keep_named(Tensors& tensors, const Names& names, NameOf&& name_of) {
  std::erase_if(tensors, [&](const auto& each) { return !names.contains(name_of(each)); });
}

/// Nodes reached from `from`, these included, in the direction of the data.
std::vector<bool> downstream(const std::vector<NodeDef>& nodes, const std::vector<int>& order,
                             std::vector<bool> from, Names names) {
  for (const int k : order) {
    const NodeDef& node = nodes[static_cast<size_t>(k)];
    bool reads = from[static_cast<size_t>(k)];
    frontends::onnx::for_each_read(node,
                                   [&](std::string_view name) { reads |= names.contains(name); });
    from[static_cast<size_t>(k)] = reads;
    if (!reads) continue;
    for (const std::string_view output : node.outputs)
      if (!output.empty()) names.insert(output);
  }
  return from;
}

/// As an importer wants an input: with its shape.
ValueDef port_of(std::string_view name, const Type& type) {
  ValueDef port{name, {}};
  port.type.kind = TypeDef::Kind::kTensor;
  port.type.element = frontends::onnx::to_element_type(type.dtype);
  port.type.has_shape = true;
  for (const int64_t extent : type.shape) port.type.shape.push_back({extent, {}});
  return port;
}

/// Nothing is known when compiling, and little is worth deciding then: what a run gives decides.
frontends::ImportOptions with_values(const std::vector<std::string>& names,
                                     std::span<const Tensor> values) {
  frontends::ImportOptions options;
  for (size_t k = 0; k < names.size(); ++k)
    if (!names[k].empty()) options.bound_inputs[names[k]] = values[k];
  return options;
}

/// The model's word for an output's type; extents that it leaves open, or that a symbol stands
/// for, are -1. Where it says no shape: that of `seen`, of which only the rank is certain.
Type declared_type(const ValueDef& output, const Type* seen) {
  Type type;
  type.dtype =
      frontends::onnx::to_dtype(output.type.element).value_or(seen ? seen->dtype : DType::f32);
  if (output.type.has_shape)
    for (const DimensionDef& dimension : output.type.shape)
      type.shape.push_back(dimension.value.value_or(-1));
  else if (seen)
    type.shape.assign(seen->shape.size(), -1);
  return type;
}

}  // namespace

struct TailBuilder {
  const Model& model;
  const frontends::ImportOptions& options;
  const frontends::ImportReport& report;

  std::optional<SplitModel> build() const {
    const std::vector<NodeDef>& nodes = model.graph.nodes;
    const auto order = frontends::onnx::topological_order(nodes);
    if (!order.ok()) return std::nullopt;
    std::vector<bool> blamed(nodes.size(), false);
    for (const frontends::Unsupported& each : report.unsupported) {
      if (each.root < 0 || each.root >= static_cast<int64_t>(nodes.size())) return std::nullopt;
      blamed[static_cast<size_t>(each.root)] = true;
    }
    std::vector<bool> in_tail = downstream(nodes, *order, blamed, {});
    std::vector<bool> in_head = in_tail;
    in_head.flip();

    // What depends on no input is told to both: constants that the tail reads need not travel.
    Names inputs;
    for (const ValueDef& input : model.graph.inputs) inputs.insert(input.name);
    const std::vector<bool> of_inputs =
        downstream(nodes, *order, std::vector<bool>(nodes.size(), false), inputs);
    for (auto k = order->rbegin(); k != order->rend(); ++k) {
      const auto at = static_cast<size_t>(*k);
      if (of_inputs[at] || in_tail[at]) continue;
      const std::vector<std::string_view> read = read_from_outside(chosen(nodes, in_tail));
      in_tail[at] = std::any_of(read.begin(), read.end(), [&](std::string_view name) {
        return !name.empty() && std::find(nodes[at].outputs.begin(), nodes[at].outputs.end(),
                                          name) != nodes[at].outputs.end();
      });
    }

    SplitModel split{model, nullptr};
    auto tail = std::make_shared<HostTail>();
    tail->model_ = model;
    tail->model_.graph.nodes = chosen(nodes, in_tail);
    split.head.graph.nodes = chosen(nodes, in_head);
    return cut(std::move(split), std::move(tail), blamed);
  }

  std::optional<SplitModel> cut(SplitModel split, std::shared_ptr<HostTail> tail,
                                const std::vector<bool>& blamed) const {
    Body &head = split.head.graph, &end = tail->model_.graph;
    const Names made_by_head = outputs_of(head.nodes), made_by_tail = outputs_of(end.nodes);
    Names stored, inputs;
    for (const auto& tensor : end.initializers) stored.insert(tensor.name);
    for (const auto& tensor : end.sparse_initializers) stored.insert(tensor.values.name);
    for (const ValueDef& input : model.graph.inputs) inputs.insert(input.name);

    // The head's outputs: the model's that it makes, then what the tail reads besides.
    head.outputs.clear();
    std::map<std::string_view, int> place;
    const auto give = [&](std::string_view name) {
      const auto [at, fresh] = place.try_emplace(name, static_cast<int>(head.outputs.size()));
      if (fresh) head.outputs.push_back({name, {}});
      return at->second;
    };
    std::vector<ValueDef> wanted;
    for (const ValueDef& output : model.graph.outputs) {
      const bool late = made_by_tail.contains(output.name) && !made_by_head.contains(output.name);
      tail->outputs_.push_back({std::string(output.name), late ? -1 : give(output.name), {}});
      if (late) wanted.push_back(output);
    }
    const std::vector<std::string_view> asked = read_from_outside(end.nodes);
    const Names read(asked.begin(), asked.end());
    for (const std::string_view name : asked)
      if (made_by_head.contains(name) || (inputs.contains(name) && !stored.contains(name)))
        give(name);
    keep_named(end.initializers, read, [](const auto& each) { return each.name; });
    keep_named(end.sparse_initializers, read, [](const auto& each) { return each.values.name; });

    const auto graph = frontends::import_onnx(split.head, options);
    if (!graph.ok()) return std::nullopt;
    end.inputs.clear(), end.outputs = wanted;
    std::vector<Tensor> nothing;
    for (size_t k = 0; k < head.outputs.size(); ++k) {
      const std::string_view name = head.outputs[k].name;
      const Type& type = graph->type(graph->outputs()[k]);
      const bool reads = read.contains(name);
      tail->inputs_.push_back(reads ? std::string(name) : "");
      if (reads) end.inputs.push_back(port_of(name, type));
      Tensor& zeros = nothing.emplace_back(Tensor::allocate(type));
      if (type.bytes() > 0) std::memset(zeros.mutable_data(), 0, type.bytes());
    }
    // A first run, on zeros: what cannot be run at all is found before anything is compiled.
    const auto tried = frontends::import_onnx(tail->model_, with_values(tail->inputs_, nothing));
    if (!tried.ok() && tried.error().code == Code::kUnsupported) return std::nullopt;
    size_t next = 0;
    for (HostTail::Output& output : tail->outputs_) {
      if (output.head >= 0) continue;
      const Type* seen = tried.ok() ? &tried->type(tried->outputs()[next]) : nullptr;
      output.type = declared_type(wanted[next++], seen);
    }
    explain(*tail, blamed);
    split.tail = std::move(tail);
    return split;
  }

  void explain(HostTail& tail, const std::vector<bool>& blamed) const {
    const auto began = std::count(blamed.begin(), blamed.end(), true);
    tail.text_ = fmt::format("{} nodes run on the host, after the program, and are interpreted:\n",
                             tail.model_.graph.nodes.size());
    for (const frontends::Unsupported& each : report.unsupported) {
      const std::string named = fmt::format("{} '{}'", each.op, each.node);
      if (tail.first_.empty()) tail.first_ = named;
      tail.text_ += fmt::format("  {}: {}\n", named, each.reason);
    }
    const auto more = static_cast<int64_t>(tail.model_.graph.nodes.size()) - began;
    if (more > 0) tail.text_ += fmt::format("  and {} that they lead to, or constants\n", more);
  }
};

Result<std::vector<Tensor>> HostTail::run(std::span<const Tensor> head) const {
  CHECK(head.size() == inputs_.size(), "{} values, {} needed", head.size(), inputs_.size());
  TRY(const graph::Graph graph, frontends::import_onnx(model_, with_values(inputs_, head)));
  TRY(const std::vector<Tensor> made, graph::interpret(graph, {}));
  std::vector<Tensor> out;
  size_t next = 0;
  for (const Output& output : outputs_) out.push_back(output.head < 0 ? made[next++] : Tensor());
  return out;
}

std::optional<SplitModel> split_tail(const Model& model, const frontends::ImportOptions& options,
                                     const frontends::ImportReport& report) {
  return TailBuilder{model, options, report}.build();
}

}  // namespace obelisk::compiler

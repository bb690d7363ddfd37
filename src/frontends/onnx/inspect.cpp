#include "frontends/onnx/inspect.h"

#include <set>

namespace obelisk::frontends {
namespace {

using onnx::TypeDef;

std::string type_text(const TypeDef& type) {
  switch (type.kind) {
    case TypeDef::Kind::kTensor:
      if (const auto dtype = to_dtype(type.element)) return std::string(to_string(*dtype));
      return to_string(type.element);  // of no number
    case TypeDef::Kind::kSparse:
      return fmt::format("sparse({})", to_string(type.element));
    case TypeDef::Kind::kSequence:
      return fmt::format("sequence({})", type.nested ? type_text(*type.nested) : "?");
    case TypeDef::Kind::kOptional:
      return fmt::format("optional({})", type.nested ? type_text(*type.nested) : "?");
    case TypeDef::Kind::kMap:
      return "map";
    case TypeDef::Kind::kOpaque:
      return "opaque";
    case TypeDef::Kind::kUnknown:
      return "?";
  }
  return "?";
}

PortDescription describe(const onnx::ValueDef& value) {
  PortDescription port{std::string(value.name), type_text(value.type), value.type.has_shape, {}};
  for (const onnx::DimensionDef& dimension : value.type.shape) {
    if (dimension.value && *dimension.value >= 0)
      port.shape.push_back(std::to_string(*dimension.value));
    else
      port.shape.push_back(dimension.symbol.empty() ? "?" : std::string(dimension.symbol));
  }
  return port;
}

int64_t count_nodes(const std::vector<onnx::NodeDef>& nodes) {
  int64_t count = static_cast<int64_t>(nodes.size());
  for (const onnx::NodeDef& node : nodes)
    for (const onnx::AttributeDef& attribute : node.attributes)
      if (attribute.graph) count += count_nodes(attribute.graph->nodes);
  return count;
}

}  // namespace

std::string PortDescription::shape_text() const {
  return has_shape ? fmt::format("[{}]", fmt::join(shape, ",")) : "?";
}

ModelDescription inspect(const onnx::Model& model) {
  ModelDescription out;
  std::set<std::string_view> defaults, symbols;
  for (const onnx::TensorDef& tensor : model.graph.initializers) {
    defaults.insert(tensor.name);
    const auto dtype = to_dtype(tensor.type);
    if (dtype && onnx::check_extents(tensor.dims, "").ok())
      out.weights_bytes += byte_size(*dtype, element_count(tensor.dims));
  }
  for (const onnx::SparseTensorDef& tensor : model.graph.sparse_initializers)
    defaults.insert(tensor.values.name);
  for (const onnx::ValueDef& input : model.graph.inputs) {
    if (defaults.contains(input.name)) continue;
    out.inputs.push_back(describe(input));
    for (const onnx::DimensionDef& dimension : input.type.shape)
      if (!dimension.value && !dimension.symbol.empty() && symbols.insert(dimension.symbol).second)
        out.symbols.emplace_back(dimension.symbol);
  }
  for (const onnx::ValueDef& output : model.graph.outputs) out.outputs.push_back(describe(output));
  out.opsets = model.opsets;
  out.producer = std::string(model.producer);
  if (!model.producer_version.empty()) out.producer += " " + std::string(model.producer_version);
  out.nodes = count_nodes(model.graph.nodes);
  for (const onnx::FunctionDef& function : model.functions)
    out.nodes += count_nodes(function.nodes);
  out.functions = static_cast<int64_t>(model.functions.size());
  return out;
}

}  // namespace obelisk::frontends

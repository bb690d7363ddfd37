// Their graph, read through their functions. What a node says that this format has no place for is
// the reason why it is not taken.
#include <algorithm>
#include <cstring>
#include <protozero/pbf_writer.hpp>

#include "frontends/frontends.h"
#include "ort/calls.h"
#include "ort/graph.h"

namespace obelisk::ort {
namespace {

using protozero::pbf_writer;

template <typename Function, typename Of, typename List, typename T>
std::vector<T> list_of(const Api& api, Function count, Of of, List list, T) {
  std::vector<T> all(ask<size_t>(api, count, of));
  if (!all.empty()) must(api, list(of, all.data(), all.size()));
  return all;
}
#define LIST(of, count, list, type) \
  list_of(api, api.count, of, api.list, static_cast<type>(nullptr))

std::string name_of(const Api& api, const ValueInfo* value) {
  return value ? ask<const char*>(api, api.GetValueInfoName, value) : "";
}

ValueType type_of(const Api& api, const TensorInfo* info) {
  ValueType type;
  type.element = ask<int32_t>(api, api.GetTensorElementType, info);
  type.has_shape = api.TensorTypeAndShape_HasShape(info);
  if (!type.has_shape) return type;
  type.extents.resize(ask<size_t>(api, api.GetDimensionsCount, info));
  std::vector<const char*> symbols(type.extents.size());
  if (!symbols.empty()) {
    must(api, api.GetDimensions(info, type.extents.data(), type.extents.size()));
    must(api, api.GetSymbolicDimensions(info, symbols.data(), symbols.size()));
  }
  for (const char* symbol : symbols) type.symbols.emplace_back(symbol ? symbol : "");
  return type;
}

ValueType type_of(const Api& api, const ValueInfo* value) {
  const auto* type = ask<const TypeInfo*>(api, api.GetValueInfoTypeInfo, value);
  if (!type || ask<ValueKind>(api, api.GetOnnxTypeFromTypeInfo, type) != ValueKind::kTensor)
    return {};
  const auto* info = ask<const TensorInfo*>(api, api.CastTypeInfoToTensorInfo, type);
  return info ? type_of(api, info) : ValueType{};
}

std::span<const std::byte> data_of(const Api& api, const Value* value) {
  const auto bytes = ask<size_t>(api, api.GetTensorSizeInBytes, value);
  if (bytes == 0) return {};
  return {static_cast<const std::byte*>(ask<const void*>(api, api.GetTensorData, value)), bytes};
}

std::string bytes_of(const Api& api, const Attribute* attribute, AttributeKind kind) {
  size_t bytes = 0;
  // how many is told by a call that has no room for them, and fails where there are any
  if (Answer* short_of = api.ReadOpAttr(attribute, kind, nullptr, 0, &bytes))
    api.ReleaseStatus(short_of);
  std::string data(bytes, '\0');
  if (bytes > 0) must(api, api.ReadOpAttr(attribute, kind, data.data(), bytes, &bytes));
  data.resize(bytes);
  return data;
}

template <typename T, typename Add>
void each_of(const std::string& bytes, Add add) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    memcpy(&value, bytes.data() + at, sizeof value);
    add(value);
  }
}

std::string tensor_message(const Api& api, const Attribute* attribute) {
  auto* value = ask<Value*>(api, api.OpAttr_GetTensorAttributeAsOrtValue, attribute);
  auto* info = ask<TensorInfo*>(api, api.GetTensorTypeAndShape, value);
  const ValueType type = type_of(api, info);
  api.ReleaseTensorTypeAndShapeInfo(info);
  std::string bytes;
  pbf_writer out(bytes);
  for (int64_t extent : type.extents) out.add_int64(1, extent);
  out.add_int32(2, type.element);
  const auto data = data_of(api, value);
  out.add_bytes(9, reinterpret_cast<const char*>(data.data()), data.size());
  api.ReleaseValue(value);
  return bytes;
}

/// An attribute's message; empty where it is of a kind that is not read.
std::string attribute_message(const Api& api, const Attribute* attribute) {
  auto kind = AttributeKind::kUndefined;
  if (Answer* unknown = api.OpAttr_GetType(attribute, &kind)) {
    api.ReleaseStatus(unknown);
    return "";
  }
  std::string message;
  pbf_writer out(message);
  out.add_string(1, ask<const char*>(api, api.OpAttr_GetName, attribute));
  const auto finish = [&](int32_t number) {
    out.add_int32(20, number);
    return message;
  };
  if (kind == AttributeKind::kTensor) {
    out.add_message(5, tensor_message(api, attribute));
    return finish(4);
  }
  if (kind == AttributeKind::kUndefined || kind == AttributeKind::kGraph) return "";
  const std::string bytes = bytes_of(api, attribute, kind);
  switch (kind) {
    case AttributeKind::kInt:
      each_of<int64_t>(bytes, [&](int64_t value) { out.add_int64(3, value); });
      return finish(2);
    case AttributeKind::kInts:
      each_of<int64_t>(bytes, [&](int64_t value) { out.add_int64(8, value); });
      return finish(7);
    case AttributeKind::kFloat:
      each_of<float>(bytes, [&](float value) { out.add_float(2, value); });
      return finish(1);
    case AttributeKind::kFloats:
      each_of<float>(bytes, [&](float value) { out.add_float(7, value); });
      return finish(6);
    case AttributeKind::kString:
      out.add_bytes(4, bytes);
      return finish(3);
    case AttributeKind::kStrings:  // each with a zero behind it
      for (size_t at = 0; at < bytes.size(); at = std::min(bytes.find('\0', at), bytes.size()) + 1)
        out.add_bytes(9, bytes.c_str() + at);
      return finish(8);
    default:
      return "";
  }
}

bool draws_numbers(const Node& node) {
  return node.op.starts_with("Random") || node.op == "Bernoulli" || node.op == "Multinomial" ||
         (node.op == "Dropout" && node.inputs.size() > 2);
}

/// Why values of this type do not pass between their nodes and ours; empty where they do.
std::string refusal_of(const ValueType& type, bool weight) {
  if (type.element == 0) return "is no tensor";
  const auto element = static_cast<frontends::onnx::ElementType>(type.element);
  const auto dtype = frontends::onnx::to_dtype(element);
  if (!dtype) return "is of type " + frontends::onnx::to_string(element);
  if (!weight && bits(*dtype) < 8) return "has elements smaller than a byte";
  return "";
}

}  // namespace

Graph read_graph(const Api& api, const OrtGraph* graph) {
  Graph out;
  std::vector<const char*> domains(ask<size_t>(api, api.Graph_GetNumOperatorSets, graph));
  std::vector<int64_t> versions(domains.size());
  must(api, api.Graph_GetOperatorSets(graph, domains.data(), versions.data(), domains.size()));
  for (size_t k = 0; k < domains.size(); ++k) out.opsets.emplace_back(domains[k], versions[k]);
  for (const auto* value : LIST(graph, Graph_GetNumOutputs, Graph_GetOutputs, const ValueInfo*))
    out.outputs.insert(name_of(api, value));

  const auto enter = [&](const ValueInfo* value, Node& node) {
    const std::string name = name_of(api, value);
    if (name.empty()) return name;
    const auto [at, added] = out.values.try_emplace(name);
    if (added) {
      at->second = type_of(api, value);
      if (ask<bool>(api, api.ValueInfo_IsConstantInitializer, value) &&
          refusal_of(at->second, true).empty()) {
        const auto* data = ask<const Value*>(api, api.ValueInfo_GetInitializerValue, value);
        if (data) out.weights[name] = {at->second, data_of(api, data)};
      }
      if (ask<bool>(api, api.ValueInfo_IsGraphOutput, value)) out.outputs.insert(name);
    }
    const std::string refused = refusal_of(at->second, out.weights.contains(name));
    if (!refused.empty() && node.refused.empty()) node.refused = "'" + name + "' " + refused;
    return name;
  };
  for (const auto* theirs : LIST(graph, Graph_GetNumNodes, Graph_GetNodes, const OrtNode*)) {
    Node node{.name = ask<const char*>(api, api.Node_GetName, theirs),
              .op = ask<const char*>(api, api.Node_GetOperatorType, theirs),
              .domain = ask<const char*>(api, api.Node_GetDomain, theirs),
              .theirs = theirs};
    for (const auto* value : LIST(theirs, Node_GetNumInputs, Node_GetInputs, const ValueInfo*))
      node.inputs.push_back(enter(value, node));
    for (const auto* value : LIST(theirs, Node_GetNumOutputs, Node_GetOutputs, const ValueInfo*))
      node.outputs.push_back(enter(value, node));
    for (const auto* value :
         LIST(theirs, Node_GetNumImplicitInputs, Node_GetImplicitInputs, const ValueInfo*))
      node.outer.push_back(name_of(api, value));
    if (draws_numbers(node)) node.refused = "it draws other numbers in each run";
    if (ask<size_t>(api, api.Node_GetNumSubgraphs, theirs) > 0)
      node.refused = "it has inner graphs";
    for (const auto* attribute :
         LIST(theirs, Node_GetNumAttributes, Node_GetAttributes, const Attribute*)) {
      node.attributes.push_back(attribute_message(api, attribute));
      if (node.attributes.back().empty() && node.refused.empty())
        node.refused = "it has an attribute that is not read";
    }
    out.nodes.push_back(std::move(node));
  }
  return out;
}

}  // namespace obelisk::ort

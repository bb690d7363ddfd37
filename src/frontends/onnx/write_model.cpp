#include "frontends/onnx/write_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <protozero/pbf_writer.hpp>
#include <set>

#include "base/file_writer.h"
#include "base/protobuf.h"

namespace obelisk::frontends {
namespace {

using graph::Graph;
using graph::ValueId;
using protozero::pbf_writer;

// shapes and axes stay inside, where shape inference looks for them
constexpr int64_t kSmall = 1024;
// norms of groups and blocked quantization mean what the op table says from here on
constexpr int64_t kOldest = 21;

/// Meanings and types that old ops have since then.
bool needs_28(const Graph& graph, const graph::Node& node) {
  const auto type = [&](size_t input) { return graph.type(node.inputs[input]).dtype; };
  switch (node.op) {
    case ops::Op::SpaceToDepth:
      return node.attrs.has("mode");
    case ops::Op::Mod:
      return is_float(type(0)) && node.attrs.get_int("fmod", 0) == 0;
    case ops::Op::BitShift:
      return is_signed(type(0));
    case ops::Op::Celu:
      return type(0) != DType::f32;
    case ops::Op::Compress:
    case ops::Op::Einsum:
    case ops::Op::ReverseSequence:
    case ops::Op::Unique:
      return type(0) == DType::bf16;
    case ops::Op::OneHot:
      return type(2) == DType::bf16;
    default:
      return false;
  }
}

int64_t since(const Graph& graph, const graph::Node& node) {
  static const std::map<std::string_view, int64_t> table = {
      {"RMSNormalization", 23},
      {"Attention", 23},
      {"RotaryEmbedding", 23},
      {"Swish", 24},
      {"TensorScatter", 24},
      {"CumProd", 26},
      {"BitCast", 26},
      {"LinearAttention", 27},
      {"CausalConvWithState", 27},
      {"SwiGLU", 28},
  };
  const auto found = table.find(ops::to_string(node.op));
  int64_t needed = found == table.end() ? kOldest : found->second;
  // the length of what is no padding
  if (node.op == ops::Op::Attention && node.inputs.size() > 6) needed = 24;
  if (node.attrs.has("left_window_size") || node.attrs.has("right_window_size")) needed = 25;
  if (node.op == ops::Op::DequantizeLinear && node.attrs.has("output_dtype")) needed = 23;
  if (node.attrs.has("round_mode")) needed = 24;
  if (node.op == ops::Op::QuantizeLinear && node.attrs.has("precision")) needed = 23;
  if (needs_28(graph, node)) needed = 28;
  return needed;
}

int64_t since(DType dtype) {
  switch (dtype) {
    case DType::f4e2m1:
      return 23;
    case DType::f8e8m0:
      return 24;
    case DType::i2:
    case DType::u2:
      return 25;
    default:
      return kOldest;
  }
}

std::string type_message(const Type& type) {
  const std::string shape = message([&](pbf_writer& out) {
    for (int64_t extent : type.shape)
      out.add_message(1, message([&](pbf_writer& dim) { dim.add_int64(1, extent); }));
  });
  const std::string tensor = message([&](pbf_writer& out) {
    out.add_int32(1, static_cast<int32_t>(ops::number_of_dtype(type.dtype)));
    out.add_message(2, shape);
  });
  return message([&](pbf_writer& out) { out.add_message(1, tensor); });
}

std::string value_message(const std::string& name, const Type& type) {
  return message(
      [&](pbf_writer& out) { out.add_string(1, name), out.add_message(2, type_message(type)); });
}

std::string entry(const std::string& key, const std::string& value) {
  return message([&](pbf_writer& out) { out.add_string(1, key), out.add_string(2, value); });
}

/// Where weights go: into the message, or to a file beside it.
class WeightFile {
 public:
  Status open(const std::string& path) {
    name_ = path.substr(path.rfind('/') + 1);
    TRY(file_, FileWriter::create(path));
    return ok_status();
  }
  Status commit() { return file_ ? file_->commit() : ok_status(); }
  Result<std::string> tensor(const std::string& name, const Tensor& value) {
    const std::string_view bytes(value.as<char>(), static_cast<size_t>(value.bytes()));
    const bool beside = file_ && value.bytes() > kSmall;
    size_t offset = 0;
    if (beside) {
      TRY_STATUS(file_->pad_to(4096));
      offset = file_->size();
      TRY_STATUS(file_->write(bytes));
    }
    return message([&](pbf_writer& out) {
      for (int64_t extent : value.shape()) out.add_int64(1, extent);
      out.add_int32(2, static_cast<int32_t>(ops::number_of_dtype(value.dtype())));
      if (!name.empty()) out.add_string(8, name);
      if (!beside) return out.add_bytes(9, bytes.data(), bytes.size());
      for (const auto& [key, text] : {std::pair<std::string, std::string>{"location", name_},
                                      {"offset", std::to_string(offset)},
                                      {"length", std::to_string(bytes.size())}})
        out.add_message(13, entry(key, text));
      out.add_int32(14, 1);
    });
  }

 private:
  std::string name_;
  std::unique_ptr<FileWriter> file_;
};

std::string attribute_message(const std::string& name, const ops::Attr& attr) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    int32_t kind = 0;
    if (const auto* value = std::get_if<int64_t>(&attr)) kind = 2, out.add_int64(3, *value);
    if (const auto* value = std::get_if<double>(&attr))
      kind = 1, out.add_float(2, static_cast<float>(*value));
    if (const auto* value = std::get_if<std::string>(&attr)) kind = 3, out.add_bytes(4, *value);
    if (const auto* value = std::get_if<std::vector<int64_t>>(&attr)) {
      kind = 7;
      for (int64_t each : *value) out.add_int64(8, each);
    }
    if (const auto* value = std::get_if<std::vector<double>>(&attr)) {
      kind = 6;
      for (double each : *value) out.add_float(7, static_cast<float>(each));
    }
    if (const auto* value = std::get_if<Tensor>(&attr)) {
      kind = 4;
      WeightFile inside;
      out.add_message(5, *inside.tensor("", *value));
    }
    out.add_int32(20, kind);
  });
}

/// Names of values in the file: inputs' and outputs' are the user's, all others only have to
/// differ.
class Names {
 public:
  explicit Names(const Graph& graph) : names_(graph.value_count()) {
    for (ValueId v : graph.inputs()) take(v, graph.value(v).name);
    for (size_t k = 0; k < graph.outputs().size(); ++k) {
      const std::string& name = graph.output_names()[k];
      used_.insert(name);
      const graph::Value& value = graph.value(graph.outputs()[k]);
      if (value.producer != graph::kNone && names_[graph.outputs()[k]].empty())
        names_[graph.outputs()[k]] = name;
    }
    for (ValueId v = 0; v < graph.value_count(); ++v)
      if (names_[v].empty()) take(v, graph.value(v).name);
  }
  const std::string& of(ValueId v) const { return names_[v]; }
  std::string fresh(const std::string& wanted) {
    std::string name = wanted;
    for (int k = 1; name.empty() || !used_.insert(name).second; ++k)
      name = fmt::format("{}.{}", wanted.empty() ? "value" : wanted, k);
    return name;
  }

 private:
  void take(ValueId v, const std::string& wanted) {
    names_[v] = fresh(wanted.empty() ? fmt::format("value_{}", v) : wanted);
  }
  std::vector<std::string> names_;
  std::set<std::string> used_;
};

struct NodeText {
  std::string name, op;
  std::vector<std::string> inputs, outputs;
  const ops::Attrs* attrs = nullptr;
  Notes notes;
};

/// An op that the standard has no words for: it stands in a domain of its own. Viewers show it; who
/// runs the model expands it before (passes::expand_for_machine).
bool is_ours(std::string_view op, const ops::Attrs* attrs) {
  return op == "Recurrence" || op == "MaskedSoftmax" || op == "NormStatistics" ||
         (op == "Attention" && attrs && attrs->has("nan_if_masked"));
}

std::string node_message(const NodeText& node) {
  return message([&](pbf_writer& out) {
    for (const std::string& input : node.inputs) out.add_string(1, input);
    for (const std::string& output : node.outputs) out.add_string(2, output);
    if (!node.name.empty()) out.add_string(3, node.name);
    out.add_string(4, node.op);
    if (is_ours(node.op, node.attrs)) out.add_string(7, "obelisk");
    if (node.attrs)
      for (const auto& [name, attr] : node.attrs->all())
        out.add_message(5, attribute_message(name, attr));
    for (const auto& [key, text] : node.notes) out.add_message(9, entry(key, text));
  });
}

}  // namespace

int64_t needed_opset(const Graph& graph) {
  int64_t needed = kOldest;
  for (graph::NodeId id : graph.order()) {
    const graph::Node& node = graph.node(id);
    needed = std::max(needed, since(graph, node));
    for (const auto* list : {&node.inputs, &node.outputs})
      for (ValueId v : *list)
        if (v != graph::kNone) needed = std::max(needed, since(graph.type(v).dtype));
  }
  return needed;
}

Status write_onnx(const Graph& graph, const std::string& path,
                  const std::function<Notes(graph::NodeId)>& notes) {
  Names names(graph);
  std::vector<ValueId> constants;
  std::vector<bool> listed(graph.value_count(), false);
  const auto need = [&](ValueId v) {
    if (v == graph::kNone || listed[v] || !graph.value(v).is_constant()) return;
    listed[v] = true, constants.push_back(v);
  };
  for (graph::NodeId id : graph.order())
    for (ValueId v : graph.node(id).inputs) need(v);
  for (ValueId v : graph.outputs()) need(v);
  int64_t bytes = 0;
  for (ValueId v : constants) bytes += graph.type(v).bytes();
  WeightFile weights;
  if (bytes > kInlineWeights) TRY_STATUS(weights.open(path + ".weights"));

  // nodes' names: those that passes made several nodes of get a number
  std::set<std::string> taken;
  const auto unique = [&](const std::string& wanted) {
    std::string name = wanted;
    for (int k = 1; !name.empty() && !taken.insert(name).second; ++k)
      name = fmt::format("{}.{}", wanted, k);
    return name;
  };
  std::string body;
  pbf_writer out(body);
  for (graph::NodeId id : graph.order()) {
    const graph::Node& node = graph.node(id);
    NodeText text{.name = unique(node.name),
                  .op = std::string(ops::to_string(node.op)),
                  .attrs = &node.attrs,
                  .notes = notes ? notes(id) : Notes{}};
    for (ValueId v : node.inputs) text.inputs.push_back(v == graph::kNone ? "" : names.of(v));
    for (ValueId v : node.outputs) text.outputs.push_back(names.of(v));
    if (node.op == ops::Op::Rsqrt) {  // ours alone: the standard has its two parts
      const std::string root = names.fresh(text.outputs[0] + ".root");
      out.add_message(1, node_message({.name = text.name,
                                       .op = "Sqrt",
                                       .inputs = text.inputs,
                                       .outputs = {root},
                                       .notes = text.notes}));
      text.name = unique(text.name + ".reciprocal"), text.op = "Reciprocal", text.inputs = {root};
    }
    out.add_message(1, node_message(text));
  }
  // second names, and outputs that no node makes
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    if (names.of(graph.outputs()[k]) != graph.output_names()[k])
      out.add_message(1, node_message({.op = "Identity",
                                       .inputs = {names.of(graph.outputs()[k])},
                                       .outputs = {graph.output_names()[k]}}));
  out.add_string(2, graph.name.empty() ? "graph" : graph.name);
  for (ValueId v : constants) {
    TRY(const std::string tensor, weights.tensor(names.of(v), graph.value(v).constant));
    out.add_message(5, tensor);
  }
  for (ValueId v : graph.inputs()) out.add_message(11, value_message(names.of(v), graph.type(v)));
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    out.add_message(12, value_message(graph.output_names()[k], graph.type(graph.outputs()[k])));
  for (graph::NodeId id : graph.order())
    for (ValueId v : graph.node(id).outputs)
      if (!graph.is_output(v)) out.add_message(13, value_message(names.of(v), graph.type(v)));

  const int64_t opset = needed_opset(graph);
  const std::string model = message([&](pbf_writer& to) {
    to.add_int64(1, opset <= 22 ? 10 : opset == 23 ? 11 : opset <= 25 ? 12 : opset <= 27 ? 13 : 14);
    to.add_string(2, "obelisk");
    to.add_message(7, body);
    to.add_message(
        8, message([&](pbf_writer& set) { set.add_string(1, ""), set.add_int64(2, opset); }));
    if (std::any_of(graph.order().begin(), graph.order().end(), [&](graph::NodeId id) {
          const graph::Node& node = graph.node(id);
          return is_ours(ops::to_string(node.op), &node.attrs);
        }))
      to.add_message(
          8, message([&](pbf_writer& set) { set.add_string(1, "obelisk"), set.add_int64(2, 1); }));
  });
  TRY_STATUS(weights.commit());
  return write_file(path, model);
}

}  // namespace obelisk::frontends

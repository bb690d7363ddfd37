// Which inputs' values do shapes and control flow depend on: a backward walk over names, without
// any shapes.
//
// All bodies of a model share one table of names (inner graphs may not shadow outer names); each
// function has its own.
#include <algorithm>
#include <set>

#include "frontends/onnx/inspect.h"

namespace obelisk::frontends {
namespace onnx {
namespace {

/// Inputs, by position, whose values decide a shape or what is run.
const std::map<std::string_view, std::vector<int>>& shape_inputs() {
  static const std::map<std::string_view, std::vector<int>> table = {
      {"Reshape", {1}},         {"Slice", {1, 2, 3, 4}},
      {"Expand", {1}},          {"Tile", {1, 2}},
      {"Pad", {1, 3}},          {"TopK", {1}},
      {"Range", {0, 1, 2}},     {"ConstantOfShape", {0}},
      {"OneHot", {1}},          {"Resize", {1, 2, 3}},
      {"Upsample", {1}},        {"Squeeze", {1}},
      {"Unsqueeze", {1}},       {"ReduceSum", {1}},
      {"ReduceMean", {1}},      {"ReduceMax", {1}},
      {"ReduceMin", {1}},       {"ReduceProd", {1}},
      {"ReduceL1", {1}},        {"ReduceL2", {1}},
      {"ReduceLogSum", {1}},    {"ReduceLogSumExp", {1}},
      {"ReduceSumSquare", {1}}, {"CumSum", {1}},
      {"CumProd", {1}},         {"Split", {1}},
      {"Trilu", {1}},           {"CenterCropPad", {1}},
      {"DFT", {1, 2}},          {"STFT", {1, 3}},
      {"HannWindow", {0}},      {"HammingWindow", {0}},
      {"BlackmanWindow", {0}},  {"MelWeightMatrix", {0, 1, 2, 3, 4}},
      {"MaxUnpool", {2}},       {"Col2Im", {1, 2}},
      {"AffineGrid", {1}},      {"SplitToSequence", {1}},
      {"SequenceAt", {1}},      {"SequenceErase", {1}},
      {"SequenceInsert", {2}},  {"Compress", {1}},
      {"Dropout", {1, 2}},      {"GroupQueryAttention", {6}},
      {"Loop", {0, 1}},         {"If", {0}},
  };
  return table;
}

class Tracer {
 public:
  explicit Tracer(const Model& model) : model_(model) {}

  /// The names among `roots` that shapes depend on, when `wanted` names matter as well.
  std::set<std::string_view> trace(const std::vector<NodeDef>& nodes,
                                   std::set<std::string_view> wanted, int depth) {
    Names names;
    collect(nodes, names);
    for (const NodeDef* node : names.nodes) seed(*node, wanted, depth);
    std::vector<std::string_view> work(wanted.begin(), wanted.end());
    const auto want = [&](std::string_view name) {
      if (!name.empty() && wanted.insert(name).second) work.push_back(name);
    };
    while (!work.empty()) {
      const std::string_view name = work.back();
      work.pop_back();
      if (const auto carried = names.carried.find(name); carried != names.carried.end())
        for (const std::string_view source : carried->second) want(source);
      const auto producer = names.producers.find(name);
      if (producer == names.producers.end()) continue;
      const NodeDef& node = *producer->second;
      if (node.domain.empty() && (node.op == "Shape" || node.op == "Size")) continue;
      for (const std::string_view input : node.inputs) want(input);
      for (const AttributeDef& attribute : node.attributes)
        if (attribute.graph)
          for (const ValueDef& output : attribute.graph->outputs) want(output.name);
    }
    return wanted;
  }

 private:
  struct Names {
    std::vector<const NodeDef*> nodes;
    std::map<std::string_view, const NodeDef*> producers;
    std::map<std::string_view, std::vector<std::string_view>>
        carried;  // input of an inner graph -> its sources
  };

  void collect(const std::vector<NodeDef>& nodes, Names& names) {
    for (const NodeDef& node : nodes) {
      names.nodes.push_back(&node);
      for (const std::string_view output : node.outputs) names.producers.emplace(output, &node);
      for (const AttributeDef& attribute : node.attributes) {
        if (!attribute.graph) continue;
        const Body& body = *attribute.graph;
        for (size_t at = 0; at < body.inputs.size(); ++at) {
          auto& sources = names.carried[body.inputs[at].name];
          // A loop's inputs stand in the node's order; what an iteration returns comes back one
          // place further left.
          if (at < node.inputs.size()) sources.push_back(node.inputs[at]);
          if (node.op == "Loop" && at >= 1 && at - 1 < body.outputs.size())
            sources.push_back(body.outputs[at - 1].name);
          if (node.op == "Scan" && at < body.outputs.size())
            sources.push_back(body.outputs[at].name);
        }
        collect(body.nodes, names);
      }
    }
  }

  void seed(const NodeDef& node, std::set<std::string_view>& wanted, int depth) {
    const auto add = [&](int input) {
      if (input < static_cast<int>(node.inputs.size()) && !node.inputs[input].empty())
        wanted.insert(node.inputs[input]);
    };
    if (const FunctionDef* function = find_function(node); function && depth < 16) {
      const auto [at, fresh] = functions_.emplace(function, std::set<std::string_view>{});
      if (fresh) at->second = trace(function->nodes, {}, depth + 1);
      for (size_t input = 0; input < function->inputs.size(); ++input)
        if (functions_[function].contains(function->inputs[input])) add(static_cast<int>(input));
      return;
    }
    if (!node.domain.empty() && node.domain != "com.microsoft") return;
    if (const auto found = shape_inputs().find(node.op); found != shape_inputs().end())
      for (const int input : found->second) add(input);
    if (node.op == "Loop")  // whether it goes on
      for (const AttributeDef& attribute : node.attributes)
        if (attribute.graph && !attribute.graph->outputs.empty())
          wanted.insert(attribute.graph->outputs[0].name);
  }

  const FunctionDef* find_function(const NodeDef& node) const {
    for (const FunctionDef& function : model_.functions)
      if (function.name == node.op && function.domain == node.domain &&
          function.overload == node.overload)
        return &function;
    return nullptr;
  }

  const Model& model_;
  std::map<const FunctionDef*, std::set<std::string_view>> functions_;  // names that matter inside
};

/// Shapes are given by scalars and vectors; a larger tensor is data, even where a shape depends on
/// it.
bool can_tell_a_shape(const TypeDef& type) {
  if (type.kind != TypeDef::Kind::kTensor || !to_dtype(type.element)) return false;
  return !type.has_shape || type.shape.size() <= 1;
}

}  // namespace
}  // namespace onnx

std::vector<std::string> value_dependent_inputs(const onnx::Model& model) {
  const std::set<std::string_view> wanted = onnx::Tracer(model).trace(model.graph.nodes, {}, 0);
  std::set<std::string_view> defaults;
  for (const onnx::TensorDef& tensor : model.graph.initializers) defaults.insert(tensor.name);
  std::vector<std::string> names;
  for (const onnx::ValueDef& input : model.graph.inputs)
    if (wanted.contains(input.name) && !defaults.contains(input.name) &&
        onnx::can_tell_a_shape(input.type))
      names.emplace_back(input.name);
  return names;
}

}  // namespace obelisk::frontends

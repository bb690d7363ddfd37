#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "graph/graph.h"

namespace obelisk::graph {
namespace {

Error usage(std::string message, std::string node = "") {
  return {.code = Code::kUsage,
          .room = "graph",
          .message = std::move(message),
          .node = std::move(node)};
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Interpretation& how)
      : graph_(graph),
        how_(how),
        tensors_(static_cast<size_t>(graph.value_count())),
        last_reader_(static_cast<size_t>(graph.value_count()), kNone) {
    for (NodeId id : graph.order()) {
      for (ValueId input : graph.node(id).inputs) {
        if (input != kNone) last_reader_[static_cast<size_t>(input)] = id;
      }
    }
    for (ValueId output : graph.outputs()) last_reader_[static_cast<size_t>(output)] = kAlways;
  }

  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs) {
    TRY_STATUS(bind(inputs));
    for (NodeId id : graph_.order()) {
      TRY(const bool go_on, node(id));
      if (!go_on) return std::vector<Tensor>();
    }
    std::vector<Tensor> answers;
    for (ValueId output : graph_.outputs()) answers.push_back(read(output));
    return answers;
  }

 private:
  static constexpr NodeId kAlways = -2;  // read after the last node

  DType carried(DType dtype) const {
    return how_.exact && is_float(dtype) && !is_low_float(dtype) ? DType::f64 : dtype;
  }

  Tensor widened(const Tensor& tensor) const {
    const DType dtype = carried(tensor.dtype());
    return dtype == tensor.dtype() ? tensor : tensor.cast(dtype);
  }

  Tensor read(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.is_constant() ? widened(value.constant) : tensors_[static_cast<size_t>(id)];
  }

  Status bind(std::span<const Tensor> inputs) {
    if (inputs.size() != graph_.inputs().size()) {
      return usage(fmt::format("{} inputs for a graph that takes {}", inputs.size(),
                               graph_.inputs().size()));
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      const ValueId id = graph_.inputs()[k];
      const Type& want = graph_.type(id);
      const Type have = inputs[k].empty() ? Type{} : inputs[k].type();
      const bool agrees = have == want || have == Type{carried(want.dtype), want.shape};
      if (inputs[k].empty() || !agrees) {
        return usage(fmt::format("the input is {} but the graph takes {}",
                                 inputs[k].empty() ? "missing" : to_string(have), to_string(want)),
                     graph_.value(id).name);
      }
      tensors_[static_cast<size_t>(id)] = widened(inputs[k]);
    }
    return ok_status();
  }

  // False: the probe has seen enough.
  Result<bool> node(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<Tensor> inputs(node.inputs.size());
    std::vector<const Tensor*> pointers(node.inputs.size());
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (node.inputs[k] == kNone) continue;
      inputs[k] = reads_as_stored(graph_, node, k) ? graph_.value(node.inputs[k]).constant
                                                   : read(node.inputs[k]);
      CHECK(!inputs[k].empty(), "'{}' reads value {}, which is not there", node.name,
            node.inputs[k]);
      pointers[k] = &inputs[k];
    }
    std::vector<Tensor> outputs;
    const bool looks_up = node.op == Op::Gather && reads_as_stored(graph_, node, 0);
    for (ValueId output : node.outputs) {
      const Type& type = graph_.type(output);
      outputs.push_back(
          Tensor::allocate({looks_up ? type.dtype : carried(type.dtype), type.shape}));
    }
    ops::Call call = graph_.call(id);
    const bool wide = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& output) {
      return output.dtype() == DType::f64;
    });
    call.sums = wide ? ops::Sums::kDouble : how_.sums;
    if (Status status = ops::reference(call, pointers, outputs); !status.ok()) {
      Error error = std::move(status.error());
      if (error.node.empty()) error.node = node.name;
      return error;
    }
    if (looks_up) outputs[0] = widened(outputs[0]);
    if (how_.probe && !how_.probe(id, outputs)) return false;
    for (ValueId input : node.inputs) {
      if (input == kNone) continue;
      const auto index = static_cast<size_t>(input);
      if (last_reader_[index] == id) tensors_[index] = Tensor();
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      const auto index = static_cast<size_t>(node.outputs[k]);
      if (last_reader_[index] != kNone) tensors_[index] = std::move(outputs[k]);
    }
    return true;
  }

  const Graph& graph_;
  const Interpretation& how_;
  std::vector<Tensor> tensors_;      // by value, emptied after its last reader
  std::vector<NodeId> last_reader_;  // by value; kNone: nobody reads it
};

}  // namespace

bool reads_as_stored(const Graph& graph, const Node& node, size_t input) {
  if (node.inputs[input] == kNone || !graph.value(node.inputs[input]).is_constant()) return false;
  return ops::row(node.op).kind == ops::Kind::kCompute || (node.op == Op::Gather && input == 0);
}

Result<std::vector<Tensor>> interpret(const Graph& graph, std::span<const Tensor> inputs,
                                      const Interpretation& how) {
  try {
    return Interpreter(graph, how).run(inputs);
  } catch (const std::bad_alloc&) {
    return Error{.code = Code::kMemory,
                 .room = "graph",
                 .message = "not enough memory for the reference",
                 .hint = "use a smaller batch, or switch verification off"};
  }
}

}  // namespace obelisk::graph

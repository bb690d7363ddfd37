#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "graph/graph.h"

namespace obelisk::graph {
namespace {

std::string who(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return fmt::format("node {} ({})", id, ops::to_string(node.op));
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), known_(graph.value_count()) {}

  Status run() {
    TRY_STATUS(sources());
    for (NodeId id : graph_.order()) TRY_STATUS(node(id));
    TRY_STATUS(outputs());
    return users();
  }

 private:
  template <typename... Args>
  Error broken(NodeId id, fmt::format_string<Args...> format, Args&&... args) const {
    return {.code = Code::kBuild,
            .room = "graph",
            .message = fmt::format(format, std::forward<Args>(args)...),
            .node = id == kNone ? "" : graph_.node(id).name};
  }

  bool exists(ValueId id) const { return id >= 0 && id < graph_.value_count(); }

  Status sources() {
    for (ValueId id : graph_.inputs()) {
      if (!exists(id)) return broken(kNone, "input value {} does not exist", id);
      const Value& value = graph_.value(id);
      if (known_[id]) return broken(kNone, "value {} is listed twice as an input", id);
      if (value.producer != kNone || value.is_constant()) {
        return broken(kNone, "input '{}' also has a producer or a constant", value.name);
      }
      known_[id] = true;
    }
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      if (!checked_element_count(value.type.shape)) {
        return broken(kNone, "value {} has no size: {}", id, to_string(value.type));
      }
      if (!value.is_constant()) continue;
      if (value.producer != kNone) {
        return broken(value.producer, "value {} has a constant and a producer", id);
      }
      if (value.constant.type() != value.type) {
        return broken(kNone, "constant {} '{}' is {} but its tensor is {}", id, value.name,
                      to_string(value.type), to_string(value.constant.type()));
      }
      known_[id] = true;
    }
    return ok_status();
  }

  Status node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.erased) return broken(id, "{} is erased but still in the order", who(graph_, id));
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId input = node.inputs[k];
      if (input == kNone) continue;
      if (!exists(input)) {
        return broken(id, "{} reads value {}, which does not exist", who(graph_, id), input);
      }
      if (!known_[input]) {
        return broken(id, "{} reads value {} before it is made (input {})", who(graph_, id), input,
                      k);
      }
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId output = node.outputs[k];
      if (!exists(output)) return broken(id, "{} makes value {}", who(graph_, id), output);
      if (known_[output]) {
        return broken(id, "{} makes value {}, which has another producer", who(graph_, id), output);
      }
      const Value& value = graph_.value(output);
      if (value.producer != id || value.producer_output != static_cast<int>(k)) {
        return broken(id, "{} makes value {}, which names node {} as its producer", who(graph_, id),
                      output, value.producer);
      }
      known_[output] = true;
    }
    return types(id);
  }

  Status types(NodeId id) {
    const Node& node = graph_.node(id);
    ops::Call call = graph_.call(id);
    call.results.clear();
    Result<ops::Types> types = ops::infer(call);
    if (!types.ok()) {
      return broken(id, "{} is refused: {}", who(graph_, id), types.error().message);
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Type& have = graph_.type(node.outputs[k]);
      if (have != (*types)[k]) {
        return broken(id, "{} output {} is {} but its inputs make it {}", who(graph_, id), k,
                      to_string(have), to_string((*types)[k]));
      }
    }
    return ok_status();
  }

  Status outputs() {
    std::unordered_set<std::string> names;
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      const ValueId id = graph_.outputs()[k];
      const std::string& name = graph_.output_names()[k];
      if (!exists(id) || !known_[id]) {
        return broken(kNone, "output '{}' is value {}, which nobody makes", name, id);
      }
      if (!names.insert(name).second) return broken(kNone, "two outputs are named '{}'", name);
    }
    return in_place();
  }

  // Outputs that take an input's memory.
  Status in_place() {
    std::unordered_set<int> taken;
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      const int input = graph_.in_place_of(k);
      const std::string& name = graph_.output_names()[k];
      if (input == kNone) continue;
      if (input < 0 || input >= static_cast<int>(graph_.inputs().size())) {
        return broken(kNone, "output '{}' is in place of input {} of {}", name, input,
                      graph_.inputs().size());
      }
      const Value& from = graph_.value(graph_.inputs()[static_cast<size_t>(input)]);
      const Type& type = graph_.type(graph_.outputs()[k]);
      if (from.type != type) {
        return broken(kNone, "output '{}' is {} and in place of input '{}', which is {}", name,
                      to_string(type), from.name, to_string(from.type));
      }
      if (!taken.insert(input).second) {
        return broken(kNone, "two outputs are in place of input '{}'", from.name);
      }
    }
    return ok_status();
  }

  // users() against what the nodes really read.
  Status users() {
    std::vector<std::vector<NodeId>> want(static_cast<size_t>(graph_.value_count()));
    for (NodeId id : graph_.order()) {
      for (ValueId input : graph_.node(id).inputs) {
        if (input == kNone) continue;
        auto& readers = want[static_cast<size_t>(input)];
        if (readers.empty() || readers.back() != id) readers.push_back(id);
      }
    }
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      if (graph_.users(id) != want[static_cast<size_t>(id)]) {
        return broken(kNone, "the readers of value {} are not what users() says", id);
      }
    }
    return ok_status();
  }

  const Graph& graph_;
  std::vector<bool> known_;  // by value: an input, a constant, or made by a node so far
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace obelisk::graph

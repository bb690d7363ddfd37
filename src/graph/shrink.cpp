#include "graph/shrink.h"

#include <algorithm>
#include <optional>
#include <set>

namespace obelisk::graph {
namespace {

/// What a candidate does otherwise than the graph it comes from.
struct Change {
  std::vector<ValueId> outputs;
  std::set<ValueId> cut;                        // become inputs
  std::map<ValueId, ValueId> instead;           // readers of the one read the other
  std::pair<NodeId, size_t> without{kNone, 0};  // this input of this node is left out
  int64_t from = 0, to = 0;  // extents that are a multiple of `from` become that of `to`; 0: none
};

int64_t resized(int64_t number, const Change& change) {
  return change.from > 0 && number > 0 && number % change.from == 0
             ? number / change.from * change.to
             : number;
}

Type resized(Type type, const Change& change) {
  for (int64_t& extent : type.shape) extent = resized(extent, change);
  return type;
}

/// Numbers are resized as extents are; of floats as many are taken as there is room for.
Tensor resized(const Tensor& tensor, const Change& change) {
  if (change.from == 0) return tensor;
  const bool numbers = !is_float(tensor.dtype()) && tensor.dtype() != DType::b1;
  Type type = tensor.type();
  if (!numbers) type = resized(type, change);
  Tensor out = Tensor::allocate(type);
  for (int64_t k = 0; k < out.count(); ++k) {
    if (numbers)
      out.set_int(k, resized(tensor.get_int(k), change));
    else if (is_float(type.dtype))
      out.set_double(k, tensor.get_double(k % tensor.count()));
    else
      out.set_int(k, tensor.get_int(k % tensor.count()));
  }
  return out;
}

std::optional<Graph> changed(const Graph& graph, const Change& change) {
  const auto now = [&](ValueId id) {
    const auto at = change.instead.find(id);
    return at == change.instead.end() ? id : at->second;
  };
  std::set<ValueId> needed;
  for (const ValueId id : change.outputs) needed.insert(now(id));
  const std::vector<NodeId>& order = graph.order();
  std::set<NodeId> kept;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const Node& node = graph.node(*at);
    const bool wanted = std::ranges::any_of(node.outputs, [&](ValueId id) {
      return needed.count(id) > 0 && change.cut.count(id) == 0;
    });
    if (!wanted) continue;
    kept.insert(*at);
    for (size_t k = 0; k < node.inputs.size(); ++k)
      if (node.inputs[k] != kNone && std::pair(*at, k) != change.without)
        needed.insert(now(node.inputs[k]));
  }
  Graph out;
  out.name = graph.name;
  std::map<ValueId, ValueId> made;
  for (const ValueId id : graph.inputs())
    if (needed.count(id))
      made[id] = out.add_input(graph.value(id).name, resized(graph.type(id), change));
  for (const ValueId id : change.cut)
    if (needed.count(id))
      made[id] = out.add_input(fmt::format("v{}", id), resized(graph.type(id), change));
  if (made.empty()) return std::nullopt;
  for (const ValueId id : needed)
    if (graph.value(id).is_constant())
      made[id] = out.add_constant(resized(graph.value(id).constant, change), graph.value(id).name);
  for (const NodeId id : order) {
    if (!kept.count(id)) continue;
    const Node& node = graph.node(id);
    std::vector<ValueId> inputs;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (std::pair(id, k) == change.without) continue;
      const auto at = node.inputs[k] == kNone ? made.end() : made.find(now(node.inputs[k]));
      if (node.inputs[k] != kNone && at == made.end()) return std::nullopt;
      inputs.push_back(node.inputs[k] == kNone ? kNone : at->second);
    }
    ops::Attrs attrs = node.attrs;
    for (const char* name : {"group", "num_groups", "hidden_size"})
      if (change.from > 0 && attrs.has(name))
        attrs.set(name, resized(attrs.get_int(name, 1), change));
    const auto added =
        out.add_node(node.op, inputs, attrs, node.name, static_cast<int>(node.outputs.size()));
    if (!added.ok()) return std::nullopt;
    for (size_t k = 0; k < node.outputs.size(); ++k)
      if (!change.cut.count(node.outputs[k])) made[node.outputs[k]] = out.node(*added).outputs[k];
  }
  std::set<ValueId> marked;
  for (size_t k = 0; k < change.outputs.size(); ++k) {
    const auto at = made.find(now(change.outputs[k]));
    if (at == made.end()) return std::nullopt;
    if (!marked.insert(at->second).second) continue;
    int in_place_of = kNone;
    for (size_t output = 0; output < graph.outputs().size(); ++output) {
      if (graph.outputs()[output] != change.outputs[k] || graph.in_place_of(output) == kNone)
        continue;
      const auto input = made.find(graph.inputs()[static_cast<size_t>(graph.in_place_of(output))]);
      if (input == made.end() || out.type(input->second) != out.type(at->second)) continue;
      const auto place = std::find(out.inputs().begin(), out.inputs().end(), input->second);
      in_place_of = static_cast<int>(place - out.inputs().begin());
    }
    out.mark_output(at->second, fmt::format("y{}", marked.size() - 1), in_place_of);
  }
  if (out.order().empty() || !verify(out).ok()) return std::nullopt;
  return out;
}

class Shrinker {
 public:
  Shrinker(const Graph& graph, const std::function<bool(const Graph&)>& fails, int most)
      : graph_(graph), fails_(fails), left_(most) {}

  Graph run() {
    while (left_ > 0 && (fewer_outputs() || earlier_outputs() || more_inputs() || without_nodes() ||
                         fewer_pieces() || smaller_extents())) {
    }
    return std::move(graph_);
  }

 private:
  bool try_it(const Change& change) {
    if (left_ <= 0) return false;
    std::optional<Graph> next;
    try {
      next = changed(graph_, change);
    } catch (const std::exception&) {  // a shape rule that wants more than it checks
      return false;
    }
    if (!next) return false;
    --left_;
    if (!fails_(*next)) return false;
    graph_ = std::move(*next);
    return true;
  }

  bool fewer_outputs() {
    const std::vector<ValueId> outputs = graph_.outputs();
    if (outputs.size() < 2) return false;
    for (const ValueId id : outputs)
      if (try_it({.outputs = {id}})) return true;
    for (size_t k = 0; k < outputs.size() && outputs.size() > 2; ++k) {
      Change change{.outputs = outputs};
      change.outputs.erase(change.outputs.begin() + static_cast<int64_t>(k));
      if (try_it(change)) return true;
    }
    return false;
  }

  // An output's operand in its place.
  bool earlier_outputs() {
    const std::vector<ValueId> outputs = graph_.outputs();
    for (size_t k = 0; k < outputs.size(); ++k) {
      const NodeId producer = graph_.value(outputs[k]).producer;
      for (const ValueId id : graph_.node(producer).inputs) {
        if (id == kNone || graph_.value(id).producer == kNone) continue;
        Change change{.outputs = outputs};
        change.outputs[k] = id;
        if (try_it(change)) return true;
      }
    }
    return false;
  }

  bool more_inputs() {
    const std::vector<NodeId> order = graph_.order();
    for (auto at = order.rbegin(); at != order.rend(); ++at)
      for (const ValueId id : graph_.node(*at).outputs)
        if (!graph_.is_output(id) && !graph_.users(id).empty() &&
            try_it({.outputs = graph_.outputs(), .cut = {id}}))
          return true;
    return false;
  }

  bool without_nodes() {
    for (const NodeId node : std::vector<NodeId>(graph_.order()))
      for (const ValueId given : graph_.node(node).outputs)
        for (const ValueId read : graph_.node(node).inputs)
          if (read != kNone && graph_.type(read) == graph_.type(given) &&
              !graph_.value(read).is_constant() &&
              (!graph_.is_output(given) || graph_.value(read).producer != kNone) &&
              try_it({.outputs = graph_.outputs(), .instead = {{given, read}}}))
            return true;
    return false;
  }

  bool fewer_pieces() {
    for (const NodeId id : std::vector<NodeId>(graph_.order())) {
      const Node& node = graph_.node(id);
      for (size_t k = 0; (node.op == Op::Concat || node.op == Op::Conv) && node.inputs.size() > 2 &&
                         k < node.inputs.size();
           ++k)
        if (try_it({.outputs = graph_.outputs(), .without = {id, k}})) return true;
    }
    return false;
  }

  bool smaller_extents() {
    std::set<int64_t> extents;
    const auto look = [&](ValueId id) {
      for (const int64_t extent : graph_.type(id).shape)
        if (extent > 1) extents.insert(extent);
    };
    for (const ValueId id : graph_.inputs()) look(id);
    for (const NodeId id : graph_.order())
      for (const ValueId value : graph_.node(id).outputs) look(value);
    for (auto at = extents.rbegin(); at != extents.rend(); ++at)
      for (const int64_t to : {int64_t{1}, int64_t{2}, *at / 2, *at - 1})
        if (to >= 1 && to < *at && try_it({.outputs = graph_.outputs(), .from = *at, .to = to}))
          return true;
    return false;
  }

  Graph graph_;
  const std::function<bool(const Graph&)>& fails_;
  int left_;
};

}  // namespace

Graph shrink(const Graph& graph, const std::function<bool(const Graph&)>& fails, int most) {
  return Shrinker(graph, fails, most).run();
}

std::string text_with_random_weights(const Graph& graph, int64_t longest) {
  std::string text = print(graph, {.all_data = true, .list_limit = longest}), out;
  // A constant's line ends with its numbers: "= [1, 2]", "= 0x..." or "= 1".
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line = text.substr(at, end - at);
    if (const size_t bytes = line.find("] = 0x"); bytes != std::string::npos &&
                                                  line.find("const ") != std::string::npos &&
                                                  line.find(": f") != std::string::npos)
      line = line.substr(0, bytes) + "] = @random\n";
    out += line;
    at = end;
  }
  return out;
}

}  // namespace obelisk::graph

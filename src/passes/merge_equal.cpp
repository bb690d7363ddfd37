#include "passes/merge_equal.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

// ---- attributes as text in which different values never look alike -----------------------------
std::string key(int64_t number) { return fmt::format("i{}", number); }
std::string key(double number) { return fmt::format("f{:x}", std::bit_cast<uint64_t>(number)); }
std::string key(const std::string& text) { return fmt::format("s{}:{}", text.size(), text); }
template <typename T>
std::string key(const std::vector<T>& list) {
  std::string out = fmt::format("l{}:", list.size());
  for (const T& each : list) out += key(each) + ",";
  return out;
}
std::string key(const Tensor& tensor) {
  return fmt::format("t{}#{}", to_string(tensor.type()),
                     to_string(hash_bytes(tensor.data(), static_cast<size_t>(tensor.bytes()))));
}

std::string node_key(const graph::Node& node) {
  std::string out = fmt::format("{}/{}", ops::to_string(node.op), node.outputs.size());
  for (ValueId input : node.inputs) out += fmt::format(",{}", input);
  for (const auto& [name, attr] : node.attrs.all()) {
    out += fmt::format(";{}=", name);
    out += std::visit([](const auto& value) { return key(value); }, attr);
  }
  return out;
}

/// Enough to keep most weights apart without reading them whole: they may lie in a mapped file.
std::string first_bytes(const Tensor& tensor) {
  constexpr int64_t kFirst = 4096;
  const auto size = static_cast<size_t>(std::min(tensor.bytes(), kFirst));
  return fmt::format("{}#{}", to_string(tensor.type()), to_string(hash_bytes(tensor.data(), size)));
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.data() == b.data() ||
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

void merge_constants(Graph& graph) {
  std::unordered_map<std::string, std::vector<ValueId>> seen;
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    if (!graph.value(id).is_constant() || graph.users(id).empty()) continue;
    std::vector<ValueId>& alike = seen[first_bytes(graph.value(id).constant)];
    const auto equal = std::find_if(alike.begin(), alike.end(), [&](ValueId other) {
      return same_bytes(graph.value(other).constant, graph.value(id).constant);
    });
    if (equal == alike.end()) {
      alike.push_back(id);
    } else if (!graph.is_output(id)) {
      graph.replace_uses(id, *equal);
    }
  }
}

}  // namespace

Result<Graph> merge_equal(Graph graph, Remarks* remarks) {
  merge_constants(graph);
  std::unordered_map<std::string, NodeId> seen;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const auto [first, is_new] = seen.try_emplace(node_key(graph.node(id)), id);
    if (is_new) continue;
    const std::vector<ValueId> from = graph.node(id).outputs,
                               to = graph.node(first->second).outputs;
    for (size_t k = 0; k < from.size(); ++k)
      if (!replace_value(graph, from[k], to[k]) && remarks)
        remarks->left(graph, id, "a node before it computes the same, but both are outputs");
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

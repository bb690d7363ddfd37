#include "passes/rewrite.h"

#include <bit>

namespace obelisk::passes {

using graph::Graph;
using graph::ValueId;

bool replace_value(Graph& graph, ValueId from, ValueId to) {
  if (graph.is_output(from)) {
    if (graph.value(to).producer == graph::kNone || graph.is_output(to)) return false;
  }
  if (graph.value(to).name.empty()) graph.value(to).name = graph.value(from).name;
  graph.replace_uses(from, to);
  return true;
}

std::optional<double> uniform_value(const Graph& graph, ValueId id) {
  if (id == graph::kNone || !graph.value(id).is_constant()) return std::nullopt;
  const Tensor& tensor = graph.value(id).constant;
  if (tensor.count() == 0) return std::nullopt;
  const double first = tensor.get_double(0);
  if (first != first) return std::nullopt;
  for (int64_t k = 1; k < tensor.count(); ++k) {
    if (std::bit_cast<uint64_t>(tensor.get_double(k)) != std::bit_cast<uint64_t>(first)) {
      return std::nullopt;
    }
  }
  return first;
}

bool has_one_reader(const Graph& graph, ValueId id) {
  return graph.users(id).size() == 1 && !graph.is_output(id);
}

Graph tidy(Graph graph) {
  graph.sort();
  graph.remove_dead();
  return graph.compacted();
}

}  // namespace obelisk::passes

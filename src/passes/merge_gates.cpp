#include "passes/merge_gates.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "passes/beside.h"

namespace obelisk::passes {
namespace {

/// Whether the halves of one product can be their answers.
bool suit(const Graph& graph, const Product& a, const Product& b, Reason& why) {
  if (graph.type(a.weights) != graph.type(b.weights))
    return why.no("the product that it meets has weights of another shape");
  if (a.columns < kFewestHalfColumns)
    return why.no(fmt::format("it has fewer columns than a tile, {}", kFewestHalfColumns));
  if (graph.is_output(a.answer) || graph.is_output(b.answer))
    return why.no("its answer, or that of the product that it meets, is one of the graph's");
  return true;
}

void merge(Graph& graph, const Product& a, const Product& b) {
  const Node first = graph.node(a.node);
  const std::vector<const Tensor*> weights{&graph.value(a.weights).constant,
                                           &graph.value(b.weights).constant};
  const Tensor matrix =
      a.transposed ? below(weights, {2 * a.columns, weights[0]->shape()[1]}) : beside(weights);
  std::string name = first.name;
  if (const std::string& other = graph.node(b.node).name; !other.empty())
    name += (name.empty() ? "" : "+") + other;
  const ValueId both =
      graph.must_add(first.op, {first.inputs[0], graph.add_constant(matrix)}, first.attrs, name);
  const Attrs last = Attrs().set("axis", int64_t{graph.type(both).rank() - 1});
  const ValueId sizes = graph.add_constant(tensor_of(std::vector<int64_t>{a.columns, a.columns}));
  const Result<NodeId> split = graph.add_node(Op::Split, {both, sizes}, last, name, 2);
  CHECK(split.ok(), "split of a merged product: {}", split.error().text());
  for (size_t k = 0; k < 2; ++k) {
    const Product& part = k == 0 ? a : b;
    ValueId half = graph.node(*split).outputs[k];
    if (part.bias != kNone)
      half = graph.must_add(Op::Add, {half, part.bias}, {}, graph.node(part.node).name);
    replace_value(graph, part.answer, half);
  }
}

}  // namespace

Result<Graph> merge_gates(Graph graph, Remarks* remarks) {
  // By input, op and the way the weights lie, those without a partner yet.
  std::map<std::tuple<ValueId, Op, bool>, std::vector<Product>> waiting;
  std::vector<std::pair<Product, Product>> pairs;
  for (NodeId id : graph.order()) {
    Reason why;
    const std::optional<Product> one = constant_product(graph, id, why);
    if (!one) {
      why.tell(remarks, graph, id);
      continue;
    }
    auto& others =
        waiting[std::tuple(graph.node(id).inputs[0], graph.node(id).op, one->transposed)];
    const auto other = std::find_if(others.begin(), others.end(), [&](const Product& before) {
      return meet(graph, before.answer, one->answer) && suit(graph, before, *one, why);
    });
    if (other == others.end()) {
      why.tell(remarks, graph, id);
      others.push_back(*one);
    } else {
      pairs.push_back({*other, *one});
      others.erase(other);
    }
  }
  for (const auto& [a, b] : pairs) merge(graph, a, b);
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

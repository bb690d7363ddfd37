#include "passes/merge_qkv.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "passes/beside.h"

namespace obelisk::passes {
namespace {

bool is_bias(const Graph& graph, ValueId value, DType dtype, int64_t columns) {
  if (!graph.value(value).is_constant()) return false;
  const Type& type = graph.type(value);
  return type.dtype == dtype && type.count() == columns && !type.shape.empty() &&
         type.shape.back() == columns;
}

/// The product with the bias that follows it, if both are known.
std::optional<Product> biased_product(const Graph& graph, NodeId id, Reason& why) {
  std::optional<Product> found = constant_product(graph, id, why);
  if (!found) return std::nullopt;
  Product& out = *found;
  const Type& type = graph.type(out.answer);
  if (out.bias != kNone) {
    if (is_bias(graph, out.bias, type.dtype, out.columns)) return found;
    why.no("its bias is not one known number a column");
    return std::nullopt;
  }
  if (!has_one_reader(graph, out.answer)) return found;
  const Node& reader = graph.node(graph.users(out.answer)[0]);
  if (reader.op != Op::Add || reader.inputs[0] == reader.inputs[1]) return found;
  const ValueId other = reader.inputs[reader.inputs[0] == out.answer ? 1 : 0];
  if (!is_bias(graph, other, type.dtype, out.columns)) return found;
  if (graph.type(reader.outputs[0]) != type) return found;
  out.bias = other;
  out.answer = reader.outputs[0];
  return found;
}

/// Those of the products that meet no other one.
std::vector<Product> apart(const Graph& graph, const std::vector<Product>& all) {
  std::vector<std::set<NodeId>> maps;
  for (const Product& one : all) maps.push_back(reached(graph, one.answer));
  std::vector<Product> out;
  for (size_t k = 0; k < all.size(); ++k) {
    const bool meets = std::any_of(maps[k].begin(), maps[k].end(), [&](NodeId id) {
      for (size_t other = 0; other < all.size(); ++other)
        if (other != k && maps[other].count(id) > 0) return true;
      return false;
    });
    if (!meets) out.push_back(all[k]);
  }
  return out;
}

void merge(Graph& graph, const std::vector<Product>& parts) {
  const Node first = graph.node(parts[0].node);
  const DType dtype = graph.type(parts[0].answer).dtype;
  std::vector<const Tensor*> weights, biases;
  std::vector<Tensor> nothing;  // -0, which leaves every number as it is
  nothing.reserve(parts.size());
  std::vector<int64_t> columns;
  std::string name;
  int64_t total = 0;
  bool biased = false;
  for (const Product& part : parts) {
    weights.push_back(&graph.value(part.weights).constant);
    columns.push_back(part.columns);
    total += part.columns;
    biased |= part.bias != kNone;
    const std::string& own = graph.node(part.node).name;
    if (!own.empty()) name += (name.empty() ? "" : "+") + own;
    if (part.bias != kNone) {
      biases.push_back(&graph.value(part.bias).constant);
    } else {
      const std::vector<double> zeros(static_cast<size_t>(part.columns), -0.0);
      biases.push_back(&nothing.emplace_back(tensor_of(dtype, {part.columns}, zeros)));
    }
  }
  const int64_t depth = parts[0].transposed ? weights[0]->shape()[1] : weights[0]->shape()[0];
  const Tensor matrix = parts[0].transposed ? below(weights, {total, depth}) : beside(weights);
  const Tensor bias = biased ? below(biases, {total}) : Tensor();

  std::vector<ValueId> inputs{first.inputs[0], graph.add_constant(matrix)};
  ValueId answer = graph.must_add(first.op, std::move(inputs), first.attrs, name);
  if (biased) answer = graph.must_add(Op::Add, {answer, graph.add_constant(bias)}, {}, name);
  const ops::Attrs last = ops::Attrs().set("axis", int64_t{graph.type(answer).rank() - 1});
  const ValueId sizes = graph.add_constant(tensor_of(columns));
  const Result<NodeId> split =
      graph.add_node(Op::Split, {answer, sizes}, last, name, static_cast<int>(parts.size()));
  CHECK(split.ok(), "split of a merged product: {}", split.error().text());
  for (size_t k = 0; k < parts.size(); ++k) {
    replace_value(graph, parts[k].answer, graph.node(*split).outputs[k]);
  }
}

}  // namespace

Result<Graph> merge_qkv(Graph graph, Remarks* remarks) {
  // By input, op, element type and the way the weights lie.
  std::map<std::tuple<ValueId, Op, bool>, std::vector<Product>> alike;
  std::vector<std::tuple<ValueId, Op, bool>> keys;  // as they are met
  std::map<ValueId, int> readers;                   // products with constant matrices, by input
  std::map<NodeId, Reason> left;
  for (NodeId id : graph.order()) {
    Reason why;
    const std::optional<Product> one = biased_product(graph, id, why);
    const Node& node = graph.node(id);
    if ((node.op == Op::MatMul || node.op == Op::Gemm) && constant_input(graph, node, 1))
      ++readers[node.inputs[0]], left[id] = why;
    if (!one) continue;
    const auto key = std::tuple(graph.node(id).inputs[0], graph.node(id).op, one->transposed);
    std::vector<Product>& others = alike[key];
    if (others.empty()) keys.push_back(key);
    others.push_back(*one);
  }
  for (const auto& key : keys) {
    const std::vector<Product> parts = apart(graph, alike[key]);
    for (const Product& one : alike[key]) {
      const auto same = [&](const Product& part) { return part.node == one.node; };
      const bool is_apart = std::any_of(parts.begin(), parts.end(), same);
      if (is_apart && parts.size() > 1)
        left.erase(one.node);
      else if (is_apart)
        left[one.node].no("no other product of its input is of its op and lies as its weights do");
      else
        left[one.node].no("its answer meets that of another product in one elementwise op", 2);
    }
    if (parts.size() > 1) merge(graph, parts);
  }
  for (const auto& [id, why] : left)
    if (readers[graph.node(id).inputs[0]] > 1) why.tell(remarks, graph, id);
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

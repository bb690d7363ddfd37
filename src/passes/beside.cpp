#include "passes/beside.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"

namespace obelisk::passes {

std::optional<Product> constant_product(const Graph& graph, NodeId id, Reason& why) {
  const Node& node = graph.node(id);
  if (node.op != Op::MatMul && node.op != Op::Gemm) return std::nullopt;
  Product out{.node = id, .weights = node.inputs[1], .answer = node.outputs[0]};
  if (!graph.value(out.weights).is_constant() || graph.type(out.weights).rank() != 2)
    return std::nullopt;
  const Type& type = graph.type(out.answer);
  if (type.count() == 0 || graph.type(node.inputs[0]).rank() < 2) return std::nullopt;
  out.columns = type.shape.back();
  if (node.op == Op::MatMul) return out;
  const bool plain = node.attrs.get_float("alpha", 1) == 1 &&
                     node.attrs.get_float("beta", 1) == 1 && node.attrs.get_int("transA", 0) == 0;
  if (!plain) {
    why.no("it scales what it adds or turns its input");
    return std::nullopt;
  }
  out.transposed = node.attrs.get_int("transB", 0) != 0;
  if (node.inputs.size() > 2) out.bias = node.inputs[2];
  return out;
}

std::set<NodeId> reached(const Graph& graph, ValueId from) {
  constexpr size_t kMost = 100;
  std::set<NodeId> maps, seen;
  std::vector<ValueId> open{from};
  while (!open.empty() && seen.size() < kMost) {
    const ValueId value = open.back();
    open.pop_back();
    for (NodeId id : graph.users(value)) {
      const ops::Kind kind = ops::row(graph.node(id).op).kind;
      if (kind != ops::Kind::kMap && kind != ops::Kind::kMove) continue;
      if (!seen.insert(id).second) continue;
      if (kind == ops::Kind::kMap) maps.insert(id);
      const std::vector<ValueId>& outputs = graph.node(id).outputs;
      open.insert(open.end(), outputs.begin(), outputs.end());
    }
  }
  return maps;
}

bool meet(const Graph& graph, ValueId a, ValueId b) {
  const std::set<NodeId> from_a = reached(graph, a), from_b = reached(graph, b);
  return std::any_of(from_a.begin(), from_a.end(), [&](NodeId id) { return from_b.count(id) > 0; });
}

Tensor beside(const std::vector<const Tensor*>& parts) {
  const int64_t rows = parts[0]->shape()[0];
  int64_t columns = 0;
  for (const Tensor* part : parts) columns += part->shape()[1];
  Tensor out = Tensor::allocate({parts[0]->dtype(), {rows, columns}});
  char* to = static_cast<char*>(out.mutable_data());
  const int64_t row_bytes = rows > 0 ? out.bytes() / rows : 0;
  constexpr int64_t kWorthIt = 1 << 18;  // bytes for one core
  const int64_t many = std::clamp(kWorthIt / std::max<int64_t>(row_bytes, 1), int64_t{1}, rows + 1);
  for_each_on_all_cores(static_cast<size_t>((rows + many - 1) / many), [&](size_t k) {
    const int64_t begin = static_cast<int64_t>(k) * many, end = std::min(rows, begin + many);
    int64_t at = 0;
    for (const Tensor* part : parts) {
      const int64_t bytes = part->bytes() / rows;
      const char* from = static_cast<const char*>(part->data());
      for (int64_t row = begin; row < end; ++row)
        std::memcpy(to + row * row_bytes + at, from + row * bytes, static_cast<size_t>(bytes));
      at += bytes;
    }
  });
  return out;
}

Tensor below(const std::vector<const Tensor*>& parts, const Shape& shape) {
  Tensor out = Tensor::allocate({parts[0]->dtype(), shape});
  char* to = static_cast<char*>(out.mutable_data());
  for (const Tensor* part : parts) {
    std::memcpy(to, part->data(), static_cast<size_t>(part->bytes()));
    to += part->bytes();
  }
  return out;
}

}  // namespace obelisk::passes

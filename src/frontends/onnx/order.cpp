#include "frontends/onnx/order.h"

#include <queue>

namespace obelisk::frontends::onnx {
namespace {

void read_body(const Body& body, const std::function<void(std::string_view)>& visit) {
  std::set<std::string_view> own;
  for (const ValueDef& input : body.inputs) own.insert(input.name);
  for (const TensorDef& tensor : body.initializers) own.insert(tensor.name);
  for (const SparseTensorDef& tensor : body.sparse_initializers) own.insert(tensor.values.name);
  for (const NodeDef& node : body.nodes) own.insert(node.outputs.begin(), node.outputs.end());
  const auto outside = [&](std::string_view name) {
    if (!own.contains(name)) visit(name);
  };
  for (const NodeDef& node : body.nodes) for_each_read(node, outside);
  for (const ValueDef& output : body.outputs) outside(output.name);
}

std::string called(const NodeDef& node) {
  return node.name.empty() ? std::string(node.op) : std::string(node.name);
}

}  // namespace

void for_each_read(const NodeDef& node, const std::function<void(std::string_view)>& visit) {
  for (const std::string_view input : node.inputs)
    if (!input.empty()) visit(input);
  for (const AttributeDef& attribute : node.attributes)
    if (attribute.graph) read_body(*attribute.graph, visit);
}

Result<std::vector<int>> topological_order(const std::vector<NodeDef>& nodes) {
  const int count = static_cast<int>(nodes.size());
  std::map<std::string_view, int> producer;
  for (int at = 0; at < count; ++at)
    for (const std::string_view output : nodes[at].outputs)
      if (!output.empty() && !producer.emplace(output, at).second)
        return bad_model(fmt::format("'{}' is written a second time", output), called(nodes[at]));

  std::vector<std::vector<int>> readers(count);
  std::vector<int> waiting(count, 0);
  for (int at = 0; at < count; ++at) {
    std::set<int> needs;
    for_each_read(nodes[at], [&](std::string_view name) {
      const auto found = producer.find(name);
      if (found != producer.end()) needs.insert(found->second);
    });
    waiting[at] = static_cast<int>(needs.size());
    for (const int need : needs) readers[need].push_back(at);
  }

  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int at = 0; at < count; ++at)
    if (waiting[at] == 0) ready.push(at);
  std::vector<int> order;
  while (!ready.empty()) {
    const int at = ready.top();
    ready.pop();
    order.push_back(at);
    for (const int reader : readers[at])
      if (--waiting[reader] == 0) ready.push(reader);
  }
  for (int at = 0; at < count; ++at)
    if (waiting[at] > 0)
      return bad_model("it reads, over other nodes, what it writes: the graph has a cycle",
                       called(nodes[at]));
  return order;
}

}  // namespace obelisk::frontends::onnx

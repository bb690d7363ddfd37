#include "passes/merge_conv_groups.h"

#include <cstring>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

using graph::kNone;

/// Weights [outputs, inputs of a group, window...] of `groups`, `merged` of which become one: each
/// output reads the inputs of all of them, and those of the others are multiplied by zero.
Tensor block_diagonal(const Tensor& weights, int64_t groups, int64_t merged) {
  Shape shape = weights.shape();
  const int64_t outputs = shape[0], of_group = outputs / groups, block = weights.bytes() / outputs;
  shape[1] *= merged;
  Tensor wide = Tensor::allocate({weights.dtype(), std::move(shape)});
  auto* to = static_cast<std::byte*>(wide.mutable_data());
  const auto* from = static_cast<const std::byte*>(weights.data());
  std::memset(to, 0, static_cast<size_t>(wide.bytes()));
  for (int64_t output = 0; output < outputs; ++output)
    std::memcpy(to + (output * merged + output / of_group % merged) * block, from + output * block,
                static_cast<size_t>(block));
  return wide;
}

}  // namespace

Result<Graph> merge_conv_groups(Graph graph, const ConvGroups& groups) {
  const std::vector<NodeId> order = graph.order();  // what is added is not asked
  for (NodeId id : order) {
    const Node node = graph.node(id);
    const int64_t has = node.op == Op::Conv ? node.attrs.get_int("group", 1) : 1;
    if (has == 1) continue;
    const Tensor* weights = constant_input(graph, node, 1);
    if (!weights || weights->count() == 0 || bits(weights->dtype()) < 8 || weights->shape()[1] == 1)
      continue;
    const int64_t wished = groups(graph, id);
    if (wished < 1 || wished >= has || has % wished != 0) continue;
    std::vector<ValueId> inputs = node.inputs;
    inputs[1] = graph.add_constant(block_diagonal(*weights, has, has / wished));
    Attrs attrs = node.attrs;
    attrs.set("group", wished);
    replace_value(graph, node.outputs[0],
                  graph.must_add(Op::Conv, std::move(inputs), std::move(attrs), node.name));
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

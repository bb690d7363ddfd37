#include "passes/patch_products.h"

#include <cstring>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// Weights [outputs, channels, kernel...] as a product's second operand: [channels kernel...,
/// outputs].
Tensor by_depth(const Tensor& weights) {
  const int64_t outputs = weights.shape()[0], depth = weights.count() / outputs,
                size = weights.bytes() / weights.count();
  Tensor other = Tensor::allocate({weights.dtype(), {depth, outputs}});
  const char* from = static_cast<const char*>(weights.data());
  char* to = static_cast<char*>(other.mutable_data());
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t n = 0; n < outputs; ++n)
      memcpy(to + (k * outputs + n) * size, from + (n * depth + k) * size,
             static_cast<size_t>(size));
  return other;
}

class Patches {
 public:
  Patches(Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)) {}

  /// The convolution told anew, or kNone.
  ValueId run(const WantedProduct& wanted) {
    const Tensor* constant = node_.op == Op::Conv ? constant_input(graph_, node_, 1) : nullptr;
    if (constant == nullptr || constant->count() == 0 ||
        graph_.type(node_.outputs[0]).count() == 0 || !is_copied(node_.inputs[0]))
      return kNone;
    const Tensor weights = *constant;  // the graph's own moves when values are added
    const Shape x = graph_.type(node_.inputs[0]).shape, y = graph_.type(node_.outputs[0]).shape,
                w = weights.shape();
    const auto alike = [&](std::string_view name, int64_t missing, const auto& value) {
      const std::vector<int64_t> all = node_.attrs.get_ints(name, {});
      for (size_t axis = 0; axis + 2 < w.size(); ++axis)
        if ((axis < all.size() ? all[axis] : missing) != value(axis)) return false;
      return true;
    };
    const bool steps = alike("strides", 1, [&](size_t axis) { return w[axis + 2]; });
    const bool dense = alike("dilations", 1, [](size_t) { return 1; });
    for (int64_t pad : node_.attrs.get_ints("pads"))
      if (pad != 0) return kNone;
    if (!steps || !dense || node_.attrs.get_int("group", 1) != 1) return kNone;
    int64_t points = 1;
    for (size_t axis = 2; axis < w.size(); ++axis) {
      if (y[axis] * w[axis] != x[axis]) return kNone;  // a rest is left out
      points *= w[axis];
    }
    const int64_t outputs = w[0], depth = weights.count() / outputs,
                  rows = y[0] * (element_count(y) / (y[0] * outputs));
    if (points == 1 || !wanted(weights.dtype(), rows, outputs, depth)) return kNone;

    Shape apart{x[0], x[1]},
        whole{y[0]};  // [images, channels, patches, points, ...]; [images, patches..., outputs]
    std::vector<int64_t> patches{0}, back{0, static_cast<int64_t>(w.size()) - 1};
    for (size_t axis = 2; axis < w.size(); ++axis) {
      apart.insert(apart.end(), {y[axis], w[axis]}), whole.push_back(y[axis]);
      patches.push_back(static_cast<int64_t>(2 * axis - 2)),
          back.push_back(static_cast<int64_t>(axis) - 1);
    }
    patches.push_back(1);
    for (size_t axis = 2; axis < w.size(); ++axis)
      patches.push_back(static_cast<int64_t>(2 * axis - 1));
    whole.push_back(outputs);
    const std::string& name = node_.name;
    ValueId value =
        transposed(graph_, reshaped(graph_, node_.inputs[0], apart, name), patches, name);
    value = graph_.must_add(
        Op::MatMul,
        {reshaped(graph_, value, {rows, depth}, name), graph_.add_constant(by_depth(weights))}, {},
        name);
    if (node_.inputs.size() > 2 && node_.inputs[2] != kNone)
      value = graph_.must_add(Op::Add, {value, node_.inputs[2]}, {}, name);
    return transposed(graph_, reshaped(graph_, value, whole, name), back, name);
  }

 private:
  /// An input of the graph is copied in any case: to other numbers, or to channels that lie
  /// together. Patches of what is computed would be a copy more.
  bool is_copied(ValueId value) const {
    const NodeId made_by = graph_.value(value).producer;
    if (made_by == kNone) return !graph_.value(value).is_constant();
    const Node& node = graph_.node(made_by);
    return (node.op == Op::Cast || node.op == Op::Identity) && has_one_reader(graph_, value) &&
           is_copied(node.inputs[0]);
  }

  Graph& graph_;
  const Node node_;
};

}  // namespace

Result<Graph> patch_products(Graph graph, const WantedProduct& wanted) {
  for (NodeId id : graph.order()) {
    const ValueId made = Patches(graph, id).run(wanted);
    if (made != kNone) replace_value(graph, graph.node(id).outputs[0], made);
  }
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

#include "passes/raise_squeeze_excite.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "passes/beside.h"

namespace obelisk::passes {
namespace {

/// A product of rows [N, inputs] with constant weights, [outputs, inputs] or, `by_input`, [inputs,
/// outputs].
struct Layer {
  ValueId rows = kNone, weights = kNone, bias = kNone;
  int64_t inputs = 0, outputs = 0;
  bool by_input = false;
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {}

  struct Found {
    ValueId x = kNone;
    Layer squeeze, excite;
    Attrs attrs;
  };

  /// A Mul of a map with gates that are computed from its own means.
  std::optional<Found> find(const Node& mul) const {
    for (const size_t side : {size_t{0}, size_t{1}})
      if (auto found = find(mul.inputs[side], mul.inputs[1 - side])) return found;
    return std::nullopt;
  }

 private:
  std::optional<Found> find(ValueId x, ValueId gates) const {
    const Shape& shape = graph_.type(x).shape;
    Shape of_gates(shape.size(), 1);
    if (shape.size() < 3) return std::nullopt;
    of_gates[0] = shape[0], of_gates[1] = shape[1];
    if (graph_.type(gates).shape != of_gates) return std::nullopt;
    Found found{.x = x};
    const Node* gate = maker(behind_moves(gates));
    if (!gate || (gate->op != Op::Sigmoid && gate->op != Op::HardSigmoid)) return std::nullopt;
    found.attrs.set("gate", std::string(ops::to_string(gate->op)));
    if (gate->op == Op::HardSigmoid)
      found.attrs.set("alpha", gate->attrs.get_float("alpha", 0.2))
          .set("beta", gate->attrs.get_float("beta", 0.5));
    const auto excite = layer(behind_moves(gate->inputs[0]));
    if (!excite) return std::nullopt;
    const Node* activation = maker(behind_moves(excite->rows));
    if (!activation ||
        !(activation->op == Op::Relu || activation->op == Op::HardSwish ||
          (activation->op == Op::Swish && activation->attrs.get_float("alpha", 1) == 1)))
      return std::nullopt;
    found.attrs.set("activation", std::string(ops::to_string(activation->op)));
    const auto squeeze = layer(behind_moves(activation->inputs[0]));
    if (!squeeze || !is_mean_of(behind_moves(squeeze->rows), x)) return std::nullopt;
    if (squeeze->inputs != shape[1] || excite->outputs != shape[1] ||
        excite->inputs != squeeze->outputs)
      return std::nullopt;
    const DType type = graph_.type(x).dtype;
    for (ValueId own : {squeeze->weights, squeeze->bias, excite->weights, excite->bias})
      if (own != kNone && graph_.type(own).dtype != type) return std::nullopt;
    found.squeeze = *squeeze, found.excite = *excite;
    return found;
  }

  /// The node that computes a value which only the block reads.
  const Node* maker(ValueId value) const {
    const NodeId id = graph_.value(value).producer;
    return id == kNone || !has_one_reader(graph_, value) ? nullptr : &graph_.node(id);
  }

  /// Through moves that keep the order of the elements.
  ValueId behind_moves(ValueId value) const {
    for (const Node* node = maker(value);
         node && (node->op == Op::Reshape || node->op == Op::Flatten || node->op == Op::Squeeze ||
                  node->op == Op::Unsqueeze);
         node = maker(value))
      value = node->inputs[0];
    return value;
  }

  std::optional<Layer> layer(ValueId value) const {
    const Node* node = maker(value);
    if (!node) return std::nullopt;
    Layer made;
    if (node->op == Op::Add) {
      for (const size_t side : {size_t{0}, size_t{1}}) {
        if (!constant(graph_, node->inputs[side])) continue;
        const auto without = layer(node->inputs[1 - side]);
        if (!without || without->bias != kNone ||
            !is_of_channels(node->inputs[side], value, without->outputs))
          return std::nullopt;
        made = *without, made.bias = node->inputs[side];
        return made;
      }
      return std::nullopt;
    }
    made.rows = node->inputs[0];
    if (node->op == Op::Conv) {
      // Of one pixel with a kernel of one tap: nothing is left of strides and dilations.
      made.weights = node->inputs[1];
      if (node->inputs.size() > 2) made.bias = node->inputs[2];
      const std::vector<int64_t> pads = node->attrs.get_ints("pads");
      const Tensor* weights = constant(graph_, made.weights);
      if (!weights || node->attrs.get_int("group", 1) != 1 || !is_one_pixel(made.rows) ||
          weights->count() != weights->shape()[0] * weights->shape()[1] ||
          std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad != 0; }))
        return std::nullopt;
    } else {
      Reason ignored;
      const auto found = constant_product(graph_, graph_.value(value).producer, ignored);
      if (!found || graph_.type(made.rows).rank() != 2) return std::nullopt;
      made.weights = found->weights, made.bias = found->bias, made.by_input = !found->transposed;
    }
    const Shape& shape = graph_.type(made.weights).shape;
    if (made.bias != kNone && !constant(graph_, made.bias)) return std::nullopt;
    made.outputs = shape[made.by_input ? 1 : 0], made.inputs = shape[made.by_input ? 0 : 1];
    if (node->op != Op::Conv && made.bias != kNone &&
        !is_of_channels(made.bias, value, made.outputs))
      return std::nullopt;
    return made;
  }

  /// Whether what is added to [N, C, ...] has an element a channel, and not one an image.
  bool is_of_channels(ValueId added, ValueId to, int64_t channels) const {
    const Shape& shape = graph_.type(added).shape;
    const int64_t axis = static_cast<int64_t>(shape.size()) - (graph_.type(to).rank() - 1);
    if (element_count(shape) != channels) return false;
    return channels == 1 || (axis >= 0 && shape[static_cast<size_t>(axis)] == channels);
  }

  bool is_one_pixel(ValueId value) const {
    const Shape& shape = graph_.type(value).shape;
    return std::all_of(shape.begin() + 2, shape.end(), [](int64_t d) { return d == 1; });
  }

  bool is_mean_of(ValueId value, ValueId x) const {
    const Node* node = maker(value);
    if (node && node->op == Op::Cast) node = maker(node->inputs[0]);
    if (!node) return false;
    if (node->op == Op::ReduceMean) {
      const Tensor* given = constant_input(graph_, *node, 1);
      if (!given) return false;
      const int64_t rank = graph_.type(x).rank();
      std::vector<int64_t> axes = to_ints(*given);
      for (int64_t& axis : axes)
        if (axis < 0) axis += rank;
      std::sort(axes.begin(), axes.end());
      if (static_cast<int64_t>(axes.size()) != rank - 2) return false;
      for (int64_t k = 0; k < rank - 2; ++k)
        if (axes[static_cast<size_t>(k)] != k + 2) return false;
    } else if (node->op != Op::GlobalAveragePool) {
      return false;
    }
    const ValueId of = node->inputs[0];
    if (of == x) return true;
    const DType type = graph_.type(of).dtype;  // of a Cast: no number may lose digits or overflow
    if (type != DType::f32 && type != DType::f64) return false;
    const Node* cast = maker(of);
    return cast && cast->op == Op::Cast && cast->inputs[0] == x;
  }

  const Graph& graph_;
};

/// Weights as [rows, columns]; `turned`: they are stored as [columns, rows].
Tensor matrix(const Tensor& weights, int64_t rows, int64_t columns, bool turned) {
  Tensor made = Tensor::allocate({weights.dtype(), {rows, columns}});
  const auto* from = static_cast<const std::byte*>(weights.data());
  auto* to = static_cast<std::byte*>(made.mutable_data());
  const auto size = static_cast<size_t>(byte_size(weights.dtype(), 1));
  if (!turned) {
    std::memcpy(to, from, static_cast<size_t>(made.bytes()));
    return made;
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(to + static_cast<size_t>(r * columns + c) * size,
                  from + static_cast<size_t>(c * rows + r) * size, size);
  return made;
}

/// The Muls of blocks, each with what is put in its place, in order.
std::vector<std::pair<NodeId, ValueId>> raised(Graph& graph,
                                               const std::function<bool(NodeId)>& wanted) {
  std::vector<std::pair<NodeId, ValueId>> made;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const Node node = graph.node(id);
    if (node.op != Op::Mul || !wanted(id)) continue;
    const auto found = Finder(graph).find(node);
    if (!found || bits(graph.type(found->x).dtype) < 8) continue;
    const Layer &squeeze = found->squeeze, &excite = found->excite;
    const int64_t channels = squeeze.inputs, squeezed = squeeze.outputs;
    const auto vector = [&](ValueId bias, int64_t count) -> ValueId {
      if (bias == kNone) return kNone;
      return graph.add_constant(matrix(*constant(graph, bias), 1, count, false).reshaped({count}));
    };
    // Channels last: w1 is [outputs, inputs], w2 its other way round.
    std::vector<ValueId> inputs{found->x,
                                graph.add_constant(matrix(*constant(graph, squeeze.weights),
                                                          squeezed, channels, squeeze.by_input)),
                                vector(squeeze.bias, squeezed),
                                graph.add_constant(matrix(*constant(graph, excite.weights),
                                                          squeezed, channels, !excite.by_input)),
                                vector(excite.bias, channels)};
    if (inputs.back() == kNone) inputs.pop_back();
    const ValueId value =
        graph.must_add(Op::SqueezeExcite, std::move(inputs), found->attrs, node.name);
    replace_value(graph, node.outputs[0], value);
    made.emplace_back(id, value);
  }
  return made;
}

}  // namespace

Result<Graph> raise_squeeze_excite(Graph graph, const KeepWhole& takes) {
  // Asked of all at once, for the answer depends on who else reads a map.
  Graph all = graph;
  std::set<NodeId> taken;
  for (const auto& [mul, value] : raised(all, [](NodeId) { return true; })) {
    std::string why;
    if (takes(all, all.value(value).producer, &why)) taken.insert(mul);
  }
  if (taken.empty()) return graph;
  raised(graph, [&](NodeId id) { return taken.count(id) > 0; });
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

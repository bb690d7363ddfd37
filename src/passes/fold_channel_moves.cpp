#include "passes/fold_channel_moves.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

constexpr int kLongestChain = 8;
constexpr int64_t kMostZeros = 2;  // times the channels that are read; chosen, not measured
constexpr int64_t kVectorBytes = 16;

/// The channels of a source that a value consists of, in its order. Between reshapes they may have
/// several dimensions.
struct Channels {
  Shape dims;
  std::vector<int64_t> of;
};

/// The dimensions between the first and as many last ones as there are pixels' axes, where the
/// others are those of `whole`, [N, C, pixels...].
std::optional<Shape> channel_dims(const Shape& shape, const Shape& whole) {
  const auto pixels = static_cast<int64_t>(whole.size()) - 2;
  if (static_cast<int64_t>(shape.size()) < pixels + 2 || shape.front() != whole.front() ||
      !std::equal(whole.begin() + 2, whole.end(), shape.end() - pixels))
    return std::nullopt;
  return Shape(shape.begin() + 1, shape.end() - pixels);
}

/// With the dimensions in another order.
Channels turned(const Channels& from, const std::vector<int64_t>& order) {
  Channels out;
  for (int64_t d : order) out.dims.push_back(from.dims[static_cast<size_t>(d)]);
  const std::vector<int64_t> steps = row_major_strides(from.dims);
  out.of.resize(from.of.size());
  for (size_t k = 0; k < out.of.size(); ++k) {
    int64_t rest = static_cast<int64_t>(k), at = 0;
    for (size_t d = order.size(); d-- > 0;) {
      at += rest % out.dims[d] * steps[static_cast<size_t>(order[d])];
      rest /= out.dims[d];
    }
    out.of[k] = from.of[static_cast<size_t>(at)];
  }
  return out;
}

/// Elements [from, from + count) of the only dimension.
bool take(Channels& channels, int64_t from, int64_t count) {
  if (channels.dims.size() != 1 || from < 0 || from + count > channels.dims[0]) return false;
  channels.of.assign(channels.of.begin() + from, channels.of.begin() + from + count);
  channels.dims = {count};
  return true;
}

class Tracer {
 public:
  Tracer(const Graph& graph, ValueId value) : graph_(graph), whole_(graph.type(value).shape) {}

  /// The value behind the moves before `value`, and which of its channels that consists of.
  std::optional<std::pair<ValueId, Channels>> trace(ValueId value) const {
    std::vector<ValueId> made;  // by the moves, the last one first
    for (; made.size() < kLongestChain;
         value = graph_.node(graph_.value(value).producer).inputs[0]) {
      const NodeId id = graph_.value(value).producer;
      if (id == kNone || !moves(graph_.node(id).op)) break;
      made.push_back(value);
    }
    for (; !made.empty();
         value = made.back(), made.pop_back()) {  // from the longest chain that fits
      const auto dims = channel_dims(graph_.type(value).shape, whole_);
      if (!dims || dims->size() != 1) continue;
      Channels channels{*dims, std::vector<int64_t>(static_cast<size_t>(dims->front()))};
      std::iota(channels.of.begin(), channels.of.end(), 0);
      if (std::all_of(made.rbegin(), made.rend(), [&](ValueId v) { return follow(v, channels); }) &&
          channels.dims.size() == 1)
        return std::pair(value, std::move(channels));
    }
    return std::nullopt;
  }

 private:
  static bool moves(Op op) {
    return keeps_order(op) || op == Op::Transpose || op == Op::Split || op == Op::Slice;
  }
  /// Through the move that makes `value`.
  bool follow(ValueId value, Channels& channels) const {
    const NodeId id = graph_.value(value).producer;
    const Node& node = graph_.node(id);
    const auto dims = channel_dims(graph_.type(value).shape, whole_);
    if (!dims) return false;
    if (keeps_order(node.op)) {
      channels.dims = *dims;
      return element_count(*dims) == static_cast<int64_t>(channels.of.size());
    }
    if (node.op == Op::Transpose) return follow_transpose(order_of(graph_, id), channels);
    int64_t axis = 0, from = 0;
    if (node.op == Op::Split) {
      axis = node.attrs.get_int("axis", 0);
      for (ValueId before : node.outputs) {
        if (before == value) break;
        if (before == kNone) return false;
        from += graph_.type(before).shape[1];
      }
    } else {
      const auto one = [&](size_t input) -> std::optional<int64_t> {
        const Tensor* known = constant_input(graph_, node, input);
        return known && known->count() == 1 ? std::optional(known->get_int(0)) : std::nullopt;
      };
      const auto start = one(1), along = one(3);
      if (!start || !along || (node.inputs.size() > 4 && one(4) != 1)) return false;
      axis = *along, from = *start < 0 ? *start + channels.dims.front() : *start;
    }
    const int64_t rank = graph_.type(value).rank();
    return (axis < 0 ? axis + rank : axis) == 1 && take(channels, from, dims->front());
  }
  static bool follow_transpose(const std::vector<int64_t>& order, Channels& channels) {
    const auto count = static_cast<int64_t>(channels.dims.size());
    std::vector<int64_t> inner;
    for (size_t d = 0; d < order.size(); ++d) {
      const auto own = static_cast<int64_t>(d);
      const bool is_channel = own >= 1 && own <= count;
      if (!is_channel && order[d] != own) return false;
      if (!is_channel) continue;
      if (order[d] < 1 || order[d] > count) return false;
      inner.push_back(order[d] - 1);
    }
    channels = turned(channels, inner);
    return true;
  }

  const Graph& graph_;
  const Shape whole_;
};

/// Whether tiles read them where they are.
bool are_neighbours(const std::vector<int64_t>& channels, DType type) {
  const int64_t whole = std::max<int64_t>(kVectorBytes / byte_size(type, 1), 1);
  for (size_t k = 1; k < channels.size(); ++k)
    if (channels[k] != channels[0] + static_cast<int64_t>(k)) return false;
  return channels[0] % whole == 0 && static_cast<int64_t>(channels.size()) % whole == 0;
}

void fold(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Tensor* weights = constant_input(graph, node, 1);
  if (node.op != Op::Conv || !weights || node.attrs.get_int("group", 1) != 1 ||
      bits(weights->dtype()) < 8)
    return;
  const Shape& shape = weights->shape();
  if (!std::all_of(shape.begin() + 2, shape.end(), [](int64_t each) { return each == 1; })) return;
  const auto traced = Tracer(graph, node.inputs[0]).trace(node.inputs[0]);
  if (!traced) return;
  const auto& [source, channels] = *traced;
  const int64_t all = graph.type(source).shape[1], read = shape[1];
  const std::vector<int64_t>& of = channels.of;
  std::vector<int64_t> sorted = of;
  std::sort(sorted.begin(), sorted.end());
  if (read == 0 || all > kMostZeros * read || are_neighbours(of, graph.type(source).dtype) ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    return;
  Shape to = shape;
  to[1] = all;
  Tensor wide = Tensor::allocate({weights->dtype(), to});
  std::memset(wide.mutable_data(), 0, static_cast<size_t>(wide.bytes()));
  const auto bytes = static_cast<size_t>(byte_size(weights->dtype(), 1));
  auto* target = static_cast<std::byte*>(wide.mutable_data());
  const auto* from = static_cast<const std::byte*>(weights->data());
  for (int64_t row = 0; row < shape[0]; ++row)
    for (int64_t k = 0; k < read; ++k)
      std::memcpy(target + static_cast<size_t>(row * all + of[static_cast<size_t>(k)]) * bytes,
                  from + static_cast<size_t>(row * read + k) * bytes, bytes);
  std::vector<ValueId> inputs = node.inputs;
  inputs[0] = source, inputs[1] = graph.add_constant(std::move(wide));
  graph.set_inputs(id, std::move(inputs));
}

}  // namespace

Result<Graph> fold_channel_moves(Graph graph) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) fold(graph, id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes

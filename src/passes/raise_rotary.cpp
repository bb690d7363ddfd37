#include "passes/raise_rotary.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// The x where `value` is Concat(-x[h:], x[:h]) along the last axis.
ValueId rotated(const Graph& graph, ValueId value) {
  const NodeId id = graph.producer(value, Op::Concat);
  if (id == kNone || graph.node(id).inputs.size() != 2) return kNone;
  const Node& node = graph.node(id);
  const int64_t rank = graph.type(value).rank(), axis = node.attrs.get_int("axis", 0);
  if (axis != -1 && axis != rank - 1) return kNone;
  const NodeId negated = graph.producer(node.inputs[0], Op::Neg);
  if (negated == kNone) return kNone;
  const PartOfAxis second = part_of(graph, graph.node(negated).inputs[0]),
                   first = part_of(graph, node.inputs[1]);
  const int64_t size = graph.type(value).shape.back();
  if (first.of == kNone || first.of != second.of || graph.type(first.of) != graph.type(value))
    return kNone;
  const bool halves = size % 2 == 0 && first.begin == 0 && first.end == size / 2 &&
                      second.begin == size / 2 && second.end == size;
  return halves ? first.of : kNone;
}

/// Constants by halves, else kNone.
ValueId half_of_constant(Graph& graph, const Tensor& tensor) {
  const int64_t size = tensor.shape().back(), half = size / 2, rows = tensor.count() / size;
  const int64_t bytes = byte_size(tensor.dtype(), half);
  const char* from = static_cast<const char*>(tensor.data());
  for (int64_t row = 0; row < rows; ++row) {
    const char* first = from + 2 * row * bytes;
    if (std::memcmp(first, first + bytes, static_cast<size_t>(bytes)) != 0) return kNone;
  }
  Shape shape = tensor.shape();
  shape.back() = half;
  Tensor out = Tensor::allocate({tensor.dtype(), shape});
  char* to = static_cast<char*>(out.mutable_data());
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * bytes, from + 2 * row * bytes, static_cast<size_t>(bytes));
  return graph.add_constant(out);
}

/// The first half along the last axis of a value whose halves are equal, else kNone. Nothing is
/// added to the graph where it fails, but nodes that nobody reads.
ValueId half_of(Graph& graph, ValueId value) {
  const Type type = graph.type(value);
  if (type.rank() == 0 || type.count() == 0 || type.shape.back() % 2 != 0) return kNone;
  if (graph.value(value).is_constant()) {
    if (bits(type.dtype) < 8) return kNone;
    const Tensor tensor = graph.value(value).constant;
    return half_of_constant(graph, tensor);
  }
  if (graph.value(value).producer == kNone) return kNone;
  const Node node = graph.node(graph.value(value).producer);
  Shape shape = type.shape;
  shape.back() /= 2;
  const auto with = [&](std::vector<ValueId> inputs) {
    return graph.must_add(node.op, std::move(inputs), node.attrs, node.name);
  };
  switch (node.op) {
    case Op::Concat: {
      const int64_t axis = node.attrs.get_int("axis", 0);
      const bool last = axis == -1 || axis == type.rank() - 1;
      return last && node.inputs.size() == 2 && node.inputs[0] == node.inputs[1] ? node.inputs[0]
                                                                                 : kNone;
    }
    case Op::Cos:
    case Op::Sin:
    case Op::Cast: {
      const ValueId half = half_of(graph, node.inputs[0]);
      return half == kNone ? kNone : with({half});
    }
    case Op::Mul:
    case Op::Div:
      for (size_t side : {1, 0}) {
        if (!uniform_value(graph, node.inputs[side])) continue;
        if (graph.type(node.inputs[side]).count() != 1) continue;
        if (graph.type(node.inputs[1 - side]) != type) continue;
        const ValueId half = half_of(graph, node.inputs[1 - side]);
        if (half == kNone) return kNone;
        return side == 1 ? with({half, node.inputs[1]}) : with({node.inputs[0], half});
      }
      return kNone;
    case Op::Gather: {  // rows
      const int64_t axis = node.attrs.get_int("axis", 0), rank = graph.type(node.inputs[0]).rank();
      if (rank < 2 || (axis < 0 ? axis + rank : axis) == rank - 1) return kNone;
      const ValueId half = half_of(graph, node.inputs[0]);
      return half == kNone ? kNone : with({half, node.inputs[1]});
    }
    case Op::Reshape:
    case Op::Flatten:
    case Op::Squeeze:
    case Op::Unsqueeze: {
      const Shape& before = graph.type(node.inputs[0]).shape;
      if (before.empty() || before.back() != type.shape.back()) return kNone;
      const ValueId half = half_of(graph, node.inputs[0]);
      return half == kNone ? kNone : reshaped(graph, half, shape, node.name);
    }
    default:
      return kNone;
  }
}

/// Where the heads are when angles of this shape meet x.
enum class Heads { kUnknown, kFirst, kBeside };

Heads heads_of(const Shape& x, Shape angles) {
  if (x.size() != 4 || angles.size() > 4) return Heads::kUnknown;
  angles.insert(angles.begin(), 4 - angles.size(), 1);
  if (angles[3] != x[3] || (angles[0] != 1 && angles[0] != x[0])) return Heads::kUnknown;
  const bool first = angles[1] == 1 && angles[2] == x[2];
  const bool beside = angles[2] == 1 && angles[1] == x[1];
  if (first) return Heads::kFirst;  // where both fit, all tokens have the same angles
  return beside ? Heads::kBeside : Heads::kUnknown;
}

/// What was made of angles already: all layers turn by the same ones.
using Known = std::map<std::tuple<ValueId, int64_t, int64_t>, ValueId>;

/// [batch, length, half] of half the angles.
ValueId cache(Graph& graph, ValueId half, int64_t batch, int64_t length, const std::string& name) {
  const Shape shape = graph.type(half).shape;
  const int64_t size = shape.back();
  const int64_t images = graph.type(half).count() / (size * length);
  half = reshaped(graph, half, {images, length, size}, name);
  if (images == batch) return half;
  const ValueId whole = graph.add_constant(tensor_of(std::vector<int64_t>{batch, length, size}));
  return graph.must_add(Op::Expand, {half, whole}, {}, name);
}

/// The same of the whole angles, or kNone where their halves differ.
ValueId half_cache(Graph& graph, Known& known, ValueId angles, int64_t batch, int64_t length,
                   const std::string& name) {
  const auto [place, fresh] = known.try_emplace({angles, batch, length}, kNone);
  if (!fresh) return place->second;
  const ValueId half = half_of(graph, angles);
  if (half != kNone) place->second = cache(graph, half, batch, length, name);
  return place->second;
}

void raise(Graph& graph, Known& known, NodeId id, Remarks* remarks) {
  const Node node = graph.node(id);
  const ValueId out = node.outputs[0];
  const Type type = graph.type(out);
  if (type.rank() == 0 || type.count() == 0) return;
  Reason why;
  for (size_t side : {0, 1}) {
    const NodeId straight = graph.producer(node.inputs[side], Op::Mul);
    const NodeId rotated_half = graph.producer(node.inputs[1 - side], Op::Mul);
    if (straight == kNone || rotated_half == kNone || straight == rotated_half) continue;
    for (size_t by : {1, 0}) {
      const ValueId rotation = graph.node(rotated_half).inputs[1 - by],
                    sine = graph.node(rotated_half).inputs[by];
      const ValueId x = rotated(graph, rotation);
      if (x == kNone || graph.type(x) != type) continue;
      const std::vector<ValueId> factors = graph.node(straight).inputs;
      const size_t own = factors[0] == x ? 0 : 1;
      if (factors[own] != x || factors[1 - own] == x) continue;
      const ValueId cosine = factors[1 - own];
      if (type.rank() != 4) {
        why.no(fmt::format("it turns {} axes, wanted batch, heads, length and size", type.rank()));
        continue;
      }
      const Heads heads = heads_of(type.shape, graph.type(cosine).shape);
      if (heads == Heads::kUnknown || graph.type(cosine) != graph.type(sine)) {
        why.no(fmt::format("its cosines {} and sines {} are not one for each place of a token",
                           to_string(graph.type(cosine).shape), to_string(graph.type(sine).shape)),
               2);
        continue;
      }
      const bool first = heads == Heads::kFirst;
      const int64_t batch = type.shape[0], length = type.shape[first ? 2 : 1];
      const ValueId c = half_cache(graph, known, cosine, batch, length, node.name);
      const ValueId s = half_cache(graph, known, sine, batch, length, node.name);
      if (c == kNone || s == kNone) {
        why.no("the halves of its cosines or sines are not known to be equal", 3);
        continue;
      }
      if (first) {
        replace_value(graph, out, graph.must_add(Op::RotaryEmbedding, {x, c, s}, {}, node.name));
        return;
      }
      const Shape flat{batch, length, type.shape[2] * type.shape[3]};
      const ValueId packed = reshaped(graph, x, flat, node.name);
      const ValueId made = graph.must_add(Op::RotaryEmbedding, {packed, c, s},
                                          ops::Attrs().set("num_heads", type.shape[2]), node.name);
      replace_value(graph, out, reshaped(graph, made, type.shape, node.name));
      return;
    }
  }
  why.tell(remarks, graph, id);
}

}  // namespace

Result<Graph> raise_rotary(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  Known known;
  for (NodeId id : order) {
    if (graph.node(id).op == Op::Add) raise(graph, known, id, remarks);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

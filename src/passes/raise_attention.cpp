#include "passes/raise_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/attention_parts.h"
#include "passes/merge_equal.h"
#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

using Order = std::vector<int64_t>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const Order kHeadsFirst{0, 2, 1, 3};

/// [batch, heads, length, size] of keys or values whose heads are repeated in groups, before they
/// were: the value and how often each head stands. 1: they are not.
struct Unrepeated {
  ValueId value;
  int64_t times = 1;
};

Unrepeated unrepeated(const Graph& graph, ValueId value) {
  const Unrepeated as_it_is{value, 1};
  ValueId at = value;
  while (graph.value(at).producer != kNone && keeps_order(graph.node(graph.value(at).producer).op))
    at = graph.node(graph.value(at).producer).inputs[0];
  const NodeId id = graph.value(at).producer;
  if (id == kNone) return as_it_is;
  const Node& node = graph.node(id);
  const Shape& many = graph.type(at).shape;
  if (node.op == Op::Gather) {  // heads k / times, one after the other
    const ValueId from = node.inputs[0], indices = node.inputs[1];
    const Shape& few = graph.type(from).shape;
    if (at != value || node.attrs.get_int("axis", 0) != 1 || few.size() != 4 || many.size() != 4)
      return as_it_is;
    if (!graph.value(indices).is_constant() || few[1] == 0 || many[1] % few[1] != 0)
      return as_it_is;
    const int64_t times = many[1] / few[1];
    const Order heads = to_ints(graph.value(indices).constant);
    for (size_t k = 0; k < heads.size(); ++k) {
      if (heads[k] != static_cast<int64_t>(k) / times) return as_it_is;
    }
    return {from, times};
  }
  if (node.op != Op::Expand && node.op != Op::Tile) return as_it_is;
  // [.., heads, 1, length, size] → [.., heads, times, length, size], joined to [.., heads * times]
  const ValueId from = node.inputs[0];
  const Shape few = padded(graph.type(from).shape, many.size());
  if (many.size() < 4 || graph.type(value).shape.size() != 4) return as_it_is;
  const size_t group = many.size() - 3;
  for (size_t axis = 0; axis < many.size(); ++axis) {
    if (axis != group && few[axis] != many[axis]) return as_it_is;
  }
  const Shape& shape = graph.type(value).shape;
  if (few[group] != 1 || many[group] < 2) return as_it_is;
  if (shape[2] != many[group + 1] || shape[3] != many[group + 2]) return as_it_is;
  int64_t before = 1;  // batch * heads, however the axes lie
  for (size_t axis = 0; axis < group; ++axis) before *= many[axis];
  if (before * many[group] != shape[0] * shape[1] || shape[1] % many[group] != 0) return as_it_is;
  return {from, many[group]};
}

/// The condition of a mask, or what is added, with leading axes [1 or batch, 1 or heads].
ValueId in_heads(Graph& graph, const ScoreMask& mask, const AttentionHeads& heads,
                 const std::string& name) {
  const Shape& own = graph.type(mask.value).shape;
  const size_t rank = mask.frame.size() + 2;
  if (own.size() < 2 || mask.frame == Shape{heads.batch, heads.heads}) return mask.value;
  const Shape shape = padded(own, rank);
  const size_t split = *split_of(mask.frame, heads);
  Shape whole = shape;  // where a part of the axes is broadcast, all of them are written out
  Shape result{1, 1, shape[rank - 2], shape[rank - 1]};
  const auto flatten = [&](size_t begin, size_t end, int64_t& extent) {
    const bool broadcasts = std::all_of(shape.begin() + begin, shape.begin() + end,
                                        [](int64_t one) { return one == 1; });
    if (broadcasts) return;
    for (size_t axis = begin; axis < end; ++axis) extent *= whole[axis] = mask.frame[axis];
  };
  flatten(0, split, result[0]);
  flatten(split, mask.frame.size(), result[1]);
  ValueId value = mask.value;
  if (whole != shape)
    value = graph.must_add(Op::Expand, {value, graph.add_constant(tensor_of(whole))}, {}, name);
  return reshaped(graph, value, result, name);
}

/// All masks as one: a condition where only minus infinity is at stake, else numbers to add.
ValueId mask_of(Graph& graph, const AttentionParts& parts, const AttentionHeads& heads, DType dtype,
                const std::string& name) {
  const auto add = [&](Op op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return graph.must_add(op, std::move(inputs), std::move(attrs), name);
  };
  if (parts.masks.size() == 1 && parts.masks[0].is_condition && parts.masks[0].fill == -kInfinity) {
    const ValueId condition = in_heads(graph, parts.masks[0], heads, name);
    return parts.masks[0].allows ? condition : add(Op::Not, {condition});
  }
  const DType type = dtype == DType::f64 ? DType::f64 : DType::f32;
  // So low that a score added to it vanishes.
  const double lowest = type == DType::f64 ? std::numeric_limits<double>::lowest()
                                           : std::numeric_limits<float>::lowest();
  ValueId sum = kNone;
  for (const ScoreMask& mask : parts.masks) {
    ValueId value = in_heads(graph, mask, heads, name);
    if (mask.is_condition) {
      const ValueId fill = scalar(graph, type, std::isinf(mask.fill) ? -kInfinity : lowest);
      const ValueId kept = sum == kNone ? scalar(graph, type, 0) : sum;
      sum = add(Op::Where, {value, mask.allows ? kept : fill, mask.allows ? fill : kept});
      continue;
    }
    if (graph.type(value).dtype != type)
      value = add(Op::Cast, {value}, Attrs().set("to", ops::number_of_dtype(type)));
    if (mask.factor == -1)
      value = add(Op::Neg, {value});
    else if (mask.factor != 1)
      value = add(Op::Mul, {value, scalar(graph, type, mask.factor)});
    sum = sum == kNone ? value : add(Op::Add, {sum, value});
  }
  return sum;
}

/// Whether a constant mask allows key j for query i exactly where j <= i, and forbids so strongly
/// that nothing else matters.
bool is_triangle(const Graph& graph, const ScoreMask& mask, const Shape& scores, bool alone) {
  if (!graph.value(mask.value).is_constant() || mask.factor != 1) return false;
  const Tensor& tensor = graph.value(mask.value).constant;
  const int64_t rows = scores[0], columns = scores[1];
  if (tensor.count() != rows * columns || rows != columns || rows < 2) return false;
  const Shape& shape = tensor.shape();
  if (shape.size() < 2 || shape.back() != columns || shape[shape.size() - 2] != rows) return false;
  // With another mask a row may have no key left; then it matters what forbidden ones weigh.
  const auto forbids = [&](double value) { return alone ? value < -1e30 : value == -kInfinity; };
  if (mask.is_condition && !forbids(mask.fill)) return false;
  for (int64_t at = 0; at < tensor.count(); ++at) {
    const bool allowed = at % columns <= at / columns;
    const double value = tensor.get_double(at);
    const bool fits = mask.is_condition ? (value != 0) == (mask.allows == allowed)
                      : allowed         ? value == 0
                                        : forbids(value);
    if (!fits) return false;
  }
  return true;
}

/// [batch, length, heads * size] where a value is that, split into heads; else kNone.
ValueId joined(Graph& graph, ValueId value, const std::string& name) {
  const NodeId transpose = graph.producer(value, Op::Transpose);
  if (transpose == kNone || order_of(graph, transpose) != kHeadsFirst) return kNone;
  const Shape shape = graph.type(value).shape;
  return reshaped(graph, graph.node(transpose).inputs[0], {shape[0], shape[2], shape[1] * shape[3]},
                  name);
}

/// Where the only reader of `answer`, seen as [batch, heads, length, size], puts its heads beside
/// each other: that reader.
NodeId joins_heads(const Graph& graph, ValueId answer, const Shape& by_heads) {
  if (!has_one_reader(graph, answer) || graph.type(answer).shape != by_heads) return kNone;
  const NodeId reader = graph.users(answer)[0];
  if (graph.node(reader).op != Op::Transpose) return kNone;
  return order_of(graph, reader) == kHeadsFirst ? reader : kNone;
}

void raise(Graph& graph, NodeId id, Remarks* remarks) {
  const Node node = graph.node(id);
  const ValueId answer = node.outputs[0];
  const Type type = graph.type(answer);
  Reason why;
  std::optional<AttentionParts> parts = attention_parts(graph, id, why);
  if (!parts) return why.tell(remarks, graph, id);
  const std::optional<AttentionHeads> heads = attention_heads(graph, *parts, type.shape);
  if (!heads) {
    why.no("its leading axes are no batch and heads that queries, keys, values and masks share", 5);
    return why.tell(remarks, graph, id);
  }
  const std::string& name = node.name;
  const auto by_heads = [&](ValueId value, int64_t count) {
    const Shape& shape = graph.type(value).shape;
    return reshaped(graph, value, {heads->batch, count, shape[shape.size() - 2], shape.back()},
                    name);
  };
  const Factored q_factor = without_factors(graph, parts->q);
  const Factored k_factor = without_factors(graph, parts->kt);
  ValueId q = by_heads(q_factor.rest, heads->heads);
  ValueId k = by_heads(transposed(graph, k_factor.rest, name), heads->kv_heads);
  ValueId v = by_heads(parts->v, heads->kv_heads);
  int64_t kv_heads = heads->kv_heads;
  const Unrepeated few_k = unrepeated(graph, k), few_v = unrepeated(graph, v);
  if (few_k.times == few_v.times && few_k.times > 1 && kv_heads % few_k.times == 0) {
    kv_heads /= few_k.times;
    k = by_heads(few_k.value, kv_heads);
    v = by_heads(few_v.value, kv_heads);
  }
  const Shape scores{graph.type(q).shape[2], graph.type(k).shape[2]};
  Attrs attrs;
  attrs.set("scale", parts->scale * q_factor.factor * k_factor.factor);
  if (parts->cap != 0) attrs.set("softcap", parts->cap);
  const bool alone = parts->masks.size() == 1;
  const auto triangles = std::erase_if(
      parts->masks, [&](const ScoreMask& mask) { return is_triangle(graph, mask, scores, alone); });
  if (triangles > 0) attrs.set("is_causal", int64_t{1});
  const ValueId mask = mask_of(graph, *parts, *heads, type.dtype, name);
  const Shape whole{heads->batch, heads->heads, scores[0], type.shape.back()};
  const NodeId join = joins_heads(graph, answer, whole);
  std::vector<ValueId> inputs{q, k, v};
  bool packed = join != kNone;
  for (ValueId& input : inputs) {
    const ValueId flat = packed ? joined(graph, input, name) : kNone;
    packed = flat != kNone;
    if (packed) input = flat;
  }
  if (packed) {
    attrs.set("q_num_heads", heads->heads).set("kv_num_heads", kv_heads);
  } else {
    inputs = {q, k, v};
  }
  if (mask != kNone) {
    inputs.push_back(mask);
    if (!parts->guarded) attrs.set("nan_if_masked", int64_t{1});
  }
  const ValueId attended = graph.must_add(Op::Attention, inputs, attrs, name);
  if (!packed) {
    replace_value(graph, answer, reshaped(graph, attended, type.shape, name));
    return;
  }
  const ValueId beside = graph.node(join).outputs[0];
  if (has_one_reader(graph, beside)) {
    const Node& reader = graph.node(graph.users(beside)[0]);
    if (keeps_order(reader.op) && graph.type(reader.outputs[0]) == graph.type(attended)) {
      replace_value(graph, reader.outputs[0], attended);
      return;
    }
  }
  replace_value(graph, beside, reshaped(graph, attended, graph.type(beside).shape, name));
}

}  // namespace

Result<Graph> raise_attention(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    if (graph.node(id).op == Op::MatMul) raise(graph, id, remarks);
  }
  // Layers share a mask, and each brought it into its attention's form.
  return merge_equal(std::move(graph), remarks);
}

}  // namespace obelisk::passes

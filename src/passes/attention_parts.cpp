#include "passes/attention_parts.h"

#include <algorithm>
#include <cmath>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {

namespace {

constexpr double kForbids = -1e4;  // a score as low as this is meant to weigh nothing

bool is_wide_float(DType dtype) { return is_float(dtype) && !is_low_float(dtype); }

std::string called(const Node& node) {
  const std::string_view op = ops::to_string(node.op);
  return node.name.empty() ? std::string(op) : fmt::format("{} '{}'", op, node.name);
}

bool same_last_two(const Shape& a, const Shape& b) {
  return a.size() >= 2 && b.size() >= 2 && std::equal(a.end() - 2, a.end(), b.end() - 2);
}

/// Walks from the softmax down to the product of the scores.
class ScoreWalk {
 public:
  ScoreWalk(const Graph& graph, Reason& why) : graph_(graph), why_(why) {}

  bool down(ValueId at, double factor, bool capped) {
    if (graph_.value(at).producer == kNone) return why_.no("its scores are no product");
    const Node& node = graph_.node(graph_.value(at).producer);
    if (!has_one_reader(graph_, at)) {
      const bool product = node.op == Op::MatMul;
      return why_.no(fmt::format("its scores have another reader, behind {}", called(node)),
                     product ? 3 : 2);
    }
    const Type& type = graph_.type(at);
    const auto on = [&](size_t side) { return node.inputs[side]; };
    const auto same_shape = [&](size_t side) { return graph_.type(on(side)).shape == type.shape; };
    switch (node.op) {
      case Op::MatMul:
        parts.q = on(0);
        parts.kt = on(1);
        parts.scale = factor;
        if (parts.cap != 0) parts.scale *= parts.cap;
        return true;
      case Op::Cast:
        return is_wide_float(graph_.type(on(0)).dtype) && down(on(0), factor, capped);
      case Op::Reshape:
      case Op::Flatten:
      case Op::Squeeze:
      case Op::Unsqueeze:
        return same_last_two(graph_.type(on(0)).shape, type.shape) && down(on(0), factor, capped);
      case Op::Mul:
      case Op::Div:
        for (size_t side : {1, 0}) {
          if (node.op == Op::Div && side == 0) break;
          const std::optional<double> by = uniform_value(graph_, on(side));
          if (!by || !same_shape(1 - side) || !std::isfinite(*by) || *by == 0) continue;
          return down(on(1 - side), node.op == Op::Mul ? factor * *by : factor / *by, capped);
        }
        return why_.no(
            fmt::format("{} scales its scores by what is not one known number", called(node)), 2);
      case Op::Tanh:
        if (capped || !(factor > 0)) return why_.no("its scores are capped twice", 2);
        parts.cap = factor;
        return down(on(0), 1, true);
      case Op::Add:
        for (size_t side : {0, 1}) {
          if (same_shape(side) &&
              masked(on(side), added(on(1 - side), factor, type), factor, capped))
            return true;
        }
        return false;
      case Op::Sub:
        return same_shape(0) && masked(on(0), added(on(1), -factor, type), factor, capped);
      case Op::Where:
        for (size_t side : {1, 2}) {
          const std::optional<double> fill = uniform_value(graph_, on(3 - side));
          if (!fill || !same_shape(side)) continue;
          if (!(*fill * factor <= kForbids)) {
            why_.no(fmt::format("{} puts {} in place of scores, which forbids nothing",
                                called(node), *fill * factor),
                    2);
            continue;
          }
          const ScoreMask mask{on(0), true, side == 1, *fill * factor, 1, leading(type.shape)};
          if (masked(on(side), mask, factor, capped)) return true;
        }
        return false;
      default:
        return why_.no(fmt::format("its scores come from {}", called(node)));
    }
  }

  AttentionParts parts;

 private:
  static ScoreMask added(ValueId value, double factor, const Type& type) {
    return {value, false, true, 0, factor, leading(type.shape)};
  }

  /// The mask is applied after all that lies below.
  bool masked(ValueId below, const ScoreMask& mask, double factor, bool capped) {
    const AttentionParts before = parts;
    if (capped) return why_.no("its scores are masked before they are capped", 2);
    if (down(below, factor, capped)) {
      parts.masks.push_back(mask);
      return true;
    }
    parts = before;
    return false;
  }

  const Graph& graph_;
  Reason& why_;
};

/// The softmax that makes these weights, seen through casts, reshapes and the guard against NaN.
NodeId softmax_of(const Graph& graph, ValueId weights, bool& guarded, Reason& why) {
  const auto over_last = [&](ValueId value, NodeId softmax) {
    const int64_t rank = graph.type(value).rank();
    const int64_t axis = graph.node(softmax).attrs.get_int("axis", -1);
    if (axis == -1 || axis == rank - 1) return softmax;
    why.no(fmt::format("its softmax is over axis {}, not the last one", axis));
    return kNone;
  };
  for (;;) {
    const NodeId id = graph.value(weights).producer;
    if (id == kNone) return kNone;
    const Node& node = graph.node(id);
    if (!has_one_reader(graph, weights)) {
      if (node.op == Op::Softmax) why.no("its weights have another reader");
      return kNone;
    }
    if (node.op == Op::Softmax) return over_last(weights, id);
    const bool looks_through =
        (node.op == Op::Cast && is_wide_float(graph.type(node.inputs[0]).dtype)) ||
        (keeps_order(node.op) &&
         same_last_two(graph.type(node.inputs[0]).shape, graph.type(weights).shape));
    if (looks_through) {
      weights = node.inputs[0];
      continue;
    }
    if (node.op != Op::Where || guarded) return kNone;
    const NodeId is_nan = graph.producer(node.inputs[0], Op::IsNaN);
    const ValueId inner = node.inputs[2];
    if (is_nan == kNone || graph.node(is_nan).inputs[0] != inner) return kNone;
    if (graph.node(is_nan).attrs.all().size() > 0) return kNone;
    if (uniform_value(graph, node.inputs[1]) != 0.0) return kNone;
    const NodeId softmax = graph.producer(inner, Op::Softmax);
    if (softmax == kNone) return kNone;
    if (graph.users(inner).size() != 2 || graph.is_output(inner)) {
      why.no("its weights have another reader");
      return kNone;
    }
    guarded = true;
    return over_last(inner, softmax);
  }
}

int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t out = 1;
  for (size_t d = begin; d < end; ++d) out *= shape[d];
  return out;
}

/// How many heads keys with these leading axes have, when queries have `frame`, split there.
std::optional<int64_t> kv_heads(const Shape& keys, const Shape& frame, size_t split) {
  size_t at = 0;
  while (at < frame.size() && keys[at] == frame[at]) ++at;
  if (at < split) return std::nullopt;
  for (size_t rest = at; rest < frame.size(); ++rest) {
    if (keys[rest] != 1) return std::nullopt;
  }
  return product(keys, split, keys.size());
}

}  // namespace

Shape leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

Shape padded(Shape shape, size_t rank) {
  if (shape.size() < rank) shape.insert(shape.begin(), rank - shape.size(), 1);
  return shape;
}

std::optional<size_t> split_of(const Shape& frame, const AttentionHeads& heads) {
  for (size_t split = frame.size() + 1; split-- > 0;) {
    if (product(frame, 0, split) == heads.batch &&
        product(frame, split, frame.size()) == heads.heads)
      return split;
  }
  return std::nullopt;
}

std::optional<AttentionParts> attention_parts(const Graph& graph, NodeId product, Reason& why) {
  const Node& node = graph.node(product);
  const DType dtype = graph.type(node.outputs[0]).dtype;
  bool guarded = false;
  const NodeId softmax = softmax_of(graph, node.inputs[0], guarded, why);
  if (softmax == kNone) return std::nullopt;
  ScoreWalk walk(graph, why);
  if (!walk.down(graph.node(softmax).inputs[0], 1, false)) return std::nullopt;
  AttentionParts parts = walk.parts;
  parts.v = node.inputs[1];
  parts.guarded = guarded;
  for (ValueId part : {parts.q, parts.kt, parts.v}) {
    const Type& type = graph.type(part);
    if (type.dtype == dtype && type.rank() >= 2 && type.count() > 0) continue;
    why.no(fmt::format("one of its operands is {}", to_string(type)), 4);
    return std::nullopt;
  }
  if (graph.value(parts.kt).is_constant() || graph.value(parts.v).is_constant()) {
    why.no("its keys or values are constants", 4);
    return std::nullopt;
  }
  return parts;
}

std::optional<AttentionHeads> attention_heads(const Graph& graph, const AttentionParts& parts,
                                              const Shape& answer) {
  const Shape& q = graph.type(parts.q).shape;
  const Shape& kt = graph.type(parts.kt).shape;
  const Shape& v = graph.type(parts.v).shape;
  const size_t rank = std::max(q.size(), kt.size());
  const Shape frame = leading(padded(q, rank)), keys = leading(padded(kt, rank));
  const Shape second = leading(answer), values = leading(padded(v, answer.size()));
  if (values.size() != second.size()) return std::nullopt;
  // The last leading axis is the heads', unless only another split fits.
  std::vector<size_t> splits;
  for (size_t split = frame.size(); split-- > 0;) splits.push_back(split);
  splits.push_back(frame.size());
  for (size_t split : splits) {
    const std::optional<int64_t> of_keys = kv_heads(keys, frame, split);
    if (!of_keys) continue;
    const AttentionHeads heads{product(frame, 0, split), product(frame, split, frame.size()),
                               *of_keys};
    const auto fits_frame = [&](const ScoreMask& mask) {
      return split_of(mask.frame, heads).has_value();
    };
    if (!std::all_of(parts.masks.begin(), parts.masks.end(), fits_frame)) continue;
    const std::optional<size_t> there = split_of(second, heads);
    if (there && kv_heads(values, second, *there) == heads.kv_heads) return heads;
  }
  return std::nullopt;
}

}  // namespace obelisk::passes

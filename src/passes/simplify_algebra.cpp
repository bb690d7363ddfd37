#include "passes/simplify_algebra.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/moves.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

bool is_plain_float(DType dtype) { return is_float(dtype) && !is_low_float(dtype); }

/// Everything a rule may look at. A rule answers the value that the node's first output is equal
/// to, or kNone.
struct At {
  Graph& graph;
  const NodeId id;
  const Node node;  // a copy: rules add nodes

  ValueId in(size_t k) const { return k < node.inputs.size() ? node.inputs[k] : kNone; }
  const Type& out() const { return graph.type(node.outputs[0]); }
  bool same_type(ValueId value) const { return value != kNone && graph.type(value) == out(); }
  ValueId if_same_type(ValueId value) const { return same_type(value) ? value : kNone; }
  std::optional<double> uniform(size_t k) const { return uniform_value(graph, in(k)); }
  ValueId add(Op op, std::vector<ValueId> inputs, Attrs attrs = {}) const {
    return graph.must_add(op, std::move(inputs), std::move(attrs), node.name);
  }
};

// ---- arithmetic ---------------------------------------------------------------------------------

bool is_zero(const At& at, std::optional<double> value, bool negative) {
  if (!value || *value != 0) return false;
  return !is_float(at.out().dtype) || std::signbit(*value) == negative;
}

ValueId simplify_add(const At& at) {
  if (is_zero(at, at.uniform(1), true)) return at.if_same_type(at.in(0));
  if (is_zero(at, at.uniform(0), true)) return at.if_same_type(at.in(1));
  return kNone;
}

ValueId simplify_sub(const At& at) {
  return is_zero(at, at.uniform(1), false) ? at.if_same_type(at.in(0)) : kNone;
}

ValueId simplify_mul(const At& at) {
  if (at.uniform(1) == 1.0) return at.if_same_type(at.in(0));
  if (at.uniform(0) == 1.0) return at.if_same_type(at.in(1));
  return kNone;
}

/// 1 / value where that is exact and a normal number of the type.
std::optional<double> exact_reciprocal(double value, DType dtype) {
  int exponent = 0;
  if (!std::isfinite(value) || std::abs(std::frexp(value, &exponent)) != 0.5) return std::nullopt;
  // frexp gives 2^(exponent-1); its reciprocal is 2^(1-exponent).
  const int limit = dtype == DType::f64 ? 1022 : dtype == DType::f16 ? 14 : 126;
  if (std::abs(exponent - 1) > limit) return std::nullopt;
  return 1 / value;
}

ValueId simplify_div(const At& at) {
  const std::optional<double> by = at.uniform(1);
  if (!by) return kNone;
  if (*by == 1 && at.same_type(at.in(0))) return at.in(0);
  if (!is_plain_float(at.out().dtype)) return kNone;
  const std::optional<double> times = exact_reciprocal(*by, at.out().dtype);
  if (!times) return kNone;
  const Type& type = at.graph.type(at.in(1));
  const std::vector<double> values(static_cast<size_t>(type.count()), *times);
  const ValueId factor = at.graph.add_constant(tensor_of(type.dtype, type.shape, values));
  return at.add(Op::Mul, {at.in(0), factor});
}

ValueId simplify_pow(const At& at) {
  const std::optional<double> power = at.uniform(1);
  const ValueId x = at.in(0);
  if (!power || !at.same_type(x) || !is_plain_float(at.out().dtype)) return kNone;
  if (*power == 1) return x;
  if (*power == 2) return at.add(Op::Mul, {x, x});
  // A cube overflows, and becomes zero, wherever its square does.
  if (*power == 3) return at.add(Op::Mul, {at.add(Op::Mul, {x, x}), x});
  if (*power == -1) return at.add(Op::Reciprocal, {x});
  return kNone;
}

ValueId simplify_involution(const At& at) {
  const NodeId inner = at.graph.producer(at.in(0), at.node.op);
  return inner == kNone ? kNone : at.graph.node(inner).inputs[0];
}

// ---- types --------------------------------------------------------------------------------------

/// Whether every value of `from` is one of `to`, and numbers stay of the same kind, so that a
/// further cast from either gives the same.
bool keeps_values(DType from, DType to) {
  if (is_low_float(from) || is_low_float(to) || bits(from) < 8 || bits(to) < 8) return false;
  if (from == to || from == DType::b1) return true;
  if (is_float(from) && is_float(to)) {
    return to == DType::f64 || (to == DType::f32 && from != DType::f64);
  }
  if (!is_integer(from) || !is_integer(to) || bits(to) <= bits(from)) return false;
  return is_signed(to) || !is_signed(from);
}

ValueId simplify_cast(const At& at) {
  if (at.same_type(at.in(0))) return at.in(0);
  const NodeId inner = at.graph.producer(at.in(0), Op::Cast);
  if (inner == kNone) return kNone;
  const ValueId x = at.graph.node(inner).inputs[0];
  if (is_low_float(at.out().dtype) || bits(at.out().dtype) < 8) return kNone;
  if (!keeps_values(at.graph.type(x).dtype, at.graph.type(at.in(0)).dtype)) return kNone;
  return at.same_type(x) ? x : at.add(Op::Cast, {x}, at.node.attrs);
}

ValueId simplify_where(const At& at) {
  const std::optional<double> condition = at.uniform(0);
  if (!condition) return kNone;
  return at.if_same_type(at.in(*condition != 0 ? 1 : 2));
}

// ---- moves --------------------------------------------------------------------------------------

ValueId simplify_reshape(const At& at) {
  if (at.same_type(at.in(0))) return at.in(0);
  const NodeId inner = at.graph.value(at.in(0)).producer;
  if (inner == kNone || !keeps_order(at.graph.node(inner).op) || at.out().count() == 0)
    return kNone;
  const ValueId x = at.graph.node(inner).inputs[0];
  if (at.same_type(x)) return x;
  return at.add(Op::Reshape, {x, at.graph.add_constant(tensor_of(at.out().shape))});
}

bool is_counting(const std::vector<int64_t>& order) {
  return std::is_sorted(order.begin(), order.end());
}

ValueId simplify_transpose(const At& at) {
  std::vector<int64_t> order = order_of(at.graph, at.id);
  if (is_counting(order)) return at.in(0);
  const NodeId inner = at.graph.producer(at.in(0), Op::Transpose);
  if (inner == kNone) return kNone;
  const std::vector<int64_t> first = order_of(at.graph, inner);
  for (int64_t& axis : order) axis = first[static_cast<size_t>(axis)];
  const ValueId x = at.graph.node(inner).inputs[0];
  return is_counting(order) ? x : at.add(Op::Transpose, {x}, Attrs().set("perm", order));
}

bool all_ints(const At& at, size_t k, bool (*good)(int64_t)) {
  const Tensor* known = constant_input(at.graph, at.node, k);
  if (!known) return false;
  const std::vector<int64_t> ints = to_ints(*known);
  return std::all_of(ints.begin(), ints.end(), good);
}

ValueId simplify_slice(const At& at) {  // of the whole, forwards
  const bool forwards = at.in(4) == kNone || all_ints(at, 4, [](int64_t step) { return step > 0; });
  return forwards ? at.if_same_type(at.in(0)) : kNone;
}

/// One known place along an axis: a part and a reshape, which readers compose into their addresses.
ValueId simplify_gather(const At& at) {
  const Tensor* place = constant_input(at.graph, at.node, 1);
  const Type& from = at.graph.type(at.in(0));
  if (!place || place->count() != 1 || at.out().count() == 0) return kNone;
  const int64_t axis =
      at.node.attrs.get_int("axis", 0) + (at.node.attrs.get_int("axis", 0) < 0 ? from.rank() : 0);
  const int64_t length = from.shape[static_cast<size_t>(axis)];
  int64_t begin = to_ints(*place)[0];
  if (begin < 0) begin += length;
  if (begin < 0 || begin >= length) return kNone;
  const auto ints = [&](int64_t value) {
    return at.graph.add_constant(tensor_of(std::vector<int64_t>{value}));
  };
  const ValueId part = at.add(Op::Slice, {at.in(0), ints(begin), ints(begin + 1), ints(axis)});
  return reshaped(at.graph, part, at.out().shape, at.node.name);
}

ValueId simplify_pad(const At& at) {
  const bool nothing = all_ints(at, 1, [](int64_t pad) { return pad == 0; });
  return nothing ? at.if_same_type(at.in(0)) : kNone;
}

/// Of one part, or of one that is not of length 0; of what was split before.
ValueId simplify_concat(const At& at) {
  ValueId whole = kNone;
  for (ValueId part : at.node.inputs) {
    if (at.same_type(part) && whole == kNone) whole = part;
  }
  if (whole != kNone && (at.node.inputs.size() == 1 || at.out().count() > 0)) return whole;
  // All parts of a Split, one after the other, are what was split.
  const auto axis_of = [&](const Node& node) {
    const int64_t axis = node.attrs.get_int("axis", 0);
    return axis < 0 ? axis + at.out().rank() : axis;
  };
  std::vector<ValueId> parts;
  for (size_t k = 0; k < at.node.inputs.size(); ++k) {
    const NodeId id = at.graph.producer(at.node.inputs[k], Op::Split);
    if (id != kNone) {
      const Node& split = at.graph.node(id);
      const size_t count = split.outputs.size();
      if (axis_of(split) == axis_of(at.node) && k + count <= at.node.inputs.size() &&
          std::equal(split.outputs.begin(), split.outputs.end(), at.node.inputs.begin() + k)) {
        parts.push_back(split.inputs[0]), k += count - 1;
        continue;
      }
    }
    parts.push_back(at.node.inputs[k]);
  }
  if (parts.size() == at.node.inputs.size()) return kNone;
  return at.add(Op::Concat, std::move(parts), at.node.attrs);
}

ValueId simplify_dropout(const At& at) {
  if (at.node.outputs.size() > 1) {
    const ValueId mask = at.node.outputs[1];
    if (!at.graph.users(mask).empty() || at.graph.is_output(mask)) return kNone;
  }
  return at.if_same_type(at.in(0));  // the op table refuses those that train
}

ValueId simplified(const At& at) {
  switch (at.node.op) {
    case Op::Add:
      return simplify_add(at);
    case Op::Sub:
      return simplify_sub(at);
    case Op::Mul:
      return simplify_mul(at);
    case Op::Div:
      return simplify_div(at);
    case Op::Pow:
      return simplify_pow(at);
    case Op::Neg:
    case Op::Not:
      return simplify_involution(at);
    case Op::Cast:
      return simplify_cast(at);
    case Op::Where:
      return simplify_where(at);
    case Op::Reshape:
    case Op::Flatten:
    case Op::Squeeze:
    case Op::Unsqueeze:
      return simplify_reshape(at);
    case Op::Transpose:
      return simplify_transpose(at);
    case Op::Slice:
      return simplify_slice(at);
    case Op::Gather:
      return simplify_gather(at);
    case Op::Pad:
      return simplify_pad(at);
    case Op::Concat:
      return simplify_concat(at);
    case Op::Dropout:
      return simplify_dropout(at);
    case Op::Identity:
    case Op::Expand:
    case Op::Tile:
      return at.if_same_type(at.in(0));
    default:
      return kNone;
  }
}

/// Where a rule would change a number in some case.
void tell_left(const Graph& graph, NodeId id, Remarks& remarks) {
  const Node& node = graph.node(id);
  const Type& out = graph.type(node.outputs[0]);
  const auto uniform = [&](size_t k) {
    return k < node.inputs.size() ? uniform_value(graph, node.inputs[k]) : std::nullopt;
  };
  if (node.op == Op::Div && is_plain_float(out.dtype) && uniform(1))
    remarks.left(graph, id, "the reciprocal of its divisor is rounded: it divides");
  if (node.op == Op::Add && is_plain_float(out.dtype) && (uniform(0) == 0.0 || uniform(1) == 0.0))
    remarks.left(graph, id, "-0 + 0 is 0: adding 0 changes a sign");
  if (node.op == Op::Pow && uniform(1) && is_plain_float(out.dtype))
    remarks.left(graph, id, fmt::format("a power of {} is no short product", *uniform(1)));
  if (node.op == Op::Cast && graph.producer(node.inputs[0], Op::Cast) != kNone)
    remarks.left(graph, id, "the cast before it loses digits");
}

}  // namespace

Result<Graph> simplify_algebra(Graph graph, Remarks* remarks) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<NodeId> order = graph.order();
    for (NodeId id : order) {
      const At at{graph, id, graph.node(id)};
      const ValueId output = at.node.outputs[0];
      if (graph.users(output).empty() && !graph.is_output(output)) continue;  // replaced before
      const ValueId same = simplified(at);
      if (same != kNone && replace_value(graph, output, same)) changed = true;
    }
    graph.sort();
    graph.remove_dead();
  }
  if (remarks)
    for (NodeId id : graph.order()) tell_left(graph, id, *remarks);
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

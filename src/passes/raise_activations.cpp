#include "passes/raise_activations.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// factor * values[0] * values[1] ..., all of one type.
struct Product {
  double factor = 1;
  std::vector<ValueId> values;
};

/// What stands beside the uniform constant in a two-input node, and that constant.
struct Beside {
  ValueId value = kNone;
  double constant = 0;
};

Beside beside_constant(const Graph& graph, const Node& node) {
  for (size_t side : {1, 0}) {
    const std::optional<double> constant = uniform_value(graph, node.inputs[side]);
    if (constant) return {node.inputs[1 - side], *constant};
  }
  return {};
}

void collect(const Graph& graph, ValueId value, const Type& type, bool root, Product& into) {
  const NodeId id = graph.value(value).producer;
  const bool inside = id != kNone && graph.type(value) == type &&
                      (graph.node(id).op == Op::Mul || graph.node(id).op == Op::Div) &&
                      (root || has_one_reader(graph, value));
  if (!inside) return into.values.push_back(value);
  const Node& node = graph.node(id);
  const Beside by = beside_constant(graph, node);
  const bool divides = node.op == Op::Div;
  if (by.value != kNone && (!divides || by.value == node.inputs[0])) {
    into.factor *= divides ? 1 / by.constant : by.constant;
    return collect(graph, by.value, type, false, into);
  }
  if (divides) return into.values.push_back(value);
  for (ValueId input : node.inputs) collect(graph, input, type, false, into);
}

Product product(const Graph& graph, ValueId value) {
  Product made;
  collect(graph, value, graph.type(value), true, made);
  return made;
}

bool near(const Graph& graph, ValueId value, double got, double wanted) {
  const DType dtype = graph.type(value).dtype;
  const double relative = dtype == DType::f32 || dtype == DType::f64 ? 1e-6 : 4e-3;
  return std::abs(got - wanted) <= relative * std::abs(wanted);
}

/// The factor f where `value` is f * x.
std::optional<double> multiple_of(const Graph& graph, ValueId value, ValueId x) {
  if (value == x) return 1.0;
  const Product parts = product(graph, value);
  if (parts.values != std::vector<ValueId>{x}) return std::nullopt;
  return parts.factor;
}

/// x + 0.044715 * x³ times sqrt(2/pi)?
bool is_tanh_argument(const Graph& graph, ValueId value, ValueId x) {
  const Product outer = product(graph, value);
  if (outer.values.size() != 1) return false;
  if (!near(graph, x, outer.factor, std::sqrt(2 / std::numbers::pi))) return false;
  const NodeId add = graph.producer(outer.values[0], Op::Add);
  if (add == kNone) return false;
  const std::vector<ValueId>& terms = graph.node(add).inputs;
  if (terms[0] != x && terms[1] != x) return false;
  const Product cube = product(graph, terms[terms[0] == x ? 1 : 0]);
  return cube.values == std::vector<ValueId>{x, x, x} && near(graph, x, cube.factor, 0.044715);
}

/// What stands beside the 1 in 1 + value.
ValueId beyond_one(const Graph& graph, ValueId value) {
  const NodeId add = graph.producer(value, Op::Add);
  if (add == kNone) return kNone;
  const Beside by = beside_constant(graph, graph.node(add));
  return by.value != kNone && by.constant == 1 ? by.value : kNone;
}

struct Raised {
  Op op;
  Attrs attrs;
};

std::optional<Raised> gelu(const Graph& graph, ValueId x, ValueId gate, double factor,
                           Reason& why) {
  const ValueId curve = beyond_one(graph, gate);
  if (curve == kNone) return std::nullopt;
  const NodeId erf = graph.producer(curve, Op::Erf), tanh = graph.producer(curve, Op::Tanh);
  if (erf == kNone && tanh == kNone) return std::nullopt;
  const bool half = near(graph, x, factor, 0.5);
  if (!half) why.no(fmt::format("its factor is {}, that of a GELU 0.5", factor));
  if (erf != kNone) {
    const auto times = multiple_of(graph, graph.node(erf).inputs[0], x);
    if (!times)
      why.no("its Erf is of another value than it multiplies");
    else if (!near(graph, x, *times, 1 / std::numbers::sqrt2))
      why.no(fmt::format("its Erf takes {} * x, that of a GELU x / sqrt 2", *times), 2);
    else if (half)
      return Raised{Op::Gelu, {}};
    return std::nullopt;
  }
  if (!is_tanh_argument(graph, graph.node(tanh).inputs[0], x)) {
    why.no("its Tanh is not of sqrt(2/pi) * (x + 0.044715 * x * x * x)");
    return std::nullopt;
  }
  if (!half) return std::nullopt;
  return Raised{Op::Gelu, Attrs().set("approximate", std::string("tanh"))};
}

std::optional<Raised> swish(const Graph& graph, ValueId x, ValueId gate, double factor,
                            Reason& why) {
  const NodeId sigmoid = graph.producer(gate, Op::Sigmoid);
  if (sigmoid == kNone) return std::nullopt;
  const auto alpha = multiple_of(graph, graph.node(sigmoid).inputs[0], x);
  if (!alpha)
    why.no("its Sigmoid is of another value than it multiplies: a gate");
  else if (factor != 1)
    why.no(fmt::format("a factor of {} stands beside x * Sigmoid(x)", factor), 2);
  else
    return Raised{Op::Swish, Attrs().set("alpha", *alpha)};
  return std::nullopt;
}

std::optional<Raised> hard_swish(const Graph& graph, ValueId x, ValueId gate, double factor,
                                 Reason& why) {
  if (const NodeId id = graph.producer(gate, Op::HardSigmoid); id != kNone) {
    const Node& node = graph.node(id);
    const bool same = node.inputs[0] == x && factor == 1 &&
                      near(graph, x, node.attrs.get_float("alpha", 0.2), 1.0 / 6) &&
                      node.attrs.get_float("beta", 0.5) == 0.5;
    if (same) return Raised{Op::HardSwish, {}};
    if (node.inputs[0] == x) why.no("its HardSigmoid is not that of HardSwish, 1/6 and 1/2");
  }
  const NodeId id = graph.producer(gate, Op::Clip);
  if (id == kNone) return std::nullopt;
  const Node& clip = graph.node(id);
  const NodeId add = graph.producer(clip.inputs[0], Op::Add);
  if (add == kNone) return std::nullopt;
  const Beside by = beside_constant(graph, graph.node(add));
  if (by.value != x) return std::nullopt;
  if (clip.inputs.size() != 3 || uniform_value(graph, clip.inputs[1]) != 0.0 ||
      uniform_value(graph, clip.inputs[2]) != 6.0)
    why.no("its Clip is not from 0 to 6");
  else if (by.constant != 3)
    why.no(fmt::format("its Clip is of x + {}, that of HardSwish x + 3", by.constant));
  else if (!near(graph, x, factor, 1.0 / 6))
    why.no(fmt::format("its factor is {}, that of HardSwish 1/6", factor));
  else
    return Raised{Op::HardSwish, {}};
  return std::nullopt;
}

}  // namespace

Result<Graph> raise_activations(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const Node node = graph.node(id);
    if (node.op != Op::Mul && node.op != Op::Div) continue;
    const ValueId out = node.outputs[0];
    const Product parts = product(graph, out);
    if (parts.values.size() != 2) continue;
    Reason why;
    bool done = false;
    for (size_t side : {0, 1}) {
      const ValueId x = parts.values[side], gate = parts.values[1 - side];
      if (graph.type(x) != graph.type(out) || graph.type(gate) != graph.type(out)) continue;
      std::optional<Raised> raised = gelu(graph, x, gate, parts.factor, why);
      if (!raised) raised = swish(graph, x, gate, parts.factor, why);
      if (!raised) raised = hard_swish(graph, x, gate, parts.factor, why);
      if (!raised) continue;
      replace_value(graph, out, graph.must_add(raised->op, {x}, raised->attrs, node.name));
      done = true;
      break;
    }
    if (!done) why.tell(remarks, graph, id);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes

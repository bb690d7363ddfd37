// When two answers are the same. The rule, in full:
//
//   float    |got - wanted| <= tolerance * scale, scale = the largest finite |wanted| of that
//            output; NaN answers NaN, infinities answer themselves. `wanted` is rounded to the
//            output's type first.
//   tolerance  by the narrowest arithmetic that leads to the value: f64 1e-9, f32 1e-4, f16 2e-2,
//              bf16 1e-1, quantized or 8-bit floats 1e-1. A float that is only moved or compared is
//              exact, and so passes any of them.
//              tf32, whose products alone round, to as many bits as f16: 1e-2.
//   depth    roundings to 16 bits add up like a random walk: f16, bf16 and tf32 are meant for 36 sums
//            (products, norms, reductions) one after another, and change with the root of their
//            number, from a half to three times. Measured, with --precision: MiniLM (49 sums) 7e-4
//            and 5e-3 of the scale, T5's encoder 2e-3 and 1.2e-2, a Llama decoder's step 7e-4 and
//            6e-3. With tf32: ResNet-18 4e-4, T5's encoder 5e-4, GPT-2 8e-4.
//   integer  equal, unless it was computed from floats: then one off, or anything for one element
//            in 200 (a tie that rounding decides).
#include <algorithm>
#include <cmath>

#include "verify/verify.h"

namespace obelisk::verify {
namespace {

using ops::Op;

constexpr double kTf32 = 1e-2;

double type_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-9;
    case DType::f32: return 1e-4;
    case DType::f16: return 2e-2;
    case DType::bf16: return 1e-1;
    default: return is_float(dtype) ? 1e-1 : 0;
  }
}

/// The same where a program computes in another type than the graph says: that type's, and the
/// rounding of the port.
double tolerance_in(DType dtype, std::optional<Arithmetic> arithmetic) {
  if (!arithmetic || !is_float(dtype) || is_low_float(dtype)) return type_tolerance(dtype);
  const double stored = dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0;
  return std::max(arithmetic->tf32 ? kTf32 : type_tolerance(arithmetic->dtype), stored);
}

constexpr int kUsualDepth = 36;

/// A tolerance of 16-bit arithmetic after `depth` sums.
double deepened(double tolerance, DType dtype, std::optional<Arithmetic> arithmetic, int depth) {
  const DType computed = arithmetic ? arithmetic->dtype : dtype;
  const bool rounds = computed == DType::f16 || computed == DType::bf16 || (arithmetic && arithmetic->tf32);
  if (!is_float(dtype) || is_low_float(dtype) || !rounds) return tolerance;
  return tolerance * std::clamp(std::sqrt(static_cast<double>(depth) / kUsualDepth), 0.5, 3.0);
}

/// Products, norms and reductions: where an error of every element comes into every other.
bool is_sum(Op op) {
  const ops::Kind kind = ops::row(op).kind;
  return kind == ops::Kind::kCompute || kind == ops::Kind::kReduce ||
         ops::row(op).accuracy == ops::Accuracy::kSummed;
}

bool quantizes(Op op) { return op == Op::QuantizeLinear || op == Op::DynamicQuantizeLinear; }

/// What leads to each value: the loosest tolerance among its ancestors, whether floats are among
/// them, the sums on the longest path.
struct Ancestry {
  std::vector<double> tolerance;
  std::vector<char> floats;
  std::vector<int> depth;
  Ancestry(const Graph& graph, std::optional<Arithmetic> arithmetic)
      : tolerance(graph.value_count(), 0),
        floats(graph.value_count(), 0),
        depth(graph.value_count(), 0) {
    const auto own = [&](DType dtype) { return tolerance_in(dtype, arithmetic); };
    const auto start = [&](ValueId v) {
      tolerance[v] = own(graph.type(v).dtype);
      floats[v] = is_float(graph.type(v).dtype);
    };
    for (ValueId v : graph.inputs()) start(v);
    for (graph::NodeId id : graph.order()) {
      const graph::Node& node = graph.node(id);
      double loosest = quantizes(node.op) ? 1e-1 : 0;
      char any = 0;
      int deepest = 0;
      for (ValueId in : node.inputs) {
        if (in == graph::kNone) continue;
        if (graph.value(in).is_constant()) start(in);
        loosest = std::max(loosest, tolerance[in]);
        any |= floats[in];
        deepest = std::max(deepest, depth[in]);
      }
      for (ValueId out : node.outputs) {
        const DType dtype = graph.type(out).dtype;
        tolerance[out] = std::max(loosest, own(dtype));
        floats[out] = any || is_float(dtype);
        depth[out] = deepest + is_sum(node.op);
      }
    }
    for (ValueId v = 0; v < graph.value_count(); ++v)
      tolerance[v] = deepened(tolerance[v], graph.type(v).dtype, arithmetic, depth[v]);
  }
};

Shape coordinate_of(int64_t index, const Shape& shape) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = index % shape[d];
    index /= shape[d];
  }
  return at;
}

void name_node(const Graph& graph, ValueId value, Difference& bad) {
  const graph::NodeId producer = graph.value(value).producer;
  if (producer == graph::kNone) return;
  bad.node = graph.node(producer).name;
  bad.op = ops::to_string(graph.node(producer).op);
}

}  // namespace

std::string Difference::text() const {
  std::string by;
  if (!op.empty())
    by = node.empty() ? fmt::format(" (of {})", op) : fmt::format(" (node '{}', {})", node, op);
  return fmt::format("'{}' {}{}: got {:.9g}, wanted {:.9g}, allowed difference {:.3g}", output,
                     to_string(coordinate), by, got, wanted, allowed);
}

std::string Report::text() const {
  if (!ok) return bad->text();
  std::string text =
      fmt::format("max |err| {:.2g}, {:.2g} of the scale (tolerance {:.2g}) against {}", max_abs,
                  max_rel, tolerance, against);
  // The judge never rounds to the program's type: what the type costs is part of the error that is
  // told.
  if (arithmetic)
    text +=
        fmt::format("; computed in {}, judged by the model's own numbers", arithmetic->text());
  return text;
}

Error Report::error() const {
  return Error{
      Code::kAccuracy, "verify",
      fmt::format("answers differ from the {}: {}", against, bad ? bad->text() : "no value named"),
      bad ? bad->node : "",
      "obelisk verify --bisect names the first node that is off; --verify off goes on without"};
}

std::vector<double> tolerances(const Graph& graph, std::span<const ValueId> values,
                               std::optional<Arithmetic> arithmetic) {
  const Ancestry ancestry(graph, arithmetic);
  std::vector<double> out;
  for (ValueId v : values)
    out.push_back(graph.value(v).is_constant() ? tolerance_in(graph.type(v).dtype, arithmetic)
                                               : ancestry.tolerance[v]);
  return out;
}

void compare(const Tensor& got, const Tensor& wanted_wide, double tolerance, bool from_floats,
             const std::string& name, Report& report) {
  const Tensor wanted =
      wanted_wide.dtype() == got.dtype() ? wanted_wide : wanted_wide.cast(got.dtype());
  const auto fail = [&](int64_t k, double allowed) {
    report.ok = false;
    if (report.bad) return;
    Difference bad{.output = name, .coordinate = coordinate_of(k, got.shape()), .allowed = allowed};
    const bool real = is_float(got.dtype());
    bad.got = real ? got.get_double(k) : static_cast<double>(got.get_int(k));
    bad.wanted = real ? wanted.get_double(k) : static_cast<double>(wanted.get_int(k));
    report.bad = bad;
  };
  const int64_t count = got.count();
  if (!is_float(got.dtype())) {
    int64_t unequal = 0, first_far = -1;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t g = got.get_int(k), w = wanted.get_int(k);
      if (g == w) continue;
      const double off = std::fabs(static_cast<double>(g) - static_cast<double>(w));
      report.max_abs = std::max(report.max_abs, off);
      if (first_far < 0 && (!from_floats || off > 1)) first_far = k;
      if (!from_floats || off > 1) ++unequal;
    }
    if (first_far >= 0 && (!from_floats || unequal * 200 > count))
      fail(first_far, from_floats ? 1 : 0);
    return;
  }
  double scale = 0;
  for (int64_t k = 0; k < count; ++k)
    if (const double w = std::fabs(wanted.get_double(k)); std::isfinite(w))
      scale = std::max(scale, w);
  const double allowed = tolerance * std::max(scale, 1e-30);
  double most = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double g = got.get_double(k), w = wanted.get_double(k);
    if (g == w || (std::isnan(g) && std::isnan(w))) continue;
    const double off = std::fabs(g - w);
    if (!(off <= allowed)) fail(k, allowed);
    if (std::isfinite(off)) most = std::max(most, off);
  }
  report.max_abs = std::max(report.max_abs, most);
  const double relative = scale > 0 ? most / scale : most;
  if (report.tolerance == 0 || relative * report.tolerance >= report.max_rel * tolerance)
    report.tolerance = tolerance;
  report.max_rel = std::max(report.max_rel, relative);
}

Report compare_outputs(const Graph& graph, std::span<const Tensor> got,
                       std::span<const Tensor> wanted, std::optional<Arithmetic> arithmetic) {
  const Ancestry ancestry(graph, arithmetic);
  Report report;
  report.arithmetic = arithmetic;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    const ValueId value = graph.outputs()[k];
    const bool known = graph.value(value).is_constant();
    const double tolerance =
        known ? tolerance_in(graph.type(value).dtype, arithmetic) : ancestry.tolerance[value];
    const bool had = report.bad.has_value();
    compare(got[k], wanted[k], tolerance, !known && ancestry.floats[value], graph.output_names()[k],
            report);
    if (!had && report.bad) name_node(graph, value, *report.bad);
  }
  return report;
}

}  // namespace obelisk::verify

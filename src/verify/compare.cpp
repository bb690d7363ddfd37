// When two answers are the same. The rule, in full, for each output:
//
//   rounding   e = the largest |rounded - wanted|: what the program's arithmetic costs the
//   reference
//              itself, which is interpreted a second time with values rounded to their types as
//              they are stored and with sums in f32.
//   float      |got - wanted| <= 8 e, but at least the floor and at most the cap, both times the
//              output's scale, which is its largest finite |wanted|. NaN answers NaN, infinities
//              answer themselves. `wanted` is rounded to the output's type first.
//   factor     e is one sample of an error that depends on the order of sums (tiles, split sums,
//              folded norms), so a program's is larger by chance. Measured on a
//              CPU: 0.5 to 1.6 e of 57 networks of torchvision and transformers, in fp32 and fp16
//              alike; 3.6 e of small random graphs, whose floor is larger.
//   floor      of few elements e may be small by chance, and functions such as Exp are computed to
//              a few units: 32 unit roundoffs of f32 (2^-24), and 4 of what is narrower and leads
//              to the value (2^-11 of f16 and tf32, 2^-8 of bf16), for sums are in f32 there too.
//   cap        2^-6 of f32, 2^-4 of f16 and tf32, 2^-2 of bf16. What is off by more, but by no more
//              than 8 e, is neither right nor wrong: the network is ill-conditioned on these
//              inputs, so that its answers say nothing in that arithmetic, and it counts as not
//              verified.
//   exact      what is only moved, selected and compared is equal, unless --precision changes
//   types. masks      huge values far from all others (-1e9, -3.4e38, -65504) are no part of the
//   scale;
//              each may be off by the floor times itself.
//   quantized  a tie that decides a quantizer's step may fall either way, here and there: 1e-1.
//   f64        1e-9: the judge has no more bits itself.
//   integer    equal, unless it was computed from floats: then one off, or anything for one element
//              in 200 or four times as many as rounding changes (a tie that rounding decides).
#include <algorithm>
#include <array>
#include <cmath>

#include "verify/rows.h"

namespace obelisk::verify {
namespace {

using ops::Op;

constexpr double kFactor = 8;
constexpr double kUnits = 32, kNarrowUnits = 4, kUnit = 0x1p-24;
constexpr double kWide = 1e-9, kQuantized = 1e-1;
constexpr int64_t kOneTieIn = 200;

/// Unit roundoff, and the loosest tolerance.
struct Precise {
  double unit, cap;
};
Precise precise(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0, kWide};
    case DType::f32:
      return {0x1p-24, 0x1p-6};
    case DType::f16:
      return {0x1p-11, 0x1p-4};
    case DType::bf16:
      return {0x1p-8, 0x1p-2};
    default:
      return {0, 0};
  }
}
constexpr Precise kTf32{0x1p-11, 0x1p-4};

void widen(Nature& nature, Precise by) {
  nature.unit = std::max(nature.unit, by.unit), nature.cap = std::max(nature.cap, by.cap);
}

bool quantizes(Op op) { return op == Op::QuantizeLinear || op == Op::DynamicQuantizeLinear; }

std::vector<double> reals(const Tensor& tensor) {
  std::vector<double> values(tensor.count());
  for (size_t k = 0; k < values.size(); ++k) values[k] = tensor.get_double(static_cast<int64_t>(k));
  return values;
}

/// The magnitude from which on elements are masks: beyond 2^13, with eight octaves of nothing
/// between them and what is smaller.
double masks_from(const std::vector<double>& wanted) {
  constexpr int kLowest = -1100, kHuge = 13, kApart = 8;
  std::array<bool, 2200> octave{};
  for (double w : wanted)
    if (w != 0 && std::isfinite(w)) octave[static_cast<size_t>(std::ilogb(w) - kLowest)] = true;
  int above = 0;  // the octave over the last gap
  bool any = false;
  for (int k = 0, last = 0; k < static_cast<int>(octave.size()); ++k) {
    if (!octave[static_cast<size_t>(k)]) continue;
    if (any && k - last > kApart && k + kLowest >= kHuge && above == 0) above = k;
    last = k, any = true;
  }
  return above == 0 ? std::numeric_limits<double>::infinity() : std::ldexp(1.0, above + kLowest);
}

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

std::vector<Nature> natures(const Graph& graph, Precision precision) {
  std::vector<Nature> all(static_cast<size_t>(graph.value_count()));
  const auto start = [&](ValueId v) {
    const DType dtype = graph.type(v).dtype;
    Nature& nature = all[static_cast<size_t>(v)];
    nature.exact = precision == Precision::kKeep, nature.from_floats = is_float(dtype);
    nature.quantized = is_low_float(dtype);
    widen(nature, precise(dtype));
  };
  for (ValueId v = 0; v < graph.value_count(); ++v)
    if (graph.value(v).is_constant()) start(v);
  for (ValueId v : graph.inputs()) start(v);
  for (graph::NodeId id : graph.order()) {
    const graph::Node& node = graph.node(id);
    Nature of{.exact = ops::row(node.op).accuracy == ops::Accuracy::kExact,
              .quantized = quantizes(node.op)};
    bool sums_floats = false;
    for (ValueId in : node.inputs) {
      if (in == graph::kNone) continue;
      const Nature& from = all[static_cast<size_t>(in)];
      widen(of, {from.unit, from.cap});
      of.exact &= from.exact, of.quantized |= from.quantized, of.from_floats |= from.from_floats;
      sums_floats |= graph.type(in).dtype == DType::f32;
    }
    if (precision == Precision::kTf32 && sums_floats &&
        ops::row(node.op).kind == ops::Kind::kCompute)
      widen(of, kTf32);
    for (ValueId out : node.outputs) {
      Nature& nature = all[static_cast<size_t>(out)] = of;
      const DType dtype = graph.type(out).dtype;
      widen(nature, precise(dtype));
      nature.from_floats |= is_float(dtype), nature.quantized |= is_low_float(dtype);
    }
  }
  return all;
}

std::string Difference::text() const {
  std::string by;
  if (!op.empty())
    by = node.empty() ? fmt::format(" (of {})", op) : fmt::format(" (node '{}', {})", node, op);
  return fmt::format("'{}' {}{}: got {:.9g}, wanted {:.9g}, allowed difference {:.3g}", output,
                     to_string(coordinate), by, got, wanted, allowed);
}

std::string Report::text() const {
  if (!ok) return bad->text();
  if (rows.empty()) return why_not;
  std::string text = fmt::format(
      "max |err| {:.2g}, {:.2g} of the scale (tolerance {:.2g}, rounding alone costs {:.2g}) "
      "against "
      "{}, {}",
      max_abs, max_rel, tolerance, rounding, against, rows);
  if (ill > 0)
    text += fmt::format("; ill-conditioned: rounding alone costs {:.2g} of the scale", ill);
  // The judge never rounds to the program's type: what the type costs is part of the error that is
  // told.
  if (precision != Precision::kKeep)
    text += fmt::format("; computed in {}, judged by the model's own numbers",
                        passes::to_string(precision));
  return text;
}

Error Report::error() const {
  std::string message =
      fmt::format("answers differ from the {}: {}", against, bad ? bad->text() : "no value named");
  if (ill > 0)
    message += fmt::format(
        "; the network is ill-conditioned on these inputs: rounding alone costs {:.2g} of the "
        "scale",
        ill);
  if (!note.empty()) message += "; " + note;
  if (precision == Precision::kFp16 && bad && std::isfinite(bad->wanted) &&
      !std::isfinite(bad->got))
    return Error{Code::kAccuracy, "verify",
                 message + "; f16 holds no number beyond 65504, inside the network either",
                 bad->node,
                 "--precision bf16 has the range of f32; obelisk verify --bisect names the first "
                 "node that is off"};
  return Error{Code::kAccuracy, "verify", std::move(message), bad ? bad->node : "",
               note.empty()
                   ? "obelisk verify --bisect names the first node that is off; --verify off "
                     "goes on without"
                   : "--explain STEP prints what a step decided and why"};
}

void compare(const Tensor& got, const Tensor& wanted_wide, const Tensor& rounded,
             const Nature& nature, const std::string& name, Report& report) {
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
  OfOutput& of_this = report.outputs.emplace_back();
  of_this.name = name;
  const int64_t count = got.count();
  if (!is_float(got.dtype())) {
    const bool inexact = nature.from_floats && !nature.exact;
    int64_t unequal = 0, first_far = -1, flipped = 0;
    const auto off_by = [&](const Tensor& tensor, int64_t k) {
      return std::fabs(static_cast<double>(tensor.get_int(k)) -
                       static_cast<double>(wanted.get_int(k)));
    };
    for (int64_t k = 0; k < count; ++k) {
      if (inexact && off_by(rounded, k) > 1) ++flipped;
      const double off = off_by(got, k);
      of_this.max_abs = std::max(of_this.max_abs, off);
      if (off <= (inexact ? 1 : 0)) continue;
      if (first_far < 0) first_far = k;
      ++unequal;
    }
    const int64_t ties = inexact ? std::max(count / kOneTieIn, 4 * flipped) : 0;
    report.max_abs = std::max(report.max_abs, of_this.max_abs);
    of_this.ok = unequal <= ties;
    if (unequal > ties) fail(first_far, inexact ? 1 : 0);
    return;
  }
  const std::vector<double> wide = reals(wanted_wide), low = reals(rounded);
  const double masks = masks_from(wide);
  double scale = 0, rounding = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double w = std::fabs(wide[k]);
    if (!std::isfinite(w) || w >= masks) continue;
    scale = std::max(scale, w);
    if (std::isfinite(low[k])) rounding = std::max(rounding, std::fabs(low[k] - wide[k]));
  }
  scale = std::max(scale, 1e-30);
  double floor = nature.unit == 0 ? nature.cap : kUnits * kUnit;
  if (nature.unit > kUnit) floor += kNarrowUnits * nature.unit;
  if (nature.quantized) floor = kQuantized;
  const double cap = std::max(nature.cap, floor);
  double allowed = std::clamp(kFactor * rounding, floor * scale, cap * scale);
  if (nature.exact && !nature.quantized) allowed = 0, floor = 0;
  double most = 0;
  bool unsure = false;
  for (int64_t k = 0; k < count; ++k) {
    const double g = got.get_double(k), w = wanted.get_double(k);
    if (g == w || (std::isnan(g) && std::isnan(w))) continue;
    const double off = std::fabs(g - w);
    const bool mask = std::isfinite(w) && std::fabs(w) >= masks;
    const double own = mask ? std::max(allowed, floor * std::fabs(w)) : allowed;
    if (off > own && off <= kFactor * rounding && allowed == cap * scale)
      unsure = true;
    else if (!(off <= own))
      of_this.ok = false, fail(k, own);
    if (std::isfinite(off) && !mask) most = std::max(most, off);
  }
  report.max_abs = std::max(report.max_abs, most);
  const double relative = most / scale, used = allowed > 0 ? most / allowed : 0;
  of_this.max_abs = most, of_this.max_rel = relative;
  of_this.tolerance = allowed / scale, of_this.rounding = rounding / scale;
  if (report.used < 0 || used > report.used)
    report.used = used, report.tolerance = allowed / scale, report.rounding = rounding / scale;
  report.max_rel = std::max(report.max_rel, relative);
  if (kFactor * rounding > cap * scale) report.ill = std::max(report.ill, rounding / scale);
  if (!unsure) return;
  report.rows.clear();
  report.why_not = fmt::format(
      "the network is ill-conditioned on generated inputs: of '{}', rounding alone costs the "
      "reference {:.2g} of the scale, and the answer is off by {:.2g} of it",
      name, rounding / scale, relative);
}

Result<Report> compare_outputs(const Graph& graph, std::span<const Tensor> got,
                               const Reference& reference, Precision precision) {
  Report report;
  report.precision = precision;
  report.rows = reference.text(graph);
  report.why_not = reference.why_not;
  if (report.rows.empty()) return report;
  TRY(const Graph program, in_arithmetic(graph, precision));
  const std::vector<Nature> nature = natures(program, precision);
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    const bool had = report.bad.has_value();
    const Rows& rows = reference.rows[k];
    compare(rows_of(got[k], rows), reference.wanted[k], reference.rounded[k],
            nature[static_cast<size_t>(program.outputs()[k])], graph.output_names()[k], report);
    if (had || !report.bad) continue;
    if (!rows.all()) {
      int64_t& at = report.bad->coordinate[rows.dim];
      at = rows.at[static_cast<size_t>(at)];
    }
    name_node(graph, graph.outputs()[k], *report.bad);
  }
  return report;
}

}  // namespace obelisk::verify

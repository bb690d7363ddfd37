#include "ops/quantize.h"

#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {
namespace {

constexpr DTypeSet kQuantInts = dtype_set(
    {DType::i16, DType::i8, DType::i4, DType::i2, DType::u16, DType::u8, DType::u4, DType::u2});
constexpr DTypeSet kQuants = kQuantInts | kFloats8 | dtype_set({DType::f4e2m1});
constexpr DTypeSet kReals = dtype_set({DType::f32, DType::f16, DType::bf16});
constexpr DTypeSet kScales = kReals | dtype_set({DType::f8e8m0});

/// How scale and zero point lie over the tensor.
enum class Spread { kTensor, kAxis, kBlocks };

struct Layout {
  Spread spread = Spread::kTensor;
  int64_t axis = 0;
  int64_t block = 0;
};

/// Reads the layout of input `input` (scale or zero point). Error kBadModel when its shape does not
/// lie over x.
Result<Layout> layout_of(const Call& call, int input) {
  const Type& x = call.in(0);
  const Type& part = call.in(input);
  Layout layout{.block = call.attrs.get_int("block_size", 0)};
  if (part.count() == 1 && part.rank() <= 1) return layout;
  TRY(layout.axis, normalize_axis(call, call.attrs.get_int("axis", 1), x.rank()));
  auto refuse = [&](const Shape& want) {
    return bad_call(call, fmt::format("input {} is {}, wanted {} for {}", input,
                                      to_string(part.shape), to_string(want), to_string(x.shape)));
  };
  Shape want{x.shape[layout.axis]};
  layout.spread = Spread::kAxis;
  if (layout.block > 0) {
    layout.spread = Spread::kBlocks;
    want = x.shape;
    const int64_t extent = want[layout.axis];
    want[layout.axis] = extent / layout.block + (extent % layout.block != 0);
  }
  if (part.shape != want) return refuse(want);
  return layout;
}

Status check_layout(const Call& call) {
  TRY_STATUS(layout_of(call, 1));
  if (!call.has(2)) return ok_status();
  TRY_STATUS(layout_of(call, 2));
  return ok_status();
}

Result<std::optional<DType>> dtype_attribute(const Call& call, std::string_view name) {
  const int64_t number = call.attrs.get_int(name, 0);
  if (number == 0) return std::optional<DType>();
  const std::optional<DType> dtype = dtype_of_number(number);
  if (!dtype) return bad_call(call, fmt::format("{} = {} is not an element type", name, number));
  return dtype;
}

ExprId load_part(const Call& call, MapStart& start, int input) {
  Exprs& e = start.loop.exprs;
  const Layout layout = *layout_of(call, input);
  std::vector<ExprId> at;
  switch (layout.spread) {
    case Spread::kTensor:
      at.assign(call.in(input).rank(), e.integer(0));
      break;
    case Spread::kAxis:
      at = {start.coords[layout.axis]};
      break;
    case Spread::kBlocks:
      at = start.coords;
      at[layout.axis] = e.div(at[layout.axis], layout.block);
      break;
  }
  return e.load(input, call.in(input).dtype, std::move(at));
}

/// The element of a part that belongs to each element of x.
std::vector<int64_t> part_index(const Call& call, int input) {
  const Type& x = call.in(0);
  const Layout layout = *layout_of(call, input);
  std::vector<int64_t> index(x.count(), 0);
  if (layout.spread == Spread::kTensor) return index;
  int64_t inner = 1;
  for (int d = static_cast<int>(layout.axis) + 1; d < x.rank(); ++d) inner *= x.shape[d];
  const int64_t extent = x.shape[layout.axis];
  const int64_t blocks =
      layout.spread == Spread::kAxis ? extent : call.in(input).shape[layout.axis];
  for (int64_t n = 0; n < x.count(); ++n) {
    const int64_t at = n / inner % extent, outer = n / inner / extent;
    index[n] = layout.spread == Spread::kAxis
                   ? at
                   : (outer * blocks + at / layout.block) * inner + n % inner;
  }
  return index;
}

MapStart start_of(const Call& call) {
  Call first = call;
  first.inputs.resize(1);
  return start_map(first, call.out().shape);
}

/// The type that x / scale is computed in.
DType division_dtype(const Call& call) {
  if (auto precision = dtype_of_number(call.attrs.get_int("precision", 0))) return *precision;
  return is_float(call.in(1).dtype) ? DType::f32 : DType::f64;
}

double lowest(DType dtype) { return is_signed(dtype) ? -std::ldexp(1, bits(dtype) - 1) : 0; }
double highest(DType dtype) { return std::ldexp(1, bits(dtype) - is_signed(dtype)) - 1; }

double round_through(DType dtype, double value) {
  uint64_t element = 0;
  set_double(&element, dtype, 0, value);
  return get_double(&element, dtype, 0);
}

}  // namespace

Result<Types> infer_quantize(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kReals | dtype_set({DType::i32})));
  TRY_STATUS(check_dtype(call, 1, kScales | dtype_set({DType::i32})));
  TRY_STATUS(check_layout(call));
  TRY(auto asked, dtype_attribute(call, "output_dtype"));
  TRY_STATUS(dtype_attribute(call, "precision"));
  if (call.has(2)) {
    const DType zero = call.in(2).dtype;
    if (asked && *asked != zero) {
      return bad_call(call, fmt::format("output_dtype is {} but the zero point is {}",
                                        to_string(*asked), to_string(zero)));
    }
    asked = zero;
  }
  const DType dtype = asked.value_or(DType::u8);
  if (!contains(kQuants, dtype)) {
    return bad_call(call, fmt::format("the output would be {}", to_string(dtype)),
                    "it quantises to " + to_string(kQuants));
  }
  return Types{{dtype, call.in(0).shape}};
}

Result<Types> infer_dequantize(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kQuants | dtype_set({DType::i32})));
  TRY_STATUS(check_dtype(call, 1, kScales));
  TRY_STATUS(check_layout(call));
  if (call.has(2)) TRY_STATUS(check_dtype(call, 2, dtype_set({call.in(0).dtype})));
  TRY(auto asked, dtype_attribute(call, "output_dtype"));
  const DType dtype = asked.value_or(call.in(1).dtype);
  if (!contains(kReals, dtype)) {
    return bad_call(call, fmt::format("the output would be {}", to_string(dtype)),
                    "set output_dtype to one of " + to_string(kReals));
  }
  return Types{{dtype, call.in(0).shape}};
}

Result<Types> infer_dynamic_quantize(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, dtype_set({DType::f32})));
  return Types{{DType::u8, call.in(0).shape}, {DType::f32, {}}, {DType::u8, {}}};
}

std::optional<Loop> loop_quantize(const Call& call, int) {
  MapStart start = start_of(call);
  Exprs& e = start.loop.exprs;
  const DType division = division_dtype(call), wide = compute_type(division), to = call.out().dtype;
  const ExprId scale = e.cast(load_part(call, start, 1), division);
  ExprId value = e.cast(e.div(e.cast(start.values[0], division), scale), division);
  if (is_integer(to)) value = e.unary(Scalar::kRound, value);
  if (call.has(2)) value = e.add(value, e.cast(load_part(call, start, 2), wide));
  if (is_integer(to)) {
    value = e.binary(Scalar::kMax, value, e.constant(wide, lowest(to)));
    value = e.binary(Scalar::kMin, value, e.constant(wide, highest(to)));
    value = e.cast(value, DType::i32);
  }
  const bool saturate = is_float(to) && call.attrs.get_int("saturate", 1) != 0;
  start.loop.body = e.cast(value, to, saturate);
  return std::move(start.loop);
}

std::optional<Loop> loop_dequantize(const Call& call, int) {
  MapStart start = start_of(call);
  Exprs& e = start.loop.exprs;
  ExprId value = e.cast(start.values[0], DType::f32);
  if (call.has(2)) value = e.sub(value, e.cast(load_part(call, start, 2), DType::f32));
  start.loop.body = e.mul(value, e.cast(load_part(call, start, 1), DType::f32));
  return std::move(start.loop);
}

Status reference_quantize(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  const DType to = call.out().dtype, division = division_dtype(call);
  const std::vector<int64_t> scale_at = part_index(call, 1);
  const std::vector<int64_t> zero_at = call.has(2) ? part_index(call, 2) : scale_at;
  const bool saturate = call.attrs.get_int("saturate", 1) != 0;
  for (int64_t n = 0; n < outputs[0].count(); ++n) {
    // The quotient is rounded as the call says even where x is handed in wider: ties decide the
    // integer.
    const double x = round_through(division, inputs[0]->get_double(n));
    const double scale = round_through(division, inputs[1]->get_double(scale_at[n]));
    double value = round_through(division, x / scale);
    const double zero = call.has(2) ? inputs[2]->get_double(zero_at[n]) : 0;
    if (is_integer(to)) {
      value = std::nearbyint(value) + zero;
      value = std::isnan(value) ? 0 : std::clamp(value, lowest(to), highest(to));
      outputs[0].set_int(n, static_cast<int64_t>(value));
    } else if (saturate) {
      set_double_saturating(outputs[0].mutable_data(), to, n, value + zero);
    } else {
      outputs[0].set_double(n, value + zero);
    }
  }
  return ok_status();
}

Status reference_dequantize(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs) {
  const std::vector<int64_t> scale_at = part_index(call, 1);
  const std::vector<int64_t> zero_at = call.has(2) ? part_index(call, 2) : scale_at;
  for (int64_t n = 0; n < outputs[0].count(); ++n) {
    const double zero = call.has(2) ? inputs[2]->get_double(zero_at[n]) : 0;
    const double scale = inputs[1]->get_double(scale_at[n]);
    outputs[0].set_double(n, (inputs[0]->get_double(n) - zero) * scale);
  }
  return ok_status();
}

Status reference_dynamic_quantize(const Call&, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs) {
  const std::vector<double> x = read_reals(*inputs[0]);
  float low = 0, high = 0;
  for (double value : x) {
    low = std::min(low, static_cast<float>(value));
    high = std::max(high, static_cast<float>(value));
  }
  const float scale = (high == low ? 1.0f : high - low) / 255.0f;
  const float below = 0.0f - low / scale;  // NaN beside an infinity
  const float zero = std::isnan(below) ? 0 : std::nearbyint(std::clamp(below, 0.0f, 255.0f));
  for (size_t n = 0; n < x.size(); ++n) {
    const float level = std::nearbyint(static_cast<float>(x[n]) / scale) + zero;
    outputs[0].set_int(
        n, std::isnan(level) ? 0 : static_cast<int64_t>(std::clamp(level, 0.0f, 255.0f)));
  }
  if (outputs.size() > 1) outputs[1].set_double(0, scale);
  if (outputs.size() > 2) outputs[2].set_int(0, static_cast<int64_t>(zero));
  return ok_status();
}

std::vector<int32_t> expand_dynamic_quantize(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto x = s.in(0);
  std::vector<int64_t> all(call.in(0).rank());
  for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int64_t>(d);
  const auto low = s(Op::Min, s.reduce(Op::ReduceMin, x, all, false), 0.0);
  const auto high = s(Op::Max, s.reduce(Op::ReduceMax, x, all, false), 0.0);
  const auto range = s(Op::Sub, high, low);
  // A constant zero tensor would have scale 0 and divide by it.
  const auto one = s.scalar(DType::f32, 1);
  const auto scale = s(Op::Div, s.where(s(Op::Equal, range, 0.0), one, range), 255.0);
  const auto zero =
      s(Op::Round, s.add(Op::Clip, {s(Op::Neg, s(Op::Div, low, scale)), s.scalar(DType::f32, 0),
                                    s.scalar(DType::f32, 255)}));
  const auto zero_point = s.cast(zero, DType::u8);
  return {s.add(Op::QuantizeLinear, {x, scale, zero_point}), scale, zero_point};
}

}  // namespace obelisk::ops

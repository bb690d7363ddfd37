// The loop form of Resize.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "ops/moves.h"
#include "ops/resize.h"

namespace obelisk::ops {

ExprId cubic_weight_of(Exprs& exprs, ExprId distance, double a, DType type) {
  auto number = [&](double value) { return exprs.constant(type, value); };
  const ExprId x = exprs.unary(Scalar::kAbs, distance);
  auto poly = [&](double c3, double c2, double c1, double c0) {
    ExprId sum = exprs.add(exprs.mul(x, number(c3)), number(c2));
    sum = exprs.add(exprs.mul(sum, x), number(c1));
    return exprs.add(exprs.mul(sum, x), number(c0));
  };
  const ExprId far =
      exprs.select(exprs.lt(x, number(2)), poly(a, -5 * a, 8 * a, -4 * a), number(0));
  return exprs.select(exprs.le(x, number(1)), poly(a + 2, -(a + 3), 0, 1), far);
}

namespace {

// An expression of the place of a coordinate, in f64 as the reference has it.
ExprId place_of(Exprs& exprs, const ResizeAxis& axis, ExprId coord) {
  auto number = [&](double value) { return exprs.constant(DType::f64, value); };
  ExprId place = exprs.cast(coord, DType::f64);
  if (axis.shift != 0) place = exprs.add(place, number(axis.shift));
  if (axis.numerator != 1) place = exprs.mul(place, number(axis.numerator));
  if (axis.denominator != 1) place = exprs.div(place, number(axis.denominator));
  if (axis.offset != 0) place = exprs.add(place, number(axis.offset));
  return place;
}

ExprId clamped(Exprs& exprs, ExprId index, int64_t extent) {
  return exprs.binary(Scalar::kMax, exprs.integer(0),
                      exprs.binary(Scalar::kMin, index, exprs.integer(extent - 1)));
}

bool is_outside(const ResizeAxis& axis, int64_t x) {
  return axis.place(x) < 0 || axis.place(x) > static_cast<double>(axis.from - 1);
}

// The output coordinates whose place lies inside are one run, for places grow or fall evenly.
ExprId inside_of(Exprs& exprs, const ResizeAxis& axis, ExprId coord) {
  int64_t first = 0, end = axis.to;
  while (first < end && is_outside(axis, first)) ++first;
  while (end > first && is_outside(axis, end - 1)) --end;
  return exprs.both(exprs.le(exprs.integer(first), coord), exprs.lt(coord, exprs.integer(end)));
}

// Nearest indices as (x * p + q) / r in integers, when some q gives every one of them: an upscale
// by 2 becomes x / 2.
std::optional<ExprId> as_ratio(Exprs& exprs, const ResizeAxis& axis, ExprId coord,
                               const std::vector<int64_t>& indices, int64_t p, int64_t r) {
  const int64_t common = std::gcd(p, r);
  if (common == 0 || r == 0) return std::nullopt;
  p /= common;
  r /= common;
  int64_t low = 0, high = std::numeric_limits<int64_t>::max();
  for (int64_t x = 0; x < axis.to; ++x) {
    if (axis.crops && is_outside(axis, x)) continue;  // not read
    low = std::max(low, indices[x] * r - p * x);
    high = std::min(high, (indices[x] + 1) * r - 1 - p * x);
  }
  if (low > high) return std::nullopt;
  return exprs.div(exprs.add(exprs.mul(coord, p), low), r);
}

ExprId nearest_index(Exprs& exprs, const ResizePlan& plan, const ResizeAxis& axis, ExprId coord) {
  constexpr int64_t kMostTried = 1 << 22;  // chosen, of coordinates; no product overflows either
  std::vector<int64_t> indices;
  for (int64_t x = 0; x < axis.to && axis.to <= kMostTried; ++x) {
    indices.push_back(
        std::clamp<int64_t>(resize_taps(plan, axis, axis.place(x)).first, 0, axis.from - 1));
  }
  const std::pair<int64_t, int64_t> ratios[] = {
      {axis.from, axis.to},
      {axis.from - 1, axis.to - 1},
      {std::llround(std::ldexp(std::fabs(axis.numerator / axis.denominator), 20)), 1 << 20}};
  for (auto [p, r] : ratios) {
    if (!indices.empty() && p > 0 && r > 0 && p < int64_t{1} << 31) {
      if (auto index = as_ratio(exprs, axis, coord, indices, p, r)) {
        return axis.crops ? clamped(exprs, *index, axis.from) : *index;
      }
    }
  }
  auto number = [&](double value) { return exprs.constant(DType::f64, value); };
  ExprId place = place_of(exprs, axis, coord);
  switch (plan.rounding) {
    case Rounding::kPreferFloor:
      place = exprs.unary(Scalar::kCeil, exprs.sub(place, number(0.5)));
      break;
    case Rounding::kPreferCeil:
      place = exprs.unary(Scalar::kFloor, exprs.add(place, number(0.5)));
      break;
    case Rounding::kFloor:
      place = exprs.unary(Scalar::kFloor, place);
      break;
    case Rounding::kCeil:
      place = exprs.unary(Scalar::kCeil, place);
      break;
  }
  return clamped(exprs, exprs.cast(place, DType::i64), axis.from);
}

// Two neighbours and the weight of the second. The place is clamped first, which is the same as
// repeating the edge.
struct Between {
  ExprId first, second, weight;
};
Between between(Exprs& exprs, const ResizeAxis& axis, ExprId coord, DType type) {
  const ExprId end = exprs.constant(DType::f64, static_cast<double>(axis.from - 1));
  const ExprId place = exprs.binary(Scalar::kMax, exprs.constant(DType::f64, 0),
                                    exprs.binary(Scalar::kMin, place_of(exprs, axis, coord), end));
  const ExprId below = exprs.unary(Scalar::kFloor, place);
  const ExprId first = exprs.cast(below, DType::i64);
  const ExprId second =
      exprs.binary(Scalar::kMin, exprs.add(first, int64_t{1}), exprs.integer(axis.from - 1));
  return {first, second, exprs.cast(exprs.sub(place, below), type)};
}

// From the type of arithmetic into the type of the output: integers round and saturate.
ExprId stored(Exprs& exprs, ExprId value, DType type, DType dtype) {
  if (is_float(dtype)) return value;
  if (dtype == DType::b1) return exprs.cast(value, DType::b1);
  const int width = bits(dtype);
  const double low = is_signed(dtype) ? -std::ldexp(1.0, width - 1) : 0;
  const double top = std::ldexp(1.0, is_signed(dtype) ? width - 1 : width);
  const double high = width == 64 ? std::nextafter(top, 0) : top - 1;
  ExprId whole = exprs.unary(Scalar::kRound, value);
  whole = exprs.binary(Scalar::kMin, whole, exprs.constant(type, high));
  whole = exprs.binary(Scalar::kMax, whole, exprs.constant(type, low));
  return exprs.cast(whole, compute_type(dtype));
}

}  // namespace

std::optional<Loop> loop_resize(const Call& call, int) {
  const ResizePlan plan = resize_plan(call).value();
  if (!has_loop(plan)) return std::nullopt;
  const Shape& to = call.out().shape;
  const DType dtype = call.in(0).dtype;
  Shape domain = to;
  std::vector<int> resized;
  for (size_t d = 0; d < plan.axes.size(); ++d) {
    if (!plan.axes[d].same()) resized.push_back(static_cast<int>(d));
  }
  const bool cubic = plan.mode == ResizeMode::kCubic && !resized.empty();
  if (cubic) domain.insert(domain.end(), resized.size(), 4);
  auto start = start_loop(domain, static_cast<int>(to.size()));
  auto& exprs = start.loop.exprs;
  std::vector<ExprId> at(start.coords.begin(), start.coords.begin() + static_cast<int>(to.size()));
  ExprId inside = kNoExpr;
  for (int d : resized) {
    if (!plan.axes[d].crops) continue;
    const ExprId here = inside_of(exprs, plan.axes[d], start.coords[d]);
    inside = inside == kNoExpr ? here : exprs.both(inside, here);
  }
  auto or_extrapolation = [&](ExprId value) {
    return inside == kNoExpr
               ? value
               : exprs.select(inside, value, exprs.constant(dtype, plan.extrapolation));
  };

  if (plan.mode == ResizeMode::kNearest) {
    for (int d : resized) at[d] = nearest_index(exprs, plan, plan.axes[d], start.coords[d]);
    const ExprId fill = inside == kNoExpr ? kNoExpr : exprs.constant(dtype, plan.extrapolation);
    start.loop.body = exprs.load(0, dtype, std::move(at), inside, fill);
    return start.loop;
  }

  // Integers are weighed in f64, so that 32 bits keep all of theirs.
  const DType type = is_float(dtype) ? compute_type(dtype) : DType::f64;
  auto read = [&](const std::vector<ExprId>& coords) {
    return exprs.cast(exprs.load(0, dtype, coords), type);
  };
  if (!cubic) {
    std::function<ExprId(size_t)> blend = [&](size_t next) -> ExprId {
      if (next == resized.size()) return read(at);
      const int d = resized[next];
      const Between pair = between(exprs, plan.axes[d], start.coords[d], type);
      at[d] = pair.first;
      const ExprId first = blend(next + 1);
      at[d] = pair.second;
      const ExprId second = blend(next + 1);
      const ExprId rest = exprs.sub(exprs.constant(type, 1), pair.weight);
      return exprs.add(exprs.mul(first, rest), exprs.mul(second, pair.weight));
    };
    start.loop.body = or_extrapolation(stored(exprs, blend(0), type, dtype));
    return start.loop;
  }

  ExprId weight = kNoExpr;
  for (size_t i = 0; i < resized.size(); ++i) {
    const ResizeAxis& axis = plan.axes[resized[i]];
    const ExprId tap = exprs.add(start.coords[to.size() + i], int64_t{-1});
    const ExprId place = place_of(exprs, axis, start.coords[resized[i]]);
    const ExprId below = exprs.unary(Scalar::kFloor, place);
    const ExprId part = exprs.cast(exprs.sub(place, below), type);
    const ExprId here =
        cubic_weight_of(exprs, exprs.sub(exprs.cast(tap, type), part), plan.cubic_a, type);
    weight = weight == kNoExpr ? here : exprs.mul(weight, here);
    at[resized[i]] = clamped(exprs, exprs.add(exprs.cast(below, DType::i64), tap), axis.from);
  }
  start.loop.body = exprs.mul(read(at), weight);
  start.loop.combine = Combine::kSum;
  start.loop.finish = or_extrapolation(stored(exprs, exprs.acc(type), type, dtype));
  return start.loop;
}

}  // namespace obelisk::ops

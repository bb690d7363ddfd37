// The loop forms of GridSample, AffineGrid and Col2Im.
#include <algorithm>
#include <cmath>

#include "ops/moves.h"
#include "ops/resize.h"
#include "ops/sample.h"
#include "ops/sample_plan.h"

namespace obelisk::ops {

namespace {

// Builds the expressions of one axis of a sampled image.
struct GridAxis {
  Exprs& exprs;
  const GridPlan& plan;
  DType type;
  int64_t extent;
  double low, high;  // the ends that reflection folds at

  GridAxis(Exprs& e, const GridPlan& p, DType t, int64_t n)
      : exprs(e),
        plan(p),
        type(t),
        extent(n),
        low(p.align_corners ? 0 : -0.5),
        high(static_cast<double>(n) - 1 - low) {}

  ExprId number(double value) const { return exprs.constant(type, value); }

  ExprId reflected(ExprId x) const {
    const double span = high - low;
    if (span <= 0) return number(low);
    const ExprId distance = exprs.unary(Scalar::kAbs, exprs.sub(x, number(low)));
    const ExprId beyond = exprs.binary(Scalar::kFmod, distance, number(2 * span));
    return exprs.select(exprs.le(beyond, number(span)), exprs.add(beyond, number(low)),
                        exprs.sub(number(high + span), beyond));
  }

  // The place in elements of a normalised position.
  ExprId place(ExprId position) const {
    const double length = static_cast<double>(extent);
    const ExprId above = exprs.add(position, number(1));
    ExprId place =
        plan.align_corners
            ? exprs.mul(above, number((length - 1) / 2))
            : exprs.mul(exprs.sub(exprs.mul(above, number(length)), number(1)), number(0.5));
    if (plan.mode == ResizeMode::kNearest) place = exprs.unary(Scalar::kRound, place);
    if (plan.outside == Outside::kBorder) {
      place = exprs.binary(Scalar::kMax, number(0),
                           exprs.binary(Scalar::kMin, place, number(length - 1)));
    } else if (plan.outside == Outside::kReflection) {
      const ExprId inside = exprs.both(exprs.le(number(low), place), exprs.le(place, number(high)));
      place = exprs.select(inside, place, reflected(place));
    }
    return place;
  }

  // The coordinate of a tap, a whole number as a float; where taps outside are zero, `guard` also
  // needs this one to be inside. It compares floats, for a NaN or a number beyond all integers
  // has no index.
  ExprId index(ExprId tap, ExprId& guard) const {
    if (plan.outside == Outside::kReflection) tap = reflected(tap);
    if (plan.outside == Outside::kZeros) {
      const ExprId inside =
          exprs.both(exprs.le(number(0), tap), exprs.lt(tap, number(static_cast<double>(extent))));
      guard = guard == kNoExpr ? inside : exprs.both(guard, inside);
      return exprs.cast(tap, DType::i64);
    }
    return exprs.binary(
        Scalar::kMax, exprs.integer(0),
        exprs.binary(Scalar::kMin, exprs.cast(tap, DType::i64), exprs.integer(extent - 1)));
  }
};

}  // namespace

// Linear reads 2 taps an axis, cubic 4; they are the reduced coordinates.
std::optional<Loop> loop_grid_sample(const Call& call, int) {
  const GridPlan plan = grid_plan(call).value();
  const Type& image = call.in(0);
  const int rank = image.rank(), spatial = rank - 2;
  const bool nearest = plan.mode == ResizeMode::kNearest;
  Shape domain = call.out().shape;
  if (!nearest) domain.insert(domain.end(), spatial, plan.mode == ResizeMode::kLinear ? 2 : 4);
  auto start = start_loop(domain, rank);
  auto& exprs = start.loop.exprs;
  const DType type = image.dtype == DType::f64 ? DType::f64 : DType::f32;
  std::vector<ExprId> point{start.coords[0]};
  point.insert(point.end(), start.coords.begin() + 2, start.coords.begin() + rank);
  point.push_back(kNoExpr);
  std::vector<ExprId> at{start.coords[0], start.coords[1]};
  ExprId guard = kNoExpr, weight = kNoExpr;
  for (int d = 0; d < spatial; ++d) {
    const GridAxis axis(exprs, plan, type, image.shape[d + 2]);
    point.back() = exprs.integer(spatial - 1 - d);  // the grid lists its axes innermost first
    const ExprId place = axis.place(exprs.cast(exprs.load(1, call.in(1).dtype, point), type));
    const ExprId below = exprs.unary(Scalar::kFloor, place);
    ExprId tap = below;
    if (!nearest) {
      const ExprId part = exprs.sub(place, below);
      const ExprId step = start.coords[rank + d];
      ExprId here;
      if (plan.mode == ResizeMode::kLinear) {
        here =
            exprs.select(exprs.eq(step, exprs.integer(0)), exprs.sub(axis.number(1), part), part);
        tap = exprs.add(tap, exprs.cast(step, type));
      } else {
        const ExprId offset = exprs.cast(exprs.add(step, int64_t{-1}), type);
        here = cubic_weight_of(exprs, exprs.sub(offset, part), -0.75, type);
        tap = exprs.add(tap, offset);
      }
      weight = weight == kNoExpr ? here : exprs.mul(weight, here);
    }
    at.push_back(axis.index(tap, guard));
  }
  const ExprId zero = guard == kNoExpr ? kNoExpr : zero_of(exprs, image.dtype);
  const ExprId value = exprs.load(0, image.dtype, std::move(at), guard, zero);
  if (nearest) {
    start.loop.body = value;
    return start.loop;
  }
  start.loop.body = exprs.mul(exprs.cast(value, type), weight);
  start.loop.combine = Combine::kSum;
  start.loop.finish = exprs.cast(exprs.acc(type), compute_type(image.dtype));
  return start.loop;
}

std::optional<Loop> loop_affine_grid(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const auto& at = start.coords;
  const DType dtype = call.in(0).dtype, type = compute_type(dtype);
  const bool align_corners = call.attrs.get_int("align_corners", 0) != 0;
  const int64_t spatial = call.out().shape.back();
  auto theta = [&](int64_t column) {
    return exprs.load(0, dtype, {at[0], at[spatial + 1], exprs.integer(column)});
  };
  auto number = [&](double value) { return exprs.constant(type, value); };
  ExprId sum = theta(spatial);
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t extent = call.out().shape[spatial - d];
    const ExprId twice = exprs.mul(at[spatial - d], int64_t{2});
    const ExprId steps = exprs.cast(align_corners ? twice : exprs.add(twice, int64_t{1}), type);
    const double span =
        static_cast<double>(align_corners ? std::max<int64_t>(extent - 1, 1) : extent);
    const ExprId position = exprs.sub(exprs.div(steps, number(span)), number(1));
    sum = exprs.add(sum, exprs.mul(theta(d), position));
  }
  start.loop.body = sum;
  return start.loop;
}

// Each pixel asks every tap whether some block's tap lies on it.
std::optional<Loop> loop_col2im(const Call& call, int) {
  const FoldPlan fold = fold_plan(call).value();
  const size_t spatial = fold.image.size();
  Shape domain = call.out().shape;
  domain.insert(domain.end(), fold.block.begin(), fold.block.end());
  auto start = start_loop(domain, static_cast<int>(spatial) + 2);
  auto& exprs = start.loop.exprs;
  ExprId row = start.coords[1], column = exprs.integer(0), guard = kNoExpr;
  auto require = [&](ExprId condition) {
    guard = guard == kNoExpr ? condition : exprs.both(guard, condition);
  };
  for (size_t d = 0; d < spatial; ++d) {
    const ExprId tap = start.coords[spatial + 2 + d];
    const int64_t stride = fold.strides[d];
    // block * stride = pixel + pad - tap * dilation, moved by whole strides so that it is never
    // negative.
    const int64_t moved = (fold.dilations[d] * (fold.block[d] - 1) + stride - 1) / stride;
    const ExprId offset =
        exprs.add(exprs.sub(start.coords[d + 2], exprs.mul(tap, fold.dilations[d])),
                  fold.pads[d] + moved * stride);
    const ExprId block = exprs.add(exprs.div(offset, stride), -moved);
    if (stride > 1) require(exprs.eq(exprs.mod(offset, stride), exprs.integer(0)));
    require(exprs.le(exprs.integer(0), block));
    require(exprs.lt(block, exprs.integer(fold.blocks[d])));
    row = exprs.add(exprs.mul(row, fold.block[d]), tap);
    column = exprs.add(exprs.mul(column, fold.blocks[d]), block);
  }
  const DType dtype = call.in(0).dtype;
  start.loop.body =
      exprs.load(0, dtype, {start.coords[0], row, column}, guard, zero_of(exprs, dtype));
  start.loop.combine = Combine::kSum;
  return start.loop;
}

}  // namespace obelisk::ops

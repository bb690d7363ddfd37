#include "ops/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr DTypeSet kMaxTypes = kFloats | dtype_set({DType::i8, DType::u8});

Result<Window> pool_window(const Call& call) {
  TRY(const Shape in, spatial_of(call, 0));
  const Shape kernel = call.attrs.get_ints("kernel_shape");
  if (kernel.size() != in.size()) {
    return bad_call(call, fmt::format("kernel_shape {} for an input {}", to_string(kernel),
                                      to_string(call.in(0).shape)));
  }
  return window_of(call, in, kernel);
}

Type pooled(const Call& call, const Window& window) {
  Type type{call.in(0).dtype, {call.in(0).shape[0], call.in(0).shape[1]}};
  type.shape.insert(type.shape.end(), window.out.begin(), window.out.end());
  return type;
}

/// How many elements of the windows at `out_at` count along `axis`, padding included where it does.
int64_t counted(const Window& window, int axis, int64_t out_at, bool padding) {
  const int64_t low = padding ? -window.begin[axis] : 0;
  const int64_t high = window.in[axis] + (padding ? window.end[axis] : 0);
  int64_t count = 0;
  for (int64_t k = 0; k < window.kernel[axis]; ++k) {
    const int64_t at = window.position(axis, out_at, k);
    count += at >= low && at < high;
  }
  return count;
}

/// The same as an expression of the output's coordinate: kernel elements before and after the
/// countable range are cut off.
ExprId counted(Exprs& exprs, const Window& window, int axis, ExprId out_at, bool padding) {
  const int64_t low = padding ? -window.begin[axis] : 0;
  const int64_t high = window.in[axis] + (padding ? window.end[axis] : 0);
  const int64_t dilation = window.dilations[axis], kernel = window.kernel[axis];
  const ExprId first = exprs.add(exprs.mul(out_at, window.strides[axis]), -window.begin[axis]);
  const ExprId zero = exprs.integer(0), whole = exprs.integer(kernel);
  auto clamped = [&](ExprId value) {
    return exprs.binary(Scalar::kMin, exprs.binary(Scalar::kMax, value, zero), whole);
  };
  // k counts when low <= first + k * dilation < high: k from ceil((low - first) / dilation) to
  // ceil((high - first) / dilation). Both are lifted by a multiple of the dilation, since index
  // division wants numbers that are not negative.
  const int64_t last = window.position(axis, window.out[axis] - 1, 0);
  const int64_t lift = std::max<int64_t>((last - low + dilation) / dilation, 0) + 1;
  auto ceil_div = [&](int64_t bound) {
    const ExprId lifted =
        exprs.add(exprs.sub(exprs.integer(bound), first), lift * dilation + dilation - 1);
    return exprs.add(exprs.div(lifted, dilation), -lift);
  };
  return exprs.sub(clamped(ceil_div(high)), clamped(ceil_div(low)));
}

/// A reduction over the window with the guarded load of X as its value.
struct PoolLoop {
  LoopStart start;
  ExprId value, guard;
};
PoolLoop start_pool(const Call& call, const Window& window, double outside) {
  const int rank = window.rank();
  Shape domain = pooled(call, window).shape;
  domain.insert(domain.end(), window.kernel.begin(), window.kernel.end());
  PoolLoop pool{start_loop(domain, 2 + rank), kNoExpr, kNoExpr};
  Exprs& exprs = pool.start.loop.exprs;
  const auto& coords = pool.start.coords;
  const WindowAccess access = access_window(exprs, window, std::span(coords.data() + 2, rank),
                                            std::span(coords.data() + 2 + rank, rank));
  std::vector<ExprId> at{coords[0], coords[1]};
  at.insert(at.end(), access.coords.begin(), access.coords.end());
  const DType dtype = call.in(0).dtype;
  pool.guard = access.guard;
  pool.value = exprs.load(0, dtype, at, access.guard, exprs.constant(dtype, outside));
  return pool;
}

/// Calls visit(plane, output coordinates, flat output) for every output.
template <typename Visit>
void each_output(const Call& call, const Window& window, Visit visit) {
  const int64_t planes = call.in(0).shape[0] * call.in(0).shape[1];
  int64_t flat = 0;
  for (int64_t plane = 0; plane < planes; ++plane)
    for_each_point(window.out, [&](const std::vector<int64_t>& at) { visit(plane, at, flat++); });
}

/// What MaxPool says of an element: its place in the whole tensor, spatial axes in either order.
int64_t storage_index(const Window& window, int64_t plane, int64_t position, bool column_major) {
  const int64_t plane_size = element_count(window.in);
  if (!column_major) return plane * plane_size + position;
  int64_t index = 0;
  Shape at(window.rank());
  for (int axis = window.rank() - 1; axis >= 0; --axis) {
    at[axis] = position % window.in[axis];
    position /= window.in[axis];
  }
  for (int axis = window.rank() - 1; axis >= 0; --axis) index = index * window.in[axis] + at[axis];
  return plane * plane_size + index;
}

double power_of(double value, int64_t p) {
  if (p == 1) return std::fabs(value);
  if (p == 2) return value * value;
  return std::pow(std::fabs(value), static_cast<double>(p));
}
double root_of(double sum, int64_t p) {
  if (p == 1) return sum;
  if (p == 2) return std::sqrt(sum);
  return std::pow(sum, 1 / static_cast<double>(p));
}
ExprId power_of(Exprs& exprs, ExprId value, int64_t p, DType dtype) {
  if (p == 2) return exprs.mul(value, value);
  value = exprs.unary(Scalar::kAbs, value);
  if (p == 1) return value;
  return exprs.binary(Scalar::kPow, value, exprs.constant(dtype, static_cast<double>(p)));
}
ExprId root_of(Exprs& exprs, ExprId sum, int64_t p, DType dtype) {
  if (p == 1) return sum;
  if (p == 2) return exprs.unary(Scalar::kSqrt, sum);
  return exprs.binary(Scalar::kPow, sum, exprs.constant(dtype, 1 / static_cast<double>(p)));
}

Result<int64_t> norm_of(const Call& call) {
  const int64_t p = call.attrs.get_int("p", 2);
  if (p < 1) return bad_call(call, fmt::format("p = {}, wanted at least 1", p));
  return p;
}

/// Indices as a chain: the best so far and where it was, element by element of the window.
std::optional<Loop> loop_indices(const Call& call, const Window& window) {
  if (window.kernel_count() > kMostUnrolled) return std::nullopt;
  const int rank = window.rank();
  LoopStart start = start_loop(pooled(call, window).shape);
  Exprs& exprs = start.loop.exprs;
  const DType dtype = call.in(0).dtype;
  const bool column_major = call.attrs.get_int("storage_order", 0) != 0;
  const ExprId plane = exprs.add(exprs.mul(start.coords[0], call.in(0).shape[1]), start.coords[1]);
  const ExprId lowest = exprs.constant(dtype, identity(Combine::kMax, compute_type(dtype)));
  ExprId best = kNoExpr, where = kNoExpr, found = kNoExpr;
  for_each_point(window.kernel, [&](const std::vector<int64_t>& k) {
    std::vector<ExprId> kernel;
    for (int64_t at : k) kernel.push_back(exprs.integer(at));
    const WindowAccess access =
        access_window(exprs, window, std::span(start.coords.data() + 2, rank), kernel);
    std::vector<ExprId> at{start.coords[0], start.coords[1]};
    at.insert(at.end(), access.coords.begin(), access.coords.end());
    ExprId index = exprs.integer(0);
    for (int axis = 0; axis < rank; ++axis) {
      const int from = column_major ? rank - 1 - axis : axis;
      index = exprs.add(exprs.mul(index, window.in[from]), access.coords[from]);
    }
    index = exprs.add(exprs.mul(plane, element_count(window.in)), index);
    const ExprId value = exprs.load(0, dtype, at, access.guard, lowest);
    const ExprId inside = access.guard == kNoExpr ? exprs.constant(DType::b1, 1) : access.guard;
    if (best == kNoExpr) {
      best = value;
      where = exprs.select(inside, index, exprs.integer(0));
      found = inside;
      return;
    }
    ExprId wins = exprs.lt(best, value);
    if (is_float(dtype)) {  // the first NaN stays
      const ExprId fresh = exprs.both(exprs.unary(Scalar::kIsNan, value),
                                      exprs.unary(Scalar::kNot, exprs.unary(Scalar::kIsNan, best)));
      wins = exprs.binary(Scalar::kOr, wins, fresh);
    }
    wins = exprs.both(inside, exprs.binary(Scalar::kOr, wins, exprs.unary(Scalar::kNot, found)));
    best = exprs.select(wins, value, best);
    where = exprs.select(wins, index, where);
    found = exprs.binary(Scalar::kOr, found, inside);
  });
  start.loop.body = where;
  return std::move(start.loop);
}

}  // namespace

Result<Types> infer_max_pool(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kMaxTypes));
  TRY(const Window window, pool_window(call));
  const Type type = pooled(call, window);
  return Types{type, {DType::i64, type.shape}};
}

Result<Types> infer_pool(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  TRY([[maybe_unused]] const int64_t p, norm_of(call));
  TRY(const Window window, pool_window(call));
  return Types{pooled(call, window)};
}

Result<Types> infer_global_pool(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  TRY([[maybe_unused]] const int64_t p, norm_of(call));
  const Shape& shape = call.in(0).shape;
  if (shape.size() < 2) {
    return bad_call(call,
                    fmt::format("input {}, but it needs [N, C, spatial...]", to_string(shape)));
  }
  Type type = call.in(0);
  std::fill(type.shape.begin() + 2, type.shape.end(), 1);
  return Types{type};
}

Cost cost_pool(const Call& call) {
  Cost cost = cost_move(call);
  double window = 1;
  for (int64_t extent : call.attrs.get_ints("kernel_shape")) window *= static_cast<double>(extent);
  cost.flops = {window * static_cast<double>(call.out().count())};
  return cost;
}

// ---- MaxPool ------------------------------------------------------------------------------------

std::optional<Loop> loop_max_pool(const Call& call, int output) {
  const Window window = *pool_window(call);
  if (output == 1) return loop_indices(call, window);
  const DType type = compute_type(call.in(0).dtype);
  PoolLoop pool = start_pool(call, window, identity(Combine::kMax, type));
  pool.start.loop.body = pool.value;
  pool.start.loop.combine = Combine::kMax;
  return std::move(pool.start.loop);
}

Status reference_max_pool(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  TRY(const Window window, pool_window(call));
  const Tensor& x = *inputs[0];
  const std::vector<double> values = read_reals(x);  // i8 and u8 too: doubles hold them
  const bool column_major = call.attrs.get_int("storage_order", 0) != 0;
  const bool wants_indices = outputs.size() > 1 && !outputs[1].empty();
  const int64_t plane_size = element_count(window.in);
  const double lowest = identity(Combine::kMax, x.dtype());
  each_output(call, window, [&](int64_t plane, const std::vector<int64_t>& at, int64_t flat) {
    double best = lowest;
    int64_t where = -1;
    each_in_window(window, at, [&](int64_t position, int64_t) {
      const double value = values[plane * plane_size + position];
      if (where < 0 || value > best || (std::isnan(value) && !std::isnan(best))) {
        best = value;
        where = position;
      }
    });
    outputs[0].set_double(flat, best);
    if (wants_indices)
      outputs[1].set_int(flat, where < 0 ? 0 : storage_index(window, plane, where, column_major));
  });
  return ok_status();
}

// ---- AveragePool --------------------------------------------------------------------------------

std::optional<Loop> loop_average_pool(const Call& call, int) {
  const Window window = *pool_window(call);
  const bool padding = call.attrs.get_int("count_include_pad", 0) != 0;
  PoolLoop pool = start_pool(call, window, 0);
  Loop& loop = pool.start.loop;
  Exprs& exprs = loop.exprs;
  const DType type = compute_type(call.in(0).dtype);
  loop.body = pool.value;
  loop.combine = Combine::kSum;
  ExprId count = exprs.integer(1);
  for (int axis = 0; axis < window.rank(); ++axis)
    count = exprs.mul(count, counted(exprs, window, axis, pool.start.coords[2 + axis], padding));
  loop.finish = exprs.div(exprs.acc(type), exprs.cast(count, type));
  return std::move(loop);
}

Status reference_average_pool(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs) {
  TRY(const Window window, pool_window(call));
  const std::vector<double> values = read_reals(*inputs[0]);
  const bool padding = call.attrs.get_int("count_include_pad", 0) != 0;
  const int64_t plane_size = element_count(window.in);
  each_output(call, window, [&](int64_t plane, const std::vector<int64_t>& at, int64_t flat) {
    Total sum(call.sums);
    double count = 1;
    each_in_window(window, at, [&](int64_t position, int64_t) {
      sum += values[plane * plane_size + position];
    });
    for (int axis = 0; axis < window.rank(); ++axis)
      count *= static_cast<double>(counted(window, axis, at[axis], padding));
    outputs[0].set_double(flat, sum.value() / count);
  });
  return ok_status();
}

// ---- LpPool -------------------------------------------------------------------------------------

std::optional<Loop> loop_lp_pool(const Call& call, int) {
  const Window window = *pool_window(call);
  const int64_t p = *norm_of(call);
  const DType type = compute_type(call.in(0).dtype);
  PoolLoop pool = start_pool(call, window, 0);
  Loop& loop = pool.start.loop;
  loop.body = power_of(loop.exprs, pool.value, p, type);
  loop.combine = Combine::kSum;
  loop.finish = root_of(loop.exprs, loop.exprs.acc(type), p, type);
  return std::move(loop);
}

Status reference_lp_pool(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  TRY(const Window window, pool_window(call));
  TRY(const int64_t p, norm_of(call));
  const std::vector<double> values = read_reals(*inputs[0]);
  const int64_t plane_size = element_count(window.in);
  each_output(call, window, [&](int64_t plane, const std::vector<int64_t>& at, int64_t flat) {
    Total sum(call.sums);
    each_in_window(window, at, [&](int64_t position, int64_t) {
      sum += power_of(values[plane * plane_size + position], p);
    });
    outputs[0].set_double(flat, root_of(sum.value(), p));
  });
  return ok_status();
}

// ---- pools of whole images ----------------------------------------------------------------------

std::optional<Loop> loop_global_pool(const Call& call, int) {
  const Shape& shape = call.in(0).shape;
  const DType dtype = call.in(0).dtype, type = compute_type(dtype);
  const int rank = static_cast<int>(shape.size());
  Shape domain = call.out().shape;
  domain.insert(domain.end(), shape.begin() + 2, shape.end());
  LoopStart start = start_loop(domain, rank);
  Loop& loop = start.loop;
  Exprs& exprs = loop.exprs;
  std::vector<ExprId> at{start.coords[0], start.coords[1]};
  at.insert(at.end(), start.coords.begin() + rank, start.coords.end());
  const ExprId value = exprs.load(0, dtype, at);
  loop.body = value;
  loop.combine = Combine::kSum;
  if (call.op == Op::GlobalMaxPool) {
    loop.combine = Combine::kMax;
  } else if (call.op == Op::GlobalAveragePool) {
    const auto count = static_cast<double>(element_count(Shape(shape.begin() + 2, shape.end())));
    loop.finish = exprs.div(exprs.acc(type), exprs.constant(type, count));
  } else {
    const int64_t p = *norm_of(call);
    loop.body = power_of(exprs, value, p, type);
    loop.finish = root_of(exprs, exprs.acc(type), p, type);
  }
  return std::move(loop);
}

Status reference_global_pool(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs) {
  TRY(const int64_t p, norm_of(call));
  const Shape& shape = call.in(0).shape;
  const std::vector<double> values = read_reals(*inputs[0]);
  const int64_t size = element_count(Shape(shape.begin() + 2, shape.end()));
  for (int64_t plane = 0; plane < shape[0] * shape[1]; ++plane) {
    const double* from = values.data() + plane * size;
    Total sum(call.sums);
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t at = 0; at < size; ++at) {
      if (call.op == Op::GlobalLpPool) {
        sum += power_of(from[at], p);
      } else {
        sum += from[at];
        if (from[at] > best || std::isnan(from[at])) best = from[at];
        if (std::isnan(best)) break;
      }
    }
    double result = sum.value() / static_cast<double>(size);
    if (call.op == Op::GlobalMaxPool) result = best;
    if (call.op == Op::GlobalLpPool) result = root_of(sum.value(), p);
    outputs[0].set_double(plane, result);
  }
  return ok_status();
}

}  // namespace obelisk::ops

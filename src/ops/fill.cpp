#include "ops/fill.h"

#include <algorithm>
#include <cmath>

#include "ops/moves.h"

namespace obelisk::ops {

// ---- ConstantOfShape ----------------------------------------------------------------------------

Result<Types> infer_constant_of_shape(const Call& call) {
  TRY(Shape shape, call.ints(0, "shape"));
  const Tensor* value = call.attrs.get_tensor("value");
  if (value && value->count() != 1) {
    return bad_call(call, fmt::format("value is {}, not one element", to_string(value->type())));
  }
  return Types{{value ? value->dtype() : DType::f32, shape}};
}

std::optional<Loop> loop_constant_of_shape(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  const Tensor* value = call.attrs.get_tensor("value");
  start.loop.body = value ? constant_of(start.loop.exprs, *value, 0)
                          : zero_of(start.loop.exprs, call.out().dtype);
  return start.loop;
}

Status reference_constant_of_shape(const Call& call, std::span<const Tensor* const>,
                                   std::span<Tensor> outputs) {
  const Tensor* value = call.attrs.get_tensor("value");
  if (!value) return ok_status();  // zero, as allocated
  Tensor& to = outputs[0];
  const Tensor one = value->dtype() == to.dtype() ? *value : value->cast(to.dtype());
  with_units(one, to, [&](auto units) {
    const auto unit = units.get(0);
    for (int64_t i = 0, count = to.count(); i < count; ++i) units.put(i, unit);
  });
  return ok_status();
}

// ---- Range --------------------------------------------------------------------------------------

Result<Types> infer_range(const Call& call) {
  const DType dtype = call.in(0).dtype;
  for (int input = 0; input < 3; ++input) {
    if (call.in(input).count() != 1 || call.in(input).dtype != dtype) {
      return bad_call(call,
                      fmt::format("start, limit and delta are {}, {} and {}", to_string(call.in(0)),
                                  to_string(call.in(1)), to_string(call.in(2))));
    }
    if (!call.constant(input)) {
      return unsupported_call(call, "the output size depends on data",
                              "make start, limit and delta constants");
    }
  }
  int64_t count = 0;
  if (is_float(dtype)) {
    const double start = call.constant(0)->get_double(0), limit = call.constant(1)->get_double(0);
    const double delta = call.constant(2)->get_double(0);
    const double steps = std::ceil((limit - start) / delta);
    if (!(std::fabs(steps) < 0x1p40)) {
      return bad_call(call, fmt::format("from {} to {} by {}", start, limit, delta));
    }
    count = std::max<int64_t>(static_cast<int64_t>(steps), 0);
  } else {
    const int64_t start = call.constant(0)->get_int(0), limit = call.constant(1)->get_int(0);
    const int64_t delta = call.constant(2)->get_int(0);
    if (delta == 0) return bad_call(call, "delta is 0");
    // Differences as unsigned, for limits that are further apart than the largest integer.
    const auto ustart = static_cast<uint64_t>(start), ulimit = static_cast<uint64_t>(limit);
    const uint64_t step =
        delta > 0 ? static_cast<uint64_t>(delta) : 0 - static_cast<uint64_t>(delta);
    const uint64_t distance = delta > 0 ? ulimit - ustart : ustart - ulimit;
    const bool ahead = delta > 0 ? start < limit : limit < start;
    const uint64_t steps = ahead ? (distance - 1) / step + 1 : 0;
    if (steps > uint64_t{1} << 40) return bad_call(call, fmt::format("{} elements", steps));
    count = static_cast<int64_t>(steps);
  }
  return Types{{dtype, {count}}};
}

std::optional<Loop> loop_range(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const DType dtype = call.in(0).dtype;
  auto scalar = [&](int input) {
    return exprs.load(input, dtype, std::vector<ExprId>(call.in(input).rank(), exprs.integer(0)));
  };
  const ExprId step = exprs.cast(start.coords[0], compute_type(dtype));
  start.loop.body = exprs.add(scalar(0), exprs.mul(step, scalar(2)));
  return start.loop;
}

Status reference_range(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  Tensor& to = outputs[0];
  for (int64_t i = 0; i < to.count(); ++i) {
    if (is_float(to.dtype())) {
      to.set_double(i,
                    inputs[0]->get_double(0) + static_cast<double>(i) * inputs[2]->get_double(0));
    } else {
      const auto start = static_cast<uint64_t>(inputs[0]->get_int(0));
      const auto delta = static_cast<uint64_t>(inputs[2]->get_int(0));
      to.set_int(i, static_cast<int64_t>(start + static_cast<uint64_t>(i) * delta));
    }
  }
  return ok_status();
}

// ---- EyeLike ------------------------------------------------------------------------------------

Result<Types> infer_eye_like(const Call& call) {
  if (call.in(0).rank() != 2) {
    return bad_call(call, fmt::format("the input {} is not a matrix", to_string(call.in(0))));
  }
  TRY(const DType dtype, dtype_attr(call, "dtype", call.in(0).dtype));
  return Types{{dtype, call.in(0).shape}};
}

std::optional<Loop> loop_eye_like(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const DType type = compute_type(call.out().dtype);
  // Compared with k alone: row + k could overflow.
  const ExprId on_diagonal = exprs.eq(exprs.sub(start.coords[1], start.coords[0]),
                                      exprs.integer(call.attrs.get_int("k", 0)));
  const ExprId one = type == DType::i64 ? exprs.integer(1) : exprs.constant(type, 1);
  start.loop.body = exprs.select(on_diagonal, one, zero_of(exprs, type));
  return start.loop;
}

Status reference_eye_like(const Call& call, std::span<const Tensor* const>,
                          std::span<Tensor> outputs) {
  Tensor& to = outputs[0];
  const int64_t rows = to.shape()[0], columns = to.shape()[1];
  const int64_t k = call.attrs.get_int("k", 0);
  for (int64_t row = 0; row < rows; ++row) {
    if (k < -row || k >= columns - row) continue;
    to.set_double(row * columns + row + k, 1);
  }
  return ok_status();
}

// ---- OneHot -------------------------------------------------------------------------------------

namespace {

struct OneHotAxis {
  int64_t axis, depth;
};
Result<OneHotAxis> one_hot_axis(const Call& call) {
  TRY(const int64_t axis,
      normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank() + 1));
  TRY(auto depth, call.ints(1, "depth"));
  if (depth.size() != 1 || depth[0] < 0) return bad_call(call, "depth is not one count");
  return OneHotAxis{axis, depth[0]};
}

}  // namespace

Result<Types> infer_one_hot(const Call& call) {
  TRY(const OneHotAxis hot, one_hot_axis(call));
  if (call.in(2).shape != Shape{2}) {
    return bad_call(call, fmt::format("values is {}, not the pair off, on", to_string(call.in(2))));
  }
  Shape shape = call.in(0).shape;
  shape.insert(shape.begin() + hot.axis, hot.depth);
  return Types{{call.in(2).dtype, shape}};
}

// Indices outside [-depth, depth) are on nowhere.
std::optional<Loop> loop_one_hot(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const OneHotAxis hot = one_hot_axis(call).value();
  std::vector<ExprId> at = start.coords;
  const ExprId place = at[hot.axis];
  at.erase(at.begin() + hot.axis);
  const ExprId index = exprs.cast(exprs.load(0, call.in(0).dtype, std::move(at)), DType::i64);
  const ExprId wrapped =
      exprs.select(exprs.lt(index, exprs.integer(0)), exprs.add(index, hot.depth), index);
  const DType dtype = call.in(2).dtype;
  start.loop.body = exprs.select(exprs.eq(wrapped, place), exprs.load(2, dtype, {exprs.integer(1)}),
                                 exprs.load(2, dtype, {exprs.integer(0)}));
  return start.loop;
}

Status reference_one_hot(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  TRY(const OneHotAxis hot, one_hot_axis(call));
  Tensor& to = outputs[0];
  const Tensor& indices = *inputs[0];
  const Tensor& values = *inputs[2];
  int64_t inner = product(to.shape(), static_cast<int>(hot.axis) + 1, to.type().rank());
  inner = std::max<int64_t>(inner, 1);
  with_units(values, to, [&](auto units) {
    const auto off = units.get(0), on = units.get(1);
    for (int64_t i = 0, count = to.count(); i < count; ++i) units.put(i, off);
    for (int64_t i = 0, count = indices.count(); i < count; ++i) {
      int64_t index = indices.get_int(i);
      if (index < 0) index += hot.depth;
      if (index < 0 || index >= hot.depth) continue;
      units.put((i / inner * hot.depth + index) * inner + i % inner, on);
    }
  });
  return ok_status();
}

// ---- Trilu --------------------------------------------------------------------------------------

Result<Types> infer_trilu(const Call& call) {
  if (call.in(0).rank() < 2) {
    return bad_call(call, fmt::format("the input {} is not a matrix", to_string(call.in(0))));
  }
  if (call.has(1) && call.in(1).count() != 1) {
    return bad_call(call, fmt::format("k is {}, not one number", to_string(call.in(1))));
  }
  return Types{call.in(0)};
}

std::optional<Loop> loop_trilu(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const size_t rank = start.coords.size();
  const DType dtype = call.in(0).dtype;
  ExprId k = exprs.integer(0);
  if (call.constant(1)) {
    k = exprs.integer(call.constant(1)->get_int(0));
  } else if (call.has(1)) {
    const std::vector<ExprId> first(call.in(1).rank(), exprs.integer(0));
    k = exprs.cast(exprs.load(1, call.in(1).dtype, first), DType::i64);
  }
  const ExprId row = start.coords[rank - 2], column = start.coords[rank - 1];
  const ExprId offset = exprs.sub(column, row);  // compared with k alone, as above
  const ExprId kept =
      call.attrs.get_int("upper", 1) != 0 ? exprs.le(k, offset) : exprs.le(offset, k);
  start.loop.body = exprs.load(0, dtype, start.coords, kept, zero_of(exprs, dtype));
  return start.loop;
}

Status reference_trilu(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  Tensor& to = outputs[0];
  if (to.count() == 0) return ok_status();
  const Shape& shape = to.shape();
  const int64_t rows = shape[shape.size() - 2], columns = shape[shape.size() - 1];
  const int64_t k = call.has(1) ? inputs[1]->get_int(0) : 0;
  const bool upper = call.attrs.get_int("upper", 1) != 0;
  with_units(*inputs[0], to, [&](auto units) {
    int64_t i = 0;
    for (int64_t line = 0; line < to.count() / columns; ++line) {
      const int64_t row = line % rows;
      for (int64_t column = 0; column < columns; ++column, ++i) {
        if (upper ? column - row >= k : column - row <= k) units.put(i, units.get(i));
      }
    }
  });
  return ok_status();
}

}  // namespace obelisk::ops

#include "ops/shape.h"

#include <algorithm>
#include <numeric>

#include "ops/moves.h"

namespace obelisk::ops {

namespace {

Result<std::vector<int64_t>> permutation(const Call& call) {
  const int rank = call.in(0).rank();
  std::vector<int64_t> reversed(rank);
  for (int axis = 0; axis < rank; ++axis) reversed[axis] = rank - 1 - axis;
  std::vector<int64_t> perm = call.attrs.get_ints("perm", reversed);
  if (static_cast<int>(perm.size()) != rank) {
    return bad_call(call,
                    fmt::format("perm has {} axes, the input has rank {}", perm.size(), rank));
  }
  return normalize_axes(call, perm, rank);
}

Types same_type(const Call& call, Shape shape) { return {{call.in(0).dtype, std::move(shape)}}; }

}  // namespace

Result<Types> infer_identity(const Call& call) { return Types{call.in(0)}; }

Result<Types> infer_reshape(const Call& call) {
  TRY(Shape shape, call.ints(1, "shape"));
  const Shape& from = call.in(0).shape;
  const bool zero_is_zero = call.attrs.get_int("allowzero", 0) != 0;
  int open = -1;
  int64_t known = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0 && !zero_is_zero) {
      if (axis >= from.size()) {
        return bad_call(call, fmt::format("shape {} copies axis {}, but the input is {}",
                                          to_string(shape), axis, to_string(from)));
      }
      shape[axis] = from[axis];
    }
    if (shape[axis] == -1) {
      if (open >= 0) return bad_call(call, "the shape has -1 twice");
      open = static_cast<int>(axis);
    } else if (shape[axis] < 0) {
      return bad_call(call, fmt::format("the shape has the extent {}", shape[axis]));
    } else if (__builtin_mul_overflow(known, shape[axis], &known)) {
      return bad_call(call, fmt::format("no tensor has the shape {}", to_string(shape)));
    }
  }
  const int64_t count = call.in(0).count();
  if (open >= 0) {
    if (known == 0 || count % known != 0) {
      return bad_call(call, fmt::format("{} elements of {} do not fill the shape {}", count,
                                        to_string(from), to_string(shape)));
    }
    shape[open] = count / known;
  } else if (known != count) {
    return bad_call(call, fmt::format("{} has {} elements, the shape {} has {}", to_string(from),
                                      count, to_string(shape), known));
  }
  return same_type(call, shape);
}

Result<Types> infer_flatten(const Call& call) {
  const Shape& from = call.in(0).shape;
  const int rank = call.in(0).rank();
  int64_t axis = call.attrs.get_int("axis", 1);
  if (axis < -rank || axis > rank) {
    return bad_call(call, fmt::format("axis {} but the input has rank {}", axis, rank));
  }
  if (axis < 0) axis += rank;
  return same_type(call, {product(from, 0, static_cast<int>(axis)),
                          product(from, static_cast<int>(axis), rank)});
}

Result<Types> infer_squeeze(const Call& call) {
  const Shape& from = call.in(0).shape;
  std::vector<bool> drop(from.size(), false);
  if (call.has(1)) {
    TRY(auto axes, call.ints(1, "axes"));
    TRY(axes, normalize_axes(call, axes, call.in(0).rank()));
    for (int64_t axis : axes) {
      if (from[axis] != 1) {
        return bad_call(call, fmt::format("axis {} of {} has extent {}, not 1", axis,
                                          to_string(from), from[axis]));
      }
      drop[axis] = true;
    }
  } else {
    for (size_t axis = 0; axis < from.size(); ++axis) drop[axis] = from[axis] == 1;
  }
  Shape shape;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (!drop[axis]) shape.push_back(from[axis]);
  }
  return same_type(call, shape);
}

Result<Types> infer_unsqueeze(const Call& call) {
  TRY(auto axes, call.ints(1, "axes"));
  const int64_t rank = call.in(0).rank() + static_cast<int64_t>(axes.size());
  TRY(axes, normalize_axes(call, axes, rank));
  Shape shape(rank, -1);
  for (int64_t axis : axes) shape[axis] = 1;
  auto next = call.in(0).shape.begin();
  for (int64_t& extent : shape) {
    if (extent < 0) extent = *next++;
  }
  return same_type(call, shape);
}

Result<Types> infer_transpose(const Call& call) {
  TRY(auto perm, permutation(call));
  Shape shape;
  for (int64_t axis : perm) shape.push_back(call.in(0).shape[axis]);
  return same_type(call, shape);
}

Result<Types> infer_expand(const Call& call) {
  TRY(Shape wanted, call.ints(1, "shape"));
  const auto shape = broadcast(call.in(0).shape, wanted);
  if (!shape) {
    return bad_call(call, fmt::format("{} does not broadcast to {}", to_string(call.in(0).shape),
                                      to_string(wanted)));
  }
  return same_type(call, *shape);
}

Result<Types> infer_tile(const Call& call) {
  TRY(auto repeats, call.ints(1, "repeats"));
  Shape shape = call.in(0).shape;
  if (repeats.size() != shape.size()) {
    return bad_call(
        call, fmt::format("{} repeats for an input of rank {}", repeats.size(), shape.size()));
  }
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (repeats[axis] < 0 || __builtin_mul_overflow(shape[axis], repeats[axis], &shape[axis])) {
      return bad_call(call, fmt::format("axis {} repeats {} times", axis, repeats[axis]));
    }
  }
  return same_type(call, shape);
}

namespace {

// [start, end) of the axes that Shape lists.
std::pair<int64_t, int64_t> listed_axes(const Call& call) {
  const int64_t rank = call.in(0).rank();
  auto clamped = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const int64_t start = clamped(call.attrs.get_int("start", 0));
  return {start, std::max(start, clamped(call.attrs.get_int("end", rank)))};
}

}  // namespace

Result<Types> infer_shape(const Call& call) {
  const auto [start, end] = listed_axes(call);
  return Types{{DType::i64, {end - start}}};
}

Result<Types> infer_size(const Call&) { return Types{{DType::i64, {}}}; }

// ---- loops --------------------------------------------------------------------------------------

std::vector<ExprId> reshape_coords(Exprs& exprs, const Shape& from, const Shape& to,
                                   const std::vector<ExprId>& coords) {
  std::vector<ExprId> result(from.size(), exprs.integer(0));
  if (element_count(to) == 0) return result;
  // Axes are paired in the smallest groups of equal count, so that a reshape that only splits or
  // only merges some axes leaves the others affine.
  size_t from_axis = 0, to_axis = 0;
  while (from_axis < from.size()) {
    const size_t first = from_axis;
    int64_t from_count = from[from_axis++], to_count = 1;
    ExprId linear = exprs.integer(0);
    while (from_count != to_count) {
      if (from_count < to_count) {
        from_count *= from[from_axis++];
      } else {
        linear = exprs.add(exprs.mul(linear, to[to_axis]), coords[to_axis]);
        to_count *= to[to_axis++];
      }
    }
    int64_t stride = 1;
    for (size_t axis = from_axis; axis-- > first;) {
      ExprId at = stride == 1 ? linear : exprs.div(linear, stride);
      if (axis > first) at = exprs.mod(at, from[axis]);
      result[axis] = at;
      stride *= from[axis];
    }
  }
  return result;
}

std::optional<Loop> loop_reshape(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  auto at = reshape_coords(exprs, call.in(0).shape, call.out().shape, start.coords);
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

std::optional<Loop> loop_transpose(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  const auto perm = permutation(call).value();
  std::vector<ExprId> at(perm.size());
  for (size_t axis = 0; axis < perm.size(); ++axis) at[perm[axis]] = start.coords[axis];
  start.loop.body = start.loop.exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

std::optional<Loop> loop_expand(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  const Shape& from = call.in(0).shape;
  const size_t skip = start.coords.size() - from.size();
  std::vector<ExprId> at;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    at.push_back(from[axis] == 1 ? start.loop.exprs.integer(0) : start.coords[skip + axis]);
  }
  start.loop.body = start.loop.exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

std::optional<Loop> loop_tile(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const Shape& from = call.in(0).shape;
  std::vector<ExprId> at;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    at.push_back(from[axis] == 0 ? exprs.integer(0) : exprs.mod(start.coords[axis], from[axis]));
  }
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

std::optional<Loop> loop_shape(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const auto [first, end] = listed_axes(call);
  ExprId value = exprs.integer(0);
  for (int64_t axis = end; axis-- > first;) {  // c0 == 0 ? d0 : c0 == 1 ? d1 : ...
    value = exprs.select(exprs.eq(start.coords[0], exprs.integer(axis - first)),
                         exprs.integer(call.in(0).shape[axis]), value);
  }
  start.loop.body = value;
  return start.loop;
}

std::optional<Loop> loop_size(const Call& call, int) {
  auto start = start_loop({});
  start.loop.body = start.loop.exprs.integer(call.in(0).count());
  return start.loop;
}

// ---- references ---------------------------------------------------------------------------------

Status reference_reshape(const Call&, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  copy_flat(*inputs[0], outputs[0]);
  return ok_status();
}

Status reference_transpose(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs) {
  TRY(auto perm, permutation(call));
  const auto strides = row_major_strides(inputs[0]->shape());
  Walk from;
  for (int64_t axis : perm) from.strides.push_back(strides[axis]);
  copy_strided(*inputs[0], from, outputs[0], {0, row_major_strides(outputs[0].shape())},
               outputs[0].shape());
  return ok_status();
}

Status reference_expand(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  const Shape& from_shape = inputs[0]->shape();
  const Shape& to_shape = outputs[0].shape();
  const auto strides = row_major_strides(from_shape);
  Walk from{0, std::vector<int64_t>(to_shape.size(), 0)};
  const size_t skip = to_shape.size() - from_shape.size();
  for (size_t axis = 0; axis < from_shape.size(); ++axis) {
    from.strides[skip + axis] = from_shape[axis] == 1 ? 0 : strides[axis];
  }
  copy_strided(*inputs[0], from, outputs[0], {0, row_major_strides(to_shape)}, to_shape);
  return ok_status();
}

Status reference_tile(const Call&, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  // Each axis becomes two, (repeat, extent); the input does not move along the first.
  const Shape& from_shape = inputs[0]->shape();
  const Shape& to_shape = outputs[0].shape();
  const auto from_strides = row_major_strides(from_shape), to_strides = row_major_strides(to_shape);
  Shape extents;
  Walk from, to;
  for (size_t axis = 0; axis < from_shape.size(); ++axis) {
    const int64_t repeats = from_shape[axis] == 0 ? 0 : to_shape[axis] / from_shape[axis];
    extents.insert(extents.end(), {repeats, from_shape[axis]});
    from.strides.insert(from.strides.end(), {0, from_strides[axis]});
    to.strides.insert(to.strides.end(), {to_strides[axis] * from_shape[axis], to_strides[axis]});
  }
  copy_strided(*inputs[0], from, outputs[0], to, extents);
  return ok_status();
}

Status reference_shape(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  const int64_t first = listed_axes(call).first;
  for (int64_t i = 0; i < outputs[0].count(); ++i) {
    outputs[0].set_int(i, inputs[0]->shape()[first + i]);
  }
  return ok_status();
}

Status reference_size(const Call&, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  outputs[0].set_int(0, inputs[0]->count());
  return ok_status();
}

}  // namespace obelisk::ops

#include "ops/moves.h"

#include <algorithm>

namespace obelisk::ops {

namespace {

// Neighbouring axes that both sides walk as one are merged, so that the inner loop is long.
struct Merged {
  Shape extents;
  Walk from, to;
};
Merged merge_axes(const Walk& from, const Walk& to, const Shape& extents) {
  Merged out{{}, {from.offset, {}}, {to.offset, {}}};
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] == 1) continue;
    const int64_t extent = extents[axis];
    if (!out.extents.empty() && out.from.strides.back() == from.strides[axis] * extent &&
        out.to.strides.back() == to.strides[axis] * extent) {
      out.extents.back() *= extent;
      out.from.strides.back() = from.strides[axis];
      out.to.strides.back() = to.strides[axis];
    } else {
      out.extents.push_back(extent);
      out.from.strides.push_back(from.strides[axis]);
      out.to.strides.push_back(to.strides[axis]);
    }
  }
  if (out.extents.empty()) {
    out.extents = {1};
    out.from.strides = out.to.strides = {1};
  }
  return out;
}

}  // namespace

void copy_strided(const Tensor& from, const Walk& from_walk, Tensor& to, const Walk& to_walk,
                  const Shape& extents) {
  if (element_count(extents) == 0) return;
  Merged merged = merge_axes(from_walk, to_walk, extents);
  const int64_t inner = merged.extents.back();
  const int64_t from_step = merged.from.strides.back(), to_step = merged.to.strides.back();
  merged.extents.pop_back();
  with_units(from, to, [&](auto units) {
    for_each_point(merged.extents, [&](const std::vector<int64_t>& at) {
      int64_t source = merged.from.offset, target = merged.to.offset;
      for (size_t axis = 0; axis < at.size(); ++axis) {
        source += at[axis] * merged.from.strides[axis];
        target += at[axis] * merged.to.strides[axis];
      }
      for (int64_t i = 0; i < inner; ++i) {
        units.put(target + i * to_step, units.get(source + i * from_step));
      }
    });
  });
}

void copy_flat(const Tensor& from, Tensor& to) {
  CHECK(from.dtype() == to.dtype() && from.count() == to.count());
  if (from.count() > 0) std::memcpy(to.mutable_data(), from.data(), from.bytes());
}

LoopStart start_loop(const Shape& domain, int parallel) {
  LoopStart start;
  start.loop.domain = domain;
  start.loop.parallel = parallel;
  for (size_t axis = 0; axis < domain.size(); ++axis) {
    start.coords.push_back(start.loop.exprs.coord(static_cast<int>(axis), domain[axis]));
  }
  return start;
}

ExprId constant_of(Exprs& exprs, const Tensor& tensor, int64_t index) {
  const DType type = compute_type(tensor.dtype());
  if (is_float(type)) return exprs.constant(type, tensor.get_double(index));
  if (type == DType::b1) return exprs.constant(type, tensor.get_int(index) != 0 ? 1 : 0);
  const ExprId value = exprs.integer(tensor.get_int(index));  // 64-bit values keep every bit
  return type == DType::i64 ? value : exprs.cast(value, type);
}

ExprId zero_of(Exprs& exprs, DType dtype) {
  const DType type = compute_type(dtype);
  return type == DType::i64 ? exprs.integer(0) : exprs.constant(type, 0);
}

ExprId wrapped_index(Exprs& exprs, ExprId index, int64_t extent) {
  const ExprId from_start =
      exprs.select(exprs.lt(index, exprs.integer(0)), exprs.add(index, extent), index);
  return exprs.binary(Scalar::kMax, exprs.integer(0),
                      exprs.binary(Scalar::kMin, from_start, exprs.integer(extent - 1)));
}

int64_t wrapped_index(int64_t index, int64_t extent) {
  if (index < 0) index += extent;
  return std::clamp<int64_t>(index, 0, extent - 1);
}

Result<std::vector<int64_t>> normalize_axes(const Call& call, std::vector<int64_t> axes,
                                            int64_t rank) {
  std::vector<bool> named(static_cast<size_t>(rank));
  for (int64_t& axis : axes) {
    TRY(axis, normalize_axis(call, axis, rank));
    if (named[axis]) return bad_call(call, fmt::format("axis {} is named twice", axis));
    named[axis] = true;
  }
  return axes;
}

Result<DType> dtype_attr(const Call& call, std::string_view name, DType otherwise) {
  if (!call.attrs.has(name)) return otherwise;
  const int64_t number = call.attrs.get_int(name, 0);
  if (auto dtype = dtype_of_number(number)) return *dtype;
  return unsupported_call(call, fmt::format("element type {} of attribute {}", number, name));
}

int64_t product(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  // Beyond all integers only beside an extent of 0, where no element is looked for.
  for (int axis = begin; axis < end; ++axis)
    if (__builtin_mul_overflow(count, shape[axis], &count)) count = 0;
  return count;
}

}  // namespace obelisk::ops

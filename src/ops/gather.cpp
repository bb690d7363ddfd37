#include "ops/gather.h"

#include <algorithm>
#include <cstring>

#include "ops/expand.h"
#include "ops/expand_steps.h"
#include "ops/moves.h"

namespace obelisk::ops {

namespace {

Result<int64_t> gather_axis(const Call& call) {
  return normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank());
}

Status check_extent(const Call& call, int64_t axis, const Type& output) {
  // How many elements the output has need be no integer yet.
  const bool wants = std::find(output.shape.begin(), output.shape.end(), 0) == output.shape.end();
  if (call.in(0).shape[axis] == 0 && wants) {
    return bad_call(call, fmt::format("reads along axis {} of {}, which is empty", axis,
                                      to_string(call.in(0).shape)));
  }
  return ok_status();
}

}  // namespace

Status check_indices(const Call& call, const Type& indices) {
  if (!is_integer(indices.dtype)) {
    return bad_call(call, fmt::format("the indices are {}, not integers", to_string(indices)));
  }
  return ok_status();
}

Cost cost_gather(const Call& call) {
  int64_t read = call.out().bytes();
  for (int input = 1; input < call.arity(); ++input) {
    if (call.has(input)) read += call.in(input).bytes();
  }
  return {{read}, {call.out().bytes()}, {0}};
}

// ---- Gather -------------------------------------------------------------------------------------

Result<Types> infer_gather(const Call& call) {
  TRY_STATUS(check_indices(call, call.in(1)));
  TRY(const int64_t axis, gather_axis(call));
  Type type = call.in(0);
  type.shape.erase(type.shape.begin() + axis);
  type.shape.insert(type.shape.begin() + axis, call.in(1).shape.begin(), call.in(1).shape.end());
  TRY_STATUS(check_extent(call, axis, type));
  return Types{type};
}

std::optional<Loop> loop_gather(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const int64_t axis = gather_axis(call).value();
  const auto begin = start.coords.begin() + axis, end = begin + call.in(1).rank();
  const ExprId index =
      exprs.cast(exprs.load(1, call.in(1).dtype, std::vector<ExprId>(begin, end)), DType::i64);
  std::vector<ExprId> at(start.coords.begin(), begin);
  at.push_back(wrapped_index(exprs, index, call.in(0).shape[axis]));
  at.insert(at.end(), end, start.coords.end());
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

Status reference_gather(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const int64_t axis, gather_axis(call));
  const Tensor& data = *inputs[0];
  const Tensor& indices = *inputs[1];
  if (outputs[0].count() == 0) return ok_status();
  const int rank = data.type().rank();
  const int64_t extent = data.shape()[axis];
  const int64_t outer = product(data.shape(), 0, static_cast<int>(axis));
  const int64_t inner = product(data.shape(), static_cast<int>(axis) + 1, rank);
  with_units(data, outputs[0], [&](auto units) {
    int64_t target = 0;
    for (int64_t block = 0; block < outer; ++block) {
      for (int64_t i = 0, count = indices.count(); i < count; ++i) {
        const int64_t source = (block * extent + wrapped_index(indices.get_int(i), extent)) * inner;
        for (int64_t j = 0; j < inner; ++j) units.put(target++, units.get(source + j));
      }
    }
  });
  return ok_status();
}

// ---- GatherElements -----------------------------------------------------------------------------

Result<Types> infer_gather_elements(const Call& call) {
  TRY_STATUS(check_indices(call, call.in(1)));
  TRY(const int64_t axis, gather_axis(call));
  const Type type{call.in(0).dtype, call.in(1).shape};
  bool fits = type.rank() == call.in(0).rank();
  for (int d = 0; fits && d < type.rank(); ++d) {
    fits = d == axis || type.shape[d] <= call.in(0).shape[d];
  }
  if (!fits) {
    return bad_call(call, fmt::format("indices of {} into data of {} along axis {}",
                                      to_string(type.shape), to_string(call.in(0).shape), axis));
  }
  TRY_STATUS(check_extent(call, axis, type));
  return Types{type};
}

std::optional<Loop> loop_gather_elements(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const int64_t axis = gather_axis(call).value();
  const ExprId index = exprs.cast(exprs.load(1, call.in(1).dtype, start.coords), DType::i64);
  std::vector<ExprId> at = start.coords;
  at[axis] = wrapped_index(exprs, index, call.in(0).shape[axis]);
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

Status reference_gather_elements(const Call& call, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs) {
  TRY(const int64_t axis, gather_axis(call));
  const Tensor& data = *inputs[0];
  const Tensor& indices = *inputs[1];
  const auto strides = row_major_strides(data.shape());
  with_units(data, outputs[0], [&](auto units) {
    int64_t target = 0;
    for_each_point(indices.shape(), [&](const std::vector<int64_t>& at) {
      int64_t source = wrapped_index(indices.get_int(target), data.shape()[axis]) * strides[axis];
      for (size_t d = 0; d < at.size(); ++d) {
        if (static_cast<int64_t>(d) != axis) source += at[d] * strides[d];
      }
      units.put(target++, units.get(source));
    });
  });
  return ok_status();
}

// ---- GatherND -----------------------------------------------------------------------------------

namespace {

// Axes of data: `batch` shared with the indices, `depth` named by an index, the rest copied.
struct Nd {
  int64_t batch, depth;
};
Result<Nd> gather_nd_axes(const Call& call) {
  const Shape& data = call.in(0).shape;
  const Shape& indices = call.in(1).shape;
  if (indices.empty()) return bad_call(call, "the indices are a scalar");
  const Nd nd{call.attrs.get_int("batch_dims", 0), indices.back()};
  if (nd.batch < 0 || nd.batch >= static_cast<int64_t>(indices.size()) ||
      nd.batch + nd.depth > static_cast<int64_t>(data.size())) {
    return bad_call(call, fmt::format("{} batch axes and indices of {} axes into {}", nd.batch,
                                      nd.depth, to_string(data)));
  }
  for (int64_t d = 0; d < nd.batch; ++d) {
    if (data[d] != indices[d]) {
      return bad_call(call, fmt::format("batch axis {} is {} of the data, {} of the indices", d,
                                        data[d], indices[d]));
    }
  }
  return nd;
}

}  // namespace

Result<Types> infer_gather_nd(const Call& call) {
  TRY_STATUS(check_indices(call, call.in(1)));
  TRY(const Nd nd, gather_nd_axes(call));
  const Shape& data = call.in(0).shape;
  Type type{call.in(0).dtype, call.in(1).shape};
  type.shape.pop_back();
  type.shape.insert(type.shape.end(), data.begin() + nd.batch + nd.depth, data.end());
  for (int64_t d = nd.batch; d < nd.batch + nd.depth; ++d) {
    TRY_STATUS(check_extent(call, d, type));
  }
  return Types{type};
}

std::optional<Loop> loop_gather_nd(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const Nd nd = gather_nd_axes(call).value();
  const auto tuples_end = start.coords.begin() + call.in(1).rank() - 1;
  std::vector<ExprId> at(start.coords.begin(), start.coords.begin() + nd.batch);
  for (int64_t d = 0; d < nd.depth; ++d) {
    std::vector<ExprId> tuple(start.coords.begin(), tuples_end);
    tuple.push_back(exprs.integer(d));
    const ExprId index = exprs.cast(exprs.load(1, call.in(1).dtype, std::move(tuple)), DType::i64);
    at.push_back(wrapped_index(exprs, index, call.in(0).shape[nd.batch + d]));
  }
  at.insert(at.end(), tuples_end, start.coords.end());
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

Status reference_gather_nd(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs) {
  TRY(const Nd nd, gather_nd_axes(call));
  const Tensor& data = *inputs[0];
  const Tensor& indices = *inputs[1];
  if (outputs[0].count() == 0) return ok_status();
  const Shape& shape = data.shape();
  const auto strides = row_major_strides(shape);
  const int64_t first = nd.batch + nd.depth;
  const int64_t inner = product(shape, static_cast<int>(first), data.type().rank());
  const int64_t batches = product(shape, 0, static_cast<int>(nd.batch));
  const int64_t tuples = product(indices.shape(), 0, indices.type().rank() - 1);
  const int64_t batch_stride = product(shape, static_cast<int>(nd.batch), data.type().rank());
  with_units(data, outputs[0], [&](auto units) {
    for (int64_t tuple = 0; tuple < tuples; ++tuple) {
      int64_t source = tuple / (tuples / batches) * batch_stride;
      for (int64_t d = 0; d < nd.depth; ++d) {
        source += wrapped_index(indices.get_int(tuple * nd.depth + d), shape[nd.batch + d]) *
                  strides[nd.batch + d];
      }
      for (int64_t j = 0; j < inner; ++j) units.put(tuple * inner + j, units.get(source + j));
    }
  });
  return ok_status();
}

// ---- ReverseSequence ----------------------------------------------------------------------------

namespace {

struct Sequence {
  int64_t time, batch;
};
Result<Sequence> sequence_axes(const Call& call) {
  Sequence axes;
  const int64_t rank = call.in(0).rank();
  TRY(axes.time, normalize_axis(call, call.attrs.get_int("time_axis", 0), rank));
  TRY(axes.batch, normalize_axis(call, call.attrs.get_int("batch_axis", 1), rank));
  if (axes.time == axes.batch) return bad_call(call, "time_axis and batch_axis are the same");
  return axes;
}

}  // namespace

Result<Types> infer_reverse_sequence(const Call& call) {
  TRY_STATUS(check_indices(call, call.in(1)));
  TRY(const Sequence axes, sequence_axes(call));
  if (call.in(1).shape != Shape{call.in(0).shape[axes.batch]}) {
    return bad_call(call, fmt::format("lengths of {} for {} sequences", to_string(call.in(1).shape),
                                      call.in(0).shape[axes.batch]));
  }
  return Types{call.in(0)};
}

// t < length ? length - 1 - t : t, where a length outside [0, extent] is clamped.
std::optional<Loop> loop_reverse_sequence(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const Sequence axes = sequence_axes(call).value();
  const ExprId time = start.coords[axes.time];
  const ExprId extent = exprs.integer(call.in(0).shape[axes.time]);
  const ExprId length = exprs.binary(
      Scalar::kMin, extent,
      exprs.cast(exprs.load(1, call.in(1).dtype, {start.coords[axes.batch]}), DType::i64));
  std::vector<ExprId> at = start.coords;
  at[axes.time] =
      exprs.select(exprs.lt(time, length), exprs.sub(exprs.add(length, int64_t{-1}), time), time);
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

Status reference_reverse_sequence(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs) {
  TRY(const Sequence axes, sequence_axes(call));
  const Tensor& from = *inputs[0];
  const auto strides = row_major_strides(from.shape());
  const int64_t extent = from.shape()[axes.time];
  with_units(from, outputs[0], [&](auto units) {
    int64_t target = 0;
    for_each_point(from.shape(), [&](const std::vector<int64_t>& at) {
      const int64_t length = std::min(inputs[1]->get_int(at[axes.batch]), extent);
      const int64_t time = at[axes.time];
      const int64_t reversed = time < length ? length - 1 - time : time;
      units.put(target, units.get(target + (reversed - time) * strides[axes.time]));
      ++target;
    });
  });
  return ok_status();
}

// ---- Compress -----------------------------------------------------------------------------------

namespace {

// Without an axis the input is flat.
Result<int64_t> kept_count(const Call& call, int64_t extent) {
  const Tensor* condition = call.constant(1);
  if (!condition) {
    return unsupported_call(call, "the output size depends on data",
                            "make the condition a constant");
  }
  if (condition->type().rank() != 1 || condition->count() > extent) {
    return bad_call(call, fmt::format("a condition of {} for {} elements",
                                      to_string(condition->shape()), extent));
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < condition->count(); ++i) kept += condition->get_int(i) != 0;
  return kept;
}

}  // namespace

Result<Types> infer_compress(const Call& call) {
  Type type = call.in(0);
  if (!call.attrs.has("axis")) {
    TRY(const int64_t kept, kept_count(call, type.count()));
    return Types{{type.dtype, {kept}}};
  }
  TRY(const int64_t axis, gather_axis(call));
  TRY(type.shape[axis], kept_count(call, type.shape[axis]));
  return Types{type};
}

std::vector<int32_t> expand_compress(const Call& call, Expander& expander) {
  const Tensor* condition = call.constant(1);
  if (!condition) return {};
  Steps s(expander);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < condition->count(); ++i) {
    if (condition->get_int(i) != 0) kept.push_back(i);
  }
  const bool flat = !call.attrs.has("axis");
  const auto x = flat ? s.reshape(s.in(0), {call.in(0).count()}) : s.in(0);
  return {s.add(Op::Gather, {x, s.ints(kept)},
                Attrs().set("axis", flat ? 0 : gather_axis(call).value()))};
}

Status reference_compress(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  const Tensor& from = *inputs[0];
  const Tensor& condition = *inputs[1];
  int64_t outer = 1, extent = from.count(), inner = 1;
  if (call.attrs.has("axis")) {
    TRY(const int64_t axis, gather_axis(call));
    outer = product(from.shape(), 0, static_cast<int>(axis));
    extent = from.shape()[axis];
    inner = product(from.shape(), static_cast<int>(axis) + 1, from.type().rank());
  }
  with_units(from, outputs[0], [&](auto units) {
    int64_t target = 0;
    for (int64_t block = 0; block < outer; ++block) {
      for (int64_t i = 0; i < condition.count(); ++i) {
        if (condition.get_int(i) == 0) continue;
        const int64_t source = (block * extent + i) * inner;
        for (int64_t j = 0; j < inner; ++j) units.put(target++, units.get(source + j));
      }
    }
  });
  return ok_status();
}

}  // namespace obelisk::ops

#include "ops/slice.h"

#include <algorithm>
#include <numeric>

#include "ops/moves.h"

namespace obelisk::ops {

namespace {

Types same_type(const Call& call, Shape shape) { return {{call.in(0).dtype, std::move(shape)}}; }

// ---- Slice --------------------------------------------------------------------------------------

// Along an axis, output i is input start + i * step. A step that is not made is 1: it may be any
// integer.
struct Range {
  int64_t start = 0, step = 1, count = 0;
};

Range clamp_range(int64_t start, int64_t end, int64_t step, int64_t extent) {
  if (extent == 0) return {};
  auto from_end = [&](int64_t at) { return at < 0 ? at + extent : at; };
  if (step > 0) {
    start = std::clamp<int64_t>(from_end(start), 0, extent);
    end = std::clamp<int64_t>(from_end(end), 0, extent);
    const int64_t count = end > start ? (end - start - 1) / step + 1 : 0;
    return {start, count > 1 ? step : 1, count};
  }
  start = std::clamp<int64_t>(from_end(start), 0, extent - 1);
  end = std::clamp<int64_t>(from_end(end), -1, extent - 1);
  // The step may be the least integer, whose negation does not exist.
  const int64_t count = start > end ? (end - start + 1) / step + 1 : 0;
  return {start, count > 1 ? step : 1, count};
}

Result<std::vector<Range>> slice_ranges(const Call& call) {
  const Shape& from = call.in(0).shape;
  TRY(auto starts, call.ints(1, "starts"));
  TRY(auto ends, call.ints(2, "ends"));
  std::vector<int64_t> axes(starts.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::vector<int64_t> steps(starts.size(), 1);
  if (call.has(3)) {
    TRY(axes, call.ints(3, "axes"));
  }
  if (call.has(4)) {
    TRY(steps, call.ints(4, "steps"));
  }
  if (ends.size() != starts.size() || axes.size() != starts.size() ||
      steps.size() != starts.size()) {
    return bad_call(call, fmt::format("{} starts, {} ends, {} axes, {} steps", starts.size(),
                                      ends.size(), axes.size(), steps.size()));
  }
  TRY(axes, normalize_axes(call, axes, call.in(0).rank()));
  std::vector<Range> ranges;
  for (int64_t extent : from) ranges.push_back({0, 1, extent});
  for (size_t i = 0; i < axes.size(); ++i) {
    if (steps[i] == 0) return bad_call(call, fmt::format("the step of axis {} is 0", axes[i]));
    ranges[axes[i]] = clamp_range(starts[i], ends[i], steps[i], from[axes[i]]);
  }
  return ranges;
}

Loop load_ranges(const Call& call, const Shape& to, const std::vector<Range>& ranges) {
  auto start = start_loop(to);
  auto& exprs = start.loop.exprs;
  std::vector<ExprId> at;
  for (size_t axis = 0; axis < ranges.size(); ++axis) {
    at.push_back(exprs.add(exprs.mul(start.coords[axis], ranges[axis].step), ranges[axis].start));
  }
  start.loop.body = exprs.load(0, call.in(0).dtype, std::move(at));
  return start.loop;
}

void copy_ranges(const Tensor& from, const std::vector<Range>& ranges, Tensor& to) {
  const auto strides = row_major_strides(from.shape());
  Walk walk;
  for (size_t axis = 0; axis < ranges.size(); ++axis) {
    walk.offset += ranges[axis].start * strides[axis];
    walk.strides.push_back(ranges[axis].step * strides[axis]);
  }
  copy_strided(from, walk, to, {0, row_major_strides(to.shape())}, to.shape());
}

// ---- Split --------------------------------------------------------------------------------------

struct Parts {
  int64_t axis;
  std::vector<int64_t> sizes;
};
Result<Parts> split_parts(const Call& call) {
  Parts parts;
  TRY(parts.axis, normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()));
  const int64_t extent = call.in(0).shape[parts.axis];
  if (call.has(1)) {
    TRY(parts.sizes, call.ints(1, "split"));
  } else {
    const int64_t count = call.attrs.get_int("num_outputs", call.outputs);
    if (count < 1 || count > 1 << 20) {
      return bad_call(call, fmt::format("splits into {} parts", count));
    }
    const int64_t each = (extent + count - 1) / count;
    int64_t left = extent;
    for (int64_t i = 0; i < count; ++i) {
      parts.sizes.push_back(std::min(each, left));
      left -= parts.sizes.back();
    }
  }
  int64_t sum = 0;
  for (int64_t size : parts.sizes) {
    if (size < 0 || size > extent) return bad_call(call, fmt::format("a part of size {}", size));
    sum += size;
  }
  if (sum != extent) {
    return bad_call(
        call, fmt::format("the parts have {} elements, axis {} has {}", sum, parts.axis, extent));
  }
  if (static_cast<int>(parts.sizes.size()) < call.outputs) {
    return bad_call(call, fmt::format("{} parts for {} outputs", parts.sizes.size(), call.outputs));
  }
  return parts;
}

std::vector<Range> part_ranges(const Call& call, const Parts& parts, int output) {
  std::vector<Range> ranges;
  for (int64_t extent : call.in(0).shape) ranges.push_back({0, 1, extent});
  const int64_t before =
      std::accumulate(parts.sizes.begin(), parts.sizes.begin() + output, int64_t{0});
  ranges[parts.axis] = {before, 1, parts.sizes[output]};
  return ranges;
}

}  // namespace

Result<Types> infer_slice(const Call& call) {
  TRY(auto ranges, slice_ranges(call));
  Shape shape;
  for (const Range& range : ranges) shape.push_back(range.count);
  return same_type(call, shape);
}

std::optional<Loop> loop_slice(const Call& call, int) {
  return load_ranges(call, call.out().shape, slice_ranges(call).value());
}

Status reference_slice(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  TRY(auto ranges, slice_ranges(call));
  copy_ranges(*inputs[0], ranges, outputs[0]);
  return ok_status();
}

Result<Types> infer_split(const Call& call) {
  TRY(Parts parts, split_parts(call));
  Types types;
  for (int64_t size : parts.sizes) {
    types.push_back(call.in(0));
    types.back().shape[parts.axis] = size;
  }
  return types;
}

std::optional<Loop> loop_split(const Call& call, int output) {
  const Parts parts = split_parts(call).value();
  return load_ranges(call, call.out(output).shape, part_ranges(call, parts, output));
}

Status reference_split(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  TRY(Parts parts, split_parts(call));
  for (size_t output = 0; output < outputs.size(); ++output) {
    if (outputs[output].empty()) continue;
    copy_ranges(*inputs[0], part_ranges(call, parts, static_cast<int>(output)), outputs[output]);
  }
  return ok_status();
}

// ---- Concat -------------------------------------------------------------------------------------

Result<Types> infer_concat(const Call& call) {
  TRY(const int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()));
  Type type = call.in(0);
  for (int input = 1; input < call.arity(); ++input) {
    if (!call.has(input)) return bad_call(call, fmt::format("input {} is missing", input));
    const Type& other = call.in(input);
    bool fits = other.dtype == type.dtype && other.rank() == type.rank();
    for (int d = 0; fits && d < type.rank(); ++d) {
      fits = d == axis || other.shape[d] == type.shape[d];
    }
    if (!fits) {
      return bad_call(call, fmt::format("{} and {} do not join along axis {}",
                                        to_string(call.in(0)), to_string(other), axis));
    }
    type.shape[axis] += other.shape[axis];
  }
  return Types{type};
}

std::optional<Loop> loop_concat(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const int64_t axis =
      normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()).value();
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (int input = 0; input < call.arity(); ++input) {
    begins.push_back(end);
    end += call.in(input).shape[axis];
  }
  // c < begin[1] ? load0 : c < begin[2] ? load1 : ... ; each load guarded by its own condition.
  const ExprId zero = zero_of(exprs, call.in(0).dtype);
  ExprId value = kNoExpr;
  for (int input = call.arity(); input-- > 0;) {
    const int64_t extent = call.in(input).shape[axis];
    if (extent == 0) continue;
    const ExprId coord = start.coords[axis];
    std::vector<ExprId> at = start.coords;
    at[axis] = exprs.add(coord, -begins[input]);
    const ExprId from_begin = exprs.le(exprs.integer(begins[input]), coord);
    const ExprId to_end = exprs.lt(coord, exprs.integer(begins[input] + extent));
    const bool first = begins[input] == 0, last = begins[input] + extent == end;
    if (first && last) {
      value = exprs.load(input, call.in(input).dtype, std::move(at));
      continue;
    }
    const ExprId guard = first ? to_end : last ? from_begin : exprs.both(from_begin, to_end);
    const ExprId load = exprs.load(input, call.in(input).dtype, std::move(at), guard, zero);
    value = value == kNoExpr ? load : exprs.select(to_end, load, value);
  }
  start.loop.body = value == kNoExpr ? zero : value;
  return start.loop;
}

Status reference_concat(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()));
  const auto to_strides = row_major_strides(outputs[0].shape());
  int64_t begin = 0;
  for (const Tensor* input : inputs) {
    copy_strided(*input, {0, row_major_strides(input->shape())}, outputs[0],
                 {begin * to_strides[axis], to_strides}, input->shape());
    begin += input->shape()[axis];
  }
  return ok_status();
}

// ---- DepthToSpace, SpaceToDepth -----------------------------------------------------------------

namespace {

Result<int64_t> block_size(const Call& call) {
  const int64_t block = call.attrs.get_int("blocksize", 0);
  if (call.in(0).rank() != 4) {
    return bad_call(call, fmt::format("the input {} is not [N,C,H,W]", to_string(call.in(0))));
  }
  if (block < 1 || block > 1 << 20) return bad_call(call, fmt::format("blocksize {}", block));
  return block;
}

// The channels of the deep side are (row in block, column in block, channel), or channel first
// (CRD).
bool channel_first(const Call& call) { return call.attrs.get_string("mode", "DCR") == "CRD"; }

// Strides of the deep tensor [N, C*b*b, H, W] along (n, c, h, row, w, column).
std::vector<int64_t> deep_strides(const Shape& deep, int64_t block, bool crd) {
  const auto strides = row_major_strides(deep);
  const int64_t channels = deep[1] / (block * block), plane = strides[1];
  const int64_t channel = crd ? plane * block * block : plane;
  const int64_t column = crd ? plane : plane * channels;
  return {strides[0], channel, strides[2], column * block, strides[3], column};
}
// The same of the wide tensor [N, C, H*b, W*b].
std::vector<int64_t> wide_strides(const Shape& wide, int64_t block) {
  const auto strides = row_major_strides(wide);
  return {strides[0], strides[1], strides[2] * block, strides[2], strides[3] * block, strides[3]};
}

}  // namespace

Result<Types> infer_depth_to_space(const Call& call) {
  TRY(const int64_t block, block_size(call));
  const Shape& from = call.in(0).shape;
  if (from[1] % (block * block) != 0) {
    return bad_call(call,
                    fmt::format("{} channels are not a multiple of {} squared", from[1], block));
  }
  return same_type(call, {from[0], from[1] / (block * block), from[2] * block, from[3] * block});
}

Result<Types> infer_space_to_depth(const Call& call) {
  TRY(const int64_t block, block_size(call));
  const Shape& from = call.in(0).shape;
  if (from[2] % block != 0 || from[3] % block != 0) {
    return bad_call(
        call, fmt::format("{} is not a multiple of {} high and wide", to_string(from), block));
  }
  int64_t channels = 0;
  if (__builtin_mul_overflow(from[1], block * block, &channels)) {
    return bad_call(call, fmt::format("{} channels of {} squared", from[1], block));
  }
  return same_type(call, {from[0], channels, from[2] / block, from[3] / block});
}

std::optional<Loop> loop_depth_to_space(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const int64_t block = block_size(call).value();
  const auto& at = start.coords;
  const ExprId in_block =
      exprs.add(exprs.mul(exprs.mod(at[2], block), block), exprs.mod(at[3], block));
  const ExprId channel = channel_first(call)
                             ? exprs.add(exprs.mul(at[1], block * block), in_block)
                             : exprs.add(exprs.mul(in_block, call.out().shape[1]), at[1]);
  start.loop.body = exprs.load(0, call.in(0).dtype,
                               {at[0], channel, exprs.div(at[2], block), exprs.div(at[3], block)});
  return start.loop;
}

std::optional<Loop> loop_space_to_depth(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const int64_t block = block_size(call).value();
  const int64_t channels = std::max<int64_t>(call.in(0).shape[1], 1);
  const auto& at = start.coords;
  const bool first = channel_first(call);
  const ExprId in_block = first ? exprs.mod(at[1], block * block) : exprs.div(at[1], channels);
  const ExprId channel = first ? exprs.div(at[1], block * block) : exprs.mod(at[1], channels);
  start.loop.body =
      exprs.load(0, call.in(0).dtype,
                 {at[0], channel, exprs.add(exprs.mul(at[2], block), exprs.div(in_block, block)),
                  exprs.add(exprs.mul(at[3], block), exprs.mod(in_block, block))});
  return start.loop;
}

Status reference_depth_to_space(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const int64_t block, block_size(call));
  const Shape& deep = inputs[0]->shape();
  const Shape& wide = outputs[0].shape();
  copy_strided(*inputs[0], {0, deep_strides(deep, block, channel_first(call))}, outputs[0],
               {0, wide_strides(wide, block)}, {wide[0], wide[1], deep[2], block, deep[3], block});
  return ok_status();
}

Status reference_space_to_depth(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const int64_t block, block_size(call));
  const Shape& wide = inputs[0]->shape();
  const Shape& deep = outputs[0].shape();
  copy_strided(*inputs[0], {0, wide_strides(wide, block)}, outputs[0],
               {0, deep_strides(deep, block, channel_first(call))},
               {wide[0], wide[1], deep[2], block, deep[3], block});
  return ok_status();
}

}  // namespace obelisk::ops

#include "ops/block.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "ops/moves.h"

namespace obelisk::ops {

namespace {

template <typename Params>
std::vector<int64_t> words_of(const Params& params) {
  static_assert(sizeof(Params) % sizeof(int64_t) == 0);
  std::vector<int64_t> words(sizeof(Params) / sizeof(int64_t));
  std::memcpy(words.data(), &params, sizeof(Params));
  return words;
}

int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

int64_t fold_of(const Call& call) {
  const std::string name = call.attrs.get_string("reduction", "none");
  return name == "add"   ? OBK_ADD
         : name == "mul" ? OBK_MUL
         : name == "max" ? OBK_MAX
         : name == "min" ? OBK_MIN
                         : OBK_REPLACE;
}

// Cuts `extent` into at most `pieces` pieces of some size.
int64_t ranges_of(int64_t extent, int64_t pieces) {
  constexpr int64_t kLeast = 64;  // elements; less is not worth reading all updates for
  return std::clamp<int64_t>(extent / kLeast, 1, std::max<int64_t>(pieces, 1));
}

Block top_k(const Call& call) {
  const Shape& shape = call.in(0).shape;
  const int axis = static_cast<int>(
      normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank()).value());
  const int64_t inner = product(shape, axis + 1, call.in(0).rank());
  const ObkTopK params{shape[axis], inner, call.out().shape[axis],
                       call.attrs.get_int("largest", 1) != 0};
  return {"order.h", "top_k", {call.in(0).dtype}, words_of(params), product(shape, 0, axis) * inner,
          2};
}

std::optional<Block> scan(const Call& call) {
  const Shape& shape = call.in(0).shape;
  int axis = 0;
  if (shape.size() > 1) {
    const Tensor* given = call.constant(1);
    if (!given) return std::nullopt;
    axis = static_cast<int>(normalize_axis(call, given->get_int(0), call.in(0).rank()).value());
  }
  const int64_t inner = product(shape, axis + 1, call.in(0).rank());
  const ObkScan params{shape[axis], inner, call.op == Op::CumProd ? OBK_MUL : OBK_ADD,
                       call.attrs.get_int("exclusive", 0) != 0,
                       call.attrs.get_int("reverse", 0) != 0};
  return Block{
      "order.h", "scan", {call.in(0).dtype}, words_of(params), product(shape, 0, axis) * inner, 2};
}

Block scatter_elements(const Call& call, int64_t pieces) {
  const Shape& shape = call.in(0).shape;
  const Shape& updates = call.in(1).shape;
  const auto strides = row_major_strides(shape), update_strides = row_major_strides(updates);
  const int64_t axis =
      normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()).value();
  ObkScatterElements params{};
  params.fold = fold_of(call);
  params.extent = shape[axis];
  params.stride = strides[axis];
  params.update_extent = updates[axis];
  params.update_stride = update_strides[axis];
  int64_t lines = 1;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (d == axis) continue;
    lines *= shape[d];
    params.shape[params.rank] = shape[d];
    params.strides[params.rank] = strides[d];
    params.update_shape[params.rank] = updates[d];
    params.update_strides[params.rank] = update_strides[d];
    ++params.rank;
  }
  params.ranges = ranges_of(params.extent, lines > 0 ? pieces / lines : 1);
  return {"scatter.h",      "scatter_elements",    {call.in(0).dtype, call.in(1).dtype},
          words_of(params), lines * params.ranges, 3};
}

Block scatter_nd(const Call& call, int64_t pieces) {
  const Shape& shape = call.in(0).shape;
  ObkScatterNd params{};
  params.fold = fold_of(call);
  params.depth = call.in(1).shape.back();
  const int depth = static_cast<int>(params.depth);
  params.tuples = product(call.in(1).shape, 0, call.in(1).rank() - 1);
  params.slices = product(shape, 0, depth);
  params.inner = product(shape, depth, call.in(0).rank());
  int64_t stride = 1;
  for (int d = depth; d-- > 0;) {
    params.extents[d] = shape[d];
    params.strides[d] = stride;
    stride *= shape[d];
  }
  // Columns first: they cost no reading twice.
  params.inner_ranges = ranges_of(params.inner, pieces);
  params.slice_ranges =
      ranges_of(params.slices * params.inner / params.inner_ranges, pieces / params.inner_ranges);
  params.slice_ranges =
      std::clamp<int64_t>(params.slice_ranges, 1, std::max<int64_t>(params.slices, 1));
  return {"scatter.h",
          "scatter_nd",
          {call.in(0).dtype, call.in(1).dtype},
          words_of(params),
          params.inner_ranges * params.slice_ranges,
          3};
}

Block max_unpool(const Call& call, int64_t pieces) {
  const Shape& from = call.in(0).shape;
  const auto kernel = call.attrs.get_ints("kernel_shape");
  const size_t spatial = kernel.size();
  const auto steps = call.attrs.get_ints("strides", std::vector<int64_t>(spatial, 1));
  const auto pads = call.attrs.get_ints("pads", std::vector<int64_t>(2 * spatial, 0));
  Shape inner{from[0], from[1]};
  for (size_t d = 0; d < spatial; ++d) {
    inner.push_back((from[d + 2] - 1) * steps[d] - pads[d] - pads[d + spatial] + kernel[d]);
  }
  ObkMaxUnpool params{};
  params.count = call.in(0).count();
  params.inner_count = element_count(inner);
  params.size = call.out().count();
  params.ranges = ranges_of(params.size, pieces);
  params.rank = static_cast<int64_t>(inner.size());
  const auto strides = row_major_strides(inner), to_strides = row_major_strides(call.out().shape);
  std::copy(strides.begin(), strides.end(), params.strides);
  std::copy(to_strides.begin(), to_strides.end(), params.to_strides);
  return {"scatter.h",      "max_unpool",  {call.in(0).dtype, call.in(1).dtype},
          words_of(params), params.ranges, 3};
}

// Not more ranges than give each a cache line of its own and then some.
int64_t copy_ranges(int64_t bytes, int64_t pieces) {
  return std::clamp<int64_t>(bytes / 1024, 1, std::max<int64_t>(pieces, 1));
}

Block bit_cast(const Call& call, int64_t pieces) {
  const int64_t bytes = call.out().bytes();
  const ObkRanges params{bytes, copy_ranges(bytes, pieces)};
  return {"convert.h", "copy_units", {DType::u8}, words_of(params), params.ranges, 1};
}

std::optional<Block> cast_to_powers(const Call& call, int64_t pieces) {
  if (call.out().dtype != DType::f8e8m0) return std::nullopt;
  const std::string mode = call.attrs.get_string("round_mode", "up");
  const int64_t count = call.out().count();
  const ObkPowers params{count, copy_ranges(count, pieces),
                         mode == "up"     ? OBK_UP
                         : mode == "down" ? OBK_DOWN
                                          : OBK_NEAREST,
                         call.attrs.get_int("saturate", 1) != 0};
  return Block{
      "convert.h", "cast_to_powers", {call.in(0).dtype}, words_of(params), params.ranges, 1};
}

std::optional<Block> mel_weight_matrix(const Call& call) {
  const Tensor* length = call.constant(1);
  if (!length || bits(call.out().dtype) < 8 || call.in(3).dtype != call.in(4).dtype)
    return std::nullopt;
  const ObkMel params{call.out().shape[1], length->get_int(0), call.out().shape[0]};
  return Block{"convert.h",
               "mel_filter",
               {call.out().dtype, call.in(2).dtype, call.in(3).dtype},
               words_of(params),
               params.bins,
               5};
}

Block roi_align(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& to = call.out().shape;
  const bool half =
      call.attrs.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const ObkRoiAlign params{image[0],
                           image[1],
                           image[2],
                           image[3],
                           to[2],
                           to[3],
                           call.attrs.get_int("sampling_ratio", 0),
                           half,
                           call.attrs.get_string("mode", "avg") == "max",
                           bits_of(call.attrs.get_float("spatial_scale", 1))};
  return {"region.h",       "roi_align",        {call.in(0).dtype, call.in(2).dtype},
          words_of(params), call.out().count(), 3};
}

Block max_roi_pool(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& to = call.out().shape;
  const ObkMaxRoiPool params{image[0],
                             image[1],
                             image[2],
                             image[3],
                             to[2],
                             to[3],
                             bits_of(call.attrs.get_float("spatial_scale", 1))};
  return {"region.h", "max_roi_pool", {call.in(0).dtype}, words_of(params), call.out().count(), 2};
}

}  // namespace

std::optional<Block> block(const Call& call, int64_t pieces) {
  if (call.op == Op::BitCast) return bit_cast(call, pieces);
  if (call.op == Op::Cast || call.op == Op::CastLike) return cast_to_powers(call, pieces);
  if (call.op == Op::MelWeightMatrix) return mel_weight_matrix(call);
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) continue;
    // Elements that share a byte would be written by two items.
    if (bits(call.in(input).dtype) < 8 || call.in(input).rank() > OBK_RANK) return std::nullopt;
  }
  switch (call.op) {
    case Op::TopK:
      return top_k(call);
    case Op::CumSum:
    case Op::CumProd:
      return scan(call);
    case Op::ScatterElements:
      return scatter_elements(call, pieces);
    case Op::ScatterND:
      return scatter_nd(call, pieces);
    case Op::MaxUnpool:
      return max_unpool(call, pieces);
    case Op::RoiAlign:
      return roi_align(call);
    case Op::MaxRoiPool:
      return max_roi_pool(call);
    case Op::Det: {
      const int64_t n = call.in(0).shape.back();
      if (n > OBK_DET) return std::nullopt;
      return Block{"region.h", "det", {call.in(0).dtype}, {n}, call.out().count(), 1};
    }
    default:
      return std::nullopt;
  }
}

}  // namespace obelisk::ops

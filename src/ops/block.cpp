#include "ops/block.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "ops/moves.h"
#include "ops/recurrence.h"
#include "ops/squeeze_excite.h"

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
  return Block{"convert.h",      "cast_to_powers", {call.in(0).dtype},
               words_of(params), params.ranges,    1};
}

std::optional<Block> mel_weight_matrix(const Call& call) {
  const Tensor* length = call.constant(1);
  if (!length || bits(call.out().dtype) < 8 || call.in(3).dtype != call.in(4).dtype)
    return std::nullopt;
  const ObkMel params{call.out().shape[1], length->get_int(0), call.out().shape[0]};
  return Block{
      "convert.h",      "mel_filter", {call.out().dtype, call.in(2).dtype, call.in(3).dtype},
      words_of(params), params.bins,  5};
}

/// All steps of a direction for up to 8 sequences by a gang: each member keeps its units' rows of R
/// in registers for as long as the steps last, as far as they fit, and the state goes around
/// through memory. One member where all rows fit, for then nothing is exchanged.
std::optional<Block> recurrence(const Call& call, const Gangs& gangs) {
  const RecurrenceShape shape = *recurrence_shape(call);
  const DType type = call.in(kFedRecurrence).dtype;
  const bool half = is_half(type);
  if (call.in(kFed).dtype != DType::f32 || !(half || type == DType::f32)) return std::nullopt;
  for (int input : {kFedInitialH, kFedInitialC})
    if (call.has(input) && call.in(input).dtype != type) return std::nullopt;
  if (call.has(kHiddenBias) && call.in(kHiddenBias).dtype != DType::f32) return std::nullopt;
  if (shape.length == 0 || shape.batch == 0 || shape.hidden == 0) return std::nullopt;
  // Registers of a thread that hold R: tiles of 4 units by 4 gates, eight side by side.
  const auto registers = [&](int gang) {
    const int64_t units = obk_recurrent_units(shape.hidden, gang), tiles = (units + 31) / 32;
    return half ? tiles * ((shape.hidden + 31) / 32) * 8
                : tiles * ((shape.hidden + 127) / 128) * 64;
  };
  const bool threads = gangs.registers > 0;
  const int gang =
      gangs.most > 1 && registers(1) > gangs.registers ? gangs.most : std::min(gangs.most, 1);
  const machine::RecurrenceCosts& costs = gangs.costs;
  // A gang's step reads what has no place again.
  if (gang < 1 ||
      (threads && registers(gang) > (gang > 1 ? costs.most_registers : gangs.registers)))
    return std::nullopt;
  const int64_t batch = std::min<int64_t>(shape.batch, OBK_RECURRENT_BATCH);
  const int64_t parts = shape.directions * ((shape.batch + batch - 1) / batch);
  const ObkRecurrent params{shape.length, shape.batch, shape.directions, shape.first_backwards};
  Block block{"recurrence.h", "recurrence", {type}, words_of(params), parts * gang, 6};
  block.gang = gang;
  block.constants = {shape.gates, shape.hidden, gang, batch};
  if (!threads) {
    block.scratch = batch * shape.hidden * obk_recurrent_floats(shape.gates) * 4;
    const double macs =
        static_cast<double>(shape.length * batch * shape.gates * shape.hidden * shape.hidden);
    block.nanos = macs / costs.multiply_adds_a_nano;
    return block;
  }
  block.exchange = parts * (gang + 2 * batch * shape.hidden) * 8;
  block.scratch = obk_recurrent_scratch(shape.hidden, batch, half ? 2 : 4);
  const double multiply = half ? costs.register_16 : costs.register_32 * static_cast<double>(batch);
  const int64_t again = std::max<int64_t>(registers(gang) - gangs.registers, 0);
  block.nanos = costs.begin +
                static_cast<double>(shape.length) * (gang > 1 ? costs.exchange_step : costs.step) +
                static_cast<double>(shape.length * registers(gang)) * multiply +
                static_cast<double>(shape.length * again) * costs.register_read_again;
  return block;
}

/// An image by a cluster, which keeps it in shared memory from its sums to its product with the
/// gates. Nothing for images beyond that, and where vectors of 16 bytes would hold channels of two
/// pixels.
std::optional<Block> squeeze_excite(const Call& call, const Gangs& gangs) {
  const SqueezeExciteShape shape = *squeeze_excite_shape(call);
  const DType type = call.in(kExcited).dtype;
  if (!gangs.own_kernels || gangs.most < OBK_EXCITE_GANG || !(is_half(type) || type == DType::f32))
    return std::nullopt;
  const int64_t size = byte_size(type, 1), vectors = shape.channels * size / 16;
  if (shape.images == 0 || shape.pixels == 0 || shape.squeezed == 0 ||
      vectors * 16 != shape.channels * size || vectors == 0 ||
      obk_excite_own(vectors) > OBK_EXCITE_THREADS)
    return std::nullopt;
  const int64_t each = obk_excite_each(shape.pixels, vectors);
  const int64_t scratch = obk_excite_scratch(shape.pixels, vectors, shape.squeezed, size);
  constexpr int64_t kRoom = 4096;  // for what a kernel keeps beside its body's scratchpad
  if (scratch + kRoom > gangs.scratchpad) return std::nullopt;
  const std::string activation = call.attrs.get_string("activation", "Relu");
  const ObkSqueezeExcite params{shape.images, bits_of(call.attrs.get_float("alpha", 0.2)),
                                bits_of(call.attrs.get_float("beta", 0.5))};
  Block block{"squeeze_excite.h",
              "squeeze_excite",
              {type},
              words_of(params),
              shape.images * OBK_EXCITE_GANG,
              5};
  block.gang = OBK_EXCITE_GANG;
  block.constants = {
      shape.pixels, shape.channels, shape.squeezed,
      activation == "Relu"    ? OBK_RELU
      : activation == "Swish" ? OBK_SWISH
                              : OBK_HARD_SWISH,
      call.attrs.get_string("gate", "Sigmoid") == "Sigmoid" ? OBK_SIGMOID : OBK_HARD_SIGMOID};
  block.scratch = scratch;
  block.before_kernel = true;
  const machine::ExciteCosts& costs = gangs.excite;
  block.nanos = costs.begin + costs.vector * static_cast<double>(each) +
                costs.weight * static_cast<double>(shape.squeezed * obk_excite_own(vectors));
  return block;
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

std::optional<Block> block(const Call& call, int64_t pieces, const Gangs& gangs) {
  if (call.op == Op::Recurrence) return recurrence(call, gangs);
  if (call.op == Op::SqueezeExcite) return squeeze_excite(call, gangs);
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

std::optional<Block> block_in_place(const Call& call, int64_t pieces) {
  if (call.op != Op::ScatterElements && call.op != Op::ScatterND) return std::nullopt;
  std::optional<Block> made = block(call, pieces);
  if (!made) return std::nullopt;
  constexpr int64_t kFew = 256;  // updates that each item may read, all of them
  if (call.op == Op::ScatterElements) {
    ObkScatterElements params;
    std::memcpy(&params, made->params.data(), sizeof params);
    if (params.update_extent <= kFew) params.ranges = 1;
    int64_t lines = 1;  // those that have updates
    for (int64_t d = 0; d < params.rank; ++d) lines *= params.shape[d] = params.update_shape[d];
    made->params = words_of(params), made->items = lines * params.ranges;
    return made;
  }
  ObkScatterNd params;
  std::memcpy(&params, made->params.data(), sizeof params);
  if (params.tuples <= kFew) {  // little to read: a column or more an item, of all slices
    params.slice_ranges = 1;
    params.inner_ranges = std::clamp<int64_t>(params.inner, 1, std::max<int64_t>(pieces, 1));
  }
  made->params = words_of(params), made->items = params.inner_ranges * params.slice_ranges;
  return made;
}

}  // namespace obelisk::ops

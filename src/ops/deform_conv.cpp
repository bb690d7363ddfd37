// DeformConv: every element of the window is read at its place plus an offset from a tensor, by
// linear interpolation between the 2^d corners; corners outside of the input count as zero.
#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/conv.h"
#include "ops/dtype_set.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr int kX = 0, kW = 1, kOffset = 2, kBias = 3, kMask = 4;

struct DeformShape {
  ConvShape conv;
  int64_t offset_groups = 1, group_channels = 0;  // channels of X per offset group
};

Result<DeformShape> deform_shape(const Call& call) {
  DeformShape deform;
  TRY(deform.conv, conv_shape(call, kX, kW));
  const ConvShape& conv = deform.conv;
  deform.offset_groups = call.attrs.get_int("offset_group", 1);
  if (deform.offset_groups < 1 || deform.offset_groups > std::max<int64_t>(conv.inputs, 1) ||
      conv.inputs % deform.offset_groups != 0) {
    return bad_call(
        call, fmt::format("{} channels in {} offset groups", conv.inputs, deform.offset_groups));
  }
  deform.group_channels = conv.inputs / deform.offset_groups;
  auto wanted = [&](int64_t channels) {
    Shape shape{conv.batch, channels};
    shape.insert(shape.end(), conv.window.out.begin(), conv.window.out.end());
    return shape;
  };
  const int rank = conv.window.rank();
  constexpr int kMostAxes = 8;  // chosen: a place has 2^rank corners
  if (rank > kMostAxes)
    return unsupported_call(call, fmt::format("{} spatial axes", rank),
                            fmt::format("at most {} are supported", kMostAxes));
  int64_t points = 0, offsets = 0;
  if (__builtin_mul_overflow(deform.offset_groups, conv.window.kernel_count(), &points) ||
      __builtin_mul_overflow(points, rank, &offsets))
    return bad_call(call, fmt::format("{} offset groups of a kernel {}", deform.offset_groups,
                                      to_string(conv.window.kernel)));
  const Shape offset = wanted(offsets), mask = wanted(points);
  if (call.in(kOffset).shape != offset) {
    return bad_call(call, fmt::format("offset {}, wanted {}", to_string(call.in(kOffset).shape),
                                      to_string(offset)));
  }
  if (call.has(kMask) && call.in(kMask).shape != mask) {
    return bad_call(
        call, fmt::format("mask {}, wanted {}", to_string(call.in(kMask).shape), to_string(mask)));
  }
  if (call.has(kBias) && call.in(kBias).shape != Shape{conv.outputs}) {
    return bad_call(call, fmt::format("bias {} for {} output channels",
                                      to_string(call.in(kBias).shape), conv.outputs));
  }
  return deform;
}

}  // namespace

Result<Types> infer_deform_conv(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kFloats));
  TRY(const DeformShape deform, deform_shape(call));
  return Types{{dtype, deform.conv.output}};
}

std::optional<Loop> loop_deform_conv(const Call& call, int) {
  const DeformShape deform = *deform_shape(call);
  const Window& window = deform.conv.window;
  const int rank = window.rank();
  ConvLoop conv = start_conv(deform.conv);
  Exprs& exprs = conv.loop.exprs;
  const DType dtype = call.in(kX).dtype, real = compute_type(dtype);
  ExprId flat = exprs.integer(0);  // the kernel's element
  for (int axis = 0; axis < rank; ++axis)
    flat = exprs.add(exprs.mul(flat, window.kernel[axis]), conv.w[2 + axis]);
  const ExprId group = exprs.div(conv.x[1], deform.group_channels);
  const ExprId point = exprs.add(exprs.mul(group, window.kernel_count()), flat);
  auto at_output = [&](ExprId channel) {
    std::vector<ExprId> at{conv.x[0], channel};
    for (int axis = 0; axis < rank; ++axis) at.push_back(exprs.coord(2 + axis, window.out[axis]));
    return at;
  };
  std::vector<ExprId> low,
      fraction;  // per axis: the corner below, and how far the place is above it
  for (int axis = 0; axis < rank; ++axis) {
    const ExprId channel = exprs.add(exprs.mul(point, int64_t{rank}), int64_t{axis});
    const ExprId offset = exprs.load(kOffset, dtype, at_output(channel));
    const ExprId place = exprs.add(exprs.cast(conv.x[2 + axis], real), offset);
    const ExprId floor = exprs.unary(Scalar::kFloor, place);
    // Far places, NaN among them, are drawn to just outside, so that the conversion to an index is
    // defined.
    ExprId bounded = exprs.binary(Scalar::kMax, floor, exprs.constant(real, -2));
    bounded = exprs.binary(Scalar::kMin, bounded,
                           exprs.constant(real, static_cast<double>(window.in[axis] + 1)));
    low.push_back(exprs.cast(bounded, DType::i64));
    fraction.push_back(exprs.sub(place, floor));
  }
  ExprId value = kNoExpr;
  for (int corner = 0; corner < 1 << rank; ++corner) {
    std::vector<ExprId> at{conv.x[0], conv.x[1]};
    ExprId guard = kNoExpr, weight = kNoExpr;
    for (int axis = 0; axis < rank; ++axis) {
      const bool upper = corner >> axis & 1;
      const ExprId place = exprs.add(low[axis], int64_t{upper});
      at.push_back(place);
      guard = both_guards(exprs, guard, exprs.le(exprs.integer(0), place));
      guard = both_guards(exprs, guard, exprs.lt(place, exprs.integer(window.in[axis])));
      const ExprId share =
          upper ? fraction[axis] : exprs.sub(exprs.constant(real, 1), fraction[axis]);
      weight = weight == kNoExpr ? share : exprs.mul(weight, share);
    }
    const ExprId zero = zero_of(exprs, dtype);
    // Outside, the product is zero whatever the weight is.
    const ExprId term =
        exprs.select(guard, exprs.mul(exprs.load(kX, dtype, at, guard, zero), weight), zero);
    value = value == kNoExpr ? term : exprs.add(value, term);
  }
  if (call.has(kMask)) value = exprs.mul(value, exprs.load(kMask, dtype, at_output(point)));
  conv.loop.body = exprs.mul(value, exprs.load(kW, dtype, conv.w));
  if (call.has(kBias))
    conv.loop.finish = exprs.add(exprs.acc(dtype), exprs.load(kBias, dtype, {conv.channel}));
  return std::move(conv.loop);
}

Status reference_deform_conv(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs) {
  TRY(const DeformShape deform, deform_shape(call));
  const ConvShape& conv = deform.conv;
  const Window& window = conv.window;
  const int rank = window.rank();
  const std::vector<double> x = read_reals(*inputs[kX]), w = read_reals(*inputs[kW]);
  const std::vector<double> offset = read_reals(*inputs[kOffset]);
  const std::vector<double> mask =
      call.has(kMask) ? read_reals(*inputs[kMask]) : std::vector<double>{};
  const int64_t in_count = element_count(window.in), out_count = element_count(window.out);
  const int64_t kernel_count = window.kernel_count();

  /// x[image, channel] at a place between elements.
  auto sample = [&](int64_t image, int64_t channel, const std::vector<double>& place) {
    const double* from = x.data() + (image * conv.inputs + channel) * in_count;
    double sum = 0;
    for (int corner = 0; corner < 1 << rank; ++corner) {
      double weight = 1;
      int64_t flat = 0;
      bool inside = true;
      for (int axis = 0; axis < rank; ++axis) {
        const double floor = std::floor(place[axis]), upper = corner >> axis & 1;
        const double at = floor + upper, share = place[axis] - floor;
        weight *= upper != 0 ? share : 1 - share;
        inside = inside && at >= 0 && at < static_cast<double>(window.in[axis]);
        flat = flat * window.in[axis] + (inside ? static_cast<int64_t>(at) : 0);
      }
      if (inside) sum += weight * from[flat];
    }
    return sum;
  };

  // Columns as of a plain convolution, but sampled; then weights times columns, one group at a
  // time.
  std::vector<double> out(conv.batch * conv.outputs * out_count, 0.0), place(rank);
  for (int64_t image = 0; image < conv.batch; ++image)
    for (int64_t channel = 0; channel < conv.inputs; ++channel) {
      const int64_t group = channel / conv.group_inputs, inner = channel % conv.group_inputs;
      const int64_t deformed = channel / deform.group_channels;
      for (int64_t kernel = 0; kernel < kernel_count; ++kernel) {
        const int64_t point = deformed * kernel_count + kernel;
        const int64_t points = deform.offset_groups * kernel_count;
        int64_t flat_out = 0;
        for_each_point(window.out, [&](const std::vector<int64_t>& at) {
          int64_t rest = kernel;
          for (int axis = rank - 1; axis >= 0; --axis) {
            const int64_t k = rest % window.kernel[axis];
            rest /= window.kernel[axis];
            const int64_t row = (image * points + point) * rank + axis;
            place[axis] = static_cast<double>(window.position(axis, at[axis], k)) +
                          offset[row * out_count + flat_out];
          }
          double value = sample(image, channel, place);
          if (!mask.empty()) value *= mask[(image * points + point) * out_count + flat_out];
          for (int64_t o = 0; o < conv.group_outputs; ++o) {
            const int64_t output = group * conv.group_outputs + o;
            out[(image * conv.outputs + output) * out_count + flat_out] +=
                value * w[(output * conv.group_inputs + inner) * kernel_count + kernel];
          }
          ++flat_out;
        });
      }
    }
  if (call.has(kBias)) add_bias(out, conv, read_reals(*inputs[kBias]));
  write_reals(outputs[0], out);
  return ok_status();
}

}  // namespace obelisk::ops

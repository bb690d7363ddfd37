// ConvInteger and QLinearConv: the sum runs over (x - zero) * (w - zero), and the border counts as
// x = zero.
#include "ops/arrays.h"
#include "ops/conv.h"
#include "ops/dtype_set.h"
#include "ops/moves.h"
#include "ops/quantized_product.h"

namespace obelisk::ops {
namespace {

constexpr DTypeSet kBytes = dtype_set({DType::i8, DType::u8});

struct Slots {
  int x, x_scale, x_zero, w, w_scale, w_zero;
};
constexpr Slots kInteger{0, -1, 2, 1, -1, 3};
constexpr Slots kLinear{0, 1, 2, 3, 4, 5};
constexpr int kOutScale = 6, kOutZero = 7, kBias = 8;

/// Parameters of W vary along output channels only.
Result<Shape> parameter_of_w(const Call& call, const ConvShape& shape, int input) {
  std::vector<int> summed;
  for (int axis = 1; axis < static_cast<int>(shape.w.size()); ++axis) summed.push_back(axis);
  return aligned_parameter(call, input, "the parameter of W", shape.w, 0, summed);
}

Status check_single(const Call& call, int input, std::string_view what) {
  if (input >= 0 && call.has(input) && call.in(input).count() != 1) {
    return bad_call(
        call, fmt::format("{} {} must be one element", what, to_string(call.in(input).shape)));
  }
  return ok_status();
}

Result<ConvShape> check_parameters(const Call& call, const Slots& slots) {
  for (int input : {slots.x, slots.w}) TRY_STATUS(check_dtype(call, input, kBytes));
  TRY(ConvShape shape, conv_shape(call, slots.x, slots.w));
  TRY_STATUS(check_single(call, slots.x_scale, "the scale of X"));
  TRY_STATUS(check_single(call, slots.x_zero, "the zero point of X"));
  for (int input : {slots.w_scale, slots.w_zero}) {
    if (input < 0 || !call.has(input)) continue;
    if (auto aligned = parameter_of_w(call, shape, input); !aligned.ok()) return aligned.error();
  }
  return shape;
}

ConvLoop loop_of_sum(const Call& call, const ConvShape& shape, const Slots& slots) {
  ConvLoop conv = start_conv(shape);
  Exprs& exprs = conv.loop.exprs;
  const DType x_type = call.in(slots.x).dtype;
  ExprId zero = zero_of(exprs, x_type);
  if (call.has(slots.x_zero)) zero = load_parameter(exprs, call, slots.x_zero, {}, {});
  ExprId x = exprs.cast(exprs.load(slots.x, x_type, conv.x, conv.guard, zero), DType::i32);
  if (call.has(slots.x_zero)) x = exprs.sub(x, exprs.cast(zero, DType::i32));
  ExprId w = exprs.cast(exprs.load(slots.w, call.in(slots.w).dtype, conv.w), DType::i32);
  if (call.has(slots.w_zero)) {
    const Shape aligned = *parameter_of_w(call, shape, slots.w_zero);
    const ExprId point = load_parameter(exprs, call, slots.w_zero, aligned, conv.w);
    w = exprs.sub(w, exprs.cast(point, DType::i32));
  }
  conv.loop.body = exprs.mul(x, w);
  return conv;
}

Result<std::vector<double>> sum_in_doubles(const Call& call, const ConvShape& shape,
                                           const Slots& slots,
                                           std::span<const Tensor* const> inputs) {
  std::vector<double> x = read_reals(*inputs[slots.x]), w = read_reals(*inputs[slots.w]);
  if (call.has(slots.x_zero))
    subtract_parameter(x, shape.x, *inputs[slots.x_zero], Shape(shape.x.size(), 1));
  if (call.has(slots.w_zero)) {
    TRY(const Shape aligned, parameter_of_w(call, shape, slots.w_zero));
    subtract_parameter(w, shape.w, *inputs[slots.w_zero], aligned);
  }
  return convolve(shape, x, w);
}

}  // namespace

// ---- ConvInteger --------------------------------------------------------------------------------

Result<Types> infer_conv_integer(const Call& call) {
  TRY(const ConvShape shape, check_parameters(call, kInteger));
  return Types{{DType::i32, shape.output}};
}

std::optional<Loop> loop_conv_integer(const Call& call, int) {
  return std::move(loop_of_sum(call, *conv_shape(call, 0, 1), kInteger).loop);
}

Status reference_conv_integer(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs) {
  TRY(const ConvShape shape, conv_shape(call, kInteger.x, kInteger.w));
  TRY(const std::vector<double> sums, sum_in_doubles(call, shape, kInteger, inputs));
  write_ints(outputs[0], std::vector<int64_t>(sums.begin(), sums.end()));
  return ok_status();
}

// ---- QLinearConv --------------------------------------------------------------------------------

Result<Types> infer_qlinear_conv(const Call& call) {
  TRY_STATUS(check_dtype(call, kOutZero, kBytes));
  TRY(const ConvShape shape, check_parameters(call, kLinear));
  TRY_STATUS(check_single(call, kOutScale, "the scale of Y"));
  TRY_STATUS(check_single(call, kOutZero, "the zero point of Y"));
  if (call.has(kBias)) {
    TRY_STATUS(check_dtype(call, kBias, dtype_set({DType::i32})));
    if (call.in(kBias).shape != Shape{shape.outputs}) {
      return bad_call(call, fmt::format("bias {} for {} output channels",
                                        to_string(call.in(kBias).shape), shape.outputs));
    }
  }
  return Types{{call.in(kOutZero).dtype, shape.output}};
}

Cost cost_qlinear_conv(const Call& call) {
  const ConvShape shape = *conv_shape(call, kLinear.x, kLinear.w);
  Cost cost = cost_move(call);
  cost.flops = {2 * static_cast<double>(shape.group_inputs) *
                static_cast<double>(shape.window.kernel_count()) *
                static_cast<double>(call.out().count())};
  return cost;
}

std::optional<Loop> loop_qlinear_conv(const Call& call, int) {
  const ConvShape shape = *conv_shape(call, kLinear.x, kLinear.w);
  ConvLoop conv = loop_of_sum(call, shape, kLinear);
  Exprs& exprs = conv.loop.exprs;
  const ExprId x_scale = load_parameter(exprs, call, kLinear.x_scale, {}, {});
  const ExprId w_scale = load_parameter(exprs, call, kLinear.w_scale,
                                        *parameter_of_w(call, shape, kLinear.w_scale), conv.w);
  const ExprId y_scale = load_parameter(exprs, call, kOutScale, {}, {});
  ExprId sum = exprs.acc(DType::i32);
  if (call.has(kBias)) sum = exprs.add(sum, exprs.load(kBias, DType::i32, {conv.channel}));
  conv.loop.finish = quantize(exprs, sum, exprs.div(exprs.mul(x_scale, w_scale), y_scale),
                              load_parameter(exprs, call, kOutZero, {}, {}), call.out().dtype);
  return std::move(conv.loop);
}

Status reference_qlinear_conv(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs) {
  TRY(const ConvShape shape, conv_shape(call, kLinear.x, kLinear.w));
  TRY(std::vector<double> sums, sum_in_doubles(call, shape, kLinear, inputs));
  if (call.has(kBias)) add_bias(sums, shape, read_reals(*inputs[kBias]));
  const std::vector<double> w_scale = read_reals(*inputs[kLinear.w_scale]);
  const double x_scale = inputs[kLinear.x_scale]->get_double(0);
  const double y_scale = inputs[kOutScale]->get_double(0);
  const double zero = inputs[kOutZero]->get_double(0);
  const int64_t each = element_count(shape.window.out);
  for (size_t at = 0; at < sums.size(); ++at) {
    const int64_t channel = static_cast<int64_t>(at) / each % shape.outputs;
    const double scale = x_scale * w_scale[w_scale.size() == 1 ? 0 : channel] / y_scale;
    sums[at] = quantize(sums[at] * scale, zero, call.out().dtype);
  }
  write_ints(outputs[0], std::vector<int64_t>(sums.begin(), sums.end()));
  return ok_status();
}

}  // namespace obelisk::ops

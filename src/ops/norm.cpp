// Shape rules, costs, and how norms are decomposed into simpler ops. The references are in
// norm_reference.cpp.
#include "ops/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/dtype_set.h"
#include "ops/expand_steps.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr float kEpsilon = 1e-5f;  // the default of every norm

double epsilon(const Call& call) { return call.attrs.get_float("epsilon", kEpsilon); }

std::vector<int64_t> axes_from(int64_t first, int64_t rank) {
  std::vector<int64_t> axes;
  for (int64_t axis = first; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

int64_t norm_axis(const Call& call) {
  return *normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank());
}

/// Error kBadModel when an input does not broadcast into x without widening it.
Status check_fits(const Call& call, int input) {
  if (!call.has(input)) return ok_status();
  auto wider = broadcast(call.in(0).shape, call.in(input).shape);
  if (wider && *wider == call.in(0).shape) return ok_status();
  return bad_call(call, fmt::format("input {} is {}, which does not broadcast into {}", input,
                                    to_string(call.in(input).shape), to_string(call.in(0).shape)));
}

/// Error kBadModel when an input is not [channels].
Status check_channels(const Call& call, int input, int64_t channels) {
  if (call.in(input).shape == Shape{channels}) return ok_status();
  return bad_call(call, fmt::format("input {} is {}, wanted [{}], one for each channel", input,
                                    to_string(call.in(input).shape), channels));
}

Status check_channel_norm(const Call& call, int first, int last) {
  for (int input = 0; input <= last; ++input) TRY_STATUS(check_dtype(call, input, kFloats));
  const int64_t channels = call.in(0).rank() > 1 ? call.in(0).shape[1] : 1;
  for (int input = first; input <= last; ++input) TRY_STATUS(check_channels(call, input, channels));
  return ok_status();
}

Result<DType> stash_dtype(const Call& call) {
  const int64_t number = call.attrs.get_int("stash_type", 1);
  const auto dtype = dtype_of_number(number);
  if (dtype && contains(kFloats, *dtype)) return *dtype;
  return bad_call(call, fmt::format("stash_type = {} is not a float type", number), "use 1 (f32)");
}

}  // namespace

Result<Types> infer_softmax(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  TRY_STATUS(normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank()));
  if (call.op == Op::LpNormalization) {
    const int64_t p = call.attrs.get_int("p", 2);
    if (p != 1 && p != 2) return bad_call(call, fmt::format("p = {}, wanted 1 or 2", p));
  }
  return Types{call.in(0)};
}

Result<Types> infer_masked_softmax(const Call& call) {
  TRY_STATUS(infer_softmax(call));
  const DType mask = call.in(1).dtype;
  if (mask != DType::b1 && mask != call.in(0).dtype)
    return bad_call(call, fmt::format("the mask is {}, wanted {} to add or b1 to choose by",
                                      to_string(mask), to_string(call.in(0).dtype)));
  TRY_STATUS(check_fits(call, 1));
  return Types{call.in(0)};
}

Result<Types> infer_layer_norm(const Call& call) {
  for (int input : {0, 1, 2})
    if (call.has(input)) TRY_STATUS(check_dtype(call, input, kFloats));
  TRY(int64_t axis, normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank()));
  TRY_STATUS(check_fits(call, 1));
  TRY_STATUS(check_fits(call, 2));
  TRY(DType stash, stash_dtype(call));
  Type statistic{stash, call.in(0).shape};
  for (int64_t d = axis; d < call.in(0).rank(); ++d) statistic.shape[d] = 1;
  return Types{call.in(0), statistic, statistic};
}

Result<Types> infer_rms_norm(const Call& call) {
  TRY_STATUS(infer_layer_norm(call));
  return Types{{call.in(1).dtype, call.in(0).shape}};
}

Result<Types> infer_norm_statistics(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  if (call.in(0).rank() == 0) return bad_call(call, "a scalar has no rows");
  if (call.has(1)) {
    Shape mine = call.in(0).shape, product = call.in(1).shape;
    mine.pop_back();
    if (!product.empty()) product.pop_back();
    if (call.in(1).rank() != call.in(0).rank() || mine != product)
      return bad_call(call, fmt::format("the product is {}, which has other rows than {}",
                                        to_string(call.in(1).shape), to_string(call.in(0).shape)));
  }
  Type statistic{DType::f32, call.in(0).shape};
  statistic.shape.back() = 1;
  return Types{statistic, statistic};
}

Result<Types> infer_group_norm(const Call& call) {
  if (call.in(0).rank() < 2) return bad_call(call, "the input needs a batch and a channel axis");
  TRY_STATUS(check_channel_norm(call, 1, 2));
  TRY_STATUS(stash_dtype(call));
  const int64_t groups = call.attrs.get_int("num_groups", 0), channels = call.in(0).shape[1];
  if (groups <= 0 || groups > std::max<int64_t>(channels, 1) || channels % groups != 0) {
    return bad_call(call,
                    fmt::format("num_groups = {} does not divide {} channels", groups, channels));
  }
  return Types{call.in(0)};
}

Result<Types> infer_instance_norm(const Call& call) {
  if (call.in(0).rank() < 2) return bad_call(call, "the input needs a batch and a channel axis");
  TRY_STATUS(check_channel_norm(call, 1, 2));
  return Types{call.in(0)};
}

Result<Types> infer_batch_norm(const Call& call) {
  TRY_STATUS(check_channel_norm(call, 1, 4));
  if (call.outputs > 1 && !call.attrs.get_int("training_mode", 0)) {
    return bad_call(call, "running statistics are asked for but training_mode is 0",
                    "drop these outputs or set training_mode to 1");
  }
  return Types{call.in(0), call.in(3), call.in(4)};
}

Result<Types> infer_mean_variance_norm(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  TRY_STATUS(normalize_axes(call, call.attrs.get_ints("axes", {0, 2, 3}), call.in(0).rank()));
  return Types{call.in(0)};
}

Result<Types> infer_lrn(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  if (call.in(0).rank() < 2) return bad_call(call, "the input needs a batch and a channel axis");
  const int64_t size = call.attrs.get_int("size", 0);
  if (size < 1) return bad_call(call, fmt::format("size = {}, wanted at least 1 channel", size));
  return Types{call.in(0)};
}

Cost cost_norm(const Call& call) {
  Cost cost = cost_reduce(call);
  double each = 8;
  if (call.op == Op::LRN)
    each += 2 * static_cast<double>(
                    std::min(call.attrs.get_int("size", 1), call.in(0).shape[1]));  // the window
  cost.flops = {each * static_cast<double>(call.in(0).count())};
  return cost;
}

/// x / (bias + alpha / size * (sum of squares of the `size` channels around))^beta, the window
/// written out.
std::optional<Loop> loop_lrn(const Call& call, int) {
  constexpr int64_t kWindow = 64;  // a longer sum is no expression to compile
  const int64_t size = call.attrs.get_int("size", 1);
  if (size > kWindow) return std::nullopt;
  MapStart start = start_map(call, call.out().shape);
  Exprs& e = start.loop.exprs;
  const Type& type = call.in(0);
  const ExprId zero = e.constant(type.dtype, 0), channel = start.coords[1];
  ExprId sum = zero;
  for (int64_t offset = -((size - 1) / 2); offset <= size / 2; ++offset) {
    std::vector<ExprId> at = start.coords;
    at[1] = e.add(channel, offset);
    const ExprId low = e.le(e.integer(0), at[1]), high = e.lt(at[1], e.integer(type.shape[1]));
    ExprId guard = kNoExpr, otherwise = kNoExpr;
    if (offset < 0) guard = low, otherwise = zero;
    if (offset > 0) guard = high, otherwise = zero;
    const ExprId x = e.load(0, type.dtype, std::move(at), guard, otherwise);
    sum = e.add(sum, e.mul(x, x));
  }
  const double alpha = call.attrs.get_float("alpha", 1e-4f) / static_cast<double>(size);
  const double bias = call.attrs.get_float("bias", 1), beta = call.attrs.get_float("beta", 0.75);
  const ExprId base =
      e.add(e.mul(sum, e.constant(type.dtype, alpha)), e.constant(type.dtype, bias));
  const ExprId power = e.binary(Scalar::kPow, base, e.constant(type.dtype, beta));
  start.loop.body = e.div(start.values[0], power);
  return std::move(start.loop);
}

// ---- expansions
// -------------------------------------------------------------------------------------------------
namespace {

struct Exponentials {
  Steps::Value shifted, power, sum;  // x - max(x), exp of it, the sum of that
};

Exponentials exponentials(Steps& s, Steps::Value x, int64_t axis) {
  const auto shifted = s(Op::Sub, x, s.reduce(Op::ReduceMax, x, {axis}));
  const auto power = s(Op::Exp, shifted);
  return {shifted, power, s.reduce(Op::ReduceSum, power, {axis})};
}

struct Normalized {
  Steps::Value mean, inverse,
      value;  // value = (x - mean) * inverse, inverse = 1 / sqrt(variance + eps)
};

Normalized normalize(Steps& s, Steps::Value x, const std::vector<int64_t>& axes, double eps) {
  const auto mean = s.reduce(Op::ReduceMean, x, axes);
  const auto centred = s(Op::Sub, x, mean);
  const auto variance = s.reduce(Op::ReduceMean, s(Op::Mul, centred, centred), axes);
  const auto inverse = s(Op::Rsqrt, s(Op::Add, variance, eps));
  return {mean, inverse, s(Op::Mul, centred, inverse)};
}

/// [C] → [C, 1, ...], so that it lies along axis 1 of a tensor of this rank; in the type of `like`.
Steps::Value along_channels(Steps& s, Steps::Value x, int rank, DType dtype) {
  Shape shape(std::max(rank - 1, 1), 1);
  shape[0] = s.shape(x)[0];
  return s.reshape(s.cast(x, dtype), shape);
}

/// x * scale + shift with one of each per channel, in the type of the call's output.
Steps::Value scale_shift(Steps& s, const Call& call, Steps::Value x) {
  const int rank = call.in(0).rank();
  const DType wide = s.dtype(x);
  const auto scaled = s(Op::Mul, x, along_channels(s, s.in(1), rank, wide));
  return s.cast(s(Op::Add, scaled, along_channels(s, s.in(2), rank, wide)), call.out().dtype);
}

}  // namespace

std::vector<int32_t> expand_softmax(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto [shifted, power, sum] = exponentials(s, s.widen(s.in(0)), norm_axis(call));
  const auto result =
      call.op == Op::Softmax ? s(Op::Div, power, sum) : s(Op::Sub, shifted, s(Op::Log, sum));
  return {s.cast(result, call.out().dtype)};
}

std::vector<int32_t> expand_masked_softmax(const Call& call, Expander& expander) {
  Steps s(expander);
  auto scores = s.widen(s.in(0));
  const double scale = call.attrs.get_float("scale", 1);
  if (scale != 1) scores = s(Op::Mul, scores, scale);
  if (call.in(1).dtype == DType::b1) {
    const double infinity = std::numeric_limits<double>::infinity();
    const auto fill = s.scalar(s.dtype(scores), call.attrs.get_float("fill", -infinity));
    const bool forbids = call.attrs.get_int("forbids", 0) != 0;
    scores = forbids ? s.where(s.in(1), fill, scores) : s.where(s.in(1), scores, fill);
  } else {
    scores = s(Op::Add, scores, s.widen(s.in(1)));
  }
  const Exponentials e = exponentials(s, scores, norm_axis(call));
  return {s.cast(s(Op::Div, e.power, e.sum), call.out().dtype)};
}

std::vector<int32_t> expand_hardmax(const Call& call, Expander& expander) {
  Steps s(expander);
  const int64_t axis = norm_axis(call), extent = call.in(0).shape[axis];
  if (extent == 0) return {s(Op::Identity, s.in(0))};
  const auto best = s.add(Op::ArgMax, {s.in(0)}, Attrs().set("axis", axis));
  std::vector<int64_t> positions(extent);
  std::iota(positions.begin(), positions.end(), 0);
  Shape along(call.in(0).rank(), 1);
  along[axis] = extent;
  const auto index = s.constant(tensor_of(positions).reshaped(along));
  return {s.cast(s(Op::Equal, best, index), call.out().dtype)};
}

std::vector<int32_t> expand_lp_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto x = s.widen(s.in(0));
  const Op op = call.attrs.get_int("p", 2) == 1 ? Op::ReduceL1 : Op::ReduceL2;
  const auto norm = s.reduce(op, x, {norm_axis(call)});
  // Where the norm is 0 so is x, and the standard wants 0.
  const auto divisor = s.where(s(Op::Equal, norm, 0.0), s.scalar(s.dtype(norm), 1), norm);
  return {s.cast(s(Op::Div, x, divisor), call.out().dtype)};
}

std::vector<int32_t> expand_layer_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto x = s.widen(s.in(0));
  const DType wide = s.dtype(x);
  const auto axes = axes_from(norm_axis(call), call.in(0).rank());
  const Normalized normal = normalize(s, x, axes, epsilon(call));
  auto y = s(Op::Mul, normal.value, s.cast(s.in(1), wide));
  if (call.has(2)) y = s(Op::Add, y, s.cast(s.in(2), wide));
  std::vector<int32_t> outputs{s.cast(y, call.out().dtype)};
  if (call.outputs > 1) outputs.push_back(s.cast(normal.mean, call.out(1).dtype));
  if (call.outputs > 2) outputs.push_back(s.cast(normal.inverse, call.out(2).dtype));
  return outputs;
}

std::vector<int32_t> expand_rms_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto x = s.widen(s.in(0));
  const DType wide = s.dtype(x);
  const auto axes = axes_from(norm_axis(call), call.in(0).rank());
  const auto square = s.reduce(Op::ReduceMean, s(Op::Mul, x, x), axes);
  const auto inverse = s(Op::Rsqrt, s(Op::Add, square, epsilon(call)));
  const auto y = s(Op::Mul, s(Op::Mul, x, inverse), s.cast(s.in(1), wide));
  return {s.cast(y, call.out().dtype)};
}

std::vector<int32_t> expand_norm_statistics(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto x = s.widen(s.in(0));
  const std::vector<int64_t> axes{call.in(0).rank() - 1};
  Normalized normal;
  if (call.attrs.get_int("centred", 1)) {
    normal = normalize(s, x, axes, epsilon(call));
  } else {
    const auto square = s.reduce(Op::ReduceMean, s(Op::Mul, x, x), axes);
    normal.mean = s(Op::Mul, square, 0.0);
    normal.inverse = s(Op::Rsqrt, s(Op::Add, square, epsilon(call)));
  }
  return {s.cast(normal.mean, DType::f32), s.cast(normal.inverse, DType::f32)};
}

std::vector<int32_t> expand_group_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const Shape& shape = call.in(0).shape;
  const int64_t groups = call.attrs.get_int("num_groups", 1);
  Shape split{shape[0], groups, shape[1] / groups};
  split.insert(split.end(), shape.begin() + 2, shape.end());
  const auto x = s.reshape(s.widen(s.in(0)), split);
  const auto axes = axes_from(2, static_cast<int64_t>(split.size()));
  const auto y = s.reshape(normalize(s, x, axes, epsilon(call)).value, shape);
  return {scale_shift(s, call, y)};
}

std::vector<int32_t> expand_instance_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const auto axes = axes_from(2, call.in(0).rank());
  return {scale_shift(s, call, normalize(s, s.widen(s.in(0)), axes, epsilon(call)).value)};
}

std::vector<int32_t> expand_batch_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  const int rank = call.in(0).rank();
  const auto x = s.widen(s.in(0));
  const DType wide = s.dtype(x);
  if (!call.attrs.get_int("training_mode", 0)) {
    // y = x * a + b, both of which fold into constants when the statistics are.
    const auto variance = s.cast(s.in(4), wide);
    const auto inverse = s(Op::Rsqrt, s(Op::Add, variance, epsilon(call)));
    const auto a = s(Op::Mul, s.cast(s.in(1), wide), inverse);
    const auto b = s(Op::Sub, s.cast(s.in(2), wide), s(Op::Mul, s.cast(s.in(3), wide), a));
    const auto scaled = s(Op::Mul, x, along_channels(s, a, rank, wide));
    const auto y = s(Op::Add, scaled, along_channels(s, b, rank, wide));
    return {s.cast(y, call.out().dtype)};
  }
  std::vector<int64_t> axes;
  for (int64_t d = 0; d < rank; ++d)
    if (d != 1) axes.push_back(d);
  const auto mean = s.reduce(Op::ReduceMean, x, axes);
  const auto centred = s(Op::Sub, x, mean);
  const auto variance = s.reduce(Op::ReduceMean, s(Op::Mul, centred, centred), axes);
  const auto inverse = s(Op::Rsqrt, s(Op::Add, variance, epsilon(call)));
  std::vector<int32_t> outputs{scale_shift(s, call, s(Op::Mul, centred, inverse))};
  const double momentum = call.attrs.get_float("momentum", 0.9f);
  for (int output = 1; output < call.outputs; ++output) {
    const auto old = s(Op::Mul, s.cast(s.in(2 + output), wide), momentum);
    const auto flat = s.reshape(output == 1 ? mean : variance, call.out(output).shape);
    const auto mixed = s(Op::Add, old, s(Op::Mul, flat, 1 - momentum));
    outputs.push_back(s.cast(mixed, call.out(output).dtype));
  }
  return outputs;
}

std::vector<int32_t> expand_mean_variance_norm(const Call& call, Expander& expander) {
  Steps s(expander);
  std::vector<int64_t> axes = call.attrs.get_ints("axes", {0, 2, 3});
  for (int64_t& axis : axes) axis = *normalize_axis(call, axis, call.in(0).rank());
  const auto x = s.widen(s.in(0));
  const auto centred = s(Op::Sub, x, s.reduce(Op::ReduceMean, x, axes));
  const auto variance = s.reduce(Op::ReduceMean, s(Op::Mul, centred, centred), axes);
  const auto y = s(Op::Div, centred, s(Op::Add, s(Op::Sqrt, variance), 1e-9));
  return {s.cast(y, call.out().dtype)};
}

}  // namespace obelisk::ops

// CausalConvWithState: a depthwise convolution along time over the state followed by the input; the
// last k - 1 elements of that sequence are the next state.
#include <cmath>

#include "ops/arrays.h"
#include "ops/conv.h"
#include "ops/dtype_set.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr int kX = 0, kW = 1, kBias = 2, kPast = 3;

bool is_silu(const Call& call) {
  const std::string name = call.attrs.get_string("activation", "none");
  return name == "silu" || name == "swish";
}

/// The sequence at `time`, counted from the first element of the state.
ExprId load_sequence(Exprs& exprs, const Call& call, ExprId image, ExprId channel, ExprId time) {
  const DType dtype = call.in(kX).dtype;
  const int64_t state = call.in(kW).shape[2] - 1;
  const ExprId zero = zero_of(exprs, dtype), boundary = exprs.integer(state);
  if (state == 0) return exprs.load(kX, dtype, {image, channel, time});
  const ExprId fresh = exprs.le(boundary, time);
  ExprId old = zero;
  if (call.has(kPast))
    old = exprs.load(kPast, dtype, {image, channel, time}, exprs.lt(time, boundary), zero);
  return exprs.load(kX, dtype, {image, channel, exprs.add(time, -state)}, fresh, old);
}

}  // namespace

Result<Types> infer_causal_conv(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kFloats));
  const Shape& x = call.in(kX).shape;
  const Shape& w = call.in(kW).shape;
  if (x.size() != 3 || w.size() != 3 || w[0] != x[1] || w[1] != 1 || w[2] < 1) {
    return bad_call(call, fmt::format("input {} and weights {}", to_string(x), to_string(w)),
                    "[N, C, length] and [C, 1, kernel]");
  }
  const std::string name = call.attrs.get_string("activation", "none");
  if (name != "none" && !is_silu(call))
    return bad_call(call, fmt::format("activation '{}'", name), "one of none, silu, swish");
  const Shape state{x[0], x[1], w[2] - 1};
  if (call.has(kBias) && call.in(kBias).shape != Shape{x[1]}) {
    return bad_call(call,
                    fmt::format("bias {} for {} channels", to_string(call.in(kBias).shape), x[1]));
  }
  if (call.has(kPast) && call.in(kPast).shape != state) {
    return bad_call(call, fmt::format("past_state {}, wanted {}", to_string(call.in(kPast).shape),
                                      to_string(state)));
  }
  return Types{{dtype, x}, {dtype, state}};
}

Cost cost_causal_conv(const Call& call) {
  Cost cost = cost_move(call);
  cost.flops = {2 * static_cast<double>(call.in(kX).count()) *
                static_cast<double>(call.in(kW).shape[2])};
  return cost;
}

std::optional<Loop> loop_causal_conv(const Call& call, int output) {
  const Shape& x = call.in(kX).shape;
  const int64_t kernel = call.in(kW).shape[2];
  const DType dtype = call.in(kX).dtype;
  if (output == 1) {
    LoopStart start = start_loop({x[0], x[1], kernel - 1});
    Exprs& exprs = start.loop.exprs;
    start.loop.body = load_sequence(exprs, call, start.coords[0], start.coords[1],
                                    exprs.add(start.coords[2], x[2]));
    return std::move(start.loop);
  }
  LoopStart start = start_loop({x[0], x[1], x[2], kernel}, 3);
  Exprs& exprs = start.loop.exprs;
  const ExprId channel = start.coords[1], k = start.coords[3];
  const ExprId value =
      load_sequence(exprs, call, start.coords[0], channel, exprs.add(start.coords[2], k));
  start.loop.body = exprs.mul(value, exprs.load(kW, dtype, {channel, exprs.integer(0), k}));
  start.loop.combine = Combine::kSum;
  ExprId result = exprs.acc(dtype);
  if (call.has(kBias)) result = exprs.add(result, exprs.load(kBias, dtype, {channel}));
  if (is_silu(call)) {
    result = exprs.cast(result,
                        dtype);  // the activation sees what the convolution alone would have stored
    result = exprs.mul(result, exprs.unary(Scalar::kSigmoid, result));
  }
  start.loop.finish = result;
  return std::move(start.loop);
}

Status reference_causal_conv(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs) {
  const Shape& shape = call.in(kX).shape;
  const int64_t kernel = call.in(kW).shape[2], state = kernel - 1, length = shape[2];
  const std::vector<double> x = read_reals(*inputs[kX]), w = read_reals(*inputs[kW]);
  const std::vector<double> bias =
      call.has(kBias) ? read_reals(*inputs[kBias]) : std::vector<double>{};
  const std::vector<double> past =
      call.has(kPast) ? read_reals(*inputs[kPast]) : std::vector<double>{};
  std::vector<double> out(x.size()), next(shape[0] * shape[1] * state), sequence(state + length);
  for (int64_t row = 0; row < shape[0] * shape[1]; ++row) {
    const int64_t channel = row % shape[1];
    for (int64_t at = 0; at < state; ++at) sequence[at] = past.empty() ? 0 : past[row * state + at];
    for (int64_t at = 0; at < length; ++at) sequence[state + at] = x[row * length + at];
    for (int64_t at = 0; at < length; ++at) {
      double sum = 0;
      for (int64_t k = 0; k < kernel; ++k) sum += sequence[at + k] * w[channel * kernel + k];
      if (!bias.empty()) sum += bias[channel];
      out[row * length + at] = is_silu(call) ? sum / (1 + std::exp(-sum)) : sum;
    }
    for (int64_t at = 0; at < state; ++at) next[row * state + at] = sequence[length + at];
  }
  write_reals(outputs[0], out);
  if (outputs.size() > 1 && !outputs[1].empty()) write_reals(outputs[1], next);
  return ok_status();
}

}  // namespace obelisk::ops

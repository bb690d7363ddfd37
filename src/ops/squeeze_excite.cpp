#include "ops/squeeze_excite.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/expand.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {
namespace {

std::string activation_of(const Call& call) { return call.attrs.get_string("activation", "Relu"); }
std::string gate_of(const Call& call) { return call.attrs.get_string("gate", "Sigmoid"); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double activated(const std::string& name, double x) {
  if (name == "Swish") return x * sigmoid(x);
  if (name == "HardSwish") return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);
  return std::isnan(x) ? x : std::max(x, 0.0);
}

}  // namespace

Result<SqueezeExciteShape> squeeze_excite_shape(const Call& call) {
  const std::string activation = activation_of(call), gate = gate_of(call);
  if (activation != "Relu" && activation != "Swish" && activation != "HardSwish")
    return bad_call(call, fmt::format("activation '{}'", activation),
                    "one of Relu, Swish, HardSwish");
  if (gate != "Sigmoid" && gate != "HardSigmoid")
    return bad_call(call, fmt::format("gate '{}'", gate), "one of Sigmoid, HardSigmoid");
  if (!call.has(kExciteWeights))
    return bad_call(call, "input 3, w2, is missing", "x, w1, b1 or none, w2, b2 or none");
  const Shape &x = call.in(kExcited).shape, &weights = call.in(kSqueezeWeights).shape;
  if (x.size() < 3 || weights.size() != 2)
    return bad_call(call, fmt::format("x is {} and w1 {}, wanted rank 3 or more, and 2",
                                      to_string(x), to_string(weights)));
  SqueezeExciteShape shape{x[0], x[1], 1, weights[0]};
  for (size_t d = 2; d < x.size(); ++d) shape.pixels *= x[d];
  const std::pair<int, Shape> wanted[] = {{kSqueezeWeights, {shape.squeezed, shape.channels}},
                                          {kSqueezeBias, {shape.squeezed}},
                                          {kExciteWeights, {shape.squeezed, shape.channels}},
                                          {kExciteBias, {shape.channels}}};
  for (const auto& [input, own] : wanted)
    if (call.has(input) && call.in(input).shape != own)
      return bad_call(call, fmt::format("input {} is {}, wanted {}", input,
                                        to_string(call.in(input).shape), to_string(own)));
  return shape;
}

Result<Types> infer_squeeze_excite(const Call& call) {
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) continue;
    TRY_STATUS(check_dtype(call, input, kFloats));
    if (call.in(input).dtype != call.in(kExcited).dtype)
      return bad_call(call,
                      fmt::format("input {} is {}, x is {}", input, to_string(call.in(input).dtype),
                                  to_string(call.in(kExcited).dtype)),
                      "all inputs have one type");
  }
  const Result<SqueezeExciteShape> shape = squeeze_excite_shape(call);
  if (!shape.ok()) return shape.error();
  return Types{call.in(kExcited)};
}

Cost cost_squeeze_excite(const Call& call) {
  const SqueezeExciteShape shape = *squeeze_excite_shape(call);
  Cost cost = cost_move(call);
  const auto images = static_cast<double>(shape.images * shape.channels);
  cost.flops = {images * static_cast<double>(2 * shape.pixels + 4 * shape.squeezed)};
  return cost;
}

Status reference_squeeze_excite(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const SqueezeExciteShape shape, squeeze_excite_shape(call));
  const int64_t channels = shape.channels, pixels = shape.pixels, squeezed = shape.squeezed;
  const std::string activation = activation_of(call);
  const bool hard = gate_of(call) == "HardSigmoid";
  const double alpha = call.attrs.get_float("alpha", 0.2), beta = call.attrs.get_float("beta", 0.5);
  const auto optional = [&](int input, int64_t count) {
    return call.has(input) ? read_reals(*inputs[input])
                           : std::vector<double>(static_cast<size_t>(count), 0.0);
  };
  std::vector<double> y = read_reals(*inputs[kExcited]);
  const std::vector<double> w1 = read_reals(*inputs[kSqueezeWeights]),
                            w2 = read_reals(*inputs[kExciteWeights]);
  const std::vector<double> b1 = optional(kSqueezeBias, squeezed),
                            b2 = optional(kExciteBias, channels);
  for (int64_t image = 0; image < shape.images; ++image) {
    double* const own = y.data() + image * channels * pixels;
    std::vector<double> mean(static_cast<size_t>(channels)), sums = b2;
    for (int64_t c = 0; c < channels; ++c)
      mean[c] = std::accumulate(own + c * pixels, own + (c + 1) * pixels, 0.0) /
                static_cast<double>(pixels);
    for (int64_t r = 0; r < squeezed; ++r) {
      const double h = activated(activation, std::inner_product(mean.begin(), mean.end(),
                                                                w1.data() + r * channels, b1[r]));
      for (int64_t c = 0; c < channels; ++c) sums[c] += h * w2[r * channels + c];
    }
    for (int64_t c = 0; c < channels; ++c) {
      const double sum = sums[c];
      const double gate =
          hard ? std::isnan(sum) ? sum : std::clamp(alpha * sum + beta, 0.0, 1.0) : sigmoid(sum);
      for (int64_t p = 0; p < pixels; ++p) own[c * pixels + p] *= gate;
    }
  }
  write_reals(outputs[0], y);
  return ok_status();
}

std::vector<int32_t> expand_squeeze_excite(const Call& call, Expander& expander) {
  const SqueezeExciteShape shape = *squeeze_excite_shape(call);
  const Shape& x = call.in(kExcited).shape;
  const DType type = call.in(kExcited).dtype;
  Steps steps(expander);
  std::vector<int64_t> spatial(x.size() - 2);
  std::iota(spatial.begin(), spatial.end(), int64_t{2});
  const auto product = [&](Steps::Value rows, Steps::Value weights, int bias) {
    const Steps::Value sums = steps(Op::MatMul, rows, weights);
    return call.has(bias) ? steps(Op::Add, sums, steps.in(bias)) : sums;
  };
  const Steps::Value mean =
      steps.cast(steps.reduce(Op::ReduceMean, steps.widen(steps.in(kExcited)), spatial), type);
  const Steps::Value w1 = steps.add(Op::Transpose, {steps.in(kSqueezeWeights)},
                                    Attrs().set("perm", std::vector<int64_t>{1, 0}));
  const Steps::Value squeezed =
      product(steps.reshape(mean, {shape.images, shape.channels}), w1, kSqueezeBias);
  const Steps::Value h = steps(*parse_op(activation_of(call)), squeezed);
  const Steps::Value sums = product(h, steps.in(kExciteWeights), kExciteBias);
  Attrs slope;
  if (gate_of(call) == "HardSigmoid")
    slope.set("alpha", call.attrs.get_float("alpha", 0.2))
        .set("beta", call.attrs.get_float("beta", 0.5));
  const Steps::Value gate = steps.add(*parse_op(gate_of(call)), {sums}, std::move(slope));
  Shape of_image(x.size(), 1);
  of_image[0] = shape.images, of_image[1] = shape.channels;
  return {steps(Op::Mul, steps.in(kExcited), steps.reshape(gate, of_image))};
}

}  // namespace obelisk::ops

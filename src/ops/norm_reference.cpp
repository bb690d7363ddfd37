// The references of softmax and the norms: plain sums in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/arrays.h"
#include "ops/norm.h"

namespace obelisk::ops {
namespace {

int64_t norm_axis(const Call& call) {
  return *normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank());
}

double epsilon(const Call& call) { return call.attrs.get_float("epsilon", 1e-5f); }

/// One row of a softmax-like op, in place. x[base + step[n]] are its elements.
void softmax_row(const Call& call, double* x, const std::vector<int64_t>& step) {
  if (step.empty()) return;
  if (call.op == Op::LpNormalization) {
    const bool l1 = call.attrs.get_int("p", 2) == 1;
    double norm = 0;
    for (int64_t at : step) norm += l1 ? std::fabs(x[at]) : x[at] * x[at];
    if (!l1) norm = std::sqrt(norm);
    for (int64_t at : step) x[at] = norm == 0 ? 0 : x[at] / norm;
    return;
  }
  int64_t best = step[0];
  for (int64_t at : step)
    if (!std::isnan(x[best]) && (std::isnan(x[at]) || x[at] > x[best])) best = at;
  if (call.op == Op::Hardmax) {
    for (int64_t at : step) x[at] = at == best;
    return;
  }
  const double top = x[best];
  Total sum(call.sums);
  for (int64_t at : step) sum += std::exp(x[at] - top);
  for (int64_t at : step)
    x[at] = call.op == Op::LogSoftmax ? x[at] - top - std::log(sum.value())
                                      : std::exp(x[at] - top) / sum.value();
}

struct Statistics {
  double mean = 0, variance = 0;
};

Statistics statistics(const double* x, const std::vector<int64_t>& step, Sums sums) {
  const double count = static_cast<double>(step.size());
  Total sum(sums), square(sums);
  for (int64_t at : step) sum += x[at];
  const double mean = sum.value() / count;
  for (int64_t at : step) square += (x[at] - mean) * (x[at] - mean);
  return {mean, square.value() / count};
}

std::vector<int64_t> axes_from(int64_t first, int64_t rank) {
  std::vector<int64_t> axes;
  for (int64_t axis = first; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

}  // namespace

Status reference_softmax(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  std::vector<double> x = read_reals(*inputs[0]);
  const Fold fold(inputs[0]->shape(), {norm_axis(call)});
  for (int64_t base : fold.base) softmax_row(call, x.data() + base, fold.step);
  write_reals(outputs[0], x);
  return ok_status();
}

Status reference_masked_softmax(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  const Tensor &x = *inputs[0], &mask = *inputs[1];
  const double scale = call.attrs.get_float("scale", 1);
  const double fill = call.attrs.get_float("fill", -std::numeric_limits<double>::infinity());
  const bool chooses = call.in(1).dtype == DType::b1;
  const bool allowed = call.attrs.get_int("forbids", 0) == 0;
  std::vector<double> scores = read_reals(x);
  Broadcast(x.shape(), inputs).each([&](int64_t n, const int64_t* at) {
    scores[n] *= scale;
    if (!chooses)
      scores[n] += mask.get_double(at[1]);
    else if ((mask.get_double(at[1]) != 0) != allowed)
      scores[n] = fill;
  });
  const Fold fold(x.shape(), {norm_axis(call)});
  for (int64_t base : fold.base) softmax_row(call, scores.data() + base, fold.step);
  write_reals(outputs[0], scores);
  return ok_status();
}

Status reference_layer_norm(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs) {
  std::vector<double> x = read_reals(*inputs[0]);
  const Shape& shape = inputs[0]->shape();
  const Fold fold(shape, axes_from(norm_axis(call), static_cast<int64_t>(shape.size())));
  const bool about_mean = call.op == Op::LayerNormalization;
  for (int64_t o = 0; o < fold.outer; ++o) {
    double* row = x.data() + fold.base[o];
    Statistics found = statistics(row, fold.step, call.sums);
    if (!about_mean) found = {0, found.variance + found.mean * found.mean};
    const double deviation = std::sqrt(found.variance + epsilon(call));
    for (int64_t at : fold.step) row[at] = (row[at] - found.mean) / deviation;
    if (outputs.size() > 1) outputs[1].set_double(o, found.mean);
    if (outputs.size() > 2) outputs[2].set_double(o, 1 / deviation);
  }
  const std::vector<double> scale = read_reals(*inputs[1]);
  const bool shifts = inputs.size() > 2 && inputs[2];
  const std::vector<double> shift = shifts ? read_reals(*inputs[2]) : std::vector<double>{0};
  const Tensor* parts[] = {inputs[1], shifts ? inputs[2] : nullptr};
  Broadcast(shape, parts).each([&](int64_t n, const int64_t* at) {
    x[n] = x[n] * scale[at[0]] + shift[at[1]];
  });
  write_reals(outputs[0], x);
  return ok_status();
}

Status reference_norm_statistics(const Call& call, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs) {
  const std::vector<double> x = read_reals(*inputs[0]);
  const Shape& shape = inputs[0]->shape();
  const Fold fold(shape, {static_cast<int64_t>(shape.size()) - 1});
  for (int64_t o = 0; o < fold.outer; ++o) {
    Statistics found = statistics(x.data() + fold.base[o], fold.step, call.sums);
    if (!call.attrs.get_int("centred", 1)) found = {0, found.variance + found.mean * found.mean};
    outputs[0].set_double(o, found.mean);
    outputs[1].set_double(o, 1 / std::sqrt(found.variance + epsilon(call)));
  }
  return ok_status();
}

Status reference_channel_norm(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs) {
  std::vector<double> x = read_reals(*inputs[0]);
  const Shape& shape = inputs[0]->shape();
  const int64_t rank = static_cast<int64_t>(shape.size());
  const int64_t batch = rank ? shape[0] : 1, channels = rank > 1 ? shape[1] : 1;
  const int64_t count = static_cast<int64_t>(x.size());
  const int64_t area = count == 0 ? 0 : count / (batch * channels);
  const std::vector<double> scale = read_reals(*inputs[1]), shift = read_reals(*inputs[2]);
  const bool batch_norm = call.op == Op::BatchNormalization;
  const bool training = call.attrs.get_int("training_mode", 0) != 0;
  const double eps = epsilon(call);

  // Each element belongs to a pool that shares its statistics: a channel, a sample's channel, or a
  // sample's group.
  const int64_t groups =
      call.op == Op::GroupNormalization ? call.attrs.get_int("num_groups", 1) : channels;
  const int64_t pools = batch_norm ? channels : batch * groups;
  auto each = [&](auto visit) {  // visit(element, its pool, its channel)
    for (int64_t sample = 0, n = 0; sample < batch; ++sample) {
      for (int64_t channel = 0; channel < channels; ++channel) {
        const int64_t pool = batch_norm ? channel : sample * groups + channel / (channels / groups);
        for (int64_t place = 0; place < area; ++place, ++n) visit(x[n], pool, channel);
      }
    }
  };
  std::vector<double> mean(pools), variance(pools);
  std::vector<Total> sums(pools, Total(call.sums)), squares = sums;
  if (batch_norm && !training) {
    mean = read_reals(*inputs[3]);
    variance = read_reals(*inputs[4]);
  } else {
    const double members = static_cast<double>(count) / static_cast<double>(pools);
    each([&](double value, int64_t pool, int64_t) { sums[pool] += value; });
    for (int64_t pool = 0; pool < pools; ++pool) mean[pool] = sums[pool].value() / members;
    each([&](double value, int64_t pool, int64_t) {
      squares[pool] += (value - mean[pool]) * (value - mean[pool]);
    });
    for (int64_t pool = 0; pool < pools; ++pool) variance[pool] = squares[pool].value() / members;
  }
  std::vector<double> deviation(pools);
  for (int64_t pool = 0; pool < pools; ++pool) deviation[pool] = std::sqrt(variance[pool] + eps);
  each([&](double& value, int64_t pool, int64_t channel) {
    value = (value - mean[pool]) / deviation[pool] * scale[channel] + shift[channel];
  });
  write_reals(outputs[0], x);
  const double momentum = call.attrs.get_float("momentum", 0.9f);
  for (size_t output = 1; output < outputs.size(); ++output) {
    const std::vector<double>& found = output == 1 ? mean : variance;
    for (int64_t c = 0; c < channels; ++c) {
      const double old = inputs[2 + output]->get_double(c);
      outputs[output].set_double(c, old * momentum + found[c] * (1 - momentum));
    }
  }
  return ok_status();
}

Status reference_mean_variance_norm(const Call& call, std::span<const Tensor* const> inputs,
                                    std::span<Tensor> outputs) {
  std::vector<double> x = read_reals(*inputs[0]);
  std::vector<int64_t> axes = call.attrs.get_ints("axes", {0, 2, 3});
  for (int64_t& axis : axes) axis = *normalize_axis(call, axis, call.in(0).rank());
  const Fold fold(inputs[0]->shape(), axes);
  for (int64_t base : fold.base) {
    const Statistics found = statistics(x.data() + base, fold.step, call.sums);
    for (int64_t at : fold.step)
      x[base + at] = (x[base + at] - found.mean) / (std::sqrt(found.variance) + 1e-9);
  }
  write_reals(outputs[0], x);
  return ok_status();
}

Status reference_lrn(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  const std::vector<double> x = read_reals(*inputs[0]);
  const int64_t channels = inputs[0]->shape()[1];
  const int64_t size = call.attrs.get_int("size", 1);
  const double alpha = call.attrs.get_float("alpha", 1e-4f),
               beta = call.attrs.get_float("beta", 0.75);
  const double bias = call.attrs.get_float("bias", 1);
  const Fold fold(inputs[0]->shape(), {1});
  for (int64_t base : fold.base) {
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t first = std::max<int64_t>(0, c - (size - 1) / 2);
      const int64_t last = std::min(channels - 1, c + size / 2);
      double square = 0;
      for (int64_t near = first; near <= last; ++near)
        square += x[base + fold.step[near]] * x[base + fold.step[near]];
      const int64_t at = base + fold.step[c];
      outputs[0].set_double(
          at, x[at] / std::pow(bias + alpha / static_cast<double>(size) * square, beta));
    }
  }
  return ok_status();
}

}  // namespace obelisk::ops

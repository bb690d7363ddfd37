#include "ops/recurrence.h"

#include <cmath>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"

namespace obelisk::ops {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Status check_part(const Call& call, int input, std::string_view what, const Shape& wanted) {
  if (call.has(input) && call.in(input).shape != wanted) {
    return bad_call(call, fmt::format("{} is {}, wanted {}", what, to_string(call.in(input).shape),
                                      to_string(wanted)));
  }
  return ok_status();
}

/// One step of one sequence: `fed` and `back` [G*H], `h` and `c` [H] change.
void step(int64_t gates, int64_t hidden, const double* fed, const double* back, const double* bias,
          double* h, double* c) {
  for (int64_t n = 0; n < hidden; ++n) {
    auto sum = [&](int64_t gate) { return fed[gate * hidden + n] + back[gate * hidden + n]; };
    if (gates == 4) {
      c[n] = sigmoid(sum(2)) * c[n] + sigmoid(sum(0)) * std::tanh(sum(3));
      h[n] = sigmoid(sum(1)) * std::tanh(c[n]);
    } else if (gates == 3) {
      const double update = sigmoid(sum(0)), kept = back[2 * hidden + n] + (bias ? bias[n] : 0);
      const double candidate = std::tanh(fed[2 * hidden + n] + sigmoid(sum(1)) * kept);
      h[n] = (1 - update) * candidate + update * h[n];
    } else {
      h[n] = std::tanh(sum(0));
    }
  }
}

}  // namespace

Result<RecurrenceShape> recurrence_shape(const Call& call) {
  RecurrenceShape shape;
  const std::string cell = call.attrs.get_string("cell", "");
  if (cell != "lstm" && cell != "gru" && cell != "rnn")
    return bad_call(call, fmt::format("cell '{}'", cell), "one of lstm, gru, rnn");
  shape.gates = cell == "lstm" ? 4 : cell == "gru" ? 3 : 1;
  const std::string direction = call.attrs.get_string("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    return bad_call(call, fmt::format("direction '{}'", direction),
                    "one of forward, reverse, bidirectional");
  shape.directions = direction == "bidirectional" ? 2 : 1;
  shape.first_backwards = direction == "reverse";
  const Shape& fed = call.in(kFed).shape;
  const Shape& r = call.in(kFedRecurrence).shape;
  if (fed.size() != 3 || r.size() != 3)
    return bad_call(call,
                    fmt::format("fed is {} and R {}, wanted rank 3", to_string(fed), to_string(r)));
  shape.length = fed[0], shape.batch = fed[1], shape.hidden = r[2];
  const int64_t rows = shape.gates * shape.hidden, directions = shape.directions;
  const Shape state{directions, shape.batch, shape.hidden};
  TRY_STATUS(check_part(call, kFed, "fed", {shape.length, shape.batch, directions * rows}));
  TRY_STATUS(check_part(call, kFedRecurrence, "R", {directions, rows, shape.hidden}));
  TRY_STATUS(check_part(call, kHiddenBias, "bias", {directions, shape.hidden}));
  TRY_STATUS(check_part(call, kFedLengths, "lengths", {shape.batch}));
  TRY_STATUS(check_part(call, kFedInitialH, "initial_h", state));
  TRY_STATUS(check_part(call, kFedInitialC, "initial_c", state));
  return shape;
}

Result<Types> infer_recurrence(const Call& call) {
  TRY_STATUS(check_dtype(call, kFed, dtype_set({DType::f32, DType::f64})));
  for (int input = 1; input < call.arity(); ++input)
    if (call.has(input))
      TRY_STATUS(
          check_dtype(call, input, input == kFedLengths ? dtype_set({DType::i32}) : kFloats));
  TRY(const RecurrenceShape shape, recurrence_shape(call));
  const DType dtype = call.in(kFedRecurrence).dtype;
  const Shape last{shape.directions, shape.batch, shape.hidden};
  return Types{{dtype, {shape.length, shape.directions, shape.batch, shape.hidden}},
               {dtype, last},
               {dtype, last}};
}

Cost cost_recurrence(const Call& call) {
  const RecurrenceShape shape = *recurrence_shape(call);
  Cost cost = cost_move(call);
  const auto rows = static_cast<double>(shape.directions * shape.length * shape.batch);
  cost.flops = {2 * rows * static_cast<double>(shape.gates * shape.hidden * shape.hidden)};
  return cost;
}

Status reference_recurrence(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs) {
  TRY(const RecurrenceShape shape, recurrence_shape(call));
  const int64_t length = shape.length, batch = shape.batch, hidden = shape.hidden;
  const int64_t rows = shape.gates * hidden, directions = shape.directions;
  auto optional = [&](int input) {
    return call.has(input) ? read_reals(*inputs[input]) : std::vector<double>{};
  };
  const std::vector<double> fed = read_reals(*inputs[kFed]),
                            r = read_reals(*inputs[kFedRecurrence]);
  const std::vector<double> bias = optional(kHiddenBias);
  std::vector<double> h = optional(kFedInitialH), c = optional(kFedInitialC);
  h.resize(directions * batch * hidden, 0.0), c.resize(directions * batch * hidden, 0.0);
  const std::vector<int64_t> lengths =
      call.has(kFedLengths) ? read_ints(*inputs[kFedLengths]) : std::vector<int64_t>(batch, length);
  for (int64_t own : lengths)
    if (own < 0 || own > length)
      return bad_call(call, fmt::format("lengths hold {}, wanted 0 to {}", own, length));
  std::vector<double> y(length * directions * batch * hidden, 0.0), back(rows);
  for (int64_t direction = 0; direction < directions; ++direction) {
    const bool backwards = direction == 1 || shape.first_backwards;
    const std::vector<double> by_columns =
        transposed(r.data() + direction * rows * hidden, rows, hidden);
    for (int64_t sequence = 0; sequence < batch; ++sequence) {
      double* own_h = h.data() + (direction * batch + sequence) * hidden;
      double* own_c = c.data() + (direction * batch + sequence) * hidden;
      for (int64_t at = 0; at < lengths[sequence]; ++at) {
        const int64_t time = backwards ? lengths[sequence] - 1 - at : at;
        gemm(1, rows, hidden, own_h, hidden, by_columns.data(), rows, back.data(), rows, call.sums);
        step(shape.gates, hidden,
             fed.data() + ((time * batch + sequence) * directions + direction) * rows, back.data(),
             bias.empty() ? nullptr : bias.data() + direction * hidden, own_h, own_c);
        for (int64_t n = 0; n < hidden; ++n)
          own_h[n] = stored(own_h[n], call.in(kFed).dtype, call.sums);
        std::copy_n(own_h, hidden,
                    y.data() + ((time * directions + direction) * batch + sequence) * hidden);
      }
    }
  }
  const std::vector<double>* all[] = {&y, &h, &c};
  for (size_t output = 0; output < outputs.size(); ++output)
    if (!outputs[output].empty()) write_reals(outputs[output], *all[output]);
  return ok_status();
}

}  // namespace obelisk::ops

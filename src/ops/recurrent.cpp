#include "ops/recurrent.h"

#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"

namespace obelisk::ops {
namespace {

struct Known {  // an activation, and its alpha and beta where it has them
  std::string_view name;
  int parameters;
  double alpha, beta;
};
constexpr Known kKnown[] = {
    {"relu", 0, 0, 0},         {"tanh", 0, 0, 0},
    {"sigmoid", 0, 0, 0},      {"affine", 2, 1, 0},
    {"leakyrelu", 1, 0.01, 0}, {"thresholdedrelu", 1, 1, 0},
    {"scaledtanh", 2, 1, 1},   {"hardsigmoid", 2, 0.2, 0.5},
    {"elu", 1, 1, 0},          {"softsign", 0, 0, 0},
    {"softplus", 0, 0, 0},
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string_view default_activations(Op op) {
  if (op == Op::LSTM) return "Sigmoid,Tanh,Tanh";
  if (op == Op::GRU) return "Sigmoid,Tanh";
  return "Tanh";
}

/// Names in order; alphas and betas go, in order, to those that have them.
Result<std::vector<Activation>> parse_activations(const Call& call, int64_t directions) {
  std::string text(default_activations(call.op));
  const auto each = static_cast<size_t>(std::count(text.begin(), text.end(), ',') + 1);
  if (directions == 2) text += "," + text;
  const std::string given = call.attrs.get_string("activations", "");
  if (!given.empty()) text = given;
  const std::vector<double> alphas = call.attrs.get_floats("activation_alpha");
  const std::vector<double> betas = call.attrs.get_floats("activation_beta");
  std::vector<Activation> activations;
  size_t alpha = 0, beta = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    Activation activation{lower(text.substr(begin, end - begin))};
    begin = end + 1;
    const Known* known =
        std::find_if(std::begin(kKnown), std::end(kKnown),
                     [&](const Known& entry) { return entry.name == activation.name; });
    if (known == std::end(kKnown)) {
      return bad_call(
          call, fmt::format("activation '{}'", activation.name),
          "the standard lists Relu, Tanh, Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, "
          "HardSigmoid, Elu, Softsign and Softplus");
    }
    activation.alpha =
        known->parameters > 0 && alpha < alphas.size() ? alphas[alpha++] : known->alpha;
    activation.beta = known->parameters > 1 && beta < betas.size() ? betas[beta++] : known->beta;
    activations.push_back(std::move(activation));
  }
  if (activations.size() != each * static_cast<size_t>(directions)) {
    return bad_call(call,
                    fmt::format("{} activations for {} direction(s), wanted {}", activations.size(),
                                directions, each * static_cast<size_t>(directions)));
  }
  return activations;
}

Status check_shape(const Call& call, int input, std::string_view what, const Shape& wanted) {
  if (call.has(input) && call.in(input).shape != wanted) {
    return bad_call(call, fmt::format("{} is {}, wanted {}", what, to_string(call.in(input).shape),
                                      to_string(wanted)));
  }
  return ok_status();
}

/// One direction's weights and one step of it. Arrays are of doubles, `state` [H] of one sequence.
class Cell {
 public:
  Cell(const Call& call, const RecurrentShape& shape, int64_t direction)
      : call_(call), shape_(shape), hidden_(shape.hidden) {
    const size_t each = shape.activations.size() / static_cast<size_t>(shape.directions);
    for (size_t n = 0; n < each; ++n)
      activations_.push_back(shape.activations[static_cast<size_t>(direction) * each + n]);
  }

  double apply(int activation, double x) const {
    if (shape_.clip > 0) x = std::clamp(x, -shape_.clip, shape_.clip);
    return activate(activations_[activation], x);
  }

  /// `gates` [4*H]: X W^T + H R^T + biases. `peepholes` [3*H] or null.
  void step_lstm(const double* gates, const double* peepholes, double* h, double* c) const {
    const bool coupled = call_.attrs.get_int("input_forget", 0) != 0;
    for (int64_t n = 0; n < hidden_; ++n) {
      auto peep = [&](int64_t gate) { return peepholes ? peepholes[gate * hidden_ + n] : 0; };
      const double in = apply(0, gates[n] + peep(0) * c[n]);
      const double forget = coupled ? 1 - in : apply(0, gates[2 * hidden_ + n] + peep(2) * c[n]);
      const double cell = apply(1, gates[3 * hidden_ + n]);
      c[n] = forget * c[n] + in * cell;
      const double out = apply(0, gates[hidden_ + n] + peep(1) * c[n]);
      h[n] = out * apply(2, c[n]);
    }
  }

  void step_plain(const double* gates, double* h) const {
    for (int64_t n = 0; n < hidden_; ++n) h[n] = apply(0, gates[n]);
  }

  /// `fed` [3*H]: X W^T + its bias. `back` [3*H]: H R^T. `recurrent` [H, H]: R of the hidden gate,
  /// transposed, for the rule that resets before the product.
  void step_gru(const double* fed, const double* back, const double* back_bias,
                const double* recurrent, double* h) const {
    const bool linear = call_.attrs.get_int("linear_before_reset", 0) != 0;
    std::vector<double> update(hidden_), reset(hidden_), product(hidden_);
    for (int64_t n = 0; n < hidden_; ++n) {
      update[n] = apply(0, fed[n] + back[n] + back_bias[n]);
      reset[n] = apply(0, fed[hidden_ + n] + back[hidden_ + n] + back_bias[hidden_ + n]);
    }
    const double* bias = back_bias + 2 * hidden_;
    if (linear) {
      for (int64_t n = 0; n < hidden_; ++n)
        product[n] = reset[n] * (back[2 * hidden_ + n] + bias[n]);
    } else {
      std::vector<double> kept(hidden_);
      for (int64_t n = 0; n < hidden_; ++n) kept[n] = reset[n] * h[n];
      gemm(1, hidden_, hidden_, kept.data(), hidden_, recurrent, hidden_, product.data(), hidden_,
           call_.sums);
      for (int64_t n = 0; n < hidden_; ++n) product[n] += bias[n];
    }
    for (int64_t n = 0; n < hidden_; ++n) {
      const double candidate = apply(1, fed[2 * hidden_ + n] + product[n]);
      h[n] = (1 - update[n]) * candidate + update[n] * h[n];
    }
  }

 private:
  const Call& call_;
  const RecurrentShape& shape_;
  int64_t hidden_;
  std::vector<Activation> activations_;
};

}  // namespace

double activate(const Activation& activation, double x) {
  const std::string& name = activation.name;
  const double alpha = activation.alpha, beta = activation.beta;
  if (name == "sigmoid") return 1 / (1 + std::exp(-x));
  if (name == "tanh") return std::tanh(x);
  if (name == "relu") return x > 0 || std::isnan(x) ? x : 0;
  if (name == "affine") return alpha * x + beta;
  if (name == "leakyrelu") return x >= 0 ? x : alpha * x;
  if (name == "thresholdedrelu") return x >= alpha ? x : 0;
  if (name == "scaledtanh") return alpha * std::tanh(beta * x);
  if (name == "hardsigmoid") return std::min(std::max(alpha * x + beta, 0.0), 1.0);
  if (name == "elu") return x >= 0 ? x : alpha * std::expm1(x);
  if (name == "softsign") return x / (1 + std::fabs(x));
  CHECK(name == "softplus", "activation {}", name);
  return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

Result<RecurrentShape> recurrent_shape(const Call& call) {
  RecurrentShape shape;
  shape.gates = call.op == Op::LSTM ? 4 : call.op == Op::GRU ? 3 : 1;
  shape.batch_first = call.attrs.get_int("layout", 0) != 0;
  const std::string direction = call.attrs.get_string("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return bad_call(call, fmt::format("direction '{}'", direction),
                    "one of forward, reverse, bidirectional");
  }
  shape.directions = direction == "bidirectional" ? 2 : 1;
  shape.first_backwards = direction == "reverse";
  const Shape& x = call.in(kSequence).shape;
  const Shape& r = call.in(kRecurrence).shape;
  if (x.size() != 3 || r.size() != 3) {
    return bad_call(call, fmt::format("X {} and R {}, wanted rank 3", to_string(x), to_string(r)));
  }
  shape.length = x[shape.batch_first ? 1 : 0];
  shape.batch = x[shape.batch_first ? 0 : 1];
  shape.input = x[2];
  shape.hidden = r[2];
  if (call.attrs.get_int("hidden_size", shape.hidden) != shape.hidden) {
    return bad_call(call, fmt::format("hidden_size {} but R is {}",
                                      call.attrs.get_int("hidden_size", 0), to_string(r)));
  }
  const int64_t rows = shape.gates * shape.hidden, directions = shape.directions;
  const Shape state = shape.batch_first ? Shape{shape.batch, directions, shape.hidden}
                                        : Shape{directions, shape.batch, shape.hidden};
  TRY_STATUS(check_shape(call, kWeights, "W", {directions, rows, shape.input}));
  TRY_STATUS(check_shape(call, kRecurrence, "R", {directions, rows, shape.hidden}));
  TRY_STATUS(check_shape(call, kBiases, "B", {directions, 2 * rows}));
  TRY_STATUS(check_shape(call, kLengths, "sequence_lens", {shape.batch}));
  TRY_STATUS(check_shape(call, kInitialH, "initial_h", state));
  TRY_STATUS(check_shape(call, kInitialC, "initial_c", state));
  TRY_STATUS(check_shape(call, kPeepholes, "P", {directions, 3 * shape.hidden}));
  TRY(shape.activations, parse_activations(call, directions));
  shape.clip = call.attrs.get_float("clip", 0);
  if (shape.clip < 0) return bad_call(call, fmt::format("clip {}, wanted at least 0", shape.clip));
  return shape;
}

Result<Types> infer_recurrent(const Call& call) {
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) continue;
    TRY_STATUS(check_dtype(call, input, input == kLengths ? dtype_set({DType::i32}) : kFloats));
  }
  TRY(const RecurrentShape shape, recurrent_shape(call));
  const DType dtype = call.in(kSequence).dtype;
  Shape y{shape.length, shape.directions, shape.batch, shape.hidden};
  Shape last{shape.directions, shape.batch, shape.hidden};
  if (shape.batch_first) {
    y = {shape.batch, shape.length, shape.directions, shape.hidden};
    last = {shape.batch, shape.directions, shape.hidden};
  }
  Types types{{dtype, y}, {dtype, last}};
  if (call.op == Op::LSTM) types.push_back({dtype, last});
  return types;
}

Cost cost_recurrent(const Call& call) {
  const RecurrentShape shape = *recurrent_shape(call);
  Cost cost = cost_move(call);
  const auto rows = static_cast<double>(shape.directions * shape.length * shape.batch);
  cost.flops = {2 * rows * static_cast<double>(shape.gates * shape.hidden) *
                static_cast<double>(shape.input + shape.hidden)};
  return cost;
}

Status reference_recurrent(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs) {
  TRY(const RecurrentShape shape, recurrent_shape(call));
  const int64_t length = shape.length, batch = shape.batch, hidden = shape.hidden;
  const int64_t rows = shape.gates * hidden, directions = shape.directions;
  auto optional = [&](int input) {
    return call.has(input) ? read_reals(*inputs[input]) : std::vector<double>{};
  };
  const std::vector<double> x = read_reals(*inputs[kSequence]), w = read_reals(*inputs[kWeights]);
  const std::vector<double> r = read_reals(*inputs[kRecurrence]);
  std::vector<double> biases = optional(kBiases);
  biases.resize(directions * 2 * rows, 0.0);
  const std::vector<double> initial_h = optional(kInitialH), initial_c = optional(kInitialC);
  const std::vector<double> peepholes = optional(kPeepholes);
  const std::vector<int64_t> lengths =
      call.has(kLengths) ? read_ints(*inputs[kLengths]) : std::vector<int64_t>(batch, length);
  for (int64_t own : lengths) {
    if (own < 0 || own > length)
      return bad_call(call, fmt::format("sequence_lens holds {}, wanted 0 to {}", own, length));
  }
  auto state_at = [&](int64_t direction, int64_t sequence) {
    return (shape.batch_first ? sequence * directions + direction : direction * batch + sequence) *
           hidden;
  };
  std::vector<double> y(length * directions * batch * hidden, 0.0);
  std::vector<double> last_h(directions * batch * hidden), last_c(last_h.size());
  for (int64_t direction = 0; direction < directions; ++direction) {
    const Cell cell(call, shape, direction);
    const std::vector<double> transposed_w =
        transposed(w.data() + direction * rows * shape.input, rows, shape.input);
    const std::vector<double> transposed_r =
        transposed(r.data() + direction * rows * hidden, rows, hidden);
    const double* in_bias = biases.data() + direction * 2 * rows;
    const double* back_bias = in_bias + rows;
    // R of GRU's hidden gate alone, [H, H] transposed.
    const std::vector<double> candidate =
        call.op == Op::GRU
            ? transposed(r.data() + (direction * rows + 2 * hidden) * hidden, hidden, hidden)
            : std::vector<double>{};
    std::vector<double> fed(length * batch *
                            rows);  // every step's input product, [T, B, G*H] or [B, T, G*H]
    gemm_on_threads(length * batch, rows, shape.input, x.data(), shape.input, transposed_w.data(),
                    rows, fed.data(), rows, call.sums);
    const DType kept = call.in(kSequence).dtype;
    for (double& value : fed) value = stored(value, kept, call.sums);
    for (int64_t sequence = 0; sequence < batch; ++sequence) {
      std::vector<double> h(hidden, 0.0), c(hidden, 0.0), gates(rows), back(rows);
      const int64_t state = state_at(direction, sequence);
      if (!initial_h.empty()) std::copy_n(initial_h.data() + state, hidden, h.data());
      if (!initial_c.empty()) std::copy_n(initial_c.data() + state, hidden, c.data());
      const int64_t steps = lengths[sequence];
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t time = shape.backwards(direction) ? steps - 1 - step : step;
        const int64_t row = shape.batch_first ? sequence * length + time : time * batch + sequence;
        gemm(1, rows, hidden, h.data(), hidden, transposed_r.data(), rows, back.data(), rows,
             call.sums);
        for (int64_t n = 0; n < rows; ++n) {
          gates[n] = fed[row * rows + n] + in_bias[n];
          if (call.op != Op::GRU) gates[n] += back[n] + back_bias[n];
        }
        if (call.op == Op::LSTM) {
          const double* peep =
              peepholes.empty() ? nullptr : peepholes.data() + direction * 3 * hidden;
          cell.step_lstm(gates.data(), peep, h.data(), c.data());
        } else if (call.op == Op::GRU) {
          cell.step_gru(gates.data(), back.data(), back_bias, candidate.data(), h.data());
        } else {
          cell.step_plain(gates.data(), h.data());
        }
        for (double& value : h) value = stored(value, kept, call.sums);
        const int64_t place = shape.batch_first
                                  ? (sequence * length + time) * directions + direction
                                  : (time * directions + direction) * batch + sequence;
        std::copy_n(h.data(), hidden, y.data() + place * hidden);
      }
      std::copy_n(h.data(), hidden, last_h.data() + state);
      std::copy_n(c.data(), hidden, last_c.data() + state);
    }
  }
  const std::vector<double>* all[] = {&y, &last_h, &last_c};
  for (size_t output = 0; output < outputs.size(); ++output)
    if (!outputs[output].empty()) write_reals(outputs[output], *all[output]);
  return ok_status();
}

}  // namespace obelisk::ops

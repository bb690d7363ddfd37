// LSTM, GRU and RNN: the input products of all steps at once, then the steps. Where nothing special
// is asked of them they are a Recurrence, which a machine may have a block for; else, and where
// there is none, each step is a product with the state and the gates. A sequence that has ended
// keeps its state and shows zeros.
#include "ops/expand_steps.h"
#include "ops/recurrence.h"
#include "ops/recurrent.h"

namespace obelisk::ops {
namespace {

using Value = Steps::Value;

Value slice(Steps& steps, Value x, int64_t axis, int64_t begin, int64_t end) {
  if (begin == 0 && steps.shape(x)[axis] == end) return x;
  return steps.add(Op::Slice, {x, steps.ints({begin}), steps.ints({end}), steps.ints({axis})});
}
Value transpose(Steps& steps, Value x, std::vector<int64_t> order) {
  return steps.add(Op::Transpose, {x}, Attrs().set("perm", std::move(order)));
}
Value join(Steps& steps, std::vector<Value> parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  return steps.add(Op::Concat, std::move(parts), Attrs().set("axis", axis));
}

/// What the steps of one direction begin with.
struct Given {
  Op cell = Op::RNN;
  DType own = DType::f32;  // in which the state meets R
  int64_t length = 0, batch = 0, hidden = 0;
  bool backwards = false;
  std::vector<Activation> activations;
  double clip = 0;
  bool coupled = false, linear = false;    // LSTM's input_forget, GRU's linear_before_reset
  Value fed = Expander::kAbsent;           // [T, B, G*H], with its bias, in the compute type
  Value transposed_r = Expander::kAbsent;  // [H, G*H]
  Value back_bias[3] = {Expander::kAbsent, Expander::kAbsent,
                        Expander::kAbsent};            // [H] by gate, of GRU
  Value peepholes = Expander::kAbsent;                 // [3*H]
  Value lengths = Expander::kAbsent;                   // [B, 1]
  Value h = Expander::kAbsent, c = Expander::kAbsent;  // [B, H], in the compute type
};

/// The steps of one direction.
class Unrolled {
 public:
  Unrolled(Steps& steps, const Given& given)
      : steps_(steps), given_(given), type_(steps.dtype(given.fed)), h_(given.h), c_(given.c) {}

  Value operand(Value x) { return steps_.stored_as(x, given_.own); }
  Value gate(Value x, int64_t index) {
    const auto axis = static_cast<int64_t>(steps_.shape(x).size()) - 1;
    return slice(steps_, x, axis, index * given_.hidden, (index + 1) * given_.hidden);
  }

  Value activate(int index, Value x) {
    const Activation& wanted = given_.activations[static_cast<size_t>(index)];
    if (given_.clip > 0) {
      x = steps_.add(Op::Clip,
                     {x, steps_.scalar(type_, -given_.clip), steps_.scalar(type_, given_.clip)});
    }
    const std::string& name = wanted.name;
    const Attrs alpha = Attrs().set("alpha", wanted.alpha);
    if (name == "sigmoid") return steps_(Op::Sigmoid, x);
    if (name == "tanh") return steps_(Op::Tanh, x);
    if (name == "relu") return steps_(Op::Relu, x);
    if (name == "affine") return steps_(Op::Add, steps_(Op::Mul, x, wanted.alpha), wanted.beta);
    if (name == "leakyrelu") return steps_.add(Op::LeakyRelu, {x}, alpha);
    if (name == "elu") return steps_.add(Op::Elu, {x}, alpha);
    if (name == "softsign") return steps_(Op::Softsign, x);
    if (name == "softplus") return steps_(Op::Softplus, x);
    if (name == "hardsigmoid")
      return steps_.add(Op::HardSigmoid, {x}, Attrs(alpha).set("beta", wanted.beta));
    if (name == "scaledtanh")
      return steps_(Op::Mul, steps_(Op::Tanh, steps_(Op::Mul, x, wanted.beta)), wanted.alpha);
    CHECK(name == "thresholdedrelu", "activation {}", name);
    const Value passes = steps_(Op::GreaterOrEqual, x, wanted.alpha);
    return steps_.where(passes, x, steps_.scalar(type_, 0));
  }

  /// A gate's part of the product with the state. A product for each gate, so that what follows
  /// belongs to its tile; the gate that needs the others comes last.
  Value back(Value state, int64_t index) {
    const int64_t hidden = given_.hidden;
    return steps_(Op::MatMul, operand(state),
                  slice(steps_, given_.transposed_r, 1, index * hidden, (index + 1) * hidden));
  }

  /// One step from `fed` [B, G*H], the input's product with its bias; changes h and c.
  void step_lstm(Value fed) {
    auto before = [&](int64_t index) { return steps_(Op::Add, gate(fed, index), back(h_, index)); };
    auto peep = [&](Value x, int64_t index, Value cell) {
      if (!peeps()) return x;
      return steps_(Op::Add, x, steps_(Op::Mul, gate(given_.peepholes, index), cell));
    };
    const Value in = activate(0, peep(before(0), 0, c_));
    Value forget;
    if (given_.coupled) {
      forget = steps_(Op::Sub, steps_.scalar(type_, 1), in);
    } else {
      forget = activate(0, peep(before(2), 2, c_));
    }
    Value out = before(1);
    if (!peeps()) out = activate(0, out);
    const Value kept = steps_(Op::Mul, forget, c_);
    const Value candidate = activate(1, before(3));
    c_ = steps_(Op::Add, kept, steps_(Op::Mul, in, candidate));
    if (peeps()) out = activate(0, peep(out, 1, c_));
    h_ = steps_(Op::Mul, out, activate(2, c_));
  }

  void step_gru(Value fed) {
    auto biased = [&](Value x, int64_t index) {
      const Value bias = given_.back_bias[index];
      return bias == Expander::kAbsent ? x : steps_(Op::Add, x, bias);
    };
    auto before = [&](int64_t index) {
      return steps_(Op::Add, gate(fed, index), biased(back(h_, index), index));
    };
    const Value update = activate(0, before(0));
    const Value reset = activate(0, before(1));
    Value kept;
    if (given_.linear) {
      kept = steps_(Op::Mul, reset, biased(back(h_, 2), 2));
    } else {
      kept = biased(back(steps_(Op::Mul, reset, h_), 2), 2);
    }
    const Value candidate = activate(1, steps_(Op::Add, gate(fed, 2), kept));
    const Value rest = steps_(Op::Sub, steps_.scalar(type_, 1), update);
    h_ = steps_(Op::Add, steps_(Op::Mul, rest, candidate), steps_(Op::Mul, update, h_));
  }

  /// Y of this direction [T, 1, B, H].
  Value run() {
    const auto [length, batch, hidden] = std::tuple(given_.length, given_.batch, given_.hidden);
    const int64_t rows = steps_.shape(given_.fed)[2];
    const bool ragged = given_.lengths != Expander::kAbsent;
    const Value zero = steps_.scalar(type_, 0);
    std::vector<Value> shown(length);
    for (int64_t step = 0; step < length; ++step) {
      const int64_t time = given_.backwards ? length - 1 - step : step;
      const Value now = steps_.reshape(slice(steps_, given_.fed, 0, time, time + 1), {batch, rows});
      const Value h = h_, c = c_;
      if (given_.cell == Op::LSTM)
        step_lstm(now);
      else if (given_.cell == Op::GRU)
        step_gru(now);
      else
        h_ =
            activate(0, steps_(Op::Add, now, steps_(Op::MatMul, operand(h_), given_.transposed_r)));
      Value seen = h_;
      if (ragged) {  // run backwards, a sequence keeps its initial state until its own end is
                     // reached
        const Value alive =
            steps_(Op::Less, steps_.scalar(DType::i32, static_cast<double>(time)), given_.lengths);
        seen = steps_.where(alive, h_, zero);
        h_ = steps_.where(alive, h_, h);
        if (given_.cell == Op::LSTM) c_ = steps_.where(alive, c_, c);
      }
      shown[time] = steps_.reshape(seen, {1, 1, batch, hidden});
    }
    return join(steps_, std::move(shown), 0);
  }

  Value h() const { return h_; }
  Value c() const { return c_; }

 private:
  bool peeps() const { return given_.peepholes != Expander::kAbsent; }

  Steps& steps_;
  const Given& given_;
  const DType type_;
  Value h_, c_;
};

/// Y [T, D, B, H], last h and c [D, B, H], in the compute type.
std::vector<Value> unroll(Steps& steps, const std::vector<Given>& directions) {
  std::vector<Value> y, h, c;
  for (const Given& given : directions) {
    Unrolled unrolled(steps, given);
    y.push_back(unrolled.run());
    const Shape state{1, given.batch, given.hidden};
    h.push_back(steps.reshape(unrolled.h(), state));
    if (given.cell == Op::LSTM) c.push_back(steps.reshape(unrolled.c(), state));
  }
  std::vector<Value> all{join(steps, std::move(y), 1), join(steps, std::move(h), 0)};
  if (!c.empty()) all.push_back(join(steps, std::move(c), 0));
  return all;
}

/// A recurrent layer in parts.
class Layer {
 public:
  Layer(const Call& call, const RecurrentShape& shape, Steps& steps)
      : call_(call), shape_(shape), steps_(steps) {}

  /// The input [T, B, I] in the compute type.
  Value sequence() {
    const Value x = steps_.widen(steps_.in(kSequence));
    return shape_.batch_first ? transpose(steps_, x, {1, 0, 2}) : x;
  }
  /// This direction's part of an input [D, ...], in the compute type.
  Value part(int input, int64_t direction) {
    const Value x = steps_.widen(steps_.in(input));
    Shape shape = steps_.shape(x);
    const Value own = slice(steps_, x, 0, direction, direction + 1);
    return steps_.reshape(own, Shape(shape.begin() + 1, shape.end()));
  }
  /// A direction's initial state [B, H].
  Value initial(int input, int64_t direction, DType type) {
    const Shape to{shape_.batch, shape_.hidden};
    if (!call_.has(input)) return steps_.add(Op::Expand, {steps_.scalar(type, 0), steps_.ints(to)});
    const Value x = steps_.cast(steps_.in(input), type);
    return steps_.reshape(slice(steps_, x, shape_.batch_first ? 1 : 0, direction, direction + 1),
                          to);
  }
  /// All that the steps of one direction need; x is [T, B, I] in the compute type.
  Given given(Value x, int64_t direction) {
    const DType type = steps_.dtype(x);
    const int64_t hidden = shape_.hidden, rows = shape_.gates * hidden;
    const size_t each = shape_.activations.size() / static_cast<size_t>(shape_.directions);
    const auto first = shape_.activations.begin() + static_cast<int64_t>(each) * direction;
    Given g{.cell = call_.op,
            .own = call_.in(kSequence).dtype,
            .length = shape_.length,
            .batch = shape_.batch,
            .hidden = hidden,
            .backwards = shape_.backwards(direction),
            .activations = std::vector<Activation>(first, first + static_cast<int64_t>(each)),
            .clip = shape_.clip,
            .coupled = call_.attrs.get_int("input_forget", 0) != 0,
            .linear = call_.attrs.get_int("linear_before_reset", 0) != 0};
    g.transposed_r = steps_.cast(transpose(steps_, part(kRecurrence, direction), {1, 0}), type);
    g.fed = steps_(Op::MatMul, x,
                   steps_.cast(transpose(steps_, part(kWeights, direction), {1, 0}), type));
    if (call_.has(kBiases)) {
      const Value biases = steps_.cast(part(kBiases, direction), type);
      Value bias = slice(steps_, biases, 0, 0, rows);
      const Value back = slice(steps_, biases, 0, rows, 2 * rows);
      if (call_.op != Op::GRU) bias = steps_(Op::Add, bias, back);
      if (call_.op == Op::GRU)
        for (int64_t gate = 0; gate < 3; ++gate)
          g.back_bias[gate] = slice(steps_, back, 0, gate * hidden, (gate + 1) * hidden);
      g.fed = steps_(Op::Add, g.fed, bias);
    }
    if (call_.has(kPeepholes)) g.peepholes = steps_.cast(part(kPeepholes, direction), type);
    if (call_.has(kLengths)) g.lengths = steps_.reshape(steps_.in(kLengths), {shape_.batch, 1});
    g.h = initial(kInitialH, direction, type);
    if (call_.op == Op::LSTM) g.c = initial(kInitialC, direction, type);
    return g;
  }

  /// Whether the steps are those of Recurrence.
  bool is_plain() const {
    if (call_.has(kPeepholes) || shape_.clip > 0) return false;
    if (call_.op == Op::LSTM && call_.attrs.get_int("input_forget", 0) != 0) return false;
    if (call_.op == Op::GRU && call_.attrs.get_int("linear_before_reset", 0) == 0) return false;
    const size_t each = shape_.activations.size() / static_cast<size_t>(shape_.directions);
    for (size_t k = 0; k < shape_.activations.size(); ++k) {
      const bool gate = call_.op != Op::RNN && k % each == 0;
      if (shape_.activations[k].name != (gate ? "sigmoid" : "tanh")) return false;
    }
    const DType own = call_.in(kSequence).dtype;
    return call_.in(kRecurrence).dtype == own && call_.in(kWeights).dtype == own;
  }

  /// All directions' input products as one, then the steps as one op.
  std::vector<Value> recurrence() {
    const Value x = sequence();
    const DType type = steps_.dtype(x);
    const int64_t hidden = shape_.hidden, rows = shape_.gates * hidden, d = shape_.directions;
    const Value w = steps_.reshape(steps_.widen(steps_.in(kWeights)), {d * rows, shape_.input});
    Value fed = steps_(Op::MatMul, x, transpose(steps_, w, {1, 0}));  // [T, B, D*G*H]
    Value hidden_bias = Expander::kAbsent;
    if (call_.has(kBiases)) {
      const Value biases = steps_.widen(steps_.in(kBiases));
      Value bias = slice(steps_, biases, 1, 0, rows);
      const Value back = slice(steps_, biases, 1, rows, 2 * rows);
      if (call_.op == Op::GRU) {  // the hidden gate's stands inside its reset
        bias = join(steps_,
                    {steps_(Op::Add, slice(steps_, bias, 1, 0, 2 * hidden),
                            slice(steps_, back, 1, 0, 2 * hidden)),
                     slice(steps_, bias, 1, 2 * hidden, rows)},
                    1);
        hidden_bias = slice(steps_, back, 1, 2 * hidden, rows);
      } else {
        bias = steps_(Op::Add, bias, back);
      }
      fed = steps_(Op::Add, fed, steps_.reshape(steps_.cast(bias, type), {d * rows}));
    }
    const auto state = [&](int input) {
      if (!call_.has(input)) return Expander::kAbsent;
      return shape_.batch_first ? transpose(steps_, steps_.in(input), {1, 0, 2}) : steps_.in(input);
    };
    const std::string cell = call_.op == Op::LSTM ? "lstm" : call_.op == Op::GRU ? "gru" : "rnn";
    return steps_.add_all(
        Op::Recurrence,
        {fed, steps_.in(kRecurrence), hidden_bias,
         call_.has(kLengths) ? steps_.in(kLengths) : Expander::kAbsent, state(kInitialH),
         call_.op == Op::LSTM ? state(kInitialC) : Expander::kAbsent},
        Attrs().set("cell", cell).set("direction", call_.attrs.get_string("direction", "forward")),
        call_.op == Op::LSTM ? 3 : 2);
  }

 private:
  const Call& call_;
  const RecurrentShape& shape_;
  Steps& steps_;
};

}  // namespace

std::vector<int32_t> expand_recurrent(const Call& call, Expander& expander) {
  const RecurrentShape shape = *recurrent_shape(call);
  Steps steps(expander);
  Layer layer(call, shape, steps);
  std::vector<Value> all;
  if (shape.length == 0) return {};
  if (layer.is_plain()) {
    all = layer.recurrence();
  } else {
    if (shape.length > kMostSteps) return {};
    const Value x = layer.sequence();
    std::vector<Given> directions;
    for (int64_t direction = 0; direction < shape.directions; ++direction)
      directions.push_back(layer.given(x, direction));
    all = unroll(steps, directions);
  }
  all.resize(static_cast<size_t>(std::max(call.outputs, 1)));
  for (size_t k = 0; k < all.size(); ++k) {
    if (shape.batch_first)
      all[k] = transpose(steps, all[k],
                         k == 0 ? std::vector<int64_t>{2, 0, 1, 3} : std::vector<int64_t>{1, 0, 2});
    all[k] = steps.cast(all[k], call.in(kSequence).dtype);
  }
  return all;
}

std::vector<int32_t> expand_recurrence(const Call& call, Expander& expander) {
  const RecurrenceShape shape = *recurrence_shape(call);
  if (shape.length == 0 || shape.length > kMostSteps) return {};
  Steps steps(expander);
  const Value fed = steps.in(kFed);
  const DType type = steps.dtype(fed), own = call.in(kFedRecurrence).dtype;
  const int64_t hidden = shape.hidden, rows = shape.gates * hidden;
  const Shape state{shape.batch, hidden};
  std::vector<Given> directions;
  for (int64_t d = 0; d < shape.directions; ++d) {
    Given g{.cell = shape.gates == 4   ? Op::LSTM
                    : shape.gates == 3 ? Op::GRU
                                       : Op::RNN,
            .own = own,
            .length = shape.length,
            .batch = shape.batch,
            .hidden = hidden,
            .backwards = d == 1 || shape.first_backwards,
            .linear = true};
    if (shape.gates > 1) g.activations.push_back({"sigmoid"});
    g.activations.push_back({"tanh"});
    if (shape.gates == 4) g.activations.push_back({"tanh"});
    const auto part = [&](Value x, int64_t axis, const Shape& to) {
      return steps.reshape(slice(steps, x, axis, d, d + 1), to);
    };
    const auto initial = [&](int input) {
      if (!call.has(input))
        return steps.add(Op::Expand, {steps.scalar(type, 0), steps.ints(state)});
      return part(steps.cast(steps.in(input), type), 0, state);
    };
    g.fed = slice(steps, fed, 2, d * rows, (d + 1) * rows);
    const Value r = part(steps.widen(steps.in(kFedRecurrence)), 0, {rows, hidden});
    g.transposed_r = steps.cast(transpose(steps, r, {1, 0}), type);
    if (call.has(kHiddenBias))
      g.back_bias[2] = steps.cast(part(steps.in(kHiddenBias), 0, {hidden}), type);
    if (call.has(kFedLengths)) g.lengths = steps.reshape(steps.in(kFedLengths), {shape.batch, 1});
    g.h = initial(kFedInitialH);
    if (shape.gates == 4) g.c = initial(kFedInitialC);
    directions.push_back(g);
  }
  std::vector<Value> all = unroll(steps, directions);
  all.resize(static_cast<size_t>(std::max(call.outputs, 1)), Expander::kAbsent);
  for (Value& value : all)
    if (value != Expander::kAbsent) value = steps.cast(value, own);
  return all;
}

}  // namespace obelisk::ops

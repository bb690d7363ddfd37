// LSTM, GRU and RNN unrolled: the input products of all steps at once, then for each step the
// product with the state and the gates. A sequence that has ended keeps its state and shows zeros.
#include "ops/expand_steps.h"
#include "ops/recurrent.h"

namespace obelisk::ops {
namespace {

using Value = Steps::Value;

/// The steps of one direction.
class Unrolled {
 public:
  Unrolled(const Call& call, const RecurrentShape& shape, Steps& steps, int64_t direction)
      : call_(call), shape_(shape), steps_(steps), direction_(direction) {}

  Value slice(Value x, int64_t axis, int64_t begin, int64_t end) {
    if (begin == 0 && steps_.shape(x)[axis] == end) return x;
    return steps_.add(Op::Slice,
                      {x, steps_.ints({begin}), steps_.ints({end}), steps_.ints({axis})});
  }
  Value transpose(Value x, std::vector<int64_t> order) {
    return steps_.add(Op::Transpose, {x}, Attrs().set("perm", std::move(order)));
  }
  /// This direction's part of an input [D, ...], in the compute type.
  Value part(int input) {
    const Value x = steps_.widen(steps_.in(input));
    Shape shape = steps_.shape(x);
    const Value own = slice(x, 0, direction_, direction_ + 1);
    return steps_.reshape(own, Shape(shape.begin() + 1, shape.end()));
  }
  /// This direction's initial state [B, H].
  Value initial(int input) {
    const Shape to{shape_.batch, shape_.hidden};
    if (!call_.has(input))
      return steps_.add(Op::Expand, {steps_.scalar(type_, 0), steps_.ints(to)});
    const Value x = steps_.cast(steps_.in(input), type_);
    return steps_.reshape(slice(x, shape_.batch_first ? 1 : 0, direction_, direction_ + 1), to);
  }
  Value operand(Value x) { return steps_.stored_as(x, call_.in(kSequence).dtype); }
  Value gate(Value x, int64_t index) {
    const auto axis = static_cast<int64_t>(steps_.shape(x).size()) - 1;
    return slice(x, axis, index * shape_.hidden, (index + 1) * shape_.hidden);
  }

  Value activate(int index, Value x) {
    const size_t each = shape_.activations.size() / static_cast<size_t>(shape_.directions);
    const Activation& wanted =
        shape_.activations[static_cast<size_t>(direction_) * each + static_cast<size_t>(index)];
    if (shape_.clip > 0) {
      x = steps_.add(Op::Clip,
                     {x, steps_.scalar(type_, -shape_.clip), steps_.scalar(type_, shape_.clip)});
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

  /// A gate's part of the product with the state. A product for each gate, so that what follows belongs to its tile; the gate that needs
  /// the others comes last.
  Value back(Value state, int64_t index) {
    const int64_t hidden = shape_.hidden;
    return steps_(Op::MatMul, operand(state),
                  slice(turned_r_, 1, index * hidden, (index + 1) * hidden));
  }

  /// One step from `fed` [B, G*H], the input's product with its bias; changes h and c.
  void step_lstm(Value fed) {
    auto before = [&](int64_t index) {
      return steps_(Op::Add, gate(fed, index), back(h_, index));
    };
    auto peep = [&](Value x, int64_t index, Value cell) {
      if (!call_.has(kPeepholes)) return x;
      return steps_(Op::Add, x, steps_(Op::Mul, gate(peepholes_, index), cell));
    };
    const Value in = activate(0, peep(before(0), 0, c_));
    Value forget;
    if (call_.attrs.get_int("input_forget", 0) != 0) {
      forget = steps_(Op::Sub, steps_.scalar(type_, 1), in);
    } else {
      forget = activate(0, peep(before(2), 2, c_));
    }
    Value out = before(1);
    if (!call_.has(kPeepholes)) out = activate(0, out);
    const Value kept = steps_(Op::Mul, forget, c_);
    const Value candidate = activate(1, before(3));
    c_ = steps_(Op::Add, kept, steps_(Op::Mul, in, candidate));
    if (call_.has(kPeepholes)) out = activate(0, peep(out, 1, c_));
    h_ = steps_(Op::Mul, out, activate(2, c_));
  }

  void step_gru(Value fed) {
    const int64_t hidden = shape_.hidden;
    const bool linear = call_.attrs.get_int("linear_before_reset", 0) != 0;
    auto biased = [&](Value x, int64_t index) {
      if (!call_.has(kBiases)) return x;
      return steps_(Op::Add, x, slice(back_bias_, 0, index * hidden, (index + 1) * hidden));
    };
    auto before = [&](int64_t index) {
      return steps_(Op::Add, gate(fed, index), biased(back(h_, index), index));
    };
    const Value update = activate(0, before(0));
    const Value reset = activate(0, before(1));
    Value kept;
    if (linear) {
      kept = steps_(Op::Mul, reset, biased(back(h_, 2), 2));
    } else {
      kept = biased(back(steps_(Op::Mul, reset, h_), 2), 2);
    }
    const Value candidate = activate(1, steps_(Op::Add, gate(fed, 2), kept));
    const Value rest = steps_(Op::Sub, steps_.scalar(type_, 1), update);
    h_ = steps_(Op::Add, steps_(Op::Mul, rest, candidate), steps_(Op::Mul, update, h_));
  }

  /// Y of this direction [T, 1, B, H]; x is [T, B, I] in the compute type.
  Value run(Value x) {
    type_ = steps_.dtype(x);
    const auto [length, batch, hidden] = std::tuple(shape_.length, shape_.batch, shape_.hidden);
    const int64_t rows = shape_.gates * hidden;
    turned_r_ = steps_.cast(transpose(part(kRecurrence), {1, 0}), type_);
    Value fed = steps_(Op::MatMul, x, steps_.cast(transpose(part(kWeights), {1, 0}), type_));
    if (call_.has(kBiases)) {
      const Value biases = steps_.cast(part(kBiases), type_);
      Value bias = slice(biases, 0, 0, rows);
      back_bias_ = slice(biases, 0, rows, 2 * rows);
      if (call_.op != Op::GRU) bias = steps_(Op::Add, bias, back_bias_);
      fed = steps_(Op::Add, fed, bias);
    }
    if (call_.has(kPeepholes)) peepholes_ = steps_.cast(part(kPeepholes), type_);
    h_ = initial(kInitialH);
    if (call_.op == Op::LSTM) c_ = initial(kInitialC);
    const bool ragged = call_.has(kLengths);
    const Value lengths =
        ragged ? steps_.reshape(steps_.in(kLengths), {batch, 1}) : Expander::kAbsent;
    const Value zero = steps_.scalar(type_, 0);
    std::vector<Value> shown(length);
    for (int64_t step = 0; step < length; ++step) {
      const int64_t time = shape_.backwards(direction_) ? length - 1 - step : step;
      const Value now = steps_.reshape(slice(fed, 0, time, time + 1), {batch, rows});
      const Value h = h_, c = c_;
      if (call_.op == Op::LSTM)
        step_lstm(now);
      else if (call_.op == Op::GRU)
        step_gru(now);
      else
        h_ = activate(0, steps_(Op::Add, now, steps_(Op::MatMul, operand(h_), turned_r_)));
      Value seen = h_;
      if (ragged) {  // run backwards, a sequence keeps its initial state until its own end is
                     // reached
        const Value alive =
            steps_(Op::Less, steps_.scalar(DType::i32, static_cast<double>(time)), lengths);
        seen = steps_.where(alive, h_, zero);
        h_ = steps_.where(alive, h_, h);
        if (call_.op == Op::LSTM) c_ = steps_.where(alive, c_, c);
      }
      shown[time] = steps_.reshape(seen, {1, 1, batch, hidden});
    }
    return join(std::move(shown), 0);
  }

  Value join(std::vector<Value> parts, int64_t axis) {
    if (parts.size() == 1) return parts[0];
    return steps_.add(Op::Concat, std::move(parts), Attrs().set("axis", axis));
  }

  Value h() const { return h_; }
  Value c() const { return c_; }

 private:
  const Call& call_;
  const RecurrentShape& shape_;
  Steps& steps_;
  int64_t direction_;
  DType type_ = DType::f32;
  Value turned_r_ = Expander::kAbsent, back_bias_ = Expander::kAbsent;
  Value peepholes_ = Expander::kAbsent, h_ = Expander::kAbsent, c_ = Expander::kAbsent;
};

}  // namespace

std::vector<int32_t> expand_recurrent(const Call& call, Expander& expander) {
  const RecurrentShape shape = *recurrent_shape(call);
  if (shape.length == 0 || shape.length > kMostSteps) return {};
  Steps steps(expander);
  const DType dtype = call.in(kSequence).dtype;
  Unrolled first(call, shape, steps, 0);
  Value x = steps.widen(steps.in(kSequence));
  if (shape.batch_first) x = first.transpose(x, {1, 0, 2});
  std::vector<Value> y, h, c;
  for (int64_t direction = 0; direction < shape.directions; ++direction) {
    Unrolled unrolled(call, shape, steps, direction);
    y.push_back(unrolled.run(x));
    const Shape state{1, shape.batch, shape.hidden};
    h.push_back(steps.reshape(unrolled.h(), state));
    if (call.op == Op::LSTM) c.push_back(steps.reshape(unrolled.c(), state));
  }
  auto finish = [&](std::vector<Value> parts, int64_t axis, std::vector<int64_t> order) {
    Value all = first.join(std::move(parts), axis);
    if (shape.batch_first) all = first.transpose(all, std::move(order));
    return steps.cast(all, dtype);
  };
  std::vector<Value> results{finish(std::move(y), 1, {2, 0, 1, 3})};
  if (call.outputs > 1) results.push_back(finish(std::move(h), 0, {1, 0, 2}));
  if (call.outputs > 2) results.push_back(finish(std::move(c), 0, {1, 0, 2}));
  return results;
}

}  // namespace obelisk::ops

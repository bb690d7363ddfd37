#include "ops/signal.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "ops/arrays.h"
#include "ops/expand.h"
#include "ops/expand_steps.h"
#include "ops/moves.h"

namespace obelisk::ops {

namespace {

Result<int64_t> known_int(const Call& call, int input, std::string_view what) {
  TRY(auto values, call.ints(input, what));
  if (values.size() != 1)
    return bad_call(call, fmt::format("{} has {} values", what, values.size()));
  return values[0];
}

}  // namespace

// ---- windows ------------------------------------------------------------------------------------

Result<Types> infer_window(const Call& call) {
  TRY(const int64_t size, known_int(call, 0, "size"));
  TRY(const DType dtype, dtype_attr(call, "output_datatype", DType::f32));
  return Types{{dtype, {size}}};
}

namespace {

// A window is offset + sum of weight[k] * cos(2 pi (k + 1) n / period).
struct Cosines {
  double offset, first, second;
};
constexpr Cosines kHann{0.5, -0.5, 0};  // sin^2(x) = (1 - cos 2x) / 2
constexpr Cosines kHamming{25.0 / 46, -21.0 / 46, 0};
constexpr Cosines kBlackman{0.42, -0.5, 0.08};

// The window repeats after its size, or its last element equals its first.
double period_of(const Call& call, int64_t size) {
  const int64_t period = call.attrs.get_int("periodic", 1) != 0 ? size : size - 1;
  return static_cast<double>(std::max<int64_t>(period, 1));
}

Loop loop_window(const Call& call, const Cosines& window) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const DType dtype = call.out().dtype;
  const DType type = dtype == DType::f64 ? DType::f64 : DType::f32;
  const double step = 2 * std::numbers::pi / period_of(call, call.out().shape[0]);
  const ExprId n = exprs.cast(start.coords[0], type);
  auto wave = [&](double weight, double times) {
    const ExprId angle = exprs.mul(n, exprs.constant(type, times * step));
    return exprs.mul(exprs.unary(Scalar::kCos, angle), exprs.constant(type, weight));
  };
  ExprId value = exprs.add(wave(window.first, 1), exprs.constant(type, window.offset));
  if (window.second != 0) value = exprs.add(value, wave(window.second, 2));
  start.loop.body = exprs.cast(value, compute_type(dtype));
  return start.loop;
}

Status reference_window(const Call& call, Tensor& to, const Cosines& window) {
  const double period = period_of(call, to.count());
  for (int64_t n = 0; n < to.count(); ++n) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(n) / period;
    to.set_double(
        n, window.offset + window.first * std::cos(angle) + window.second * std::cos(2 * angle));
  }
  return ok_status();
}

}  // namespace

std::optional<Loop> loop_hann_window(const Call& call, int) { return loop_window(call, kHann); }
std::optional<Loop> loop_hamming_window(const Call& call, int) {
  return loop_window(call, kHamming);
}
std::optional<Loop> loop_blackman_window(const Call& call, int) {
  return loop_window(call, kBlackman);
}
Status reference_hann_window(const Call& call, std::span<const Tensor* const>,
                             std::span<Tensor> outputs) {
  return reference_window(call, outputs[0], kHann);
}
Status reference_hamming_window(const Call& call, std::span<const Tensor* const>,
                                std::span<Tensor> outputs) {
  return reference_window(call, outputs[0], kHamming);
}
Status reference_blackman_window(const Call& call, std::span<const Tensor* const>,
                                 std::span<Tensor> outputs) {
  return reference_window(call, outputs[0], kBlackman);
}

// ---- MelWeightMatrix ----------------------------------------------------------------------------

Result<Types> infer_mel_weight_matrix(const Call& call) {
  TRY(const int64_t bins, known_int(call, 0, "num_mel_bins"));
  TRY(const int64_t length, known_int(call, 1, "dft_length"));
  TRY(const DType dtype, dtype_attr(call, "output_datatype", DType::f32));
  if (bins < 0 || length < 0) return bad_call(call, fmt::format("{} bins of {}", bins, length));
  for (int input : {2, 3, 4}) {
    if (call.in(input).count() != 1)
      return bad_call(
          call, fmt::format("input {} is {}, wanted a scalar", input, to_string(call.in(input))));
  }
  return Types{{dtype, {length / 2 + 1, bins}}};
}

// Triangles between neighbouring edges; the edges are evenly spaced on the mel scale, 2595 log10(1
// + f / 700).
Status reference_mel_weight_matrix(const Call&, std::span<const Tensor* const> inputs,
                                   std::span<Tensor> outputs) {
  Tensor& to = outputs[0];
  const int64_t bins = inputs[0]->get_int(0), length = inputs[1]->get_int(0);
  const double rate = inputs[2]->get_double(0);
  auto to_mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = to_mel(inputs[3]->get_double(0)), high = to_mel(inputs[4]->get_double(0));
  const double step = (high - low) / static_cast<double>(bins + 2);
  constexpr double kFar = 0x1p50;  // rates and frequencies are data: any number
  std::vector<int64_t> edge;
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * step + low) / 2595) - 1);
    const double place = std::floor(static_cast<double>(length + 1) * hertz / rate);
    edge.push_back(to_int(std::isnan(place) ? -kFar : std::clamp(place, -kFar, kFar)));
  }
  const int64_t rows = to.shape()[0];
  for (int64_t bin = 0; bin < bins; ++bin) {
    auto set = [&](int64_t row, double value) {
      if (row >= 0 && row < rows) to.set_double(row * bins + bin, value);
    };
    const int64_t left = edge[bin], center = edge[bin + 1], right = edge[bin + 2];
    const auto rise = static_cast<double>(center - left),
               fall = static_cast<double>(right - center);
    if (rise == 0) set(center, 1);
    for (int64_t row = std::max<int64_t>(left, 0); rise > 0 && row <= std::min(center, rows - 1);
         ++row) {
      set(row, static_cast<double>(row - left) / rise);
    }
    for (int64_t row = std::max<int64_t>(center, 0); fall > 0 && row < std::min(right, rows);
         ++row) {
      set(row, static_cast<double>(right - row) / fall);
    }
  }
  return ok_status();
}

// ---- DFT ----------------------------------------------------------------------------------------

namespace {

struct DftPlan {
  int64_t axis, length;
  bool inverse, onesided;
};
Result<DftPlan> dft_plan(const Call& call) {
  const Shape& from = call.in(0).shape;
  if (from.size() < 2 || (from.back() != 1 && from.back() != 2)) {
    return bad_call(
        call, fmt::format("the input {} does not end in real or real, imaginary", to_string(from)));
  }
  DftPlan plan{-2, 0, call.attrs.get_int("inverse", 0) != 0,
               call.attrs.get_int("onesided", 0) != 0};
  if (call.has(2)) {
    TRY(plan.axis, known_int(call, 2, "axis"));
  }
  TRY(plan.axis, normalize_axis(call, plan.axis, call.in(0).rank()));
  if (plan.axis == call.in(0).rank() - 1) return bad_call(call, "the last axis is not a signal");
  if (plan.onesided && from.back() != (plan.inverse ? 2 : 1)) {
    return bad_call(call, fmt::format("a onesided {} of {} parts",
                                      plan.inverse ? "inverse" : "transform", from.back()));
  }
  plan.length = plan.inverse && plan.onesided ? 2 * (from[plan.axis] - 1) : from[plan.axis];
  if (call.has(1)) {
    TRY(plan.length, known_int(call, 1, "dft_length"));
  }
  if (plan.length < 1) return bad_call(call, fmt::format("a length of {}", plan.length));
  return plan;
}

}  // namespace

Result<Types> infer_dft(const Call& call) {
  TRY(const DftPlan plan, dft_plan(call));
  Type type = call.in(0);
  type.shape[plan.axis] = plan.onesided && !plan.inverse ? plan.length / 2 + 1 : plan.length;
  type.shape.back() = plan.onesided && plan.inverse ? 1 : 2;
  return Types{type};
}

Cost cost_dft(const Call& call) {
  Cost cost = cost_move(call);
  if (auto plan = dft_plan(call); plan.ok()) {
    cost.flops.count =
        4.0 * static_cast<double>(call.out().count()) * static_cast<double>(plan->length);
  }
  return cost;
}

namespace {

using Complex = std::complex<double>;

// In place, exp(sign 2 pi i k n / N): halves as long as the length is even, then the direct sum.
void transform(std::vector<Complex>& x, double sign) {
  const size_t n = x.size();
  auto turn = [&](size_t k) {
    const double angle =
        sign * 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    return Complex(std::cos(angle), std::sin(angle));
  };
  if (n % 2 == 0) {
    std::vector<Complex> even(n / 2), odd(n / 2);
    for (size_t i = 0; i < n / 2; ++i) even[i] = x[2 * i], odd[i] = x[2 * i + 1];
    transform(even, sign);
    transform(odd, sign);
    for (size_t k = 0; k < n / 2; ++k) {
      const Complex part = turn(k) * odd[k];
      x[k] = even[k] + part;
      x[k + n / 2] = even[k] - part;
    }
    return;
  }
  std::vector<Complex> turns(n), sums(n);
  for (size_t k = 0; k < n; ++k) turns[k] = turn(k);
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) sums[k] += x[i] * turns[k * i % n];
  }
  x = sums;
}

// cos and sin of 2 pi (k n mod length) / length: the product of two indices is reduced before it
// meets a float.
struct Turn {
  ExprId cosine, sine;
};
Turn turn_of(Exprs& exprs, DType type, ExprId k, ExprId n, int64_t length) {
  // In f64: an f32 angle near 2 pi is off by more than its sine is rounded.
  const ExprId phase = exprs.cast(exprs.mod(exprs.mul(k, n), length), DType::f64);
  const double step = 2 * std::numbers::pi / static_cast<double>(length);
  const ExprId angle = exprs.mul(phase, exprs.constant(DType::f64, step));
  return {exprs.cast(exprs.unary(Scalar::kCos, angle), type),
          exprs.cast(exprs.unary(Scalar::kSin, angle), type)};
}

// The real part of (re + i im) * (cos + i sign sin) where `part` is 0, else the imaginary one.
ExprId rotated(Exprs& exprs, ExprId re, ExprId im, Turn turn, double sign, ExprId part) {
  auto signed_sine = [&](double s) {
    return s > 0 ? turn.sine : exprs.unary(Scalar::kNeg, turn.sine);
  };
  ExprId real = exprs.mul(re, turn.cosine), imaginary = exprs.mul(re, signed_sine(sign));
  if (im != kNoExpr) {
    real = exprs.add(real, exprs.mul(im, signed_sine(-sign)));
    imaginary = exprs.add(imaginary, exprs.mul(im, turn.cosine));
  }
  return exprs.select(exprs.eq(part, exprs.integer(0)), real, imaginary);
}

}  // namespace

std::optional<Loop> loop_dft(const Call& call, int) {
  const DftPlan plan = dft_plan(call).value();
  const Type& from = call.in(0);
  const bool to_real = plan.onesided && plan.inverse;
  Shape domain = call.out().shape;
  const int last = static_cast<int>(domain.size()) - 1;
  domain.push_back(std::min(from.shape[plan.axis], to_real ? plan.length / 2 + 1 : plan.length));
  auto start = start_loop(domain, last + 1);
  auto& exprs = start.loop.exprs;
  const DType type = compute_type(from.dtype);
  const ExprId n = start.coords[last + 1];
  std::vector<ExprId> at(start.coords.begin(), start.coords.begin() + last + 1);
  at[plan.axis] = n;
  auto part = [&](int64_t which) {
    at[last] = exprs.integer(which);
    return exprs.load(0, from.dtype, at);
  };
  const ExprId re = part(0), im = from.shape.back() == 2 ? part(1) : kNoExpr;
  const Turn turn = turn_of(exprs, type, start.coords[plan.axis], n, plan.length);
  start.loop.body = rotated(exprs, re, im, turn, plan.inverse ? 1 : -1,
                            to_real ? exprs.integer(0) : start.coords[last]);
  if (to_real) {  // the conjugate half is folded in: all but the first and the middle bin count
                  // twice
    const ExprId once =
        exprs.binary(Scalar::kOr, exprs.eq(n, exprs.integer(0)),
                     exprs.eq(exprs.mul(n, int64_t{2}), exprs.integer(plan.length)));
    start.loop.body = exprs.mul(
        start.loop.body, exprs.select(once, exprs.constant(type, 1), exprs.constant(type, 2)));
  }
  start.loop.combine = Combine::kSum;
  if (plan.inverse) {
    start.loop.finish =
        exprs.mul(exprs.acc(type), exprs.constant(type, 1 / static_cast<double>(plan.length)));
  }
  return start.loop;
}

namespace {

constexpr double kLargestMatrix = 1 << 22;  // elements; beyond it weights would outgrow the work

double matrix_elements(int64_t rows, int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

// [inputs * parts, outputs * out_parts]: what part p of sample n gives to part q of bin k.
// `weights`: of each sample.
Tensor transform_matrix(DType dtype, int64_t length, int64_t parts, int64_t outputs,
                        int64_t out_parts, double sign, const std::vector<double>& weights) {
  const auto inputs = static_cast<int64_t>(weights.size());
  Tensor matrix = Tensor::allocate({dtype, {inputs * parts, outputs * out_parts}});
  for (int64_t n = 0; n < inputs; ++n) {
    for (int64_t k = 0; k < outputs; ++k) {
      const double turns = static_cast<double>(k * n % length) / static_cast<double>(length);
      const double angle = sign * 2 * std::numbers::pi * turns;
      const double cosine = weights[n] * std::cos(angle), sine = weights[n] * std::sin(angle);
      const double given[2][2] = {{cosine, sine}, {-sine, cosine}};
      for (int64_t p = 0; p < parts; ++p) {
        for (int64_t q = 0; q < out_parts; ++q) {
          matrix.set_double((n * parts + p) * outputs * out_parts + k * out_parts + q, given[p][q]);
        }
      }
    }
  }
  return matrix;
}

}  // namespace

// The signal's axis goes last but one, meets the matrix, and goes back.
std::vector<int32_t> expand_dft(const Call& call, Expander& expander) {
  const DftPlan plan = dft_plan(call).value();
  const Shape& from = call.in(0).shape;
  const Shape& to = call.out().shape;
  const bool to_real = plan.onesided && plan.inverse;
  const int64_t used = std::min(from[plan.axis], to_real ? plan.length / 2 + 1 : plan.length);
  const int64_t parts = from.back(), out_parts = to.back(), bins = to[plan.axis];
  if (matrix_elements(used * parts, bins * out_parts) > kLargestMatrix || call.out().count() == 0)
    return {};
  std::vector<double> weights(used, plan.inverse ? 1 / static_cast<double>(plan.length) : 1);
  for (int64_t n = 1; to_real && n < used; ++n) {
    if (2 * n != plan.length) weights[n] *= 2;
  }
  Steps s(expander);
  auto x = s.widen(s.in(0));
  if (used < from[plan.axis]) {
    x = s.add(Op::Slice, {x, s.ints({0}), s.ints({used}), s.ints({plan.axis})});
  }
  std::vector<int64_t> perm, back(from.size());
  for (int64_t axis = 0; axis + 1 < static_cast<int64_t>(from.size()); ++axis) {
    if (axis != plan.axis) perm.push_back(axis);
  }
  perm.push_back(plan.axis);
  perm.push_back(static_cast<int64_t>(from.size()) - 1);
  Shape moved;
  for (size_t i = 0; i < perm.size(); ++i) {
    moved.push_back(to[perm[i]]);
    back[perm[i]] = static_cast<int64_t>(i);
  }
  x = s.add(Op::Transpose, {x}, Attrs().set("perm", perm));
  x = s.reshape(x, {call.out().count() / (bins * out_parts), used * parts});
  const Tensor matrix = transform_matrix(s.dtype(x), plan.length, parts, bins, out_parts,
                                         plan.inverse ? 1 : -1, weights);
  x = s.reshape(s(Op::MatMul, x, s.constant(matrix)), moved);
  x = s.add(Op::Transpose, {x}, Attrs().set("perm", back));
  return {s.cast(x, call.out().dtype)};
}

Status reference_dft(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  TRY(const DftPlan plan, dft_plan(call));
  const Tensor& from = *inputs[0];
  Tensor& to = outputs[0];
  const int axis = static_cast<int>(plan.axis), rank = from.type().rank();
  const int64_t outer = product(from.shape(), 0, axis);
  const int64_t inner = product(from.shape(), axis + 1, rank - 1);
  const int64_t given = from.shape()[axis], wanted = to.shape()[axis];
  const int64_t parts = from.shape().back(), to_parts = to.shape().back();
  const bool to_real = plan.onesided && plan.inverse;
  std::vector<Complex> line(plan.length);
  for (int64_t i = 0; i < outer * inner; ++i) {
    std::fill(line.begin(), line.end(), Complex(0));
    const int64_t bins = to_real ? plan.length / 2 + 1 : plan.length;
    for (int64_t n = 0; n < std::min(given, bins); ++n) {
      const int64_t source = ((i / inner * given + n) * inner + i % inner) * parts;
      line[n] = {from.get_double(source), parts == 2 ? from.get_double(source + 1) : 0};
    }
    if (to_real) {
      line[0] = line[0].real();
      for (int64_t n = 1; 2 * n < plan.length; ++n) line[plan.length - n] = std::conj(line[n]);
    }
    transform(line, plan.inverse ? 1 : -1);
    const double scale = plan.inverse ? 1 / static_cast<double>(plan.length) : 1;
    for (int64_t k = 0; k < wanted; ++k) {
      const int64_t target = ((i / inner * wanted + k) * inner + i % inner) * to_parts;
      to.set_double(target, line[k].real() * scale);
      if (to_parts == 2) to.set_double(target + 1, line[k].imag() * scale);
    }
  }
  return ok_status();
}

// ---- STFT ---------------------------------------------------------------------------------------

namespace {

struct StftPlan {
  int64_t step, length, frames, bins;
};
Result<StftPlan> stft_plan(const Call& call) {
  const Shape& signal = call.in(0).shape;
  if (signal.size() != 3 || (signal[2] != 1 && signal[2] != 2)) {
    return bad_call(call,
                    fmt::format("the signal {} is not [N, length, 1 or 2]", to_string(signal)));
  }
  StftPlan plan;
  TRY(plan.step, known_int(call, 1, "frame_step"));
  plan.length = call.has(2) ? call.in(2).count() : signal[1];
  if (call.has(3)) {
    TRY(plan.length, known_int(call, 3, "frame_length"));
  }
  if (call.has(2) && call.in(2).shape != Shape{plan.length}) {
    return bad_call(call, fmt::format("a window of {} for frames of {}",
                                      to_string(call.in(2).shape), plan.length));
  }
  if (plan.step < 1 || plan.length < 1 || plan.length > signal[1]) {
    return bad_call(call, fmt::format("frames of {} every {} of a signal of {}", plan.length,
                                      plan.step, signal[1]));
  }
  const bool onesided = call.attrs.get_int("onesided", 1) != 0;
  if (onesided && signal[2] == 2) return bad_call(call, "a onesided transform of a complex signal");
  plan.frames = (signal[1] - plan.length) / plan.step + 1;
  plan.bins = onesided ? plan.length / 2 + 1 : plan.length;
  return plan;
}

}  // namespace

Result<Types> infer_stft(const Call& call) {
  TRY(const StftPlan plan, stft_plan(call));
  return Types{{call.in(0).dtype, {call.in(0).shape[0], plan.frames, plan.bins, 2}}};
}

Cost cost_stft(const Call& call) {
  Cost cost = cost_move(call);
  if (auto plan = stft_plan(call); plan.ok()) {
    cost.flops.count =
        4.0 * static_cast<double>(call.out().count()) * static_cast<double>(plan->length);
  }
  return cost;
}

std::optional<Loop> loop_stft(const Call& call, int) {
  const StftPlan plan = stft_plan(call).value();
  const Type& from = call.in(0);
  Shape domain = call.out().shape;  // [N, frames, bins, 2], then the samples of a frame
  domain.push_back(plan.length);
  auto start = start_loop(domain, 4);
  auto& exprs = start.loop.exprs;
  const auto& at = start.coords;
  const DType type = compute_type(from.dtype);
  const ExprId sample = exprs.add(exprs.mul(at[1], plan.step), at[4]);
  auto part = [&](int64_t which) {
    const ExprId value = exprs.load(0, from.dtype, {at[0], sample, exprs.integer(which)});
    return call.has(2) ? exprs.mul(value, exprs.load(2, call.in(2).dtype, {at[4]})) : value;
  };
  const ExprId re = part(0), im = from.shape[2] == 2 ? part(1) : kNoExpr;
  start.loop.body =
      rotated(exprs, re, im, turn_of(exprs, type, at[2], at[4], plan.length), -1, at[3]);
  start.loop.combine = Combine::kSum;
  return start.loop;
}

// Frames are gathered, and meet the matrix; a window that is known is part of it.
std::vector<int32_t> expand_stft(const Call& call, Expander& expander) {
  const StftPlan plan = stft_plan(call).value();
  const int64_t batch = call.in(0).shape[0], parts = call.in(0).shape[2];
  if (matrix_elements(plan.length * parts, plan.bins * 2) > kLargestMatrix ||
      call.out().count() == 0)
    return {};
  Steps s(expander);
  Tensor samples = Tensor::allocate({DType::i64, {plan.frames, plan.length}});
  for (int64_t i = 0; i < samples.count(); ++i) {
    samples.set_int(i, i / plan.length * plan.step + i % plan.length);
  }
  auto x = s.widen(s.in(0));
  x = s.add(Op::Gather, {x, s.constant(samples)}, Attrs().set("axis", int64_t{1}));
  std::vector<double> weights(plan.length, 1);
  if (const Tensor* window = call.constant(2)) {
    for (int64_t n = 0; n < plan.length; ++n) weights[n] = window->get_double(n);
  } else if (call.has(2)) {
    x = s(Op::Mul, x, s.reshape(s.cast(s.in(2), s.dtype(x)), {plan.length, 1}));
  }
  x = s.reshape(x, {batch * plan.frames, plan.length * parts});
  const Tensor matrix = transform_matrix(s.dtype(x), plan.length, parts, plan.bins, 2, -1, weights);
  x = s.reshape(s(Op::MatMul, x, s.constant(matrix)), call.out().shape);
  return {s.cast(x, call.out().dtype)};
}

Status reference_stft(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  TRY(const StftPlan plan, stft_plan(call));
  const Tensor& from = *inputs[0];
  const int64_t length = from.shape()[1], parts = from.shape()[2];
  std::vector<Complex> frame(plan.length);
  int64_t target = 0;
  for (int64_t i = 0; i < from.shape()[0] * plan.frames; ++i) {
    const int64_t first = i / plan.frames * length + i % plan.frames * plan.step;
    for (int64_t n = 0; n < plan.length; ++n) {
      const int64_t source = (first + n) * parts;
      frame[n] = {from.get_double(source), parts == 2 ? from.get_double(source + 1) : 0};
      if (call.has(2)) frame[n] *= inputs[2]->get_double(n);
    }
    transform(frame, -1);
    for (int64_t k = 0; k < plan.bins; ++k) {
      outputs[0].set_double(target++, frame[k].real());
      outputs[0].set_double(target++, frame[k].imag());
    }
  }
  return ok_status();
}

}  // namespace obelisk::ops

// The reference of elementwise ops, written from their definitions and not from the loop form,
// because each checks the other.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "ops/arrays.h"
#include "ops/elementwise.h"

namespace obelisk::ops {
namespace {

using RealFn = std::function<double(const double*)>;  // one element of each input → the output's
using IntFn = std::function<int64_t(const int64_t*)>;

double nan_or_min(double x, double y) { return std::isnan(x) ? x : y < x || std::isnan(y) ? y : x; }
double nan_or_max(double x, double y) { return std::isnan(x) ? x : y > x || std::isnan(y) ? y : x; }
/// x - floor(x / y) * y, with the sign of y.
double floor_rest(double x, double y) {
  const double rest = std::fmod(x, y);
  if (rest == 0) return std::copysign(0.0, y);
  return std::signbit(rest) == std::signbit(y) ? rest : rest + y;
}
double sigmoid(double x) { return x < 0 ? 1 - 1 / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x + std::exp(-x) : std::log1p(std::exp(x)); }

RealFn activation(const Call& call) {
  const Attrs& attrs = call.attrs;
  const double one = attrs.get_float("alpha", 1);
  switch (call.op) {
    case Op::Sigmoid:
      return [](const double* x) { return sigmoid(*x); };
    case Op::Relu:
      return [](const double* x) { return *x < 0 ? 0 : *x; };
    case Op::LeakyRelu:
      return
          [a = attrs.get_float("alpha", 0.01f)](const double* x) { return *x < 0 ? a * *x : *x; };
    case Op::PRelu:
      return [](const double* x) { return x[0] < 0 ? x[1] * x[0] : x[0]; };
    case Op::Elu:
      return [a = one](const double* x) { return *x < 0 ? a * (std::exp(*x) - 1) : *x; };
    case Op::Selu: {
      const double alpha = attrs.get_float("alpha", 1.67326319217681884765625);
      const double gamma = attrs.get_float("gamma", 1.05070102214813232421875);
      return [=](const double* x) {
        return *x > 0 ? gamma * *x : gamma * (alpha * std::exp(*x) - alpha);
      };
    }
    case Op::Celu:
      return [a = one](const double* x) {
        return nan_or_max(0, *x) + nan_or_min(0, a * (std::exp(*x / a) - 1));
      };
    case Op::ThresholdedRelu:
      return [a = one](const double* x) { return *x > a ? *x : 0; };
    case Op::HardSigmoid: {
      const double alpha = attrs.get_float("alpha", 0.2f), beta = attrs.get_float("beta", 0.5);
      return [=](const double* x) { return nan_or_max(0, nan_or_min(1, alpha * *x + beta)); };
    }
    case Op::HardSwish:
      return [](const double* x) { return *x * nan_or_max(0, nan_or_min(1, *x / 6 + 0.5)); };
    case Op::Softplus:
      return [](const double* x) { return softplus(*x); };
    case Op::Softsign:
      return [](const double* x) { return *x / (1 + std::fabs(*x)); };
    case Op::Swish:
      return [a = one](const double* x) { return *x * sigmoid(a * *x); };
    case Op::SwiGLU:
      return [a = one](const double* x) { return x[0] * sigmoid(a * x[0]) * x[1]; };
    case Op::Mish:
      return [](const double* x) { return *x * std::tanh(softplus(*x)); };
    case Op::Gelu:
      if (attrs.get_string("approximate", "none") == "tanh") {
        return [](const double* x) {
          const double inner = std::sqrt(2 / std::numbers::pi) * (*x + 0.044715 * std::pow(*x, 3));
          return 0.5 * *x * (1 + std::tanh(inner));
        };
      }
      return [](const double* x) { return 0.5 * *x * std::erfc(-*x * std::numbers::sqrt2 / 2); };
    case Op::Shrink: {
      const double limit = attrs.get_float("lambd", 0.5), bias = attrs.get_float("bias", 0);
      return [=](const double* x) { return *x < -limit ? *x + bias : *x > limit ? *x - bias : 0; };
    }
    default:
      return nullptr;
  }
}

RealFn real_meaning(const Call& call) {
  const int arity = call.arity();
  switch (call.op) {
    case Op::Abs:
      return [](const double* x) { return std::fabs(*x); };
    case Op::Neg:
      return [](const double* x) { return -*x; };
    case Op::Sign:
      return [](const double* x) { return std::isnan(*x) ? *x : (*x > 0) - (*x < 0); };
    case Op::Floor:
      return [](const double* x) { return std::floor(*x); };
    case Op::Ceil:
      return [](const double* x) { return std::ceil(*x); };
    case Op::Round:
      return [](const double* x) { return std::nearbyint(*x); };
    case Op::Sqrt:
      return [](const double* x) { return std::sqrt(*x); };
    case Op::Rsqrt:
      return [](const double* x) { return 1 / std::sqrt(*x); };
    case Op::Reciprocal:
      return [](const double* x) { return 1 / *x; };
    case Op::Exp:
      return [](const double* x) { return std::exp(*x); };
    case Op::Log:
      return [](const double* x) { return std::log(*x); };
    case Op::Sin:
      return [](const double* x) { return std::sin(*x); };
    case Op::Cos:
      return [](const double* x) { return std::cos(*x); };
    case Op::Tan:
      return [](const double* x) { return std::tan(*x); };
    case Op::Asin:
      return [](const double* x) { return std::asin(*x); };
    case Op::Acos:
      return [](const double* x) { return std::acos(*x); };
    case Op::Atan:
      return [](const double* x) { return std::atan(*x); };
    case Op::Sinh:
      return [](const double* x) { return std::sinh(*x); };
    case Op::Cosh:
      return [](const double* x) { return std::cosh(*x); };
    case Op::Tanh:
      return [](const double* x) { return std::tanh(*x); };
    case Op::Asinh:
      return [](const double* x) { return std::asinh(*x); };
    case Op::Acosh:
      return [](const double* x) { return std::acosh(*x); };
    case Op::Atanh:
      return [](const double* x) { return std::atanh(*x); };
    case Op::Erf:
      return [](const double* x) { return std::erf(*x); };
    case Op::Add:
      return [](const double* x) { return x[0] + x[1]; };
    case Op::Sub:
      return [](const double* x) { return x[0] - x[1]; };
    case Op::Mul:
      return [](const double* x) { return x[0] * x[1]; };
    case Op::Div:
      return [](const double* x) { return x[0] / x[1]; };
    case Op::Mod:
      if (call.attrs.get_int("fmod", 0) != 0)
        return [](const double* x) { return std::fmod(x[0], x[1]); };
      return [](const double* x) { return floor_rest(x[0], x[1]); };
    case Op::Pow:
      return [](const double* x) { return std::pow(x[0], x[1]); };
    case Op::Clip:
      return [low = call.has(1), high = call.has(2)](const double* x) {
        double value = x[0];
        if (low) value = nan_or_max(value, x[1]);
        return high ? nan_or_min(value, x[2]) : value;
      };
    case Op::Min:
      return [=](const double* x) { return std::accumulate(x + 1, x + arity, *x, nan_or_min); };
    case Op::Max:
      return [=](const double* x) { return std::accumulate(x + 1, x + arity, *x, nan_or_max); };
    case Op::Sum:
      return [=](const double* x) { return std::accumulate(x, x + arity, 0.0); };
    case Op::Mean:
      return [=](const double* x) { return std::accumulate(x, x + arity, 0.0) / arity; };
    default:
      return activation(call);
  }
}

int64_t truncating_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  uint64_t power = 1;
  for (uint64_t square = base; exponent; exponent /= 2, square *= square)
    if (exponent % 2) power *= square;
  return static_cast<int64_t>(power);
}

/// u64 values come with their bits in int64_t; all narrower ones are plain values, wrapped when
/// they are written.
IntFn integer_meaning(const Call& call) {
  using U = uint64_t;
  const int arity = call.arity();
  const bool is_u64 = call.in(0).dtype == DType::u64;
  auto less = [=](int64_t x, int64_t y) { return is_u64 ? U(x) < U(y) : x < y; };
  auto smaller = [=](int64_t x, int64_t y) { return less(y, x) ? y : x; };
  auto larger = [=](int64_t x, int64_t y) { return less(x, y) ? y : x; };
  switch (call.op) {
    case Op::Abs:
      return [=](const int64_t* x) { return !is_u64 && *x < 0 ? int64_t(-U(*x)) : *x; };
    case Op::Neg:
      return [](const int64_t* x) { return int64_t(-U(*x)); };
    case Op::Sign:
      return [=](const int64_t* x) { return is_u64 ? *x != 0 : (*x > 0) - (*x < 0); };
    case Op::Relu:
      return [=](const int64_t* x) { return larger(*x, 0); };
    case Op::PRelu:
      return [=](const int64_t* x) { return less(x[0], 0) ? int64_t(U(x[0]) * U(x[1])) : x[0]; };
    case Op::Clip:
      return [=, low = call.has(1), high = call.has(2)](const int64_t* x) {
        const int64_t value = low ? larger(x[0], x[1]) : x[0];
        return high ? smaller(value, x[2]) : value;
      };
    case Op::Add:
    case Op::Sum:
      return [=](const int64_t* x) {
        U sum = 0;
        for (int input = 0; input < arity; ++input) sum += U(x[input]);
        return int64_t(sum);
      };
    case Op::Sub:
      return [](const int64_t* x) { return int64_t(U(x[0]) - U(x[1])); };
    case Op::Mul:
      return [](const int64_t* x) { return int64_t(U(x[0]) * U(x[1])); };
    case Op::Div:
      return [=](const int64_t* x) -> int64_t {
        if (x[1] == 0) return 0;
        if (is_u64) return int64_t(U(x[0]) / U(x[1]));
        return x[1] == -1 ? int64_t(-U(x[0])) : x[0] / x[1];
      };
    case Op::Mod:
      return [=, of_dividend = call.attrs.get_int("fmod", 0) != 0](const int64_t* x) -> int64_t {
        if (x[1] == 0 || (!is_u64 && x[1] == -1)) return 0;
        if (is_u64) return int64_t(U(x[0]) % U(x[1]));
        const int64_t rest = x[0] % x[1];
        return rest != 0 && !of_dividend && (rest < 0) != (x[1] < 0) ? rest + x[1] : rest;
      };
    case Op::Pow:
      return [](const int64_t* x) { return truncating_power(x[0], x[1]); };
    case Op::Min:
      return [=](const int64_t* x) { return std::accumulate(x + 1, x + arity, *x, smaller); };
    case Op::Max:
      return [=](const int64_t* x) { return std::accumulate(x + 1, x + arity, *x, larger); };
    default:
      return nullptr;
  }
}

template <typename Value, typename Fn, typename Read>
std::vector<Value> map_elements(const Shape& shape, std::span<const Tensor* const> inputs,
                                const Fn& meaning, Read read) {
  const size_t arity = inputs.size();
  std::vector<std::vector<Value>> values(arity);
  for (size_t input = 0; input < arity; ++input)
    values[input] = inputs[input] ? read(*inputs[input]) : std::vector<Value>(1);
  std::vector<Value> results(element_count(shape)), at(arity);
  Broadcast(shape, inputs).each([&](int64_t element, const int64_t* offsets) {
    for (size_t input = 0; input < arity; ++input) at[input] = values[input][offsets[input]];
    results[element] = meaning(at.data());
  });
  return results;
}

}  // namespace

Status reference_map(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  Tensor& out = outputs[0];
  const bool real = is_float(out.dtype());
  // Integers that meet floats on the way, and are truncated at the end.
  const bool mixed = call.op == Op::Shrink || (call.op == Op::Pow && is_float(call.in(1).dtype));
  if (!real && !mixed) {
    const IntFn meaning = integer_meaning(call);
    CHECK(meaning, "{} has no meaning on integers", to_string(call.op));
    write_ints(out, map_elements<int64_t>(out.shape(), inputs, meaning, read_ints));
    return ok_status();
  }
  const RealFn meaning = real_meaning(call);
  CHECK(meaning, "{} has no meaning on floats", to_string(call.op));
  const std::vector<double> results =
      map_elements<double>(out.shape(), inputs, meaning, read_reals);
  if (real) {
    write_reals(out, results);
    return ok_status();
  }
  for (int64_t n = 0; n < out.count(); ++n) {
    const double low = -0x1p63, high = 0x1.fffffffffffffp62;
    out.set_int(
        n, std::isnan(results[n]) ? 0 : static_cast<int64_t>(std::clamp(results[n], low, high)));
  }
  return ok_status();
}

}  // namespace obelisk::ops

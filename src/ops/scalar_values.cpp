#include "ops/scalar_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace obelisk::ops {
namespace {

int64_t power_int(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, b = static_cast<uint64_t>(base);
  for (; exponent; exponent >>= 1, b *= b)
    if (exponent & 1) result *= b;
  return static_cast<int64_t>(result);
}

}  // namespace

int64_t floor_div(int64_t x, int64_t y) {
  int64_t q = x / y;
  return (x % y != 0 && (x < 0) != (y < 0)) ? q - 1 : q;
}

int64_t wrap(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::i32:
      return static_cast<int32_t>(value);
    case DType::i16:
      return static_cast<int16_t>(value);
    case DType::i8:
      return static_cast<int8_t>(value);
    case DType::u32:
      return static_cast<uint32_t>(value);
    case DType::u16:
      return static_cast<uint16_t>(value);
    case DType::u8:
      return static_cast<uint8_t>(value);
    case DType::i4:
      return static_cast<int8_t>(static_cast<uint8_t>(value) << 4) >> 4;
    case DType::i2:
      return static_cast<int8_t>(static_cast<uint8_t>(value) << 6) >> 6;
    case DType::u4:
      return value & 15;
    case DType::u2:
      return value & 3;
    case DType::b1:
      return value != 0;
    default:
      return value;
  }
}

double round_to(DType dtype, double value, bool saturate) {
  if (dtype == DType::f64) return value;
  if (dtype == DType::f32) return static_cast<float>(value);
  uint64_t bits = 0;
  saturate ? set_double_saturating(&bits, dtype, 0, value) : set_double(&bits, dtype, 0, value);
  return get_double(&bits, dtype, 0);
}

double unary_real(Scalar s, double x) {
  switch (s) {
    case Scalar::kNeg:
      return -x;
    case Scalar::kAbs:
      return std::fabs(x);
    case Scalar::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : x;
    case Scalar::kFloor:
      return std::floor(x);
    case Scalar::kCeil:
      return std::ceil(x);
    case Scalar::kRound:
      return std::nearbyint(x);
    case Scalar::kTrunc:
      return std::trunc(x);
    case Scalar::kSqrt:
      return std::sqrt(x);
    case Scalar::kRsqrt:
      return 1 / std::sqrt(x);
    case Scalar::kRecip:
      return 1 / x;
    case Scalar::kExp:
      return std::exp(x);
    case Scalar::kLog:
      return std::log(x);
    case Scalar::kLog1p:
      return std::log1p(x);
    case Scalar::kExpm1:
      return std::expm1(x);
    case Scalar::kErf:
      return std::erf(x);
    case Scalar::kSin:
      return std::sin(x);
    case Scalar::kCos:
      return std::cos(x);
    case Scalar::kTan:
      return std::tan(x);
    case Scalar::kAsin:
      return std::asin(x);
    case Scalar::kAcos:
      return std::acos(x);
    case Scalar::kAtan:
      return std::atan(x);
    case Scalar::kSinh:
      return std::sinh(x);
    case Scalar::kCosh:
      return std::cosh(x);
    case Scalar::kTanh:
      return std::tanh(x);
    case Scalar::kAsinh:
      return std::asinh(x);
    case Scalar::kAcosh:
      return std::acosh(x);
    case Scalar::kAtanh:
      return std::atanh(x);
    case Scalar::kSigmoid:
      return 1 / (1 + std::exp(-x));
    default:
      CHECK(false, "{} is not unary on floats", to_string(s));
      return 0;
  }
}

int64_t unary_int(Scalar s, int64_t x, DType dtype) {
  switch (s) {
    case Scalar::kNeg:
      return wrap(dtype, static_cast<int64_t>(-static_cast<uint64_t>(x)));
    case Scalar::kAbs:
      return is_signed(dtype) && x < 0
                 ? wrap(dtype, static_cast<int64_t>(-static_cast<uint64_t>(x)))
                 : x;
    case Scalar::kSign:
      return !is_signed(dtype) ? x != 0 : (x > 0) - (x < 0);
    case Scalar::kFloor:
    case Scalar::kCeil:
    case Scalar::kRound:
    case Scalar::kTrunc:
      return x;
    case Scalar::kNot:
      return !x;
    case Scalar::kBitNot:
      return wrap(dtype, ~x);
    default:
      CHECK(false, "{} is not unary on integers", to_string(s));
      return 0;
  }
}

double binary_real(Scalar s, double x, double y) {
  switch (s) {
    case Scalar::kAdd:
      return x + y;
    case Scalar::kSub:
      return x - y;
    case Scalar::kMul:
      return x * y;
    case Scalar::kDiv:
      return x / y;
    case Scalar::kMod: {
      const double r = std::fmod(x, y);
      return r == 0 ? std::copysign(r, y) : (r < 0) != (y < 0) ? r + y : r;
    }
    case Scalar::kFmod:
      return std::fmod(x, y);
    case Scalar::kPow:
      return std::pow(x, y);
    case Scalar::kMin:
      return std::isnan(x) || std::isnan(y) ? std::nan("") : std::min(x, y);
    case Scalar::kMax:
      return std::isnan(x) || std::isnan(y) ? std::nan("") : std::max(x, y);
    case Scalar::kAtan2:
      return std::atan2(x, y);
    default:
      CHECK(false, "{} is not binary on floats", to_string(s));
      return 0;
  }
}

int64_t binary_int(Scalar s, int64_t x, int64_t y, DType dtype) {
  const auto ux = static_cast<uint64_t>(x), uy = static_cast<uint64_t>(y);
  const bool u64 = dtype == DType::u64;
  const int width = std::max(bits(dtype), 8);
  switch (s) {
    case Scalar::kAdd:
      return wrap(dtype, static_cast<int64_t>(ux + uy));
    case Scalar::kSub:
      return wrap(dtype, static_cast<int64_t>(ux - uy));
    case Scalar::kMul:
      return wrap(dtype, static_cast<int64_t>(ux * uy));
    case Scalar::kDiv:
      if (y == 0) return 0;
      if (u64) return static_cast<int64_t>(ux / uy);
      return y == -1 ? wrap(dtype, static_cast<int64_t>(-ux)) : x / y;
    case Scalar::kMod:
      if (y == 0) return 0;
      if (u64) return static_cast<int64_t>(ux % uy);
      return y == -1 ? 0 : x - floor_div(x, y) * y;
    case Scalar::kFmod:
      if (y == 0) return 0;
      if (u64) return static_cast<int64_t>(ux % uy);
      return y == -1 ? 0 : x % y;
    case Scalar::kPow:
      return wrap(dtype, power_int(x, y));
    case Scalar::kMin:
      return u64 ? static_cast<int64_t>(std::min(ux, uy)) : std::min(x, y);
    case Scalar::kMax:
      return u64 ? static_cast<int64_t>(std::max(ux, uy)) : std::max(x, y);
    case Scalar::kAnd:
      return x && y;
    case Scalar::kOr:
      return x || y;
    case Scalar::kXor:
      return (x != 0) != (y != 0);
    case Scalar::kBitAnd:
      return x & y;
    case Scalar::kBitOr:
      return x | y;
    case Scalar::kBitXor:
      return x ^ y;
    case Scalar::kShl:
      return uy >= static_cast<uint64_t>(width) ? 0 : wrap(dtype, static_cast<int64_t>(ux << uy));
    case Scalar::kShr:
      if (uy >= static_cast<uint64_t>(width)) return is_signed(dtype) && x < 0 ? -1 : 0;
      return u64 ? static_cast<int64_t>(ux >> uy) : x >> y;
    default:
      CHECK(false, "{} is not binary on integers", to_string(s));
      return 0;
  }
}

bool compare(Scalar s, const Scalars& x, const Scalars& y, DType dtype) {
  if (is_float(dtype))
    return s == Scalar::kLt   ? x.real < y.real
           : s == Scalar::kLe ? x.real <= y.real
                              : x.real == y.real;
  if (dtype == DType::u64) {
    const auto a = static_cast<uint64_t>(x.integer), b = static_cast<uint64_t>(y.integer);
    return s == Scalar::kLt ? a < b : s == Scalar::kLe ? a <= b : a == b;
  }
  const int64_t a = x.integer, b = y.integer;
  return s == Scalar::kLt ? a < b : s == Scalar::kLe ? a <= b : a == b;
}

Scalars convert(const Scalars& x, DType from, DType to, bool saturate) {
  if (is_float(to)) {
    double value = is_float(from)       ? x.real
                   : from == DType::u64 ? static_cast<double>(static_cast<uint64_t>(x.integer))
                                        : static_cast<double>(x.integer);
    return {round_to(to, value, saturate), 0};
  }
  if (to == DType::b1) return {0, is_float(from) ? x.real != 0 : x.integer != 0};
  if (!is_float(from)) return {0, wrap(to, x.integer)};
  if (std::isnan(x.real)) return {0, 0};
  if (to == DType::u64 && x.real >= 0x1p63) {
    return {0, x.real >= 0x1p64 ? -1 : static_cast<int64_t>(static_cast<uint64_t>(x.real))};
  }
  const double low = -0x1p63, high = 0x1.fffffffffffffp62;
  return {0, wrap(to, static_cast<int64_t>(std::clamp(x.real, low, high)))};
}

}  // namespace obelisk::ops

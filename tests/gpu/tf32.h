// tests/gpu/tf32.h — numbers of 10 bits of mantissa for tests of tiles that round to them.
//
//   near_tf32(v, salt)   a float that such a tile takes as v, one of those numbers, and is not v
#pragma once

#include <cmath>
#include <cstdint>

/// The nearest number of 10 bits of mantissa, halves away from zero.
inline double to_tf32(double v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int shift = 10 - std::ilogb(v);
  return std::ldexp(std::round(std::ldexp(v, shift)), -shift);
}
inline float near_tf32(double v, int64_t salt) {
  return static_cast<float>(v * (1 + static_cast<double>(salt % 3 - 1) * 1.1e-4));
}

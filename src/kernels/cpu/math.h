/// kernels/cpu/math.h — float functions without branches, which compilers turn into vector code
/// inside plain loops.
///
/// Included by generated bodies, so it needs nothing but <math.h>, <stdint.h>, <string.h>. With g++
/// -O3 -fno-math-errno -fno-trapping-math a loop over any of them is vectorised (pow, and sin and
/// cos beyond kNear, call the C library).
///
///   error, in units in the last place, greatest found by test/math_test.cpp over sweeps of all
///   exponents and both signs: exp 1.0   exp2 1.2   log 0.9   erf 2.2   tanh 1.3   sigmoid 2.2
///   sin 1.5   cos 1.4   (denormal results included)
///
/// Special values are those of IEEE 754 and C: NaN stays NaN, exp(-inf) = 0, exp(89) = inf, log(0)
/// = -inf, log(-1) = NaN, tanh(+-inf) = +-1, erf(-0) = -0, sin(inf) = NaN. Overflow and underflow
/// round as one final multiplication does. Polynomials: least maximum error on the interval given
/// beside each, fitted with weights (Lawson), then rounded to float.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace obk {

inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float select(bool condition, float yes, float no) { return condition ? yes : no; }
inline float with_sign(float magnitude, float sign) {
  return from_bits((to_bits(magnitude) & 0x7fffffffu) | (to_bits(sign) & 0x80000000u));
}
inline float magnitude(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }

// Added and taken away again, it rounds a float below 2^22 to an integer, whose low bits then stand
// in the sum's low bits.
constexpr float kRound = 0x1.8p23f;

/// y * 2^n for |n| <= 252, rounded once: the first half keeps y normal.
inline float scale(float y, int32_t n) {
  const int32_t half = n >> 1;
  return y * from_bits(static_cast<uint32_t>(half + 127) << 23) *
         from_bits(static_cast<uint32_t>(n - half + 127) << 23);
}

inline float exp(float x) {
  // e^89 overflows, e^-104 is under half the least denormal; NaN passes both.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float rounded = x * 0x1.715476p+0f + kRound, n = rounded - kRound;
  float r = x - n * 0x1.63p-1f;  // ln 2 in two parts; n times the first is exact
  r = r - n * -0x1.bd0106p-13f;
  // e^r = 1 + r + r^2 q(r), |r| <= ln 2 / 2
  float q = 0x1.6a234ep-10f;
  q = q * r + 0x1.123a6cp-7f;
  q = q * r + 0x1.5558f4p-5f;
  q = q * r + 0x1.555490p-3f;
  q = q * r + 0x1.fffffcp-2f;
  return scale(1.0f + (r + r * r * q), static_cast<int32_t>(to_bits(rounded) - to_bits(kRound)));
}

inline float exp2(float x) {
  x = x > 129.0f ? 129.0f : x;
  x = x < -151.0f ? -151.0f : x;
  const float rounded = x + kRound, n = rounded - kRound, r = x - n;
  // 2^r = 1 + r q(r), |r| <= 1/2
  float q = 0x1.41fb2cp-13f;
  q = q * r + 0x1.5f3f32p-10f;
  q = q * r + 0x1.3b2d50p-7f;
  q = q * r + 0x1.c6aee6p-5f;
  q = q * r + 0x1.ebfbdcp-3f;
  q = q * r + 0x1.62e430p-1f;
  return scale(1.0f + r * q, static_cast<int32_t>(to_bits(rounded) - to_bits(kRound)));
}

inline float log(float x) {
  const bool tiny = x < 0x1p-126f;
  const uint32_t bits = to_bits(x * select(tiny, 0x1p23f, 1.0f));
  // x = m 2^n, m in [sqrt(1/2), sqrt(2))
  const int32_t n = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;  // of negative numbers whatever
  const float m = from_bits(bits - (static_cast<uint32_t>(n) << 23)), f = m - 1.0f;
  const float power = static_cast<float>(n) - select(tiny, 23.0f, 0.0f);
  // log(1 + f) = f - f^2 / 2 + f^3 q(f)
  float q = 0x1.14573ep-4f;
  q = q * f + -0x1.de3bf8p-4f;
  q = q * f + 0x1.e6f08cp-4f;
  q = q * f + -0x1.fc220ep-4f;
  q = q * f + 0x1.233766p-3f;
  q = q * f + -0x1.555c4ep-3f;
  q = q * f + 0x1.99a4b6p-3f;
  q = q * f + -0x1.000006p-2f;
  q = q * f + 0x1.555548p-2f;
  const float square = f * f;
  const float low = f * square * q - 0.5f * square + power * -0x1.bd0106p-13f;
  float y = power * 0x1.63p-1f + (f + low);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x + x;  // infinity, NaN
}

inline float erf(float x) {
  const float t = magnitude(x), u = t * t;
  // |x| < 1: x + x q(x^2)
  float q = 0x1.496a28p-14f;
  q = q * u + -0x1.a3f6fcp-11f;
  q = q * u + 0x1.5405b2p-8f;
  q = q * u + -0x1.b7f90cp-6f;
  q = q * u + 0x1.ce2cf8p-4f;
  q = q * u + -0x1.81273ep-2f;
  q = q * u + 0x1.06eba8p-3f;
  const float near = t + t * q;
  // 1 <= |x| <= 3.93, where erf rounds to 1: a polynomial in the distance to the middle
  const float v = select(t > 3.93f, 3.93f, t) - 2.465f;
  float p = -0x1.16313cp-25f;
  p = p * v + -0x1.33305ap-17f;
  p = p * v + 0x1.a4b3dap-16f;
  p = p * v + 0x1.be814cp-15f;
  p = p * v + -0x1.3a16f8p-12f;
  p = p * v + 0x1.8b8cd2p-12f;
  p = p * v + 0x1.f54e02p-12f;
  p = p * v + -0x1.823a08p-9f;
  p = p * v + 0x1.b7a96ep-8f;
  p = p * v + -0x1.3f08e4p-7f;
  p = p * v + 0x1.3bc61ep-7f;
  p = p * v + -0x1.a2c1aep-8f;
  p = p * v + 0x1.53ae7ap-9f;
  p = p * v + 0x1.ffbfc0p-1f;
  const float far = select(p > 1.0f, 1.0f, p);
  return with_sign(t < 1.0f ? near : t < INFINITY ? far : t == t ? 1.0f : t, x);
}

inline float tanh(float x) {
  const float t = magnitude(x), u = t * t;
  // |x| < 0.625: x + x^3 q(x^2)
  float q = 0x1.18e1c4p-9f;
  q = q * u + -0x1.0bf4f6p-7f;
  q = q * u + 0x1.638b56p-6f;
  q = q * u + -0x1.b9ee90p-5f;
  q = q * u + 0x1.111066p-3f;
  q = q * u + -0x1.555554p-2f;
  const float near = t + t * u * q;
  const float far = 1.0f - 2.0f / (obk::exp(t + t) + 1.0f);
  return with_sign(t < 0.625f ? near : far, x);
}

inline float sigmoid(float x) {
  const float e = obk::exp(-magnitude(x)), y = 1.0f / (1.0f + e);
  return x < 0.0f ? e * y : y;  // NaN takes the second, which is NaN
}

/// sin and cos are our own up to here, and the C library's beyond.
constexpr float kNear = 1e5f;

/// sin(x + quarter * pi / 2) for |x| <= kNear.
inline float sin_near(float x, int32_t quarter) {
  // The quarter turn is taken off in double: n has 17 bits and the first part of pi/2 has 33, so
  // their product is exact.
  const double wide = static_cast<double>(x),
               n = (wide * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
  const double rest = (wide - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
  const float r = static_cast<float>(rest), u = r * r;
  const int32_t turn = static_cast<int32_t>(n) + quarter;
  float s = 0x1.6ccf5cp-19f;
  s = s * u + -0x1.a00f74p-13f;
  s = s * u + 0x1.111108p-7f;
  s = s * u + -0x1.555556p-3f;
  s = r + r * u * s;
  float c = -0x1.241ca8p-22f;
  c = c * u + 0x1.a010d6p-16f;
  c = c * u + -0x1.6c16b8p-10f;
  c = c * u + 0x1.555556p-5f;
  c = 1.0f + (-0.5f * u + u * u * c);
  const float y = (turn & 1) ? c : s;
  return from_bits(to_bits(y) ^ (static_cast<uint32_t>(turn & 2) << 30));
}

inline float sin(float x) { return magnitude(x) <= kNear ? sin_near(x, 0) : ::sinf(x); }
inline float cos(float x) { return magnitude(x) <= kNear ? sin_near(x, 1) : ::cosf(x); }
inline float pow(float x, float y) { return ::powf(x, y); }

}  // namespace obk

/* kernels/common/numbers.h — how elements are stored and what arithmetic on them means, the same on
 * every machine.
 *
 * Storage types narrower than float, loads and stores with one rounding, casts to narrow grids,
 * integer arithmetic that never traps, minimum and maximum that keep NaN. Host and device compilers
 * read this text; before it they declare the integer types, memcpy, the C functions of math.h,
 * INFINITY and NAN. A device compiler takes plain functions for the device. */
#ifndef OBK_NUMBERS_H
#define OBK_NUMBERS_H

namespace obk {

/* ---- storage types ---- */
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct f8e4m3fn {
  uint8_t bits;
};
struct f8e4m3fnuz {
  uint8_t bits;
};
struct f8e5m2 {
  uint8_t bits;
};
struct f8e5m2fnuz {
  uint8_t bits;
};
struct f8e8m0 {
  uint8_t bits;
};
struct f4e2m1 {
  uint8_t byte;
};
struct i4 {
  uint8_t byte;
};
struct u4 {
  uint8_t byte;
};
struct i2 {
  uint8_t byte;
};
struct u2 {
  uint8_t byte;
};
struct b1 {
  uint8_t value;
};

static inline float as_float(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static inline uint32_t as_bits(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  return b;
}

#ifdef OBK_OWN_HALF /* the machine converts by itself: bits of a half from and to float */
static inline float widen(f16 h) { return widen_f16_bits(h.bits); }
static inline f16 narrow_f16(float f) {
  f16 h = {narrow_f16_bits(f)};
  return h;
}
static inline float widen(bf16 h) { return as_float((uint32_t)h.bits << 16); }
static inline bf16 narrow_bf16(float f) {
  bf16 h = {narrow_bf16_bits(f)};
  return h;
}
#else
static inline float widen(f16 h) {
  const uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16, rest = h.bits & 0x7fffu;
  const float normal = as_float((rest << 13) + 0x38000000u);
  const float small = (float)rest * 0x1p-24f;
  const float special = as_float((rest << 13) | 0x7f800000u);
  const float magnitude = rest < 0x400u ? small : rest < 0x7c00u ? normal : special;
  return as_float(as_bits(magnitude) | sign);
}
static inline f16 narrow_f16(float f) {
  const uint32_t bits = as_bits(f), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  const uint32_t normal = (rest + 0xc8000fffu + ((rest >> 13) & 1u)) >> 13;
  const uint32_t small =
      as_bits(as_float(rest) + 0.5f) & 0x7ffu; /* the adder rounds to the grid of denormals */
  const uint32_t magnitude = rest > 0x7f800000u    ? 0x7e00u
                             : rest >= 0x477ff000u ? 0x7c00u
                             : rest < 0x38800000u  ? small
                                                   : normal;
  f16 h = {(uint16_t)(magnitude | sign)};
  return h;
}
static inline float widen(bf16 h) { return as_float((uint32_t)h.bits << 16); }
static inline bf16 narrow_bf16(float f) {
  const uint32_t bits = as_bits(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  bf16 h = {(uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded)};
  return h;
}
#endif

/* Narrow floats by their parameters: `exponent` and `mantissa` bits, `bias`, whether zero is
 * unsigned and where NaN lies. */
static inline float widen_narrow(uint32_t v, int exponent, int mantissa, int bias, int kind) {
  const uint32_t sign = v >> (exponent + mantissa), e = (v >> mantissa) & ((1u << exponent) - 1u),
                 m = v & ((1u << mantissa) - 1u);
  const uint32_t top = (1u << exponent) - 1u;
  if (kind == 1 && v == (1u << (exponent + mantissa))) return NAN; /* fnuz: minus zero is the NaN */
  if (kind == 0 && e == top && m == (1u << mantissa) - 1u) return NAN;     /* fn: all ones */
  if (kind == 2 && e == top) return m ? NAN : sign ? -INFINITY : INFINITY; /* as IEEE */
  const float magnitude = e ? ldexpf((float)(m + (1u << mantissa)), (int)e - bias - mantissa)
                            : ldexpf((float)m, 1 - bias - mantissa);
  return sign ? -magnitude : magnitude;
}
static inline uint32_t narrow_narrow(float f, int exponent, int mantissa, int bias, int kind,
                                     int saturate) {
  const uint32_t top = (1u << exponent) - 1u, sign = (as_bits(f) >> 31) << (exponent + mantissa);
  const uint32_t not_a_number = kind == 1   ? 1u << (exponent + mantissa)
                                : kind == 3 ? 0u
                                            : (top << mantissa) | ((1u << mantissa) - 1u);
  const uint32_t largest = kind == 0   ? not_a_number - 1u
                           : kind == 2 ? (top << mantissa) - 1u
                                       : (top << mantissa) | ((1u << mantissa) - 1u);
  const uint32_t beyond = kind == 2 ? top << mantissa : kind == 3 ? largest : not_a_number;
  if (f != f) return kind == 1 ? not_a_number : not_a_number | sign;
  const float magnitude = fabsf(f);
  const float limit = widen_narrow(largest, exponent, mantissa, bias, 4);
  if (isinf(f)) return saturate || kind == 3 ? largest | sign : kind == 1 ? beyond : beyond | sign;
  int e = 0;
  frexpf(magnitude, &e);
  e = e - 1 < 1 - bias ? 1 - bias : e - 1;
  const float step = ldexpf(1.0f, e - mantissa);
  const float rounded = rintf(magnitude / step) * step;
  if (rounded > limit)
    return saturate || kind == 3 ? largest | sign : kind == 1 ? beyond : beyond | sign;
  if (rounded == 0.0f) return kind == 1 ? 0u : sign;
  frexpf(rounded, &e);
  e -= 1;
  uint32_t code;
  if (e < 1 - bias)
    code = (uint32_t)ldexpf(rounded, bias - 1 + mantissa);
  else
    code = ((uint32_t)(e + bias) << mantissa) |
           ((uint32_t)ldexpf(rounded, mantissa - e) & ((1u << mantissa) - 1u));
  return code | sign;
}
static inline float widen(f8e4m3fn v) { return widen_narrow(v.bits, 4, 3, 7, 0); }
static inline float widen(f8e4m3fnuz v) { return widen_narrow(v.bits, 4, 3, 8, 1); }
static inline float widen(f8e5m2 v) { return widen_narrow(v.bits, 5, 2, 15, 2); }
static inline float widen(f8e5m2fnuz v) { return widen_narrow(v.bits, 5, 2, 16, 1); }
static inline float widen(f8e8m0 v) {
  return v.bits == 255 ? NAN : ldexpf(1.0f, (int)v.bits - 127);
}

/* ---- loads: element `index` as the type of arithmetic ---- */
static inline double load(const double* p, int64_t i) { return p[i]; }
static inline float load(const float* p, int64_t i) { return p[i]; }
static inline float load(const f16* p, int64_t i) { return widen(p[i]); }
static inline float load(const bf16* p, int64_t i) { return widen(p[i]); }
static inline float load(const f8e4m3fn* p, int64_t i) { return widen(p[i]); }
static inline float load(const f8e4m3fnuz* p, int64_t i) { return widen(p[i]); }
static inline float load(const f8e5m2* p, int64_t i) { return widen(p[i]); }
static inline float load(const f8e5m2fnuz* p, int64_t i) { return widen(p[i]); }
static inline float load(const f8e8m0* p, int64_t i) { return widen(p[i]); }
static inline float load(const f4e2m1* p, int64_t i) {
  return widen_narrow((p[i >> 1].byte >> ((i & 1) * 4)) & 15u, 2, 1, 1, 4);
}
static inline int64_t load(const int64_t* p, int64_t i) { return p[i]; }
static inline int32_t load(const int32_t* p, int64_t i) { return p[i]; }
static inline int16_t load(const int16_t* p, int64_t i) { return p[i]; }
static inline int8_t load(const int8_t* p, int64_t i) { return p[i]; }
static inline uint64_t load(const uint64_t* p, int64_t i) { return p[i]; }
static inline uint32_t load(const uint32_t* p, int64_t i) { return p[i]; }
static inline uint16_t load(const uint16_t* p, int64_t i) { return p[i]; }
static inline uint8_t load(const uint8_t* p, int64_t i) { return p[i]; }
static inline bool load(const b1* p, int64_t i) { return p[i].value != 0; }
static inline int8_t load(const i4* p, int64_t i) {
  return (int8_t)((int8_t)(uint8_t)(p[i >> 1].byte << ((i & 1) ? 0 : 4)) >> 4);
}
static inline uint8_t load(const u4* p, int64_t i) {
  return (uint8_t)((p[i >> 1].byte >> ((i & 1) * 4)) & 15);
}
static inline int8_t load(const i2* p, int64_t i) {
  return (int8_t)((int8_t)(uint8_t)(p[i >> 2].byte << (6 - (i & 3) * 2)) >> 6);
}
static inline uint8_t load(const u2* p, int64_t i) {
  return (uint8_t)((p[i >> 2].byte >> ((i & 3) * 2)) & 3);
}

/* ---- stores ---- */
static inline void store(double* p, int64_t i, double v) { p[i] = v; }
static inline void store(float* p, int64_t i, float v) { p[i] = v; }
static inline void store(f16* p, int64_t i, float v) { p[i] = narrow_f16(v); }
static inline void store(bf16* p, int64_t i, float v) { p[i] = narrow_bf16(v); }
static inline void store(f8e4m3fn* p, int64_t i, float v) {
  p[i].bits = (uint8_t)narrow_narrow(v, 4, 3, 7, 0, 0);
}
static inline void store(f8e4m3fnuz* p, int64_t i, float v) {
  p[i].bits = (uint8_t)narrow_narrow(v, 4, 3, 8, 1, 0);
}
static inline void store(f8e5m2* p, int64_t i, float v) {
  p[i].bits = (uint8_t)narrow_narrow(v, 5, 2, 15, 2, 0);
}
static inline void store(f8e5m2fnuz* p, int64_t i, float v) {
  p[i].bits = (uint8_t)narrow_narrow(v, 5, 2, 16, 1, 0);
}
static inline void store(f8e8m0* p, int64_t i, float v) {
  int e = 0;
  frexpf(v, &e);
  p[i].bits = (uint8_t)(v != v || isinf(v) ? 255
                        : v <= 0.0f        ? 0
                        : e + 126 < 0      ? 0
                        : e + 126 > 254    ? 254
                                           : e + 126);
}
template <typename T>
static inline void store_bits(T* p, int64_t i, int per_byte, uint32_t v) {
  const int width = 8 / per_byte, shift = (int)(i % per_byte) * width;
  const uint32_t mask = ((1u << width) - 1u) << shift;
#ifdef OBK_SHARED_BYTES /* neighbours in a byte may belong to other threads */
  replace_bits(&p[i / per_byte].byte, mask, v << shift);
#else
  uint8_t* byte = &p[i / per_byte].byte;
  *byte = (uint8_t)((*byte & ~mask) | ((v << shift) & mask));
#endif
}
static inline void store(f4e2m1* p, int64_t i, float v) {
  store_bits(p, i, 2, narrow_narrow(v, 2, 1, 1, 3, 1));
}
static inline void store(int64_t* p, int64_t i, int64_t v) { p[i] = v; }
static inline void store(int32_t* p, int64_t i, int32_t v) { p[i] = v; }
static inline void store(int16_t* p, int64_t i, int16_t v) { p[i] = v; }
static inline void store(int8_t* p, int64_t i, int8_t v) { p[i] = v; }
static inline void store(uint64_t* p, int64_t i, uint64_t v) { p[i] = v; }
static inline void store(uint32_t* p, int64_t i, uint32_t v) { p[i] = v; }
static inline void store(uint16_t* p, int64_t i, uint16_t v) { p[i] = v; }
static inline void store(uint8_t* p, int64_t i, uint8_t v) { p[i] = v; }
static inline void store(b1* p, int64_t i, bool v) { p[i].value = v; }
static inline void store(i4* p, int64_t i, int8_t v) { store_bits(p, i, 2, (uint8_t)v); }
static inline void store(u4* p, int64_t i, uint8_t v) { store_bits(p, i, 2, v); }
static inline void store(i2* p, int64_t i, int8_t v) { store_bits(p, i, 4, (uint8_t)v); }
static inline void store(u2* p, int64_t i, uint8_t v) { store_bits(p, i, 4, v); }

/* ---- casts that round to a narrow grid but stay in float ---- */
static inline float round_f16(float v) { return widen(narrow_f16(v)); }
static inline float round_bf16(float v) { return widen(narrow_bf16(v)); }
#define OBK_ROUND(name, e, m, bias, kind)                                         \
  static inline float round_##name(float v) {                                     \
    return widen_narrow(narrow_narrow(v, e, m, bias, kind, 0), e, m, bias, kind); \
  }                                                                               \
  static inline float saturate_##name(float v) {                                  \
    return widen_narrow(narrow_narrow(v, e, m, bias, kind, 1), e, m, bias, kind); \
  }
OBK_ROUND(f8e4m3fn, 4, 3, 7, 0)
OBK_ROUND(f8e4m3fnuz, 4, 3, 8, 1)
OBK_ROUND(f8e5m2, 5, 2, 15, 2)
OBK_ROUND(f8e5m2fnuz, 5, 2, 16, 1)
static inline float round_f4e2m1(float v) {
  return widen_narrow(narrow_narrow(v, 2, 1, 1, 3, 1), 2, 1, 1, 4);
}
static inline float saturate_f4e2m1(float v) { return round_f4e2m1(v); }
static inline float round_f8e8m0(float v) {
  f8e8m0 t;
  store(&t, 0, v);
  return widen(t);
}
static inline float saturate_f8e8m0(float v) { return round_f8e8m0(v); }

/* Float to integer: truncation; NaN gives 0, what does not fit wraps from the nearest int64. Never
 * traps. */
template <typename T>
static inline T to_int(double v) {
  if (v != v) return 0;
  if (v >= 9223372036854775808.0)
    return sizeof(T) == 8 && (T)-1 > 0
               ? (T)(uint64_t)(v < 18446744073709551616.0 ? v : 0x1.fffffffffffffp63)
               : (T)INT64_MAX;
  if (v <= -9223372036854775808.0) return (T)INT64_MIN;
  return (T)(int64_t)v;
}
static inline int32_t to_i32(float v) {
  return v >= -2147483648.0f && v < 2147483648.0f ? (int32_t)v : to_int<int32_t>(v);
}

/* ---- arithmetic with a meaning of its own ---- */
template <typename T>
static inline T minimum(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
static inline T maximum(T a, T b) {
  return a < b ? b : a;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 /* one instruction */
static inline float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
static inline float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#else
static inline float minimum(float a, float b) { return a != a ? a : b != b ? b : b < a ? b : a; }
static inline float maximum(float a, float b) { return a != a ? a : b != b ? b : a < b ? b : a; }
#endif
static inline double minimum(double a, double b) { return a != a ? a : b != b ? b : b < a ? b : a; }
static inline double maximum(double a, double b) { return a != a ? a : b != b ? b : a < b ? b : a; }
template <typename T>
static inline T quotient(T a, T b) {
  return b == 0 ? 0 : (T)-1 < 0 && b == (T)-1 ? (T)(0 - a) : (T)(a / b);
}
template <typename T>
static inline T remainder_c(T a, T b) {
  return b == 0 || ((T)-1 < 0 && b == (T)-1) ? 0 : (T)(a % b);
}
template <typename T>
static inline T modulo(T a, T b) {
  const T r = remainder_c(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}
static inline float modulo(float a, float b) {
  const float r = fmodf(a, b);
  return r == 0 ? copysignf(r, b) : (r < 0) != (b < 0) ? r + b : r;
}
static inline double modulo(double a, double b) {
  const double r = ::fmod(a, b);
  return r == 0 ? ::copysign(r, b) : (r < 0) != (b < 0) ? r + b : r;
}
template <typename T>
static inline T power_int(T base, T exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == (T)-1 ? ((exponent & 1) ? (T)-1 : 1) : 0;
  uint64_t result = 1, b = (uint64_t)base;
  for (uint64_t e = (uint64_t)exponent; e; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return (T)result;
}
template <typename T>
static inline T shift_left(T a, T b) {
  return (uint64_t)b >= sizeof(T) * 8 ? 0 : (T)((uint64_t)a << b);
}
template <typename T>
static inline T shift_right(T a, T b) {
  return (uint64_t)b >= sizeof(T) * 8 ? (a < 0 ? (T)-1 : 0) : (T)(a >> b);
}
template <typename T>
static inline T sign_of(T a) {
  return a > 0 ? (T)1 : a < 0 ? (T)-1 : a;
}
template <typename T>
static inline T absolute(T a) {
  return a < 0 ? (T)(0 - a) : a;
}
static inline float absolute(float a) { return fabsf(a); }
static inline double absolute(double a) { return fabs(a); }
static inline double as_double(int64_t bits) {
  double d;
  memcpy(&d, &bits, 8);
  return d;
}

}  // namespace obk

#endif

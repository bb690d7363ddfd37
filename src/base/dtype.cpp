#include "base/dtype.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace obelisk {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  int bits;
};
constexpr std::array<Entry, kDTypes> kTable{{
    {DType::f64, "f64", 64},
    {DType::f32, "f32", 32},
    {DType::f16, "f16", 16},
    {DType::bf16, "bf16", 16},
    {DType::f8e4m3fn, "f8e4m3fn", 8},
    {DType::f8e4m3fnuz, "f8e4m3fnuz", 8},
    {DType::f8e5m2, "f8e5m2", 8},
    {DType::f8e5m2fnuz, "f8e5m2fnuz", 8},
    {DType::f8e8m0, "f8e8m0", 8},
    {DType::f4e2m1, "f4e2m1", 4},
    {DType::i64, "i64", 64},
    {DType::i32, "i32", 32},
    {DType::i16, "i16", 16},
    {DType::i8, "i8", 8},
    {DType::i4, "i4", 4},
    {DType::i2, "i2", 2},
    {DType::u64, "u64", 64},
    {DType::u32, "u32", 32},
    {DType::u16, "u16", 16},
    {DType::u8, "u8", 8},
    {DType::u4, "u4", 4},
    {DType::u2, "u2", 2},
    {DType::b1, "b1", 8},
}};

const Entry& entry(DType dtype) { return kTable[static_cast<int>(dtype)]; }

// How a narrow float spends its codes above the finite values.
enum class Specials {
  kIeee,    // the highest exponent holds infinity and NaNs
  kFn,      // no infinity; all ones is NaN
  kFnuz,    // no infinity, no negative zero; its code is the NaN
  kFinite,  // neither
};

// A sign bit, `exponent` bits, `mantissa` bits.
struct Layout {
  int exponent, mantissa, bias;
  Specials specials;

  constexpr int sign_shift() const { return exponent + mantissa; }
  constexpr uint32_t magnitude_mask() const { return (1u << sign_shift()) - 1; }
  constexpr uint32_t infinity() const { return ((1u << exponent) - 1) << mantissa; }  // kIeee
  constexpr uint32_t largest() const {  // the code of the largest finite magnitude
    switch (specials) {
      case Specials::kIeee:
        return infinity() - 1;
      case Specials::kFn:
        return magnitude_mask() - 1;
      case Specials::kFnuz:
      case Specials::kFinite:
        return magnitude_mask();
    }
    return 0;
  }
};

constexpr Layout kF16{5, 10, 15, Specials::kIeee};
constexpr Layout kBf16{8, 7, 127, Specials::kIeee};

constexpr Layout layout_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return kF16;
    case DType::bf16:
      return kBf16;
    case DType::f8e4m3fn:
      return {4, 3, 7, Specials::kFn};
    case DType::f8e4m3fnuz:
      return {4, 3, 8, Specials::kFnuz};
    case DType::f8e5m2:
      return {5, 2, 15, Specials::kIeee};
    case DType::f8e5m2fnuz:
      return {5, 2, 16, Specials::kFnuz};
    default:
      return {2, 1, 1, Specials::kFinite};  // f4e2m1
  }
}

double power_of_two(int exponent) {  // exponent in [-1022, 1023]
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

double decode(uint32_t code, const Layout& layout) {
  const bool negative = (code >> layout.sign_shift()) & 1;
  const uint32_t magnitude = code & layout.magnitude_mask();
  if (layout.specials == Specials::kFnuz && negative && magnitude == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double value;
  if (magnitude > layout.largest()) {
    value = layout.specials == Specials::kIeee && magnitude == layout.infinity()
                ? std::numeric_limits<double>::infinity()
                : std::numeric_limits<double>::quiet_NaN();
  } else {
    const int exponent = static_cast<int>(magnitude >> layout.mantissa);
    const uint32_t fraction = magnitude & ((1u << layout.mantissa) - 1);
    const uint32_t digits = exponent ? fraction | (1u << layout.mantissa) : fraction;
    value = digits * power_of_two((exponent ? exponent : 1) - layout.bias - layout.mantissa);
  }
  return negative ? -value : value;
}

// Drops `shift` low bits, rounding to nearest, ties to even.
uint64_t round_shift(uint64_t digits, int shift) {
  if (shift > 63) return 0;
  const uint64_t kept = digits >> shift, rest = digits & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1)));
}

uint32_t encode(double value, const Layout& layout, bool saturate) {
  const uint64_t word = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(word >> 63) << layout.sign_shift();
  if (std::isnan(value)) {
    switch (layout.specials) {
      case Specials::kIeee:
        return sign | layout.infinity() | 1u << (layout.mantissa - 1);
      case Specials::kFn:
        return sign | layout.magnitude_mask();
      case Specials::kFnuz:
        return 1u << layout.sign_shift();
      // There is no NaN to give; a zero of the other sign is what ml_dtypes gives.
      case Specials::kFinite:
        return sign ^ 1u << layout.sign_shift();
    }
  }
  const int biased = static_cast<int>(word >> 52 & 0x7ff);
  const uint64_t digits = (word & ((uint64_t{1} << 52) - 1)) | (biased ? uint64_t{1} << 52 : 0);
  const int exponent = biased - 1023;
  uint64_t magnitude;
  if (std::isinf(value)) {
    magnitude = uint64_t{layout.largest()} + 1;
  } else if (exponent >= 1 - layout.bias) {
    // The implicit one is added to the exponent field, a carry of the rounding likewise.
    magnitude = (static_cast<uint64_t>(exponent + layout.bias - 1) << layout.mantissa) +
                round_shift(digits, 52 - layout.mantissa);
  } else {
    magnitude = round_shift(digits, 52 - layout.mantissa + (1 - layout.bias - exponent));
  }
  if (magnitude > layout.largest()) {
    if (saturate || layout.specials == Specials::kFinite) return sign | layout.largest();
    switch (layout.specials) {
      case Specials::kIeee:
        return sign | layout.infinity();
      case Specials::kFn:
        return sign | layout.magnitude_mask();
      default:
        return 1u << layout.sign_shift();
    }
  }
  if (magnitude == 0 && layout.specials == Specials::kFnuz) return 0;
  return sign | static_cast<uint32_t>(magnitude);
}

// f8e8m0 is a bare exponent, 2^(code - 127), 255 is NaN. It has neither zero nor sign: zero and
// what is too small take the smallest power, negative numbers are NaN, ties go up.
double decode_e8m0(uint8_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : power_of_two(code - 127);
}

uint8_t encode_e8m0(double value, bool saturate) {
  if (std::isnan(value) || value < 0) return 255;
  if (value <= power_of_two(-127)) return 0;
  if (std::isinf(value)) return saturate ? 254 : 255;
  const uint64_t word = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(word >> 52) - 1023 + static_cast<int>(word >> 51 & 1);
  if (exponent > 127) return saturate ? 254 : 255;
  return static_cast<uint8_t>(exponent + 127);
}

template <typename T>
T load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void store(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

uint8_t load_bits(const void* data, int width, int64_t index) {
  const int64_t bit = index * width;
  return static_cast<const uint8_t*>(data)[bit >> 3] >> (bit & 7) & ((1 << width) - 1);
}

void store_bits(void* data, int width, int64_t index, uint8_t value) {
  const int64_t bit = index * width;
  uint8_t& byte = static_cast<uint8_t*>(data)[bit >> 3];
  const int mask = ((1 << width) - 1) << (bit & 7);
  byte = static_cast<uint8_t>((byte & ~mask) | (value << (bit & 7) & mask));
}

int64_t sign_extend(uint8_t value, int width) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) << (64 - width)) >> (64 - width);
}

// Truncation toward zero that never traps; out of range gives the smallest integer, as x86 does.
int64_t to_int64(double value) {
  if (!(value >= -0x1p63 && value < 0x1p63)) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

uint64_t to_uint64(double value) {
  if (value >= 0x1p63 && value < 0x1p64) return static_cast<uint64_t>(value);
  return static_cast<uint64_t>(to_int64(value));
}

// A double that rounds to fewer than 53 bits as the integer itself would: what does not fit in the
// double sticks to its last bit.
double sticky_double(int64_t value) {
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude >> 53) magnitude = (magnitude >> 11 | ((magnitude & 2047) != 0)) << 11;
  const double out = static_cast<double>(magnitude);
  return value < 0 ? -out : out;
}

void store_narrow_float(void* data, DType dtype, int64_t index, double value, bool saturate) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return store(data, index, static_cast<uint16_t>(encode(value, layout_of(dtype), saturate)));
    case DType::f8e8m0:
      return store(data, index, encode_e8m0(value, saturate));
    case DType::f4e2m1:
      return store_bits(data, 4, index,
                        static_cast<uint8_t>(encode(value, layout_of(dtype), saturate)));
    default:
      store(data, index, static_cast<uint8_t>(encode(value, layout_of(dtype), saturate)));
  }
}

}  // namespace

std::string_view to_string(DType dtype) { return entry(dtype).name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const Entry& candidate : kTable) {
    if (candidate.name == text) return candidate.dtype;
  }
  return std::nullopt;
}

int bits(DType dtype) { return entry(dtype).bits; }
bool is_float(DType dtype) { return dtype <= DType::f4e2m1; }
bool is_integer(DType dtype) { return dtype >= DType::i64 && dtype <= DType::u2; }
bool is_signed(DType dtype) { return dtype <= DType::i2; }
bool is_low_float(DType dtype) { return dtype >= DType::f8e4m3fn && dtype <= DType::f4e2m1; }

int64_t byte_size(DType dtype, int64_t count) {
  const int width = bits(dtype);
  if (width >= 8) {
    int64_t bytes;
    CHECK(count >= 0 && !__builtin_mul_overflow(count, width / 8, &bytes), "{} elements of {}",
          count, to_string(dtype));
    return bytes;
  }
  const int per_byte = 8 / width;
  return count / per_byte + (count % per_byte != 0);
}

double get_double(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::f64:
      return load<double>(data, index);
    case DType::f32:
      return load<float>(data, index);
    case DType::f16:
      return f16_to_f32(load<uint16_t>(data, index));
    case DType::bf16:
      return bf16_to_f32(load<uint16_t>(data, index));
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
      return decode(load<uint8_t>(data, index), layout_of(dtype));
    case DType::f8e8m0:
      return decode_e8m0(load<uint8_t>(data, index));
    case DType::f4e2m1:
      return decode(load_bits(data, 4, index), layout_of(dtype));
    case DType::u64:
      return static_cast<double>(load<uint64_t>(data, index));
    default:
      return static_cast<double>(get_int(data, dtype, index));
  }
}

int64_t get_int(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::i64:
      return load<int64_t>(data, index);
    case DType::i32:
      return load<int32_t>(data, index);
    case DType::i16:
      return load<int16_t>(data, index);
    case DType::i8:
      return load<int8_t>(data, index);
    case DType::i4:
      return sign_extend(load_bits(data, 4, index), 4);
    case DType::i2:
      return sign_extend(load_bits(data, 2, index), 2);
    case DType::u64:
      return load<int64_t>(data, index);
    case DType::u32:
      return load<uint32_t>(data, index);
    case DType::u16:
      return load<uint16_t>(data, index);
    case DType::u8:
      return load<uint8_t>(data, index);
    case DType::u4:
      return load_bits(data, 4, index);
    case DType::u2:
      return load_bits(data, 2, index);
    case DType::b1:
      return load<uint8_t>(data, index) != 0;
    default:
      return to_int64(get_double(data, dtype, index));
  }
}

void set_double(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::f64:
      return store(data, index, value);
    case DType::f32:
      return store(data, index, static_cast<float>(value));
    case DType::b1:
      return store<uint8_t>(data, index, value != 0);
    case DType::u64:
      return store(data, index, to_uint64(value));
    default:
      if (is_float(dtype)) return store_narrow_float(data, dtype, index, value, false);
      set_int(data, dtype, index, to_int64(value));
  }
}

void set_int(void* data, DType dtype, int64_t index, int64_t value) {
  switch (dtype) {
    case DType::i64:
    case DType::u64:
      return store(data, index, value);
    case DType::i32:
    case DType::u32:
      return store(data, index, static_cast<uint32_t>(value));
    case DType::i16:
    case DType::u16:
      return store(data, index, static_cast<uint16_t>(value));
    case DType::i8:
    case DType::u8:
      return store(data, index, static_cast<uint8_t>(value));
    case DType::i4:
    case DType::u4:
      return store_bits(data, 4, index, static_cast<uint8_t>(value & 15));
    case DType::i2:
    case DType::u2:
      return store_bits(data, 2, index, static_cast<uint8_t>(value & 3));
    case DType::b1:
      return store<uint8_t>(data, index, value != 0);
    case DType::f64:
      return store(data, index, static_cast<double>(value));
    case DType::f32:
      return store(data, index, static_cast<float>(value));
    default:
      store_narrow_float(data, dtype, index, sticky_double(value), false);
  }
}

void set_double_saturating(void* data, DType dtype, int64_t index, double value) {
  if (!is_low_float(dtype)) return set_double(data, dtype, index, value);
  store_narrow_float(data, dtype, index, value, true);
}

uint16_t f32_to_f16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = word >> 16 & 0x8000u, magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // subnormal: the sum's low bits are the rounded digits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float f16_to_f32(uint16_t value) {
  const uint32_t sign = (value & 0x8000u) << 16, magnitude = value & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, or a NaN that keeps its payload
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  // Scaling by 2^112 moves the exponent's bias from 15 to 127 and normalises what was subnormal.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

uint16_t f32_to_bf16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((word >> 16 & 0x8000) | 0x7fc0);
  return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

float bf16_to_f32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// ---- many at once -------------------------------------------------------------------------------
//
// Bytes of a file may lie anywhere, so nothing here takes an address to be aligned.

namespace {

#if defined(__x86_64__)
// Each tells how many it took: all but a few at the end, or up to a NaN, of which the machine would
// keep the payload, or not keep it, otherwise than we do.
__attribute__((target("avx,f16c"))) int64_t f16_by_eights(const char* from, char* to,
                                                          int64_t count) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(from + k * 4));
    if (_mm256_movemask_ps(_mm256_cmp_ps(value, value, _CMP_UNORD_Q))) break;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k * 2),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  return k;
}

__attribute__((target("avx,f16c"))) int64_t from_f16_by_eights(const char* from, char* to,
                                                               int64_t count) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    const __m256 value =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * 2)));
    if (_mm256_movemask_ps(_mm256_cmp_ps(value, value, _CMP_UNORD_Q))) break;
    _mm256_storeu_ps(reinterpret_cast<float*>(to + k * 4), value);
  }
  return k;
}

__attribute__((target("avx2"))) __m256i bf16_of_eight(const char* from) {
  const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  const __m256i word = _mm256_castps_si256(value), high = _mm256_srli_epi32(word, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(word, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i nan =
      _mm256_or_si256(_mm256_and_si256(high, _mm256_set1_epi32(0x8000)), _mm256_set1_epi32(0x7fc0));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, nan, is_nan);
}

__attribute__((target("avx2"))) int64_t bf16_by_sixteens(const char* from, char* to,
                                                         int64_t count) {
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    const __m256i both =
        _mm256_packus_epi32(bf16_of_eight(from + k * 4), bf16_of_eight(from + k * 4 + 32));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k * 2),
                        _mm256_permute4x64_epi64(both, 0b11'01'10'00));
  }
  return k;
}

__attribute__((target("avx2"))) int64_t from_bf16_by_eights(const char* from, char* to,
                                                            int64_t count) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * 2)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k * 4), _mm256_slli_epi32(wide, 16));
  }
  return k;
}

bool has_f16c() {  // not every compiler's __builtin_cpu_supports knows its name
  unsigned a = 0, b = 0, c = 0, d = 0;
  static const bool has =
      __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  return has;
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#else  // one by one
constexpr auto f16_by_eights = [](const char*, char*, int64_t) { return int64_t{0}; };
constexpr auto from_f16_by_eights = f16_by_eights, bf16_by_sixteens = f16_by_eights,
               from_bf16_by_eights = f16_by_eights;
bool has_f16c() { return false; }
bool has_avx2() { return false; }
#endif

/// Many at once as long as `many` takes them, a few one by one, and again.
template <typename From, typename To, typename Many>
void convert(const char* from, char* to, int64_t count, bool can, const Many& many,
             To (*one)(From)) {
  for (int64_t k = 0; k < count;) {
    if (can) k += many(from + k * sizeof(From), to + k * sizeof(To), count - k);
    for (const int64_t end = std::min(count, k + 16); k < end; ++k)
      store(to, k, one(load<From>(from, k)));
  }
}

}  // namespace

void f32_to_f16(const float* from, uint16_t* to, int64_t count) {
  narrow(DType::f16, from, to, count);
}
void f16_to_f32(const uint16_t* from, float* to, int64_t count) {
  widen(DType::f16, from, to, count);
}
void f32_to_bf16(const float* from, uint16_t* to, int64_t count) {
  narrow(DType::bf16, from, to, count);
}
void bf16_to_f32(const uint16_t* from, float* to, int64_t count) {
  widen(DType::bf16, from, to, count);
}

void widen(DType dtype, const void* from, float* to, int64_t count) {
  const char* x = static_cast<const char*>(from);
  char* y = reinterpret_cast<char*>(to);
  switch (dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(y, x, static_cast<size_t>(count) * 4);
      return;
    case DType::f16:
      return convert<uint16_t, float>(x, y, count, has_f16c(), from_f16_by_eights, f16_to_f32);
    case DType::bf16:
      return convert<uint16_t, float>(x, y, count, has_avx2(), from_bf16_by_eights, bf16_to_f32);
    default:
      CHECK(false, "{} to floats", to_string(dtype));
  }
}

void narrow(DType dtype, const float* from, void* to, int64_t count) {
  const char* x = reinterpret_cast<const char*>(from);
  char* y = static_cast<char*>(to);
  switch (dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(y, x, static_cast<size_t>(count) * 4);
      return;
    case DType::f16:
      return convert<float, uint16_t>(x, y, count, has_f16c(), f16_by_eights, f32_to_f16);
    case DType::bf16:
      return convert<float, uint16_t>(x, y, count, has_avx2(), bf16_by_sixteens, f32_to_bf16);
    default:
      CHECK(false, "floats to {}", to_string(dtype));
  }
}

}  // namespace obelisk

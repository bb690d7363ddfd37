/// base/dtype.h — element types and the exact conversions between a stored element and a double or
/// an int64.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace obelisk {

/// Element types, named as text forms print them.
enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8e4m3fn,
  f8e4m3fnuz,
  f8e5m2,
  f8e5m2fnuz,
  f8e8m0,
  f4e2m1,
  i64,
  i32,
  i16,
  i8,
  i4,
  i2,
  u64,
  u32,
  u16,
  u8,
  u4,
  u2,
  b1,  // stored as one byte, 0 or 1
};
inline constexpr int kDTypes = static_cast<int>(DType::b1) + 1;

std::string_view to_string(DType dtype);                  // "f32"
std::optional<DType> parse_dtype(std::string_view text);  // inverse of to_string
int bits(DType dtype);                                    // 4 for i4, 8 for b1, 32 for f32
bool is_float(DType dtype);                               // f64 ... f4e2m1
inline bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
bool is_integer(DType dtype);    // i64 ... u2, not b1
bool is_signed(DType dtype);     // floats and i*
bool is_low_float(DType dtype);  // the 8- and 4-bit floats

/// The bytes of `count` elements; types under a byte are packed, two or four to a byte, low bits
/// first.
int64_t byte_size(DType dtype, int64_t count);

/// Element `index` of an array. Reading a float is exact. Reading through the other kind converts
/// as C++ does.
double get_double(const void* data, DType dtype, int64_t index);
int64_t get_int(const void* data, DType dtype, int64_t index);

/// Writes with round-to-nearest-even for floats (overflow to infinity where the type has one, else
/// NaN or the largest value as the type's standard says without saturation), wrap-around for
/// integers, `!= 0` for b1.
void set_double(void* data, DType dtype, int64_t index, double value);
void set_int(void* data, DType dtype, int64_t index, int64_t value);

/// Same as set_double for the 8-bit floats, but finite overflow saturates to the largest finite
/// value (the `saturate` of casts).
void set_double_saturating(void* data, DType dtype, int64_t index, double value);

uint16_t f32_to_f16(float value);
float f16_to_f32(uint16_t value);
uint16_t f32_to_bf16(float value);
float bf16_to_f32(uint16_t value);

/// The same for each of `count`, bit for bit (NaN too), eight and more at once where the machine
/// can: about as fast as a copy. Of one core; a long array is cut with for_each_part_on_all_cores
/// (parallel.h). Arrays do not overlap.
void f32_to_f16(const float* from, uint16_t* to, int64_t count);
void f16_to_f32(const uint16_t* from, float* to, int64_t count);
void f32_to_bf16(const float* from, uint16_t* to, int64_t count);
void bf16_to_f32(const uint16_t* from, float* to, int64_t count);

/// Rows of weights to floats and back: f32 is copied, f16 and bf16 as above; no other types. As a
/// tensor's elements, those of `dtype` need no alignment.
void widen(DType dtype, const void* from, float* to, int64_t count);
void narrow(DType dtype, const float* from, void* to, int64_t count);

}  // namespace obelisk

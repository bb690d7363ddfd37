#include "serve/door/wire_types.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace obelisk::serve::door {
namespace {

struct Name {
  DType dtype;
  const char* name;
  int config;  // inference.DataType
};
constexpr Name kNames[] = {
    {DType::f64, "FP64", 12},
    {DType::f32, "FP32", 11},
    {DType::f16, "FP16", 10},
    {DType::bf16, "BF16", 14},
    {DType::i64, "INT64", 9},
    {DType::i32, "INT32", 8},
    {DType::i16, "INT16", 7},
    {DType::i8, "INT8", 6},
    {DType::u64, "UINT64", 5},
    {DType::u32, "UINT32", 4},
    {DType::u16, "UINT16", 3},
    {DType::u8, "UINT8", 2},
    {DType::b1, "BOOL", 1},
    {DType::f8e4m3fn, "FP8_E4M3FN", 0},
    {DType::f8e4m3fnuz, "FP8_E4M3FNUZ", 0},
    {DType::f8e5m2, "FP8_E5M2", 0},
    {DType::f8e5m2fnuz, "FP8_E5M2FNUZ", 0},
    {DType::f8e8m0, "FP8_E8M0", 0},
    {DType::f4e2m1, "FP4_E2M1", 0},
    {DType::i4, "INT4", 0},
    {DType::i2, "INT2", 0},
    {DType::u4, "UINT4", 0},
    {DType::u2, "UINT2", 0},
};

const Name& find(DType dtype) {
  for (const Name& one : kNames)
    if (one.dtype == dtype) return one;
  return kNames[1];
}

template <typename T>
void write_floats(std::string& out, const std::byte* data, int64_t count) {
  char text[40];
  for (int64_t k = 0; k < count; ++k) {
    T value;
    memcpy(&value, data + k * sizeof value, sizeof value);
    if (k) out += ',';
    if (std::isnan(value))
      out += "NaN";
    else if (std::isinf(value))
      out += value < 0 ? "-Infinity" : "Infinity";
    else {
      const char* end = std::to_chars(text, text + sizeof text, value).ptr;
      out.append(static_cast<const char*>(text), end);
      // A reader of JSON takes "1" for an integer, and hands it on as one.
      if (std::string_view(text, end - text).find_first_of(".e") == std::string_view::npos)
        out += ".0";
    }
  }
}

template <typename T>
void write_integers(std::string& out, const std::byte* data, int64_t count) {
  char text[24];
  for (int64_t k = 0; k < count; ++k) {
    T value;
    memcpy(&value, data + k * sizeof value, sizeof value);
    if (k) out += ',';
    out.append(text, std::to_chars(text, text + sizeof text, value).ptr - text);
  }
}

}  // namespace

std::string_view wire_name(DType dtype) { return find(dtype).name; }

std::optional<DType> parse_wire_name(std::string_view name) {
  for (const Name& one : kNames)
    if (name == one.name) return one.dtype;
  return std::nullopt;
}

std::string config_name(DType dtype) {
  const Name& one = find(dtype);
  return one.config ? std::string("TYPE_") + one.name : "TYPE_INVALID";
}
int config_number(DType dtype) { return find(dtype).config; }

void write_numbers(std::string& out, DType dtype, const std::byte* data, int64_t count) {
  out.reserve(out.size() + static_cast<size_t>(count) * 4);
  switch (dtype) {
    case DType::f64:
      return write_floats<double>(out, data, count);
    case DType::f32:
      return write_floats<float>(out, data, count);
    case DType::i64:
      return write_integers<int64_t>(out, data, count);
    case DType::i32:
      return write_integers<int32_t>(out, data, count);
    case DType::i16:
      return write_integers<int16_t>(out, data, count);
    case DType::i8:
      return write_integers<int8_t>(out, data, count);
    case DType::u64:
      return write_integers<uint64_t>(out, data, count);
    case DType::u32:
      return write_integers<uint32_t>(out, data, count);
    case DType::u16:
      return write_integers<uint16_t>(out, data, count);
    case DType::u8:
      return write_integers<uint8_t>(out, data, count);
    case DType::b1:
      for (int64_t k = 0; k < count; ++k) {
        if (k) out += ',';
        out += data[k] != std::byte{0} ? "true" : "false";
      }
      return;
    default:
      for (int64_t k = 0; k < count; ++k) {
        if (k) out += ',';
        if (is_float(dtype)) {
          const float value = static_cast<float>(get_double(data, dtype, k));
          write_floats<float>(out, reinterpret_cast<const std::byte*>(&value), 1);
        } else {
          const int64_t value = get_int(data, dtype, k);
          write_integers<int64_t>(out, reinterpret_cast<const std::byte*>(&value), 1);
        }
      }
  }
}

bool valid_elements(DType dtype, const std::byte* data, size_t bytes) {
  if (dtype != DType::b1) return true;
  std::byte seen{0};
  for (size_t k = 0; k < bytes; ++k) seen |= data[k];
  return seen <= std::byte{1};
}

}  // namespace obelisk::serve::door

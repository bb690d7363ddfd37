/// obelisk/port.h — an input or output of a model: its name, element type and shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace obelisk {

/// Element types. Those under a byte are packed, two or four to a byte, low bits first; `b1` is a
/// byte, 0 or 1.
enum class Element : uint8_t {
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
  b1,
};

/// "f32"
std::string element_name(Element element);

/// Dense, row-major.
struct Port {
  std::string name;
  Element element = Element::f32;
  std::vector<int64_t> shape;  // extents, outermost first; empty for a scalar
  int64_t count = 1;           // elements
  size_t bytes = 0;
  /// Of an output that takes the memory of an input (CompileOptions::in_place): that input's name.
  std::string in_place_of;
  /// Then: whether a run writes only the elements that change. Otherwise it computes all of the
  /// output elsewhere and copies it.
  bool updates = false;
};

/// The element type that a C++ type stands for. Others (f16, bf16, ...) are reached as bytes.
template <typename T>
struct ElementOf;  // not defined: there is no such element type
template <>
struct ElementOf<double> {
  static constexpr Element value = Element::f64;
};
template <>
struct ElementOf<float> {
  static constexpr Element value = Element::f32;
};
template <>
struct ElementOf<int64_t> {
  static constexpr Element value = Element::i64;
};
template <>
struct ElementOf<int32_t> {
  static constexpr Element value = Element::i32;
};
template <>
struct ElementOf<int16_t> {
  static constexpr Element value = Element::i16;
};
template <>
struct ElementOf<int8_t> {
  static constexpr Element value = Element::i8;
};
template <>
struct ElementOf<uint64_t> {
  static constexpr Element value = Element::u64;
};
template <>
struct ElementOf<uint32_t> {
  static constexpr Element value = Element::u32;
};
template <>
struct ElementOf<uint16_t> {
  static constexpr Element value = Element::u16;
};
template <>
struct ElementOf<uint8_t> {
  static constexpr Element value = Element::u8;
};
template <>
struct ElementOf<bool> {
  static constexpr Element value = Element::b1;
};

}  // namespace obelisk

/// ops/moves.h — tools of the ops that copy elements: byte-wise element access, strided copies,
/// loop starts, axis lists.
///
/// A move never looks into an element, so it works on units of 64, 32, 16, 8, 4 or 2 bits whatever
/// the type is. Strides and offsets are in elements. Sub-byte elements are packed low bits first,
/// as base/dtype.h says.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

/// Units of whole bytes. A weight lies in its file wherever the file's writer put it, so that its
/// elements need not be aligned.
template <typename Unit>
struct WholeUnits {
  const void* from;
  void* to;
  Unit get(int64_t index) const {
    Unit unit;
    std::memcpy(&unit, static_cast<const char*>(from) + index * sizeof(Unit), sizeof unit);
    return unit;
  }
  void put(int64_t index, Unit value) const {
    std::memcpy(static_cast<char*>(to) + index * sizeof(Unit), &value, sizeof value);
  }
};

/// Units of `kBits` < 8 bits.
template <int kBits>
struct PackedUnits {
  const uint8_t* from;
  uint8_t* to;
  static constexpr int kPerByte = 8 / kBits;
  static constexpr uint8_t kMask = (1 << kBits) - 1;
  uint8_t get(int64_t index) const {
    return (from[index / kPerByte] >> (index % kPerByte * kBits)) & kMask;
  }
  void put(int64_t index, uint8_t value) const {
    uint8_t& byte = to[index / kPerByte];
    const int shift = static_cast<int>(index % kPerByte) * kBits;
    byte = static_cast<uint8_t>((byte & ~(kMask << shift)) | (value << shift));
  }
};

/// Calls body(units), whose get(i) reads element i of `from` and put(i, unit) writes element i of
/// `to`. Both have one type.
template <typename Body>
void with_units(const void* from, void* to, DType dtype, Body&& body) {
  switch (bits(dtype)) {
    case 64:
      return body(WholeUnits<uint64_t>{from, to});
    case 32:
      return body(WholeUnits<uint32_t>{from, to});
    case 16:
      return body(WholeUnits<uint16_t>{from, to});
    case 8:
      return body(WholeUnits<uint8_t>{from, to});
    case 4:
      return body(PackedUnits<4>{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to)});
    case 2:
      return body(PackedUnits<2>{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to)});
    default:
      CHECK(false, "an element of {} bits", bits(dtype));
  }
}
template <typename Body>
void with_units(const Tensor& from, Tensor& to, Body&& body) {
  CHECK(from.dtype() == to.dtype(), "a move from {} to {}", to_string(from.type()),
        to_string(to.type()));
  with_units(from.data(), to.mutable_data(), from.dtype(), std::forward<Body>(body));
}

/// One side of a strided copy.
struct Walk {
  int64_t offset = 0;
  std::vector<int64_t> strides;  // one per extent; may be 0 or negative
};
/// to[walk] = from[walk] over all points of `extents`.
void copy_strided(const Tensor& from, const Walk& from_walk, Tensor& to, const Walk& to_walk,
                  const Shape& extents);
/// The elements of `from` in order.
void copy_flat(const Tensor& from, Tensor& to);

/// Calls body(coordinates) for every point of `extents`, last coordinate fastest.
template <typename Body>
void for_each_point(const Shape& extents, Body&& body) {
  if (element_count(extents) == 0) return;
  std::vector<int64_t> at(extents.size(), 0);
  for (;;) {
    body(static_cast<const std::vector<int64_t>&>(at));
    int axis = static_cast<int>(extents.size()) - 1;
    for (; axis >= 0; --axis) {
      if (++at[axis] < extents[axis]) break;
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

/// A loop over `domain` whose first `parallel` coordinates are the output's, without a body, and
/// its coordinates.
struct LoopStart {
  Loop loop;
  std::vector<ExprId> coords;
};
LoopStart start_loop(const Shape& domain, int parallel);
inline LoopStart start_loop(const Shape& output) {
  return start_loop(output, static_cast<int>(output.size()));
}

/// Element `index` of a constant tensor, in its compute type.
ExprId constant_of(Exprs& exprs, const Tensor& tensor, int64_t index);
/// Zero of the compute type of a storage type.
ExprId zero_of(Exprs& exprs, DType dtype);
/// A run-time index i64: negative counts from the end of `extent`, then clamped into [0, extent).
ExprId wrapped_index(Exprs& exprs, ExprId index, int64_t extent);
int64_t wrapped_index(int64_t index, int64_t extent);

/// 0 <= axes < rank, distinct. Errors kBadModel.
Result<std::vector<int64_t>> normalize_axes(const Call& call, std::vector<int64_t> axes,
                                            int64_t rank);
/// The element type that an attribute numbers, or `otherwise`. Error kUnsupported for a number that
/// is no element type here.
Result<DType> dtype_attr(const Call& call, std::string_view name, DType otherwise);

int64_t product(const Shape& shape, int begin, int end);

}  // namespace obelisk::ops

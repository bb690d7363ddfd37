/// ops/dtype_set.h — which element types an op takes, and the two checks that most shape rules
/// begin with.
#pragma once

#include <cstdint>
#include <string>

#include "ops/ops.h"

namespace obelisk::ops {

using DTypeSet = uint32_t;  // bit n stands for DType n

constexpr DTypeSet dtype_set(std::initializer_list<DType> dtypes) {
  DTypeSet set = 0;
  for (DType dtype : dtypes) set |= DTypeSet{1} << static_cast<int>(dtype);
  return set;
}

inline constexpr DTypeSet kFloats = dtype_set({DType::f64, DType::f32, DType::f16, DType::bf16});
inline constexpr DTypeSet kFloats8 =
    dtype_set({DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz});
inline constexpr DTypeSet kSignedInts = dtype_set({DType::i64, DType::i32, DType::i16, DType::i8});
inline constexpr DTypeSet kUnsignedInts =
    dtype_set({DType::u64, DType::u32, DType::u16, DType::u8});
inline constexpr DTypeSet kInts = kSignedInts | kUnsignedInts;
inline constexpr DTypeSet kIndices = dtype_set({DType::i64, DType::i32});
inline constexpr DTypeSet kSignedNumbers = kFloats | kSignedInts;
inline constexpr DTypeSet kNumbers = kFloats | kInts;
inline constexpr DTypeSet kBools = dtype_set({DType::b1});
inline constexpr DTypeSet kEvery = (DTypeSet{1} << kDTypes) - 1;

constexpr bool contains(DTypeSet set, DType dtype) { return set >> static_cast<int>(dtype) & 1; }
std::string to_string(DTypeSet set);  // "f64 f32 f16"

/// Error kBadModel when input `input` is not of a type in the set.
Status check_dtype(const Call& call, int input, DTypeSet set);

/// The one type of all inputs that are there. Error kBadModel when they differ or are not in the
/// set.
Result<DType> common_dtype(const Call& call, DTypeSet set);

/// The numpy broadcast of all inputs that are there. Error kBadModel when they do not broadcast.
Result<Shape> common_shape(const Call& call);

}  // namespace obelisk::ops

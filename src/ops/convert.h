/// ops/convert.h — Cast, CastLike, BitCast: an element into another type.
///
/// Float to integer truncates toward zero; what does not fit wraps where it fits into i64, and is
/// unspecified beyond. Integers wrap. Floats round to nearest even; f8 types saturate unless set
/// not to; f8e8m0 has a rounding mode of its own.
///
/// `loose = 1`, which passes set and models do not: between float types the value is rounded where
/// it is stored and not before, as the values of all other ops are.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_cast(const Call& call);
Result<Types> infer_cast_like(const Call& call);
Result<Types> infer_bit_cast(const Call& call);

std::optional<Loop> loop_cast(const Call& call, int output);

/// Rounds to the type of the call even where the output is wider, because rounding is what a cast
/// is for; a loose one rounds to the output's type.
Status reference_cast(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);
Status reference_bit_cast(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);

}  // namespace obelisk::ops

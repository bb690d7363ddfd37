/// passes/precision_rules.h — which ops may compute with 16-bit values, a rule per op.
///
///   kNarrow   reads and writes 16 bits: products, convolutions, norms, attention. Their loops add
///             up in f32 all the same.
///   kFollow   as narrow as what it reads: moves, sums, activations. f32 when all that it reads is
///             f32.
///   kWide     reads and writes f32: what overflows (Exp, Pow, sums of many), what divides by small
///             numbers (Reciprocal, Rsqrt), what counts (CumSum, Range), what compares, quantizes,
///             draws or samples at positions.
///   kAsIs     reads exactly the type that the model says (BitCast).
///
/// A value in f32 costs nothing while a body keeps it in registers, so doubt is answered with
/// kWide.
/// Sources  PyTorch's lists for automatic mixed precision agree with most rows.
#pragma once

#include "ops/ops.h"

namespace obelisk::passes {

enum class PrecisionRule : uint8_t { kNarrow, kFollow, kWide, kAsIs };
PrecisionRule precision_rule(ops::Op op);

/// An input whose fraction matters although the op itself follows or is narrow: sampling positions,
/// statistics, scales of axes. It stays f32 if the op takes it so.
bool is_precise_input(ops::Op op, size_t input);

/// Reads positions or counts at this input: 16 bits cannot hold 2049, and the sine of 1000 is lost
/// with the fraction of 1000. What leads to it by sums and products is computed in f32 too.
bool reads_positions(ops::Op op, size_t input);

/// Adds or selects, so that a huge negative number is a mask: it may become a smaller one that is
/// still huge.
bool takes_masks(ops::Op op);

}  // namespace obelisk::passes

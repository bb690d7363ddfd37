/// ops/elementwise.h — arithmetic and activations: one output element from one element of each
/// input, numpy broadcast.
///
///   infer      inputs share one type out of a set; the output has it, and the broadcast shape
///   loop       a map in the compute type
///   reference  doubles, or int64 with wrap-around at the width of the output
///
/// NaN passes through every op, Min and Max included. Integer division truncates and x / 0 is 0.
#pragma once

#include "ops/dtype_set.h"
#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_map_of(const Call& call, DTypeSet set);
template <DTypeSet kSet>
Result<Types> infer_map(const Call& call) {
  return infer_map_of(call, kSet);
}
Result<Types> infer_clip(const Call& call);  // bounds are scalars
Result<Types> infer_pow(const Call& call);   // the type of the base; the exponent may have another
Result<Types> infer_prelu(
    const Call& call);  // the slope broadcasts to the input, not the other way
Result<Types> infer_swiglu(const Call& call);  // nothing broadcasts

std::optional<Loop> loop_map(const Call& call, int output);
Status reference_map(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs);

}  // namespace obelisk::ops

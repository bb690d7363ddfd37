/// ops/logic.h — comparisons, boolean and bitwise algebra, selection. A comparison with NaN is
/// false.
#pragma once

#include "ops/dtype_set.h"
#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_compare_of(const Call& call, DTypeSet set);
template <DTypeSet kSet>
Result<Types> infer_compare(const Call& call) {  // inputs of one type out of a set → b1
  return infer_compare_of(call, kSet);
}
Result<Types> infer_bit_shift(const Call& call);  // direction LEFT or RIGHT
Result<Types> infer_where(const Call& call);

std::optional<Loop> loop_logic(const Call& call, int output);
Status reference_logic(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);

}  // namespace obelisk::ops

/// ops/reduce.h — folds axes: Reduce*, ArgMax, ArgMin.
///
///   axes   input 1 (must be known when compiling) or all of them; with noop_with_empty_axes none
///   loop   domain = output coordinates, then the reduced ones, outermost first
///
/// A fold over nothing gives the identity of its combination: 0, 1, -inf, +inf, the lowest or
/// highest integer, false, true.
#pragma once

#include "ops/dtype_set.h"
#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_reduce_of(const Call& call, DTypeSet set);
template <DTypeSet kSet>
Result<Types> infer_reduce(const Call& call) {
  return infer_reduce_of(call, kSet);
}
Result<Types> infer_arg(const Call& call);

/// The folded axes of a Reduce* call, ascending.
Result<std::vector<int64_t>> reduced_axes(const Call& call);

std::optional<Loop> loop_reduce(const Call& call, int output);
Status reference_reduce(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_arg(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs);

/// m = max x;  log(sum exp(x - m)) + m, where an infinite m counts as 0
std::vector<int32_t> expand_reduce_log_sum_exp(const Call& call, Expander& expander);

/// The smallest (or largest) index where x equals its maximum (or is NaN, which wins).
std::vector<int32_t> expand_arg(const Call& call, Expander& expander);

}  // namespace obelisk::ops

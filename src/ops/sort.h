/// ops/sort.h — the family that orders or accumulates along an axis: TopK, CumSum, CumProd; and the
/// one whose output size is data: NonZero, Unique, NonMaxSuppression, which run only where the
/// deciding inputs are known when compiling.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

/// Equal values: the lower index comes first. NaN counts as larger than every number. Always
/// sorted, also for sorted = 0.
Result<Types> infer_top_k(const Call& call);
Result<Types> infer_cumulative(const Call& call);
Result<Types> infer_non_zero(const Call& call);
Result<Types> infer_unique(const Call& call);
Result<Types> infer_non_max_suppression(const Call& call);

/// A short line as sums over the elements that count, which fuse; nothing for long ones, where that
/// is too much work.
std::optional<Loop> loop_cumulative(const Call& call, int output);

Status reference_top_k(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);
Status reference_cum_sum(const Call&, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);
Status reference_cum_prod(const Call&, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);
Status reference_non_zero(const Call&, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);
Status reference_unique(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_non_max_suppression(const Call&, std::span<const Tensor* const> inputs,
                                     std::span<Tensor> outputs);

}  // namespace obelisk::ops

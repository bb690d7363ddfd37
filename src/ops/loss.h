/// ops/loss.h — NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.
///
///   scores [N, C, d...], labels [N, d...], weights [C]  →  loss [N, d...] or, reduced by mean or
///   sum, a scalar
///
/// A label equal to `ignore_index` counts nothing; the mean divides by the sum of the weights that
/// count.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_loss(const Call& call);
Status reference_loss(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);
std::vector<int32_t> expand_loss(const Call& call, Expander& expander);

}  // namespace obelisk::ops

/// ops/norm.h — softmax and its kin, and the normalisations: each needs more than one pass over its
/// input.
///
/// They have no loop of their own but expand into ones that have (LRN alone is a map). Statistics
/// are taken about the mean (sum of (x - mean)^2, never E[x^2] - mean^2) and in f32 where x is
/// narrower. Softmax over nothing but -inf is NaN.
///
/// MaskedSoftmax(x, mask) {axis, scale, fill, forbids} is internal: Softmax(x * scale + mask), or,
/// where the mask is bool, Softmax(Where(mask, x * scale, fill)); with forbids = 1 a true mask
/// forbids. The mask broadcasts into x. A row with nothing allowed is what those parts make of it:
/// NaN where fill is -inf or the mask adds it, equal weights where fill is finite.
///
/// NormStatistics(x, product) {epsilon, centred} is internal: of each row of x (its last axis) the
/// mean and 1 / sqrt(mean((x - mean)^2) + epsilon), f32 [..., 1]; with centred = 0 the mean is 0
/// and the squares are those of x. `product`, which may be missing, is a matrix product of x (or
/// the first half of its columns) whose tile reads whole rows anyway and computes their statistics:
/// it changes no value.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_softmax(const Call& call);  // also LogSoftmax, Hardmax, LpNormalization
Result<Types> infer_masked_softmax(const Call& call);
Result<Types> infer_layer_norm(const Call& call);
Result<Types> infer_rms_norm(const Call& call);
Result<Types> infer_norm_statistics(const Call& call);
Result<Types> infer_group_norm(const Call& call);
Result<Types> infer_instance_norm(const Call& call);
Result<Types> infer_batch_norm(const Call& call);
Result<Types> infer_mean_variance_norm(const Call& call);
Result<Types> infer_lrn(const Call& call);

Cost cost_norm(const Call& call);  // every byte once, eight flops an element

std::optional<Loop> loop_lrn(const Call& call, int output);

Status reference_softmax(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);  // also LogSoftmax, Hardmax, LpNormalization
Status reference_masked_softmax(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
Status reference_layer_norm(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs);  // also RMSNormalization
Status reference_norm_statistics(const Call& call, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs);
Status reference_channel_norm(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs);  // group, instance, batch
Status reference_mean_variance_norm(const Call& call, std::span<const Tensor* const> inputs,
                                    std::span<Tensor> outputs);
Status reference_lrn(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs);

std::vector<int32_t> expand_softmax(const Call& call, Expander& expander);  // also LogSoftmax
std::vector<int32_t> expand_masked_softmax(const Call& call, Expander& expander);
std::vector<int32_t> expand_hardmax(const Call& call, Expander& expander);
std::vector<int32_t> expand_lp_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_layer_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_rms_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_norm_statistics(const Call& call, Expander& expander);
std::vector<int32_t> expand_group_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_instance_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_batch_norm(const Call& call, Expander& expander);
std::vector<int32_t> expand_mean_variance_norm(const Call& call, Expander& expander);

}  // namespace obelisk::ops

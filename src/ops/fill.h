/// ops/fill.h — the family whose elements follow from their coordinates: ConstantOfShape, Range,
/// EyeLike, OneHot, Trilu.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_constant_of_shape(const Call& call);
Result<Types> infer_range(
    const Call& call);  // kUnsupported unless start, limit and delta are known
Result<Types> infer_eye_like(const Call& call);
Result<Types> infer_one_hot(const Call& call);
Result<Types> infer_trilu(const Call& call);

std::optional<Loop> loop_constant_of_shape(const Call& call, int output);
std::optional<Loop> loop_range(const Call& call, int output);
std::optional<Loop> loop_eye_like(const Call& call, int output);
std::optional<Loop> loop_one_hot(const Call& call, int output);
std::optional<Loop> loop_trilu(const Call& call, int output);

Status reference_constant_of_shape(const Call&, std::span<const Tensor* const> inputs,
                                   std::span<Tensor> outputs);
Status reference_range(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);
Status reference_eye_like(const Call&, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);
Status reference_one_hot(const Call&, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);
Status reference_trilu(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);

}  // namespace obelisk::ops

/// ops/sample.h — reading images at places that are data or windows: GridSample, AffineGrid,
/// Col2Im, RoiAlign, MaxRoiPool, MaxUnpool.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_grid_sample(const Call& call);
Result<Types> infer_affine_grid(const Call& call);
Result<Types> infer_col2im(const Call& call);
Result<Types> infer_roi_align(const Call& call);
Result<Types> infer_max_roi_pool(const Call& call);
Result<Types> infer_max_unpool(const Call& call);

Cost cost_grid_sample(const Call& call);
Cost cost_roi(const Call& call);

std::optional<Loop> loop_grid_sample(const Call& call, int output);
std::optional<Loop> loop_affine_grid(const Call& call, int output);
std::optional<Loop> loop_col2im(const Call& call, int output);

Status reference_grid_sample(const Call&, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);
Status reference_affine_grid(const Call&, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);
Status reference_col2im(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_roi_align(const Call&, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs);
Status reference_max_roi_pool(const Call&, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs);
Status reference_max_unpool(const Call&, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs);

}  // namespace obelisk::ops

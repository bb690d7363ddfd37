/// ops/slice.h — the family that cuts, joins and borders tensors.
///
///   Slice Split           parts of one input
///   Concat                inputs side by side
///   Pad CenterCropPad     a border around, or less of it
///   DepthToSpace SpaceToDepth   blocks between channels and pixels
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_slice(const Call& call);
Result<Types> infer_split(const Call& call);
Result<Types> infer_concat(const Call& call);
Result<Types> infer_pad(const Call& call);
Result<Types> infer_center_crop_pad(const Call& call);
Result<Types> infer_depth_to_space(const Call& call);
Result<Types> infer_space_to_depth(const Call& call);

std::optional<Loop> loop_slice(const Call& call, int output);
std::optional<Loop> loop_split(const Call& call, int output);
/// Nested selects over guarded loads, one an input: right for any count, quick for few.
std::optional<Loop> loop_concat(const Call& call, int output);
std::optional<Loop> loop_pad(const Call& call, int output);
std::optional<Loop> loop_center_crop_pad(const Call& call, int output);
std::optional<Loop> loop_depth_to_space(const Call& call, int output);
std::optional<Loop> loop_space_to_depth(const Call& call, int output);

Status reference_slice(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);
Status reference_split(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);
Status reference_concat(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_pad(const Call&, std::span<const Tensor* const> inputs, std::span<Tensor> outputs);
Status reference_center_crop_pad(const Call&, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs);
Status reference_depth_to_space(const Call&, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
Status reference_space_to_depth(const Call&, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);

}  // namespace obelisk::ops

/// ops/shape.h — the family that keeps all elements in order (Reshape and its kin), permutes axes,
/// or speaks of shapes.
///
///   Reshape Flatten Squeeze Unsqueeze Identity   the same bytes under another shape
///   Transpose Expand Tile                        views, or repeats
///   Shape Size                                   known from the types alone
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_identity(const Call& call);
Result<Types> infer_reshape(const Call& call);
Result<Types> infer_flatten(const Call& call);
Result<Types> infer_squeeze(const Call& call);
Result<Types> infer_unsqueeze(const Call& call);
Result<Types> infer_transpose(const Call& call);
Result<Types> infer_expand(const Call& call);
Result<Types> infer_tile(const Call& call);
Result<Types> infer_shape(const Call& call);
Result<Types> infer_size(const Call& call);

std::optional<Loop> loop_reshape(const Call& call, int output);  // every op that keeps the order
std::optional<Loop> loop_transpose(const Call& call, int output);
std::optional<Loop> loop_expand(const Call& call, int output);
std::optional<Loop> loop_tile(const Call& call, int output);
std::optional<Loop> loop_shape(const Call& call, int output);
std::optional<Loop> loop_size(const Call& call, int output);

Status reference_reshape(const Call&, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);
Status reference_transpose(const Call&, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs);
Status reference_expand(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_tile(const Call&, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);
Status reference_shape(const Call&, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs);
Status reference_size(const Call&, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);

/// The coordinates in `from` of the element that lies at `coords` in `to`, where both shapes list
/// the same elements in order.
std::vector<ExprId> reshape_coords(Exprs& exprs, const Shape& from, const Shape& to,
                                   const std::vector<ExprId>& coords);

}  // namespace obelisk::ops

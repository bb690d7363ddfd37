/// ops/scatter.h — the family that writes at coordinates which are data: ScatterElements,
/// ScatterND, TensorScatter.
///
/// Updates are applied in their row-major order, so that equal targets have one answer: the last
/// for "none", a fixed order of rounding for "add" and "mul". A negative index counts from the end;
/// an update whose index lies outside even so is dropped.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_scatter_elements(const Call& call);
Result<Types> infer_scatter_nd(const Call& call);
Result<Types> infer_tensor_scatter(const Call& call);

std::optional<Loop> loop_tensor_scatter(const Call& call, int output);

Status reference_scatter_elements(const Call&, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs);
Status reference_scatter_nd(const Call&, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs);
Status reference_tensor_scatter(const Call&, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);

}  // namespace obelisk::ops

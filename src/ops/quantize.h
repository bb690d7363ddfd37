/// ops/quantize.h — between real numbers and small integers or f8.
///
///   y = saturate(round(x / scale) + zero)      x = (y - zero) * scale
///
/// `scale` and `zero` are one for the tensor, one for each index of `axis`, or one for each block
/// of `block_size` along it.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_quantize(const Call& call);
Result<Types> infer_dequantize(const Call& call);
Result<Types> infer_dynamic_quantize(const Call& call);

std::optional<Loop> loop_quantize(const Call& call, int output);
std::optional<Loop> loop_dequantize(const Call& call, int output);

Status reference_quantize(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);
Status reference_dequantize(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs);
Status reference_dynamic_quantize(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs);

/// min, max → scale and zero point → QuantizeLinear
std::vector<int32_t> expand_dynamic_quantize(const Call& call, Expander& expander);

}  // namespace obelisk::ops

/// ops/einsum.h — Einsum, products of tensors summed over the letters that the output lacks; and
/// Det.
///
/// An ellipsis stands for letters of its own, aligned at the right and broadcast. A letter that one
/// operand has twice reads its diagonal. An extent of 1 broadcasts against any other, as numpy has
/// it.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_einsum(const Call& call);
Cost cost_einsum(const Call& call);
std::optional<Loop> loop_einsum(const Call& call, int output);
/// Operands joined by MatMul; nothing where the loop is as good (see there).
std::vector<int32_t> expand_einsum(const Call& call, Expander& expander);
Status reference_einsum(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);

Result<Types> infer_det(const Call& call);
Cost cost_det(const Call& call);
Status reference_det(const Call&, std::span<const Tensor* const> inputs, std::span<Tensor> outputs);

/// An equation with every axis as a number: first the output's letters in order, then the
/// summed ones by first use.
struct EinsumPlan {
  std::vector<std::vector<int>> operands;  // per input: the letter of each axis
  Shape extents;                           // per letter
  int output_rank = 0;                     // letters [0, output_rank) are the output's axes
};
Result<EinsumPlan> einsum_plan(const Call& call);

}  // namespace obelisk::ops

/// ops/pool.h — pools: one number of each window of an image, or of the whole image.
///
///   shapes     X [N, C, spatial...]  →  Y [N, C, out...], and MaxPool's Indices i64 of the same
///   shape loop       a reduction over the window; loads outside of the input are guarded. Indices,
///   which no single reduction
///              gives, are a chain of selections over windows of at most kMostUnrolled elements
///   padding    never wins a maximum and never counts, except for AveragePool with
///   count_include_pad, where what lies inside
///              of the explicit padding counts (but not what ceil_mode adds behind it)
#pragma once

#include "ops/ops.h"
#include "ops/window.h"

namespace obelisk::ops {

inline constexpr int64_t kMostUnrolled = 128;

Result<Types> infer_max_pool(const Call& call);
Result<Types> infer_pool(const Call& call);  // AveragePool, LpPool
Result<Types> infer_global_pool(const Call& call);

Cost cost_pool(const Call& call);

std::optional<Loop> loop_max_pool(const Call& call, int output);
std::optional<Loop> loop_average_pool(const Call& call, int output);
std::optional<Loop> loop_lp_pool(const Call& call, int output);
std::optional<Loop> loop_global_pool(const Call& call, int output);

Status reference_max_pool(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);
Status reference_average_pool(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs);
Status reference_lp_pool(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);
Status reference_global_pool(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);

}  // namespace obelisk::ops

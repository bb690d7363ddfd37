/// ops/squeeze_excite.h — a squeeze-and-excitation block (Hu et al., CVPR 2018) as one op: each
/// channel of an image is multiplied by a gate that two small products compute from the means of
/// all channels. An op of this project alone, which passes/raise_squeeze_excite.h puts together.
///
///   shapes  x [N, C, spatial...], w1 [R, C], b1 [R] or absent, w2 [R, C], b2 [C] or absent, all of
///           one type -> y, of x's type
///   attrs   activation: "Relu", "Swish" or "HardSwish"; gate: "Sigmoid" or "HardSigmoid", the
///           latter with alpha and beta (0.2 and 0.5)
///
///           mean[n, c] = the mean of x[n, c, ...]
///           h[n, r]    = activation(b1[r] + sum over c of w1[r, c] * mean[n, c])
///           y[n, c, …] = x[n, c, …] * gate(b2[c] + sum over r of w2[r, c] * h[n, r])
///
/// Both weights have the channels last: who computes a part of the channels reads columns of both.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

enum SqueezeExciteInput : int {
  kExcited,
  kSqueezeWeights,
  kSqueezeBias,
  kExciteWeights,
  kExciteBias
};

struct SqueezeExciteShape {
  int64_t images = 0, channels = 0, pixels = 1, squeezed = 0;
};
Result<SqueezeExciteShape> squeeze_excite_shape(const Call& call);

Result<Types> infer_squeeze_excite(const Call& call);
Cost cost_squeeze_excite(const Call& call);
Status reference_squeeze_excite(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
std::vector<int32_t> expand_squeeze_excite(const Call& call, Expander& expander);

}  // namespace obelisk::ops

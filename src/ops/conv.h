/// ops/conv.h — convolutions over any number of spatial axes: plain, transposed, quantised,
/// deformable, causal with a state.
///
///   shapes     X [N, C, spatial...], W [M, C/group, kernel...] (transposed: [C, M/group,
///   kernel...]), B [M] loop       a sum over the channels of the group and the kernel; outside of
///   the input a guarded load gives zero reference  columns of the input in blocks times the
///   weights, in doubles (ops/gemm.h)
#pragma once

#include "ops/ops.h"
#include "ops/window.h"

namespace obelisk::ops {

/// A convolution with every default filled in. For the transposed form the window runs over the
/// *output*: its `in` are the output's extents and its `out` the input's.
struct ConvShape {
  int64_t batch = 0, inputs = 0, outputs = 0;  // N, C, M
  int64_t groups = 1, group_inputs = 0, group_outputs = 0;
  Window window;
  Shape x, w;
  Shape output;
};
Result<ConvShape> conv_shape(const Call& call, int x, int w);
Result<ConvShape> conv_transpose_shape(const Call& call);

/// [N, M, out...] of doubles, without bias.
std::vector<double> convolve(const ConvShape& shape, const std::vector<double>& x,
                             const std::vector<double>& w, Sums sums = Sums::kDouble);

Result<Types> infer_conv(const Call& call);
Result<Types> infer_conv_transpose(const Call& call);
Result<Types> infer_conv_integer(const Call& call);
Result<Types> infer_qlinear_conv(const Call& call);
Result<Types> infer_deform_conv(const Call& call);
Result<Types> infer_causal_conv(const Call& call);

Cost cost_conv(const Call& call);
Cost cost_conv_transpose(const Call& call);
Cost cost_qlinear_conv(const Call& call);
Cost cost_causal_conv(const Call& call);

std::optional<Loop> loop_conv(const Call& call, int output);
std::optional<Loop> loop_conv_transpose(const Call& call, int output);
std::optional<Loop> loop_conv_integer(const Call& call, int output);
std::optional<Loop> loop_qlinear_conv(const Call& call, int output);
std::optional<Loop> loop_deform_conv(const Call& call, int output);
std::optional<Loop> loop_causal_conv(const Call& call, int output);

/// One convolution whose channels are the phases of the stride, interleaved by moves; where the
/// weights are known and the kernel is not mostly gaps.
std::vector<int32_t> expand_conv_transpose(const Call& call, Expander& expander);

Status reference_conv(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);
Status reference_conv_transpose(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
Status reference_conv_integer(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs);
Status reference_qlinear_conv(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs);
Status reference_deform_conv(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);
Status reference_causal_conv(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);

// ---- shared by the convolutions' files ----------------------------------------------------------

/// A sum over channels and kernel without a body, with the coordinates at which it reads X and W.
struct ConvLoop {
  Loop loop;
  ExprId channel;            // of the output, m
  std::vector<ExprId> x, w;  // coordinates
  ExprId guard = kNoExpr;    // of the load of X
};
ConvLoop start_conv(const ConvShape& shape);

/// Adds B [M] to [N, M, ...] doubles.
void add_bias(std::vector<double>& out, const ConvShape& shape, const std::vector<double>& bias);

}  // namespace obelisk::ops

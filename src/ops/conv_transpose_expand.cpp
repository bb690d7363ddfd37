// ConvTranspose decomposed into a convolution over the stride's phases.
//
// Output o lies at p = o + begin in the uncut result. Elements with p % stride == r are a phase:
// they meet the kernel's elements r, r + stride, ... and the inputs at q = p / stride, q - 1, ...
// So one convolution of stride 1 computes, at every q, all phases as channels, with weights that
// are rearranged once; its answer is interleaved and cut by moves, which cost nothing.
#include <algorithm>
#include <cstring>

#include "machine/machine.h"
#include "ops/conv.h"
#include "ops/expand_steps.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

/// One spatial axis of the convolution over phases.
struct PhaseAxis {
  int64_t phases = 1;    // the stride
  int64_t taps = 1;      // the kernel of the convolution
  int64_t dilation = 1;  // kept where the stride is 1; else the gaps are taps of zero
  int64_t count = 0;     // outputs of the convolution
  int64_t begin = 0, end = 0, crop = 0;
};

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

/// Nothing where the uncut result is cut deeper than the convolution's padding.
std::optional<PhaseAxis> phase_axis(const Window& window, int axis) {
  PhaseAxis made;
  const int64_t stride = window.strides[axis], begin = window.begin[axis];
  const int64_t in = window.out[axis], out = window.in[axis];
  made.phases = stride;
  made.taps = stride == 1 ? window.kernel[axis] : (window.extent(axis) + stride - 1) / stride;
  made.dilation = stride == 1 ? window.dilations[axis] : 1;
  const int64_t first = floor_div(begin, stride), last = floor_div(begin + out - 1, stride);
  const int64_t reach = (made.taps - 1) * made.dilation;
  made.count = last - first + 1;
  made.begin = reach - first;
  made.end = made.count - in - made.begin + reach;
  made.crop = begin - first * stride;
  if (made.begin < 0 || made.end < 0) return std::nullopt;
  return made;
}

/// [C, M / groups, kernel...] as [groups * phases * M / groups, C / groups, taps...], by bytes.
Tensor phase_weights(const ConvShape& shape, const std::vector<PhaseAxis>& axes,
                     const Tensor& weights) {
  int64_t phases = 1;
  for (const PhaseAxis& axis : axes) phases *= axis.phases;
  Shape made_shape{shape.groups * phases * shape.group_outputs, shape.group_inputs};
  for (const PhaseAxis& axis : axes) made_shape.push_back(axis.taps);
  Tensor made = Tensor::allocate({weights.dtype(), made_shape});
  const int64_t bytes = byte_size(weights.dtype(), 1);
  const int64_t kernel = shape.window.kernel_count(),
                taps = product(made_shape, 2, made.type().rank());
  char* to = made.as_mutable<char>();
  const char* from = weights.as<char>();
  int64_t k = 0;
  for_each_point(shape.window.kernel, [&](const std::vector<int64_t>& at) {
    int64_t phase = 0, tap = 0;
    for (size_t d = 0; d < axes.size(); ++d) {
      const int64_t place = at[d] * (axes[d].phases == 1 ? 1 : shape.window.dilations[d]);
      phase = phase * axes[d].phases + place % axes[d].phases;
      tap = tap * axes[d].taps + axes[d].taps - 1 - place / axes[d].phases;  // reversed
    }
    for (int64_t group = 0; group < shape.groups; ++group) {
      for (int64_t c = 0; c < shape.group_inputs; ++c) {
        for (int64_t m = 0; m < shape.group_outputs; ++m) {
          const int64_t channel = (group * phases + phase) * shape.group_outputs + m;
          const int64_t source =
              ((group * shape.group_inputs + c) * shape.group_outputs + m) * kernel + k;
          const int64_t target = (channel * shape.group_inputs + c) * taps + tap;
          std::memcpy(to + target * bytes, from + source * bytes, bytes);
        }
      }
    }
    ++k;
  });
  return made;
}

}  // namespace

std::vector<int32_t> expand_conv_transpose(const Call& call, Expander& expander) {
  const Tensor* weights = call.constant(1);
  const ConvShape shape = *conv_transpose_shape(call);
  if (!weights || call.out().count() == 0 || call.in(0).count() == 0) return {};
  const int rank = shape.window.rank();
  std::vector<PhaseAxis> axes;
  int64_t phases = 1, taps = 1;
  const double most = static_cast<double>(machine::thresholds::kWastedTaps) *
                      static_cast<double>(shape.window.kernel_count());
  std::vector<int64_t> pads(2 * rank), dilations, kernel;
  for (int d = 0; d < rank; ++d) {
    const auto axis = phase_axis(shape.window, d);
    if (!axis) return {};
    // With more taps of zero phases do not pay.
    const double more = static_cast<double>(axis->phases) * static_cast<double>(axis->taps);
    if (static_cast<double>(phases * taps) * more > most) return {};
    axes.push_back(*axis);
    phases *= axis->phases;
    taps *= axis->taps;
    pads[d] = axis->begin, pads[rank + d] = axis->end;
    dilations.push_back(axis->dilation);
    kernel.push_back(axis->taps);
  }

  Steps steps(expander);
  std::vector<Steps::Value> inputs{steps.in(0),
                                   steps.constant(phase_weights(shape, axes, *weights))};
  if (call.has(2)) {  // each phase has the bias of its channel
    const auto bias = steps.reshape(steps.in(2), {shape.groups, 1, shape.group_outputs});
    const auto spread =
        phases == 1 ? bias
                    : steps.add(Op::Expand,
                                {bias, steps.ints({shape.groups, phases, shape.group_outputs})});
    inputs.push_back(steps.reshape(spread, {shape.outputs * phases}));
  }
  auto y = steps.add(Op::Conv, inputs,
                     Attrs()
                         .set("pads", pads)
                         .set("dilations", dilations)
                         .set("kernel_shape", kernel)
                         .set("group", shape.groups));
  if (phases == 1) return {y};

  // [N, G, phases..., M / G, q...] to [N, G, M / G, q, phase, ...]
  Shape apart{shape.batch, shape.groups}, whole{shape.batch, shape.outputs};
  std::vector<int64_t> perm{0, 1, 2 + rank}, starts, ends, sliced;
  for (const PhaseAxis& axis : axes) apart.push_back(axis.phases);
  apart.push_back(shape.group_outputs);
  bool cuts = false;
  for (int d = 0; d < rank; ++d) {
    const PhaseAxis& axis = axes[d];
    apart.push_back(axis.count);
    whole.push_back(axis.count * axis.phases);
    perm.push_back(3 + rank + d);
    perm.push_back(2 + d);
    starts.push_back(axis.crop);
    ends.push_back(axis.crop + shape.window.in[d]);
    sliced.push_back(2 + d);
    cuts = cuts || whole.back() != shape.window.in[d];
  }
  y = steps.add(Op::Transpose, {steps.reshape(y, apart)}, Attrs().set("perm", perm));
  y = steps.reshape(y, whole);
  if (cuts) y = steps.add(Op::Slice, {y, steps.ints(starts), steps.ints(ends), steps.ints(sliced)});
  return {y};
}

}  // namespace obelisk::ops

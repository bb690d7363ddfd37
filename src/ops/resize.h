/// ops/resize.h — Resize: each output coordinate maps to a place between input elements, whose
/// neighbours are weighed.
///
/// Axes are independent, so everything is a plan per axis: the map of coordinates, and the taps
/// (neighbours and weights) around a place. The reference resizes axis by axis in f64; the loop
/// form is one expression, or a sum over taps for cubic.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_resize(const Call& call);
Cost cost_resize(const Call& call);
/// Nothing for antialias and exclude_outside, whose weights need a sum of their own, and for many
/// axes at once: these expand.
std::optional<Loop> loop_resize(const Call& call, int output);
std::vector<int32_t> expand_resize(const Call& call, Expander& expander);
Status reference_resize(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);

enum class ResizeMode { kNearest, kLinear, kCubic };
enum class Rounding { kPreferFloor, kPreferCeil, kFloor, kCeil };

/// The cubic convolution kernel at distance x, with coefficient a (often -0.75).
double cubic_weight(double x, double a);
/// The same as an expression of `type`.
ExprId cubic_weight_of(Exprs& exprs, ExprId distance, double a, DType type);

/// How one axis is resized.
struct ResizeAxis {
  int64_t from = 1, to = 1;  // extents
  // Output coordinate x lies at place(x) of the input. Kept as four numbers, for the one rounding
  // of a product of two would move places that are whole.
  double shift = 0, numerator = 1, denominator = 1, offset = 0;
  double scale = 1;    // to / from, as the model says it; stretches the antialias filter
  bool crops = false;  // outside [0, from - 1] is the extrapolation value
  bool same() const {
    return from == to && shift + offset == 0 && numerator == denominator && !crops;
  }
  double place(int64_t x) const {
    return (static_cast<double>(x) + shift) * numerator / denominator + offset;
  }
};

/// How a whole tensor is resized.
struct ResizePlan {
  ResizeMode mode = ResizeMode::kNearest;
  Rounding rounding = Rounding::kPreferFloor;
  bool antialias = false, exclude_outside = false;
  double cubic_a = -0.75, extrapolation = 0;
  std::vector<ResizeAxis> axes;  // one per axis of the input
};
Result<ResizePlan> resize_plan(const Call& call);
/// Not so antialias and exclude_outside, and linear along many axes, of which an output reads two
/// neighbours each.
bool has_loop(const ResizePlan& plan);

/// The neighbours of a place and their weights. Indices may lie outside [0, from): the edge then
/// stands in.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights;
};
Taps resize_taps(const ResizePlan& plan, const ResizeAxis& axis, double place);

}  // namespace obelisk::ops

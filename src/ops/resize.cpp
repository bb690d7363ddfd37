#include "ops/resize.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/moves.h"

namespace obelisk::ops {

namespace {

constexpr int64_t kLargest = int64_t{1} << 40;  // of any extent
constexpr double kFarthest = 1 << 20;           // chosen, of a region's ends: places stay integers

std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.get_double(i));
  return values;
}

// A constant float input, empty where it is absent or has no elements.
Result<std::vector<double>> known_floats(const Call& call, int input, std::string_view what) {
  if (!call.has(input) || call.in(input).count() == 0) return std::vector<double>{};
  if (!call.constant(input)) {
    return unsupported_call(call, fmt::format("{} depends on data", what), "make it a constant");
  }
  return to_doubles(*call.constant(input));
}

enum class Mapping { kHalfPixel, kSymmetric, kPytorch, kAlignCorners, kAsymmetric, kCrop };
Result<Mapping> mapping_of(const Call& call) {
  const std::string name = call.attrs.get_string("coordinate_transformation_mode", "half_pixel");
  if (name == "half_pixel") return Mapping::kHalfPixel;
  if (name == "half_pixel_symmetric") return Mapping::kSymmetric;
  if (name == "pytorch_half_pixel") return Mapping::kPytorch;
  if (name == "align_corners") return Mapping::kAlignCorners;
  if (name == "asymmetric") return Mapping::kAsymmetric;
  if (name == "tf_crop_and_resize") return Mapping::kCrop;
  return bad_call(call, fmt::format("coordinate_transformation_mode \"{}\"", name));
}

Result<ResizeMode> mode_of(const Call& call) {
  const std::string name = call.attrs.get_string("mode", "nearest");
  if (name == "nearest") return ResizeMode::kNearest;
  if (name == "linear") return ResizeMode::kLinear;
  if (name == "cubic") return ResizeMode::kCubic;
  return bad_call(call, fmt::format("mode \"{}\"", name), "nearest, linear or cubic");
}

Result<Rounding> rounding_of(const Call& call) {
  const std::string name = call.attrs.get_string("nearest_mode", "round_prefer_floor");
  if (name == "round_prefer_floor") return Rounding::kPreferFloor;
  if (name == "round_prefer_ceil") return Rounding::kPreferCeil;
  if (name == "floor") return Rounding::kFloor;
  if (name == "ceil") return Rounding::kCeil;
  return bad_call(call, fmt::format("nearest_mode \"{}\"", name));
}

// `width` is the length of the output before it was cut to an integer.
void set_map(ResizeAxis& axis, Mapping mapping, double width, double begin, double end) {
  const double last = static_cast<double>(axis.from - 1);
  axis.numerator = 1;
  axis.denominator = axis.scale;
  axis.shift = 0.5;
  axis.offset = -0.5;
  switch (mapping) {
    case Mapping::kHalfPixel:
      return;
    case Mapping::kSymmetric: {
      const double adjustment = static_cast<double>(axis.to) / width;
      axis.offset = static_cast<double>(axis.from) / 2 * (1 - adjustment) - 0.5;
      return;
    }
    case Mapping::kPytorch:
      if (axis.to > 1) return;
      axis.numerator = axis.offset = 0;
      return;
    case Mapping::kAlignCorners:
      axis.numerator = width == 1 ? 0 : last;
      axis.denominator = width == 1 ? 1 : width - 1;
      axis.shift = axis.offset = 0;
      return;
    case Mapping::kAsymmetric:
      axis.shift = axis.offset = 0;
      return;
    case Mapping::kCrop:
      axis.crops = true;
      axis.shift = 0;
      axis.numerator = width == 1 ? 0 : (end - begin) * last;
      axis.denominator = width == 1 ? 1 : width - 1;
      axis.offset = width == 1 ? 0.5 * (begin + end) * last : begin * last;
      return;
  }
}

Status read_axis_lists(const Call& call, int64_t rank, std::vector<int64_t>& axes,
                       std::vector<double>& roi) {
  axes.resize(rank);
  std::iota(axes.begin(), axes.end(), 0);
  TRY(axes, normalize_axes(call, call.attrs.get_ints("axes", axes), rank));
  TRY(const Mapping mapping, mapping_of(call));
  if (mapping != Mapping::kCrop) return ok_status();
  TRY(roi, known_floats(call, 1, "roi"));
  if (roi.size() != 2 * axes.size()) {
    return bad_call(call, fmt::format("roi of {} for {} axes", roi.size(), axes.size()));
  }
  for (double end : roi) {
    if (!(std::fabs(end) <= kFarthest))
      return bad_call(call, fmt::format("roi contains {}", end),
                      fmt::format("an end lies within {} times the input", kFarthest));
  }
  return ok_status();
}

}  // namespace

Result<ResizePlan> resize_plan(const Call& call) {
  ResizePlan plan;
  TRY(plan.mode, mode_of(call));
  TRY(plan.rounding, rounding_of(call));
  TRY(const Mapping mapping, mapping_of(call));
  plan.antialias = call.attrs.get_int("antialias", 0) != 0 && plan.mode != ResizeMode::kNearest;
  plan.exclude_outside = call.attrs.get_int("exclude_outside", 0) != 0;
  plan.cubic_a = call.attrs.get_float("cubic_coeff_a", -0.75);
  plan.extrapolation = call.attrs.get_float("extrapolation_value", 0);
  std::vector<int64_t> axes;
  std::vector<double> roi;
  TRY_STATUS(read_axis_lists(call, call.in(0).rank(), axes, roi));
  for (int64_t extent : call.in(0).shape) {
    plan.axes.push_back({.from = extent, .to = extent});
  }

  TRY(const auto scales, known_floats(call, 2, "scales"));
  const bool by_size = call.has(3) && call.in(3).count() > 0;
  if (by_size == !scales.empty()) {
    return bad_call(call, by_size ? "both scales and sizes are given" : "neither scales nor sizes");
  }
  std::vector<int64_t> sizes;
  if (by_size) {
    TRY(sizes, call.ints(3, "sizes"));
  }
  if ((by_size ? sizes.size() : scales.size()) != axes.size()) {
    return bad_call(call, fmt::format("{} {} for {} axes", by_size ? sizes.size() : scales.size(),
                                      by_size ? "sizes" : "scales", axes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > kLargest)
      return bad_call(call, fmt::format("size {} of axis {}", sizes[i], axes[i]));
  }
  const std::string policy = call.attrs.get_string("keep_aspect_ratio_policy", "stretch");
  double shared = 0;  // the one scale of the policies that keep the ratio
  if (by_size && policy != "stretch") {
    for (size_t i = 0; i < axes.size(); ++i) {
      const double scale = static_cast<double>(sizes[i]) / plan.axes[axes[i]].from;
      const bool better = policy == "not_larger" ? scale < shared : scale > shared;
      if (i == 0 || better) shared = scale;
    }
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    ResizeAxis& axis = plan.axes[axes[i]];
    const auto from = static_cast<double>(axis.from);
    const double begin = roi.empty() ? 0 : roi[i], end = roi.empty() ? 1 : roi[i + axes.size()];
    double width = 0;
    if (by_size) {
      axis.scale = policy == "stretch" ? static_cast<double>(sizes[i]) / from : shared;
      width = axis.scale * from;
      if (policy != "stretch" && !(width >= 0 && width <= static_cast<double>(kLargest)))
        return bad_call(call, fmt::format("scale {} of axis {}", axis.scale, axes[i]));
      axis.to = policy == "stretch" ? sizes[i] : static_cast<int64_t>(std::floor(width + 0.5));
    } else {
      axis.scale = scales[i];
      width = axis.scale * from;
      if (mapping == Mapping::kCrop) width *= end - begin;
      // The standard multiplies in f32, so that 0.7f of 10 is 7.
      const float exact = static_cast<float>(axis.scale) * static_cast<float>(axis.from) *
                          static_cast<float>(mapping == Mapping::kCrop ? end - begin : 1);
      if (!(exact >= 0 && exact < 0x1p40f)) {
        return bad_call(call, fmt::format("scale {} of axis {}", axis.scale, axes[i]));
      }
      axis.to = static_cast<int64_t>(std::floor(exact));
    }
    if (axis.from == 0 && axis.to > 0) {
      return bad_call(call,
                      fmt::format("axis {} is empty and cannot grow to {}", axes[i], axis.to));
    }
    // Each output reads from / (scale * from) neighbours; only of a region may these be more.
    if (plan.antialias && axis.to > 0 && axis.scale * from < 0.5) {
      return bad_call(call, fmt::format("scale {} of axis {} with antialias", axis.scale, axes[i]));
    }
    if (axis.from == axis.to && axis.scale == 1 && begin == 0 && end == 1) {
      continue;  // the identity, whatever the mapping
    }
    if (axis.from > 0 && axis.to > 0) set_map(axis, mapping, width, begin, end);
  }
  return plan;
}

Result<Types> infer_resize(const Call& call) {
  TRY(const ResizePlan plan, resize_plan(call));
  Type type = call.in(0);
  for (int axis = 0; axis < type.rank(); ++axis) type.shape[axis] = plan.axes[axis].to;
  return Types{type};
}

bool has_loop(const ResizePlan& plan) {
  constexpr auto kMostBlended = 6;  // axes: 64 neighbours
  if (plan.mode == ResizeMode::kNearest) return true;
  if (plan.antialias || plan.exclude_outside) return false;
  return plan.mode == ResizeMode::kCubic ||
         std::count_if(plan.axes.begin(), plan.axes.end(),
                       [](const ResizeAxis& axis) { return !axis.same(); }) <= kMostBlended;
}

Cost cost_resize(const Call& call) {
  const double each = call.attrs.get_string("mode", "nearest") == "cubic" ? 64 : 8;
  Cost cost = cost_move(call);
  cost.flops.count = each * static_cast<double>(call.out().count());
  return cost;
}

// ---- taps ---------------------------------------------------------------------------------------

double cubic_weight(double x, double a) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

namespace {

int64_t round_place(Rounding rounding, double place) {
  switch (rounding) {
    case Rounding::kPreferFloor:
      return static_cast<int64_t>(std::ceil(place - 0.5));
    case Rounding::kPreferCeil:
      return static_cast<int64_t>(std::floor(place + 0.5));
    case Rounding::kFloor:
      return static_cast<int64_t>(std::floor(place));
    case Rounding::kCeil:
      return static_cast<int64_t>(std::ceil(place));
  }
  return 0;
}

}  // namespace

Taps resize_taps(const ResizePlan& plan, const ResizeAxis& axis, double place) {
  if (axis.same()) return {static_cast<int64_t>(place), {1}};
  if (plan.mode == ResizeMode::kNearest) return {round_place(plan.rounding, place), {1}};
  const double reach = plan.mode == ResizeMode::kLinear ? 1 : 2;
  // Downscaling with antialias stretches the filter over all that one output covers.
  const double scale = plan.antialias ? std::min(axis.scale, 1.0) : 1.0;
  const double below = std::floor(place);
  Taps taps{static_cast<int64_t>(below + std::floor(-reach / scale)) + 1, {}};
  const int64_t last = static_cast<int64_t>(std::ceil(place + reach / scale));
  double sum = 0;
  for (int64_t tap = taps.first; tap <= last; ++tap) {
    const double distance = (static_cast<double>(tap) - place) * scale;
    double weight = plan.mode == ResizeMode::kLinear ? std::max(0.0, 1 - std::fabs(distance))
                                                     : cubic_weight(distance, plan.cubic_a);
    if (plan.exclude_outside && (tap < 0 || tap >= axis.from)) weight = 0;
    taps.weights.push_back(weight);
    sum += weight;
  }
  if ((plan.antialias || plan.exclude_outside) && sum != 0) {
    for (double& weight : taps.weights) weight /= sum;
  }
  return taps;
}

// ---- reference ----------------------------------------------------------------------------------

namespace {

// Per output coordinate the input offset, -1 for the extrapolation value: nearest copies bytes, so
// that integers stay exact.
void copy_nearest(const ResizePlan& plan, const Tensor& from, Tensor& to) {
  const auto strides = row_major_strides(from.shape());
  std::vector<std::vector<int64_t>> sources(plan.axes.size());
  for (size_t d = 0; d < plan.axes.size(); ++d) {
    const ResizeAxis& axis = plan.axes[d];
    for (int64_t x = 0; x < axis.to; ++x) {
      const double place = axis.place(x);
      const int64_t tap =
          std::clamp<int64_t>(resize_taps(plan, axis, place).first, 0, axis.from - 1);
      const bool outside = axis.crops && (place < 0 || place > static_cast<double>(axis.from - 1));
      sources[d].push_back(outside ? -1 : tap * strides[d]);
    }
  }
  Tensor fill = Tensor::allocate({to.dtype(), {1}});
  fill.set_double(0, plan.extrapolation);
  with_units(from, to, [&](auto units) {
    int64_t target = 0;
    std::vector<int64_t> outside;
    for_each_point(to.shape(), [&](const std::vector<int64_t>& at) {
      int64_t source = 0;
      for (size_t d = 0; d < at.size() && source >= 0; ++d) {
        const int64_t step = sources[d][at[d]];
        source = step < 0 ? -1 : source + step;
      }
      if (source < 0)
        outside.push_back(target);
      else
        units.put(target, units.get(source));
      ++target;
    });
    with_units(fill, to, [&](auto filler) {
      for (int64_t point : outside) filler.put(point, filler.get(0));
    });
  });
}

// One axis of `values`, seen as [outer, from, inner].
std::vector<double> resize_axis(const ResizePlan& plan, const ResizeAxis& axis,
                                const std::vector<double>& values, int64_t inner) {
  const int64_t outer = static_cast<int64_t>(values.size()) / (axis.from * inner);
  std::vector<double> result(outer * axis.to * inner, 0);
  for (int64_t x = 0; x < axis.to; ++x) {
    const double place = axis.place(x);
    const bool outside = axis.crops && (place < 0 || place > static_cast<double>(axis.from - 1));
    const Taps taps = resize_taps(plan, axis, place);
    for (int64_t line = 0; line < outer; ++line) {
      double* to = &result[(line * axis.to + x) * inner];
      if (outside) {
        std::fill(to, to + inner, plan.extrapolation);
        continue;
      }
      for (size_t tap = 0; tap < taps.weights.size(); ++tap) {
        const double weight = taps.weights[tap];
        if (weight == 0) continue;
        const int64_t source =
            std::clamp<int64_t>(taps.first + static_cast<int64_t>(tap), 0, axis.from - 1);
        const double* from = &values[(line * axis.from + source) * inner];
        for (int64_t i = 0; i < inner; ++i) to[i] += weight * from[i];
      }
    }
  }
  return result;
}

// Rounds to the nearest value of an integer type, the ends for what lies outside.
double saturated(DType dtype, double value) {
  if (is_float(dtype) || dtype == DType::b1) return value;
  const int width = bits(dtype);
  const double low = is_signed(dtype) ? -std::ldexp(1.0, width - 1) : 0;
  const double high = std::ldexp(1.0, is_signed(dtype) ? width - 1 : width);
  const double largest = width == 64 ? std::nextafter(high, 0) : high - 1;
  return std::isnan(value) ? 0 : std::clamp(std::nearbyint(value), low, largest);
}

}  // namespace

Status reference_resize(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const ResizePlan plan, resize_plan(call));
  Tensor& to = outputs[0];
  if (to.count() == 0) return ok_status();
  if (plan.mode == ResizeMode::kNearest) {
    copy_nearest(plan, *inputs[0], to);
    return ok_status();
  }
  std::vector<double> values = to_doubles(*inputs[0]);
  for (size_t d = 0; d < plan.axes.size(); ++d) {
    if (plan.axes[d].same()) continue;
    const int rank = inputs[0]->type().rank();
    values = resize_axis(plan, plan.axes[d], values,
                         product(inputs[0]->shape(), static_cast<int>(d) + 1, rank));
  }
  for (int64_t i = 0; i < to.count(); ++i) to.set_double(i, saturated(to.dtype(), values[i]));
  return ok_status();
}

}  // namespace obelisk::ops

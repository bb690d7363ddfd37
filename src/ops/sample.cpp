#include "ops/sample.h"

#include <algorithm>
#include <cmath>

#include "ops/moves.h"
#include "ops/resize.h"
#include "ops/sample_plan.h"
#include "ops/window.h"

namespace obelisk::ops {

Result<GridPlan> grid_plan(const Call& call) {
  GridPlan plan;
  const std::string mode = call.attrs.get_string("mode", "linear");
  const std::string outside = call.attrs.get_string("padding_mode", "zeros");
  if (mode == "nearest")
    plan.mode = ResizeMode::kNearest;
  else if (mode == "linear")
    plan.mode = ResizeMode::kLinear;
  else if (mode == "cubic")
    plan.mode = ResizeMode::kCubic;
  else
    return bad_call(call, fmt::format("mode \"{}\"", mode), "nearest, linear or cubic");
  if (outside == "zeros")
    plan.outside = Outside::kZeros;
  else if (outside == "border")
    plan.outside = Outside::kBorder;
  else if (outside == "reflection")
    plan.outside = Outside::kReflection;
  else
    return bad_call(call, fmt::format("padding_mode \"{}\"", outside),
                    "zeros, border or reflection");
  plan.align_corners = call.attrs.get_int("align_corners", 0) != 0;
  return plan;
}

// ---- GridSample ---------------------------------------------------------------------------------

Result<Types> infer_grid_sample(const Call& call) {
  TRY_STATUS(grid_plan(call));
  const Shape& image = call.in(0).shape;
  const Shape& grid = call.in(1).shape;
  const int64_t spatial = static_cast<int64_t>(image.size()) - 2;
  if (spatial < 1 || grid.size() != image.size() || grid.back() != spatial || grid[0] != image[0]) {
    return bad_call(call, fmt::format("a grid of {} for {}", to_string(grid), to_string(image)),
                    "[N, extents of the output..., axes of the image]");
  }
  Shape shape{image[0], image[1]};
  shape.insert(shape.end(), grid.begin() + 1, grid.end() - 1);
  // Of image and grid together: that it may be too large is found behind here.
  const bool wants = std::find(shape.begin(), shape.end(), 0) == shape.end();
  if (wants && call.in(0).count() == 0) {
    return bad_call(call, fmt::format("the image {} is empty", to_string(image)));
  }
  return Types{{call.in(0).dtype, shape}};
}

Cost cost_grid_sample(const Call& call) {
  Cost cost = cost_move(call);
  const int spatial = call.in(0).rank() - 2;
  const double taps = std::pow(call.attrs.get_string("mode", "linear") == "cubic" ? 4 : 2, spatial);
  cost.flops.count = 2 * taps * static_cast<double>(call.out().count());
  return cost;
}

namespace {

// Element offsets along one axis and their weights; an offset of -1 stands for zero.
struct GridTaps {
  int count = 0;
  int64_t offset[4];
  double weight[4];
};

double reflected(double x, double low, double high) {
  const double span = high - low;
  if (span <= 0) return low;
  const double beyond = std::fmod(std::fabs(x - low), 2 * span);
  return beyond <= span ? low + beyond : high - (beyond - span);
}

GridTaps grid_taps(const GridPlan& plan, double position, int64_t extent, int64_t stride) {
  const auto length = static_cast<double>(extent);
  double place =
      plan.align_corners ? (position + 1) / 2 * (length - 1) : ((position + 1) * length - 1) / 2;
  const double low = plan.align_corners ? 0 : -0.5, high = length - 1 - low;
  if (plan.mode == ResizeMode::kNearest) place = std::nearbyint(place);
  if (plan.outside == Outside::kBorder) place = std::clamp(place, 0.0, length - 1);
  if (plan.outside == Outside::kReflection && (place < low || place > high)) {
    place = reflected(place, low, high);
  }
  constexpr double kFar = 1 << 30;  // anything beyond is outside every image
  const double whole = std::isnan(place) ? -kFar : std::clamp(std::floor(place), -kFar, kFar);
  const double part = place - std::floor(place);
  GridTaps taps;
  auto add = [&](int64_t tap, double weight) {
    if (plan.outside == Outside::kReflection) {
      tap = static_cast<int64_t>(reflected(static_cast<double>(tap), low, high));
    }
    const bool inside = tap >= 0 && tap < extent;
    if (plan.outside != Outside::kZeros) tap = std::clamp<int64_t>(tap, 0, extent - 1);
    taps.offset[taps.count] = inside || plan.outside != Outside::kZeros ? tap * stride : -1;
    taps.weight[taps.count++] = weight;
  };
  const auto first = static_cast<int64_t>(whole);
  if (plan.mode == ResizeMode::kNearest) {
    add(first, 1);
  } else if (plan.mode == ResizeMode::kLinear) {
    add(first, 1 - part);
    add(first + 1, part);
  } else {
    for (int tap = -1; tap <= 2; ++tap) add(first + tap, cubic_weight(tap - part, -0.75));
  }
  return taps;
}

}  // namespace

Status reference_grid_sample(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs) {
  TRY(const GridPlan plan, grid_plan(call));
  const Tensor& image = *inputs[0];
  const Tensor& grid = *inputs[1];
  Tensor& to = outputs[0];
  if (to.count() == 0) return ok_status();
  const int spatial = image.type().rank() - 2;
  const auto strides = row_major_strides(image.shape());
  const int64_t channels = image.shape()[1];
  const int64_t points = to.count() / (to.shape()[0] * channels);
  std::vector<GridTaps> taps(spatial);
  for (int64_t at = 0; at < to.shape()[0] * points; ++at) {
    Shape counts;
    for (int d = 0; d < spatial; ++d) {  // the grid lists its axes innermost first
      const double position = grid.get_double(at * spatial + spatial - 1 - d);
      taps[d] = grid_taps(plan, position, image.shape()[d + 2], strides[d + 2]);
      counts.push_back(taps[d].count);
    }
    const int64_t row = at / points, point = at % points;
    for (int64_t channel = 0; channel < channels; ++channel) {
      double sum = 0;
      for_each_point(counts, [&](const std::vector<int64_t>& tap) {
        int64_t source = row * strides[0] + channel * strides[1];
        double weight = 1;
        bool inside = true;
        for (int d = 0; d < spatial; ++d) {
          inside = inside && taps[d].offset[tap[d]] >= 0;
          source += taps[d].offset[tap[d]];
          weight *= taps[d].weight[tap[d]];
        }
        sum += weight * (inside ? image.get_double(source) : 0);
      });
      to.set_double((row * channels + channel) * points + point, sum);
    }
  }
  return ok_status();
}

// ---- AffineGrid ---------------------------------------------------------------------------------

Result<Types> infer_affine_grid(const Call& call) {
  TRY(auto size, call.ints(1, "size"));
  const int64_t spatial = static_cast<int64_t>(size.size()) - 2;
  if ((spatial != 2 && spatial != 3) || call.in(0).shape != Shape{size[0], spatial, spatial + 1}) {
    return bad_call(
        call, fmt::format("theta of {} for size {}", to_string(call.in(0).shape), to_string(size)),
        "theta is [N, 2, 3] for [N, C, H, W], [N, 3, 4] for [N, C, D, H, W]");
  }
  Shape shape{size[0]};
  shape.insert(shape.end(), size.begin() + 2, size.end());
  shape.push_back(spatial);
  return Types{{call.in(0).dtype, shape}};
}

namespace {

// The normalised position of coordinate x of an axis: its ends are -1 and 1, or half an element
// outside of them.
double grid_position(int64_t x, int64_t extent, bool align_corners) {
  if (!align_corners) return (2 * static_cast<double>(x) + 1) / static_cast<double>(extent) - 1;
  return extent == 1 ? -1 : 2 * static_cast<double>(x) / static_cast<double>(extent - 1) - 1;
}

}  // namespace

Status reference_affine_grid(const Call& call, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs) {
  const Tensor& theta = *inputs[0];
  Tensor& to = outputs[0];
  const bool align_corners = call.attrs.get_int("align_corners", 0) != 0;
  const int64_t spatial = to.shape().back();
  int64_t target = 0;
  for_each_point(to.shape(), [&](const std::vector<int64_t>& at) {
    const int64_t line = (at[0] * spatial + at[spatial + 1]) * (spatial + 1);
    double sum = theta.get_double(line + spatial);
    for (int64_t d = 0; d < spatial; ++d) {  // theta lists the axes innermost first
      const int64_t axis = spatial - d;
      sum += theta.get_double(line + d) * grid_position(at[axis], to.shape()[axis], align_corners);
    }
    to.set_double(target++, sum);
  });
  return ok_status();
}

// ---- Col2Im -------------------------------------------------------------------------------------

Result<FoldPlan> fold_plan(const Call& call) {
  FoldPlan fold;
  TRY(fold.image, call.ints(1, "image_shape"));
  TRY(fold.block, call.ints(2, "block_shape"));
  const size_t rank = fold.image.size();
  fold.strides = call.attrs.get_ints("strides", std::vector<int64_t>(rank, 1));
  fold.dilations = call.attrs.get_ints("dilations", std::vector<int64_t>(rank, 1));
  fold.pads = call.attrs.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  if (fold.block.size() != rank || fold.strides.size() != rank || fold.dilations.size() != rank ||
      fold.pads.size() != 2 * rank) {
    return bad_call(call,
                    fmt::format("an image of {}, blocks of {}, {} strides, {} dilations, {} pads",
                                to_string(fold.image), to_string(fold.block), fold.strides.size(),
                                fold.dilations.size(), fold.pads.size()));
  }
  TRY_STATUS(
      check_bounded(call, {fold.image, fold.block, fold.strides, fold.dilations, fold.pads}));
  for (size_t axis = 0; axis < rank; ++axis) {
    if (fold.image[axis] < 0 || fold.block[axis] < 1 || fold.strides[axis] < 1 ||
        fold.dilations[axis] < 1) {
      return bad_call(call, fmt::format("blocks of {} in an image of {}", to_string(fold.block),
                                        to_string(fold.image)));
    }
    const int64_t reach = fold.dilations[axis] * (fold.block[axis] - 1) + 1;
    const int64_t room = fold.image[axis] + fold.pads[axis] + fold.pads[axis + rank] - reach;
    fold.blocks.push_back(room < 0 ? 0 : room / fold.strides[axis] + 1);
  }
  const Shape& from = call.in(0).shape;
  const auto taps = checked_element_count(fold.block), places = checked_element_count(fold.blocks);
  if (!taps || !places) {
    return bad_call(call, fmt::format("blocks of {}, {} of them", to_string(fold.block),
                                      to_string(fold.blocks)));
  }
  if (from.size() != 3 || from[1] % *taps != 0 || from[2] != *places) {
    return bad_call(
        call, fmt::format("the input {} is not [N, C * {}, {}]", to_string(from), *taps, *places));
  }
  fold.channels = from[1] / *taps;
  return fold;
}

Result<Types> infer_col2im(const Call& call) {
  TRY(const FoldPlan fold, fold_plan(call));
  Shape shape{call.in(0).shape[0], fold.channels};
  shape.insert(shape.end(), fold.image.begin(), fold.image.end());
  return Types{{call.in(0).dtype, shape}};
}

Status reference_col2im(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const FoldPlan fold, fold_plan(call));
  const Tensor& from = *inputs[0];
  Tensor& to = outputs[0];
  const auto strides = row_major_strides(to.shape());
  const int64_t taps = element_count(fold.block), blocks = element_count(fold.blocks);
  const size_t spatial = fold.image.size();
  std::vector<double> sums(to.count(), 0);
  for (int64_t plane = 0; plane < from.shape()[0] * fold.channels; ++plane) {
    int64_t source = plane * taps * blocks;
    for_each_point(fold.block, [&](const std::vector<int64_t>& tap) {
      for_each_point(fold.blocks, [&](const std::vector<int64_t>& block) {
        int64_t target = plane * strides[1];
        bool inside = true;
        for (size_t d = 0; d < spatial; ++d) {
          const int64_t at = block[d] * fold.strides[d] + tap[d] * fold.dilations[d] - fold.pads[d];
          inside = inside && at >= 0 && at < fold.image[d];
          if (inside) target += at * strides[d + 2];
        }
        if (inside) sums[target] += from.get_double(source);
        ++source;
      });
    });
  }
  for (int64_t i = 0; i < to.count(); ++i) to.set_double(i, sums[i]);
  return ok_status();
}

}  // namespace obelisk::ops

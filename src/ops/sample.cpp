#include "ops/sample.h"

#include <algorithm>
#include <cmath>

#include "ops/moves.h"
#include "ops/resize.h"

namespace obelisk::ops {

namespace {

enum class Outside { kZeros, kBorder, kReflection };

struct GridPlan {
  ResizeMode mode;
  Outside outside;
  bool align_corners;
};
Result<GridPlan> grid_plan(const Call& call) {
  GridPlan plan;
  const std::string mode = call.attrs.get_string("mode", "linear");
  const std::string outside = call.attrs.get_string("padding_mode", "zeros");
  if (mode == "nearest") plan.mode = ResizeMode::kNearest;
  else if (mode == "linear") plan.mode = ResizeMode::kLinear;
  else if (mode == "cubic") plan.mode = ResizeMode::kCubic;
  else return bad_call(call, fmt::format("mode \"{}\"", mode), "nearest, linear or cubic");
  if (outside == "zeros") plan.outside = Outside::kZeros;
  else if (outside == "border") plan.outside = Outside::kBorder;
  else if (outside == "reflection") plan.outside = Outside::kReflection;
  else return bad_call(call, fmt::format("padding_mode \"{}\"", outside), "zeros, border or reflection");
  plan.align_corners = call.attrs.get_int("align_corners", 0) != 0;
  return plan;
}

}  // namespace

// ---- GridSample -----------------------------------------------------------------------------------------------------

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
  if (element_count(shape) > 0 && call.in(0).count() == 0) {
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

// ---- AffineGrid -----------------------------------------------------------------------------------------------------

Result<Types> infer_affine_grid(const Call& call) {
  TRY(auto size, call.ints(1, "size"));
  const int64_t spatial = static_cast<int64_t>(size.size()) - 2;
  if ((spatial != 2 && spatial != 3) || call.in(0).shape != Shape{size[0], spatial, spatial + 1}) {
    return bad_call(call, fmt::format("theta of {} for size {}", to_string(call.in(0).shape),
                                      to_string(size)),
                    "theta is [N, 2, 3] for [N, C, H, W], [N, 3, 4] for [N, C, D, H, W]");
  }
  Shape shape{size[0]};
  shape.insert(shape.end(), size.begin() + 2, size.end());
  shape.push_back(spatial);
  return Types{{call.in(0).dtype, shape}};
}

// ---- Col2Im ---------------------------------------------------------------------------------------------------------

namespace {

// Along each axis: block `b` puts its tap `k` on image coordinate b * stride + k * dilation - pad.
struct Fold {
  Shape image, block, blocks;  // extents of the image, of one block, and how many blocks
  std::vector<int64_t> strides, dilations, pads;
  int64_t channels = 0;
};
Result<Fold> fold_of(const Call& call) {
  Fold fold;
  TRY(fold.image, call.ints(1, "image_shape"));
  TRY(fold.block, call.ints(2, "block_shape"));
  const size_t rank = fold.image.size();
  fold.strides = call.attrs.get_ints("strides", std::vector<int64_t>(rank, 1));
  fold.dilations = call.attrs.get_ints("dilations", std::vector<int64_t>(rank, 1));
  fold.pads = call.attrs.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  if (fold.block.size() != rank || fold.strides.size() != rank || fold.dilations.size() != rank ||
      fold.pads.size() != 2 * rank) {
    return bad_call(call, fmt::format("an image of {}, blocks of {}, {} strides, {} dilations, {} pads",
                                      to_string(fold.image), to_string(fold.block),
                                      fold.strides.size(), fold.dilations.size(), fold.pads.size()));
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    if (fold.image[axis] < 0 || fold.block[axis] < 1 || fold.strides[axis] < 1 || fold.dilations[axis] < 1) {
      return bad_call(call, fmt::format("blocks of {} in an image of {}", to_string(fold.block),
                                        to_string(fold.image)));
    }
    const int64_t reach = fold.dilations[axis] * (fold.block[axis] - 1) + 1;
    const int64_t room = fold.image[axis] + fold.pads[axis] + fold.pads[axis + rank] - reach;
    fold.blocks.push_back(room < 0 ? 0 : room / fold.strides[axis] + 1);
  }
  const Shape& from = call.in(0).shape;
  const int64_t taps = element_count(fold.block);
  if (from.size() != 3 || from[1] % taps != 0 || from[2] != element_count(fold.blocks)) {
    return bad_call(call, fmt::format("the input {} is not [N, C * {}, {}]", to_string(from), taps,
                                      element_count(fold.blocks)));
  }
  fold.channels = from[1] / taps;
  return fold;
}

}  // namespace

Result<Types> infer_col2im(const Call& call) {
  TRY(const Fold fold, fold_of(call));
  Shape shape{call.in(0).shape[0], fold.channels};
  shape.insert(shape.end(), fold.image.begin(), fold.image.end());
  return Types{{call.in(0).dtype, shape}};
}

}  // namespace obelisk::ops

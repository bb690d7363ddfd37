/// ops/sample_plan.h — what GridSample and Col2Im read out of their calls, shared by reference and
/// loop form.
#pragma once

#include "ops/ops.h"
#include "ops/resize.h"

namespace obelisk::ops {

enum class Outside { kZeros, kBorder, kReflection };

struct GridPlan {
  ResizeMode mode;
  Outside outside;
  bool align_corners;
};
Result<GridPlan> grid_plan(const Call& call);

/// Along each axis block b puts its tap k on image coordinate b * stride + k * dilation - pad.
struct FoldPlan {
  Shape image, block, blocks;  // extents of the image, of one block, and how many blocks
  std::vector<int64_t> strides, dilations, pads;
  int64_t channels = 0;
};
Result<FoldPlan> fold_plan(const Call& call);

}  // namespace obelisk::ops

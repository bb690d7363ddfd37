// RoiAlign, MaxRoiPool and MaxUnpool: windows and places that are data.
#include <algorithm>
#include <cmath>

#include "ops/moves.h"
#include "ops/sample.h"

namespace obelisk::ops {

Result<Types> infer_roi_align(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& rois = call.in(1).shape;
  const int64_t height = call.attrs.get_int("output_height", 1);
  const int64_t width = call.attrs.get_int("output_width", 1);
  if (image.size() != 4 || rois.size() != 2 || rois[1] != 4 || call.in(2).shape != Shape{rois[0]}) {
    return bad_call(call, fmt::format("an image of {}, rois of {}, batch_indices of {}",
                                      to_string(image), to_string(rois),
                                      to_string(call.in(2).shape)),
                    "[N,C,H,W], [R,4] and [R]");
  }
  if (element_count(image) == 0 && rois[0] > 0) return bad_call(call, "the image is empty");
  return Types{{call.in(0).dtype, {rois[0], image[1], height, width}}};
}

Result<Types> infer_max_roi_pool(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& rois = call.in(1).shape;
  const auto pooled = call.attrs.get_ints("pooled_shape");
  if (image.size() != 4 || rois.size() != 2 || rois[1] != 5 || pooled.size() != 2) {
    return bad_call(call, fmt::format("an image of {}, rois of {}, pooled_shape of {}",
                                      to_string(image), to_string(rois), to_string(pooled)),
                    "[N,C,H,W], [R,5] and two extents");
  }
  if (element_count(image) == 0 && rois[0] > 0) return bad_call(call, "the image is empty");
  return Types{{call.in(0).dtype, {rois[0], image[1], pooled[0], pooled[1]}}};
}

Cost cost_roi(const Call& call) {
  Cost cost = cost_move(call);
  cost.flops.count = 32 * static_cast<double>(call.out().count());
  return cost;
}

namespace {

// The shape that the indices count in.
Result<Shape> unpooled_shape(const Call& call) {
  const Shape& from = call.in(0).shape;
  const auto kernel = call.attrs.get_ints("kernel_shape");
  const size_t spatial = kernel.size();
  const auto strides = call.attrs.get_ints("strides", std::vector<int64_t>(spatial, 1));
  const auto pads = call.attrs.get_ints("pads", std::vector<int64_t>(2 * spatial, 0));
  if (from.size() != spatial + 2 || strides.size() != spatial || pads.size() != 2 * spatial) {
    return bad_call(call, fmt::format("the input {} with a kernel of {}, {} strides, {} pads",
                                      to_string(from), to_string(kernel), strides.size(),
                                      pads.size()));
  }
  Shape shape{from[0], from[1]};
  for (size_t axis = 0; axis < spatial; ++axis) {
    shape.push_back((from[axis + 2] - 1) * strides[axis] - pads[axis] - pads[axis + spatial] +
                    kernel[axis]);
  }
  return shape;
}

}  // namespace

Result<Types> infer_max_unpool(const Call& call) {
  TRY(Shape shape, unpooled_shape(call));
  if (call.in(1).shape != call.in(0).shape || !is_integer(call.in(1).dtype)) {
    return bad_call(call, fmt::format("indices {} for {}", to_string(call.in(1)),
                                      to_string(call.in(0))));
  }
  if (call.has(2)) {
    TRY(Shape wanted, call.ints(2, "output_shape"));
    bool fits = wanted.size() == shape.size();
    for (size_t axis = 0; fits && axis < shape.size(); ++axis) fits = wanted[axis] >= shape[axis];
    if (!fits) {
      return bad_call(call, fmt::format("output_shape {} does not hold {}", to_string(wanted),
                                        to_string(shape)));
    }
    shape = wanted;
  }
  return Types{{call.in(0).dtype, shape}};
}

}  // namespace obelisk::ops

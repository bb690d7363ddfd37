// RoiAlign, MaxRoiPool and MaxUnpool: windows and places that are data.
#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/moves.h"
#include "ops/sample.h"
#include "ops/window.h"

namespace obelisk::ops {

namespace {

constexpr int64_t kMostSampling = 1 << 10;  // chosen: a million samples of one bin
constexpr double kFar = 1 << 30;            // anything beyond is outside every image

/// A place that is data, NaN among them, as an integer.
int64_t whole(double place) {
  return to_int(std::isnan(place) ? -kFar : std::clamp(place, -kFar, kFar));
}

}  // namespace

Result<Types> infer_roi_align(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& rois = call.in(1).shape;
  const int64_t height = call.attrs.get_int("output_height", 1);
  const int64_t width = call.attrs.get_int("output_width", 1);
  if (image.size() != 4 || rois.size() != 2 || rois[1] != 4 || call.in(2).shape != Shape{rois[0]}) {
    return bad_call(call,
                    fmt::format("an image of {}, rois of {}, batch_indices of {}", to_string(image),
                                to_string(rois), to_string(call.in(2).shape)),
                    "[N,C,H,W], [R,4] and [R]");
  }
  if (element_count(image) == 0 && rois[0] > 0) return bad_call(call, "the image is empty");
  const int64_t sampling = call.attrs.get_int("sampling_ratio", 0);
  if (sampling > kMostSampling)
    return bad_call(call,
                    fmt::format("sampling_ratio {}, wanted at most {}", sampling, kMostSampling));
  return Types{{call.in(0).dtype, {rois[0], image[1], height, width}}};
}

Result<Types> infer_max_roi_pool(const Call& call) {
  const Shape& image = call.in(0).shape;
  const Shape& rois = call.in(1).shape;
  const auto pooled = call.attrs.get_ints("pooled_shape");
  if (image.size() != 4 || rois.size() != 2 || rois[1] != 5 || pooled.size() != 2) {
    return bad_call(call,
                    fmt::format("an image of {}, rois of {}, pooled_shape of {}", to_string(image),
                                to_string(rois), to_string(pooled)),
                    "[N,C,H,W], [R,5] and two extents");
  }
  if (element_count(image) == 0 && rois[0] > 0) return bad_call(call, "the image is empty");
  return Types{{call.in(0).dtype, {rois[0], image[1], pooled[0], pooled[1]}}};
}

Cost cost_roi(const Call& call) {
  Cost cost = cost_move(call);
  const auto sampling =
      static_cast<double>(std::max<int64_t>(call.attrs.get_int("sampling_ratio", 0), 2));
  cost.flops.count = 8 * sampling * sampling * static_cast<double>(call.out().count());
  return cost;
}

// ---- RoiAlign -----------------------------------------------------------------------------------

namespace {

// Four corners around a point of an image, and their weights; all zero for a point outside.
struct Corners {
  int64_t at[4] = {0, 0, 0, 0};
  double weight[4] = {0, 0, 0, 0};
};
Corners corners_of(double y, double x, int64_t height, int64_t width) {
  Corners corners;
  if (!(y >= -1 && y <= static_cast<double>(height) && x >= -1 &&
        x <= static_cast<double>(width))) {
    return corners;
  }
  y = std::clamp(y, 0.0, static_cast<double>(height - 1));
  x = std::clamp(x, 0.0, static_cast<double>(width - 1));
  const auto top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
  const int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
  const double down = y - static_cast<double>(top), along = x - static_cast<double>(left);
  return {{top * width + left, top * width + right, bottom * width + left, bottom * width + right},
          {(1 - down) * (1 - along), (1 - down) * along, down * (1 - along), down * along}};
}

}  // namespace

Status reference_roi_align(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs) {
  const Tensor& image = *inputs[0];
  const Tensor& rois = *inputs[1];
  Tensor& to = outputs[0];
  const int64_t channels = image.shape()[1], height = image.shape()[2], width = image.shape()[3];
  const int64_t rows = to.shape()[2], columns = to.shape()[3];
  const double scale = call.attrs.get_float("spatial_scale", 1);
  const int64_t sampling = call.attrs.get_int("sampling_ratio", 0);
  const bool half_pixel =
      call.attrs.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const bool takes_max = call.attrs.get_string("mode", "avg") == "max";
  constexpr double kMostSamples = 1 << 28;  // chosen: where a region says how many, some seconds
  double taken = 0;
  for (int64_t roi = 0; roi < to.shape()[0]; ++roi) {
    double edge[4];  // x1, y1, x2, y2
    for (int i = 0; i < 4; ++i)
      edge[i] = rois.get_double(roi * 4 + i) * scale - (half_pixel ? 0.5 : 0);
    double roi_width = edge[2] - edge[0], roi_height = edge[3] - edge[1];
    if (!half_pixel) {
      roi_width = std::max(roi_width, 1.0);
      roi_height = std::max(roi_height, 1.0);
    }
    const double bin_height = roi_height / static_cast<double>(rows);
    const double bin_width = roi_width / static_cast<double>(columns);
    const int64_t grid_rows = sampling > 0 ? sampling : whole(std::ceil(bin_height));
    const int64_t grid_columns = sampling > 0 ? sampling : whole(std::ceil(bin_width));
    if (grid_rows > 0 && grid_columns > 0)
      taken += static_cast<double>(rows * columns) * static_cast<double>(grid_rows) *
               static_cast<double>(grid_columns);
    if (taken > kMostSamples)
      return unsupported_call(call, fmt::format("more than {} samples of the image", kMostSamples),
                              "set sampling_ratio");
    const int64_t batch = wrapped_index(inputs[2]->get_int(roi), image.shape()[0]);
    for (int64_t bin = 0; bin < rows * columns; ++bin) {
      std::vector<Corners> samples;
      for (int64_t i = 0; i < grid_rows; ++i) {
        for (int64_t j = 0; j < grid_columns; ++j) {
          const double row = static_cast<double>(bin / columns) +
                             (static_cast<double>(i) + 0.5) / static_cast<double>(grid_rows);
          const double column = static_cast<double>(bin % columns) +
                                (static_cast<double>(j) + 0.5) / static_cast<double>(grid_columns);
          samples.push_back(
              corners_of(edge[1] + row * bin_height, edge[0] + column * bin_width, height, width));
        }
      }
      for (int64_t channel = 0; channel < channels; ++channel) {
        const int64_t base = (batch * channels + channel) * height * width;
        double value = takes_max && !samples.empty() ? -INFINITY : 0;
        for (const Corners& sample : samples) {
          for (int corner = 0; corner < 4; ++corner) {
            const double part = sample.weight[corner] * image.get_double(base + sample.at[corner]);
            value = takes_max ? std::max(value, part) : value + part;
          }
        }
        if (!takes_max) value /= static_cast<double>(std::max<size_t>(samples.size(), 1));
        to.set_double((roi * channels + channel) * rows * columns + bin, value);
      }
    }
  }
  return ok_status();
}

// ---- MaxRoiPool ---------------------------------------------------------------------------------

Status reference_max_roi_pool(const Call& call, std::span<const Tensor* const> inputs,
                              std::span<Tensor> outputs) {
  const Tensor& image = *inputs[0];
  const Tensor& rois = *inputs[1];
  Tensor& to = outputs[0];
  const int64_t channels = image.shape()[1], height = image.shape()[2], width = image.shape()[3];
  const int64_t rows = to.shape()[2], columns = to.shape()[3];
  const double scale = call.attrs.get_float("spatial_scale", 1);
  // The input rows that pooled row `bin` of `bins` covers, for an edge that starts at `first` and
  // has `length` rows.
  auto span_of = [](int64_t bin, int64_t bins, int64_t first, int64_t length, int64_t extent) {
    const double step = static_cast<double>(length) / static_cast<double>(bins);
    const auto low = static_cast<int64_t>(std::floor(static_cast<double>(bin) * step)) + first;
    const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(bin + 1) * step)) + first;
    return std::pair{std::clamp<int64_t>(low, 0, extent), std::clamp<int64_t>(high, 0, extent)};
  };
  for (int64_t roi = 0; roi < to.shape()[0]; ++roi) {
    auto edge = [&](int i) { return whole(std::round(rois.get_double(roi * 5 + i) * scale)); };
    const int64_t batch = wrapped_index(rois.get_int(roi * 5), image.shape()[0]);
    const int64_t roi_width = std::max<int64_t>(edge(3) - edge(1) + 1, 1);
    const int64_t roi_height = std::max<int64_t>(edge(4) - edge(2) + 1, 1);
    for (int64_t channel = 0; channel < channels; ++channel) {
      const int64_t base = (batch * channels + channel) * height * width;
      for (int64_t bin = 0; bin < rows * columns; ++bin) {
        const auto [top, bottom] = span_of(bin / columns, rows, edge(2), roi_height, height);
        const auto [left, right] = span_of(bin % columns, columns, edge(1), roi_width, width);
        const bool empty = top >= bottom || left >= right;
        double value = empty ? 0 : -INFINITY;
        for (int64_t y = top; y < bottom; ++y) {
          for (int64_t x = left; x < right; ++x) {
            value = std::max(value, image.get_double(base + y * width + x));
          }
        }
        to.set_double((roi * channels + channel) * rows * columns + bin, value);
      }
    }
  }
  return ok_status();
}

// ---- MaxUnpool ----------------------------------------------------------------------------------

namespace {

// The shape that the indices count in.
Result<Shape> unpooled_shape(const Call& call) {
  const Shape& from = call.in(0).shape;
  const auto kernel = call.attrs.get_ints("kernel_shape");
  const size_t spatial = kernel.size();
  const auto strides = call.attrs.get_ints("strides", std::vector<int64_t>(spatial, 1));
  const auto pads = call.attrs.get_ints("pads", std::vector<int64_t>(2 * spatial, 0));
  if (from.size() != spatial + 2 || strides.size() != spatial || pads.size() != 2 * spatial) {
    return bad_call(
        call, fmt::format("the input {} with a kernel of {}, {} strides, {} pads", to_string(from),
                          to_string(kernel), strides.size(), pads.size()));
  }
  Shape shape{from[0], from[1]};
  TRY_STATUS(check_bounded(call, {Shape(from.begin() + 2, from.end()), kernel, strides, pads}));
  for (size_t axis = 0; axis < spatial; ++axis) {
    shape.push_back((from[axis + 2] - 1) * strides[axis] - pads[axis] - pads[axis + spatial] +
                    kernel[axis]);
    if (shape.back() < 0)
      return bad_call(call,
                      fmt::format("axis {} would have the extent {}", axis + 2, shape.back()));
  }
  return shape;
}

}  // namespace

Result<Types> infer_max_unpool(const Call& call) {
  TRY(Shape shape, unpooled_shape(call));
  if (call.in(1).shape != call.in(0).shape || !is_integer(call.in(1).dtype)) {
    return bad_call(call,
                    fmt::format("indices {} for {}", to_string(call.in(1)), to_string(call.in(0))));
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

// An index outside of the tensor is dropped; of equal indices the last stands.
Status reference_max_unpool(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs) {
  TRY(const Shape inner, unpooled_shape(call));
  Tensor& to = outputs[0];
  const auto from_strides = row_major_strides(inner), to_strides = row_major_strides(to.shape());
  const int64_t count = element_count(inner);
  with_units(*inputs[0], to, [&](auto units) {
    for (int64_t i = 0; i < inputs[0]->count(); ++i) {
      int64_t index = inputs[1]->get_int(i), target = 0;
      if (index < 0 || index >= count) continue;
      for (size_t d = 0; d < inner.size(); ++d) {
        target += index / from_strides[d] * to_strides[d];
        index %= from_strides[d];
      }
      units.put(target, units.get(i));
    }
  });
  return ok_status();
}

}  // namespace obelisk::ops

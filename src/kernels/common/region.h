/* kernels/common/region.h — RoiAlign, MaxRoiPool: an output element is an item; and Det, where a
 * matrix is one.
 *
 * Places are computed in double, as the reference does: a region's edge decides which elements are
 * read. */
#ifndef OBK_REGION_H
#define OBK_REGION_H

#include "blocks.h"

namespace obk {

static inline int64_t clamp_index(int64_t i, int64_t low, int64_t high) {
  return i < low ? low : i > high ? high : i;
}
static inline double clamp_place(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

/* The value between four elements; each corner's share apart, for the maximum is taken over shares.
 */
template <typename T>
struct Corners {
  const T* plane;
  int64_t at[4];
  double weight[4];
  double share(int corner) const {
    return weight[corner] == 0.0 ? 0.0 : weight[corner] * (double)load(plane, at[corner]);
  }
};
template <typename T>
static inline Corners<T> corners_at(const T* plane, double y, double x, int64_t height,
                                    int64_t width) {
  Corners<T> c = {plane, {0, 0, 0, 0}, {0, 0, 0, 0}};
  if (!(y >= -1.0 && y <= (double)height && x >= -1.0 && x <= (double)width)) return c;
  y = clamp_place(y, 0.0, (double)(height - 1));
  x = clamp_place(x, 0.0, (double)(width - 1));
  const int64_t top = (int64_t)y, left = (int64_t)x;
  const int64_t bottom = top + 1 < height ? top + 1 : top,
                right = left + 1 < width ? left + 1 : left;
  const double down = y - (double)top, along = x - (double)left;
  c.at[0] = top * width + left, c.at[1] = top * width + right;
  c.at[2] = bottom * width + left, c.at[3] = bottom * width + right;
  c.weight[0] = (1 - down) * (1 - along), c.weight[1] = (1 - down) * along;
  c.weight[2] = down * (1 - along), c.weight[3] = down * along;
  return c;
}

template <typename T, typename I>
static inline void roi_align(const int64_t* params, void* const* operands, int64_t item) {
  const ObkRoiAlign& p = *(const ObkRoiAlign*)params;
  const T* rois = (const T*)operands[1];
  const I* batch = (const I*)operands[2];
  T* to = (T*)operands[3];
  const int64_t column = item % p.columns, row = item / p.columns % p.rows;
  const int64_t channel = item / (p.columns * p.rows) % p.channels,
                roi = item / (p.columns * p.rows * p.channels);
  const double scale = as_double(p.scale_bits), half = p.half_pixel ? 0.5 : 0.0;
  const double x1 = (double)load(rois, roi * 4) * scale - half,
               y1 = (double)load(rois, roi * 4 + 1) * scale - half;
  const double x2 = (double)load(rois, roi * 4 + 2) * scale - half,
               y2 = (double)load(rois, roi * 4 + 3) * scale - half;
  double width = x2 - x1, height = y2 - y1;
  if (!p.half_pixel) {
    width = width > 1.0 ? width : 1.0;
    height = height > 1.0 ? height : 1.0;
  }
  const double bin_height = height / (double)p.rows, bin_width = width / (double)p.columns;
  const int64_t grid_rows = p.sampling > 0 ? p.sampling : (int64_t)ceil_of(bin_height);
  const int64_t grid_columns = p.sampling > 0 ? p.sampling : (int64_t)ceil_of(bin_width);
  int64_t image = (int64_t)batch[roi];
  image = clamp_index(image < 0 ? image + p.batches : image, 0, p.batches - 1);
  const T* plane = (const T*)operands[0] + (image * p.channels + channel) * p.height * p.width;
  double value = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < grid_rows; ++i) {
    for (int64_t j = 0; j < grid_columns; ++j, ++count) {
      const double y = y1 + ((double)row + ((double)i + 0.5) / (double)grid_rows) * bin_height;
      const double x = x1 + ((double)column + ((double)j + 0.5) / (double)grid_columns) * bin_width;
      const Corners<T> c = corners_at(plane, y, x, p.height, p.width);
      for (int corner = 0; corner < 4; ++corner) {
        const double share = c.share(corner);
        if (!p.takes_max)
          value += share;
        else if ((count == 0 && corner == 0) || share > value)
          value = share;
      }
    }
  }
  if (!p.takes_max && count > 0) value /= (double)count;
  store(to, item, (decltype(load(to, 0)))value);
}

/* The rows [low, high) that pooled row `bin` of `bins` covers. */
struct PooledSpan {
  int64_t low, high;
};
static inline PooledSpan pooled_span(int64_t bin, int64_t bins, int64_t first, int64_t length,
                                     int64_t extent) {
  const double step = (double)length / (double)bins;
  PooledSpan span = {clamp_index((int64_t)floor_of((double)bin * step) + first, 0, extent),
                     clamp_index((int64_t)ceil_of((double)(bin + 1) * step) + first, 0, extent)};
  return span;
}
/* To the nearest integer, halves away from zero. */
static inline int64_t nearest_edge(double x) {
  return (int64_t)(x < 0 ? ceil_of(x - 0.5) : floor_of(x + 0.5));
}

template <typename T>
static inline void max_roi_pool(const int64_t* params, void* const* operands, int64_t item) {
  const ObkMaxRoiPool& p = *(const ObkMaxRoiPool*)params;
  const T* rois = (const T*)operands[1];
  T* to = (T*)operands[2];
  const int64_t column = item % p.columns, row = item / p.columns % p.rows;
  const int64_t channel = item / (p.columns * p.rows) % p.channels,
                roi = item / (p.columns * p.rows * p.channels);
  const double scale = as_double(p.scale_bits);
  int64_t edge[5];
  for (int i = 1; i < 5; ++i) edge[i] = nearest_edge((double)load(rois, roi * 5 + i) * scale);
  int64_t image = (int64_t)load(rois, roi * 5);
  image = clamp_index(image < 0 ? image + p.batches : image, 0, p.batches - 1);
  const int64_t width = edge[3] - edge[1] + 1, height = edge[4] - edge[2] + 1;
  const PooledSpan ys = pooled_span(row, p.rows, edge[2], height > 1 ? height : 1, p.height);
  const PooledSpan xs = pooled_span(column, p.columns, edge[1], width > 1 ? width : 1, p.width);
  const T* plane = (const T*)operands[0] + (image * p.channels + channel) * p.height * p.width;
  bool found = false;
  decltype(load(to, 0)) value = 0;
  for (int64_t y = ys.low; y < ys.high; ++y) {
    for (int64_t x = xs.low; x < xs.high; ++x) {
      const auto next = load(plane, y * p.width + x);
      if (!found || next > value) value = next;
      found = true;
    }
  }
  store(to, item, value);
}

/* By elimination with row pivots. */
template <typename T>
static inline void det(const int64_t* params, void* const* operands, int64_t item) {
  const ObkDet& p = *(const ObkDet*)params;
  const T* x = (const T*)operands[0];
  T* to = (T*)operands[1];
  const int64_t n = p.n;
  double m[OBK_DET * OBK_DET];
  for (int64_t i = 0; i < n * n; ++i) m[i] = (double)load(x, item * n * n + i);
  double result = 1;
  for (int64_t column = 0; column < n; ++column) {
    int64_t pivot = column;
    for (int64_t row = column + 1; row < n; ++row) {
      const double a = m[row * n + column], b = m[pivot * n + column];
      if ((a < 0 ? -a : a) > (b < 0 ? -b : b)) pivot = row;
    }
    for (int64_t j = 0; pivot != column && j < n; ++j) {
      const double other = m[pivot * n + j];
      m[pivot * n + j] = m[column * n + j];
      m[column * n + j] = other;
    }
    if (pivot != column) result = -result;
    result *= m[column * n + column];
    if (m[column * n + column] == 0.0) break;
    for (int64_t row = column + 1; row < n; ++row) {
      const double factor = m[row * n + column] / m[column * n + column];
      for (int64_t j = column; j < n; ++j) m[row * n + j] -= factor * m[column * n + j];
    }
  }
  store(to, item, (decltype(load(to, 0)))result);
}

}  // namespace obk

#endif

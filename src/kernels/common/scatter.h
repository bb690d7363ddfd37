/* kernels/common/scatter.h — ScatterElements, ScatterND, MaxUnpool: writes at coordinates that are
 * data.
 *
 * Each item owns a piece of the output and applies, in their order, the updates that hit it; so
 * that no two items write one element and equal targets have one answer. Items that share a line
 * read all of its updates. A negative index counts from the end; an update outside even so is
 * dropped. */
#ifndef OBK_SCATTER_H
#define OBK_SCATTER_H

#include "blocks.h"
#include "order.h"

namespace obk {

template <typename T>
static inline void fold_into(T* to, int64_t at, const T* updates, int64_t from, int64_t fold) {
  if (fold == OBK_REPLACE) {
    to[at] = updates[from];
    return;
  }
  const auto old = load(to, at), update = load(updates, from);
  switch (fold) {
    case OBK_ADD:
      store(to, at, sum_of(old, update));
      break;
    case OBK_MUL:
      store(to, at, product_of(old, update));
      break;
    case OBK_MAX:
      store(to, at, maximum(old, update));
      break;
    default:
      store(to, at, minimum(old, update));
      break;
  }
}

template <typename T, typename I>
static inline void scatter_elements(const int64_t* params, void* const* operands, int64_t item) {
  const ObkScatterElements& p = *(const ObkScatterElements*)params;
  const T* data = (const T*)operands[0]; /* absent: it lies where the output does */
  const I* indices = (const I*)operands[1];
  const T* updates = (const T*)operands[2];
  T* to = (T*)operands[3];
  const int64_t range = item % p.ranges, low = p.extent * range / p.ranges,
                high = p.extent * (range + 1) / p.ranges;
  int64_t line = item / p.ranges, base = 0, update_base = 0;
  bool hit = true;
  for (int64_t d = p.rank; d-- > 0;) {
    const int64_t at = line % p.shape[d];
    line /= p.shape[d];
    base += at * p.strides[d];
    update_base += at * p.update_strides[d];
    hit = hit && at < p.update_shape[d];
  }
  for (int64_t i = data ? low : high; i < high; ++i)
    to[base + i * p.stride] = data[base + i * p.stride];
  for (int64_t i = 0; hit && i < p.update_extent; ++i) {
    const int64_t from = update_base + i * p.update_stride;
    int64_t index = (int64_t)indices[from];
    if (index < 0) index += p.extent;
    if (index >= low && index < high) fold_into(to, base + index * p.stride, updates, from, p.fold);
  }
}

template <typename T, typename I>
static inline void scatter_nd(const int64_t* params, void* const* operands, int64_t item) {
  const ObkScatterNd& p = *(const ObkScatterNd*)params;
  const T* data = (const T*)operands[0]; /* absent: it lies where the output does */
  const I* indices = (const I*)operands[1];
  const T* updates = (const T*)operands[2];
  T* to = (T*)operands[3];
  const int64_t rows = item / p.inner_ranges, columns = item % p.inner_ranges;
  const int64_t low = p.slices * rows / p.slice_ranges,
                high = p.slices * (rows + 1) / p.slice_ranges;
  const int64_t first = p.inner * columns / p.inner_ranges,
                end = p.inner * (columns + 1) / p.inner_ranges;
  for (int64_t slice = data ? low : high; slice < high; ++slice) {
    for (int64_t c = first; c < end; ++c) to[slice * p.inner + c] = data[slice * p.inner + c];
  }
  for (int64_t tuple = 0; tuple < p.tuples; ++tuple) {
    int64_t slice = 0;
    bool inside = true;
    for (int64_t d = 0; d < p.depth; ++d) {
      int64_t index = (int64_t)indices[tuple * p.depth + d];
      if (index < 0) index += p.extents[d];
      inside = inside && index >= 0 && index < p.extents[d];
      slice += index * p.strides[d];
    }
    if (!inside || slice < low || slice >= high) continue;
    for (int64_t c = first; c < end; ++c) {
      fold_into(to, slice * p.inner + c, updates, tuple * p.inner + c, p.fold);
    }
  }
}

template <typename T, typename I>
static inline void max_unpool(const int64_t* params, void* const* operands, int64_t item) {
  const ObkMaxUnpool& p = *(const ObkMaxUnpool*)params;
  const T* x = (const T*)operands[0];
  const I* indices = (const I*)operands[1];
  T* to = (T*)operands[3];
  const int64_t low = p.size * item / p.ranges, high = p.size * (item + 1) / p.ranges;
  const T zero = {};
  for (int64_t i = low; i < high; ++i) to[i] = zero;
  for (int64_t i = 0; i < p.count; ++i) {
    int64_t rest = (int64_t)indices[i], target = 0;
    if (rest < 0 || rest >= p.inner_count) continue;
    for (int64_t d = 0; d < p.rank; ++d) {
      target += rest / p.strides[d] * p.to_strides[d];
      rest %= p.strides[d];
    }
    if (target >= low && target < high) to[target] = x[i];
  }
}

}  // namespace obk

#endif

/* kernels/common/order.h — TopK, cumulative sums and products: a line of a tensor is one item.
 *
 * Written in the dialect (load, store, types), which is included before. Equal values keep the
 * order of their indices; NaN counts as larger than every number. */
#ifndef OBK_ORDER_H
#define OBK_ORDER_H

#include "blocks.h"

namespace obk {

template <typename V>
static inline V sum_of(V a, V b) {
  return (V)((uint64_t)a + (uint64_t)b);
} /* integers wrap */
static inline float sum_of(float a, float b) { return a + b; }
static inline double sum_of(double a, double b) { return a + b; }
template <typename V>
static inline V product_of(V a, V b) {
  return (V)((uint64_t)a * (uint64_t)b);
}
static inline float product_of(float a, float b) { return a * b; }
static inline double product_of(double a, double b) { return a * b; }

template <typename V>
static inline bool orders_before(V a, V b, bool largest) {
  const bool below = a < b || (b != b && a == a), above = b < a || (a != a && b == b);
  return largest ? above : below;
}

/* The k best so far lie in the output as a heap whose root is the worst of them. */
template <typename T>
struct TopHeap {
  T* values;
  int64_t* indices; /* null: not asked for */
  int64_t base, step;
  bool largest;

  int64_t index(int64_t i) const { return indices ? indices[base + i * step] : 0; }
  bool worse(int64_t a, int64_t b) const {
    const auto x = load(values, base + a * step), y = load(values, base + b * step);
    if (orders_before(x, y, largest)) return false;
    return orders_before(y, x, largest) || index(a) > index(b);
  }
  void swap(int64_t a, int64_t b) {
    const int64_t i = base + a * step, j = base + b * step;
    const T value = values[i];
    values[i] = values[j];
    values[j] = value;
    if (!indices) return;
    const int64_t index = indices[i];
    indices[i] = indices[j];
    indices[j] = index;
  }
  void set(int64_t i, T value, int64_t index) {
    values[base + i * step] = value;
    if (indices) indices[base + i * step] = index;
  }
  void sink(int64_t i, int64_t count) {
    for (;;) {
      int64_t worst = i;
      for (int64_t child = 2 * i + 1; child <= 2 * i + 2 && child < count; ++child) {
        if (worse(child, worst)) worst = child;
      }
      if (worst == i) return;
      swap(i, worst);
      i = worst;
    }
  }
};

template <typename T>
static inline void top_k(const int64_t* params, void* const* operands, int64_t item) {
  const ObkTopK& p = *(const ObkTopK*)params;
  if (p.k == 0) return;
  const T* x = (const T*)operands[0];
  const int64_t outer = item / p.inner, inner = item % p.inner,
                from = outer * p.extent * p.inner + inner;
  TopHeap<T> heap = {(T*)operands[2], (int64_t*)operands[3], outer * p.k * p.inner + inner, p.inner,
                     p.largest != 0};
  for (int64_t i = 0; i < p.k; ++i) heap.set(i, x[from + i * p.inner], i);
  for (int64_t i = p.k / 2; i-- > 0;) heap.sink(i, p.k);
  for (int64_t i = p.k; i < p.extent; ++i) {
    const int64_t at = from + i * p.inner;
    /* On equal values the earlier one stays. */
    if (!orders_before(load(x, at), load(heap.values, heap.base), heap.largest)) continue;
    heap.set(0, x[at], i);
    heap.sink(0, p.k);
  }
  for (int64_t count = p.k; count-- > 1;) {
    heap.swap(0, count);
    heap.sink(0, count);
  }
}

template <typename T>
static inline void scan(const int64_t* params, void* const* operands, int64_t item) {
  const ObkScan& p = *(const ObkScan*)params;
  const T* x = (const T*)operands[0];
  T* y = (T*)operands[2];
  const int64_t base = item / p.inner * p.extent * p.inner + item % p.inner;
  typedef decltype(load(x, 0)) V;
  V total = p.fold == OBK_MUL ? (V)1 : (V)0;
  for (int64_t i = 0; i < p.extent; ++i) {
    const int64_t at = base + (p.reverse ? p.extent - 1 - i : i) * p.inner;
    const V value = load(x, at),
            next = p.fold == OBK_MUL ? product_of(total, value) : sum_of(total, value);
    store(y, at, p.exclusive ? total : next);
    total = next;
  }
}

}  // namespace obk

#endif

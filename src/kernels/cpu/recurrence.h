/* kernels/cpu/recurrence.h — all steps of a direction of a recurrent layer on one core, for up to
 * OBK_RECURRENT_BATCH sequences (common/blocks.h: ObkRecurrent; what is computed:
 * ops/recurrence.h). The same items as on a GPU, with gangs of one. A row of R meets all sequences
 * before the next. */
#ifndef OBK_CPU_RECURRENCE_H
#define OBK_CPU_RECURRENCE_H

#include "blocks.h"
#include "dialect.h"

namespace obk {

static inline float as_state(const float*, float h) { return h; }
static inline float as_state(const f16*, float h) { return widen(narrow_f16(h)); }
static inline float as_state(const bf16*, float h) { return widen(narrow_bf16(h)); }

/* to[gate * hidden]: the rows of R of one unit times a state. */
template <int kGates, int kHidden, class T>
static inline void multiply_unit(const T* r, const float* h, float* to) {
  constexpr int64_t kGate = (int64_t)kHidden * kHidden;
  float a = 0, b = 0, c = 0, d = 0;
  OBK_LANES_REDUCE(reduction(+ : a, b, c, d))
  for (int k = 0; k < kHidden; ++k) {
    const float x = h[k];
    a += load(r, k) * x;
    if (kGates > 1) b += load(r + (kGates > 1 ? kGate : 0), k) * x;
    if (kGates > 2) c += load(r + (kGates > 2 ? 2 * kGate : 0), k) * x;
    if (kGates > 3) d += load(r + (kGates > 3 ? 3 * kGate : 0), k) * x;
  }
  to[0] = a;
  if (kGates > 1) to[kHidden] = b;
  if (kGates > 2) to[2 * kHidden] = c;
  if (kGates > 3) to[3 * kHidden] = d;
}

/* Operands: fed, R, bias, lengths, initial h and c, Y, last h and c, exchange. */
template <class T, int kGates, int kHidden, int kGang, int kBatch>
static void recurrence(const int64_t* p, void* const* x, int64_t item, ObkWorker* w) {
  static_assert(kGang == 1, "a core works alone");
  const ObkRecurrent& g = *(const ObkRecurrent*)p;
  const int64_t parts = (g.batch + kBatch - 1) / kBatch, direction = item / parts;
  const int64_t first = item % parts * kBatch, left = g.batch - first;
  const int64_t count = left < kBatch ? left : kBatch;
  const bool backwards = direction == 1 || g.first_backwards != 0;
  constexpr int64_t kAll = (int64_t)kBatch * kHidden;
  float *const h = (float*)w->scratch, *const state = h + kAll, *const c = state + kAll;
  float* const sums = c + kAll;
  const T* const r = (const T*)x[1] + direction * kGates * kHidden * kHidden;
  const int64_t own = (direction * g.batch + first) * kHidden; /* of [D, B, H] */
  for (int64_t k = 0; k < count * kHidden; ++k) {
    h[k] = x[4] ? load((const T*)x[4], own + k) : 0.0f;
    c[k] = x[5] ? load((const T*)x[5], own + k) : 0.0f;
  }
  for (int64_t step = 0; step < g.steps; ++step) {
    const int64_t time = backwards ? g.steps - 1 - step : step;
    for (int64_t k = 0; k < count * kHidden; ++k) state[k] = as_state((const T*)0, h[k]);
    for (int64_t n = 0; n < kHidden; ++n)
      for (int64_t b = 0; b < count; ++b)
        multiply_unit<kGates, kHidden>(r + n * kHidden, state + b * kHidden,
                                       sums + b * kGates * kHidden + n);
    for (int64_t b = 0; b < count; ++b) {
      const bool alive = !x[3] || time < ((const int32_t*)x[3])[first + b];
      const float* const s = sums + b * kGates * kHidden;
      const float* const fed =
          (const float*)x[0] +
          ((time * g.batch + first + b) * g.directions + direction) * kGates * kHidden;
      const float* const bias = x[2] ? (const float*)x[2] + direction * kHidden : 0;
      float *const own_h = h + b * kHidden, *const own_c = c + b * kHidden;
      T* const y =
          x[6] ? (T*)x[6] + ((time * g.directions + direction) * g.batch + first + b) * kHidden
               : (T*)0;
      if (alive) {
        OBK_LANES for (int n = 0; n < kHidden; ++n) {
          if (kGates == 4) {
            const float in = sigmoid_of(fed[n] + s[n]);
            const float out = sigmoid_of(fed[kHidden + n] + s[kHidden + n]);
            const float forget = sigmoid_of(fed[2 * kHidden + n] + s[2 * kHidden + n]);
            own_c[n] = forget * own_c[n] + in * tanh_of(fed[3 * kHidden + n] + s[3 * kHidden + n]);
            own_h[n] = out * tanh_of(own_c[n]);
          } else if (kGates == 3) {
            const float update = sigmoid_of(fed[n] + s[n]);
            const float reset = sigmoid_of(fed[kHidden + n] + s[kHidden + n]);
            const float back = s[2 * kHidden + n] + (bias ? bias[n] : 0.0f);
            const float candidate = tanh_of(fed[2 * kHidden + n] + reset * back);
            own_h[n] = (1.0f - update) * candidate + update * own_h[n];
          } else {
            own_h[n] = tanh_of(fed[n] + s[n]);
          }
        }
      }
      if (y)
        for (int64_t n = 0; n < kHidden; ++n) store(y, n, alive ? own_h[n] : 0.0f);
    }
  }
  for (int64_t k = 0; k < count * kHidden; ++k) {
    if (x[7]) store((T*)x[7], own + k, h[k]);
    if (x[8]) store((T*)x[8], own + k, c[k]);
  }
}

}  // namespace obk

#endif

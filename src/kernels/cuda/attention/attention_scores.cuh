/* kernels/cuda/attention/attention_scores.cuh — what becomes of a score before the softmax: scale,
 * soft cap, mask and causal rule, for all ways to compute attention; rows that lie at no multiple
 * of 16. */
#ifndef OBK_ATTENTION_SCORES_CUH
#define OBK_ATTENTION_SCORES_CUH

#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

/* What is added to a score, and what a score becomes before it; in units of log 2. */
struct Scores {
  const void* mask;
  int64_t mask_query, mask_key;
  int32_t first, queries; /* of the pass */
  int32_t seen;           /* keys from here on are not there */
  int32_t reach; /* a row of the pass sees the keys before row + reach, with a causal rule */
  float scale, softcap;
  int32_t mask_type;
  bool causal;
  bool selects; /* rows with all keys masked are zeros, so a masked key's score does not count */

  /* How many keys from `key` on a row of the pass sees. */
  __device__ __forceinline__ int limit(int row, int key) const {
    return (causal && row + reach < seen ? row + reach : seen) - key;
  }
  /* Whether any score of a block, for rows from `row` on, needs more than the scale. */
  __device__ __forceinline__ bool masked(int row, int key, int keys) const {
    return mask_type != 0 || limit(row, key) < keys;
  }
  /* Of this row and the k-th key from `key` on. Large finite values stay finite: a row with nothing
   * else has equal weights. */
  __device__ __forceinline__ float bias(int row, int key, int k, int limit) const {
    if (k >= limit) return -INFINITY;
    if (mask_type == 0 || first + row >= queries) return 0.0f;
    const int64_t at = (first + row) * mask_query + (key + k) * mask_key;
    if (mask_type != 1) return ((const uint8_t*)mask)[at] ? 0.0f : -INFINITY;
    const float m = ((const float*)mask)[at], b = m * kLog2;
    return b == -INFINITY && m != -INFINITY ? -3e38f : b;
  }
  /* Whether a score with this bias is minus infinity, be it infinite or NaN. */
  __device__ __forceinline__ bool drops(float bias) const { return selects && bias == -INFINITY; }
  /* Whether nothing but the scale and limits changes a score; a maximum may then be looked for
   * before. */
  __device__ __forceinline__ bool only_scaled() const {
    return mask_type == 0 && !(softcap > 0.0f) && scale > 0.0f;
  }
  static constexpr float kLog2 = 1.4426950408889634f;
  __device__ __forceinline__ float scaled(float score) const {
    if (!(softcap > 0.0f)) return score * (scale * kLog2);
    /* tanh x = 1 - 2 / (1 + e^2x), to 1e-7 */
    const float e = exp2_approx(score * (scale * 2.0f * kLog2 / softcap));
    return softcap * kLog2 * (1.0f - 2.0f / (1.0f + e));
  }
};

/* Rows by plain loads, whatever their alignment; in odd rows pieces are swapped by `turn`. */
static __device__ __noinline__ void bring_plainly(uint32_t to, int pitch, int chunks,
                                                  const char* at, int64_t row, int rows, int there,
                                                  int bytes, bool wide, int thread, int threads,
                                                  int turn = 0) {
#pragma unroll 1
  for (int i = thread; i < rows * chunks; i += threads) {
    const int r = i / chunks, p = i % chunks, left = r < there ? bytes - p * 16 : 0;
    const char* from = at + r * row + p * 16;
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e] = 0;
      if (left <= 4 * e) continue;
      if (wide) {
        v[e] = *(const uint32_t*)(from + 4 * e);
      } else {
        v[e] = *(const uint16_t*)(from + 4 * e);
        if (left > 4 * e + 2) v[e] |= (uint32_t)(*(const uint16_t*)(from + 4 * e + 2)) << 16;
      }
    }
    store_shared16(to + r * pitch + (r & 1 ? p ^ turn : p) * 16, v);
  }
}

/* Softmax over keys as they come, of a lane that holds two queries: t[4 n + 2 r] and the next are
 * the scores of query r, and become weights; the largest so far and the sum of weights go along,
 * and what was summed before is to be multiplied by factor[r]. Four lanes share a query. */
template <int kCount>
static __device__ __forceinline__ void weigh_scores(float (&t)[kCount], float (&largest)[2],
                                                    float (&sum)[2], float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = largest[r];
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n)
      m = fmaxf(m, fmaxf(t[4 * n + 2 * r], t[4 * n + 2 * r + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    const float base = m == -INFINITY ? 0.0f : m;
    factor[r] = exp2_approx(largest[r] - base);
    largest[r] = m;
    float more_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
      const int i = 4 * n + 2 * r;
      t[i] = exp2_approx(t[i] - base), t[i + 1] = exp2_approx(t[i + 1] - base);
      more_sum += t[i] + t[i + 1];
    }
    sum[r] = sum[r] * factor[r] + more_sum;
  }
}

/* A chain's sums of such lanes to `slot`, 16 rows `pitch` bytes apart; maxima and totals to `part`.
 */
template <int kEights>
static __device__ __forceinline__ void leave_chain(const float (&o)[kEights][4],
                                                   const float (&largest)[2], float (&sum)[2],
                                                   uint32_t slot, uint32_t part, int pitch,
                                                   int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    const int row = lane / 4 + 8 * r;
    if (lane % 4 == 0) store_shared8(part + row * 8, largest[r], sum[r]);
    const uint32_t to = slot + row * pitch + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kEights; ++j) store_shared8(to + j * 32, o[j][2 * r], o[j][2 * r + 1]);
  }
}

}  // namespace obk

#endif

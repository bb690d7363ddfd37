/* kernels/cuda/attention/attention_warps.cuh — pieces of attention of 16-bit types where a head's
 * size is a multiple of 32, for attention_short.cuh and attention_long.cuh: where rows and keys
 * lie, running rows of a chain of keys, how chains are joined.
 *
 * Scores arise in registers by mma.sync (lane l has the rows l / 4 and l / 4 + 8), the softmax is
 * done there, and the weights are the first operand of the product with V as they lie. A lane takes
 * eight neighbouring columns of a row of Q or K in one load: both sides of the product in the same
 * order, so nothing is transposed. */
#ifndef OBK_ATTENTION_WARPS_CUH
#define OBK_ATTENTION_WARPS_CUH

#include "attention/attention_scores.cuh"
#include "attention/attention_shape.h"
#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

/* What a chain knows of the lane's two rows; sums are the lane's own until they are shared. */
struct ChainRows {
  float largest[2], sum[2];

  __device__ __forceinline__ void reset() {
    largest[0] = largest[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
  }
  /* Scores of 32 keys in units of log 2 become weights; `factor`: of all that was summed before. */
  template <bool kBfloat>
  __device__ __forceinline__ void weigh(float (&t)[4][4], uint32_t (&p)[2][4], float (&factor)[2]) {
    float m[2], base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) high[n] = fmaxf(t[n][2 * r], t[n][2 * r + 1]);
      m[r] = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], step));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = fmaxf(m[r], largest[r]);
      base[r] = m[r] == -INFINITY ? 0.0f : m[r];
      factor[r] = exp2_approx(largest[r] - base[r]);
      largest[r] = m[r];
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) t[n][e] = exp2_approx(t[n][e] - base[e / 2]);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        p[n / 2][n % 2 * 2 + r] = narrow_two<kBfloat>(t[n][2 * r], t[n][2 * r + 1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float more[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) more[n] = __fadd_rn(t[n][2 * r], t[n][2 * r + 1]);
      const float all = __fadd_rn(__fadd_rn(more[0], more[1]), __fadd_rn(more[2], more[3]));
      sum[r] = __fmaf_rn(sum[r], factor[r], all);
    }
  }
  /* The four lanes of a row add their sums: at a chain's end. */
  __device__ __forceinline__ void share() {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(0xffffffffu, sum[r], step));
  }
};

/* The next chain's row joins what the chains before it gave: factors of both sides. */
OBK_DEVICE void join_rows(float& largest, float& total, float next_largest, float next_total,
                          float& old, float& now) {
  const float d = largest - next_largest, e = d != d ? 0.0f : exp2_approx(-fabsf(d));
  old = d < 0.0f ? e : 1.0f, now = d < 0.0f ? 1.0f : e;
  largest = fmaxf(largest, next_largest);
  total = __fmaf_rn(next_total, now, __fmul_rn(total, old));
}
OBK_DEVICE float join_values(float value, float old, float next, float now) {
  return __fmaf_rn(next, now, __fmul_rn(value, old));
}
/* What a row's sum is multiplied by at last. */
OBK_DEVICE float over_total(float total, bool zero) {
  return total == 0.0f ? (zero ? 0.0f : NAN) : __fdividef(1.0f, total);
}

/* Where a row's joined sums go: divided by its total, to Y. */
struct RowsToY {
  float* y;
  int64_t row;
  bool together, zero;

  __device__ __forceinline__ RowsToY(const ObkAttention& g, int first, bool zero_if_empty)
      : y(g.y + first * g.y_row), row(g.y_row), zero(zero_if_empty) {
    together = g.y_row % 4 == 0 && ((uint64_t)g.y & 15) == 0;
  }
  __device__ __forceinline__ void put(int r, int four, float (&v)[4], float, float total) const {
    const float over = over_total(total, zero);
    float* const to = y + r * row + four;
#pragma unroll
    for (int q = 0; q < 4; ++q) v[q] = __fmul_rn(v[q], over);
    if (together) {
      *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q) to[q] = v[q];
    }
  }
};
/* The rows of kCount chains or pieces, joined in their order. */
template <int kCount>
OBK_DEVICE void join_all(float (&m)[kCount], float (&l)[kCount], const uint32_t (&x)[kCount][4],
                         float (&v)[4]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) v[q] = __uint_as_float(x[0][q]);
#pragma unroll
  for (int k = 1; k < kCount; ++k) {
    float old, now;
    join_rows(m[0], l[0], m[k], l[k], old, now);
#pragma unroll
    for (int q = 0; q < 4; ++q) v[q] = join_values(v[q], old, __uint_as_float(x[k][q]), now);
  }
}

/* All threads: four chains of `most` rows. Slots and parts: [chain][row]. */
template <int kValue>
static __device__ __forceinline__ void join_slots(const RowsToY& to, uint32_t slots, uint32_t parts,
                                                  int most, int pitch, int rows) {
  constexpr int kFours = kValue / 4;
  const int four = threadIdx.x % kFours * 4;
#pragma unroll 1
  for (int row = threadIdx.x / kFours; row < rows; row += 256 / kFours) {
    float m[4], l[4], v[4];
    uint32_t x[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_shared8(m[k], l[k], parts + (k * most + row) * 8);
      load_shared16(x[k], slots + (k * most + row) * pitch + four * 4);
    }
    join_all(m, l, x, v);
    to.put(row, four, v, m[0], l[0]);
  }
}

/* The same for what pieces left in global memory. */
template <int kValue, int kKvSplits>
static __device__ __forceinline__ void join_splits(const RowsToY& to, const char* left, int rows) {
  constexpr int kFours = kValue / 4;
  const int four = threadIdx.x % kFours * 4;
#pragma unroll 1
  for (int row = threadIdx.x / kFours; row < rows; row += 256 / kFours) {
    float m[kKvSplits], l[kKvSplits], v[4];
    uint32_t x[kKvSplits][4];
#pragma unroll
    for (int k = 0; k < kKvSplits; ++k) {
      const char* const at = left + k * kv_split_bytes(kValue);
      uint32_t both[2];
      load_global(both, at + (16 * kValue + row * 2) * 4);
      load_global(x[k], at + (row * kValue + four) * 4);
      m[k] = __uint_as_float(both[0]), l[k] = __uint_as_float(both[1]);
    }
    join_all(m, l, x, v);
    to.put(row, four, v, m[0], l[0]);
  }
}

/* kWords words from global memory, zero where nothing is there; `plain`: whatever the alignment. */
template <int kWords>
OBK_DEVICE void load_words(uint32_t (&w)[kWords], const char* from, bool there, bool plain) {
#pragma unroll
  for (int k = 0; k < kWords; ++k) w[k] = 0;
  if (!plain) {
    if (there) load_global(w, from);
    return;
  }
  if (!there) return;
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    w[k] = *(const uint16_t*)(from + 4 * k) | (uint32_t)(*(const uint16_t*)(from + 4 * k + 2))
                                                  << 16;
}

/* The lane's part of 16 rows of Q: of each 32 columns eight, of two rows. */
template <int kSize>
struct QueryParts {
  static constexpr int kGroups = kSize / 32;
  uint32_t q[kGroups][2][4];

  __device__ __forceinline__ void load(const char* at, int64_t row_bytes, int rows, bool plain) {
    const int lane = threadIdx.x % 32;
    const char* from = at + (lane / 4) * row_bytes + lane % 4 * 16;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
        load_words(q[j][r], from + r * 8 * row_bytes + j * 64, lane / 4 + r * 8 < rows, plain);
  }
  /* Adds to the scores of 8 keys what columns 32 j .. give: `k`, the lane's part of its key. */
  template <bool kBfloat>
  __device__ __forceinline__ void score(float (&s)[4], int j, const uint32_t (&k)[4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t a[4] = {q[j][0][2 * h], q[j][1][2 * h], q[j][0][2 * h + 1],
                             q[j][1][2 * h + 1]};
      mma_16x8x16<kBfloat>(s, a, k[2 * h], k[2 * h + 1]);
    }
  }
};

/* The lane's scores of 32 keys from `key` on: scaled, and what masks and limits say. `row`: of the
 * pass, the warp's first. */
struct MoreScores {
  float more[4][4];
  bool masked, limited;

  /* `uneven`: whether a row may see less than all of the block. */
  __device__ __forceinline__ void ask(const Scores& scores, int row, int key, bool uneven) {
    masked = scores.mask_type != 0;
    limited = uneven && scores.limit(row, key) < 32;
    if (!masked) return;
    const int r = row + threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at_row = r + e / 2 * 8;
        more[n][e] = scores.bias(at_row, key, k + n * 8 + e % 2, scores.limit(at_row, key));
      }
  }
  __device__ __forceinline__ void apply(float (&t)[4][4], const Scores& scores, int row, int key) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) t[n][e] = scores.scaled(t[n][e]);
    if (masked)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          t[n][e] = scores.drops(more[n][e]) ? -INFINITY : __fadd_rn(t[n][e], more[n][e]);
    if (!limited) return;
    const int r = row + threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2;
    const int limit[2] = {scores.limit(r, key), scores.limit(r + 8, key)};
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (k + n * 8 + e % 2 >= limit[e / 2]) t[n][e] = -INFINITY;
  }
};

/* Rows of the pass, keys that are seen, where K and V are: of a tile. */
struct AttentionPlace {
  Scores scores;
  int32_t queries, seen;
  bool plain, uneven;

  __device__ __forceinline__ AttentionPlace(const ObkAttention& g, int first, int most, int keys) {
    const int left = (int)g.queries - first;
    queries = left < most ? left : most;
    seen = keys;
    int reach = 0;
    if (g.causal) {
      const int64_t wanted = first + 1 + g.causal_offset; /* row 0 sees the keys before it */
      reach = wanted > keys ? keys : wanted < -queries ? -queries : (int)wanted;
      const int end = reach + queries - 1;
      seen = end < 0 ? 0 : end < seen ? end : seen;
    }
    uneven = g.causal || keys % 32 != 0;
    plain = (((uint64_t)g.q | (uint64_t)g.k | (uint64_t)g.v |
              (uint64_t)((g.q_row | g.k_row | g.v_row) * 2)) &
             15) != 0;
    scores = {g.mask, g.mask_query, g.mask_key, first,       (int)g.queries, seen,
              reach,  g.scale,      g.softcap,  g.mask_type, g.causal != 0,  g.zero_if_masked != 0};
  }
  /* Keys from `key` on are not seen. */
  __device__ __forceinline__ void end_at(int key) {
    if (seen > key) scores.seen = seen = key;
  }
};

}  // namespace obk

#endif

/* kernels/cuda/attention/attention_tf32.cuh — scores and sums of attention over f32 rows by
 * mma.sync m16n8k8, for attention.cuh, which walks the keys: queries, keys, values and weights are
 * rounded to 10 bits of mantissa where they are multiplied; scores, softmax and sums are float.
 *
 * A warp's 16 queries meet a block of 16 or 32 keys; lane l holds the queries l / 4 and l / 4 + 8.
 * The weights of keys 2 q and 2 q + 1 are lane q's, so in the second product they stand for the
 * places q and q + 4 of k, and V's rows are read in that order: nothing moves between lanes. */
#ifndef OBK_ATTENTION_TF32_CUH
#define OBK_ATTENTION_TF32_CUH

#include "attention/attention_scores.cuh"
#include "attention/attention_shape.h"
#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

template <int kSizeOf, int kValueOf, int kQueries, int kKeysOf>
struct AttentionTf32 {
  static constexpr int kElement = 4, kSize = kSizeOf, kValue = kValueOf, kKeys = kKeysOf;
  static constexpr AttentionSizes kSizes = attention_sizes(kObkTf32, kKeys, kSize, kValue);
  static constexpr AttentionCut kCut = attention_cut(kObkTf32, kSizes, kQueries, kKeys);
  static constexpr int kEights = kSizes.keys / 8; /* of keys of a block */
  static constexpr int kSteps = (kSize + 7) / 8, kVSteps = (kSizes.columns + 7) / 8;
  static constexpr bool kHold = kSteps <= 8; /* queries in registers; else read for each block */
  uint32_t q[kHold ? kSteps : 1][4];
  uint32_t p[kEights][4]; /* weights of a block */
  float o[kVSteps][4];
  float largest[2], sum[2], more[4 * kEights];
  uint32_t q_at;
  int32_t lane, k_lane, v_lane; /* this lane's places in a block */

  __device__ __forceinline__ void start(uint32_t q_rows, uint32_t) {
    lane = threadIdx.x % 32;
    q_at = q_rows + lane / 4 * kSizes.k_pitch + lane % 4 * 4;
    k_lane = lane / 4 * kSizes.k_pitch + lane % 4 * 4;
    v_lane = lane % 4 * 2 * kSizes.v_pitch + lane / 4 * 4;
    reset();
  }
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int j = 0; j < kVSteps; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = 0.0f;
    largest[0] = largest[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
  }
  /* Whether the upper four places of step k are there; rows are zero filled to multiples of four.
   */
  static __device__ __forceinline__ bool upper(int k) { return k * 8 + 4 < kSize; }
  __device__ __forceinline__ void take_step(uint32_t (&to)[4], int k) const {
    const uint32_t at = q_at + k * 32;
    to[0] = round_tf32(load_shared(at)), to[1] = round_tf32(load_shared(at + 8 * kSizes.k_pitch));
    to[2] = to[3] = 0;
    if (upper(k)) {
      to[2] = round_tf32(load_shared(at + 16));
      to[3] = round_tf32(load_shared(at + 8 * kSizes.k_pitch + 16));
    }
  }
  __device__ __forceinline__ void take_queries() {
    if constexpr (kHold) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) take_step(q[k], k);
    }
  }
  __device__ __forceinline__ void load_bias(const Scores& scores, int row, int key) {
    const int r = row + lane / 4, k = lane % 4 * 2;
    const int limit[2] = {scores.limit(r, key), scores.limit(r + 8, key)};
#pragma unroll
    for (int e = 0; e < 4 * kEights; ++e)
      more[e] = scores.bias(r + (e & 2) * 4, key, k + e / 4 * 8 + (e & 1), limit[e / 2 % 2]);
  }
  __device__ __forceinline__ void multiply_step(float (&t)[kEights][4], const uint32_t (&x)[4],
                                                uint32_t at, int k) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const uint32_t from = at + n * 8 * kSizes.k_pitch + k * 32;
      mma_16x8x8(t[n], x, round_tf32(load_shared(from)),
                 upper(k) ? round_tf32(load_shared(from + 16)) : 0u);
    }
  }
  __device__ __forceinline__ void weigh(uint32_t k_rows, const Scores& scores, bool masked) {
    float a[kEights][4] = {};
    if constexpr (kHold) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) multiply_step(a, q[k], k_rows + k_lane, k);
    } else {
#pragma unroll 2
      for (int k = 0; k < kSteps; ++k)
        take_step(q[0], k), multiply_step(a, q[0], k_rows + k_lane, k);
    }
    float t[4 * kEights];
#pragma unroll
    for (int e = 0; e < 4 * kEights; ++e) t[e] = scores.scaled(a[e / 4][e % 4]);
    if (masked)
#pragma unroll
      for (int e = 0; e < 4 * kEights; ++e)
        t[e] = scores.drops(more[e]) ? -INFINITY : t[e] + more[e];
    float factor[2];
    weigh_scores(t, largest, sum, factor);
#pragma unroll
    for (int n = 0; n < kEights; ++n) { /* keys 2 q of both queries, then keys 2 q + 1 */
      p[n][0] = round_tf32(t[4 * n]), p[n][1] = round_tf32(t[4 * n + 2]);
      p[n][2] = round_tf32(t[4 * n + 1]), p[n][3] = round_tf32(t[4 * n + 3]);
    }
    if (__any_sync(0xffffffffu, !(factor[0] == 1.0f && factor[1] == 1.0f))) {
#pragma unroll
      for (int j = 0; j < kVSteps; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[j][e] *= factor[e / 2];
    }
  }
  __device__ __forceinline__ void add(uint32_t v_rows) {
    const uint32_t at = v_rows + v_lane;
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int j = 0; j < kVSteps; ++j) {
        const uint32_t from = at + n * 8 * kSizes.v_pitch + j * 32;
        mma_16x8x8(o[j], p[n], round_tf32(load_shared(from)),
                   round_tf32(load_shared(from + kSizes.v_pitch)));
      }
  }
  /* The chain's sums to `slot`, 16 rows; its maxima and totals to `part`. */
  __device__ __forceinline__ void leave(uint32_t slot, uint32_t part) {
    leave_chain(o, largest, sum, slot, part, kSizes.slot_pitch, lane);
  }
};

}  // namespace obk

#endif

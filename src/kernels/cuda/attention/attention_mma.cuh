/* kernels/cuda/attention/attention_mma.cuh — scores and sums of attention by mma.sync m16n8k16, f16
 * or bf16 in and float out, for attention.cuh, which walks the keys.
 *
 * A warp's 16 queries meet a block of 16 or 32 keys; lane l holds the queries l / 4 and l / 4 + 8.
 * The weights leave the first product in the places where the second wants them. */
#ifndef OBK_ATTENTION_MMA_CUH
#define OBK_ATTENTION_MMA_CUH

#include "attention/attention_scores.cuh"
#include "attention/attention_shape.h"
#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

template <bool kBfloat, int kSizeOf, int kValueOf, int kQueries, int kKeysOf>
struct AttentionMma {
  static constexpr int kElement = 2, kSize = kSizeOf, kValue = kValueOf, kKeys = kKeysOf;
  static constexpr int kType = kBfloat ? kObkBf16 : kObkF16;
  static constexpr AttentionSizes kSizes = attention_sizes(kType, kKeys, kSize, kValue);
  static constexpr AttentionCut kCut = attention_cut(kType, kSizes, kQueries, kKeys);
  static constexpr int kParts = kSizes.keys / 16; /* steps of the second product */
  static constexpr int kSteps = (kSize + 15) / 16, kVSteps = (kValue + 15) / 16;
  static constexpr bool kHold = kSteps <= 8; /* queries in registers; else read for each block */
  static_assert(kSize <= 256 && kValue <= 256, "sums are held in registers");
  uint32_t q[kHold ? kSteps : 1][4];
  uint32_t p[kParts][4]; /* weights of a block */
  float o[2 * kVSteps][4];
  float largest[2], sum[2], more[8 * kParts];
  uint32_t q_at;
  int32_t lane, k_lane, v_lane; /* this lane's places in a block */

  __device__ __forceinline__ void start(uint32_t q_rows, uint32_t) {
    lane = threadIdx.x % 32;
    const int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
    q_at = q_rows + (low + bit3 * 8) * kSizes.k_pitch + bit4 * 16;
    k_lane = (low + bit4 * 8) * kSizes.k_pitch + bit3 * 16;
    v_lane = (low + bit3 * 8) * kSizes.v_pitch + bit4 * 16;
    reset();
  }
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int j = 0; j < 2 * kVSteps; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = 0.0f;
    largest[0] = largest[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
  }
  __device__ __forceinline__ void take_queries() {
    if constexpr (kHold) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) load_matrices(q[k], q_at + k * 32);
    }
  }
  __device__ __forceinline__ void load_bias(const Scores& scores, int row, int key) {
    const int r = row + lane / 4, k = lane % 4 * 2;
    const int limit[2] = {scores.limit(r, key), scores.limit(r + 8, key)};
#pragma unroll
    for (int e = 0; e < 8 * kParts; ++e)
      more[e] = scores.bias(r + (e & 2) * 4, key, k + e / 4 * 8 + (e & 1), limit[e / 2 % 2]);
  }
  __device__ __forceinline__ void weigh(uint32_t k_rows, const Scores& scores, bool masked) {
    float a[2 * kParts][4] = {}, b[2 * kParts][4] = {}; /* even and odd steps */
    const uint32_t at = k_rows + k_lane;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if constexpr (!kHold) load_matrices(q[0], q_at + k * 32);
      float(&to)[2 * kParts][4] = k & 1 ? b : a;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        uint32_t x[4];
        load_matrices(x, at + n * 16 * kSizes.k_pitch + k * 32);
        mma_16x8x16<kBfloat>(to[2 * n], q[kHold ? k : 0], x[0], x[1]);
        mma_16x8x16<kBfloat>(to[2 * n + 1], q[kHold ? k : 0], x[2], x[3]);
      }
    }
    float t[8 * kParts];
#pragma unroll
    for (int e = 0; e < 8 * kParts; ++e) t[e] = scores.scaled(a[e / 4][e % 4] + b[e / 4][e % 4]);
    if (masked)
#pragma unroll
      for (int e = 0; e < 8 * kParts; ++e)
        t[e] = scores.drops(more[e]) ? -INFINITY : t[e] + more[e];
    float factor[2];
    weigh_scores(t, largest, sum, factor);
#pragma unroll
    for (int e = 0; e < 4 * kParts; ++e)
      p[e / 4][e % 4] = narrow_two<kBfloat>(t[2 * e], t[2 * e + 1]);
    if (__any_sync(0xffffffffu, !(factor[0] == 1.0f && factor[1] == 1.0f))) {
#pragma unroll
      for (int j = 0; j < 2 * kVSteps; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[j][e] *= factor[e / 2];
    }
  }
  __device__ __forceinline__ void add(uint32_t v_rows) {
    const uint32_t at = v_rows + v_lane;
#pragma unroll
    for (int n = 0; n < kParts; ++n)
#pragma unroll
      for (int j = 0; j < kVSteps; ++j) {
        uint32_t x[4];
        load_matrices_transposed(x, at + n * 16 * kSizes.v_pitch + j * 32);
        mma_16x8x16<kBfloat>(o[2 * j], p[n], x[0], x[1]);
        mma_16x8x16<kBfloat>(o[2 * j + 1], p[n], x[2], x[3]);
      }
  }
  /* The chain's sums to `slot`, 16 rows; its maxima and totals to `part`. */
  __device__ __forceinline__ void leave(uint32_t slot, uint32_t part) {
    leave_chain(o, largest, sum, slot, part, kSizes.slot_pitch, lane);
  }
};

}  // namespace obk

#endif

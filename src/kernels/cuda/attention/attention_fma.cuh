/* kernels/cuda/attention/attention_fma.cuh — scores and sums of attention in float on CUDA cores,
 * for attention.cuh, which walks the keys.
 *
 * A warp's 16 queries meet 16 keys: lane l works on the queries l / 8 + 0, 4, 8, 12 and the keys l
 * % 8 + 0, 8. The weights go through shared memory to the lanes that hold sums: kColumns columns of
 * V each, of all 16 queries. */
#ifndef OBK_ATTENTION_FMA_CUH
#define OBK_ATTENTION_FMA_CUH

#include "attention/attention_shape.h"
#include "core/dialect.cuh"
#include "tiles.h"

namespace obk {

OBK_DEVICE void load_floats(float (&f)[4], uint32_t address) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
               : "r"(address)
               : "memory");
}
OBK_DEVICE void load_floats(float (&f)[2], uint32_t address) { load_shared8(f[0], f[1], address); }
OBK_DEVICE void store_floats(uint32_t address, const float (&f)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(f[0]), "f"(f[1]),
               "f"(f[2]), "f"(f[3])
               : "memory");
}
OBK_DEVICE void store_floats(uint32_t address, const float (&f)[2]) {
  store_shared8(address, f[0], f[1]);
}

template <int kSizeOf, int kValueOf, int kQueries, int kKeysOf>
struct AttentionFma {
  static constexpr int kElement = 4, kSize = kSizeOf, kValue = kValueOf, kKeys = kKeysOf;
  static constexpr AttentionSizes kSizes = attention_sizes(kObkF32, kKeys, kSize, kValue);
  static constexpr AttentionCut kCut = attention_cut(kObkF32, kSizes, kQueries, kKeys);
  static constexpr int kEach = kSizes.keys / 8;                              /* keys of a lane */
  static constexpr int kColumns = kSizes.columns <= 64 ? 2 : 4, kPitch = 80; /* of 16 weights */
  float o[16][kColumns]; /* row x is the query x / 4 + x % 4 * 4 */
  float largest[4], sum[4], more[4 * kEach];
  uint32_t q_at, own; /* this warp's weights, then 16 factors */
  int32_t lane, k_lane;
  bool column; /* this lane has columns */

  __device__ __forceinline__ void start(uint32_t q_rows, uint32_t own_at) {
    lane = threadIdx.x % 32, own = own_at + threadIdx.x / 32 * (kSizes.keys * kPitch + 64);
    q_at = q_rows + lane / 8 * kSizes.k_pitch, k_lane = lane % 8 * kSizes.k_pitch;
    column = lane * kColumns < kSizes.columns;
    reset();
  }
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int x = 0; x < 16; ++x)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[x][c] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest[i] = -INFINITY, sum[i] = 0.0f;
  }
  __device__ __forceinline__ void take_queries() {}
  __device__ __forceinline__ void load_bias(const Scores& scores, int row, int key) {
    const int r = row + lane / 8, k = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int limit = scores.limit(r + 4 * i, key);
#pragma unroll
      for (int n = 0; n < kEach; ++n)
        more[kEach * i + n] = scores.bias(r + 4 * i, key, k + 8 * n, limit);
    }
  }
  __device__ __forceinline__ void weigh(uint32_t k_rows, const Scores& scores, bool masked) {
    float t[4 * kEach] = {};
    uint32_t k_at = k_rows + k_lane, at = q_at;
#pragma unroll 2
    for (int d = 0; d < (kSize + 3) / 4; ++d, k_at += 16, at += 16) {
      float q[4][4], k[kEach][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_floats(q[i], at + i * 4 * kSizes.k_pitch);
#pragma unroll
      for (int n = 0; n < kEach; ++n) load_floats(k[n], k_at + n * 8 * kSizes.k_pitch);
#pragma unroll
      for (int z = 0; z < 4; ++z)
#pragma unroll
        for (int e = 0; e < 4 * kEach; ++e) t[e] = ::fmaf(q[e / kEach][z], k[e % kEach][z], t[e]);
    }
#pragma unroll
    for (int e = 0; e < 4 * kEach; ++e) t[e] = scores.scaled(t[e]);
    if (masked)
#pragma unroll
      for (int e = 0; e < 4 * kEach; ++e) t[e] = scores.drops(more[e]) ? -INFINITY : t[e] + more[e];
    float factor[4];
    bool changed = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float m = largest[i], more_sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kEach; ++n) m = fmaxf(m, t[kEach * i + n]);
#pragma unroll
      for (int step = 1; step < 8; step *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
      const float base = m == -INFINITY ? 0.0f : m;
      factor[i] = exp2_approx(largest[i] - base);
      changed = changed || factor[i] != 1.0f;
      largest[i] = m;
#pragma unroll
      for (int n = 0; n < kEach; ++n)
        more_sum += t[kEach * i + n] = exp2_approx(t[kEach * i + n] - base);
      sum[i] = sum[i] * factor[i] + more_sum;
    }
    __syncwarp(); /* the block before is summed */
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const float four[4] = {t[n], t[kEach + n], t[2 * kEach + n], t[3 * kEach + n]};
      store_floats(own + (lane % 8 + n * 8) * kPitch + lane / 8 * 16, four);
    }
    if (__any_sync(0xffffffffu, changed)) {
      const uint32_t factors = own + kSizes.keys * kPitch;
      if (lane % 8 == 0) store_floats(factors + lane / 8 * 16, factor);
      __syncwarp();
#pragma unroll
      for (int x = 0; x < 16; x += 4) {
        float f[4];
        load_floats(f, factors + x * 4);
#pragma unroll
        for (int y = 0; y < 4; ++y)
#pragma unroll
          for (int c = 0; c < kColumns; ++c) o[x + y][c] *= f[y];
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void add(uint32_t v_rows) {
    uint32_t at = v_rows + (column ? lane * kColumns * 4 : 0), p_at = own;
#pragma unroll 2
    for (int key = 0; key < kSizes.keys; ++key, at += kSizes.v_pitch, p_at += kPitch) {
      float v[kColumns];
      load_floats(v, at);
#pragma unroll
      for (int x = 0; x < 16; x += 4) {
        float p[4];
        load_floats(p, p_at + x * 4);
#pragma unroll
        for (int y = 0; y < 4; ++y)
#pragma unroll
          for (int c = 0; c < kColumns; ++c) o[x + y][c] = ::fmaf(p[y], v[c], o[x + y][c]);
      }
    }
  }
  __device__ __forceinline__ void leave(uint32_t slot, uint32_t part) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int step = 1; step < 8; step *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
      if (lane % 8 == 0) store_shared8(part + (lane / 8 + 4 * i) * 8, largest[i], sum[i]);
    }
    if (column)
#pragma unroll
      for (int x = 0; x < 16; ++x)
        store_floats(slot + (x / 4 + x % 4 * 4) * kSizes.slot_pitch + lane * kColumns * 4, o[x]);
  }
};

}  // namespace obk

#endif

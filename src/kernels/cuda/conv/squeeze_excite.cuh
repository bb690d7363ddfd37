/* kernels/cuda/conv/squeeze_excite.cuh — a squeeze-and-excitation block by a cluster of CTAs
 * (common/blocks.h: ObkSqueezeExcite; what is computed: ops/squeeze_excite.h).
 *
 *   members    a member has a part of the pixels and of the channels. Both products are over all
 *              channels, but the first is linear: a member multiplies w1's columns of its own
 *              channels by the means over its own pixels, and the members' products add up
 *   exchange   the only one: R sums of each member go to all others' shared memory
 *   x          is read once, into registers, where it is multiplied by its gates
 *   weights    their columns of the own channels are copied to shared memory before the kernel
 *              before has ended
 *
 * Sums are f32, in an order that follows from the shapes alone. */
#ifndef OBK_SQUEEZE_EXCITE_CUH
#define OBK_SQUEEZE_EXCITE_CUH

#include "blocks.h"
#include "core/dialect.cuh"
#include "exec/barrier.cuh"

namespace obk {

template <int kActivation>
static __device__ __forceinline__ float activated(float x, float alpha, float beta) {
  if (kActivation == OBK_RELU) return x < 0.0f ? 0.0f : x; /* NaN stays */
  if (kActivation == OBK_SWISH) return x * sigmoid_of(x);
  if (kActivation == OBK_SIGMOID) return sigmoid_of(x);
  const float y = kActivation == OBK_HARD_SWISH ? fmaf(x, 1.0f / 6.0f, 0.5f) : fmaf(alpha, x, beta);
  const float bounded = y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
  return kActivation == OBK_HARD_SWISH ? x * bounded : bounded;
}

/* 16 bytes as numbers, and back. */
template <class T>
struct ExciteVector {
  static constexpr int kCount = 16 / (int)sizeof(T);
  static __device__ __forceinline__ void widen_to(const uint4& from, float (&to)[kCount]) {
    T v[kCount];
    memcpy(v, &from, 16);
#pragma unroll
    for (int e = 0; e < kCount; ++e) to[e] = load(v, e);
  }
  static __device__ __forceinline__ uint4 narrow(const float (&from)[kCount]) {
    T v[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) store(v, e, from[e]);
    uint4 to;
    memcpy(&to, v, 16);
    return to;
  }
};

/* Sums of kChannels, of which each of kRows rows of threads has a part, `rows` of them one that
 * counts: to(c, sum). `parts`: [kRows][kChannels], `joined`: a number a thread. */
template <int kChannels, int kRows, int kCount, class To>
static __device__ __forceinline__ void join_rows(float* parts, float* joined,
                                                 const float (&sums)[kCount], int rows,
                                                 const To& to) {
  constexpr int kOwn = kChannels / kCount, kEach = OBK_THREADS / kChannels;
  constexpr int kJoin = kEach < 1 ? 1 : kEach > 8 ? 8 : kEach; /* threads add up a channel's */
  const int thread = (int)threadIdx.x, row = thread / kOwn, vector = thread % kOwn;
  if (row < kRows) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) parts[row * kChannels + vector * kCount + e] = sums[e];
  }
  __syncthreads();
  if (kJoin > 1) {
    const int c = thread % kChannels, part = thread / kChannels;
    if (part < kJoin) {
      float sum = 0;
#pragma unroll 4
      for (int k = part; k < rows; k += kJoin) sum += parts[k * kChannels + c];
      joined[part * kChannels + c] = sum;
    }
    __syncthreads();
  }
  const float* const last = kJoin > 1 ? joined : parts;
  for (int c = thread; c < kChannels; c += OBK_THREADS) {
    float sum = 0;
#pragma unroll 4
    for (int k = 0; k < (kJoin > 1 ? kJoin : rows); ++k) sum += last[k * kChannels + c];
    to(c, sum);
  }
}

/* Operands: x, w1, b1, w2, b2, y. */
template <class T, int kPixels, int kChannels, int kSqueezed, int kActivation, int kGate>
static __device__ __forceinline__ void squeeze_excite(const int64_t* p, void* const* x,
                                                      int64_t item, ObkLanes* w) {
  typedef ExciteVector<T> Vector;
  constexpr int kGang = OBK_EXCITE_GANG, kCount = Vector::kCount, kVectors = kChannels / kCount;
  constexpr int kAcross = (int)obk_excite_across(kVectors), kDown = kGang / kAcross;
  constexpr int kOwn = (int)obk_excite_own(kVectors), kOwnChannels = kOwn * kCount;
  constexpr int kRows = OBK_THREADS / kOwn, kEach = (int)obk_excite_each(kPixels, kVectors);
  static_assert(OBK_THREADS == OBK_EXCITE_THREADS, "as the caller counted");
  const ObkSqueezeExcite& g = *(const ObkSqueezeExcite*)p;
  double alpha, beta;
  memcpy(&alpha, &g.alpha_bits, 8), memcpy(&beta, &g.beta_bits, 8);
  const int thread = (int)threadIdx.x, member = (int)(item % kGang), image = (int)(item / kGang);
  const int column = member % kAcross, down = member / kAcross;
  const int first_vector = column * kOwn;
  const int vectors = kVectors - first_vector < kOwn ? kVectors - first_vector : kOwn;
  const int first_pixel = kPixels * down / kDown, end_pixel = kPixels * (down + 1) / kDown;

  float* const parts = (float*)w->scratch;          /* [kRows][kOwnChannels] */
  float* const joined = parts + OBK_THREADS * kCount; /* [OBK_THREADS] */
  float* const means = joined + OBK_THREADS;        /* [kOwnChannels] */
  float* const gates = means + kOwnChannels;        /* [kOwnChannels] */
  float* const sent = gates + kOwnChannels;         /* [kGang][kSqueezed] */
  float* const squeezed = sent + kGang * kSqueezed; /* [kSqueezed] */
  uint4* const w1 = (uint4*)(parts + obk_excite_floats(kVectors, kSqueezed, sizeof(T)));
  uint4* const w2 = w1 + kSqueezed * kOwn;                 /* both [kSqueezed][kOwn] */

  const char* const from1 = (const char*)x[1] + first_vector * 16;
  const char* const from2 = (const char*)x[3] + first_vector * 16;
  for (int k = thread; k < kSqueezed * kOwn; k += OBK_THREADS) {
    const int r = k / kOwn, v = k % kOwn;
    if (v >= vectors) continue;
    copy16(shared_address(w1 + k), from1 + (int64_t)(r * kVectors + v) * 16);
    copy16(shared_address(w2 + k), from2 + (int64_t)(r * kVectors + v) * 16);
  }
  copy16_commit();
  cluster_arrive(); /* nobody reads any more what was sent for the item before */
  wait_for_previous();

  const int row = thread / kOwn, vector = thread % kOwn;
  const bool active = row < kRows && vector < vectors;
  const int64_t base = ((int64_t)image * kPixels * kVectors + first_vector + vector) * 16;
  const auto offset = [&](int i) {
    return base + (int64_t)(first_pixel + row + i * kRows) * (kVectors * 16);
  };
  const auto is_there = [&](int i) { return active && first_pixel + row + i * kRows < end_pixel; };
  uint4 own[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    own[i] = is_there(i) ? *(const uint4*)((const char*)x[0] + offset(i)) : uint4{0, 0, 0, 0};

  float sums[kCount] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float v[kCount];
    Vector::widen_to(own[i], v);
#pragma unroll
    for (int e = 0; e < kCount; ++e) sums[e] += v[e];
  }
  join_rows<kOwnChannels, kRows>(parts, joined, sums, kRows,
                                 [&](int c, float sum) { means[c] = sum * (1.0f / kPixels); });
  copy16_wait<0>();
  __syncthreads();

  /* w1's rows by the warps, the own vectors by lanes. */
  constexpr int kTurns = (kOwn + 31) / 32;
  const int lane = thread % 32, warp = thread / 32;
  float mean[kTurns][kCount];
#pragma unroll
  for (int t = 0; t < kTurns; ++t)
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      mean[t][e] = lane + t * 32 < vectors ? means[(lane + t * 32) * kCount + e] : 0.0f;
  cluster_wait();
#pragma unroll 4
  for (int r = warp; r < kSqueezed; r += OBK_THREADS / 32) {
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      if (lane + t * 32 >= vectors) continue;
      float v[kCount];
      Vector::widen_to(w1[r * kOwn + lane + t * 32], v);
#pragma unroll
      for (int e = 0; e < kCount; ++e) sum = fmaf(v[e], mean[t][e], sum);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += other_lane(sum, mask);
    if (lane < kGang)
      store_dsmem(dsmem_address(shared_address(sent + member * kSqueezed + r), lane), as_bits(sum));
  }
  cluster_arrive(), cluster_wait();
  for (int r = thread; r < kSqueezed; r += OBK_THREADS) {
    float sum = x[2] ? load((const T*)x[2], r) : 0.0f;
#pragma unroll
    for (int m = 0; m < kGang; ++m) sum += sent[m * kSqueezed + r];
    squeezed[r] = activated<kActivation>(sum, 0, 0);
  }
  __syncthreads();

#pragma unroll
  for (int e = 0; e < kCount; ++e) sums[e] = 0;
  if (active) {
#pragma unroll 4
    for (int r = row; r < kSqueezed; r += kRows) {
      const float h = squeezed[r];
      float v[kCount];
      Vector::widen_to(w2[r * kOwn + vector], v);
#pragma unroll
      for (int e = 0; e < kCount; ++e) sums[e] = fmaf(v[e], h, sums[e]);
    }
  }
  const auto gate_of = [&](int c, float sum) {
    const int channel = first_vector * kCount + c;
    if (x[4] && channel < kChannels) sum += load((const T*)x[4], channel);
    gates[c] = activated<kGate>(sum, (float)alpha, (float)beta);
  };
  join_rows<kOwnChannels, kRows>(parts, joined, sums, kRows < kSqueezed ? kRows : kSqueezed,
                                 gate_of);
  __syncthreads();

  float gate[kCount];
#pragma unroll
  for (int e = 0; e < kCount; ++e) gate[e] = gates[vector * kCount + e];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!is_there(i)) continue;
    float v[kCount];
    Vector::widen_to(own[i], v);
#pragma unroll
    for (int e = 0; e < kCount; ++e) v[e] *= gate[e];
    *(uint4*)((char*)x[5] + offset(i)) = Vector::narrow(v);
  }
}

}  // namespace obk

#endif

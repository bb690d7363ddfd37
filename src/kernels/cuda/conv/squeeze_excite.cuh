/* kernels/cuda/conv/squeeze_excite.cuh — a squeeze-and-excitation block by a cluster of CTAs
 * (common/blocks.h: ObkSqueezeExcite; what is computed: ops/squeeze_excite.h).
 *
 *   members    a member has a part of the pixels and of the channels. Both products are over all
 *              channels, but the first is linear: a member multiplies w1's columns of its own
 *              channels by the means over its own pixels, and the members' products add up
 *   exchange   the only one: R sums of each member go to all others' shared memory, where an
 *              mbarrier counts them
 *   x          is read once, into shared memory, where it is multiplied by its gates
 *   weights    their columns of the own channels are copied to shared memory before the kernel
 *              before has ended
 *
 * Loops are not unrolled further than their loads' latency wants: a kernel that runs once reads all
 * of its code from far. Sums are f32, in an order that follows from the shapes alone. */
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
#pragma unroll 2
      for (int k = part; k < rows; k += kJoin) sum += parts[k * kChannels + c];
      joined[part * kChannels + c] = sum;
    }
    __syncthreads();
  }
  const float* const last = kJoin > 1 ? joined : parts;
  for (int c = thread; c < kChannels; c += OBK_THREADS) {
    float sum = 0;
#pragma unroll 2
    for (int k = 0; k < (kJoin > 1 ? kJoin : rows); ++k) sum += last[k * kChannels + c];
    to(c, sum);
  }
}

/* Sixteen bytes of shared memory as numbers, and sums of them times a factor. */
template <class T>
static __device__ __forceinline__ Pack<T, 16 / (int)sizeof(T)> load_vector(uint32_t at) {
  Pack<T, 16 / (int)sizeof(T)> v;
  load_shared16(v.words, at);
  return v;
}
template <class T, int kCount>
static __device__ __forceinline__ void add_scaled(float (&sums)[kCount], const Pack<T, kCount>& v,
                                                  float factor) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) sums[e] = fmaf((float)at(v, e), factor, sums[e]);
}

/* Operands: x, w1, b1, w2, b2, y. */
template <class T, int kPixels, int kChannels, int kSqueezed, int kActivation, int kGate>
static __device__ __forceinline__ void squeeze_excite(const int64_t* p, void* const* x,
                                                      int64_t item, ObkLanes* w) {
  constexpr int kGang = OBK_EXCITE_GANG, kCount = 16 / (int)sizeof(T),
                kVectors = kChannels / kCount;
  constexpr int kAcross = (int)obk_excite_across(kVectors), kDown = kGang / kAcross;
  constexpr int kOwn = (int)obk_excite_own(kVectors), kOwnChannels = kOwn * kCount;
  constexpr int kRows = OBK_THREADS / kOwn;
  static_assert(OBK_THREADS == OBK_EXCITE_THREADS, "as the caller counted");
  const ObkSqueezeExcite& g = *(const ObkSqueezeExcite*)p;
  double alpha, beta;
  memcpy(&alpha, &g.alpha_bits, 8), memcpy(&beta, &g.beta_bits, 8);
  const int thread = (int)threadIdx.x, member = (int)(item % kGang), image = (int)(item / kGang);
  const int column = member % kAcross, down = member / kAcross;
  const int first_vector = column * kOwn;
  const int vectors = kVectors - first_vector < kOwn ? kVectors - first_vector : kOwn;
  const int first_pixel = kPixels * down / kDown;
  const int pixels = kPixels * (down + 1) / kDown - first_pixel;

  const uint32_t come = shared_address(w->scratch);   /* an mbarrier of what others send */
  float* const parts = (float*)w->scratch + 4;        /* [kRows][kOwnChannels] */
  float* const joined = parts + OBK_THREADS * kCount; /* [OBK_THREADS] */
  float* const means = joined + OBK_THREADS;          /* [kOwnChannels] */
  float* const gates = means + kOwnChannels;          /* [kOwnChannels] */
  float* const sent = gates + kOwnChannels;           /* [kGang][kSqueezed] */
  float* const squeezed = sent + kGang * kSqueezed;   /* [kSqueezed] */
  const uint32_t w1 = come + (uint32_t)obk_excite_floats(kVectors, kSqueezed, sizeof(T)) * 4;
  const uint32_t w2 = w1 + kSqueezed * kOwn * 16;  /* both [kSqueezed][kOwn] vectors */
  const uint32_t map = w2 + kSqueezed * kOwn * 16; /* a row of kOwn for each own pixel */

  /* A row of threads takes a row of weights, a pixel, with a vector each. */
  const int row = thread / kOwn, vector = thread % kOwn;
  const bool active = row < kRows && vector < vectors;
  const uint32_t own = (uint32_t)thread * 16; /* of row `row` of weights and of the map */
  constexpr int kStep = kRows * kOwn * 16;    /* to the row after kRows others, there */
  const int64_t from = (int64_t)row * (kVectors * 16) + (first_vector + vector) * 16;
  if (active) {
    const char *from1 = (const char*)x[1] + from, *from2 = (const char*)x[3] + from;
#pragma unroll 1
    for (int k = 0; row + k * kRows < kSqueezed; ++k) {
      copy16(w1 + own + k * kStep, from1), from1 += kRows * kVectors * 16;
      copy16(w2 + own + k * kStep, from2), from2 += kRows * kVectors * 16;
    }
  }
  copy16_commit();
  /* The CTA's first item makes the mbarrier, whose phases take turns from item to item. */
  const bool is_first = w->turn == 0;
  const uint32_t turn = w->turn == 1;
  w->turn = turn == 0 ? 1 : 2;
  if (thread == 0) {
    if (is_first) mbarrier_init(come, 1), mbarrier_init_fence();
    mbarrier_expect(come, kGang * kSqueezed * 4);
  }
  if (is_first)
    cluster_arrive_relaxed();
  else
    cluster_arrive(); /* nobody here reads any more what was sent for the item before */
  wait_for_previous();

  const int64_t base = ((int64_t)image * kPixels + first_pixel) * (kVectors * 16) + from;
  if (active) {
    const char* at = (const char*)x[0] + base;
#pragma unroll 4
    for (int k = 0; row + k * kRows < pixels; ++k, at += kRows * kVectors * 16)
      copy16(map + own + k * kStep, at);
  }
  copy16_commit();
  copy16_wait<0>(); /* each reads what it has copied itself */
  float sums[kCount] = {};
  if (active) {
#pragma unroll 2
    for (int k = 0; row + k * kRows < pixels; ++k)
      add_scaled<T>(sums, load_vector<T>(map + own + k * kStep), 1.0f);
  }
  join_rows<kOwnChannels, kRows>(parts, joined, sums, kRows,
                                 [&](int c, float sum) { means[c] = sum * (1.0f / kPixels); });
  __syncthreads();

  /* A row of w1 by eight lanes, each of which then has its sum for one of the members. */
  static_assert(kGang == 8, "a lane a member");
  const int lane = thread % kGang;
  const uint32_t to = dsmem_address(shared_address(sent + member * kSqueezed), lane);
  const uint32_t to_come = dsmem_address(come, lane);
  cluster_wait();
#pragma unroll 1
  for (int first = 0; first < kSqueezed; first += OBK_THREADS / kGang) {
    const int r = first + thread / kGang;
    float sum = 0;
    if (r < kSqueezed) {
#pragma unroll 2
      for (int v = lane; v < vectors; v += kGang) {
        const auto weights = load_vector<T>(w1 + (r * kOwn + v) * 16);
#pragma unroll
        for (int e = 0; e < kCount; ++e)
          sum = fmaf((float)at(weights, e), means[v * kCount + e], sum);
      }
    }
    sum += other_lane(sum, 1), sum += other_lane(sum, 2), sum += other_lane(sum, 4);
    if (r < kSqueezed) store_dsmem4(to + r * 4, sum, to_come);
  }
  Watchdog dog = ring_state().dog;
  dog.start();
  while (!mbarrier_try(come, turn)) dog.check(4, (uint64_t)item, turn, 0);
#pragma unroll 1
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
#pragma unroll 2
    for (int k = 0; row + k * kRows < kSqueezed; ++k)
      add_scaled<T>(sums, load_vector<T>(w2 + own + k * kStep), squeezed[row + k * kRows]);
  }
  const auto gate_of = [&](int c, float sum) {
    const int channel = first_vector * kCount + c;
    if (x[4] && channel < kChannels) sum += load((const T*)x[4], channel);
    gates[c] = activated<kGate>(sum, (float)alpha, (float)beta);
  };
  join_rows<kOwnChannels, kRows>(parts, joined, sums, kRows < kSqueezed ? kRows : kSqueezed,
                                 gate_of);
  __syncthreads();

  if (!active) return;
  float gate[kCount];
#pragma unroll
  for (int e = 0; e < kCount; ++e) gate[e] = gates[vector * kCount + e];
  char* y = (char*)x[5] + base;
#pragma unroll 2
  for (int k = 0; row + k * kRows < pixels; ++k, y += kRows * kVectors * 16) {
    const auto v = load_vector<T>(map + own + k * kStep);
    float product[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) product[e] = (float)at(v, e) * gate[e];
    store_pack<kCount>((T*)y, 0, product);
  }
}

}  // namespace obk

#endif

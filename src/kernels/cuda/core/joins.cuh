/* kernels/cuda/core/joins.cuh — what threads that share a row, or columns, have summed each,
 * combined in one order: of lanes, of all threads of a CTA.
 *
 *   join_lanes<lanes>(w, v, Sum())    `lanes` that share a row: up to 32, a power of two, or all
 *                                     threads (OBK_ALL_THREADS)
 *   join(w, v, Sum())                 as many as w says: a warp's or all
 *   join_slices<n>(w, v, Sum())       n groups of threads have the same columns: their partial
 *                                     results, in w->scratch
 *
 * w: what a body knows of its threads (dialect.cuh's ObkLanes): warp, lanes, scratch; `parts`, of
 * shared memory two words a warp, that joins use in turns, which `turn` says: some threads may
 * still read those of the join before. */
#ifndef OBK_JOINS_CUH
#define OBK_JOINS_CUH

namespace obk {

struct First {
  template <typename T>
  __device__ T operator()(T a, T) const {
    return a;
  }
};
struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return (T)(a + b);
  }
};
struct Product {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return (T)(a * b);
  }
};
struct Largest {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return obk::maximum(a, b);
  }
};
struct Smallest {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return obk::minimum(a, b);
  }
};
struct Either {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return (T)(a | b);
  }
};
struct Both {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return (T)(a & b);
  }
};

/* What lane `lane ^ mask` holds; values of any size up to 8 bytes travel by their bits. */
template <typename T>
static __device__ inline T other_lane(T v, int mask) {
  if (sizeof(T) == 8) {
    unsigned long long bits;
    memcpy(&bits, &v, sizeof v);
    bits = __shfl_xor_sync(0xffffffffu, bits, mask);
    memcpy(&v, &bits, sizeof v);
  } else {
    unsigned bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = __shfl_xor_sync(0xffffffffu, bits, mask);
    memcpy(&v, &bits, sizeof v);
  }
  return v;
}

/* The lower lane stands on the left on both sides, so that all lanes end with the same bits, NaN
 * included. */
template <int kLanes, typename Lanes, typename T, typename Op>
static __device__ __forceinline__ T join_lanes(Lanes* w, T v, Op op) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int mask = 1; mask < 32 && mask < kLanes; mask <<= 1) {
    const T other = other_lane(v, mask);
    v = lane & mask ? op(other, v) : op(v, other);
  }
  if (kLanes <= 32) return v;
  constexpr int kWarps = OBK_ALL_THREADS / 32;
  uint64_t* const parts = w->parts + w->turn * kWarps;
  w->turn ^= 1;
  if (lane == 0) memcpy(&parts[w->warp], &v, sizeof v);
  __syncthreads();
  T sum;
  memcpy(&sum, &parts[0], sizeof sum);
#pragma unroll
  for (int k = 1; k < kWarps; ++k) { /* read together, added in order */
    T part;
    memcpy(&part, &parts[k], sizeof part);
    sum = op(sum, part);
  }
  return sum;
}
template <typename Lanes, typename T, typename Op>
static __device__ inline T join(Lanes* w, T v, Op op) {
  if (w->lanes == 32) return join_lanes<32>(w, v, op);
  v = join_lanes<256>(w, v, op);
  __syncthreads(); /* a body may stage the next row where others still read this one */
  return v;
}

/* Parts of `kSlices` groups of threads, each thread V of them: those of a warp by shuffles, those
 * of all warps in shared memory, each time in the groups' order. */
template <int kSlices, typename Lanes, typename T, int V, typename Op>
static __device__ __forceinline__ void join_slices(Lanes* w, T (&v)[1][V], Op op) {
  if (kSlices == 1) return;
  constexpr int kTogether = OBK_ALL_THREADS / kSlices;
  constexpr int kGroup = kTogether < 32 ? 32 : kTogether, kGroups = OBK_ALL_THREADS / kGroup;
#pragma unroll
  for (int e = 0; e < V; ++e) {
#pragma unroll
    for (int mask = kTogether; mask < kGroup; mask *= 2) {
      const T other = other_lane(v[0][e], mask);
      v[0][e] = threadIdx.x & mask ? op(other, v[0][e]) : op(v[0][e], other);
    }
  }
  T* const parts = (T*)w->scratch;
  const int at = (int)threadIdx.x % kTogether, group = (int)threadIdx.x / kGroup;
  if ((int)threadIdx.x % kGroup < kTogether) {
#pragma unroll
    for (int e = 0; e < V; ++e) parts[(e * kGroups + group) * kTogether + at] = v[0][e];
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < V; ++e) {
    T sum = parts[e * kGroups * kTogether + at];
#pragma unroll
    for (int g = 1; g < kGroups; ++g) sum = op(sum, parts[(e * kGroups + g) * kTogether + at]);
    v[0][e] = sum;
  }
  __syncthreads();
}

}  // namespace obk

#endif

/* kernels/cuda/core/dialect.cuh — the language of generated bodies as a CTA reads it: the same
 * texts as on the CPU.
 *
 * Rows go to warps and a row's columns to the 32 lanes of its warp; a task with few long rows gives
 * each row to the whole CTA (ObkLanes says which, the program's loop decides). Blocks of
 * neighbouring rows go to warps, a row to each lane. A reduction leaves a part in every lane; a
 * join makes them one, in a fixed order. Staged values lie in shared memory, apart for each group
 * of lanes, and are read back by the lane that wrote them. Functions are the device library's with
 * full accuracy: as good as the CPU's, not equal in the last bit. */
#ifndef OBK_CUDA_DIALECT_CUH
#define OBK_CUDA_DIALECT_CUH

#include "core/types.cuh"

#include "abi.h"
#include "core/ptx.cuh"
#include "exec/ring.cuh"
#include "tiles.h"

/* A kernel reads what other SMs wrote in the same launch, so no pointer may be taken for memory
 * that nobody writes. */
#define __restrict

namespace obk {

/* Several threads may write parts of one byte: the word that holds it changes as a whole. */
static __device__ inline void replace_bits(uint8_t* byte, uint32_t mask, uint32_t bits) {
  const uint64_t address = (uint64_t)byte;
  uint32_t* word = (uint32_t*)(address & ~3ull);
  const uint32_t shift = (uint32_t)(address & 3u) * 8u;
  uint32_t old = *(volatile uint32_t*)word, seen;
  do {
    seen = old;
    old = atomicCAS(word, seen, (seen & ~(mask << shift)) | ((bits & mask) << shift));
  } while (old != seen);
}

}  // namespace obk

#define OBK_OWN_HALF
#define OBK_OWN_PAIRS
#define OBK_SHARED_BYTES
#define OBK_ALL_THREADS 256
#include "numbers.h"

namespace obk {

/* Elements that lie together, in accesses of up to 16 bytes. */
template <int n>
static __device__ __forceinline__ void load_bytes(const void* from, uint32_t* words) {
  if (n % 16 == 0) {
#pragma unroll
    for (int k = 0; k < n / 16; ++k) {
      const uint4 v = ((const uint4*)from)[k];
      words[4 * k] = v.x, words[4 * k + 1] = v.y, words[4 * k + 2] = v.z, words[4 * k + 3] = v.w;
    }
  } else if (n == 8) {
    const uint2 v = *(const uint2*)from;
    words[0] = v.x, words[1] = v.y;
  } else if (n == 4) {
    words[0] = *(const uint32_t*)from;
  } else if (n == 2) {
    words[0] = *(const uint16_t*)from;
  } else {
    words[0] = *(const uint8_t*)from;
  }
}
template <int n>
static __device__ __forceinline__ void store_bytes(void* to, const uint32_t* words) {
  if (n % 16 == 0) {
#pragma unroll
    for (int k = 0; k < n / 16; ++k)
      ((uint4*)to)[k] =
          make_uint4(words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]);
  } else if (n == 8) {
    *(uint2*)to = make_uint2(words[0], words[1]);
  } else if (n == 4) {
    *(uint32_t*)to = words[0];
  } else if (n == 2) {
    *(uint16_t*)to = (uint16_t)words[0];
  } else {
    *(uint8_t*)to = (uint8_t)words[0];
  }
}
static __device__ __forceinline__ uint32_t pair_f16_bits(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
static __device__ __forceinline__ uint32_t pair_bf16_bits(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

}  // namespace obk

#define OBK_OWN_STILL
#include "packs.h"

#ifdef OBK_DATAFLOW
#include "exec/broadcast.cuh"

namespace obk {

/* A pack of what a dataflow program gives to all: elements i .. of words that carry `tag`. */
template <int V, typename T, typename A>
static __device__ __forceinline__ void give_pack(uint32_t tag, T* p, int64_t i, const A (&o)[V]) {
  constexpr int kWords = V * (int)sizeof(T) / 4;
  static_assert(V * sizeof(T) % 4 == 0, "whole words are given");
  const Pack<T, V> pack = make_pack((const T*)0, o);
  char* const at = (char*)p + i * (int64_t)(2 * sizeof(T));
  if (kWords == 1) broadcast_one(at, pack.words[0], tag);
#pragma unroll
  for (int k = 0; k + 1 < kWords; k += 2)
    broadcast_two(at + k * 8, pack.words[k], pack.words[k + 1], tag);
}

}  // namespace obk
#endif

namespace obk {

/* A pack that is loaded ahead of its use and taken from shared memory by the same thread: pieces
 * of 16 bytes (or one smaller), each beside the same piece of the thread's neighbours. */
template <int V, typename T>
static __device__ __forceinline__ void async_pack(char* own, const T* p, int64_t i) {
  constexpr int kBytes = V * (int)sizeof(T), kUnit = kBytes < 16 ? kBytes : 16;
  const uint32_t to = shared_address(own) + threadIdx.x * kUnit;
#pragma unroll
  for (int k = 0; k < kBytes / kUnit; ++k)
    copy_unit<kUnit>(to + k * OBK_ALL_THREADS * kUnit, (const char*)(p + i) + k * kUnit, kUnit);
}
/* A pack of memory that nobody writes while the kernel runs. */
template <int V, typename T>
static __device__ __forceinline__ Pack<T, V> still_pack(const T* p, int64_t i) {
  constexpr int kBytes = V * (int)sizeof(T);
  if (kBytes % 16) return load_pack<V>(p, i);
  Pack<T, V> pack;
#pragma unroll
  for (int k = 0; k < kBytes / 16; ++k) {
    const uint4 v = __ldg((const uint4*)(p + i) + k);
    pack.words[4 * k] = v.x, pack.words[4 * k + 1] = v.y, pack.words[4 * k + 2] = v.z,
                   pack.words[4 * k + 3] = v.w;
  }
  return pack;
}
/* A pack of more memory than the second-level cache holds, read once. Its lines
 * are the last to be evicted, so that stores do not wait (h200_memory.json). */
template <int V, typename T>
static __device__ __forceinline__ Pack<T, V> once_pack(const T* p, int64_t i) {
  constexpr int kBytes = V * (int)sizeof(T);
  if (kBytes % 16) return load_pack<V>(p, i);
  Pack<T, V> pack;
  uint64_t stays;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(stays));
#pragma unroll
  for (int k = 0; k < kBytes / 16; ++k)
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(pack.words[4 * k]), "=r"(pack.words[4 * k + 1]),
                   "=r"(pack.words[4 * k + 2]), "=r"(pack.words[4 * k + 3])
                 : "l"((const char*)(p + i) + 16 * k), "l"(stays));
  return pack;
}
/* The same of a pack that is here already, where it is too small for an asynchronous copy. */
template <int V, typename T>
static __device__ __forceinline__ void keep_pack(char* own, const Pack<T, V>& pack) {
  constexpr int kBytes = V * (int)sizeof(T);
  store_bytes<kBytes>(own + (int)threadIdx.x * kBytes, pack.words);
}
/* The words change by what is 0 in every launch, which no compiler knows. A shift, which unpacks
 * bf16, may trade places with xor, not with assembly. */
template <int V, typename T>
static __device__ __forceinline__ void unpack_anew(Pack<T, V>& pack) {
  const uint32_t zero = gridDim.z - 1;
#pragma unroll
  for (int k = 0; k < (Pack<T, V>::kBytes + 3) / 4; ++k) pack.words[k] ^= zero;
}
template <int V>
static __device__ __forceinline__ void unpack_anew(Pack<bf16, V>& pack) {
  const uint32_t zero = gridDim.z - 1;
#pragma unroll
  for (int k = 0; k < V / 2; ++k) asm("xor.b32 %0, %0, %1;" : "+r"(pack.words[k]) : "r"(zero));
}
template <int V, typename T>
static __device__ __forceinline__ Pack<T, V> take_pack(const char* own) {
  constexpr int kBytes = V * (int)sizeof(T), kUnit = kBytes < 16 ? kBytes : 16;
  Pack<T, V> pack;
#pragma unroll
  for (int k = 0; k < kBytes / kUnit; ++k)
    load_bytes<kUnit>(own + (k * OBK_ALL_THREADS + (int)threadIdx.x) * kUnit, pack.words + k * 4);
  return pack;
}

}  // namespace obk

namespace obk {

/* Neighbours are added, then neighbouring pairs, ...: one order of the sum of 16, however many of
 * them a lane has. */
template <int V>
static __device__ __forceinline__ float sum_of_neighbours(float (&x)[V]) {
#pragma unroll
  for (int step = 1; step < V; step *= 2)
#pragma unroll
    for (int v = 0; v < V; v += 2 * step) x[v] = __fadd_rn(x[v], x[v + step]);
#pragma unroll
  for (int mask = 1; mask < 16 / V; mask <<= 1)
    x[0] = __fadd_rn(x[0], __shfl_xor_sync(0xffffffffu, x[0], mask));
  return x[0];
}
/* Partial statistics of 16 neighbouring columns of a row that is stored, of which each of 16 / V
 * lanes that are neighbours has V: their sum, and that of the squares about their mean
 * (statistics.cuh), of the numbers as they are rounded. All lanes of the warp come here. `at`: of
 * the 16 columns. */
template <typename T, int V>
static __device__ __forceinline__ void give_partials(float* partials, int64_t at, bool there,
                                                     const float (&o)[V]) {
  constexpr int kLanes = 16 / V;
  float x[V], part[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    T value;
    store(&value, 0, o[v]);
    part[v] = x[v] = load(&value, 0);
  }
  const float sum = sum_of_neighbours(part);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float off = __fmaf_rn(sum, -1.0f / 16, x[v]);
    part[v] = __fmul_rn(off, off);
  }
  const float squares = sum_of_neighbours(part);
  if (there && threadIdx.x % kLanes == 0) *(float2*)(partials + 2 * at) = make_float2(sum, squares);
}
/* The same of a task's rows of `pitch` elements that have been stored, by any of the threads: where
 * a body does not walk them in packs. */
template <typename T>
static __device__ __forceinline__ void leave_partials(const T* x, float* partials, const ObkTask* t,
                                                      int64_t pitch) {
  __syncthreads();
  const int parts = (int)(t->c1 - t->c0) / 16, all = (int)(t->r1 - t->r0) * parts;
#pragma unroll 1
  for (int k = threadIdx.x / 16; k < (all + 1) / 2 * 2;
       k += OBK_ALL_THREADS / 16) { /* two in a warp */
    const int n = k < all ? k : all - 1;
    const int64_t at = (t->r0 + n / parts) * pitch + t->c0 + n % parts * 16;
    const float o[1] = {(float)load(x, at + threadIdx.x % 16)};
    give_partials<T>(partials, at / 16, k < all, o);
  }
}

}  // namespace obk

/* A worker as a thread of its CTA sees it, for one task. */
struct ObkLanes : ObkWorker {
  int32_t lane, lanes;   /* this thread among those that share a row: a warp or the whole CTA */
  int32_t group, groups; /* which of the CTA's groups of lanes */
  int32_t warp, warps;
  char* stage;     /* this group's part of the scratch */
  uint64_t* parts; /* shared memory for joins of the whole CTA, and which half of it is the next
                      one's: joins.cuh */
  int32_t turn;
  void* pipe; /* of a product's own kernel: pipelined_gemm.cuh */
#ifdef OBK_DATAFLOW
  uint32_t tag; /* of this run, beside every word that is given: dataflow.cuh */
#endif
};

#define OBK_BLOCK 32 /* rows that share a walk over the columns: a lane each */

/* A body is part of its kernel, or called where OBK_INLINED is 0 before its text. A called one
 * takes its worker by value, in registers: a thread's own memory would be read from global memory
 * after each barrier of the grid (ring.cuh). */
#ifndef OBK_INLINED
#define OBK_INLINED 1
#endif
/* Whether its tiles may take wgmma; 0 before the text of a body where the assembler would serialise
 * it. */
#ifndef OBK_WGMMA_TILES
#define OBK_WGMMA_TILES OBK_INLINED
#endif
#define OBK_BODY(name) OBK_BODY_OF(OBK_INLINED, name)
#define OBK_BODY_OF(inlined, name) OBK_BODY_AS(inlined, name)
#define OBK_BODY_AS(inlined, name) OBK_BODY_AS_##inlined(name)
#define OBK_BODY_HEAD(name)                                                                       \
  static __device__ __forceinline__ void name(const ObkTask* t, const int64_t* p, void* const* x, \
                                              ObkLanes* w)
#define OBK_BODY_AS_1(name) OBK_BODY_HEAD(name)
#define OBK_BODY_AS_0(name)                                                             \
  OBK_BODY_HEAD(name##_text);                                                           \
  static __device__ __noinline__ void name##_called(const ObkTask* t, const int64_t* p, \
                                                    void* const* x, ObkLanes lanes) {   \
    name##_text(t, p, x, &lanes);                                                       \
  }                                                                                     \
  OBK_BODY_HEAD(name) { name##_called(t, p, x, *w); }                                   \
  OBK_BODY_HEAD(name##_text)
#define OBK_FOR_ROWS(r) for (int64_t r = t->r0 + w->group; r < t->r1; r += w->groups)
/* Items of a hand-written block: each is one thread's. */
#define OBK_FOR_ITEMS(r) \
  for (int64_t r = t->r0 + (int64_t)threadIdx.x; r < t->r1; r += (int64_t)OBK_THREADS)
/* Items of a block for gangs (blocks.h): each is the whole CTA's. */
#define OBK_FOR_GANG_ITEMS(r) for (int64_t r = t->r0; r < t->r1; ++r)
#define OBK_FOR_LANES_OF(j, low, high) for (int64_t j = (low) + w->lane; j < (high); j += w->lanes)
#define OBK_FOR_LANES(j, low, high) OBK_FOR_LANES_OF(j, low, high)
#define OBK_LANES
#define OBK_LANES_REDUCE(clause)
#define OBK_STAGE(offset) (w->stage + (offset))
#define OBK_JOIN_ANY_ONE(v) obk::join(w, v, obk::First())
#define OBK_JOIN_SUM(v) obk::join(w, v, obk::Sum())
#define OBK_JOIN_PROD(v) obk::join(w, v, obk::Product())
#define OBK_JOIN_MAX(v) obk::join(w, v, obk::Largest())
#define OBK_JOIN_MIN(v) obk::join(w, v, obk::Smallest())
#define OBK_JOIN_OR(v) obk::join(w, v, obk::Either())
#define OBK_JOIN_AND(v) obk::join(w, v, obk::Both())
/* The blocks of a task go to the warps in turn. */
#define OBK_FOR_ROW_BLOCKS(r, n, extent)                                              \
  for (int64_t r = t->r0, n, obk_block = 0;                                           \
       r < t->r1 && (n = obk::block_of(r, t->r1, extent), true); r += n, ++obk_block) \
    if (obk_block % w->warps == w->warp)
/* Product tiles: gemm.cuh. */
#define OBK_GEMM_TILE(type, g) obk::gemm_tile<type>(w, g)
/* aligned: the body knows that the tile has all these columns, and that rows of A begin where 16
 * bytes do. As constants: the most rows and columns of a tile, k, a_row and c_row, perhaps parts.
 */
#define OBK_GEMM_TILE_OF(type, g, aligned, ...) \
  obk::gemm_tile_of<type, obk::FixedShape<__VA_ARGS__>, OBK_WGMMA_TILES, aligned>(w, g)
/* Of few rows by a B that streams (gemm_streamed.cuh). As constants: the most rows of a tile, the
 * columns it is made for, CTAs that share a multiprocessor, perhaps whether B is packed weights. */
#define OBK_GEMM_STREAMED_TILE(type, g, ...) obk::gemm_streamed_tile<type, __VA_ARGS__>(g)
/* Before a tile that does not give them itself: the statistics of its rows that its body wants
 * (statistics.cuh). */
#define OBK_FIND_STATISTICS(type, g) obk::find_statistics<type == kObkBf16>(g)
/* A product with a kernel of its own: the tile's
 * sums, of which perhaps a second plane lies as many floats behind the first as this gives. */
#define OBK_PIPELINED_GEMM_BEGIN() \
  ((obk::PipelinedGemmPipe<OBK_PIPELINED_GEMM_NUMBERS>*)w->pipe)->begin();
#define OBK_PIPELINED_GEMM_SUMS_OF(type, g, stage, other, statistics, ...)                \
  (obk::pipelined_gemm_sums<type, obk::FixedShape<__VA_ARGS__>, stage, other, statistics, \
                            OBK_PIPELINED_GEMM_NUMBERS>(w, g),                            \
   other)
/* The same where a cluster computes parts of k: planes so far apart, if the body adds them. */
#define OBK_PIPELINED_GEMM_SPLIT_K_OF(type, g, stage, plane, adds, ...)                       \
  (obk::pipelined_gemm_split_k<type, obk::FixedShape<__VA_ARGS__>, stage, plane, (adds) != 0, \
                               OBK_PIPELINED_GEMM_NUMBERS>(w, g),                             \
   (adds) ? (plane) : 0)
/* The same of tall tiles, sums of so many chains over k; those of a tile alone are one plane. */
#define OBK_PIPELINED_GEMM_TALL_OF(type, g, stage, chains, statistics, ...)               \
  obk::pipelined_gemm_tall<type, obk::FixedShape<__VA_ARGS__>, stage, chains, statistics, \
                           OBK_PIPELINED_GEMM_NUMBERS>(w, g)
#define OBK_PIPELINED_GEMM_TF32_OF(g, stage, ...) \
  obk::pipelined_gemm_tf32<obk::FixedShape<__VA_ARGS__>, stage, OBK_PIPELINED_GEMM_NUMBERS>(w, g)
#define OBK_PIPELINED_GEMM_F32_OF(g, stage, ...) \
  obk::pipelined_gemm_f32<obk::FixedShape<__VA_ARGS__>, stage, OBK_PIPELINED_GEMM_NUMBERS>(w, g)
#define OBK_PIPELINED_GEMM_TF32_SPLIT_K_OF(g, stage, plane, adds, ...)                       \
  (obk::pipelined_gemm_tf32_split_k<obk::FixedShape<__VA_ARGS__>, stage, plane, (adds) != 0, \
                                    OBK_PIPELINED_GEMM_NUMBERS>(w, g),                       \
   (adds) ? (plane) : 0)
#define OBK_PIPELINED_GEMM_F32_SPLIT_K_OF(g, stage, plane, adds, ...)                       \
  (obk::pipelined_gemm_f32_split_k<obk::FixedShape<__VA_ARGS__>, stage, plane, (adds) != 0, \
                                   OBK_PIPELINED_GEMM_NUMBERS>(w, g),                       \
   (adds) ? (plane) : 0)
#define OBK_PIPELINED_GEMM_TALL_SPLIT_K_OF(type, g, stage, chains, plane, adds, ...)          \
  (obk::pipelined_gemm_tall_split_k<type, obk::FixedShape<__VA_ARGS__>, stage, chains, plane, \
                                    (adds) != 0, OBK_PIPELINED_GEMM_NUMBERS>(w, g),           \
   (adds) ? (plane) : 0)
/* As constants: g's size, value_size and keys, and the most queries of a tile. */
#define OBK_ATTENTION_TILE(type, g, size, value_size, queries, keys) \
  obk::attention_tile<type, size, value_size, queries, keys>(w, g)
/* One piece of the keys; whether the answer is there. */
#define OBK_ATTENTION_SPLIT(type, g, size, value_size, keys, kv_splits) \
  obk::attention_split<type, size, value_size, keys, kv_splits>(w, g)
/* Of a dataflow program: the piece's own columns of the answer, once all pieces are there; what
 * is stored is given to all. */
#define OBK_ATTENTION_SHARE(type, g, size, value_size, keys, kv_splits) \
  obk::attention_share<type, size, value_size, keys, kv_splits>(w, g)
/* The same where keys and values of `kept` type lie where the caller keeps them. */
#define OBK_ATTENTION_IN_PLACE(type, g, size, value_size, keys, kv_splits, in_place) \
  obk::attention_share<type, size, value_size, keys, kv_splits, in_place>(w, g)
#define OBK_GIVE_PACK(V, p, i, o) obk::give_pack<V>(w->tag, p, i, o)
#define OBK_FOR_BLOCK(k, n) for (int64_t k = threadIdx.x % 32; k < n; k += 32)
#define OBK_BLOCK_VALUES(type, name) type name
#define OBK_AT(name, k) name
/* Rows in vectors (codegen/vectors.h). How lanes share a row is the text's choice, by the row's
 * length alone. */
#define OBK_EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define OBK_THREAD ((int)threadIdx.x)
#define OBK_POINTS(device, core) (device)
#define OBK_COUNT_POINTS(t, vectors) ((int)((t)->r1 - (t)->r0) * (vectors))
#define OBK_LANES_OF(n) (n)
#define OBK_LANE(n) ((int)threadIdx.x % (n))
#define OBK_GROUP(n) ((int)threadIdx.x / (n))
#define OBK_GROUPS(n) (OBK_ALL_THREADS / (n))
#define OBK_PREFETCH(p, i) obk::line_prefetch((p) + (i))
#define OBK_UNITS(vectors, lanes) (((vectors) + (lanes) - 1) / (lanes))
#define OBK_JOINED(lanes, op, v) obk::join_lanes<lanes>(w, v, obk::op())
#define OBK_SLICES(n) (n)
#define OBK_MEET() __syncthreads()
#define OBK_COMMIT_COPIES() obk::copy16_commit()
#define OBK_AWAIT(n) obk::copy16_wait<n>()
#define OBK_JOIN_SLICES(n, op, v) obk::join_slices<n>(w, v, obk::op())
/* A row walked lane by lane, by a thread, by a warp or by the whole CTA. */
#define OBK_SHARE_ROWS(n) obk::share_rows(w, n)

namespace obk {

/* A row to each warp, in a kernel without a table of tasks: its work stages no rows. */
static __device__ __forceinline__ void assign_warps(ObkLanes* w) {
  w->lanes = 32, w->lane = (int)(threadIdx.x % 32);
  w->groups = w->warps, w->group = w->warp, w->stage = (char*)w->scratch;
}

static __device__ __forceinline__ void share_rows(ObkLanes* w, int lanes) {
  if (lanes == 32) return; /* as the program's loop assigns them */
  if (lanes == 1) {
    w->lanes = 1, w->lane = 0, w->group = (int)threadIdx.x, w->groups = OBK_THREADS;
    return;
  }
  w->lanes = lanes, w->lane = (int)threadIdx.x, w->group = 0, w->groups = 1;
  w->stage = (char*)w->scratch;
}

static inline int64_t block_of(int64_t row, int64_t end, int64_t extent) {
  const int64_t left = extent - row % extent, rest = end - row;
  const int64_t n = left < OBK_BLOCK ? left : OBK_BLOCK;
  return n < rest ? n : rest;
}

}  // namespace obk
#include "core/joins.cuh"
namespace obk {

/* ---- functions ---- */
#define OBK_FUNCTION(name, thin, wide)                         \
  static inline float name##_of(float a) { return ::thin(a); } \
  static inline double name##_of(double a) { return ::wide(a); }
OBK_FUNCTION(exp, expf, exp)
OBK_FUNCTION(log, logf, log)
OBK_FUNCTION(erf, erff, erf)
OBK_FUNCTION(tanh, tanhf, tanh)
OBK_FUNCTION(sin, sinf, sin)
OBK_FUNCTION(cos, cosf, cos)
OBK_FUNCTION(tan, tanf, tan)
OBK_FUNCTION(floor, floorf, floor)
OBK_FUNCTION(ceil, ceilf, ceil)
OBK_FUNCTION(round, rintf, rint)
OBK_FUNCTION(trunc, truncf, trunc)
OBK_FUNCTION(sqrt, sqrtf, sqrt)
OBK_FUNCTION(log1p, log1pf, log1p)
OBK_FUNCTION(expm1, expm1f, expm1)
OBK_FUNCTION(asin, asinf, asin)
OBK_FUNCTION(acos, acosf, acos)
OBK_FUNCTION(atan, atanf, atan)
OBK_FUNCTION(sinh, sinhf, sinh)
OBK_FUNCTION(cosh, coshf, cosh)
OBK_FUNCTION(asinh, asinhf, asinh)
OBK_FUNCTION(acosh, acoshf, acosh)
OBK_FUNCTION(atanh, atanhf, atanh) static inline float sigmoid_of(float a) {
  const float e = ::expf(-fabsf(a)), y = 1.0f / (1.0f + e);
  return a < 0.0f ? e * y : y; /* NaN takes the second */
}
/* 1 + erf(a), of which GELU is made: erfc(|a|) is 2 to the power of a polynomial in |a|, fitted to
 * 5e-6 of erfc for |a| up to 4.3, where it is 1e-9; beyond, it keeps falling. No branch, and one
 * function of the special units; for results of 16 bits it is enough: they are rounded a hundred
 * times as coarsely. */
static inline float one_plus_erf(float a) {
  const float x = fabsf(a);
  float q = fmaf(-2.07617415e-5f, x, 4.92825967e-4f);
  q = fmaf(q, x, -5.26403199e-3f), q = fmaf(q, x, 3.40320005e-2f), q = fmaf(q, x, -0.152622631f);
  q = fmaf(q, x, -0.916928513f), q = fmaf(q, x, -1.62811489f), q = fmaf(q, x, 4.70712428e-6f);
  q = exp2_approx(q);
  return a < 0.0f ? q : 2.0f - q; /* NaN takes the second */
}
/* e^a, to 2^-22 and, of |a|, 2^-23 of itself; below the least normal number 0. */
static inline float exp_approx(float a) { return exp2_approx(a * 1.44269504f); }
/* What many are divided by: a product with its inverse, to 2^-22 of itself, 2^-21 where the inverse
 * is no normal number. An inverse that no float holds is that of 2^64 times as much. */
struct Divisor {
  float inverse;
  bool tiny;
};
static inline Divisor divisor(float of) {
  const bool tiny = fabsf(of) < 0x1p-126f;
  return {1.0f / (tiny ? of * 0x1p64f : of), tiny};
}
static inline float div_approx(float a, const Divisor& by) {
  return (by.tiny ? a * 0x1p64f : a) * by.inverse;
}
static inline double sigmoid_of(double a) { return 1.0 / (1.0 + ::exp(-a)); }
static inline float pow_of(float a, float b) { return ::powf(a, b); }
static inline double pow_of(double a, double b) { return ::pow(a, b); }
static inline float fmod_of(float a, float b) { return ::fmodf(a, b); }
static inline double fmod_of(double a, double b) { return ::fmod(a, b); }
static inline float atan2_of(float a, float b) { return ::atan2f(a, b); }
static inline double atan2_of(double a, double b) { return ::atan2(a, b); }

}  // namespace obk

#endif

/* kernels/cuda/gemm_long.cuh — a tile of a known shape with 49 to 64 rows by wgmma, whatever its k
 * and to 160 columns: both operands are streamed, so that many rows are read for few bytes.
 *
 *   if constexpr (long_fits<S>()) fixed_long_tile<bf16, S>(g)      S as in gemm_fixed.cuh
 *
 * Only in functions that are part of their kernel: the assembler serialises wgmma in called ones.
 * The order of the sums is that of gemm_wide.cuh: the first warpgroup sums the k-steps 0 and 1 of
 * each 64, each for itself, the second the steps 2 and 3; S::kParts of k are added in order. Rows
 * come by asynchronous copies in stages of one or two blocks of 64 k, weights by the ring. The
 * products of a stage are under way while a later one is asked for; what a stage held is refilled
 * two stages after.
 *
 * A stage is asked for, waited for and fenced by one warp: the fence before wgmma waits for all
 * copies of its thread. With threads that shared each stage, each stage took a way to the second-level
 * cache and back: 390 ns on an H200. */
#ifndef OBK_GEMM_LONG_CUH
#define OBK_GEMM_LONG_CUH

#include "gemm_wide.cuh"

namespace obk {

/* Stages of so many chunks; so many of them have a place in shared memory. */
template <typename S>
struct LongShape {
  static constexpr int kStage = gemm_long_stage(S::kGroups, S::kChunks);
  static constexpr int kStages = S::kChunks / kStage, kOfPart = kStages / S::kParts;
  static constexpr int kBlock = 8192, kBytes = kStage * kBlock; /* 64 rows by 64 k */
  static constexpr int kPlaces = gemm_long_places(S::kGroups, S::kChunks);
  static constexpr int kAhead = kPlaces < kStages ? kPlaces - 2 : kStages; /* stages asked for */
};

template <typename S>
static constexpr bool long_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WIDE_TILES
  return S::kRows > 48 && S::kRows <= 64 && !S::kPanel && S::kGroups >= 6 &&
         S::kGroups <= kLongColumns / 8 && S::kColumns % 2 == 0 &&
         S::kPitchC % 2 == 0 && S::kK % 8 == 0 && S::kPitchA % 8 == 0 &&
         LongShape<S>::kStages % S::kParts == 0;
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* Rows of a matrix: this lane's 16 bytes of each 64 k, of every fourth row. */
template <typename S>
struct LongRows {
  const char* from;
  int last;

  __device__ __forceinline__ explicit LongRows(const ObkGemm& g)
      : from((const char*)g.a + threadIdx.x % 8 * 16), last((int)g.m - 1) {}
  struct Chunk {
    int64_t skip;
    bool there;
  };
  __device__ __forceinline__ Chunk chunk(int c) const {
    return {(int64_t)c * 128, c * 64 + (int)(threadIdx.x % 8) * 8 < S::kK};
  }
  __device__ __forceinline__ void copy(uint32_t to, int row, const Chunk& c) const {
    const char* at = from + (int64_t)min(row, last) * (S::kPitchA * 2);
    if (S::kK % 64 == 0)
      copy16(to, at + c.skip);
    else /* the rest becomes zero */
      copy16_partly(to, c.there ? at + c.skip : at, c.there ? 16 : 0);
  }
};

/* C, m rows of S::kColumns in shared memory, from rows and a tile's packed weights; `work`: the
 * stages' place, a multiple of 1024. */
template <bool kBfloat, typename S, typename Rows>
static __device__ __forceinline__ void long_tile(const Rows& rows, const char* weights,
                                                 uint32_t work, uint32_t c_at, int m) {
  using L = LongShape<S>;
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  FixedRing ring;
  ring.look();
  const int warp = same_in_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
  const uint32_t to = work + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
  int wanted = 0, owner = 0; /* the stage that is asked for next, and its place and warp */
  auto bring = [&] {
    if (wanted < L::kStages && warp == owner) {
#pragma unroll
      for (int c = 0; c < L::kStage; ++c) {
        const uint32_t at = to + owner * L::kBytes + c * L::kBlock;
        const auto chunk = rows.chunk(wanted * L::kStage + c);
#pragma unroll
        for (int i = 0; i < 16; ++i)
          rows.copy((at ^ (i & 1 ? 64 : 0)) + i * 512, lane / 8 + 4 * i, chunk);
      }
      copy16_commit();
    }
    ++wanted, owner = owner + 1 == L::kPlaces ? 0 : owner + 1;
  };
#pragma unroll 1
  for (int s = 0; s < L::kAhead; ++s) bring();
  const WeightPages range = WeightPages::of_tile(weights, S::kGroups, S::kChunks);
  ring.open(range);
  int oldest = ring.slot, given = 0; /* the page that is given back next; how many were */
  uint32_t oldest_turn = ring.turn;
  auto give_back = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.bars + 8 * (ring.pages + oldest));
    const uint32_t full = ring.bars + 8 * oldest, slot = oldest, turn = oldest_turn ^ 1;
    if (++oldest == ring.pages) oldest = 0, oldest_turn ^= 1;
    ++given;
    if (threadIdx.x == 224 && given - 1 + ring.pages < S::kPages)
      ask_page_here(ring.at + slot * WeightPages::kPageBytes, full, full + 8 * ring.pages, turn,
                    range, given - 1 + ring.pages);
  };
  const int part = same_in_warp(threadIdx.x / 128);
  const uint64_t x0 = matrix_at(same_in_warp(work) + part * 64, 1024),
                 y0 = matrix_at(part * 64, 1024);
  float sum[kN / 2], odd[kN / 2];
  float all[S::kParts > 1 ? kHalf * 4 : 1]; /* this warpgroup's half */
  uint64_t x = x0, y = 0;
  int in_page = 0, s = 0, place = 0;
#pragma unroll 1
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
#pragma unroll 1
    for (int end = s + L::kOfPart; s < end; ++s) {
      if (warp == place) copy16_wait<0>(), fence_async_shared();
      __syncthreads(); /* it is there, and all have seen the end of the one before the last */
      uint64_t at[L::kStage];
#pragma unroll
      for (int c = 0; c < L::kStage; ++c) {
        if (in_page == 0) {
          y = y0 + (same_in_warp(ring.take()) >> 4);
          if (++ring.slot == ring.pages) ring.slot = 0, ring.turn ^= 1;
        }
        at[c] = y, y += S::kGroups * 64;
        in_page = in_page + 1 == S::kPage ? 0 : in_page + 1;
      }
      wgmma_begin();
#pragma unroll
      for (int c = 0; c < L::kStage; ++c) {
        Wgmma<kN, kBfloat>::multiply(sum, x + c * (L::kBlock >> 4), at[c]);
        Wgmma<kN, kBfloat>::multiply(odd, x + c * (L::kBlock >> 4) + 2, at[c] + 2);
      }
      wgmma_commit();
      if (L::kPlaces < L::kStages) bring();
      wgmma_wait<1>();
      if (given < s * L::kStage / S::kPage) give_back(); /* all products of the page have ended */
      place = place + 1 == L::kPlaces ? 0 : place + 1;
      x = place == 0 ? x0 : x + (L::kBytes >> 4);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
    wide_add<S, kHalf, kN>(sum, part, c_at, m);
    if (S::kParts > 1) {
#pragma unroll
      for (int e = 0; e < kHalf * 4; ++e) {
        const int right = kHalf * 4 + e < kN / 2 ? kHalf * 4 + e : e;
        const float mine = part == 0 ? sum[e] : sum[right];
        all[e] = p == 0 ? mine : all[e] + mine;
      }
    }
  }
  while (given < S::kPages) give_back();
  if (S::kParts > 1) {
#pragma unroll
    for (int e = 0; e < kHalf * 4; ++e) {
      if (part == 0)
        sum[e] = all[e];
      else if (kHalf * 4 + e < kN / 2)
        sum[kHalf * 4 + e] = all[e];
    }
  }
  wide_give<S, kHalf, kN>(sum, part, c_at, m);
  ring.close();
  __syncthreads();
}

template <bool kBfloat, typename S>
static __device__ __forceinline__ void fixed_long_tile(const ObkGemm& g) {
  const char* weights = (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024);
  long_tile<kBfloat, S>(LongRows<S>(g), weights, (shared_address(g.scratch) + 1023) & ~1023u,
                        shared_address(g.c), (int)g.m);
}

#endif

}  // namespace obk

#endif

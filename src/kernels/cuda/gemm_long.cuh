/* kernels/cuda/gemm_long.cuh — a tile of a known shape with 49 to 64 rows by wgmma, whatever its k and
 * to 160 columns: both operands are streamed, so that many rows are read for few bytes.
 *
 *   if constexpr (long_fits<S>()) fixed_long_tile<bf16, S>(g)      S as in gemm_fixed.cuh
 *
 * Only in functions that are part of their kernel: the assembler serialises wgmma in called ones. The
 * order of the sums is that of gemm_wide.cuh: the first warpgroup sums the k-steps 0 and 1 of each
 * 64, each for itself, the second the steps 2 and 3. Rows of A come by asynchronous copies in stages
 * of some blocks of 64 k, weights by the ring. The products of a stage are under way while the
 * threads ask for a later one; what a stage held is refilled two stages after. */
#ifndef OBK_GEMM_LONG_CUH
#define OBK_GEMM_LONG_CUH

#include "gemm_wide.cuh"

namespace obk {

/* Stages of so many chunks; so many of them have a place in shared memory. */
template <typename S>
struct LongShape {
  static constexpr int kStage = gemm_long_stage(S::kGroups, S::kChunks);
  static constexpr int kStages = S::kChunks / kStage;
  static constexpr int kBlock = 8192, kBytes = kStage * kBlock; /* 64 rows by 64 k */
  static constexpr int kPlaces = gemm_long_places(S::kGroups, S::kChunks);
  static constexpr int kAhead = kPlaces < kStages ? kPlaces - 2 : kStages; /* stages asked for */
};

template <typename S>
static constexpr bool long_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WIDE_TILES
  return S::kRows > 48 && S::kRows <= 64 && !S::kPanel && S::kGroups >= 6 && S::kGroups <= kLongColumns / 8 &&
         S::kColumns % 2 == 0 && S::kPitchC % 2 == 0 && S::kK % 8 == 0 && S::kPitchA % 8 == 0;
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

template <bool kBfloat, typename S>
static __device__ __forceinline__ void fixed_long_tile(const ObkGemm& g) {
  using L = LongShape<S>;
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  FixedRing ring;
  ring.look();
  const int piece = threadIdx.x % 8, r = threadIdx.x / 8, last = (int)g.m - 1;
  const char* from = (const char*)g.a + piece * 16 + (int64_t)min(r, last) * (S::kPitchA * 2);
  const char* from32 = (const char*)g.a + piece * 16 + (int64_t)min(r + 32, last) * (S::kPitchA * 2);
  const uint32_t to = work + r * 128 + ((piece ^ (r & 7)) << 4);
  uint32_t place = 0; /* of the stage that is asked for next */
  int wanted = 0;
  auto bring = [&] {
    if (wanted < L::kStages) {
#pragma unroll
      for (int c = 0; c < L::kStage; ++c) {
        const int chunk = wanted * L::kStage + c;
        const uint32_t at = to + place + c * L::kBlock;
        if (S::kK % 64 != 0) {
          const uint32_t bytes = chunk * 64 + piece * 8 < S::kK ? 16 : 0; /* the rest becomes zero */
          copy16_partly(at, bytes ? from + (int64_t)chunk * 128 : from, bytes);
          copy16_partly(at + 4096, bytes ? from32 + (int64_t)chunk * 128 : from32, bytes);
        } else {
          copy16(at, from + (int64_t)chunk * 128);
          copy16(at + 4096, from32 + (int64_t)chunk * 128);
        }
      }
      place = place + L::kBytes == L::kPlaces * L::kBytes ? 0 : place + L::kBytes;
    }
    ++wanted;
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
#pragma unroll
  for (int s = 0; s < L::kAhead; ++s) bring();
  const WeightPages range = WeightPages::of_tile(
      (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024), S::kGroups, S::kChunks);
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
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
  uint64_t x = x0, y = 0;
  int in_page = 0;
#pragma unroll 1
  for (int s = 0; s < L::kStages; ++s) {
    copy16_wait<L::kAhead - 1>();
    fence_async_shared(); /* own copies before anybody's wgmma */
    __syncthreads();      /* and all have seen the end of the stage before the last */
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
    if (L::kPlaces < L::kStages)
      bring();
    else
      copy16_commit();
    wgmma_wait<1>();
    if (given < s * L::kStage / S::kPage) give_back(); /* all products of the page have ended */
    x = (s + 1) % L::kPlaces == 0 ? x0 : x + (L::kBytes >> 4);
  }
  wgmma_wait<0>();
  while (given < S::kPages) give_back();
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
  wide_join<S, kHalf, kN>(sum, part, shared_address(g.c), (int)g.m);
  ring.close();
  __syncthreads();
}

#endif

}  // namespace obk

#endif

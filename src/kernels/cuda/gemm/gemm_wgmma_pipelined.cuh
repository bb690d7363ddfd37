/* kernels/cuda/gemm/gemm_wgmma_pipelined.cuh — a tile of a known shape with 49 to 64 rows by wgmma,
 * whatever its k and to 160 columns: both operands are pipelined, so that many rows are read for
 * few bytes.
 *
 *   if constexpr (wgmma_pipelined_fits<S>()) fixed_wgmma_pipelined_tile<bf16, S>(g)      S as in
 * gemm_fixed.cuh
 *
 * Only in functions that are part of their kernel: the assembler serialises wgmma in called ones.
 * The order of the sums is that of gemm_wgmma.cuh: the first warpgroup sums the k-steps 0 and 1 of
 * each 64, each for itself, the second the steps 2 and 3; S::kSplitK of k are added in order. Rows
 * come by asynchronous copies in stages of one or two blocks of 64 k and go to registers, weights
 * by the ring. While the products of a stage are under way, the rows of the next are read and a
 * later stage is requested.
 *
 * Rows go through registers because wgmma reads shared memory by TMA's path: what
 * threads copied there would have to be fenced first, and the fence waits for all copies of its
 * thread, those of later stages too. */
#ifndef OBK_GEMM_WGMMA_PIPELINED_CUH
#define OBK_GEMM_WGMMA_PIPELINED_CUH

#include "gemm/gemm_wgmma.cuh"

namespace obk {

/* Stages of so many chunks; so many of them have a place in shared memory. */
template <typename S>
struct WgmmaPipelinedShape {
  static constexpr int kStage = gemm_wgmma_stage(S::kGroups, S::kChunks);
  static constexpr int kStages = S::kChunks / kStage, kOfSplit = kStages / S::kSplitK;
  static constexpr int kBlock = 8192, kBytes = kStage * kBlock; /* 64 rows by 64 k */
  static constexpr int kPlaces = gemm_wgmma_places(S::kGroups, S::kChunks);
  static constexpr int kAhead = kPlaces < kStages ? kPlaces - 1 : kStages; /* stages requested */
};

template <typename S>
static constexpr bool wgmma_pipelined_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WGMMA_TILES
  return S::kRows > 48 && S::kRows <= 64 && S::kGroups >= 4 && S::kGroups <= kWgmmaColumns / 8 &&
         S::kColumns % 2 == 0 && S::kPitchC % 2 == 0 && S::kK % 8 == 0 && S::kPitchA % 8 == 0 &&
         S::kChunks % S::kSplitK == 0 && WgmmaPipelinedShape<S>::kStages % S::kSplitK == 0;
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* Rows of a matrix: what a thread copies of rows threadIdx.x / 8 and 32 further. */
template <typename S>
struct WgmmaPipelinedRows {
  const char *from, *from32;

  __device__ __forceinline__ explicit WgmmaPipelinedRows(const ObkGemm& g) {
    const int piece = threadIdx.x % 8, r = threadIdx.x / 8, last = (int)g.m - 1;
    from = (const char*)g.a + piece * 16 + (int64_t)min(r, last) * (S::kPitchA * 2);
    from32 = (const char*)g.a + piece * 16 + (int64_t)min(r + 32, last) * (S::kPitchA * 2);
  }
  __device__ __forceinline__ void copy(uint32_t at, int chunk) const {
    const int piece = threadIdx.x % 8;
    if (S::kK % 64 != 0) {
      const uint32_t bytes = chunk * 64 + piece * 8 < S::kK ? 16 : 0; /* the rest becomes zero */
      copy16_partly(at, bytes ? from + (int64_t)chunk * 128 : from, bytes);
      copy16_partly(at + 4096, bytes ? from32 + (int64_t)chunk * 128 : from32, bytes);
    } else {
      copy16(at, from + (int64_t)chunk * 128);
      copy16(at + 4096, from32 + (int64_t)chunk * 128);
    }
  }
};

/* `rows` copies blocks of 64 k of the tile's rows; `weights`: the tile's own; `work`: a multiple of
 * 1024 in shared memory; `c`: where the sums go, `m` rows of them. */
template <bool kBfloat, typename S, typename Rows>
static __device__ __forceinline__ void wgmma_pipelined_tile(const Rows& rows_of,
                                                            const char* weights, uint32_t work,
                                                            uint32_t c_at, int m) {
  using L = WgmmaPipelinedShape<S>;
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  FixedRing ring;
  ring.look();
  const int piece = threadIdx.x % 8, r = threadIdx.x / 8;
  const uint32_t to = work + r * 128 + ((piece ^ (r & 7)) << 4);
  uint32_t place = 0; /* of the stage that is requested next */
  int wanted = 0;
  auto bring = [&] {
    if (wanted < L::kStages) {
#pragma unroll
      for (int c = 0; c < L::kStage; ++c)
        rows_of.copy(to + place + c * L::kBlock, wanted * L::kStage + c);
      place = place + L::kBytes == L::kPlaces * L::kBytes ? 0 : place + L::kBytes;
    }
    ++wanted;
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
#pragma unroll
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
      load_page_here(ring.at + slot * WeightPages::kPageBytes, full, full + 8 * ring.pages, turn,
                     range, given - 1 + ring.pages);
  };
  const int part = same_in_warp(threadIdx.x / 128), lane = threadIdx.x % 32;
  const uint64_t y0 = matrix_at(part * 64, 1024);
  /* This lane's share of ldmatrix: 16 rows of the warp, the warpgroup's first k-step; the second
   * lies at a place that differs in one bit. */
  const uint32_t x0 = work + (threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 +
                      (((part * 4 + lane / 16) ^ (lane & 7)) << 4);
  float sum[kN / 2], odd[kN / 2];
  float all[S::kSplitK > 1 ? kHalf * 4 : 1]; /* this warpgroup's half of the parts before */
  uint32_t rows[2][2 * L::kStage][4];        /* of two stages */
  uint32_t x = x0;
  uint64_t y = 0;
  int in_page = 0, s = 0, left = L::kPlaces;
  auto multiply = [&](uint32_t(&a)[2 * L::kStage][4]) {
    copy16_wait<L::kAhead - 1>();
    __syncthreads(); /* the stage is there, and all have read the one before */
    uint64_t at[L::kStage];
#pragma unroll
    for (int c = 0; c < L::kStage; ++c) {
      load_matrices(a[2 * c], x + c * L::kBlock);
      load_matrices(a[2 * c + 1], (x ^ 32) + c * L::kBlock);
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
      Wgmma<kN, kBfloat>::multiply_rows(sum, a[2 * c], at[c]);
      Wgmma<kN, kBfloat>::multiply_rows(odd, a[2 * c + 1], at[c] + 2);
    }
    wgmma_commit();
    if (L::kPlaces < L::kStages)
      bring();
    else
      copy16_commit();
    wgmma_wait<1>();
    if (given < s * L::kStage / S::kPage) give_back(); /* all products of the page have ended */
    x = --left == 0 ? x0 : x + L::kBytes;
    if (left == 0) left = L::kPlaces;
    ++s;
  };
#pragma unroll 1
  for (int p = 0; p < S::kSplitK; ++p) {
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
#pragma unroll 1
    for (int pair = 0; pair < L::kOfSplit / 2; ++pair) multiply(rows[0]), multiply(rows[1]);
    if (L::kOfSplit % 2) { /* the assembler knows rows by their place in a loop */
      wgmma_wait<0>();
      multiply(rows[0]);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
    wgmma_add<S, kHalf, kN>(sum, part, c_at, m);
    if constexpr (S::kSplitK > 1) wgmma_keep<kHalf, kN>(all, sum, part, p == 0);
  }
  while (given < S::kPages) give_back();
  if constexpr (S::kSplitK > 1) wgmma_restore<kHalf, kN>(all, sum, part);
  wgmma_store<S, kHalf, kN>(sum, part, c_at, m);
  ring.close();
  __syncthreads();
}

template <bool kBfloat, typename S>
static __device__ __forceinline__ void fixed_wgmma_pipelined_tile(const ObkGemm& g) {
  wgmma_pipelined_tile<kBfloat, S>(
      WgmmaPipelinedRows<S>(g), (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024),
      (shared_address(g.scratch) + 1023) & ~1023u, shared_address(g.c), (int)g.m);
}

#endif

}  // namespace obk

#endif

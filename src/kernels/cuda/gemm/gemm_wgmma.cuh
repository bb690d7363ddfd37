/* kernels/cuda/gemm/gemm_wgmma.cuh — a tile of a known shape with 49 to 64 rows, by wgmma: half the
 * reads of shared memory that mma.sync needs, and threads that copy while the tensor cores
 * multiply.
 *
 *   if constexpr (wgmma_fits<S>()) fixed_wgmma_tile<bf16, S>(g)      S as in gemm_fixed.cuh
 *
 * Only in functions that are part of their kernel: the assembler serialises wgmma in called ones.
 * Rows of C are the 64-row side. The first warpgroup sums the k-steps 0 and 1 of each 64, each for
 * itself, the second the steps 2 and 3: (0 + 1) + (2 + 3), the order, and the bits, of
 * gemm_mma.cuh. At the end each warpgroup takes half of the columns. All of k is requested at once.
 */
#ifndef OBK_GEMM_WGMMA_CUH
#define OBK_GEMM_WGMMA_CUH

#include "core/wgmma.cuh"
#include "gemm/gemm_fixed.cuh"

namespace obk {

template <typename S>
static constexpr bool wgmma_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WGMMA_TILES
  return S::kRows > 48 && S::kRows <= 64 && S::kSplitK == 1 && S::kGroups <= kWgmmaColumns / 8 &&
         S::kColumns % 2 == 0 && S::kPitchC % 2 == 0 && S::kBlock * S::kChunks <= OBK_GEMM_SMEM_A;
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* A value that a warp's lanes all hold, known to be so. */
static __device__ __forceinline__ uint32_t same_in_warp(uint32_t v) {
  return __shfl_sync(0xffffffffu, v, 0);
}

/* The first of this thread's two rows of a warpgroup's sums, eight apart, and of its pairs of
 * columns. */
static __device__ __forceinline__ int wgmma_row() {
  return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
}
static __device__ __forceinline__ int wgmma_column() { return threadIdx.x % 4 * 2; }

/* f(address, first, second) for the pairs of columns 8 * first .. 8 * end of this warpgroup's sums,
 * whose two rows begin at `upper` and `lower`; of the lower row g. */
template <typename S, int kFirst, int kEnd, int kN, typename F, typename G>
static __device__ __forceinline__ void wgmma_pairs(float (&sum)[kN / 2], uint32_t upper,
                                                   uint32_t lower, int rows, F&& f, G&& g) {
  const int row = wgmma_row(), column = wgmma_column();
#pragma unroll
  for (int j = kFirst; j < kEnd; ++j)
    if (S::kColumns >= 8 * j + 8 || column + 8 * j < S::kColumns) {
      if (S::kRows % 64 == 0 || row < rows) f(upper + 32 * j, sum[4 * j], sum[4 * j + 1]);
      if (S::kRows % 64 == 0 || row + 8 < rows) g(lower + 32 * j, sum[4 * j + 2], sum[4 * j + 3]);
    }
}
template <typename S, int kFirst, int kEnd, int kN, typename F>
static __device__ __forceinline__ void wgmma_each(float (&sum)[kN / 2], uint32_t c, int rows,
                                                  F&& f) {
  const uint32_t at = c + 4 * (wgmma_row() * S::kPitchC + wgmma_column());
  wgmma_pairs<S, kFirst, kEnd, kN>(sum, at, at + 32 * S::kPitchC, rows, f, f);
}

/* `sum` = the first warpgroup's sums + the second's: each of them has half of the columns. */
template <typename S, int kHalf, int kN>
static __device__ __forceinline__ void wgmma_add(float (&sum)[kN / 2], int part, uint32_t at,
                                                 int rows) {
  auto give = [](uint32_t to, float v, float w) { store_shared8(to, v, w); };
  auto add = [](uint32_t from, float& v, float& w) {
    float a, b;
    load_shared8(a, b, from);
    v += a, w += b;
  };
  auto add_to = [](uint32_t from, float& v, float& w) { /* the other's steps come first */
                                                        float a, b;
                                                        load_shared8(a, b, from);
                                                        v = a + v, w = b + w;
  };
  if (part == 0)
    wgmma_each<S, kHalf, S::kGroups, kN>(sum, at, rows, give);
  else
    wgmma_each<S, 0, kHalf, kN>(sum, at, rows, give);
  __syncthreads();
  if (part == 0)
    wgmma_each<S, 0, kHalf, kN>(sum, at, rows, add);
  else
    wgmma_each<S, kHalf, S::kGroups, kN>(sum, at, rows, add_to);
}
/* A warpgroup's half of the sums to C. */
template <typename S, int kHalf, int kN>
static __device__ __forceinline__ void wgmma_store(float (&sum)[kN / 2], int part, uint32_t at,
                                                   int rows) {
  auto give = [](uint32_t to, float v, float w) { store_shared8(to, v, w); };
  if (part == 0)
    wgmma_each<S, 0, kHalf, kN>(sum, at, rows, give);
  else
    wgmma_each<S, kHalf, S::kGroups, kN>(sum, at, rows, give);
}

/* Parts of a long sum: this warpgroup's half of one is added to those before it, in order; and at
 * the end put where wgmma_store takes it. */
template <int kHalf, int kN>
static __device__ __forceinline__ void wgmma_keep(float (&all)[kHalf * 4],
                                                  const float (&sum)[kN / 2], int part,
                                                  bool first) {
#pragma unroll
  for (int e = 0; e < kHalf * 4; ++e) {
    const int right = kHalf * 4 + e < kN / 2 ? kHalf * 4 + e : e;
    const float mine = part == 0 ? sum[e] : sum[right];
    all[e] = first ? mine : all[e] + mine;
  }
}
template <int kHalf, int kN>
static __device__ __forceinline__ void wgmma_restore(const float (&all)[kHalf * 4],
                                                     float (&sum)[kN / 2], int part) {
#pragma unroll
  for (int e = 0; e < kHalf * 4; ++e) {
    if (part == 0)
      sum[e] = all[e];
    else if (kHalf * 4 + e < kN / 2)
      sum[kHalf * 4 + e] = all[e];
  }
}

/* Rows of A that all threads copy; others were requested before (rows.cuh). */
struct CopiedRows {
  static constexpr bool kAsync = false;
};

template <bool kBfloat, typename S, typename Rows = CopiedRows>
static __device__ __forceinline__ void fixed_wgmma_tile(const ObkGemm& g) {
  constexpr bool kAsync = Rows::kAsync;
  constexpr int kN = S::kGroups * 8, kHalf = (S::kGroups + 1) / 2;
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  FixedRing ring;
  ring.look();
  uint32_t rows_turn = 0;
  if constexpr (kAsync) {
    rows_turn = Rows::turn();
  } else {
    FixedTile<S> tile;
    tile.find_rows(g, work);
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      tile.copy(pass, pass * S::kStep * S::kBlock);
      if ((pass + 1) % S::kGroupPasses == 0 || pass + 1 == S::kPasses) copy16_commit();
    }
  }
  const WeightPages range = WeightPages::of_tile(
      (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024), S::kGroups, S::kChunks);
  ring.open(range);
  int oldest = ring.slot, given = 0; /* the page that is given back next; how many were */
  uint32_t oldest_turn = ring.turn;
  const int part = same_in_warp(threadIdx.x / 128);
  const uint64_t x = matrix_at(same_in_warp(work) + part * 64, 1024),
                 y0 = matrix_at(part * 64, 1024);
  float sum[kN / 2], odd[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
  auto give_back = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.bars + 8 * (ring.pages + oldest));
    if (++oldest == ring.pages) oldest = 0, oldest_turn ^= 1;
    ++given;
  };
  uint64_t y = 0;
#pragma unroll
  for (int c = 0; c < S::kChunks; ++c) {
    if constexpr (kAsync) {
      if (c % Rows::kTogether == 0) Rows::wait(c / Rows::kTogether, rows_turn);
    } else if (c % S::kGroupChunks == 0) {
      wait_for_copies(S::kCopyGroups - 1 - c / S::kGroupChunks);
      fence_async_shared(); /* own copies before anybody's wgmma */
      __syncthreads();
    }
    if (c % S::kPage == 0) {
      y = y0 + (same_in_warp(ring.take()) >> 4);
      if (++ring.slot == ring.pages) ring.slot = 0, ring.turn ^= 1;
    }
    wgmma_begin();
    const uint64_t x_c = x + c * (S::kBlock >> 4), y_c = y + c % S::kPage * (S::kGroups * 64);
    Wgmma<kN, kBfloat>::multiply(sum, x_c, y_c);
    Wgmma<kN, kBfloat>::multiply(odd, x_c + 2, y_c + 2);
    wgmma_commit();
    /* The page before has been read when no more than this page's products are under way. */
    if (c % S::kPage == S::kPage - 1 && c >= S::kPage && given + ring.pages < S::kPages) {
      wgmma_wait<S::kPage>();
      const uint32_t full = ring.bars + 8 * oldest, place = oldest, turn = oldest_turn ^ 1;
      give_back();
      if (threadIdx.x == 224)
        load_page_here(ring.at + place * WeightPages::kPageBytes, full, full + 8 * ring.pages, turn,
                       range, given - 1 + ring.pages);
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
  wgmma_add<S, kHalf, kN>(sum, part, shared_address(g.c), (int)g.m);
  wgmma_store<S, kHalf, kN>(sum, part, shared_address(g.c), (int)g.m);
  while (given < S::kPages) give_back(); /* nobody waits for these places before the next tile */
  ring.close();
  if constexpr (kAsync) Rows::read(rows_turn);
  __syncthreads();
}

#endif

}  // namespace obk

#endif

/* kernels/cuda/gemm_few.cuh — a tile of a known shape with one to eight rows, whose k is long: it
 * waits for nothing but its weights, so each page is left as soon as it is read.
 *
 *   if constexpr (few_fits<S>()) few_tile<bf16, S>(g)      S as in gemm_fixed.cuh
 *
 * Columns of C are the 16-row side of mma.sync, rows of C its 8-column side. Each of the four
 * k-steps of 64 has a sum of its own, by two warps that share the columns; (0 + 1) + (2 + 3) at the
 * end: the order, and the bits, of gemm_mma.cuh. All of A comes first. A warp reads its part of a
 * page into registers, all of it before the first product, and gives the page back; products that
 * follow one another wait for one another only. The warps take turns in asking for later pages,
 * each for the place of the page before the last, which all have left; when the tile's own are
 * asked for, it goes on with those of the next tile (ring_after), so that far memory has something
 * to bring while sums are joined and the next tile begins. */
#ifndef OBK_GEMM_FEW_CUH
#define OBK_GEMM_FEW_CUH

#include "gemm_fixed.cuh"

namespace obk {

template <typename S>
struct FewShape {
  /* Of 16 columns: a tile's, a warp's. */
  static constexpr int kAll = S::kGroups / 2, kBlocks = (kAll + 1) / 2;
  static constexpr int kLast = S::kChunks - (S::kPages - 1) * S::kPage; /* chunks of that page */
  static constexpr int kPlane = S::kRows * S::kPlanePitch * 4;
};

template <typename S>
static constexpr bool few_fits() {
  return S::kByPages && !S::kPanel && S::kParts == 1 &&
         S::kOperands + 4 * FewShape<S>::kPlane <= OBK_GEMM_PANEL;
}

template <typename S>
struct FewTile {
  using F = FewShape<S>;
  uint32_t a_at, w_at, last_at; /* this lane's share of ldmatrix: in a chunk of A, in a page */
  float sum[F::kBlocks][4];

  static __device__ __forceinline__ int step() { return threadIdx.x / 64; }
  static __device__ __forceinline__ int first16() { return threadIdx.x / 32 % 2 * F::kBlocks; }

  __device__ __forceinline__ void prepare(uint32_t work) {
    const int lane = threadIdx.x % 32, r = lane & 7, row = min(r, S::kLines - 1);
    a_at = work + lane / 16 * S::kBlock + row * 128 +
           (((step() * 2 + (lane / 8 & 1)) ^ (row & 7)) << 4);
    const uint32_t in_block =
        (lane / 8 & 1) * 1024 + r * 128 + (((step() * 2 + lane / 16) ^ r) << 4);
    w_at = in_block + first16() * 2048;
    last_at = in_block + min(first16() + F::kBlocks - 1, F::kAll - 1) * 2048;
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[b][e] = 0;
  }
  /* kCount chunks of a page; `leave` when all of it is in registers. Beyond the last column the
   * last are read again, and their sums go nowhere. */
  template <bool kBfloat, int kCount, typename Leave>
  __device__ __forceinline__ void multiply(uint32_t panel, uint32_t page, Leave&& leave) {
    if (F::kAll == 1 && first16() > 0) return leave();
    uint32_t x[(kCount + 1) / 2][4], w[kCount][F::kBlocks][4];
#pragma unroll
    for (int c = 0; c < kCount; c += 2) {
      const uint32_t from = a_at + panel + c * S::kBlock;
      if (c + 1 < kCount)
        load_matrices(x[c / 2], from);
      else
        load_two_matrices(x[c / 2][0], x[c / 2][1], from);
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int b = 0; b < F::kBlocks; ++b)
        load_matrices(w[c][b], page + c * (S::kGroups * 1024) +
                                   (b + 1 == F::kBlocks ? last_at : w_at + b * 2048));
    leave();
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int b = 0; b < F::kBlocks; ++b)
        mma_16x8x16<kBfloat>(sum[b], w[c][b], x[c / 2][c % 2 * 2], x[c / 2][c % 2 * 2 + 1]);
  }
  /* The warp's sums to its k-step's plane. */
  __device__ __forceinline__ void give(uint32_t planes) const {
    const int lane = threadIdx.x % 32, row = lane % 4 * 2;
    const uint32_t at = planes + step() * F::kPlane +
                        4 * (row * S::kPlanePitch + first16() * 16 + lane / 4);
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b) {
      if (F::kAll % 2 != 0 && first16() + b >= F::kAll) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (row + e % 2 < S::kRows)
          store_shared(at + 4 * (e % 2 * S::kPlanePitch + b * 16 + e / 2 * 8), sum[b][e]);
    }
  }
};

template <bool kBfloat, typename S>
static __device__ __forceinline__ void few_tile(const ObkGemm& g) {
  using F = FewShape<S>;
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  FixedRing ring;
  ring.look();
  {
    FixedTile<S> rows; /* only the way of A's copies */
    rows.find_rows(g, work);
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass)
      rows.copy(pass, pass * S::kStep * S::kBlock);
    copy16_commit();
  }
  const WeightPages range = WeightPages::of_tile(
      (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024), S::kGroups, S::kChunks);
  ring.open(range);
  FewTile<S> tile;
  tile.prepare(work);
  const int warp = threadIdx.x / 32;
  WeightPages after = {};
  int after_pages = 0; /* of the next tile that this one asks for */
  if (kFewRows) after = ring_after();
  if (after.chunks > 0 && S::kPages >= ring.pages) {
    const int per_page = after.chunks_a_page();
    after_pages = min((after.chunks + per_page - 1) / per_page, ring.pages - 2);
  }
  /* Page page - 2 + pages, to the place of page - 2; beyond the last the next tile's. */
  auto ask = [&](int page) {
    const int wanted = page - 2 + ring.pages;
    const bool beyond = wanted >= S::kPages;
    if (page < 2 || (page & 7) != warp) return;
    if (beyond && wanted - S::kPages >= after_pages) return;
    if (threadIdx.x % 32 == 0) {
      const bool same = ring.slot >= 2; /* turn */
      const int place = same ? ring.slot - 2 : ring.slot - 2 + ring.pages;
      const uint32_t full = ring.bars + 8 * place;
      ask_page(ring.at + place * WeightPages::kPageBytes, full, full + 8 * ring.pages,
               same ? ring.turn ^ 1 : ring.turn, beyond ? after : range,
               beyond ? wanted - S::kPages : wanted);
    }
    __syncwarp();
  };
  copy16_wait<0>();
  __syncthreads();
  constexpr int kWholePages = F::kLast == S::kPage ? S::kPages : S::kPages - 1;
  auto leave = [&] { ring.release(); };
#pragma unroll 1
  for (int page = 0; page < kWholePages; ++page) {
    ask(page);
    const uint32_t weights = ring.take();
    tile.template multiply<kBfloat, S::kPage>(page * (S::kPage * S::kBlock), weights, leave);
  }
  if constexpr (kWholePages < S::kPages) {
    ask(kWholePages);
    const uint32_t weights = ring.take();
    tile.template multiply<kBfloat, F::kLast>(kWholePages * (S::kPage * S::kBlock), weights, leave);
  }
  const uint32_t planes = work + S::kOperands;
  tile.give(planes);
  ring.close(after, after_pages);
  __syncthreads();
#pragma unroll
  for (int n = 0; n < fixed_parts(S::kRows * S::kColumns, 256); ++n) {
    const int i = n * 256 + threadIdx.x, row = i / S::kColumns, column = i % S::kColumns;
    if (S::kRows * S::kColumns % 256 != 0 && i >= S::kRows * S::kColumns) break;
    const uint32_t at = planes + 4 * (row * S::kPlanePitch + column);
    float v[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) v[s] = load_shared(at + s * F::kPlane);
    store_shared(shared_address(g.c) + 4 * (row * S::kPitchC + column),
                 (v[0] + v[1]) + (v[2] + v[3]));
  }
  __syncthreads();
}

}  // namespace obk

#endif

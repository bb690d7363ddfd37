/* kernels/cuda/gemm/gemm_skinny.cuh — a tile of a known shape with one to eight rows, whose k is
 * long: it is bound by loading weights, so each page is released as soon as it is read.
 *
 *   if constexpr (skinny_fits<S>()) skinny_tile<bf16, S>(g)      S as in gemm_fixed.cuh
 *
 * Columns of C are the 16-row side of mma.sync, rows of C its 8-column side. Each of the four
 * k-steps of 64 has a sum of its own, by two warps that share the columns; (0 + 1) + (2 + 3) at the
 * end: the order, and the bits, of gemm_mma.cuh. All of A comes first, or lies in shared memory. A
 * warp reads its part of a page into registers, before its products, and gives the page back;
 * products that follow one another wait for one another only. In a dataflow program (dataflow.cuh)
 * another warp loads the pages. Else the warps take turns in loading later pages, each to the place
 * of the page before the last, which all have released; after the tile's own pages come those of
 * the next tile (ring_after), so that HBM is busy while sums are joined and the next tile begins.
 */
#ifndef OBK_GEMM_SKINNY_CUH
#define OBK_GEMM_SKINNY_CUH

#include "gemm/gemm_fixed.cuh"

namespace obk {

template <typename S>
struct SkinnyShape {
  /* Of 16 columns: a tile's, a warp's. */
  static constexpr int kAll = S::kGroups / 2, kBlocks = (kAll + 1) / 2;
  static constexpr int kLast = S::kChunks - (S::kPages - 1) * S::kPage; /* chunks of that page */
  /* Chunks whose operands are read at once. */
  static constexpr int kUnit = kDataflow && S::kPage % 4 == 0 ? 4 : S::kPage,
                       kUnits = S::kPage / kUnit;
  static constexpr int kPlane = S::kRows * S::kPlanePitch * 4;
  /* One row lies in its place already: a chunk of it is a line. */
  static constexpr bool kInPlace = kDataflow && S::kRows == 1 && S::kK % 64 == 0;
};

template <typename S>
static constexpr bool skinny_fits() {
  return (kDataflow ? S::kWhole && S::kSkinny : S::kByPages) && S::kSplitK == 1 &&
         S::kOperands + 4 * SkinnyShape<S>::kPlane <= OBK_GEMM_SMEM_A;
}

template <typename S>
struct SkinnyTile {
  using F = SkinnyShape<S>;
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
  /* This lane's operands of kCount chunks of a page. */
  template <int kCount>
  struct Operands {
    uint32_t x[(kCount + 1) / 2][4], w[kCount][F::kBlocks][4];
  };
  static __device__ __forceinline__ bool idle() { return F::kAll == 1 && first16() > 0; }
  /* Beyond the last column the last are read again, and their sums go nowhere. */
  template <int kCount>
  __device__ __forceinline__ void load(Operands<kCount>& to, uint32_t smem_a, uint32_t page) const {
#pragma unroll
    for (int c = 0; c < kCount; c += 2) {
      const uint32_t from = a_at + smem_a + c * S::kBlock;
      if (c + 1 < kCount)
        load_matrices(to.x[c / 2], from);
      else
        load_two_matrices(to.x[c / 2][0], to.x[c / 2][1], from);
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int b = 0; b < F::kBlocks; ++b)
        load_matrices(to.w[c][b], page + c * (S::kGroups * 1024) +
                                      (b + 1 == F::kBlocks ? last_at : w_at + b * 2048));
  }
  template <bool kBfloat, int kCount>
  __device__ __forceinline__ void multiply(const Operands<kCount>& of) {
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int b = 0; b < F::kBlocks; ++b)
        mma_16x8x16<kBfloat>(sum[b], of.w[c][b], of.x[c / 2][c % 2 * 2],
                             of.x[c / 2][c % 2 * 2 + 1]);
  }
  /* The warp's sums to its k-step's plane. */
  __device__ __forceinline__ void give(uint32_t planes) const {
    const int lane = threadIdx.x % 32, row = lane % 4 * 2;
    const uint32_t at =
        planes + step() * F::kPlane + 4 * (row * S::kPlanePitch + first16() * 16 + lane / 4);
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
static __device__ __forceinline__ void skinny_tile(const ObkGemm& g) {
  using F = SkinnyShape<S>;
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  FixedRing ring;
  ring.look();
  const bool a_is_shared = F::kInPlace || in_shared(g.a);
  if constexpr (!F::kInPlace) {
    FixedTile<S> rows; /* only the way of A's copies */
    rows.find_rows(g, work);
#pragma unroll(S::kUnit == 16 ? S::kPasses : 1)
    for (int pass = 0; pass < S::kPasses; ++pass)
      if (a_is_shared)
        rows.copy_shared(pass, pass * S::kStep * S::kBlock);
      else
        rows.copy(pass, pass * S::kStep * S::kBlock);
    copy16_commit();
  }
  const WeightPages range = WeightPages::of_tile(
      (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024), S::kGroups, S::kChunks);
  ring.open(range);
  SkinnyTile<S> tile;
  tile.prepare(F::kInPlace ? shared_address(g.a) : work);
  const int warp = threadIdx.x / 32;
  WeightPages after = {};
  int after_pages = 0; /* of the next tile that this one requests */
  if (kFewRows) after = ring_after();
  if (after.chunks > 0 && S::kPages >= ring.pages) {
    const int per_page = after.chunks_a_page();
    after_pages = min((after.chunks + per_page - 1) / per_page, ring.pages - 2);
  }
  /* Page page - 2 + pages, to the place of page - 2; beyond the last the next tile's. */
  auto ask = [&](int page) {
    if (kDataflow) return;
    const int wanted = page - 2 + ring.pages;
    const bool beyond = wanted >= S::kPages;
    if (page < 2 || (page & 7) != warp) return;
    if (beyond && wanted - S::kPages >= after_pages) return;
    if (threadIdx.x % 32 == 0) {
      const bool same = ring.slot >= 2; /* turn */
      const int place = same ? ring.slot - 2 : ring.slot - 2 + ring.pages;
      const uint32_t full = ring.bars + 8 * place;
      load_page(ring.at + place * WeightPages::kPageBytes, full, full + 8 * ring.pages,
                same ? ring.turn ^ 1 : ring.turn, beyond ? after : range,
                beyond ? wanted - S::kPages : wanted);
    }
    __syncwarp();
  };
  if (!a_is_shared) copy16_wait<0>();
  if (!F::kInPlace) __syncthreads();
  constexpr int kWholePages = F::kLast == S::kPage ? S::kPages : S::kPages - 1;
  /* Of a dataflow program pages are often there already: operands are read while the products of
   * those before are under way. */
  typedef typename SkinnyTile<S>::template Operands<F::kUnit> Unit;
  Unit even, odd;
  uint32_t weights = 0;
  auto read = [&](int n, Unit& to) {
    const int page = n / F::kUnits, part = n % F::kUnits;
    if (part == 0) ask(page), weights = ring.take();
    tile.template load<F::kUnit>(to, n * (F::kUnit * S::kBlock),
                                 weights + part * (F::kUnit * S::kGroups * 1024));
    if (part == F::kUnits - 1) ring.release();
  };
  constexpr int kAll = kWholePages * F::kUnits;
  if (tile.idle()) {
#pragma unroll 1
    for (int page = 0; page < S::kPages; ++page) ask(page), ring.take(), ring.release();
  } else {
    int end = kAll;
    asm volatile("" : "+r"(end)); /* the loop stays one: unrolled it would be long */
    if constexpr (!kDataflow) {
#pragma unroll 1
      for (int n = 0; n < end; ++n) read(n, even), tile.template multiply<kBfloat, F::kUnit>(even);
    } else {
      if (kAll > 0) read(0, even);
#pragma unroll 1
      for (int n = 0; n < end; n += 2) {
        if (kAll % 2 == 0 || n + 1 < end) read(n + 1, odd);
        tile.template multiply<kBfloat, F::kUnit>(even);
        if (n + 2 < end) read(n + 2, even);
        if (kAll % 2 == 0 || n + 1 < end) tile.template multiply<kBfloat, F::kUnit>(odd);
      }
    }
    if constexpr (kWholePages < S::kPages) {
      ask(kWholePages), weights = ring.take();
      typename SkinnyTile<S>::template Operands<F::kLast> last;
      tile.template load<F::kLast>(last, kWholePages * (S::kPage * S::kBlock), weights);
      ring.release();
      tile.template multiply<kBfloat, F::kLast>(last);
    }
  }
  const uint32_t planes = work + (F::kInPlace ? 0 : S::kOperands);
  tile.give(planes);
  __syncthreads(); /* all have looked at the ring's state */
  ring.close(after, after_pages);
#pragma unroll
  for (int n = 0; n < ceil_div(S::kRows * S::kColumns, 256); ++n) {
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

/* kernels/cuda/conv/conv_wgmma.cuh — a convolution tile of a known shape with 33 to 64 pixels by 32
 * to 160 channels whose part of X fits shared memory, by wgmma: pixels are the 64-row side, read
 * from the patch of conv_fixed.cuh by addresses a lane, so that a tap is an offset; weights come by
 * the ring.
 *
 *   if constexpr (conv_wgmma_fits<ConvFixed<...>>()) conv_wgmma_tile<bf16, ConvFixed<...>>(g)
 *
 * Only in functions that are part of their kernel, as all that takes wgmma. Each of the four
 * k-steps of 64 has a sum of its own, two a warpgroup, as in gemm_wgmma.cuh: the order, and the
 * bits, of conv.cuh. Nothing is waited for in the loop but pages: the patch lies there whole. */
#ifndef OBK_CONV_WGMMA_CUH
#define OBK_CONV_WGMMA_CUH

#include "conv/conv_wgmma_pipelined.cuh"

namespace obk {

template <typename S>
static constexpr bool conv_wgmma_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WGMMA_TILES
  return S::kFit.patched && !S::kThin && conv_wgmma(S::kPixels, S::kChannels);
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* Pages of a range in their order: given back as they were taken, each place requested anew. */
template <int kPages>
struct ConvTurns {
  FixedRing ring;
  WeightPages range;
  int oldest, given, issued; /* places; `given` pages were given back */
  uint32_t issued_turn;

  __device__ __forceinline__ void open(const WeightPages& all) {
    range = all;
    ring.look();
    ring.open(range);
    oldest = issued = ring.slot, issued_turn = ring.turn, given = 0;
  }
  __device__ __forceinline__ uint32_t take() {
    const uint32_t page = ring.take();
    if (++ring.slot == ring.pages) ring.slot = 0, ring.turn ^= 1;
    return page;
  }
  /* A place is requested a page later than it was given back, where there are more than two: then
   * the warp that asks need not wait for the others. */
  __device__ __forceinline__ void give_back() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.bars + 8 * (ring.pages + oldest));
    if (++oldest == ring.pages) oldest = 0;
    ++given;
    const int late = ring.pages > 2 ? 1 : 0, free = given - 1 - late;
    if (free < 0 || free + ring.pages >= kPages) return;
    if (threadIdx.x == 224) {
      const uint32_t full = ring.bars + 8 * issued;
      load_page_here(ring.at + issued * WeightPages::kPageBytes, full, full + 8 * ring.pages,
                     issued_turn ^ 1, range, free + ring.pages);
    }
    if (++issued == ring.pages) issued = 0, issued_turn ^= 1;
  }
};

template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_wgmma_tile(const ObkConv& g) {
  typedef ConvPipelinedShape<S> L;
  constexpr ConvNumbers n = conv_numbers<S>();
  constexpr int kN = S::kChannels, kHalf = (L::kGroups + 1) / 2;
  const uint32_t table = (shared_address(g.scratch) + 127) & ~127u, work = table + n.table_bytes;
  const int column = (int)g.column;
  conv_patch(work, (const char*)g.x, (int)g.row * n.stride_h - n.top,
             (n.one_row ? column : 0) * n.stride_w - n.left, n);
  copy16_commit();
  ConvTurns<L::kPages> turns;
  turns.open(WeightPages::of_tile(
      (const char*)g.weights +
          (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kAtomBytes),
      L::kGroups, S::kChunks));
  conv_table(table, n);
  const int part = same_in_warp(threadIdx.x / 128), lane = threadIdx.x % 32;
  int q = threadIdx.x / 32 % 4 * 16 + lane % 16;
  q = min(q, (int)g.pixels - 1) + (n.one_row ? 0 : column);
  const int row = n.one_row ? 0 : q / S::kOutWidth;
  const uint32_t x =
      work + row * n.row_step + (q - row * S::kOutWidth) * n.pixel_step + lane / 16 * 16;
  const uint64_t y0 = matrix_at(part * 64, 1024);
  uint32_t entries = table + part * 8;
  float sum[kN / 2], odd[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here(), odd[e] = zero_here();
  /* A page's blocks of 64 k are read and multiplied together, where k is whole pages. */
  constexpr int kStep = L::kPage > 1 && S::kChunks % L::kPage == 0 ? L::kPage : 1;
  constexpr int kTurns = S::kChunks / kStep;
  uint32_t rows[2][2 * kStep][4];
  uint64_t y = 0;
  int in_page = 0, block = 0;
  uint32_t places[2 * kStep]; /* where the blocks' steps lie in the patch */
  auto find = [&] {
#pragma unroll
    for (int c = 0; c < kStep; ++c)
      places[2 * c] = load_shared_word(entries + c * 16),
                 places[2 * c + 1] = load_shared_word(entries + c * 16 + 4);
    entries += kStep * 16;
  };
  /* Behind the last step: not an empty register, for that would be written between two products. */
  const uint32_t zeros = work + n.rows * n.row_bytes;
  if (S::kK16 % 4 != 0 && threadIdx.x < 4) store_shared_word(zeros + threadIdx.x * 4, 0);
  auto read = [&](uint32_t(&a)[4], uint32_t entry) {
    load_matrices(a, S::kK16 % 4 != 0 && entry == 0 ? zeros : x + (entry >> 5));
  };
  auto multiply = [&](uint32_t(&a)[2 * kStep][4]) {
#pragma unroll
    for (int k = 0; k < 2 * kStep; ++k) read(a[k], places[k]);
    find(); /* the next blocks', or what lies behind the table */
    if (in_page == 0) y = y0 + (same_in_warp(turns.take()) >> 4);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < kStep; ++c) {
      Wgmma<kN, kBfloat>::multiply_rows(sum, a[2 * c], y);
      Wgmma<kN, kBfloat>::multiply_rows(odd, a[2 * c + 1], y + 2);
      y += L::kGroups * 64;
    }
    wgmma_commit();
    in_page = in_page + kStep == L::kPage ? 0 : in_page + kStep;
    wgmma_wait<1>();
    if (turns.given < block / L::kPage) turns.give_back(); /* its products have ended */
    block += kStep;
  };
  copy16_wait<0>();
  __syncthreads();
  find();
#pragma unroll 1
  for (int pair = 0; pair < kTurns / 2; ++pair) multiply(rows[0]), multiply(rows[1]);
  if (kTurns % 2) { /* the assembler knows rows by their place in a loop */
    wgmma_wait<0>();
    multiply(rows[0]);
  }
  wgmma_wait<0>();
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] += odd[e];
  wgmma_add<L, kHalf, kN>(sum, part, shared_address(g.y), (int)g.pixels);
  while (turns.given < L::kPages) turns.give_back();
  wgmma_store<L, kHalf, kN>(sum, part, shared_address(g.y), (int)g.pixels);
  turns.ring.close();
  __syncthreads();
}

#endif

}  // namespace obk

#endif

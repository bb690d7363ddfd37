/* kernels/cuda/conv/conv_first.cuh — a convolution tile of few channels (a network's first layer)
 * by wgmma: pixels are the 64-row side, a warpgroup's 64 of them; a lane reads its words of a
 * kernel row from the patch into the registers that the tensor cores take.
 *
 *   if constexpr (conv_first_fits<ConvFixed<...>>()) conv_first_tile<bf16, ConvFixed<...>>(g)
 *
 * Only in functions that are part of their kernel, as all that takes wgmma. A warpgroup has the
 * four sums of a pixel (the steps of 16 k that are 0, 1, 2, 3 modulo 4) in its own registers, so
 * they meet nowhere else; they are added as conv.cuh adds them. */
#ifndef OBK_CONV_FIRST_CUH
#define OBK_CONV_FIRST_CUH

#include "conv/conv_mma.cuh"
#include "gemm/gemm_wgmma.cuh"

namespace obk {

template <typename S>
static constexpr bool conv_first_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WGMMA_TILES
  return S::kFit.patched && S::kThin && conv_first(S::kPixels, S::kChannels, S::kChunks) &&
         S::kPitch % 2 == 0;
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* This lane's words of the kernel rows of two pixels, eight apart. */
template <typename S>
struct ConvRuns {
  uint32_t at[2], shift[2];

  __device__ __forceinline__ void find(uint32_t patch, int first, int column, int pixels) {
    constexpr ConvFit f = S::kFit;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = min(first + h * 8, pixels - 1) + column, row = q / S::kOutWidth;
      const uint32_t from = patch + row * (f.stride_h * f.row_bytes) +
                            (q - row * S::kOutWidth) * (f.stride_w * f.pixel_bytes) +
                            (threadIdx.x & 3) * 4;
      at[h] = f.row_bytes % 4 == 0 ? from & ~3u : from, shift[h] = (from & 2) * 8;
    }
  }
  __device__ __forceinline__ uint32_t word(int h, int offset) const {
    if (S::kFit.row_bytes % 4 != 0) return conv_word(at[h] + offset);
    const uint32_t low = load_shared_word(at[h] + offset);
    return __funnelshift_r(low, load_shared_word(at[h] + offset + 4), shift[h]);
  }
  /* A word of which the first `own` of the step's elements from `first` on belong to k. */
  __device__ __forceinline__ uint32_t word(int h, int offset, int first, int own) const {
    if (own <= first) return 0;
    const uint32_t v = word(h, offset + first * 2);
    if (own >= first + 8) return v;
    const int mine = own - first - (int)(threadIdx.x & 3) * 2;
    return mine >= 2 ? v : mine == 1 ? v & 0xffff : 0;
  }
  /* Step k of 16: rows of a warp as wgmma takes them. */
  __device__ __forceinline__ void step(uint32_t (&a)[4], int k) const {
    constexpr int kRowK = S::kKernelW * S::kIn, kEach = (kRowK + 15) / 16;
    const int ky = k / kEach, c = k % kEach * 16, own = kRowK - c < 16 ? kRowK - c : 16;
    const int offset = ky * (S::kDilationH * S::kFit.row_bytes) + c * 2;
    a[0] = word(0, offset, 0, own), a[1] = word(1, offset, 0, own);
    a[2] = word(0, offset, 8, own), a[3] = word(1, offset, 8, own);
  }
};

template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_first_tile(const ObkConv& g) {
  constexpr int kN = S::kChannels, kGroups = kN / 8, kPage = 24 / kGroups;
  constexpr int kPages = ceil_div(S::kChunks, kPage);
  const uint32_t work = (shared_address(g.scratch) + 127) & ~127u;
  const uint32_t patch =
      conv_thin_patch<S>(work, (const char*)g.x, (int)g.row * S::kStrideH - S::kTop, -S::kLeft);
  copy16_commit();
  const char* weights = (const char*)g.weights +
                        (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kAtomBytes);
  FixedRing ring;
  ring.look();
  ring.open(WeightPages::of_tile(weights, kGroups, S::kChunks));
  int oldest = ring.slot;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const bool busy = same_in_warp(threadIdx.x / 32) * 16 < S::kPixels;
  ConvRuns<S> runs;
  runs.find(patch, row, (int)g.column, (int)g.pixels);
  float sum[4][kN / 2];
#pragma unroll
  for (int p = 0; p < 4; ++p)
#pragma unroll
    for (int e = 0; e < kN / 2; ++e) sum[p][e] = zero_here();
  uint32_t a[S::kChunks * 4][4]; /* each has registers of its own: products are under way */
  uint64_t y = 0;
  copy16_wait<0>();
  __syncthreads();
#pragma unroll
  for (int c = 0; c < S::kChunks; ++c) {
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (c * 4 + p < S::kK16) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[c * 4 + p][e] = __float_as_uint(zero_here());
        if (busy) runs.step(a[c * 4 + p], c * 4 + p);
      }
    if (c % kPage == 0) {
      y = matrix_at(0, 1024) + (same_in_warp(ring.take()) >> 4);
      if (++ring.slot == ring.pages) ring.slot = 0, ring.turn ^= 1;
    }
    wgmma_begin();
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (c * 4 + p < S::kK16)
        Wgmma<kN, kBfloat>::multiply_rows(sum[p], a[c * 4 + p],
                                          y + c % kPage * (kGroups * 64) + 2 * p);
    wgmma_commit();
  }
  wgmma_wait<0>();
  __syncwarp();
#pragma unroll
  for (int page = 0; page < kPages; ++page) {
    if (lane == 0) mbarrier_arrive(ring.bars + 8 * (ring.pages + oldest));
    if (++oldest == ring.pages) oldest = 0;
  }
  const uint32_t to = shared_address(g.y) + (row * S::kPitch + lane % 4 * 2) * 4;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (row + h * 8 < (int)g.pixels) {
        const int e = 4 * j + 2 * h;
        store_shared8(to + h * 8 * (S::kPitch * 4) + j * 32,
                      (sum[0][e] + sum[1][e]) + (sum[2][e] + sum[3][e]),
                      (sum[0][e + 1] + sum[1][e + 1]) + (sum[2][e + 1] + sum[3][e + 1]));
      }
  ring.close();
  __syncthreads();
}

#endif

}  // namespace obk

#endif

/* kernels/cuda/conv/conv_wgmma_pipelined.cuh — a convolution tile of a known shape with 49 to 64
 * pixels by 64 to 160 channels whose part of X is too large for shared memory: the product tile of
 * gemm_wgmma_pipelined.cuh, whose rows are gathered pixel by pixel for each tap.
 *
 *   if constexpr (conv_wgmma_pipelined_fits<ConvFixed<...>>()) conv_wgmma_pipelined_tile<bf16,
 * ConvFixed<...>>(g)
 *
 * Only in functions that are part of their kernel, as all that takes wgmma. The order of the sums,
 * and so the bits, are those of conv.cuh. The same element of X is read for each tap, from the
 * second-level cache: with many channels that is less than weights would be, read for fewer pixels.
 */
#ifndef OBK_CONV_WGMMA_PIPELINED_CUH
#define OBK_CONV_WGMMA_PIPELINED_CUH

#include "conv/conv_mma.cuh"
#include "gemm/gemm_wgmma_pipelined.cuh"

namespace obk {

template <typename S>
static constexpr bool conv_wgmma_pipelined_fits() {
#if defined OBK_WGMMA && !defined OBK_NO_WGMMA_TILES
  return conv_wgmma_pipelined(S::kIn, S::kHeight, S::kWidth, S::kXRow / 2, S::kXPixel / 2,
                              S::kPixels, S::kChannels);
#else
  return false;
#endif
}

#ifdef OBK_WGMMA

/* The tile as gemm_wgmma_pipelined.cuh wants its shape. */
template <typename S>
struct ConvPipelinedShape {
  static constexpr int kRows = S::kPixels, kColumns = S::kChannels, kPitchC = S::kPitch;
  static constexpr int kGroups = S::kChannels / 8, kChunks = S::kChunks, kSplitK = 1;
  static constexpr int kPage = kGroups < 24 ? 24 / kGroups : 1;
  static constexpr int kPages = ceil_div(kChunks, kPage);
};

/* What a thread copies of the pixels threadIdx.x / 8 and 32 further: where their first tap lies
 * behind X, in bytes, and that tap's row and column, which may be outside. */
template <typename S>
struct ConvPixels {
  const char* x;
  int offset[2], row[2], column[2];

  __device__ __forceinline__ explicit ConvPixels(const ObkConv& g) : x((const char*)g.x) {
    const int first = (int)g.row * S::kOutWidth + (int)g.column, last = (int)g.pixels - 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = first + min((int)threadIdx.x / 8 + h * 32, last), y = q / S::kOutWidth;
      row[h] = y * S::kStrideH - S::kTop;
      column[h] = (q - y * S::kOutWidth) * S::kStrideW - S::kLeft;
      offset[h] = row[h] * (int)S::kXRow + column[h] * (int)S::kXPixel;
    }
  }
  __device__ __forceinline__ void copy(uint32_t to, int block) const {
    constexpr int kIn16 = (S::kIn + 15) / 16 * 16;
    const int k = block * 64 + (int)(threadIdx.x % 8) * 8, tap = k / kIn16,
              channel = k - tap * kIn16;
    const int ky = tap / S::kKernelW, down = ky * S::kDilationH;
    const int across = (tap - ky * S::kKernelW) * S::kDilationW;
    const int skip = down * (int)S::kXRow + across * (int)S::kXPixel + channel * 2;
    const bool there = ky < S::kKernelH && channel < S::kIn;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool in = there && (uint32_t)(row[h] + down) < (uint32_t)S::kHeight &&
                      (uint32_t)(column[h] + across) < (uint32_t)S::kWidth;
      copy16_partly(to + h * 4096, in ? x + (int64_t)(offset[h] + skip) : x, in ? 16 : 0);
    }
  }
};

template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_wgmma_pipelined_tile(const ObkConv& g) {
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  const char* weights = (const char*)g.weights +
                        (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kAtomBytes);
  wgmma_pipelined_tile<kBfloat, ConvPipelinedShape<S>>(ConvPixels<S>(g), weights, work,
                                                       shared_address(g.y), (int)g.pixels);
}

#endif

}  // namespace obk

#endif

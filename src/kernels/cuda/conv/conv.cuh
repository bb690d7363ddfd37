/* kernels/cuda/conv/conv.cuh — the convolution tile of generated bodies: output pixels by channels
 * of one group of one image, by all 256 threads of a CTA. What the fields mean stands in
 * cpu/conv.h.
 *
 *   obk::conv_tile<kObkF16>(g)       f16, bf16: an implicit product by mma.sync, float sums (here);
 *                                    f32: exact multiply-adds, or by tensor cores from operands
 *                                    rounded to tf32 (conv_cores.cuh)
 *   obk::depthwise_tile<kObkF16>(g)  where g.depthwise is set (conv_depthwise.cuh, conv_cores.cuh)
 *
 * Any kernel, stride, dilation, padding, number of channels, strides and alignment of X; X in
 * global memory; Y in global or, better, in shared memory; weights packed by cuda_conv_pack.
 * g.scratch: shared memory, as much as cuda_conv_scratch_bytes says. The tile ends with a barrier,
 * so that Y may be read at once.
 *
 * A pass computes 64 pixels by 64 channels at most, over all of k (conv_shape.h has its order).
 * Weights come by the ring's pages, requested before the tile; pixels in one of three ways:
 *   patch     of the input, once for all taps; a tap is then an offset of addresses
 * (conv_patch.cuh) thin      the same for few or odd channels: a kernel row is a run of elements,
 * read by words staged    blocks of 64 k gathered for each pixel, when no patch fits, and where
 * there is no ring
 *
 * Atoms of weights have 8 channels by 64 k, 1024 bytes, chunk p (16 bytes) of row r at place p ^ r,
 * so that ldmatrix has no bank conflicts.
 *
 * Channels are the 16-row side of mma.sync, pixels its 8-column side. Warp w sums the k-steps of
 * 16 that are w modulo 4, in order; the sums are added as (0 + 1) + (2 + 3). So an element's bits
 * depend on k alone: not on the cut into tiles, the batch, or the way that pixels came. */
#ifndef OBK_CONV_CUH
#define OBK_CONV_CUH

#include "conv/conv_shape.h"
#include "core/dialect.cuh"
#include "exec/ring.cuh"

namespace obk {

/* The convolution in 32 bits, X in bytes. */
struct ConvWindow {
  const char* x;
  int64_t x_row, x_pixel;
  int32_t height, width, in, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
  int32_t top, left, out_width;

  __device__ ConvWindow(const ObkConv& g, int size)
      : x((const char*)g.x),
        x_row(g.x_row * size),
        x_pixel(g.x_pixel * size),
        height((int32_t)g.height),
        width((int32_t)g.width),
        in((int32_t)g.in_channels),
        kernel_h((int32_t)g.kernel_h),
        kernel_w((int32_t)g.kernel_w),
        stride_h((int32_t)g.stride_h),
        stride_w((int32_t)g.stride_w),
        dilation_h((int32_t)g.dilation_h),
        dilation_w((int32_t)g.dilation_w),
        top((int32_t)g.pad_top),
        left((int32_t)g.pad_left),
        out_width((int32_t)g.out_width) {}
  __device__ bool has(int y, int x) const {
    return (uint32_t)y < (uint32_t)height && (uint32_t)x < (uint32_t)width;
  }
  __device__ const char* at(int y, int x) const { return this->x + y * x_row + x * x_pixel; }
  /* 16-byte copies of whole pixels. */
  __device__ bool aligned() const { return (((uint64_t)x | x_row | x_pixel) & 15) == 0; }
};

static __device__ inline int conv_pixels(const ObkConv& g) {
  return (int)(g.pixels ? g.pixels : g.rows * g.out_width);
}
/* Where pixel q of the tile lies in Y, in elements behind the first. */
static __device__ inline int64_t conv_place(const ObkConv& g, int q) {
  if (g.y_row == g.out_width * g.y_pixel) return q * g.y_pixel;
  const int wide = (int)g.out_width, linear = (int)g.column + q, row = linear / wide;
  return row * g.y_row + (linear - row * wide - (int)g.column) * g.y_pixel;
}

/* Four partial sums [part][pixel][pitch] at `work` become Y: pixels of one pass, four channels a
 * thread. */
static __device__ __noinline__ void conv_store(const ObkConv& g, uint32_t work, int padded,
                                               int pitch, int pixel, int pixels, int channel,
                                               int channels) {
  const int plane = padded * pitch * 4, shift = pitch > 36 ? 4 : pitch > 20 ? 3 : 2;
  const int c = (threadIdx.x & ((1 << shift) - 1)) * 4, own = min(4, channels - c);
  const bool dense = g.y_row == g.out_width * g.y_pixel, accumulate = g.accumulate != 0;
  const int64_t y_pixel = g.y_pixel;
  float* y = g.y + channel + c;
  const bool wide = own == 4 && dense && (((uint64_t)y | y_pixel * 4) & 15) == 0;
  if (own > 0) {
#pragma unroll 4
    for (int q = threadIdx.x >> shift; q < pixels; q += kConvThreads >> shift) {
      const uint32_t from = work + (q * pitch + c) * 4;
      uint32_t bits[4][4];
#pragma unroll
      for (int part = 0; part < 4; ++part) load_shared16(bits[part], from + part * plane);
      float sum[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sum[e] = (__uint_as_float(bits[0][e]) + __uint_as_float(bits[1][e])) +
                 (__uint_as_float(bits[2][e]) + __uint_as_float(bits[3][e]));
      float* to = y + (dense ? (pixel + q) * y_pixel : conv_place(g, pixel + q));
      if (wide && !accumulate) {
        *(float4*)to = make_float4(sum[0], sum[1], sum[2], sum[3]);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < own) to[e] = accumulate ? to[e] + sum[e] : sum[e];
      }
    }
  }
  __syncthreads();
}

}  // namespace obk

#include "conv/conv_cores.cuh"
#include "conv/conv_mma.cuh"
#include "conv/conv_patch.cuh"

namespace obk {

/* A body's structure, moved to shared memory: in each thread's own it would flood the first-level
 * cache, whose room the shared memory takes. */
static __device__ __forceinline__ const ObkConv& conv_share(const ObkConv& g) {
  static __shared__ ObkConv shared;
  if (threadIdx.x == 0) shared = g;
  __syncthreads();
  return shared;
}

template <int kType>
static __device__ __noinline__ void conv_general(const ObkConv& shared) {
  if (OBK_LIES_AS_F32(kType))
    conv32<kType == kObkTf32>(shared);
  else
    conv16<kType == kObkBf16>(shared);
}
template <int kType>
static __device__ __forceinline__ void conv_tile(const ObkConv& g) {
  conv_general<kType>(conv_share(g));
}
template <int kType, int kSide>
static __device__ __forceinline__ void depthwise_tile_of(const ObkConv& g) {
  constexpr int kMost = OBK_LIES_AS_F32(kType) ? 4 : 8; /* of 16 bytes */
  if (kMost == 8 && g.pack == 8)                        /* a constant of the body */
    conv_depthwise<kType, kSide, kMost>(conv_share(g));
  else if (g.pack >= 4)
    conv_depthwise<kType, kSide, 4>(conv_share(g));
  else if (g.pack == 2)
    conv_depthwise<kType, kSide, 2>(conv_share(g));
  else
    conv_depthwise<kType, kSide, 1>(conv_share(g));
}
}  // namespace obk

#include "conv/conv_depthwise.cuh"

namespace obk {

template <int kType>
static __device__ __forceinline__ void depthwise_tile(const ObkConv& g) {
  if (g.depthwise == 2) return depthwise_strips<kType>(g); /* a constant of the body */
  const int side = depthwise_side(g.kernel_h, g.kernel_w); /* a constant of the body */
  if (side == 3)
    depthwise_tile_of<kType, 3>(g);
  else if (side == 5)
    depthwise_tile_of<kType, 5>(g);
  else if (side == 7)
    depthwise_tile_of<kType, 7>(g);
  else
    depthwise_tile_of<kType, 0>(g);
}

}  // namespace obk

#include "conv/conv_grid.cuh"

#define OBK_CONV_TILE(type, g) obk::conv_tile<type>(g)
#define OBK_DEPTHWISE_TILE(type, g) obk::depthwise_tile<type>(g)
#define OBK_PREFETCH_TAPS(weights, taps, all, channels) \
  obk::prefetch_taps(weights, taps, all, channels)

#endif

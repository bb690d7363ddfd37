/* kernels/cuda/conv/conv_depthwise.cuh — the depthwise tile that reads its inputs from shared
 * memory: where packs of 2, 4 or 8 channels divide them, windows are 3, 5, 7 or 9 wide and not
 * dilated, and the patch of X fits (depthwise_plan, conv_shape.h). Others: conv_cores.cuh.
 *
 * All of the patch, and the weights of the tile's channels, are requested at once by cp.async, so
 * a tile waits for memory once, whatever the window, and loads an input once for all taps that
 * read it. A thread then computes strips of kDepthwiseStrip pixels along a row by four channels
 * (two where packs are of 2): a row of the window at a time, its weights in registers, each input
 * loaded and widened once for all pixels of the strip.
 *
 * What lies outside of X is zero in the patch, so that no tap asks where it is. The order of an
 * element's sum is that of conv_cores.cuh, taps in order of rows, one fused multiply-add each; that
 * one leaves out taps outside of X, which has the same bits where weights are finite. */
#ifndef OBK_CONV_DEPTHWISE_CUH
#define OBK_CONV_DEPTHWISE_CUH

#include "conv/conv.cuh"

namespace obk {

/* The patch to shared memory at `to`, by pieces of kUnit bytes; zeros where it lies outside of X.
 */
template <int kUnit>
static __device__ __forceinline__ void depthwise_patch(const ConvWindow& v, const DepthwisePlan& p,
                                                       uint32_t to, const char* x, int bytes) {
  const int units = bytes / kUnit;
  /* From piece to piece of a thread: so many rows, pixels and units further. */
  const int pixels = conv_small_div(kConvThreads, units), unit_step = kConvThreads - pixels * units;
  const int row_step = conv_small_div(pixels, p.reads), column_step = pixels - row_step * p.reads;
  const int pixel = conv_small_div(threadIdx.x, units);
  int unit = threadIdx.x - pixel * units, row = conv_small_div(pixel, p.reads);
  int column = pixel - row * p.reads;
#pragma unroll 1
  while (row < p.rows) {
    const int at_y = p.row + row, at_x = p.column + column;
    const bool in = v.has(at_y, at_x);
    copy_unit<kUnit>(to + row * p.row_bytes + column * p.pixel_bytes + unit * kUnit,
                     in ? x + at_y * v.x_row + at_x * v.x_pixel + unit * kUnit : x, in ? kUnit : 0);
    unit += unit_step, column += column_step, row += row_step;
    if (unit >= units) unit -= units, ++column;
    if (column >= p.reads) column -= p.reads, ++row;
  }
}

/* Weights of the tile's channels: [tap][channels] f32. */
template <int kUnit>
static __device__ __forceinline__ void depthwise_weights(const ObkConv& g, uint32_t to) {
  const int units = (int)g.channels * 4 / kUnit, taps = (int)(g.kernel_h * g.kernel_w);
  const char* weights = (const char*)((const float*)g.weights + g.channel);
  const int64_t tap_bytes = g.out_channels * 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < taps * units; i += kConvThreads) {
    const int tap = conv_small_div(i, units), unit = i - tap * units;
    copy_unit<kUnit>(to + i * kUnit, weights + tap * tap_bytes + unit * kUnit, kUnit);
  }
}

/* Requests the weights of a tile's channels of the second-level cache, while the kernel before
 * still computes. `all`: channels of the convolution. */
static __device__ __forceinline__ void prefetch_taps(const float* weights, int taps, int all,
                                                     int channels) {
  constexpr int kLine = 128 / (int)sizeof(float);
  const int lines = (channels + kLine - 1) / kLine + 1;
#pragma unroll 1
  for (int i = threadIdx.x; i < taps * lines; i += kConvThreads) {
    const int tap = i / lines, at = min((i - tap * lines) * kLine, channels - 1);
    line_prefetch(weights + (int64_t)tap * all + at);
  }
}

/* kSide: columns of the window; kStride: of them, from pixel to pixel; kPack: as ObkConv::pack. */
template <int kType, int kSide, int kStride, int kPack>
static __device__ __noinline__ void conv_depthwise_strips(const ObkConv& g) {
  constexpr int kEach = kPack < 4 ? kPack : 4, kStrip = kDepthwiseStrip;
  constexpr int kSpan = (kStrip - 1) * kStride + kSide; /* columns that a strip reads */
  typedef ConvPack<kType, kEach> Pack;
  constexpr int kUnit = kPack * Pack::kSize < 16 ? kPack * Pack::kSize : 16;
  const ConvWindow v(g, Pack::kSize);
  const int pixels = conv_pixels(g);
  const DepthwisePlan p = depthwise_plan_at(&g, pixels);
  const uint32_t weights = (shared_address(g.scratch) + 15) & ~15u,
                 patch = weights + p.weight_bytes;
  const int channels = (int)g.channels;
  depthwise_patch<kUnit>(v, p, patch, v.x + g.channel * Pack::kSize, channels * Pack::kSize);
  depthwise_weights<(kEach * 4)>(g, weights);
  copy16_commit();
  copy16_wait<0>();
  __syncthreads();

  const int vectors = channels / kEach, items = p.out_rows * p.across * vectors;
  const bool whole = conv_depthwise_whole<kEach>(g), accumulate = g.accumulate != 0;
  const int y_row = (int)g.y_row, y_pixel = (int)g.y_pixel;
  float* y_first = g.y + (int64_t)(p.left - (int)g.column) * y_pixel; /* of row p.top */
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += kConvThreads) {
    const int strip = conv_small_div(i, vectors), c = (i - strip * vectors) * kEach;
    const int row = conv_small_div(strip, p.across), column = (strip - row * p.across) * kStrip;
    const int q = row * v.out_width + p.left + column - (int)g.column;
    if (q <= -kStrip || q >= pixels) continue; /* of a row, before or behind the tile */
    const uint32_t from =
        patch + row * v.stride_h * p.row_bytes + column * kStride * p.pixel_bytes + c * Pack::kSize;
    float sum[kStrip][kEach] = {};
#pragma unroll 1
    for (int ky = 0; ky < v.kernel_h; ++ky) {
      Pack in[kSpan];
      ConvPack<kObkF32, kEach> weight[kSide];
#pragma unroll
      for (int j = 0; j < kSpan; ++j) in[j].take(from + ky * p.row_bytes + j * p.pixel_bytes);
#pragma unroll
      for (int kx = 0; kx < kSide; ++kx)
        weight[kx].take(weights + ((ky * kSide + kx) * channels + c) * 4);
#pragma unroll
      for (int j = 0; j < kSpan; ++j) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const float value = in[j].at(e);
#pragma unroll
          for (int s = 0; s < kStrip; ++s) {
            const int kx = j - s * kStride;
            if (kx >= 0 && kx < kSide) sum[s][e] = fmaf(value, weight[kx].at(e), sum[s][e]);
          }
        }
      }
    }
    float* to = y_first + row * y_row + column * y_pixel + c;
#pragma unroll
    for (int s = 0; s < kStrip; ++s, to += y_pixel)
      if (column + s < p.out_columns && (uint32_t)(q + s) < (uint32_t)pixels)
        conv_depthwise_store<kEach>(to, sum[s], whole, accumulate);
  }
  __syncthreads();
}

/* g.pack, g.kernel_w and g.stride_w are constants of the body. */
template <int kType, int kSide, int kStride>
static __device__ __forceinline__ void depthwise_strips_of(const ObkConv& g) {
  if (!OBK_LIES_AS_F32(kType) && g.pack == 8)
    conv_depthwise_strips<kType, kSide, kStride, 8>(conv_share(g));
  else if (g.pack >= 4)
    conv_depthwise_strips<kType, kSide, kStride, 4>(conv_share(g));
  else
    conv_depthwise_strips<kType, kSide, kStride, 2>(conv_share(g));
}
template <int kType, int kSide>
static __device__ __forceinline__ void depthwise_strips_of(const ObkConv& g) {
  if (g.stride_w == 1)
    depthwise_strips_of<kType, kSide, 1>(g);
  else
    depthwise_strips_of<kType, kSide, 2>(g);
}
template <int kType>
static __device__ __forceinline__ void depthwise_strips(const ObkConv& g) {
  if (g.kernel_w == 3)
    depthwise_strips_of<kType, 3>(g);
  else if (g.kernel_w == 5)
    depthwise_strips_of<kType, 5>(g);
  else if (g.kernel_w == 7)
    depthwise_strips_of<kType, 7>(g);
  else
    depthwise_strips_of<kType, 9>(g);
}

}  // namespace obk

#endif

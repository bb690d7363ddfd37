/* kernels/cuda/conv.cuh — the convolution tile of generated bodies: output pixels by channels of
 * one group of one image, by all 256 threads of a CTA. What the fields mean stands in cpu/conv.h.
 *
 *   obk::conv_tile<kObkF16>(g)       f16, bf16: an implicit product by mma.sync, float sums (here);
 *                                    f32: exact multiply-adds (conv_cores.cuh)
 *   obk::depthwise_tile<kObkF16>(g)  where g.depthwise is set (conv_cores.cuh)
 *
 * Any kernel, stride, dilation, padding, number of channels, strides and alignment of X; X in
 * global memory; Y in global or, better, in shared memory; weights packed by cuda_conv_pack.
 * g.scratch: shared memory, as much as cuda_conv_scratch_bytes says. The tile ends with a barrier,
 * so that Y may be read at once.
 *
 * k runs over the taps in rows, within a tap over the input channels, without gaps. A pass computes
 * 64 pixels by 64 channels at most. Its pixels come in one of two ways:
 *   gathered  blocks of 128 bytes of k for each pixel: 16-byte copies, zero outside of the image
 *             (single elements where channels or addresses do not allow 16 bytes);
 *   a patch   of the input, once for all taps, when it fits; a tap is then an offset of addresses.
 * Weights lie in atoms of 8 channels by 64 k, 1024 bytes, piece p (16 bytes) of row r at place
 * p ^ r, so that ldmatrix meets no bank twice; gathered pixels are written so by their copies.
 *
 * Channels are the 16-row side of mma.sync, pixels its 8-column side. Warp w sums the k-steps of
 * 16 that are w modulo 4, in order; the four sums are added in order. So an element's bits depend
 * on k alone: not on the cut into tiles, the batch, or the way that pixels came. */
#ifndef OBK_CONV_CUH
#define OBK_CONV_CUH

#include "conv_shape.h"
#include "dialect.cuh"

namespace obk {

/* The convolution in 32 bits, X in bytes. */
struct ConvWindow {
  const char* x;
  int64_t x_row, x_pixel;
  int32_t height, width, in, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
  int32_t top, left, out_width;

  __device__ ConvWindow(const ObkConv& g, int size)
      : x((const char*)g.x), x_row(g.x_row * size), x_pixel(g.x_pixel * size),
        height((int32_t)g.height), width((int32_t)g.width), in((int32_t)g.in_channels),
        kernel_h((int32_t)g.kernel_h), kernel_w((int32_t)g.kernel_w),
        stride_h((int32_t)g.stride_h), stride_w((int32_t)g.stride_w),
        dilation_h((int32_t)g.dilation_h), dilation_w((int32_t)g.dilation_w),
        top((int32_t)g.pad_top), left((int32_t)g.pad_left), out_width((int32_t)g.out_width) {}
  __device__ bool has(int y, int x) const {
    return (uint32_t)y < (uint32_t)height && (uint32_t)x < (uint32_t)width;
  }
  __device__ const char* at(int y, int x) const { return this->x + y * x_row + x * x_pixel; }
  /* Without padding: whether the output rows up to this pixel's read rows of the image alone. */
  __device__ bool bottom_inside(int pixel) const {
    return conv_div(pixel, out_width) * stride_h < height && (out_width - 1) * stride_w < width;
  }
  /* 16-byte copies never leave a tap nor an alignment. */
  __device__ bool aligned(int size) const {
    return in * size % 16 == 0 && (((uint64_t)x | x_row | x_pixel) & 15) == 0;
  }
};

/* A thread's part of the gathered pixels: one piece of 16 bytes in each block of 128 bytes of k,
 * for two pixels. Blocks are asked for in their order. */
template <int kSize>
struct ConvGather {
  static constexpr int kEach = 16 / kSize;
  int y[2], x[2];   /* the pixels' first tap in X; far outside: there is no such pixel */
  int k, c, ky, kx; /* of the piece in the next block: index, channel, tap times dilation */
  bool whole, single; /* single: one tap, inside of the image for every pixel */
  const char* from[2];

  __device__ void start(const ConvWindow& v, int first, int pixels) {
    whole = v.aligned(kSize);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = (threadIdx.x >> 3) + i * 32, pixel = first + r;
      const int row = conv_div(pixel, v.out_width), column = pixel - row * v.out_width;
      y[i] = r < pixels ? row * v.stride_h - v.top : -(1 << 30);
      x[i] = column * v.stride_w - v.left;
      /* Sums of pixels that are not there are not stored. */
      from[i] = v.at(r < pixels ? y[i] : 0, r < pixels ? x[i] : 0);
    }
    single = whole && v.kernel_h * v.kernel_w == 1 && (v.top | v.left) == 0 &&
             v.bottom_inside(first + pixels - 1);
    k = (threadIdx.x & 7) * kEach, c = k, ky = kx = 0;
    if (whole) wrap(v);
  }
  __device__ void wrap(const ConvWindow& v) {
    while (c >= v.in) {
      c -= v.in, kx += v.dilation_w;
      if (kx >= v.kernel_w * v.dilation_w) kx = 0, ky += v.dilation_h;
    }
  }
  /* `blocks` blocks to shared memory at `to`: [block][padded pixels][128 bytes]. */
  __device__ __forceinline__ void load(uint32_t to, const ConvWindow& v, int padded, int blocks) {
    const int piece = threadIdx.x & 7, row = threadIdx.x >> 3;
    if (single && k + blocks * 8 * kEach <= v.in + (threadIdx.x & 7) * kEach) {
      const uint32_t at = to + row * 128 + ((piece ^ (row & 7)) << 4);
      const char *a = from[0] + k * kSize, *b = from[1] + k * kSize;
      const bool here = row < padded, here32 = row + 32 < padded;
#pragma unroll 4
      for (int e = 0; e < blocks; ++e) {
        if (here) copy16(at + e * padded * 128, a + e * 128);
        if (here32) copy16(at + e * padded * 128 + 4096, b + e * 128);
      }
      k += blocks * 8 * kEach, c = k;
      wrap(v);
      return;
    }
#pragma unroll 1
    for (int b = 0; b < blocks; ++b, to += padded * 128) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = row + i * 32;
        if (r >= padded) break;
        const uint32_t at = to + r * 128 + ((piece ^ (r & 7)) << 4);
        if (whole) {
          const bool in = ky < v.kernel_h * v.dilation_h && v.has(y[i] + ky, x[i] + kx);
          copy16_partly(at, in ? v.at(y[i] + ky, x[i] + kx) + c * kSize : v.x, in ? 16u : 0u);
        } else {
          elements(at, v, y[i], x[i]);
        }
      }
      k += 8 * kEach, c += 8 * kEach;
      if (whole) wrap(v);
    }
  }
  __device__ void elements(uint32_t at, const ConvWindow& v, int y0, int x0) {
    uint32_t words[4] = {};
    int tap = k / v.in, channel = k - tap * v.in, i = tap / v.kernel_w, j = tap - i * v.kernel_w;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int row = y0 + i * v.dilation_h, column = x0 + j * v.dilation_w;
      if (i < v.kernel_h && v.has(row, column)) {
        const char* from = v.at(row, column) + (int64_t)channel * kSize;
        if (kSize == 4)
          words[e] = *(const uint32_t*)from;
        else
          words[e / 2] |= (uint32_t)*(const uint16_t*)from << (e % 2 * 16);
      }
      if (++channel == v.in) {
        channel = 0;
        if (++j == v.kernel_w) j = 0, ++i;
      }
    }
    store_shared16(at, words);
  }
};

/* A patch of X to shared memory at `to`, [row][column] of patch_pitch bytes; zero outside. */
static __device__ inline void conv_load_patch(uint32_t to, const ConvWindow& v, const ConvPlan& p) {
  const int pieces = v.in / 8, pixels = p.patch_rows * p.patch_columns;
  /* A step of 256 pieces, as pieces, columns and rows. */
  const int step_q = kConvThreads / pieces, step_piece = kConvThreads - step_q * pieces;
  const int step_row = step_q / p.patch_columns, step_column = step_q - step_row * p.patch_columns;
  int q = threadIdx.x / pieces, piece = threadIdx.x - q * pieces;
  int row = q / p.patch_columns, column = q - row * p.patch_columns;
#pragma unroll 1
  while (q < pixels) {
    const int y = p.patch_row + row, x = p.patch_column + column;
    const bool in = v.has(y, x);
    copy16_partly(to + q * p.patch_pitch + piece * 16, in ? v.at(y, x) + piece * 16 : v.x,
                  in ? 16u : 0u);
    q += step_q, piece += step_piece, column += step_column, row += step_row;
    if (piece >= pieces) piece -= pieces, ++q, ++column;
    if (column >= p.patch_columns) column -= p.patch_columns, ++row;
  }
}

/* Blocks of packed 16-bit weights: [block][group of 8 channels] of 1024 bytes. */
static __device__ __forceinline__ void conv_load_atoms(uint32_t to, const char* from, int groups,
                                                       int k_blocks, int first, int blocks) {
  const int piece = (threadIdx.x & 63) * 16, sub = threadIdx.x >> 6;
  const int group = groups == 2 ? sub & 1 : sub, step = groups == 2 ? 2 : 1;
  int b = groups == 2 ? sub >> 1 : 0;
  const char* at = from + ((int64_t)group * k_blocks + first) * 1024 + piece;
  const int64_t four = (int64_t)k_blocks * 4096;
  const bool more = group + 4 < groups;
  to += group * 1024 + piece;
#pragma unroll 4
  for (; b < blocks; b += step) {
    copy16(to + b * groups * 1024, at + b * 1024);
    if (more) copy16(to + b * groups * 1024 + 4096, at + four + b * 1024);
  }
}

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
static __device__ inline void conv_store(const ObkConv& g, uint32_t work, int padded, int pitch,
                                         int pixel, int pixels, int channel, int channels) {
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
        sum[e] = ((__uint_as_float(bits[0][e]) + __uint_as_float(bits[1][e])) +
                  __uint_as_float(bits[2][e])) + __uint_as_float(bits[3][e]);
      float* to = y + (dense ? (pixel + q) * y_pixel : conv_place(g, pixel + q));
      if (wide && !accumulate) {
        asm volatile("st.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(sum[0]), "f"(sum[1]),
                     "f"(sum[2]), "f"(sum[3])
                     : "memory");
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < own) to[e] = accumulate ? to[e] + sum[e] : sum[e];
      }
    }
  }
  __syncthreads();
}

/* kMs blocks of 16 channels by kJs of 16 pixels for each warp, some perhaps twice. */
template <bool kBfloat, int kMs, int kJs>
static __device__ __noinline__ void conv_pass16(const ObkConv& g, uint32_t work, int pixel,
                                                int pixels, int channel, int channels) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % 4, half = warp / 4;
  const ConvWindow v(g, 2);
  const int first = (int)(g.row * g.out_width + g.column) + pixel;
  const ConvPlan p = conv_plan(&g, first, pixels, channels, v.aligned(2));
  const int groups = p.channels / 8;
  const char* weights =
      (const char*)g.weights + (g.channel + channel) / 8 * p.k_blocks * (int64_t)1024;
  const bool patch = p.patch_pitch != 0;
  const uint32_t stages = work + p.patch_bytes;
  const uint32_t behind = patch ? 0 : p.stage_blocks * p.pixels * 128; /* where weights begin */

  ConvGather<2> gather;
  if (patch)
    conv_load_patch(work, v, p); /* arrives with the first stage */
  else
    gather.start(v, first, pixels);
  auto load = [&](int stage) {
    const int block = stage * p.stage_blocks, left = p.k_blocks - block;
    if (left > 0) {
      const int blocks = left < p.stage_blocks ? left : p.stage_blocks;
      const uint32_t to = stages + stage % kConvStages * p.stage_bytes;
      conv_load_atoms(to + behind, weights, groups, p.k_blocks, block, blocks);
      if (!patch) gather.load(to, v, p.pixels, blocks);
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };

  /* The two halves of the CTA share channels, 16 by 16, or, where those are only 16, pixels. */
  const int blocks_c = p.channels / 16, blocks_p = p.pixels / 16;
  const bool by_channels = blocks_c > 1;
  const int m0 = by_channels ? half : 0, j0 = by_channels ? 0 : half;
  const int j_step = by_channels ? 1 : 2;
  const uint32_t m_step = m0 + 2 < blocks_c ? 4096 : 0;
  /* Lane's share of ldmatrix: weights (8 channels, half of k), pixels (8 pixels, half of k). */
  const int r = lane & 7, piece = part * 2;
  const uint32_t a_at =
      (m0 * 2 + ((lane >> 3) & 1)) * 1024 + r * 128 + (((piece + (lane >> 4)) ^ r) << 4);
  uint32_t x_at[kJs];
#pragma unroll
  for (int j = 0; j < kJs; ++j) {
    int q = min(j0 + j * j_step, blocks_p - 1) * 16 + (lane >> 4) * 8 + r;
    const int k_half = (lane >> 3) & 1;
    if (patch) {
      q = first + (q < pixels ? q : pixels - 1);
      const int row = conv_div(q, v.out_width), column = q - row * v.out_width;
      x_at[j] = ((row * v.stride_h - v.top - p.patch_row) * p.patch_columns +
                 column * v.stride_w - v.left - p.patch_column) *
                    p.patch_pitch +
                k_half * 16;
    } else {
      x_at[j] = q * 128 + (((piece + k_half) ^ r) << 4);
    }
  }
  /* The patch: this warp's next 16 of k, as channel and address of the tap. */
  const int k_all = v.in * v.kernel_h * v.kernel_w;
  int c = part * 16, kx = 0;
  uint32_t tap = work;
  auto wrap = [&] {
    while (c >= v.in) {
      c -= v.in, tap += v.dilation_w * p.patch_pitch;
      if (++kx == v.kernel_w)
        kx = 0, tap += (v.dilation_h * p.patch_columns - v.kernel_w * v.dilation_w) * p.patch_pitch;
    }
  };
  wrap();

  float sum[kMs][kJs * 2][4] = {};
#pragma unroll 1
  for (int s = -kConvStages, block = 0; block < p.k_blocks; ++s) {
    if (s == 0)
      copy16_wait<kConvStages - 1>();
    else if (s > 0)
      copy16_wait<kConvStages - 2>();
    if (s >= 0) __syncthreads(); /* the stage is there, and all have left the one before it */
    if (s != 0) load(s < 0 ? s + kConvStages : s + kConvStages - 1);
    if (s < 0) continue;
    const uint32_t stage = stages + s % kConvStages * p.stage_bytes;
    uint32_t a_from = stage + behind + a_at, x_from = stage;
    const int count = min(p.stage_blocks, p.k_blocks - block);
#pragma unroll 2
    for (int b = 0; b < count; ++b, ++block) {
      if (!patch || block * 64 + part * 16 < k_all) { /* nothing of the patch lies behind k */
        const uint32_t x_base = patch ? tap + c * 2 : x_from;
        uint32_t a[kMs][4], x[kJs][4];
#pragma unroll
        for (int m = 0; m < kMs; ++m) load_matrices(a[m], a_from + (m ? m_step : 0));
#pragma unroll
        for (int j = 0; j < kJs; ++j) load_matrices(x[j], x_base + x_at[j]);
#pragma unroll
        for (int j = 0; j < kJs; ++j)
#pragma unroll
          for (int m = 0; m < kMs; ++m) {
            mma_16x8x16<kBfloat>(sum[m][j * 2], a[m], x[j][0], x[j][1]);
            mma_16x8x16<kBfloat>(sum[m][j * 2 + 1], a[m], x[j][2], x[j][3]);
          }
      }
      a_from += groups * 1024, x_from += p.pixels * 128, c += 64;
      if (patch) wrap();
    }
  }
  copy16_wait<0>();
  __syncthreads();
  const int pitch = p.channels + 4;
#pragma unroll
  for (int m = 0; m < kMs; ++m)
#pragma unroll
    for (int j = 0; j < kJs * 2; ++j)
      if (m0 + m * 2 < blocks_c && j0 + j / 2 * j_step < blocks_p) {
        const int q = (j0 + j / 2 * j_step) * 16 + j % 2 * 8 + lane % 4 * 2;
        const int o = (m0 + m * 2) * 16 + lane / 4;
        const uint32_t at = work + ((part * p.pixels + q) * pitch + o) * 4;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          store_shared(at + ((e & 1) * pitch + (e / 2) * 8) * 4, sum[m][j][e]);
      }
  __syncthreads();
  conv_store(g, work, p.pixels, pitch, pixel, pixels, channel, channels);
}

template <bool kBfloat>
static __device__ inline void conv16(const ObkConv& g) {
  const uint32_t work = (shared_address(g.scratch) + 127) & ~127u;
  const int all = conv_pixels(g), channels = (int)g.channels;
#pragma unroll 1
  for (int pixel = 0; pixel < all; pixel += kConvPass)
#pragma unroll 1
    for (int c = 0; c < channels; c += kConvPass) {
      const int high = min(kConvPass, all - pixel), wide = min(kConvPass, channels - c);
      if (wide > 32 && high > 32)
        conv_pass16<kBfloat, 2, 4>(g, work, pixel, high, c, wide);
      else if (wide > 32)
        conv_pass16<kBfloat, 2, 2>(g, work, pixel, high, c, wide);
      else if (wide > 16 && high > 32)
        conv_pass16<kBfloat, 1, 4>(g, work, pixel, high, c, wide);
      else
        conv_pass16<kBfloat, 1, 2>(g, work, pixel, high, c, wide);
    }
}

}  // namespace obk

#include "conv_cores.cuh"

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
static __device__ __forceinline__ void conv_tile(const ObkConv& g) {
  const ObkConv& shared = conv_share(g);
  if (kType == kObkF32)
    conv32(shared);
  else
    conv16<kType == kObkBf16>(shared);
}
template <int kType>
static __device__ __forceinline__ void depthwise_tile(const ObkConv& g) {
  conv_depthwise<kType>(conv_share(g));
}

}  // namespace obk

#define OBK_CONV_TILE(type, g) obk::conv_tile<type>(g)
#define OBK_DEPTHWISE_TILE(type, g) obk::depthwise_tile<type>(g)

#endif

/* kernels/cuda/conv_shape.h — how a convolution's tile is cut into passes and what shared memory a
 * pass takes: arithmetic that host and device must do alike. */
#ifndef OBK_CONV_SHAPE_H
#define OBK_CONV_SHAPE_H

#include <stdint.h>

#include "tiles.h"

#ifndef OBK_BOTH
#ifdef __CUDACC__
#define OBK_BOTH static __host__ __device__ inline
#else
#define OBK_BOTH static inline
#endif
#endif

/* A pass: so many pixels by so many channels of Y. Stages of its operands are in flight together.
 * Shared memory in bytes: of all stages; of a patch of the input; of the weights' stages beside a
 * patch. */
enum {
  kConvThreads = 256,
  kConvPass = 64,
  kConvStages = 4,
  kConvPanel = 98304,
  kConvPatch = 114688,
  kConvWeights = 32768
};

struct ConvPlan {
  int32_t pixels, channels; /* of the pass, padded: to 16; f32: channels to 32 */
  int32_t k_blocks;         /* k = taps x in_channels in blocks of 128 bytes */
  int32_t patch_rows, patch_columns, patch_row, patch_column; /* of X; the first may lie outside */
  int32_t patch_pitch; /* bytes between its pixels; 0: no patch, pixels are gathered tap by tap */
  int32_t patch_bytes, stage_blocks, stage_bytes, bytes;
};

OBK_BOTH int32_t conv_size(int32_t type) { return type == kObkF32 ? 4 : 2; }
OBK_BOTH int32_t conv_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

/* n / d for small numbers that are not negative: on the device without the long way. */
OBK_BOTH int32_t conv_div(int32_t n, int32_t d) {
#ifdef __CUDA_ARCH__
  if (n < 1 << 23) {
    int32_t q = (int32_t)__fdividef((float)n, (float)d);
    const int32_t rest = n - q * d;
    return rest < 0 ? q - 1 : rest >= d ? q + 1 : q;
  }
#endif
  return n / d;
}

/* Output pixels first .. first + pixels of an image. `patch`: X's address allows one. */
OBK_BOTH struct ConvPlan conv_plan(const struct ObkConv* g, int32_t first, int32_t pixels,
                                   int32_t channels, int32_t patch) {
  struct ConvPlan p = {};
  const int32_t size = conv_size(g->type), in = (int32_t)g->in_channels;
  const int32_t taps = (int32_t)(g->kernel_h * g->kernel_w), wide = (int32_t)g->out_width;
  p.pixels = conv_up(pixels, 16), p.channels = conv_up(channels, size == 4 ? 32 : 16);
  p.k_blocks = (taps * in * size + 127) / 128;
  const int32_t top = conv_div(first, wide), bottom = conv_div(first + pixels - 1, wide);
  const int32_t left = top == bottom ? first - top * wide : 0;
  const int32_t right = top == bottom ? left + pixels - 1 : wide - 1;
  p.patch_row = top * (int32_t)g->stride_h - (int32_t)g->pad_top;
  p.patch_column = left * (int32_t)g->stride_w - (int32_t)g->pad_left;
  p.patch_rows = (bottom - top) * (int32_t)g->stride_h +
                 (int32_t)((g->kernel_h - 1) * g->dilation_h) + 1;
  p.patch_columns = (right - left) * (int32_t)g->stride_w +
                    (int32_t)((g->kernel_w - 1) * g->dilation_w) + 1;
  const int64_t pitch = in * size + 16; /* an odd number of 16 bytes spreads pixels over the banks */
  const int64_t bytes = (int64_t)p.patch_rows * p.patch_columns * pitch;
  if (patch && size == 2 && taps > 1 && in % 16 == 0 && g->x_pixel % 8 == 0 && g->x_row % 8 == 0 &&
      bytes <= kConvPatch && bytes <= (int64_t)p.pixels * taps * in * size)
    p.patch_pitch = (int32_t)pitch, p.patch_bytes = conv_up((int32_t)bytes, 128);
  /* A block of k takes 128 bytes of a pixel and of a channel. */
  const int32_t block = (p.patch_pitch ? p.channels : p.pixels + p.channels) * 128;
  const int32_t room =
      conv_div((p.patch_pitch ? kConvWeights : kConvPanel) / kConvStages / 128, block / 128);
  const int32_t all = (p.k_blocks + kConvStages - 1) / kConvStages;
  p.stage_blocks = all < room ? all : room > 1 ? room : 1;
  p.stage_bytes = p.stage_blocks * block;
  const int32_t sums = 4 * p.pixels * (p.channels + 4) * 4;
  const int32_t operands = p.patch_bytes + kConvStages * p.stage_bytes;
  p.bytes = (operands > sums ? operands : sums) + 128;
  return p;
}

#endif

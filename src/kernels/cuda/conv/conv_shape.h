/* kernels/cuda/conv/conv_shape.h — how a convolution's tile is cut into passes and what shared
 * memory a pass takes: arithmetic that host and device must do alike. */
#ifndef OBK_CONV_SHAPE_H
#define OBK_CONV_SHAPE_H

#include <stdint.h>

#include "gemm/gemm_shape.h"
#include "tiles.h"

#ifndef OBK_BOTH
#ifdef __CUDACC__
#define OBK_BOTH static __host__ __device__ inline
#else
#define OBK_BOTH static inline
#endif
#endif

/* A pass: so many pixels by so many channels of Y at most; a thin one (below) takes more pixels.
 * Shared memory in bytes: of the f32 tile's stages; of a patch. */
enum {
  kConvThreads = 256,
  kConvPass = 64,
  kConvThinPass = 96,
  kConvFirst = 128, /* pixels of a tile of conv_first.cuh */
  kConvStages = 4,
  kConvPatch = 98304
};

OBK_BOTH int32_t conv_size(int32_t type) { return OBK_LIES_AS_F32(type) ? 4 : 2; }
OBK_BOTH int32_t conv_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }
OBK_BOTH int32_t conv_up16(int32_t n) { return (n + 15) & ~15; }

/* n / d for 0 <= n < 2^23: on the device without the long way. */
OBK_BOTH int32_t conv_small_div(int32_t n, int32_t d) {
#ifdef __CUDA_ARCH__
  int32_t q = (int32_t)__fdividef((float)n, (float)d);
  const int32_t rest = n - q * d;
  return rest < 0 ? q - 1 : rest >= d ? q + 1 : q;
#else
  return n / d;
#endif
}
/* The same for any n that is not negative. */
OBK_BOTH int32_t conv_div(int32_t n, int32_t d) {
  return n < 1 << 23 ? conv_small_div(n, d) : n / d;
}

/* The side of a depthwise window whose rows of taps a tile requests at once (conv_cores.cuh); 0 of
 * others, whose taps wait one after the other. */
OBK_BOTH int32_t depthwise_side(int64_t kernel_h, int64_t kernel_w) {
  return kernel_h == kernel_w && (kernel_w == 3 || kernel_w == 5 || kernel_w == 7)
             ? (int32_t)kernel_w
             : 0;
}

/* A depthwise tile whose inputs lie in shared memory (conv_depthwise.cuh): a patch of X that holds
 * what all of its rows read, in strips of kDepthwiseStrip pixels; the weights lie before it. */
enum { kDepthwiseStrip = 4 };
struct DepthwisePlan {
  int32_t top, left;             /* of Y: the patch's first row and column are this pixel's */
  int32_t out_rows, out_columns; /* of Y */
  int32_t across;                /* strips of a row of Y */
  int32_t row, column;           /* of X, the patch's first; may lie outside */
  int32_t rows, reads;           /* of the patch; columns of it that are read */
  int32_t pixel_bytes, row_bytes, weight_bytes, bytes;
};
OBK_BOTH struct DepthwisePlan depthwise_plan(const struct ObkConv* g, int32_t top, int32_t left,
                                             int32_t out_rows, int32_t out_columns) {
  struct DepthwisePlan p = {};
  p.top = top, p.left = left, p.out_rows = out_rows, p.out_columns = out_columns;
  p.across = (out_columns + kDepthwiseStrip - 1) / kDepthwiseStrip;
  p.row = top * (int32_t)g->stride_h - (int32_t)g->pad_top;
  p.column = left * (int32_t)g->stride_w - (int32_t)g->pad_left;
  p.rows = (out_rows - 1) * (int32_t)g->stride_h + (int32_t)g->kernel_h;
  p.reads = (out_columns - 1) * (int32_t)g->stride_w + (int32_t)g->kernel_w;
  const int32_t bytes = (int32_t)g->channels * conv_size(g->type);
  /* Neighbouring strips begin in other banks. */
  p.pixel_bytes = bytes < 128 && bytes % 16 == 0 ? bytes | 16 : bytes;
  p.row_bytes = ((p.across * kDepthwiseStrip - 1) * (int32_t)g->stride_w + (int32_t)g->kernel_w) *
                p.pixel_bytes;
  p.weight_bytes = conv_up16((int32_t)(g->kernel_h * g->kernel_w * g->channels) * 4);
  p.bytes = p.weight_bytes + p.rows * p.row_bytes + 16;
  return p;
}
/* Of so many output pixels from the tile's first. */
OBK_BOTH struct DepthwisePlan depthwise_plan_at(const struct ObkConv* g, int32_t pixels) {
  const int32_t wide = (int32_t)g->out_width, top = (int32_t)g->row, left = (int32_t)g->column;
  const int32_t more = conv_small_div(left + pixels - 1, wide); /* rows below */
  return more == 0 ? depthwise_plan(g, top, left, 1, pixels)
                   : depthwise_plan(g, top, 0, more + 1, wide);
}
#ifdef __cplusplus
/* Of any tile of `pixels` of an image that is cut into such, and of no more channels. */
inline DepthwisePlan depthwise_plan_of_any(const ObkConv& g, int64_t pixels) {
  const int64_t wide = g.out_width;
  const bool in_a_row = wide % pixels == 0;
  const int64_t rows = in_a_row             ? 1
                       : pixels % wide == 0 ? pixels / wide
                                            : (pixels + wide - 2) / wide + 1;
  DepthwisePlan p = depthwise_plan(&g, 0, 0, (int32_t)rows, (int32_t)(in_a_row ? pixels : wide));
  /* A pixel of fewer channels may have 16 bytes more. */
  const int32_t bytes = (int32_t)g.channels * conv_size(g.type),
                most = bytes > 16 && bytes < 112 ? bytes + 16 : bytes;
  p.bytes += p.rows * (p.row_bytes / p.pixel_bytes) * (most - p.pixel_bytes);
  return p;
}
/* Whether there is such a tile, if its patch fits. */
constexpr bool depthwise_strips(const ObkConv& g) {
  return g.pack >= 2 && (g.multiplier == 0 || g.multiplier == 1) && g.dilation_h == 1 &&
         g.dilation_w == 1 && (g.stride_w == 1 || g.stride_w == 2) &&
         (g.kernel_w == 3 || g.kernel_w == 5 || g.kernel_w == 7 || g.kernel_w == 9);
}
#endif

/* 16-bit: the order of k. Where channels come in eights, tap after tap, each padded to 16 channels;
 * else a kernel row after the other, each padded to 16 elements ("thin"). k16: steps of 16. */
OBK_BOTH int32_t conv_thin(int32_t in) { return in % 8 != 0; }
OBK_BOTH int32_t conv_k16(int32_t in, int32_t kernel_h, int32_t kernel_w) {
  return conv_thin(in) ? kernel_h * (conv_up16(kernel_w * in) >> 4)
                       : kernel_h * kernel_w * (conv_up16(in) >> 4);
}

/* How a 16-bit pass sees X: as a patch in shared memory, a tap being an offset of addresses; or,
 * where none fits, in stages of 64 k that are gathered pixel by pixel. */
enum { kConvStaged = 0, kConvPatched = 1, kConvThin = 2 };

struct ConvPlan {
  int32_t pixels, channels;       /* of the pass, padded to 16 */
  int32_t k16, chunks;            /* of k: steps of 16, blocks of 64 */
  int32_t source;                 /* kConvPatched, ... */
  int32_t top, left;              /* of Y: the patch's first row and column are this pixel's */
  int32_t row, column;            /* of X, the patch's first; may lie outside */
  int32_t rows, columns;          /* of the patch */
  int32_t step_h, step_w;         /* rows and columns of X from one of the patch to the next */
  int32_t stride_h, stride_w;     /* from pixel to pixel of Y, in the patch */
  int32_t pixel_bytes, row_bytes; /* of the patch */
  int32_t lead; /* thin: bytes before the first column, so that X's column 0 is aligned */
  int32_t raw;  /* thin: rows lie as in X, all that is read is there */
  int32_t table_bytes, patch_bytes; /* offsets of the steps of k; then the patch or the stages */
  int32_t stage_bytes, bytes;
};

/* Output pixels first .. first + pixels of an image. aligned: X's pixels lie at multiples of 16
 * bytes. ring: weights come by the ring. */
OBK_BOTH struct ConvPlan conv_plan(const struct ObkConv* g, int32_t first, int32_t pixels,
                                   int32_t channels, int32_t aligned, int32_t ring) {
  struct ConvPlan p = {};
  const int32_t in = (int32_t)g->in_channels, wide = (int32_t)g->out_width;
  const int32_t kernel_h = (int32_t)g->kernel_h, kernel_w = (int32_t)g->kernel_w;
  const int32_t thin = conv_thin(in);
  p.pixels = conv_up16(pixels), p.channels = conv_up16(channels);
  p.k16 = conv_k16(in, kernel_h, kernel_w), p.chunks = (p.k16 + 3) >> 2;
  p.table_bytes = (p.chunks * 16 + 127) & ~127;
  /* A kernel of one row reads no rows between those of its pixels; columns alike. */
  p.step_h = kernel_h == 1 ? (int32_t)g->stride_h : 1;
  p.stride_h = kernel_h == 1 ? 1 : (int32_t)g->stride_h;
  p.step_w = kernel_w == 1 && !thin ? (int32_t)g->stride_w : 1;
  p.stride_w = kernel_w == 1 && !thin ? 1 : (int32_t)g->stride_w;
  const int32_t top = conv_div(first, wide), bottom = conv_div(first + pixels - 1, wide);
  const int32_t window = top == bottom && !thin;
  const int32_t left = window ? first - top * wide : 0;
  const int32_t right = window ? left + pixels - 1 : wide - 1;
  p.top = top, p.left = left;
  p.row = top * (int32_t)g->stride_h - (int32_t)g->pad_top;
  p.column = left * (int32_t)g->stride_w - (int32_t)g->pad_left;
  p.rows = (bottom - top) * p.stride_h + (kernel_h - 1) * (int32_t)g->dilation_h + 1;
  p.columns = (right - left) * p.stride_w + (kernel_w - 1) * (int32_t)g->dilation_w + 1;
  p.pixel_bytes =
      thin ? in * 2 : conv_up16(in) * 2 + 16; /* odd in 16s: pixels spread over the banks */
  p.row_bytes = p.columns * p.pixel_bytes;
  if (thin && p.step_h == 1 && p.row >= 0 && p.column >= 0 && p.row + p.rows <= g->height &&
      p.columns <= g->width && g->x_pixel == in) {
    p.raw = 1, p.row_bytes = (int32_t)g->x_row * 2;
  } else if (thin) {
    p.lead = p.column * p.pixel_bytes & 15;
    if (p.columns < (int32_t)g->width - p.column) p.columns = (int32_t)g->width - p.column;
    p.row_bytes = (p.lead + p.columns * p.pixel_bytes + 15) & ~15;
  }
  const int64_t bytes = (int64_t)p.rows * p.row_bytes;
  p.source = thin ? ((g->dilation_w == 1 || kernel_w == 1) ? kConvThin : kConvStaged)
                  : (aligned ? kConvPatched : kConvStaged);
  if (bytes > kConvPatch || !ring) p.source = kConvStaged;
  /* A stage holds 64 k of each pixel, 144 bytes, and where there is no ring of each channel. */
  p.stage_bytes = p.pixels * 144 + (ring ? 0 : p.channels * 128);
  /* A thin step reads 16 elements wherever it begins. */
  p.patch_bytes = p.source == kConvStaged ? kConvStages * p.stage_bytes : (int32_t)bytes + 64;
  const int32_t sums = 4 * p.pixels * (p.channels + 4) * 4;
  p.bytes = p.table_bytes + (p.patch_bytes > sums ? p.patch_bytes : sums) + 128;
  return p;
}

#ifdef __cplusplus
/* n / d as n * conv_divisor(d) >> 24, where n * d < 2^24. */
constexpr uint32_t conv_divisor(int64_t d) { return (uint32_t)(((1 << 24) + d - 1) / d); }

/* Whether a tile of so many pixels by channels may be that of conv_wgmma.cuh, if its patch fits. */
constexpr bool conv_wgmma(int64_t pixels, int64_t channels) {
  return pixels > 32 && pixels <= 64 && channels >= 32 && channels <= kWgmmaColumns &&
         channels % 16 == 0;
}
/* The same of conv_first.cuh, for so many blocks of 64 k: the four sums have room, k is unrolled,
 * its weights are two pages at most. */
constexpr bool conv_first(int64_t pixels, int64_t channels, int64_t chunks) {
  return pixels > 32 && pixels <= kConvFirst && channels >= 16 && channels <= 64 &&
         channels % 16 == 0 && chunks <= 4 && chunks * channels / 8 <= 48;
}
/* Whether a tile of that shape may be that of conv_wgmma_pipelined.cuh. Strides of X in elements.
 */
constexpr bool conv_wgmma_pipelined(int64_t in, int64_t height, int64_t width, int64_t x_row,
                                    int64_t x_pixel, int64_t pixels, int64_t channels) {
  return in % 8 == 0 && pixels > 48 && pixels <= 64 && channels >= 64 &&
         channels <= kWgmmaColumns && channels % 16 == 0 && x_row % 8 == 0 && x_pixel % 8 == 0 &&
         height < 1 << 14 && width < 1 << 14 && x_row * (height + 64) < 1 << 29;
}

/* A tile of conv_grid.cuh, `ctas_per_sm` of which share a multiprocessor: blocks of 64 k of a
 * stage, its bytes; how many stages have a place, all of k or what it goes round in; its shared
 * memory. */
constexpr int conv_grid_step(int64_t pixels, int64_t channels, int64_t chunks,
                             int64_t ctas_per_sm) {
  return ctas_per_sm == 1 && chunks % 2 == 0 && pixels + channels <= 128 ? 2 : 1;
}
constexpr int conv_grid_stage(int64_t pixels, int64_t channels, int64_t chunks,
                              int64_t ctas_per_sm) {
  return (int)((pixels + channels) * 128 * conv_grid_step(pixels, channels, chunks, ctas_per_sm));
}
constexpr int conv_grid_places(int64_t pixels, int64_t channels, int64_t chunks,
                               int64_t ctas_per_sm) {
  const int most =
      (int)(204800 / ctas_per_sm) / conv_grid_stage(pixels, channels, chunks, ctas_per_sm);
  const int all = (int)(chunks / conv_grid_step(pixels, channels, chunks, ctas_per_sm));
  return all < most ? all : most;
}
/* Where its mbarriers lie: behind the stages, and behind Y (`pitch` floats from pixel to pixel),
 * which takes the place of the stages. (PTX wants mbarrier.inval before the memory of an
 * mbarrier becomes anything else. Without it a word of Y was seen to change on a busy SM.) */
constexpr int conv_grid_bars(int64_t pixels, int64_t pitch, int64_t stages) {
  const int64_t y = (pixels * pitch * 4 + 15) / 16 * 16;
  return (int)(stages > y ? stages : y);
}
constexpr int conv_grid_bytes(int64_t pixels, int64_t channels, int64_t pitch, int64_t chunks,
                              int64_t ctas_per_sm) {
  return 1024 +
         conv_grid_bars(pixels, pitch,
                        (int64_t)conv_grid_places(pixels, channels, chunks, ctas_per_sm) *
                            conv_grid_stage(pixels, channels, chunks, ctas_per_sm)) +
         128;
}
/* Whether there is such a tile. `strides` of X, from image to image, row to row and pixel to pixel,
 * in elements, or-ed. Taps whose channels do not come in eights are packed otherwise; of a single
 * one both ways are the same. */
constexpr bool conv_grid_rows(int64_t in, int64_t taps, int64_t strides) {
  return (in % 8 == 0 || taps == 1) && row_unit(strides) > 0;
}
constexpr bool conv_grid(int64_t in, int64_t taps, int64_t strides, int64_t pixels,
                         int64_t channels) {
  return conv_grid_rows(in, taps, strides) && (pixels == 64 || pixels == 128) && channels >= 32 &&
         channels <= 128 && channels % 16 == 0 && (pixels == 128 || channels % 32 == 0);
}
/* The same of few channels of X, where a tile ends with an image: `patch` bytes of it, and all
 * weights. */
constexpr bool conv_grid_first(int64_t all_pixels, int64_t pixels, int64_t channels,
                               int64_t chunks) {
  return pixels == 128 && all_pixels % 128 == 0 && channels >= 16 && channels <= 64 &&
         channels % 16 == 0 && chunks <= 4;
}
constexpr int conv_grid_first_bytes(int64_t patch, int64_t pixels, int64_t channels, int64_t pitch,
                                    int64_t chunks) {
  return 1024 + conv_grid_bars(pixels, pitch, channels * chunks * 128 + (patch + 127) / 128 * 128) +
         128;
}

/* A patch as above for every tile of an image, where it is the same for all: tiles of `pixels` in
 * row order, in constants of device code (conv_fixed.cuh). Strides of X in elements. */
struct ConvFit {
  bool fits, thin, one_row, raw; /* one_row: no tile leaves a row of Y */
  bool patched;                  /* the patch fits, whatever the channels and pixels */
  int k16, step_h, step_w, stride_h, stride_w, rows, columns;
  int pixel_bytes, row_bytes, lead, unit, table_bytes, patch_bytes, bytes, wgmma_bytes;
};
constexpr ConvFit conv_fit(int64_t in, int64_t height, int64_t width, int64_t kernel_h,
                           int64_t kernel_w, int64_t sh, int64_t sw, int64_t dilation_h,
                           int64_t dilation_w, int64_t pad_top, int64_t pad_left, int64_t wide,
                           int64_t x_row, int64_t x_pixel, int64_t pixels, int64_t channels) {
  ConvFit f = {};
  f.thin = in % 8 != 0;
  const int64_t most = f.thin ? kConvFirst : kConvPass;
  const int64_t in16 = (in + 15) / 16 * 16;
  /* Of any tile, also of one that does not fit. */
  f.k16 = (int)(f.thin ? kernel_h * ((kernel_w * in + 15) / 16) : kernel_h * kernel_w * in16 / 16);
  if (pixels < 1 || pixels > most || channels < 16 || channels % 16 != 0 || wide < 1 ||
      in * kernel_w * kernel_h > 65536 || x_row > 1 << 28 || x_pixel > 1 << 28)
    return f;
  f.table_bytes = ((f.k16 + 3) / 4 * 16 + 127) / 128 * 128;
  f.step_h = (int)(kernel_h == 1 ? sh : 1), f.stride_h = (int)(kernel_h == 1 ? 1 : sh);
  const bool skips = kernel_w == 1 && !f.thin;
  f.step_w = (int)(skips ? sw : 1), f.stride_w = (int)(skips ? 1 : sw);
  f.one_row = !f.thin && wide % pixels == 0;
  const int64_t y_rows = f.one_row            ? 1
                         : pixels % wide == 0 ? pixels / wide
                                              : (pixels + wide - 2) / wide + 1;
  const int64_t rows = (y_rows - 1) * f.stride_h + (kernel_h - 1) * dilation_h + 1;
  int64_t columns =
      ((f.one_row ? pixels : wide) - 1) * f.stride_w + (kernel_w - 1) * dilation_w + 1;
  f.pixel_bytes = (int)(f.thin ? in * 2 : in16 * 2 + 16);
  int64_t row_bytes = columns * f.pixel_bytes;
  f.unit = 16;
  if (f.thin) {
    if (dilation_w != 1 && kernel_w != 1) return f;
    if (x_pixel != in) return f;
    const int64_t out_rows = (height - (kernel_h - 1) * dilation_h - 1) / sh + 1;
    f.raw = f.step_h == 1 && pad_top == 0 && pad_left == 0 && columns <= width &&
            (kernel_h - 1) * dilation_h < height && out_rows > 0;
    if (f.raw) {
      row_bytes = x_row * 2;
    } else {
      const int64_t bits = x_row * 2 | width * in * 2;
      f.unit = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 4;
      if (bits % 4 != 0) return f;
      f.lead = (int)((16 - pad_left * in * 2 % 16) % 16);
      if (columns < width + pad_left) columns = width + pad_left;
      row_bytes = (f.lead + columns * f.pixel_bytes + 15) / 16 * 16;
    }
  } else if (x_row % 8 != 0 || x_pixel % 8 != 0) {
    return f;
  }
  /* Pixels of a row go on in the next one's banks. */
  for (int64_t more = 0; !f.thin && !f.one_row && more < 128; more += 16)
    if ((f.stride_h * (row_bytes + more) - wide * f.stride_w * f.pixel_bytes) % 128 == 0) {
      row_bytes += more;
      break;
    }
  if (rows * row_bytes > kConvPatch) return f;
  if (!f.thin && (columns * (in16 / 8) * (in16 / 8) >> 24 || (wide + pixels) * wide >> 24))
    return f;
  f.rows = (int)rows, f.columns = (int)columns, f.row_bytes = (int)row_bytes;
  f.patch_bytes = f.rows * f.row_bytes + 64;
  f.patched = true, f.wgmma_bytes = f.table_bytes + f.patch_bytes + 128;
  if (channels > kConvPass || (f.thin && pixels > kConvThinPass)) return f;
  const int padded = (int)((pixels + 15) / 16 * 16);
  const int sums = 4 * padded * (int)(channels + 4) * 4;
  f.bytes = f.table_bytes + (f.patch_bytes > sums ? f.patch_bytes : sums) + 128;
  f.fits = true;
  return f;
}
#endif

/* The largest tile of one pass. */
OBK_BOTH int32_t conv_pass_pixels(const struct ObkConv* g) {
  return conv_size(g->type) == 2 && conv_thin((int32_t)g->in_channels) ? kConvThinPass : kConvPass;
}

/* f32: stages of 32 k, four in flight. */
struct ConvPlan32 {
  int32_t pixels, channels; /* of the pass, padded: to 16, to 32 */
  int32_t weights_pitch;    /* elements from k to k: by tensor cores so that no bank is met twice */
  int32_t k_blocks, stage_blocks, stage_bytes, bytes;
};
OBK_BOTH struct ConvPlan32 conv_plan32(const struct ObkConv* g, int32_t pixels, int32_t channels,
                                       int32_t smem_a = OBK_GEMM_SMEM_A) {
  struct ConvPlan32 p = {};
  p.pixels = conv_up16(pixels), p.channels = conv_up(channels, 32);
  p.weights_pitch = p.channels + (g->type == kObkTf32 ? 8 : 0);
  p.k_blocks = (int32_t)(g->kernel_h * g->kernel_w * g->in_channels + 31) / 32;
  const int32_t block = (p.pixels + p.weights_pitch) * 128;
  const int32_t room = conv_div(smem_a / kConvStages / 128, block / 128);
  const int32_t all = (p.k_blocks + kConvStages - 1) / kConvStages;
  p.stage_blocks = all < room ? all : room > 1 ? room : 1;
  p.stage_bytes = p.stage_blocks * block;
  const int32_t sums = 4 * p.pixels * (p.channels + 4) * 4;
  p.bytes = (kConvStages * p.stage_bytes > sums ? kConvStages * p.stage_bytes : sums) + 128;
  return p;
}

#endif

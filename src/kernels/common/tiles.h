/* kernels/common/tiles.h — what a body asks of a compute tile: a product, a convolution, attention.
 * The same structures on a core of the CPU and on a CTA of a GPU; host and device read this text.
 *
 * Strides are in elements unless they are called bytes. What a field means stands in cpu/gemm.h,
 * cpu/conv.h and cpu/attention.h. Set all fields: zero-initialise, then fill in. On a GPU all
 * threads of the CTA call the tile together, with equal fields; scratch is shared memory. */
#ifndef OBK_TILES_H
#define OBK_TILES_H

#include <stdint.h>

/* Element types, by the numbers of obelisk::DType. kObkTf32 is none of those: f32 operands that a
 * tile rounds to 10 bits of mantissa (to the nearest, halves away from zero) before it multiplies;
 * they lie in memory, and weights are packed, as f32. */
enum ObkType {
  kObkF64 = 0,
  kObkF32 = 1,
  kObkF16 = 2,
  kObkBf16 = 3,
  kObkI32 = 11,
  kObkI8 = 13,
  kObkU8 = 19,
  kObkTf32 = 64,
};
#define OBK_LIES_AS_F32(type) ((type) == kObkF32 || (type) == kObkTf32)
#define OBK_IS_HALF(type) ((type) == kObkF16 || (type) == kObkBf16)

/* What a product finds of its rows' statistics, and from what (ObkGemm::partials). */
enum ObkStatistics { kObkNoStatistics, kObkOfRows, kObkOfPartials };

/* C[m,n] = A[m,k] B[k,n], or += . */
struct ObkGemm {
  int32_t a_type, b_type;  // f32, tf32, f16, bf16: C is f32; f64: C is f64; i8, u8: C is i32
  int32_t packed;          // 1: b is what obk_gemm_pack wrote; 0: b is plain
  int32_t accumulate;      // 1: C += A B
  int64_t m, n, k;         // extents of this tile
  const void* a;
  int64_t a_row, a_col;
  const void* b;
  int64_t b_row, b_col;      // plain b: strides along k and along n
  int64_t column, n_packed;  // packed b: first column of the tile, a multiple of kObkPanel, and the
                             // n that was packed
  void* c;
  int64_t c_row;
  const void* a_zero;  // i8, u8: a zero point of a_type per row of the tile, or null
  int64_t a_zero_row;  // 0: one for all rows
  const void* b_zero;  // plain i8, u8: a zero point of b_type per column of the tile, or null
  int64_t b_zero_col;  // 0: one for all columns
  void* scratch;
  float* statistics;      // f16, bf16 with k a multiple of 64: [m][2], of each row of A its mean (0
                          // where not centred) and
  const float* partials;  // 1 / sqrt(variance + epsilon), or of the squares where not centred; or
                          // null. Of each 16 elements of A's rows
  float epsilon;  // the sum, and that of the squares about their mean: [m][k / 16][2]; null: of A
                  // itself
  int32_t centred;
};

/* Y[row, column, channel] of one group of one image: an output tile of whole rows. Channels last.
 */
struct ObkConv {
  int32_t type;  // of x: f32, tf32, f16, bf16; y is f32
  int16_t
      depthwise;  // 1: weights from obk_depthwise_pack; channel c of Y reads c / multiplier of X;
                  // 2, on a GPU: and scratch has room for what the tile reads (conv_depthwise.cuh)
  int16_t pack;   // depthwise on a GPU: channels that are read at once, 8, 4, 2 or 1; divides where
                  // pixels, rows and this tile's channels begin, and how many there are
  int32_t accumulate;        // 1: Y += (the planes of a third spatial dimension)
  int16_t own_kernel;        // what it costs: 1: its body is part of a kernel, not called
  int16_t tasks_per_worker;  // > 0: so, and that many of the kernel's CTAs share a multiprocessor,
                             // pixels are those of all images
  int64_t height, width, in_channels;  // of X, in_channels of this group
  int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  int64_t out_width, out_channels;  // of Y, out_channels of this group, as packed
  int64_t row, rows;                // output rows of this tile
  int64_t column, pixels;     // a machine that cuts inside rows: the first pixel's column, and
                              // how many pixels of the rows in order; pixels 0: whole rows
  int64_t channel, channels;  // output channels of this tile; first a multiple of kObkPanel
  int64_t multiplier;         // depthwise: output channels for each input channel
  const void* x;              // pixel (0, 0), first channel of the group
  int64_t x_row, x_pixel;
  int64_t x_image;      // where tasks_per_worker > 0
  const void* weights;  // packed, of this group
  float* y;             // element (row, column, channel): the tile's first
  int64_t y_row, y_pixel;
  void* scratch;
};

/* One block of query rows of one head: Y = softmax(softcap(Q K^T * scale) + mask) V. */
struct ObkAttention {
  int32_t type;  // of q, k, v: f32, tf32, f16, bf16; y is f32
  int64_t queries, keys, size, value_size;
  const void *q, *k, *v;
  int64_t q_row, k_row, v_row;
  float* y;
  int64_t y_row;
  float scale;
  float softcap;      // > 0: scores become softcap * tanh(score / softcap) before the mask
  int32_t mask_type;  // 0 none, 1 f32 added to the score, 2 one byte each, 0 forbids
  const void* mask;   // element (first query, first key)
  int64_t mask_query, mask_key;
  int32_t causal;          // 1: query i of the tile sees keys 0 .. i + causal_offset
  int64_t causal_offset;   // may be negative
  int32_t zero_if_masked;  // a row with every key forbidden gives 1: zeros, whatever the forbidden
                           // keys' scores; 0: NaN
  void* scratch;
  int32_t kv_split,
      kv_splits;     // which part of the keys, of how many, where several tiles share a head
  void* exchange;    // and what they leave for the last of them: all zero before the first run
  int64_t in_place;  // of the piece's keys, how many from its first on come as pages from where the
                     // caller keeps them (schedule/in_place_kv.h)
  const void *new_key,
      *new_value;  // of such: a row that belongs at key `new_at` of all (or at none
  int64_t new_at;  // of them), whatever lies there; null: there is none
};

/* Packed weights: a tile begins at a multiple of these columns on the CPU. */
enum { kObkPanel = 64 };

#endif

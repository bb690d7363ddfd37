/// kernels/cpu/conv.h — one tile of a 2-D convolution, on one core; activations have channels last.
///
///   in   X [height, width, in_channels], f32 | f16 | bf16, rows and pixels with any stride; packed
///   W out  Y tile [rows, out_width, channels] f32: whole output rows, channels from a multiple of
///   64
///
///   W [out, in, kh, kw]  →  panels of 64 output channels (the last rounded up to 16), in each:
///                           [block of in][kh][kw][in of the block][64]
///
/// How      An output row is a sum of products, one for each (kernel row, kernel column): pixels x
/// in
///          times in x 64, run as one batch. Few input channels (an image): a kernel row is one
///          product, whose pixels are taken in turns (every n-th), so that its rows do not overlap.
///          1x1 on dense rows: the whole tile is one product; with strides, after the pixels that
///          it reads are gathered in scratch. No other unfolding is written anywhere.
/// Padding  Kernel rows outside the image are left out; rows that stick out left or right (and
/// other
///          types than f32) pass through scratch, with zeros around.
/// Groups   One call a group, with x, weights and y pointing at it. Depthwise is a loop of its own.
/// Numbers  An element is summed in the order [block of in][kh][kw][in], whatever the tile; one
/// fused
///          multiply-add a step.
/// Cutting  Scratch and what a tile reads should stay in half an L2: rows * width * in_channels * 4
///          bytes of X and 64 output channels. Fewer, larger tiles copy less padding.
#pragma once

#include "kernels/cpu/table.h"

namespace obelisk::kernels {

inline int64_t conv_packed_bytes(int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                                 int64_t kernel_w) {
  return obk_conv_packed_bytes(out_channels, in_channels, kernel_h, kernel_w);
}

/// Packs one group's weights; strides in elements, so any layout of W will do.
inline void conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                      int64_t kernel_w, const void* weights, int64_t out_stride, int64_t in_stride,
                      int64_t h_stride, int64_t w_stride, void* packed) {
  obk_conv_pack(type, out_channels, in_channels, kernel_h, kernel_w, weights, out_stride, in_stride,
                h_stride, w_stride, packed);
}

/// Depthwise weights of all channels, to [kh][kw][channels] f32.
inline int64_t depthwise_packed_bytes(int64_t channels, int64_t kernel_h, int64_t kernel_w) {
  return obk_depthwise_packed_bytes(channels, kernel_h, kernel_w);
}
inline void depthwise_pack(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                           const void* weights, int64_t out_stride, int64_t h_stride,
                           int64_t w_stride, void* packed) {
  obk_depthwise_pack(type, channels, kernel_h, kernel_w, weights, out_stride, h_stride, w_stride,
                     packed);
}

inline int64_t conv_scratch_bytes(const ObkConv& conv) { return obk_conv_scratch_bytes(&conv); }
inline void conv_tile(const ObkConv& conv) { obk_conv_tile(&conv); }

}  // namespace obelisk::kernels

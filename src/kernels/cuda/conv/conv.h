/// kernels/cuda/conv/conv.h — the host's side of the GPU's convolution tile (conv.cuh): packed
/// weights, shared memory, cost.
///
///   packed W of one group [out, in, kh, kw], k = (kh, kw, in): 16-bit in atoms of 8 channels by 64
///   k as cuda_gemm_pack has them, each tap (or, where channels do not come in eights, each row of
///   the kernel) padded to 16; f32 as [out / 16][k padded to 32][16]; zeros pad. So the weights of
///   a tile of channels, `tile` of them (a multiple of 16; 0: all), are one run of bytes.
///   Depthwise: [kh][kw][channels] f32.
#pragma once

#include <cstdint>

#include "kernels/common/tiles.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {

int64_t cuda_conv_packed_bytes(int32_t type, int64_t out_channels, int64_t in_channels,
                               int64_t kernel_h, int64_t kernel_w);
void cuda_conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                    int64_t kernel_w, int64_t tile, const void* weights, int64_t out_stride,
                    int64_t in_stride, int64_t h_stride, int64_t w_stride, void* packed);
int64_t cuda_depthwise_packed_bytes(int32_t type, int64_t channels, int64_t kernel_h,
                                    int64_t kernel_w);
void cuda_depthwise_pack(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                         const void* weights, int64_t out_stride, int64_t h_stride,
                         int64_t w_stride, void* packed);
/// What a tile of channels c0 .. c1 streams by the ring: 16-bit weights of one pass.
WeightRange cuda_conv_weights(int32_t type, int64_t out_channels, int64_t in_channels,
                              int64_t kernel_h, int64_t kernel_w, int64_t c0, int64_t c1);
/// Shared memory that conv_tile wants at g.scratch.
int64_t cuda_conv_scratch_bytes(const ObkConv* conv);
int64_t cuda_conv_small_scratch_bytes(const ObkConv* conv);  // where a GPU has little shared memory
/// Predicted nanoseconds of one tile on one SM, all SMs at work.
double cuda_conv_nanos(const ObkConv* conv);

}  // namespace obelisk::kernels

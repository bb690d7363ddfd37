/// kernels/cuda/gemm.h — the host's side of the product tile on a GPU (gemm.cuh): packing, scratch.
///
///   packed B [k, n], 16-bit: [n / 16][k / 16][lane 0..31] of 16 bytes, the lane's A-side fragment of
///   mma.m16n8k16 (columns of B are its rows); zero padded, so that columns c0..c1, multiples of 16,
///   are one contiguous range of bytes whatever the tile's width. f32 and f64: [n / 16][k][16].
#pragma once

#include <cstdint>

#include "kernels/common/tiles.h"

namespace obelisk::kernels {

int64_t cuda_gemm_packed_bytes(int32_t type, int64_t n, int64_t k);
void cuda_gemm_pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row, int64_t b_col,
                    void* packed);
/// Shared memory that the tile wants beside C.
int64_t cuda_gemm_scratch_bytes(const ObkGemm* gemm);
/// Predicted nanoseconds of one tile of m x n over all of k on one SM.
double cuda_gemm_nanos(int32_t type, int64_t m, int64_t n, int64_t k);

}  // namespace obelisk::kernels

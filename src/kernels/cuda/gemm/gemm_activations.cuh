/* kernels/cuda/gemm/gemm_activations.cuh — a product tile of two 16-bit activations by mma.sync, of
 * any shape, strides and alignment.
 *
 * A pass is up to 64 x 64 of C, over all of k. A stage is a block of 64 k of both operands; all but
 * one are on their way. Where rows of A, and rows or columns of B, lie together in memory and are
 * aligned, threads copy them by pieces (pieces.cuh), else as gemm_operands.cuh does.
 *
 * A, and a B whose columns of the product are rows in memory, come as rows of 64 k in 128 bytes,
 * swizzled (gemm_operands.cuh). A B whose rows of k lie together comes as it is: rows of 64
 * columns, swizzled alike, which ldmatrix transposes. So every copy fills lines of shared memory.
 * The order of a sum is that of gemm_mma.cuh. */
#ifndef OBK_GEMM_ACTIVATIONS_CUH
#define OBK_GEMM_ACTIVATIONS_CUH

#include "gemm/gemm_mma.cuh"
#include "gemm/pieces.cuh"

namespace obk {

/* Of rows of 64 k. Those that are not there repeat the first: nobody stores their sums. */
static __device__ __forceinline__ Pieces<2, 64> pieces_of_rows(const Rows16& x, int padded) {
  const int row = threadIdx.x >> 3, piece = threadIdx.x & 7;
  Pieces<2, 64> p;
  p.of_k = false, p.k = p.k_second = piece * 8;
  p.from = (const char*)(x.at + (row < x.rows ? row * x.row : 0) + p.k);
  p.second = (row + 32 < x.rows ? 32 : 0) * x.row * 2, p.block = 128;
  p.to = row * 128 + ((piece ^ (row & 7)) << 4), p.to_second = p.to + 4096;
  p.bytes = row < padded ? 16 : 0, p.bytes_second = row + 32 < padded ? 16 : 0;
  return p;
}
/* Of rows of 64 columns, which x has as rows. */
static __device__ __forceinline__ Pieces<2, 64> pieces_of_columns(const Rows16& x) {
  const int group = threadIdx.x & 7, left = x.rows - group * 8;
  Pieces<2, 64> p;
  p.of_k = true, p.k = threadIdx.x >> 3, p.k_second = p.k + 32;
  p.from = (const char*)(x.at + (left > 0 ? group * 8 : 0) + p.k * x.col);
  p.second = x.col * 64, p.block = x.col * 128;
  p.to = p.k * 128 + ((group ^ (p.k & 7)) << 4), p.to_second = p.to + 4096;
  p.bytes = p.bytes_second = left >= 8 ? 16 : left > 0 ? left * 2 : 0;
  return p;
}

/* p.a and b: b as rows of columns. kPadded: p.padded. */
template <bool kBfloat, int kPadded>
static __device__ __forceinline__ void activations_pass(const Pass16& p, const Rows16& b,
                                                        uint32_t work) {
  constexpr int kStages = activation_stages(OBK_GEMM_SMEM_A), kStage = activation_stage(kPadded),
                kBehind = kPadded * 128, kStep = 64 / kPadded, kBlocks = 4 / kStep;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  const bool transposes = b.row == 1 && b.mode == 2 && ((uint64_t)b.at & 15) == 0 &&
                          (b.col & 7) == 0 && !__isShared(b.at);
  Pieces<2, 64> a_pieces = pieces_of_rows(p.a, kPadded),
                b_pieces =
                    transposes ? pieces_of_columns(b) : pieces_of_rows(b, kActivationColumns);
  const int blocks = (p.a.k + 63) >> 6;
  const auto load = [&](int block, uint32_t at) {
    const int left = p.a.k - block * 64;
    if (p.a.mode == 0)
      a_pieces.load(at, left);
    else
      load_rows_plainly(at, kPadded, p.a, block, 1);
    if (transposes || b.mode == 0)
      b_pieces.load(at + kBehind, left);
    else
      load_rows_plainly(at + kBehind, 64, b, block, 1);
  };
  /* The warp's rows, the first of its blocks of 16 columns; its lane's share of ldmatrix:
   * activations (8 rows, k half), columns (8 columns, k half, or the other way about). */
  const int row = (place * 16) & (kPadded - 1);
  const int first16 = kPadded == 64 ? 0 : kPadded == 32 ? place >> 1 : place;
  const bool busy = first16 < p.blocks16 && row < p.rows;
  const int r = lane & 7, x_half = (lane >> 3) & 1, w_half = lane >> 4;
  const uint32_t x_row = (row + (lane >> 4) * 8 + r) * 128;
  uint32_t x_at[2], w_at[2], w_block[kBlocks];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int piece = part * 4 + t * 2;
    x_at[t] = x_row + (((piece + x_half) ^ r) << 4);
    w_at[t] = kBehind + (transposes ? (piece + w_half) << 10 : ((piece + w_half) ^ r) << 4);
  }
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    const int group = (first16 + m * kStep) * 2 + ((lane >> 3) & 1);
    w_block[m] = r * 128 + (transposes ? (group ^ r) << 4 : group * 1024);
  }
  float sums[2][kBlocks][2][4] = {}; /* of the two k-steps, each for itself */
  each_stage<kStages, kStage, true>(blocks, work, load, [&](int, uint32_t at) {
    if (!busy) return;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      uint32_t x[4], w[kBlocks][4];
      load_matrices(x, at + x_at[t]);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        if (transposes)
          load_matrices_transposed(w[m], at + w_at[t] + w_block[m]);
        else
          load_matrices(w[m], at + w_at[t] + w_block[m]);
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        mma_16x8x16<kBfloat>(sums[t][m][0], w[m], x[0], x[1]);
        mma_16x8x16<kBfloat>(sums[t][m][1], w[m], x[2], x[3]);
      }
    }
  });
#pragma unroll
  for (int m = 0; m < kBlocks; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[0][m][n][e] += sums[1][m][n][e];
  finish_mma<kBlocks>(sums[0], p, work);
  __syncthreads();
}

template <bool kBfloat>
static __device__ __noinline__ void gemm16_activations() {
  const ObkGemm g = tile_arguments();
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  const int m = (int)g.m, n = (int)g.n, k = (int)g.k;
#pragma unroll 1
  for (int column = 0; column < n; column += kActivationColumns)
#pragma unroll 1
    for (int row = 0; row < m; row += 64) {
      Pass16 p = {};
      p.rows = min(64, m - row), p.columns = min((int)kActivationColumns, n - column);
      p.padded = gemm_pass_rows(p.rows), p.blocks16 = (p.columns + 15) >> 4;
      p.c = (float*)g.c + row * g.c_row + column, p.c_row = g.c_row;
      p.accumulate = g.accumulate != 0;
      p.a = {(const uint16_t*)g.a + row * g.a_row, g.a_row, g.a_col, p.rows, k, 0};
      p.a.choose();
      Rows16 b = {(const uint16_t*)g.b + column * g.b_col, g.b_col, g.b_row, p.columns, k, 0};
      b.choose();
      if (p.padded == 16)
        activations_pass<kBfloat, 16>(p, b, work);
      else if (p.padded == 32)
        activations_pass<kBfloat, 32>(p, b, work);
      else
        activations_pass<kBfloat, 64>(p, b, work);
    }
}

}  // namespace obk

#endif

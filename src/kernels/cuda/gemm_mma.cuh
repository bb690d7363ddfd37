/* kernels/cuda/gemm_mma.cuh — a pass of a 16-bit product by mma.sync.
 *
 * Operands are swapped: columns of C are the 16-row side of mma.sync, rows of C its 8-column side.
 * Warps 0..3 sum the k-steps 0, 1 of each 64, warps 4..7 the steps 2, 3; then the two sums are
 * added. Four warps share the rectangle: 16 rows each, then columns. */
#ifndef OBK_GEMM_MMA_CUH
#define OBK_GEMM_MMA_CUH

#include "gemm_operands.cuh"

namespace obk {

template <bool kBfloat, int kMostBlocks>
static __device__ __forceinline__ void pass_mma(Ring& ring, uint32_t work, const Pass16& p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  const int row_warps = p.padded / 16, row = place % row_warps * 16;
  const int first16 = place / row_warps, step16 = 4 / row_warps;
  const Stages16 stages(p, work);
  float sum[kMostBlocks][2][4] = {};
  /* Lane's share of ldmatrix: weights (8 columns, k half), activations (8 rows, k half). */
  const int r = lane & 7, w_half = lane >> 4, x_half = (lane >> 3) & 1, piece = part * 4;
  const uint32_t x_row = (row + (lane >> 4) * 8 + r) * 128;
  const uint32_t x0 = x_row + (((piece + x_half) ^ r) << 4);
  const uint32_t x1 = x_row + (((piece + 2 + x_half) ^ r) << 4);
  const int per_page = p.ring ? p.weights.chunks_a_page() : 0;
  const uint32_t pitch = p.ring ? per_page * 1024 : 1024; /* of groups */
  const uint32_t w_row = (first16 * 2 + ((lane >> 3) & 1)) * pitch + r * 128;
  const uint32_t w0 = w_row + (((piece + w_half) ^ r) << 4);
  const uint32_t w1 = w_row + (((piece + 2 + w_half) ^ r) << 4);
  const bool busy = first16 < p.blocks16;
  uint32_t step[kMostBlocks]; /* to the warp's blocks; beyond the last the last again */
#pragma unroll
  for (int m = 0; m < kMostBlocks; ++m)
    step[m] = (min(first16 + m * step16, p.blocks16 - 1) - first16) * 2 * pitch;
  const bool stays = !p.ring || ring.holds_all();             /* no page is replaced */
  const uint32_t next = p.ring ? 1024 : stages.groups * 1024; /* from block to block of k */
  uint32_t weights = 0;
  int in_page = 0;
#pragma unroll 1
  for (int s = -4, k_block = 0; k_block < stages.k_blocks; ++s) {
    if (!stages.enter<true>(p, s, [] {})) continue;
    uint32_t panel = stages.rows_at(s);
    if (!p.ring) weights = stages.at(s) + stages.behind;
    const int count = min(stages.blocks, stages.k_blocks - k_block);
#pragma unroll 1
    for (int left = count; left > 0;) {
      int n = left; /* blocks without anything between them */
      if (p.ring) {
        if (in_page == 0) weights = ring.take();
        n = min(n, per_page - in_page);
      }
      if (busy) {
#pragma unroll(kMostBlocks <= 3 ? 2 : 1)
        for (int b = 0; b < n; ++b) {
          uint32_t x[2][4], a[2][kMostBlocks][4];
          const uint32_t panel_b = panel + b * stages.block_bytes, weights_b = weights + b * next;
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            load_matrices(x[t], panel_b + (t ? x1 : x0));
#pragma unroll
            for (int m = 0; m < kMostBlocks; ++m)
              load_matrices(a[t][m], weights_b + (t ? w1 : w0) + step[m]);
          }
#pragma unroll
          for (int t = 0; t < 2; ++t)
#pragma unroll
            for (int m = 0; m < kMostBlocks; ++m) {
              mma_16x8x16<kBfloat>(sum[m][0], a[t][m], x[t][0], x[t][1]);
              mma_16x8x16<kBfloat>(sum[m][1], a[t][m], x[t][2], x[t][3]);
            }
        }
      }
      panel += n * stages.block_bytes, weights += n * next;
      left -= n, k_block += n, in_page += n;
      if (p.ring && (in_page == per_page || k_block == stages.k_blocks)) {
        in_page = 0;
        ring.release();
        if (!stays) ring.ask_more();
      }
    }
  }
  copy16_wait<0>();

  const bool direct = sums_go_to_c(p);
  const int c_pitch = direct ? (int)p.c_row : stages.groups * 8 + 4, plane = p.padded * c_pitch;
  const uint32_t base = direct ? shared_address(p.c) : work;
  const bool full = p.rows == p.padded && p.columns == p.blocks16 * 16;
  auto each = [&](auto&& f) {
    const int y0 = row + lane % 4 * 2, col0 = first16 * 16 + lane / 4;
    const uint32_t at = base + 4 * (y0 * c_pitch + col0);
#pragma unroll
    for (int m = 0; m < kMostBlocks; ++m) {
      if (first16 + m * step16 >= p.blocks16) break;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int y = n * 8 + (e & 1), x = m * step16 * 16 + (e / 2) * 8;
          if (full || (y0 + y < p.rows && col0 + x < p.columns))
            f(at + 4 * (y * c_pitch + x), sum[m][n][e]);
        }
    }
  };
  if (direct) {
    if (part == 1) each([](uint32_t at, float v) { store_shared(at, v); });
    __syncthreads();
    if (part == 0) each([](uint32_t at, float v) { store_shared(at, v + load_shared(at)); });
  } else {
    __syncthreads(); /* all have read the stages, whose place the sums take */
    each([&](uint32_t at, float v) { store_shared(at + 4 * part * plane, v); });
    __syncthreads();
    add_planes(p.c, p.c_row, p.rows, p.columns, p.accumulate, work, c_pitch, plane);
  }
  if (p.ring) ring.close();
  __syncthreads();
}

}  // namespace obk

#endif

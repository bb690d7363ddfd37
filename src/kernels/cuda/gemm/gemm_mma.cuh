/* kernels/cuda/gemm/gemm_mma.cuh — a pass of a 16-bit product by mma.sync.
 *
 * Operands are swapped: columns of C are the 16-row side of mma.sync, rows of C its 8-column side.
 * Each of the four k-steps of 64 has a sum of its own, (0 + 1) + (2 + 3) at the end: warps 0..3
 * take the steps 0, 1, warps 4..7 the steps 2, 3. Four warps share the rectangle: 16 rows each,
 * then columns. */
#ifndef OBK_GEMM_MMA_CUH
#define OBK_GEMM_MMA_CUH

#include "gemm/gemm_operands.cuh"

namespace obk {

/* Adds the two parts' sums and stores them to C. The caller lets the threads meet after it. */
template <int kMostBlocks>
static __device__ __forceinline__ void finish_mma(float (&sum)[kMostBlocks][2][4], const Pass16& p,
                                                  uint32_t work) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  const int row = ((place * 16) & (p.padded - 1)) + lane % 4 * 2;
  const int first16 = p.padded == 64 ? 0 : p.padded == 32 ? place >> 1 : place;
  const int step16 = p.padded == 64 ? 1 : p.padded == 32 ? 2 : 4, column = first16 * 16 + lane / 4;
  /* Straight to C where the rectangle is whole: nothing is asked about single sums. */
  const bool direct = sums_go_to_c(p) && p.rows == p.padded && p.columns == p.blocks16 * 16;
  const int pitch = direct ? (int)p.c_row : p.blocks16 * 16 + 4, plane = p.padded * pitch;
  const uint32_t at = (direct ? shared_address(p.c) : work) + 4 * (row * pitch + column);
  auto each = [&](uint32_t from, auto&& f) {
#pragma unroll
    for (int m = 0; m < kMostBlocks; ++m)
      if (first16 + m * step16 < p.blocks16) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            f(from + 4 * ((n * 8 + (e & 1)) * pitch + m * step16 * 16 + (e / 2) * 8), sum[m][n][e]);
      }
  };
  if (!direct) __syncthreads(); /* all have read the operands, whose place the sums take */
  if (!direct || part == 1)
    each(at + (direct ? 0 : 4 * part * plane), [](uint32_t to, float v) { store_shared(to, v); });
  __syncthreads();
  if (!direct) {
    add_planes(p.c, p.c_row, p.rows, p.columns, p.accumulate, work, pitch, plane);
  } else if (part == 0) { /* all are requested before the first goes */
    each(at, [](uint32_t from, float& v) { v += load_shared(from); });
    each(at, [](uint32_t to, float v) { store_shared(to, v); });
  }
}

template <bool kBfloat, int kMostBlocks>
static __device__ __forceinline__ void pass_mma(Ring& ring, uint32_t work, const Pass16& p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  const int row = (place * 16) & (p.padded - 1);
  const int first16 = p.padded == 64 ? 0 : p.padded == 32 ? place >> 1 : place;
  const int step16 = p.padded == 64 ? 1 : p.padded == 32 ? 2 : 4;
  const Stages16 stages(p, work);
  float sums[2][kMostBlocks][2][4] = {}; /* of the two k-steps, each for itself */
  /* Lane's share of ldmatrix: weights (8 columns, k half), activations (8 rows, k half). */
  const int r = lane & 7, w_half = lane >> 4, x_half = (lane >> 3) & 1, piece = part * 4;
  const uint32_t x_row = (row + (lane >> 4) * 8 + r) * 128;
  const uint32_t x0 = x_row + (((piece + x_half) ^ r) << 4);
  const uint32_t x1 = x_row + (((piece + 2 + x_half) ^ r) << 4);
  const int per_page = p.ring ? p.weights.chunks_a_page() : 0;
  constexpr uint32_t pitch = 1024; /* of groups */
  const uint32_t w_row = (first16 * 2 + ((lane >> 3) & 1)) * pitch + r * 128;
  const uint32_t w0 = w_row + (((piece + w_half) ^ r) << 4);
  const uint32_t w1 = w_row + (((piece + 2 + w_half) ^ r) << 4);
  const bool busy = first16 < p.blocks16;
  uint32_t step[kMostBlocks]; /* to the warp's blocks; beyond the last the last again */
#pragma unroll
  for (int m = 0; m < kMostBlocks; ++m)
    step[m] = (min(first16 + m * step16, p.blocks16 - 1) - first16) * 2 * pitch;
  const bool stays = !p.ring || ring.holds_all(); /* no page is replaced */
  const uint32_t next = stages.groups * 1024;     /* from block to block of k */
  uint32_t weights = 0;
  int in_page = 0;
#pragma unroll 1
  for (int s = -4, k_block = 0; k_block < stages.k_blocks; ++s) {
    if (!stages.enter(p, s)) continue;
    uint32_t smem_a = stages.at(s);
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
          const uint32_t smem_a_b = smem_a + b * stages.block_bytes, weights_b = weights + b * next;
#pragma unroll
          for (int t = 0; t < 2;
               ++t) { /* one after the other: two sets of sums leave little room */
            uint32_t x[4], a[kMostBlocks][4];
            load_matrices(x, smem_a_b + (t ? x1 : x0));
#pragma unroll
            for (int m = 0; m < kMostBlocks; ++m)
              load_matrices(a[m], weights_b + (t ? w1 : w0) + step[m]);
#pragma unroll
            for (int m = 0; m < kMostBlocks; ++m) {
              mma_16x8x16<kBfloat>(sums[t][m][0], a[m], x[0], x[1]);
              mma_16x8x16<kBfloat>(sums[t][m][1], a[m], x[2], x[3]);
            }
          }
        }
      }
      smem_a += n * stages.block_bytes, weights += n * next;
      left -= n, k_block += n, in_page += n;
      if (p.ring && (in_page == per_page || k_block == stages.k_blocks)) {
        in_page = 0;
        ring.release();
        if (!stays) ring.load_more();
      }
    }
  }
  copy16_wait<0>();
#pragma unroll
  for (int m = 0; m < kMostBlocks; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[0][m][n][e] += sums[1][m][n][e];
  finish_mma<kMostBlocks>(sums[0], p, work);
  if (p.ring) ring.close();
  __syncthreads();
}

}  // namespace obk

#endif

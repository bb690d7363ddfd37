/* kernels/cuda/gemm_mma.cuh — a pass of a 16-bit product by mma.sync.
 *
 * Operands are swapped: columns of C are the 16-row side of mma.sync, rows of C its 8-column side.
 * Warps 0..3 sum the k-steps 0, 1 of each 64, warps 4..7 the steps 2, 3; then the two sums are
 * added. Four warps share the rectangle: 16 rows each, then columns. */
#ifndef OBK_GEMM_MMA_CUH
#define OBK_GEMM_MMA_CUH

#include "gemm_operands.cuh"

namespace obk {

/* Adds the two parts' sums and brings them to C. The caller lets the threads meet after it. */
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
  } else if (part == 0) { /* all are asked for before the first goes */
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

  finish_mma<kMostBlocks>(sum, p, work);
  if (p.ring) ring.close();
  __syncthreads();
}

/* The same for what most tiles are: k of 64s that lies in shared memory whole, weights whose pages
 * all have a place, rows that asynchronous copies bring (or a body has written). Copies are asked
 * for first, in two halves; what the products need is worked out while they fly. */
template <bool kBfloat, int kMostBlocks>
static __device__ __forceinline__ void pass_whole(uint32_t work, const Pass16& p) {
  const int chunks = p.weights.chunks, half = (chunks + 1) >> 1;
  const uint32_t block = (p.panel ? p.panel_rows : p.padded) * 128;
  if (!p.panel) {
    const int r = threadIdx.x >> 3, piece = threadIdx.x & 7;
    const int64_t pitch = p.a.row * 2;
    const char* from = (const char*)p.a.at + (r < p.rows ? r * pitch : 0) + piece * 16;
    const char* from32 = r + 32 < p.rows ? from + 32 * pitch : from;
    uint32_t to = work + r * 128 + ((piece ^ (r & 7)) << 4);
    const int here = r < p.padded ? chunks : 0, here32 = p.padded > 32 ? chunks : 0;
    int c = 0;
#pragma unroll 1
    for (int end = half; c < chunks; end = chunks) {
#pragma unroll 1
      for (; c < end; c += 4, to += 4 * block, from += 512, from32 += 512) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (c + e < here && c + e < end) copy16(to + e * block, from + e * 128);
          if (c + e < here32 && c + e < end) copy16(to + e * block + 4096, from32 + e * 128);
        }
      }
      const int over = c - end; /* the last four went beyond */
      c = end, to -= over * block, from -= over * 128, from32 -= over * 128;
      copy16_commit();
    }
  }
  Ring ring;
  ring.open(p.weights);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  const int row = (place * 16) & (p.padded - 1);
  const int first16 = p.padded == 64 ? 0 : p.padded == 32 ? place >> 1 : place;
  const int step16 = p.padded == 64 ? 1 : p.padded == 32 ? 2 : 4;
  const int r = lane & 7, w_half = lane >> 4, x_half = (lane >> 3) & 1, piece = part * 4;
  const int per_page = p.weights.chunks_a_page();
  const uint32_t pitch = per_page * 1024; /* of groups */
  const uint32_t x_row = (p.panel ? p.panel : work) + (row + (lane >> 4) * 8 + r) * 128;
  const uint32_t w_row = (first16 * 2 + x_half) * pitch + r * 128;
  const uint32_t x_at[2] = {x_row + (((piece + x_half) ^ r) << 4),
                            x_row + (((piece + 2 + x_half) ^ r) << 4)};
  const uint32_t w_at[2] = {w_row + (((piece + w_half) ^ r) << 4),
                            w_row + (((piece + 2 + w_half) ^ r) << 4)};
  const bool busy = first16 < p.blocks16;
  uint32_t step[kMostBlocks]; /* to the warp's blocks; beyond the last the last again */
#pragma unroll
  for (int m = 0; m < kMostBlocks; ++m)
    step[m] = (min(first16 + m * step16, p.blocks16 - 1) - first16) * 2 * pitch;
  float sum[kMostBlocks][2][4] = {};
  uint32_t weights = 0, panel = 0;
  int in_page = 0, held = 0, c = 0;
#pragma unroll 1
  for (int end = p.panel ? chunks : half; c < chunks; end = chunks) {
    if (!p.panel) {
      if (end < chunks)
        copy16_wait<1>();
      else
        copy16_wait<0>();
      __syncthreads();
    }
#pragma unroll 1
    while (c < end) {
      if (in_page == 0) weights = ring.take(), ++held;
      const int n = min(end - c, per_page - in_page);
      if (busy) {
#pragma unroll(kMostBlocks <= 3 ? 2 : 1)
        for (int b = 0; b < n; ++b) {
          uint32_t x[2][4], a[2][kMostBlocks][4];
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            load_matrices(x[t], x_at[t] + panel + b * block);
#pragma unroll
            for (int m = 0; m < kMostBlocks; ++m)
              load_matrices(a[t][m], weights + b * 1024 + w_at[t] + step[m]);
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
      panel += n * block, weights += n * 1024, c += n, in_page += n;
      if (in_page == per_page) in_page = 0;
    }
  }
  for (; held > 0; --held) ring.release();
  finish_mma<kMostBlocks>(sum, p, work);
  ring.close();
  __syncthreads();
}

}  // namespace obk

#endif

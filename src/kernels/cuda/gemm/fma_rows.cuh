/* kernels/cuda/gemm/fma_rows.cuh — a tile of 9 to 64 rows by up to 64 columns in exact f32, whose
 * warps share out k.
 *
 *   if constexpr (fma_rows_fits<kType, S>()) fma_rows_tile<S>(g)      S as in gemm_fixed.cuh
 *
 * A warp has 16 columns of all rows of a block of 32 k, a thread a row in eight by four columns;
 * 8, 4 or 2 blocks are multiplied at a time, by as many warps as columns leave. So a tile of 16
 * columns keeps all warps busy, and GEMMs of few rows may be cut into narrow tiles that fill all
 * SMs. Both operands come by cp.async in steps of half a block, three stages of them in shared
 * memory. Blocks' partial sums are added in order through shared memory: the order, and the bits,
 * of fma.cuh.
 *
 * The function is called, and takes any k and columns: layers with as many rows share it. */
#ifndef OBK_FMA_ROWS_CUH
#define OBK_FMA_ROWS_CUH

#include "gemm/fma.cuh"
#include "gemm/gemm_fixed.cuh"

namespace obk {

template <int kType, typename S>
static constexpr bool fma_rows_fits() {
  return kType == kObkF32 && S::kRows > kFewRowsMost && S::kRows <= kFmaRowsMost &&
         S::kColumns <= kFmaTile && S::kSplitK == 1 && OBK_GEMM_SMEM_A >= kFewRowsLeastSmem;
}

/* kHigh: rows of a thread; of g.m up to 8 * kHigh. */
template <int kHigh>
static __device__ __noinline__ void fma_rows() {
  constexpr int kHalf = kFmaDepth / 2, kRows = 8 * kHigh;
  const ObkGemm& g = tile_arguments();
  const int k = (int)g.k, rows = (int)g.m, groups = ((int)g.n + 15) / 16;
  const int blocks = (k + kFmaDepth - 1) / kFmaDepth;
  const FmaRowsShape shape = fma_rows_shape(kRows, groups);
  const int log = shape.log_pieces, pieces = 1 << log;
  const uint32_t stages = (shared_address(g.scratch) + 15) & ~15u;
  const uint32_t parts = stages + kFmaRowsStages * shape.stage_bytes;
  const char* weights = (const char*)g.b + g.column / 16 * (int64_t)k * 64;
  const bool a_is_shared = __isShared(g.a);
  const int64_t a_row = g.a_row * 4;
  const int unit = (int)(((uint64_t)g.a | a_row) & 15);
  /* Of this thread: which of a round's blocks, which 16 columns, which rows and columns of them. */
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int piece = warp / groups, group = warp - piece * groups;
  const int first_row = lane / 4, four = lane % 4;

  /* Step s: half a block of each piece. A: [row][piece][16], and 4 more; B: [piece][group][16 k][16
   * columns]. Zeros behind k. */
  auto load = [&](int s) {
    const uint32_t a_at = stages + s % kFmaRowsStages * shape.stage_bytes,
                   b_at = a_at + shape.a_bytes;
    const int first = (s >> 1 << log) * kFmaDepth + (s & 1) * kHalf;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows << (log + 2); i += OBK_THREADS) {
      const int row = i >> (log + 2), p = i & ((4 << log) - 1);
      const int at = first + (p >> 2) * kFmaDepth + (p & 3) * 4, there = min(max(k - at, 0), 4);
      const uint32_t to = a_at + row * shape.row_bytes + p * 16;
      const char* of = (const char*)g.a + (there > 0 ? row * a_row + (int64_t)at * 4 : 0);
      fma_copy_four(to, of, there, unit, a_is_shared);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < groups << (log + 6); i += OBK_THREADS) {
      const int along = i >> 2 & 15, which = i >> 6;
      const int of_group = which >> log, of_piece = which & (pieces - 1);
      const int at = first + of_piece * kFmaDepth + along;
      copy16_partly(b_at + (of_piece * groups + of_group) * 1024 + (i & 63) * 16,
                    at < k ? weights + ((int64_t)of_group * k + at) * 64 + (i & 3) * 16 : weights,
                    at < k ? 16u : 0u);
    }
  };

  constexpr int kOutputs = (kHigh + 1) / 2; /* fours of a thread, at most */
  float total[kOutputs][4] = {}, sum[kHigh][4];
  const int fours = groups * 4, outputs = kRows * fours;
  const int steps = (blocks + pieces - 1) / pieces * 2;
#pragma unroll 1
  for (int s = -kFmaRowsStages + 1; s < steps; ++s) {
    if (s >= 0) copy16_wait<kFmaRowsStages - 2>(), __syncthreads();
    if (s + kFmaRowsStages - 1 < steps) load(s + kFmaRowsStages - 1);
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
    if (s < 0) continue;
    const int round = s >> 1;
    if (piece < pieces && (round << log) + piece < blocks) {
      const uint32_t stage = stages + s % kFmaRowsStages * shape.stage_bytes;
      const uint32_t a_at = stage + first_row * shape.row_bytes + piece * (kHalf * 4);
      const uint32_t b_at = stage + shape.a_bytes + (piece * groups + group) * 1024 + four * 16;
      if ((s & 1) == 0) {
#pragma unroll
        for (int i = 0; i < kHigh; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[i][c] = 0;
      }
#pragma unroll 2
      for (int at = 0; at < kHalf; at += 4) {
        uint32_t b[4][4];
#pragma unroll
        for (int q = 0; q < 4; ++q) load_shared16(b[q], b_at + (at + q) * 64);
#pragma unroll
        for (int i = 0; i < kHigh; ++i) {
          uint32_t a[4];
          load_shared16(a, a_at + i * 8 * shape.row_bytes + at * 4);
#pragma unroll
          for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int c = 0; c < 4; ++c)
              sum[i][c] = fmaf(__uint_as_float(a[q]), __uint_as_float(b[q][c]), sum[i][c]);
        }
      }
      if (s & 1) {
        const uint32_t to =
            parts + ((piece * groups + group) * kRows + first_row) * kFmaRowsPart + four * 16;
#pragma unroll
        for (int i = 0; i < kHigh; ++i) {
          uint32_t bits[4];
#pragma unroll
          for (int c = 0; c < 4; ++c) bits[c] = __float_as_uint(sum[i][c]);
          store_shared16(to + i * 8 * kFmaRowsPart, bits);
        }
      }
    }
    if ((s & 1) == 0) continue;
    __syncthreads();
    const int there = min(pieces, blocks - (round << log));
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int i = o * OBK_THREADS + threadIdx.x;
      if (i >= outputs) break;
      const int row = i / fours, c = i - row * fours;
      uint32_t at = parts + (c / 4 * kRows + row) * kFmaRowsPart + c % 4 * 16;
#pragma unroll 2
      for (int p = 0; p < there; ++p, at += groups * kRows * kFmaRowsPart) {
        uint32_t bits[4];
        load_shared16(bits, at);
#pragma unroll
        for (int e = 0; e < 4; ++e) total[o][e] += __uint_as_float(bits[e]);
      }
    }
  }
  copy16_wait<0>();
  float* c = (float*)g.c;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int i = o * OBK_THREADS + threadIdx.x, row = i / fours, column = (i - row * fours) * 4;
    if (row >= rows) break;
    float* to = c + row * g.c_row + column;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < g.n) to[e] = g.accumulate ? to[e] + total[o][e] : total[o][e];
  }
  __syncthreads();
}

template <typename S>
static __device__ __forceinline__ void fma_rows_tile(const ObkGemm& g) {
  if (threadIdx.x == 0) tile_arguments() = g;
  __syncthreads();
  fma_rows<(S::kRows + 7) / 8>();
}

}  // namespace obk

#endif

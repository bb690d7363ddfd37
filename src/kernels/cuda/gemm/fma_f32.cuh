/* kernels/cuda/gemm/fma_f32.cuh — a product tile of exact f32 on CUDA cores, of any shape.
 *
 * A pass is up to 64 x 64 of C, its operands in stages (f32_stages.cuh) of two blocks of 32 k. Four
 * warps multiply the first block, four the second, two below one another by two side by side. A
 * thread has four columns side by side of two, four or eight rows, as the pass has up to 16, 32 or
 * 64: what it reads of shared memory for each product bounds the tile. Its rows are four apart, so
 * that the warp's reads of A meet no bank twice. Each block makes a partial sum of its own, in
 * order of k; the second warps give theirs to the first, who add them in order, as in all f32
 * tiles: the order depends on k alone. With little shared memory a stage is one block, for all
 * warps. */
#ifndef OBK_FMA_F32_CUH
#define OBK_FMA_F32_CUH

#include "gemm/f32_stages.cuh"

namespace obk {

/* kRows: of the pass, padded. */
template <int kRows>
static __device__ __forceinline__ void fma_f32_pass(const ObkGemm& g, int64_t row, int64_t column) {
  constexpr int kBlocks = fma_f32_blocks(OBK_GEMM_SMEM_A), kWarps = 8 / kBlocks,
                kThreads = kWarps * 32, kHigh = kRows / (kWarps * 2);
  constexpr int kPlaces = fma_f32_places(kRows, OBK_GEMM_SMEM_A);
  const uint32_t work = (shared_address(g.scratch) + 15) & ~15u;
  F32Stage stage(g, row, column, kRows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int which = kBlocks == 1 ? 0 : warp / kWarps; /* of a stage's blocks */
  const int top = warp % kWarps / 2 * (4 * kHigh), left = warp % 2 * 32;
  const int first_row = top + lane / 8, first_column = left + lane % 8 * 4;
  const bool busy = top < stage.rows && left < stage.columns;
  const uint32_t a_at = which * f32_block_bytes(kRows) + first_row * kF32PitchA * 4;
  const uint32_t b_at = which * f32_block_bytes(kRows) + stage.behind + first_column * 4;
  /* The second blocks' partial sums, of two stages in turn. */
  const uint32_t given =
      work + kPlaces * kBlocks * f32_block_bytes(kRows) + threadIdx.x % kThreads * 16;
  constexpr int kGiven = kThreads * 16;
  float total[kHigh][4] = {};
  const auto add_given = [&](int s) {
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
      uint32_t words[4];
      load_shared16(words, given + ((s & 1) * kHigh + i) * kGiven);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[i][j] += __uint_as_float(words[j]);
    }
  };
  each_f32_stage<kPlaces, kBlocks, kRows, false>(stage, work, [&](int s, uint32_t at) {
    if (!busy) return;
    if (kBlocks == 2 && which == 0 && s > 0) add_given(s - 1);
    float part[kHigh][4] = {};
#pragma unroll(kHigh <= 4 ? 8 : 4)
    for (int k = 0; k < kFmaDepth; k += 4) {
      uint32_t x[kHigh][4], y[4][4];
#pragma unroll
      for (int i = 0; i < kHigh; ++i) load_shared16(x[i], at + a_at + (i * 4 * kF32PitchA + k) * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) load_shared16(y[e], at + b_at + (k + e) * kF32PitchB * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int i = 0; i < kHigh; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            part[i][j] = fmaf(__uint_as_float(x[i][e]), __uint_as_float(y[e][j]), part[i][j]);
    }
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
      if (which == 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][j] += part[i][j];
      } else {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = __float_as_uint(part[i][j]);
        store_shared16(given + ((s & 1) * kHigh + i) * kGiven, words);
      }
    }
  });
  if (kBlocks == 2) {
    __syncthreads();
    if (which == 0 && busy && stage.k > 0)
      add_given((stage.k + kBlocks * kFmaDepth - 1) / (kBlocks * kFmaDepth) - 1);
  }
  float* c = (float*)g.c + row * g.c_row + column;
#pragma unroll
  for (int i = 0; i < kHigh; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int y = first_row + i * 4, x = first_column + j;
      if (which == 0 && y < stage.rows && x < stage.columns) {
        float* to = c + y * g.c_row + x;
        *to = g.accumulate ? *to + total[i][j] : total[i][j];
      }
    }
  __syncthreads();
}

static __device__ __noinline__ void fma_f32_tile() {
  const ObkGemm g = tile_arguments();
#pragma unroll 1
  for (int64_t column = 0; column < g.n; column += kFmaTile)
#pragma unroll 1
    for (int64_t row = 0; row < g.m; row += kFmaTile) {
      const int64_t left = g.m - row;
      if (left <= 16)
        fma_f32_pass<16>(g, row, column);
      else if (left <= 32)
        fma_f32_pass<32>(g, row, column);
      else
        fma_f32_pass<64>(g, row, column);
    }
}

}  // namespace obk

#endif

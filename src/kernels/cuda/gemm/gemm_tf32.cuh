/* kernels/cuda/gemm/gemm_tf32.cuh — a product tile of f32 operands by mma.sync m16n8k8: each
 * operand is rounded to 10 bits of mantissa (cvt.rna.tf32) on its way from shared memory to the
 * tensor cores; sums are float.
 *
 * A pass is up to 64 x 64 of C, its operands in stages of 32 k (f32_stages.cuh). Each of a stage's
 * four steps of 8 k has a sum of its own, (0 + 1) + (2 + 3) at the end: the order depends on k
 * alone. A warp has 32 columns of 32 rows, or of 16 where there are no more, so that it reads
 * little of shared memory for each product; of up to 32 rows it has one of the steps, of more two.
 * Needs sm_80. */
#ifndef OBK_GEMM_TF32_CUH
#define OBK_GEMM_TF32_CUH

#include "gemm/f32_stages.cuh"

namespace obk {

/* kHigh: sixteens of a warp's rows; kGroups: of warps, that share out a stage's steps. */
template <int kHigh, int kGroups>
static __device__ __forceinline__ void tf32_pass(const ObkGemm& g, int64_t row, int64_t column) {
  constexpr int kChains = 4 / kGroups, kWarps = 8 / kGroups, kThreads = kWarps * 32;
  const uint32_t work = (shared_address(g.scratch) + 15) & ~15u;
  F32Stage stage(g, row, column, kFmaTile);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / kWarps;
  const int first_row = warp % kWarps / 2 * (16 * kHigh), first_column = warp % 2 * 32;
  const bool busy = first_row < stage.rows && first_column < stage.columns;
  /* The lane's row of ldmatrix, four floats: 8 rows, the next 8, and both of the next four k. */
  const int first_k = group * kChains * 8;
  const uint32_t a_at = ((first_row + lane % 16) * kF32PitchA + first_k + lane / 16 * 4) * 4;
  const uint32_t b_at =
      stage.behind + ((first_k + lane % 4) * kF32PitchB + first_column + lane / 4) * 4;
  float sum[kChains][kHigh][4][4] = {};
  each_f32_stage<kTf32Stages, 1, kFmaTile, true>(stage, work, [&](int, uint32_t at) {
    if (!busy) return;
#pragma unroll
    for (int t = 0; t < kChains; ++t) {
      uint32_t a[kHigh][4], b[4][2];
#pragma unroll
      for (int h = 0; h < kHigh; ++h) {
        load_matrices(a[h], at + a_at + (h * 16 * kF32PitchA + t * 8) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) a[h][e] = round_tf32(__uint_as_float(a[h][e]));
      }
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          b[n][e] = round_tf32(load_shared(at + b_at + ((t * 8 + e * 4) * kF32PitchB + n * 8) * 4));
#pragma unroll
      for (int h = 0; h < kHigh; ++h)
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_16x8x8(sum[t][h][n], a[h], b[n][0], b[n][1]);
    }
  });
  float(&all)[kHigh][4][4] = sum[0];
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int h = 0; h < kHigh; ++h)
#pragma unroll
      for (int n = 0; n < 4; ++n) f(h, n);
  };
  if constexpr (kChains == 2)
    each([&](int h, int n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) all[h][n][e] += sum[kChains - 1][h][n][e];
    });
  /* To the group before, where the operands lay: `from` gives, `from - step` adds. */
  const uint32_t mine = work + (threadIdx.x % kThreads) * 16;
  const auto join = [&](int step) {
    const auto place = [&](int of, int h, int n) {
      return mine + (of * kHigh * 4 + h * 4 + n) * (kThreads * 16);
    };
    __syncthreads();
    if (group % (2 * step) == step)
      each([&](int h, int n) {
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = __float_as_uint(all[h][n][e]);
        store_shared16(place(group, h, n), words);
      });
    __syncthreads();
    if (group % (2 * step) == 0)
      each([&](int h, int n) {
        uint32_t words[4];
        load_shared16(words, place(group + step, h, n));
#pragma unroll
        for (int e = 0; e < 4; ++e) all[h][n][e] += __uint_as_float(words[e]);
      });
  };
  join(1);
  if (kGroups == 4) join(2);
  if (busy && group == 0) {
    float* c = (float*)g.c + row * g.c_row + column;
    each([&](int h, int n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int y = first_row + h * 16 + lane / 4 + (e >> 1) * 8;
        const int x = first_column + n * 8 + lane % 4 * 2 + (e & 1);
        if (y < stage.rows && x < stage.columns) {
          float* to = c + y * g.c_row + x;
          *to = g.accumulate ? *to + all[h][n][e] : all[h][n][e];
        }
      }
    });
  }
  __syncthreads();
}

static __device__ __noinline__ void tf32_tile() {
  const ObkGemm g = tile_arguments();
#pragma unroll 1
  for (int64_t column = 0; column < g.n; column += kFmaTile)
#pragma unroll 1
    for (int64_t row = 0; row < g.m; row += kFmaTile) {
      const int64_t left = g.m - row;
      if (left <= 16)
        tf32_pass<1, 4>(g, row, column);
      else if (left <= 32)
        tf32_pass<2, 4>(g, row, column);
      else
        tf32_pass<2, 2>(g, row, column);
    }
}

}  // namespace obk

#endif

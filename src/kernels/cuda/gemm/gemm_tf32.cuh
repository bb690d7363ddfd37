/* kernels/cuda/gemm/gemm_tf32.cuh — a product tile of f32 operands by mma.sync m16n8k8: each
 * operand is rounded to 10 bits of mantissa (cvt.rna.tf32) on its way from shared memory to the
 * tensor cores; sums are float.
 *
 * A pass is up to 64 x 64 of C. Operands come as they are, in stages of 32 k, four in flight: rows
 * of A of 36 floats, rows of B of 72, so that fragments meet no bank twice. Eight warps share the
 * rectangle, 16 rows each, then columns. Any strides and alignment; A in global or shared memory;
 * packed B lies as that of f32 (fma.cuh). The order of a sum depends on k alone. Needs sm_80. */
#ifndef OBK_GEMM_TF32_CUH
#define OBK_GEMM_TF32_CUH

#include "gemm/fma.cuh"

namespace obk {

/* A stage of a pass comes to shared memory at `at`: k from `first` on. */
struct Tf32Stage {
  const float *a, *b; /* of the pass: its first row; its first column, or packed B */
  int64_t a_row, a_col, b_row, b_col;
  int rows, columns, k;
  int a_mode, b_mode; /* 0 by 16 bytes, 1 by elements, 2 by elements of shared memory, 3 packed */

  __device__ __forceinline__ Tf32Stage(const ObkGemm& g, int64_t row, int64_t column) {
    rows = g.m - row < kFmaTile ? (int)(g.m - row) : (int)kFmaTile;
    columns = g.n - column < kFmaTile ? (int)(g.n - column) : (int)kFmaTile;
    k = (int)g.k, a_row = g.a_row, a_col = g.a_col, b_row = g.b_row, b_col = g.b_col;
    a = (const float*)g.a + row * a_row;
    a_mode = __isShared(a)                                                              ? 2
             : a_col == 1 && ((uint64_t)a & 15) == 0 && ((a_row & 3) == 0 || rows <= 1) ? 0
                                                                                        : 1;
    if (g.packed) {
      b = (const float*)g.b + (g.column + column) * g.k, b_mode = 3;
    } else {
      b = (const float*)g.b + column * b_col;
      const bool whole = columns % 4 == 0 && ((uint64_t)b & 15) == 0 && (b_row & 3) == 0;
      b_mode = b_col == 1 && whole ? 0 : 1;
    }
  }
  __device__ __forceinline__ void load(uint32_t at, int first) const {
    const int thread = threadIdx.x, left = k - first;
    if (a_mode == 0) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = (thread + e * 256) >> 3, q = (thread & 7) * 4, there = left - q;
        if (r < rows)
          copy16_partly(at + (r * kTf32PitchA + q) * 4, there > 0 ? a + r * a_row + first + q : a,
                        there >= 4  ? 16u
                        : there > 0 ? there * 4u
                                    : 0u);
      }
    } else {
      const bool down = a_row == 1; /* threads side by side take rows, else k */
#pragma unroll 1
      for (int i = thread; i < kFmaTile * kFmaDepth; i += 256) {
        const int r = down ? i % kFmaTile : i / kFmaDepth;
        const int q = down ? i / kFmaTile : i % kFmaDepth;
        if (r >= rows) continue;
        const bool there = q < left;
        const float* from = there ? a + r * a_row + (first + q) * a_col : a;
        const uint32_t to = at + (r * kTf32PitchA + q) * 4;
        if (a_mode == 2)
          store_shared(to, there ? *from : 0.0f);
        else
          copy_unit<4>(to, from, there ? 4u : 0u);
      }
    }
    const uint32_t behind = at + kFmaTile * kTf32PitchA * 4;
    if (b_mode == 1) {
      const bool along = b_row == 1; /* neighbours are k */
#pragma unroll 1
      for (int i = thread; i < kFmaTile * kFmaDepth; i += 256) {
        const int q = along ? i % kFmaDepth : i / kFmaTile;
        const int c = along ? i / kFmaDepth : i % kFmaTile;
        if (c < columns)
          copy_unit<4>(behind + (q * kTf32PitchB + c) * 4,
                       q < left ? b + (first + q) * b_row + c * b_col : b, q < left ? 4u : 0u);
      }
      return;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int q = (thread + e * 256) >> 4, c = (thread & 15) * 4;
      if (c >= columns) continue;
      const float* from = b_mode == 3 ? b + ((int64_t)(c >> 4) * k + first + q) * 16 + (c & 15)
                                      : b + (first + q) * b_row + c;
      copy16_partly(behind + (q * kTf32PitchB + c) * 4, q < left ? from : b, q < left ? 16u : 0u);
    }
  }
};

static __device__ __forceinline__ void tf32_pass(const ObkGemm& g, int64_t row, int64_t column) {
  const uint32_t work = (shared_address(g.scratch) + 15) & ~15u;
  const Tf32Stage stage(g, row, column);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int log = stage.rows <= 16 ? 0 : stage.rows <= 32 ? 1 : 2; /* of warps along the rows */
  const int wide = 1 << log; /* a warp's blocks of 8 columns */
  const int first_row = (warp & (wide - 1)) * 16, first_column = (warp >> log) * wide * 8;
  const bool busy = first_row < stage.rows && first_column < stage.columns;
  const uint32_t a_at = work + ((first_row + lane / 4) * kTf32PitchA + lane % 4) * 4;
  const uint32_t b_at =
      work + kFmaTile * kTf32PitchA * 4 + (lane % 4 * kTf32PitchB + first_column + lane / 4) * 4;
  float sum[4][4] = {};
  const int steps = (stage.k + kFmaDepth - 1) / kFmaDepth;
#pragma unroll 1
  for (int s = -kTf32Stages + 1; s < steps; ++s) {
    if (s >= 0) copy16_wait<kTf32Stages - 2>(), __syncthreads();
    const int next = s + kTf32Stages - 1;
    if (next < steps)
      stage.load(work + (next & (kTf32Stages - 1)) * kTf32StageBytes, next * kFmaDepth);
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
    if (s < 0 || !busy) continue;
    const uint32_t at = (s & (kTf32Stages - 1)) * kTf32StageBytes;
#pragma unroll
    for (int t = 0; t < kFmaDepth / 8; ++t) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        a[e] = round_tf32(
            load_shared(a_at + at + ((e & 1) * 8 * kTf32PitchA + t * 8 + (e >> 1) * 4) * 4));
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n < wide) {
          const uint32_t from = b_at + at + (t * 8 * kTf32PitchB + n * 8) * 4;
          mma_16x8x8(sum[n], a, round_tf32(load_shared(from)),
                     round_tf32(load_shared(from + 4 * kTf32PitchB * 4)));
        }
    }
  }
  copy16_wait<0>();
  if (busy) {
    float* c = (float*)g.c + row * g.c_row + column;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int y = first_row + lane / 4 + (e >> 1) * 8;
        const int x = first_column + n * 8 + lane % 4 * 2 + (e & 1);
        if (n < wide && y < stage.rows && x < stage.columns) {
          float* to = c + y * g.c_row + x;
          *to = g.accumulate ? *to + sum[n][e] : sum[n][e];
        }
      }
  }
  __syncthreads();
}

static __device__ __noinline__ void tf32_tile() {
  const ObkGemm g = tile_arguments();
#pragma unroll 1
  for (int64_t column = 0; column < g.n; column += kFmaTile)
#pragma unroll 1
    for (int64_t row = 0; row < g.m; row += kFmaTile) tf32_pass(g, row, column);
}

}  // namespace obk

#endif

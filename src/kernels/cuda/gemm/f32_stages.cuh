/* kernels/cuda/gemm/f32_stages.cuh — how f32 operands of a product come to shared memory, for the
 * tiles of the CUDA cores (fma_f32.cuh) and of the tensor cores (gemm_tf32.cuh).
 *
 * A pass is up to 64 x 64 of C. Operands come as they are, in blocks of 32 k, some in flight: rows
 * of A of 36 floats, rows of B of 72, so that fragments meet no bank twice. Any strides and
 * alignment; A in global or shared memory; packed B lies as fma.cuh says. */
#ifndef OBK_F32_STAGES_CUH
#define OBK_F32_STAGES_CUH

#include "gemm/fma.cuh"
#include "gemm/pieces.cuh"

namespace obk {

/* A pass's operands, and how blocks of them come to shared memory, one after another. */
struct F32Stage {
  const float *a, *b; /* of the pass: its first row; its first column, or packed B */
  uint32_t behind;    /* where in a block B begins, in bytes */
  int64_t a_row, a_col, b_row, b_col;
  int rows, columns, k;
  int next = 0;          /* k of the next block */
  bool a_whole, b_whole; /* copied by pieces, else by elements; A by elements from shared memory */
  Pieces<4, kFmaDepth> a_pieces, b_pieces;

  /* padded: rows of A that a block has room for. */
  __device__ __forceinline__ F32Stage(const ObkGemm& g, int64_t row, int64_t column, int padded)
      : behind(padded * kF32PitchA * 4) {
    rows = g.m - row < kFmaTile ? (int)(g.m - row) : (int)kFmaTile;
    columns = g.n - column < kFmaTile ? (int)(g.n - column) : (int)kFmaTile;
    k = (int)g.k, a_row = g.a_row, a_col = g.a_col, b_row = g.b_row, b_col = g.b_col;
    a = (const float*)g.a + row * a_row;
    a_whole =
        !__isShared(a) && a_col == 1 && ((uint64_t)a & 15) == 0 && ((a_row & 3) == 0 || rows <= 1);
    const int down = threadIdx.x >> 3, along = (threadIdx.x & 7) * 4;
    a_pieces.of_k = false, a_pieces.k = a_pieces.k_second = along;
    a_pieces.from = (const char*)(a + down * a_row + along);
    a_pieces.second = a_row * 128, a_pieces.block = kFmaDepth * 4;
    a_pieces.to = (down * kF32PitchA + along) * 4;
    a_pieces.to_second = a_pieces.to + 32 * kF32PitchA * 4;
    a_pieces.bytes = down < rows ? 16 : 0, a_pieces.bytes_second = down + 32 < rows ? 16 : 0;

    b = g.packed ? (const float*)g.b + (g.column + column) * g.k
                 : (const float*)g.b + column * b_col;
    const bool aligned = columns % 4 == 0 && ((uint64_t)b & 15) == 0 && (b_row & 3) == 0;
    b_whole = g.packed || (b_col == 1 && aligned);
    const int of_k = threadIdx.x >> 4, c = (threadIdx.x & 15) * 4;
    const int64_t row_bytes = g.packed ? 64 : b_row * 4;
    b_pieces.of_k = true, b_pieces.k = of_k, b_pieces.k_second = of_k + 16;
    b_pieces.from = (const char*)b + of_k * row_bytes +
                    (g.packed ? ((int64_t)(c >> 4) * k * 16 + (c & 15)) * 4 : c * 4);
    b_pieces.second = row_bytes * 16, b_pieces.block = row_bytes * kFmaDepth;
    b_pieces.to = behind + (of_k * kF32PitchB + c) * 4;
    b_pieces.to_second = b_pieces.to + 16 * kF32PitchB * 4;
    b_pieces.bytes = b_pieces.bytes_second = c < columns ? 16 : 0;
  }
  /* The next block, to `at`; zeros behind the last k. */
  __device__ __forceinline__ void load(uint32_t at) {
    const int left = k - next;
    if (a_whole)
      a_pieces.load(at, left);
    else
      load_elements_of_a(at, left);
    if (b_whole)
      b_pieces.load(at, left);
    else
      load_elements_of_b(at + behind, left);
    next += kFmaDepth;
  }
  __device__ __forceinline__ void load_elements_of_a(uint32_t at, int left) const {
    const bool down = a_row == 1; /* threads side by side take rows, else k */
    const bool is_shared = __isShared(a);
#pragma unroll 1
    for (int i = threadIdx.x; i < kFmaTile * kFmaDepth; i += 256) {
      const int r = down ? i % kFmaTile : i / kFmaDepth;
      const int q = down ? i / kFmaTile : i % kFmaDepth;
      if (r >= rows) continue;
      const float* from = q < left ? a + r * a_row + (next + q) * a_col : a;
      const uint32_t to = at + (r * kF32PitchA + q) * 4;
      if (is_shared)
        store_shared(to, q < left ? *from : 0.0f);
      else
        copy_unit<4>(to, from, q < left ? 4u : 0u);
    }
  }
  __device__ __forceinline__ void load_elements_of_b(uint32_t at, int left) const {
    const bool along = b_row == 1; /* neighbours are k */
#pragma unroll 1
    for (int i = threadIdx.x; i < kFmaTile * kFmaDepth; i += 256) {
      const int q = along ? i % kFmaDepth : i / kFmaTile;
      const int c = along ? i / kFmaDepth : i % kFmaTile;
      if (c < columns)
        copy_unit<4>(at + (q * kF32PitchB + c) * 4,
                     q < left ? b + (next + q) * b_row + c * b_col : b, q < left ? 4u : 0u);
    }
  }
};

/* each_stage() of stages of kBlocks blocks of 32 k, of kRows rows of A, one behind the other. */
template <int kPlaces, int kBlocks, int kRows, bool kMultipliesFirst, typename M>
static __device__ __forceinline__ void each_f32_stage(F32Stage& stage, uint32_t work,
                                                      M&& multiply) {
  constexpr int kDepth = kBlocks * kFmaDepth, kBlock = f32_block_bytes(kRows);
  const auto load = [&](int, uint32_t at) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) stage.load(at + b * kBlock);
  };
  each_stage<kPlaces, kBlocks * kBlock, kMultipliesFirst>((stage.k + kDepth - 1) / kDepth, work,
                                                          load, multiply);
}

}  // namespace obk

#endif

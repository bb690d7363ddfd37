/* kernels/cuda/gemm/fma_few_rows.cuh — a tile of one to eight rows in exact f32: bound by loading
 * weights, which are read once for all rows.
 *
 *   if constexpr (few_rows_fits<kType, S>()) fma_few_rows_tile<S>(g)      S as in gemm_fixed.cuh
 *
 * Four threads have 16 columns of a block of 32 k: each multiplies four columns of all rows,
 * weights in registers, A in shared memory, and leaves a partial sum. Blocks' partial sums are
 * added in order: the order, and the bits, of fma.cuh. A round is 64 such pieces, of so many blocks
 * of all the tile's columns; the weights of the next round are requested as registers become free,
 * so that they are on their way while sums are joined and A comes (in one kernel half of them).
 *
 * The function is called, and takes any k and up to 64 columns: layers with as many rows share it.
 */
#ifndef OBK_FMA_FEW_ROWS_CUH
#define OBK_FMA_FEW_ROWS_CUH

#include "gemm/fma.cuh"
#include "gemm/gemm_fixed.cuh"

namespace obk {

template <int kType, typename S>
static constexpr bool few_rows_fits() {
  return kType == kObkF32 && S::kRows <= kFewRowsMost && S::kColumns <= kFewRowsColumns &&
         S::kSplitK == 1 && OBK_GEMM_SMEM_A >= kFewRowsLeastSmem;
}

/* Half a block's weights of this thread: four columns of 16 k. `count` of them are there. */
struct FewRowsWeights {
  static constexpr int kDepth = kFmaDepth / 2;
  uint32_t at[kDepth][4];
  __device__ __forceinline__ void request(const char* from, int count) {
    if (count >= kDepth) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) load_global(at[k], from + k * 64);
    } else {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[k][e] = 0;
        if (k < count) load_global(at[k], from + k * 64);
      }
    }
  }
};

/* Whether both halves of a block are under way. In one kernel the function shares the registers
 * with what calls it, and 128 for weights would spill. */
#ifdef OBK_MONO
static constexpr bool kFewRowsAhead = false;
#else
static constexpr bool kFewRowsAhead = true;
#endif

/* kRows: 1, 2, 4 or 8; of g.m, the others are zero. */
template <int kRows>
static __device__ __noinline__ void fma_few_rows() {
  constexpr int kDepth = FewRowsWeights::kDepth;
  const ObkGemm& g = tile_arguments();
  const int k = (int)g.k, n = (int)g.n, groups = (n + 15) / 16, blocks = (k + 31) / 32;
  const FewRowsShape shape = few_rows_shape(kRows, groups, blocks);
  const uint32_t a_at = (shared_address(g.scratch) + 15) & ~15u, parts_at = a_at + shape.a_bytes;
  /* This thread's piece: which of a round's blocks, which 16 columns. */
  const int piece = threadIdx.x / 4, four = threadIdx.x % 4;
  const int mine = piece / groups, group = piece - mine * groups;
  const char* weights =
      (const char*)g.b + ((g.column / 16 + group) * (int64_t)k * 16 + four * 4) * 4;
  auto left = [&](int round) { /* k from the piece's first on */
                               const int block = round * shape.blocks + mine;
                               return mine < shape.blocks && block < blocks ? k - block * kFmaDepth
                                                                            : 0;
  };
  auto from = [&](int round) {
    return weights + (int64_t)(round * shape.blocks + mine) * (kFmaDepth * 64);
  };
  FewRowsWeights low, high; /* a function of one kernel has registers for one of them */
  low.request(from(0), left(0));
  if (kFewRowsAhead) high.request(from(0) + kDepth * 64, left(0) - kDepth);

  const bool a_is_shared = __isShared(g.a);
  const int rows = (int)g.m;
  const int64_t a_row = rows > 1 ? g.a_row * 4 : 0;
  const int unit = (int)(((uint64_t)g.a | a_row) & 15);
  /* A of a round: [row][block][32 and 4 more], by pieces of four; zeros behind k and the rows. */
  auto bring = [&](int round) {
    const int first = round * shape.blocks * kFmaDepth, pieces = shape.blocks * (kFmaDepth / 4);
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * pieces; i += OBK_THREADS) {
      const int row = kRows == 1 ? 0 : i / pieces, p = i - row * pieces;
      const int at = first + p * 4, there = row < rows ? min(max(k - at, 0), 4) : 0;
      const uint32_t to = a_at + row * shape.row_bytes + p / 8 * kFewRowsBlockBytes + p % 8 * 16;
      const char* of = (const char*)g.a + (there > 0 ? row * a_row + (int64_t)at * 4 : 0);
      fma_copy_four(to, of, there, unit, a_is_shared);
    }
    copy16_commit();
    copy16_wait<0>();
    __syncthreads();
  };
  bring(0);

  constexpr int kOutputs = kRows * kFewRowsColumns / OBK_THREADS > 0
                               ? kRows * kFewRowsColumns / OBK_THREADS
                               : 1; /* of a thread */
  float total[kOutputs] = {};
  const uint32_t a_mine = a_at + mine * kFewRowsBlockBytes;
  const uint32_t part = parts_at + 4 * ((mine * groups + group) * few_rows_part(kRows) + four * 4);
  const int wide = groups * 16, outputs = kRows * wide;
#pragma unroll 1
  for (int round = 0; round < shape.rounds; ++round) {
    const bool busy = left(round) > 0;
    float sum[kRows][4] = {};
    auto multiply = [&](const FewRowsWeights& w, uint32_t a_from) {
#pragma unroll
      for (int j = 0; j < kDepth; j += 4)
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          uint32_t a[4];
          load_shared16(a, a_from + r * shape.row_bytes + j * 4);
#pragma unroll
          for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int c = 0; c < 4; ++c)
              sum[r][c] = fmaf(__uint_as_float(a[e]), __uint_as_float(w.at[j + e][c]), sum[r][c]);
        }
    };
    if (busy) multiply(low, a_mine);
    if constexpr (kFewRowsAhead) {
      low.request(from(round + 1), left(round + 1));
      if (busy) multiply(high, a_mine + kDepth * 4);
      high.request(from(round + 1) + kDepth * 64, left(round + 1) - kDepth);
    } else {
      low.request(from(round) + kDepth * 64, left(round) - kDepth);
      if (busy) multiply(low, a_mine + kDepth * 4);
      low.request(from(round + 1), left(round + 1));
    }
    if (busy) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t bits[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) bits[c] = __float_as_uint(sum[r][c]);
        store_shared16(part + r * 64, bits);
      }
    }
    __syncthreads();
    const int there = min(shape.blocks, blocks - round * shape.blocks);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int i = o * OBK_THREADS + threadIdx.x;
      if (i >= outputs) break;
      const int row = i / wide, column = i - row * wide;
      uint32_t at = parts_at + 4 * (column / 16 * few_rows_part(kRows) + row * 16 + column % 16);
#pragma unroll 8
      for (int b = 0; b < there; ++b, at += 4 * groups * few_rows_part(kRows))
        total[o] += load_shared(at);
    }
    if (round + 1 < shape.rounds) bring(round + 1);
  }
  float* c = (float*)g.c;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int i = o * OBK_THREADS + threadIdx.x, row = i / wide, column = i - row * wide;
    if (row >= rows || column >= n) continue;
    float* to = c + row * g.c_row + column;
    *to = g.accumulate ? *to + total[o] : total[o];
  }
  __syncthreads();
}

template <typename S>
static __device__ __forceinline__ void fma_few_rows_tile(const ObkGemm& g) {
  if (threadIdx.x == 0) tile_arguments() = g;
  __syncthreads();
  fma_few_rows<few_rows_padded(S::kRows)>();
}

}  // namespace obk

#endif

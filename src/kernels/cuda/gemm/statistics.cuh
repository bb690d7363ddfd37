/* kernels/cuda/gemm/statistics.cuh — a norm's statistics of rows of 16-bit numbers, beside the
 * product that reads them: mean and 1 / sqrt(variance + epsilon), f32.
 *
 *   find_statistics<bf16>(g)     of the rows of g.a to g.statistics [m][2], by all 256 threads:
 * from what the body that stored them has left (g.partials), or from the rows give_partials
 * (dialect.cuh)  in that body: of 16 neighbouring columns, whose values lanes hold
 *
 * Each of the two ways has one order of sums, whatever the tile, so that a row's bits do not depend
 * on it. Partial statistics are a sum and the squares about the mean of their own 16; rows are
 * summed as x - x0, x0 the row's first element: the variance of a row whose mean is far from 0 does
 * not cancel. */
#ifndef OBK_STATISTICS_CUH
#define OBK_STATISTICS_CUH

#include "core/ptx.cuh"
#include "tiles.h"

namespace obk {

static constexpr int kStatisticBlocks = 4; /* of a chunk */

template <bool kBfloat>
static __device__ __forceinline__ void unpack_halves(uint32_t word, float& low, float& high) {
  if (kBfloat) {
    low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
  } else {
    low = widen_f16_bits((uint16_t)word), high = widen_f16_bits((uint16_t)(word >> 16));
  }
}

/* Four threads have the quarters of each 64 columns (two pieces of 16 bytes); chunks of four such
 * blocks are summed for themselves and added in order, then quarters ((0 + 1) + (2 + 3)). */
template <bool kBfloat>
struct RowSums {
  float first, sum, squares, all, all_squares; /* of a chunk; of those before */

  __device__ __forceinline__ void begin(float x0) {
    first = x0, sum = squares = all = all_squares = 0;
  }
  __device__ __forceinline__ void add(uint32_t word) {
    float a, b;
    unpack_halves<kBfloat>(word, a, b);
    a = __fsub_rn(a, first), b = __fsub_rn(b, first);
    sum = __fadd_rn(__fadd_rn(sum, a), b);
    squares = __fmaf_rn(b, b, __fmaf_rn(a, a, squares));
  }
  __device__ __forceinline__ void add(const uint32_t (&words)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) add(words[k]);
  }
  /* Quarters of a row, in lanes that are neighbours; all of them get the answer. */
  __device__ __forceinline__ void join(int columns, float epsilon, bool centred, float& mean,
                                       float& inverse) {
#pragma unroll
    for (int mask = 1; mask <= 2; mask <<= 1) {
      all = __fadd_rn(all, __shfl_xor_sync(0xffffffffu, all, mask));
      all_squares = __fadd_rn(all_squares, __shfl_xor_sync(0xffffffffu, all_squares, mask));
    }
    const float off = all / (float)columns;
    const float variance = fmaxf(__fmaf_rn(-off, off, all_squares / (float)columns), 0.0f);
    mean = centred ? __fadd_rn(first, off) : 0.0f;
    inverse = 1.0f / sqrtf((centred ? variance : all_squares / (float)columns) + epsilon);
  }
};

struct __align__(16) Words16 { uint32_t of[4]; };

/* Eight elements of a row. */
static __device__ __forceinline__ void row_piece(const uint16_t* from, int64_t step, bool whole,
                                                 uint32_t (&words)[4]) {
  if (whole) {
    const Words16 v = *(const Words16*)from;
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = v.of[k];
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      words[k] = from[2 * k * step] | (uint32_t)from[(2 * k + 1) * step] << 16;
  }
}

/* Of the rows of g.a to g.statistics [m][2], by all 256 threads. */
/* A warp of the eight a row: lane q + 4 c has the quarter q of the chunks c, c + 8, ... */
template <bool kBfloat>
static __device__ __forceinline__ void row_statistics(const ObkGemm& g) {
  const int lane = threadIdx.x % 32, blocks = (int)(g.k / 64);
  const int chunks = (blocks + kStatisticBlocks - 1) / kStatisticBlocks;
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < (int)g.m; r += 8) {
    const uint16_t* row = (const uint16_t*)g.a + (int64_t)r * g.a_row;
    const bool whole = g.a_col == 1 && ((uint64_t)row & 15) == 0;
    RowSums<kBfloat> sums;
    float x0 = 0, other;
    if (g.centred) unpack_halves<kBfloat>(*row, x0, other);
    sums.begin(x0);
    float all = 0, all_squares = 0;
#pragma unroll 1
    for (int c = 0; c < chunks; c += 8) {
      sums.sum = sums.squares = 0;
      uint32_t words[2 * kStatisticBlocks][4];
#pragma unroll
      for (int b = 0; b < kStatisticBlocks; ++b) {
        const int block = (c + lane / 4) * kStatisticBlocks + b;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (block < blocks)
            row_piece(row + ((int64_t)block * 64 + lane % 4 * 16 + h * 8) * g.a_col, g.a_col, whole,
                      words[2 * b + h]);
      }
#pragma unroll
      for (int b = 0; b < kStatisticBlocks; ++b)
        if ((c + lane / 4) * kStatisticBlocks + b < blocks) {
          sums.add(words[2 * b]);
          sums.add(words[2 * b + 1]);
        }
#pragma unroll
      for (int other_chunk = 0; other_chunk < 8; ++other_chunk) { /* in order */
        const int from = other_chunk * 4 + lane % 4;
        const float s = __shfl_sync(0xffffffffu, sums.sum, from);
        const float q = __shfl_sync(0xffffffffu, sums.squares, from);
        if (c + other_chunk < chunks)
          all = __fadd_rn(all, s), all_squares = __fadd_rn(all_squares, q);
      }
    }
    sums.all = all, sums.all_squares = all_squares;
    float mean, inverse;
    sums.join((int)g.k, g.epsilon, g.centred != 0, mean, inverse);
    if (lane == 0) g.statistics[2 * r] = mean, g.statistics[2 * r + 1] = inverse;
  }
}

/* Four threads a row: thread q has pairs q, q + 4, ... of partial statistics of 16 columns each.
 * What is summed of means is their distance from the row's first, so that a mean far from 0 does
 * not cancel the variance. kMost: pairs of a thread at once. */
static constexpr int kPartialColumns = 16;

template <int kMost>
struct RowPartials {
  uint32_t of[kMost][4];

  static __device__ __forceinline__ int row_of(const ObkGemm& g, int first) {
    return min(first + (int)threadIdx.x / 4, (int)g.m - 1);
  }
  static __device__ __forceinline__ int pairs(const ObkGemm& g) {
    return (int)g.k / (2 * kPartialColumns);
  }
  /* Those from the thread's number `from` on. */
  __device__ __forceinline__ void ask(const ObkGemm& g, int first, int from) {
    const Words16* row = (const Words16*)g.partials + row_of(g, first) * pairs(g);
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      const int k = threadIdx.x % 4 + 4 * (from + e);
      if (k >= pairs(g)) continue;
      const Words16 words = row[k];
#pragma unroll
      for (int n = 0; n < 4; ++n) of[e][n] = words.of[n];
    }
  }
  struct Sums {
    float about, means, squares, inside;
  };
  __device__ __forceinline__ void add(const ObkGemm& g, int from, Sums& s) const {
    if (from == 0) {
      const float x = __shfl_sync(0xffffffffu, __uint_as_float(of[0][0]), threadIdx.x % 32 & ~3);
      s = {g.centred ? __fmul_rn(x, 1.0f / kPartialColumns) : 0.0f, 0, 0, 0};
    }
#pragma unroll
    for (int e = 0; e < kMost; ++e) {
      if ((int)(threadIdx.x % 4) + 4 * (from + e) >= pairs(g)) continue;
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const float off = __fmaf_rn(__uint_as_float(of[e][n]), 1.0f / kPartialColumns, -s.about);
        s.means = __fadd_rn(s.means, off);
        s.squares = __fmaf_rn(off, off, s.squares);
        s.inside = __fadd_rn(s.inside, __uint_as_float(of[e][n + 1]));
      }
    }
  }
  static __device__ __forceinline__ void give(const ObkGemm& g, int first, Sums s) {
#pragma unroll
    for (int mask = 1; mask <= 2; mask <<= 1) {
      s.means = __fadd_rn(s.means, __shfl_xor_sync(0xffffffffu, s.means, mask));
      s.squares = __fadd_rn(s.squares, __shfl_xor_sync(0xffffffffu, s.squares, mask));
      s.inside = __fadd_rn(s.inside, __shfl_xor_sync(0xffffffffu, s.inside, mask));
    }
    const int r = first + (int)threadIdx.x / 4;
    if (threadIdx.x % 4 != 0 || r >= (int)g.m) return;
    const float off = __fmul_rn(s.means, (float)kPartialColumns / (float)g.k);
    const float spread = g.centred ? fmaxf(__fmaf_rn(-off, s.means, s.squares), 0.0f) : s.squares;
    const float variance =
        __fmul_rn(__fmaf_rn(spread, (float)kPartialColumns, s.inside), 1.0f / (float)g.k);
    g.statistics[2 * r] = g.centred ? __fadd_rn(s.about, off) : 0.0f;
    g.statistics[2 * r + 1] = 1.0f / sqrtf(__fadd_rn(variance, g.epsilon));
  }
};

static __device__ __forceinline__ void join_partials(const ObkGemm& g) {
  constexpr int kMost = 2;
  typedef RowPartials<kMost> Partials;
  const int each = (Partials::pairs(g) + 3) / 4; /* of a thread */
#pragma unroll 1
  for (int first = 0; first < (int)g.m; first += 64) {
    typename Partials::Sums sums;
#pragma unroll 1
    for (int from = 0; from < each; from += kMost) {
      Partials partials;
      partials.ask(g, first, from);
      partials.add(g, from, sums);
    }
    Partials::give(g, first, sums);
  }
}

/* What a tile's epilogue needs of its rows, where its body requests it. */
template <bool kBfloat>
static __device__ __forceinline__ void find_statistics(const ObkGemm& g) {
  if (g.partials)
    join_partials(g);
  else if (g.statistics)
    row_statistics<kBfloat>(g);
}

}  // namespace obk

#endif

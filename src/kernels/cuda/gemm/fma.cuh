/* kernels/cuda/gemm/fma.cuh — product tiles on CUDA cores: f64, and int8 or uint8 with zero points
 * to int32; f32: fma_f32.cuh.
 *
 * A pass is 64 x 64 of C, each of 256 threads 4 x 4. Each 32 k make a partial sum of its own, in
 * order of k; partial sums are added in their order. So a sum's order depends on k alone. Packed B:
 * [n / 16][k][16 columns] of the sum's input (int8: int16 with the zero point taken off). */
#ifndef OBK_FMA_CUH
#define OBK_FMA_CUH

#include "core/dialect.cuh"
#include "gemm/gemm_shape.h"
#include "tiles.h"

namespace obk {

/* A tile's structure on its way to the function that computes it. */
static __device__ __forceinline__ ObkGemm& tile_arguments() {
  static __shared__ ObkGemm g;
  return g;
}

struct FmaF64 {
  typedef double Sum;
  typedef double Packed;
  static __device__ Sum read(const void* p, int64_t i, int) { return ((const double*)p)[i]; }
  static __device__ Sum zero(const void*, int64_t, int) { return 0; }
  static __device__ Sum fma(Sum a, Sum b, Sum c) { return ::fma(a, b, c); }
};
struct FmaInt {
  typedef int32_t Sum;
  typedef int16_t Packed;
  static __device__ Sum read(const void* p, int64_t i, int type) {
    return type == kObkI8 ? (int)((const int8_t*)p)[i] : (int)((const uint8_t*)p)[i];
  }
  static __device__ Sum zero(const void* p, int64_t i, int type) {
    return p ? read(p, i, type) : 0;
  }
  static __device__ Sum fma(Sum a, Sum b, Sum c) {
    return (Sum)((uint32_t)a * (uint32_t)b + (uint32_t)c);
  }
};

/* Four f32 of A along k to shared memory at `to`: the first `there`, then zeros. From shared memory
 * at once, from global memory by cp.async; `unit`: the lowest four bits of A's address and of the
 * bytes of its rows. */
static __device__ __forceinline__ void fma_copy_four(uint32_t to, const char* of, int there,
                                                     int unit, bool is_shared) {
  if (is_shared) {
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = e < there ? load_shared_word(shared_address(of) + 4 * e) : 0;
    store_shared16(to, v);
  } else if (unit == 0 && there % 4 == 0) { /* a copy is whole: A may end behind k */
    copy_piece<16>(to, of, there * 4);
  } else if (unit % 8 == 0 && there % 2 == 0) {
    copy_piece<8>(to, of, there * 4);
  } else {
    copy_piece<4>(to, of, there * 4);
  }
}

template <typename Kind>
static __device__ __forceinline__ void fma_pass(const ObkGemm& g, int64_t row, int64_t column) {
  typedef typename Kind::Sum Sum;
  constexpr int kDepth = kFmaDepth, kTile = kFmaTile, kEach = kDepth * kTile / 256;
  constexpr int kPitchA = kDepth + kFmaPad, kPitchB = kTile + kFmaPad;
  Sum* as = (Sum*)(((uint64_t)g.scratch + 15) & ~15ull); /* [2][row][k] */
  Sum* bs = as + 2 * kTile * kPitchA;                    /* [2][k][column] */
  const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;
  const bool rows_first = g.a_row == 1 && g.a_col != 1;
  const bool k_first = !g.packed && g.b_row == 1 && g.b_col != 1;
  /* Element e of this thread: where it lies in the tile. */
  auto a_place = [&](int e, int& r, int& k) {
    const int i = thread + e * 256;
    if (rows_first)
      r = i % kTile, k = i / kTile;
    else
      k = i % kDepth, r = i / kDepth;
  };
  auto b_place = [&](int e, int& c, int& k) {
    const int i = thread + e * 256;
    if (k_first)
      k = i % kDepth, c = i / kDepth;
    else
      c = i % kTile, k = i / kTile;
  };
  Sum a[kEach], b[kEach];
  auto fetch = [&](int64_t from) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int r, k;
      a_place(e, r, k);
      a[e] = 0;
      if (row + r < g.m && from + k < g.k)
        a[e] = Kind::read(g.a, (row + r) * g.a_row + (from + k) * g.a_col, g.a_type) -
               Kind::zero(g.a_zero, (row + r) * g.a_zero_row, g.a_type);
      int c;
      b_place(e, c, k);
      b[e] = 0;
      if (column + c < g.n && from + k < g.k) {
        if (g.packed) {
          const int64_t n = g.column + column + c;
          b[e] = ((const typename Kind::Packed*)g.b)[(n / 16 * g.k + from + k) * 16 + n % 16];
        } else {
          b[e] = Kind::read(g.b, (from + k) * g.b_row + (column + c) * g.b_col, g.b_type) -
                 Kind::zero(g.b_zero, (column + c) * g.b_zero_col, g.b_type);
        }
      }
    }
  };
  auto place = [&](int buffer) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      int r, c, k;
      a_place(e, r, k);
      as[(buffer * kTile + r) * kPitchA + k] = a[e];
      b_place(e, c, k);
      bs[(buffer * kDepth + k) * kPitchB + c] = b[e];
    }
  };
  Sum total[4][4] = {};
  const int64_t steps = (g.k + kDepth - 1) / kDepth;
#pragma unroll 1
  for (int64_t step = 0; step <= steps; ++step) { /* loads a step while the one before is summed */
    if (step < steps) fetch(step * kDepth);
    const int buffer = (int)(step & 1) ^ 1;
    if (step > 0) {
      Sum part[4][4] = {};
      const Sum* ap = as + (buffer * kTile + ty * 4) * kPitchA;
      const Sum* bp = bs + buffer * kDepth * kPitchB + tx * 4;
#pragma unroll 2
      for (int k = 0; k < kDepth; k += 4) {
        Sum x[4][4], y[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          memcpy(x[i], __builtin_assume_aligned(ap + i * kPitchA + k, 16), sizeof x[i]);
          memcpy(y[i], __builtin_assume_aligned(bp + (k + i) * kPitchB, 16), sizeof y[i]);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) part[i][j] = Kind::fma(x[i][q], y[q][j], part[i][j]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][j] += part[i][j];
    }
    if (step < steps) place(buffer ^ 1);
    __syncthreads();
  }
  Sum* c = (Sum*)g.c;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t y = row + ty * 4 + i, x = column + tx * 4 + j;
      if (y < g.m && x < g.n) {
        Sum* to = c + y * g.c_row + x;
        *to = g.accumulate ? *to + total[i][j] : total[i][j];
      }
    }
  __syncthreads();
}

template <typename Kind>
static __device__ __noinline__ void fma_tile() {
  const ObkGemm g = tile_arguments();
  for (int64_t column = 0; column < g.n; column += kFmaTile)
    for (int64_t row = 0; row < g.m; row += kFmaTile) fma_pass<Kind>(g, row, column);
}

}  // namespace obk

#endif

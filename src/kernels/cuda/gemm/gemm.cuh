/* kernels/cuda/gemm/gemm.cuh — the product tile of generated bodies: C[m,n] = A[m,k] B[k,n], or +=,
 * by all 256 threads of a CTA.
 *
 *   obk::gemm_tile<kObkF16>(w, g)    f16, bf16: tensor cores, float sums; tf32 (f32 rounded where
 *                                  it is multiplied): gemm_tf32.cuh; f32: fma_f32.cuh; f64, int8:
 *                                  fma.cuh
 *   obk::gemm_tile_of<kObkF16, FixedShape<...>>(w, g)    the same of a shape that the body knows
 *
 * Any m, n, k, strides and alignment. A in global or in shared memory; B packed by
 * cuda_gemm_pack or plain; C in global or, better, in shared memory. g.scratch: shared memory, as
 * much as cuda_gemm_scratch_bytes says. The tile begins with a barrier of the CTA, so that A in
 * shared memory is seen, and ends with one, so that C may be read at once. The structure travels in
 * shared memory (ring.cuh says why).
 *
 * A tile of a known shape is part of its body (gemm_fixed.cuh); any other is a function that bodies
 * call. wgmma in a called function is serialised by the assembler (C7510), so such a function has
 * none.
 *
 * The order of a sum depends on k alone: not on m, n, the cut into tiles or the SM; so it is in
 * pipelined_gemm.cuh. Only of GEMMs of 512 rows and more in graphs of kernels do grid tiles
 * (conv_grid.cuh) and tall ones (pipelined_gemm.cuh) sum otherwise: there the same program gives
 * the same bits, but not those of fewer rows. That rests on wgmma and mma.sync giving the same bits
 * for the same sixteen k, which tests/gpu checks. In tf32 and in f32 the tiles here have one order,
 * pipelined kernels of 33 rows and more another (pipelined_gemm_tf32.cuh, pipelined_gemm_f32.cuh),
 * each of which depends on k alone; programs that are batch-invariant have no pipelined kernels. */
#ifndef OBK_GEMM_CUH
#define OBK_GEMM_CUH

#include "core/dialect.cuh"
#include "gemm/fma.cuh"
#include "gemm/fma_f32.cuh"
#include "gemm/fma_few_rows.cuh"
#include "gemm/fma_rows.cuh"
#include "gemm/gemm_activations.cuh"
#include "gemm/gemm_fixed.cuh"
#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_skinny.cuh"
#include "gemm/gemm_streamed.cuh"
#include "gemm/gemm_tf32.cuh"
#include "gemm/gemm_wgmma.cuh"
#include "gemm/gemm_wgmma_pipelined.cuh"
#include "gemm/statistics.cuh"
#include "tiles.h"

namespace obk {

/* Any rows, columns and k, by packed weights, in passes. */
template <bool kBfloat>
static __device__ __noinline__ void gemm16_passes() {
  const ObkGemm g = tile_arguments();
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  const int m = (int)g.m, n = (int)g.n, k = (int)g.k, chunks = (k + 63) >> 6;
  const int most = gemm_pass_columns(m);
#pragma unroll 1
  for (int column = 0; column < n; column += most)
#pragma unroll 1
    for (int row = 0; row < m; row += 64) {
      Pass16 p = {};
      p.rows = min(64, m - row), p.columns = min(most, n - column);
      p.padded = gemm_pass_rows(m), p.blocks16 = (p.columns + 15) >> 4;
      p.c = (float*)g.c + row * g.c_row + column, p.c_row = g.c_row;
      p.accumulate = g.accumulate != 0;
      p.a = {(const uint16_t*)g.a + row * g.a_row, g.a_row, g.a_col, p.rows, k, 0};
      p.a.choose();
      p.weights.groups = p.blocks16 * 2, p.weights.chunks = chunks;
      p.weights.pitch = (n + 15) >> 4 << 1; /* the tile's columns lie together */
      p.weights.from =
          (const char*)g.b + (int64_t)((int)g.column >> 3) * chunks * 1024 + (column >> 3) * 1024;
      p.ring = ring_state().pages > 0;
      Ring ring;
      if (p.ring) ring.open(p.weights);
      pass_mma<kBfloat, 6>(ring, work, p);
    }
}

template <int kType>
static __device__ __forceinline__ void gemm_tile(ObkLanes*, const ObkGemm& g) {
  if (threadIdx.x == 0) tile_arguments() = g;
  __syncthreads();
  constexpr bool kBfloat = kType == kObkBf16;
  if ((kType == kObkF16 || kBfloat) && g.packed)
    gemm16_passes<kBfloat>();
  else if (kType == kObkF16 || kBfloat)
    gemm16_activations<kBfloat>();
  else if (kType == kObkF64)
    fma_tile<FmaF64>();
  else if (kType == kObkF32)
    fma_f32_tile();
  else if (kType == kObkTf32)
    tf32_tile();
  else
    fma_tile<FmaInt>();
}

/* Packed 16-bit operands whose k has parts: one after another, onto the ones before. */
template <bool kBfloat, typename S>
static __device__ __forceinline__ void gemm_split_k(const ObkGemm& g) {
  constexpr int kChunks = S::kChunks / S::kSplitK;
  static_assert(S::kK % (64 * S::kSplitK) == 0, "parts are whole blocks of 64");
#pragma unroll 1
  for (int p = 0; p < S::kSplitK; ++p) {
    if (threadIdx.x == 0) {
      ObkGemm& part = tile_arguments();
      if (p == 0) {
        part = g;
        part.k = kChunks * 64, part.column = 0;
        part.b = (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024);
      } else {
        part.accumulate = 1;
        part.a = (const char*)part.a + kChunks * 128;
        part.b = (const char*)part.b + (part.n + 15) / 16 * (2048 * kChunks);
      }
    }
    __syncthreads();
    gemm16_passes<kBfloat>();
    __syncthreads();
  }
}

/* A tile of a body that knows its shape: S as in gemm_fixed.cuh. Tiles that differ go the long
 * way, which is not compiled where none can: kAligned, that fixed_takes what depends on the body.
 * kInlined: the body is part of its kernel. */
template <int kType, typename S, bool kInlined, bool kAligned>
static __device__ __forceinline__ void gemm_tile_of(ObkLanes* w, const ObkGemm& g) {
  if constexpr (few_rows_fits<kType, S>()) return fma_few_rows_tile<S>(g);
  if constexpr (fma_rows_fits<kType, S>()) return fma_rows_tile<S>(g);
#if __CUDA_ARCH__ >= 900
  constexpr bool kHalf = kType == kObkF16 || kType == kObkBf16;
  if constexpr (kDataflow) { /* one warp loads the pages of all tiles:
                                cuda_gemm_dataflow_bytes */
    static_assert(kHalf && S::kFits && skinny_fits<S>() && S::kGroups <= WeightPages::kMostGroups,
                  "a tile of a dataflow program has few rows");
    return skinny_tile<kType == kObkBf16, S>(g);
  }
#ifdef OBK_WGMMA
  constexpr bool kWgmma = kInlined && wgmma_fits<S>(),
                 kPipelined = kInlined && wgmma_pipelined_fits<S>();
#else
  constexpr bool kWgmma = false, kPipelined = false;
#endif
  constexpr bool kFixed = kHalf && S::kFits && (S::kSplitK == 1 || kWgmma || kPipelined);
  constexpr bool kAlways = kFixed && kAligned && kHasPages;
  if constexpr (kFixed) {
    if (kAlways || fixed_takes<S>(g)) {
      if constexpr (skinny_fits<S>()) skinny_tile<kType == kObkBf16, S>(g);
#ifdef OBK_WGMMA
      else if constexpr (kWgmma)
        fixed_wgmma_tile<kType == kObkBf16, S>(g);
      else if constexpr (kPipelined)
        fixed_wgmma_pipelined_tile<kType == kObkBf16, S>(g);
#endif
      else
        fixed_tile<kType == kObkBf16, S>(g);
      return;
    }
  }
#else
  constexpr bool kAlways = false;
#endif
  if constexpr (kAlways) {
  } else if constexpr (S::kSplitK == 1) {
    gemm_tile<kType>(w, g);
  } else {
    gemm_split_k<kType == kObkBf16, S>(g); /* what follows such a product is its reader's */
  }
}

}  // namespace obk

#endif

/* kernels/cuda/gemm.cuh — the product tile of generated bodies: C[m,n] = A[m,k] B[k,n], or +=, by
 * all 256 threads of a CTA.
 *
 *   obk::gemm_tile<kObkF16>(w, g)    f16, bf16: tensor cores, float sums; f32, f64, int8: fma.cuh
 *
 * Any m, n, k, strides and alignment. A in global or in shared memory (a prologue's); B packed by
 * cuda_gemm_pack or plain; C in global or, better, in shared memory. g.scratch: shared memory, as
 * much as cuda_gemm_scratch_bytes says. The tile begins with a barrier of the CTA, so that A in
 * shared memory is seen, and ends with one, so that C may be read at once. The structure travels in
 * shared memory (ring.cuh says why).
 *
 * A tile is a function that bodies call; wgmma in a called function is serialised by the assembler
 * (C7510), so it is used only where OBK_TILES_INLINE makes tiles part of the kernel.
 *
 * The order of a sum depends on k alone: not on m, n, the cut into tiles or the SM. That rests on
 * wgmma and mma.sync giving the same bits for the same sixteen k, which tests/gpu checks. */
#ifndef OBK_GEMM_CUH
#define OBK_GEMM_CUH

#include "dialect.cuh"
#include "fma.cuh"
#include "gemm_mma.cuh"
#include "gemm_wgmma.cuh"
#include "tiles.h"

namespace obk {

template <bool kBfloat>
static __device__ __forceinline__ void pass16(Ring& ring, uint32_t work, const Pass16& p) {
#if defined OBK_WGMMA && defined OBK_TILES_INLINE
  if (p.padded == 64 && p.ring && p.a.mode == 0 && (p.a.k & 63) == 0) {
    if (p.blocks16 == 1)
      pass_wgmma<kBfloat, 16>(ring, work, p);
    else if (p.blocks16 == 2)
      pass_wgmma<kBfloat, 32>(ring, work, p);
    else if (p.blocks16 == 3)
      pass_wgmma<kBfloat, 48>(ring, work, p);
    else
      pass_wgmma<kBfloat, 96>(ring, work, p);
    return;
  }
#endif
  if (p.blocks16 * (p.padded >> 4) <= 4) /* a block of 16 columns a warp: a few rows, much k */
    pass_mma<kBfloat, 1>(ring, work, p);
  else
    pass_mma<kBfloat, 6>(ring, work, p);
}

#ifdef OBK_TILES_INLINE
static constexpr bool kWgmmaTiles = true;
#define OBK_TILE_FUNCTION __forceinline__
#else
static constexpr bool kWgmmaTiles = false;
#define OBK_TILE_FUNCTION __noinline__
#endif

/* Any rows, columns, k and operands, in passes. A function of its own, as is the short way: together
 * they would hold more registers than there are. */
template <bool kBfloat, bool kPanel>
static __device__ OBK_TILE_FUNCTION void gemm16_passes() {
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
      if (kPanel) p.panel = shared_address(g.a), p.panel_rows = (int)g.a_row;
      if (g.packed) {
        p.weights.groups = p.blocks16 * 2, p.weights.chunks = chunks;
        p.weights.from =
            (const char*)g.b + (int64_t)(((int)g.column + column) >> 3) * chunks * 1024;
        p.ring = ring_state().pages > 0;
      } else {
        p.b = {(const uint16_t*)g.b + column * g.b_col, g.b_col, g.b_row, p.columns, k, 0};
        p.b.choose();
      }
      Ring ring;
      if (p.ring) ring.open(p.weights);
      pass16<kBfloat>(ring, work, p);
    }
}

/* kPanel: the body wrote A. Apart, for both in one would hold too many registers. */
template <bool kBfloat, bool kPanel>
static __device__ OBK_TILE_FUNCTION void gemm16() {
  const ObkGemm g = tile_arguments();
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  const int m = (int)g.m, n = (int)g.n, k = (int)g.k, chunks = (k + 63) >> 6;
  const int most = gemm_pass_columns(m);
  const int pages = ring_state().pages;
  if (m <= 64 && n <= most && g.packed && pages > 0 && k > 0 && (k & 63) == 0) {
    Pass16 p = {};
    p.rows = m, p.columns = n, p.padded = gemm_pass_rows(m), p.blocks16 = (n + 15) >> 4;
    p.weights.groups = p.blocks16 * 2, p.weights.chunks = chunks;
    p.weights.from = (const char*)g.b + (int64_t)((int)g.column >> 3) * chunks * 1024;
    p.c = (float*)g.c, p.c_row = g.c_row, p.accumulate = g.accumulate != 0;
    p.a = {(const uint16_t*)g.a, g.a_row, g.a_col, m, k, 0};
    if (kPanel)
      p.panel = shared_address(g.a), p.panel_rows = (int)g.a_row;
    else
      p.a.choose();
    if ((p.panel || (p.a.mode == 0 && k * p.padded * 2 <= OBK_GEMM_PANEL)) &&
        chunks <= pages * p.weights.chunks_a_page() && !kWgmmaTiles) {
      const int each = (p.blocks16 * (p.padded >> 4) + 3) >> 2;
      if (each <= 1)
        pass_whole<kBfloat, 1>(work, p);
      else if (each <= 3)
        pass_whole<kBfloat, 3>(work, p);
      else
        pass_whole<kBfloat, 6>(work, p);
      return;
    }
  }
  gemm16_passes<kBfloat, kPanel>();
}

template <int kType>
static __device__ __forceinline__ void gemm_tile(ObkLanes*, const ObkGemm& g) {
  if (threadIdx.x == 0) tile_arguments() = g;
  __syncthreads();
  if (kType == kObkF16 && g.panel)
    gemm16<false, true>();
  else if (kType == kObkF16)
    gemm16<false, false>();
  else if (kType == kObkBf16 && g.panel)
    gemm16<true, true>();
  else if (kType == kObkBf16)
    gemm16<true, false>();
  else if (kType == kObkF64)
    fma_tile<FmaF64>();
  else if (kType == kObkF32)
    fma_tile<FmaF32>();
  else
    fma_tile<FmaInt>();
}

}  // namespace obk

#endif

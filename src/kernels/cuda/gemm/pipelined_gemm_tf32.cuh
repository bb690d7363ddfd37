/* kernels/cuda/gemm/pipelined_gemm_tf32.cuh — the sums of a tile of a pipelined GEMM kernel
 * (pipelined_gemm.cuh) of f32 operands rounded to tf32: up to 128 rows by up to 128 columns.
 * sm_90a.
 *
 *   pipelined_gemm_tf32<S, stage, N>(w, g)    after pipe->begin(): the tile to g.c
 *
 * wgmma of tf32 transposes nothing: what it reads from shared memory has its k side by side. B as a
 * rule has not, so the kernel computes the transposed product: wgmma's first operand is B, from
 * registers, its second A. 64 columns of the tile are the 64 rows of a product, the tile's rows its
 * columns. A thread reads its part of B from shared memory however it lies there, and rounds it:
 *
 *   an activation whose rows are those of k    boxes of 32 columns, each with all k of the stage
 *   an activation whose rows are its columns   boxes of 32 k, each with all columns of the tile
 *   packed weights                             panels of 16 columns, k rows of 64 bytes
 *
 * Which columns a thread has follows from what lets a warp read without two words of one bank, and
 * of the first and the last kind they are neighbours, for sums to be stored in pairs. A is rounded
 * by TMA on its way, as its tensor map says; as of B that way is rounded to nearest, so what wgmma
 * would cut off is zero.
 *
 * A block is 32 k, four k-steps of 8. The warpgroups have 64 columns each, and every sum is one
 * chain over k. Of a tile of up to 64 columns the first warpgroup has the even k-steps, the second
 * the odd ones, and their sums are added: a chain of short products waits for each of them. So bits
 * depend on k and on which of the two a tile is, and are not those of gemm_tf32.cuh, which computes
 * fewer rows. */
#ifndef OBK_PIPELINED_GEMM_TF32_CUH
#define OBK_PIPELINED_GEMM_TF32_CUH

#include "gemm/pipelined_gemm.cuh"

namespace obk {

#ifdef OBK_WGMMA

/* This thread's two columns of a tile's sixteen, the first row of a warp's sums and the one eight
 * further, and where B's numbers of them are. */
template <class N>
struct PipelinedGemmTf32B {
  static constexpr bool kMapped = N::boxes > 0, kKRows = kMapped && N::k_rows,
                        kPairs = kKRows || !kMapped;
  uint32_t at;   /* from the stage's B */
  int32_t first; /* of the columns, in the tile */

  /* `sixteen`: which of the tile's; of boxes of 32 columns two share one, eight by eight. */
  __device__ __forceinline__ explicit PipelinedGemmTf32B(int sixteen) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (kKRows) { /* of a row's 16-byte pieces a quarter of the warp reads two, four apart */
      const int piece = sixteen % 2 * 2 + g / 2 % 2 * 4 + g / 4, half = g % 2;
      first = sixteen / 2 * 32 + piece * 4 + half * 2;
      at = sixteen / 2 * (N::stage * 4096) + t * 128 + ((piece ^ t) << 4) + half * 8;
    } else if (kMapped) {
      first = sixteen * 16 + g;
      at = first * 128 + (g << 4) + t * 4;
    } else {
      first = sixteen * 16 + g * 2;
      at = sixteen * N::panel + t * 64 + g * 8;
    }
  }
  __device__ __forceinline__ int second() const { return first + (kPairs ? 1 : 8); }
  /* Of k-step `step` of a stage whose B is at `b`. */
  __device__ __forceinline__ void load(uint32_t (&x)[4], uint32_t b, int step) const {
    float v[4];
    if (kKRows) {
      load_shared8(v[0], v[1], b + at + step * 1024);
      load_shared8(v[2], v[3], b + (at ^ 64) + (step * 1024 + 512));
    } else if (kMapped) {
      const uint32_t block = b + step / 4 * (N::bytes / N::stage);
      const uint32_t low = block + (at ^ (step % 4 * 32)),
                     high = block + (at ^ (step % 4 * 32 + 16));
      v[0] = load_shared(low), v[1] = load_shared(low + 1024);
      v[2] = load_shared(high), v[3] = load_shared(high + 1024);
    } else {
      load_shared8(v[0], v[1], b + at + step * 512);
      load_shared8(v[2], v[3], b + at + (step * 512 + 256));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = round_tf32(v[e]);
  }
};

/* The sums of `rows` of the tile's rows to `c`. */
template <typename S, int kStage, class N>
static __device__ __forceinline__ void pipelined_gemm_tf32_sums(PipelinedGemmPipe<N>& pipe,
                                                                uint32_t c, int rows) {
  constexpr int kBlocks = S::kK / 32, kStages = kBlocks / kStage, kSteps = 2 * kStage;
  constexpr bool kBeside = S::kColumns > 64; /* warpgroups: else they share out k */
  constexpr int kN = pipelined_gemm_tf32_rows(S::kRows),
                kMine = kBeside ? kSteps : kSteps / 2, /* k-steps of half a stage */
      kSixteens =
          PipelinedGemmTf32B<N>::kKRows ? (S::kColumns + 31) / 32 * 2 : (S::kColumns + 15) / 16;
  static_assert(S::kK % 32 == 0 && kBlocks % kStage == 0 && S::kSplitK == 1 && N::block_k == 32,
                "stages of a tile are whole");
  static_assert(S::kRows <= kTallRows && S::kColumns <= kTf32Columns, "sums fit in registers");
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  const int half = same_in_warp(threadIdx.x / 128);
  const int sixteen = (kBeside ? half * 4 : 0) + threadIdx.x / 32 % 4;
  /* Those beyond the tile read what its last ones do. */
  const PipelinedGemmTf32B<N> b(min(sixteen, kSixteens - 1));
  const uint64_t y0 = matrix_at(0, 1024);
  float sum[kN / 2];
  uint32_t x[2][kMine][4]; /* each has registers of its own: products are under way */
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here();
  const auto multiply = [&] {
    const uint32_t stage = same_in_warp(pipe.wait());
    const uint64_t y = y0 + (stage >> 4);
#pragma unroll
    for (int part = 0; part < 2; ++part) { /* of the stage, while the one before is multiplied */
      const auto step_of = [&](int k) { return part * kSteps + (kBeside ? k : 2 * k + half); };
#pragma unroll
      for (int k = 0; k < kMine; ++k) b.load(x[part][k], stage + N::rows_bytes, step_of(k));
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kMine; ++k) {
        const int step = step_of(k);
        WgmmaTf32<kN>::multiply_rows(sum, x[part][k],
                                     y + (step / 4 * (N::tile_rows * 8) + step % 4 * 2));
      }
      wgmma_commit();
      wgmma_wait<kUnderWay>();
    }
  };
  pipelined_gemm_stages<kStages>(pipe, multiply, [] {});
  if (N::overlaid > 0) __syncthreads(); /* no products are under way */
  const auto store = [&](bool onto) {   /* what the other warpgroup has left there */
#pragma unroll
                                      for (int j = 0; j < kN / 8; ++j)
#pragma unroll
                                        for (int e = 0; e < 2; ++e) {
                                          /* Half of a warp stores the later of its two rows first:
                                           * with an odd number of fours of floats from row to row
                                           * no two lanes meet in a bank. */
                                          const bool later =
                                              (e ^ (b.kKRows ? (int)threadIdx.x % 4 / 2 : 0)) != 0;
                                          const int row = 8 * j + threadIdx.x % 4 * 2 + later;
                                          const uint32_t to = c + (row * S::kPitchC + b.first) * 4;
                                          float v = later ? sum[4 * j + 1] : sum[4 * j],
                                                u = later ? sum[4 * j + 3] : sum[4 * j + 2];
                                          if (row >= rows) continue;
                                          if (onto) {
                                            if (b.first < S::kColumns) v = load_shared(to) + v;
                                            if (b.second() < S::kColumns)
                                              u = load_shared(to + (b.kPairs ? 4 : 32)) + u;
                                          }
                                          if (b.kPairs) {
                                            if (b.first < S::kColumns) store_shared8(to, v, u);
                                          } else {
                                            if (b.first < S::kColumns) store_shared(to, v);
                                            if (b.second() < S::kColumns) store_shared(to + 32, u);
                                          }
                                        }
  };
  if (sixteen < kSixteens && (kBeside || half == 0)) store(false);
  if (!kBeside) {
    __syncthreads();
    if (sixteen < kSixteens && half == 1) store(true);
  }
}

template <typename S, int kStage, class N>
static __device__ __forceinline__ void pipelined_gemm_tf32(ObkLanes* w, const ObkGemm& g) {
  pipelined_gemm_tf32_sums<S, kStage>(*(PipelinedGemmPipe<N>*)w->pipe, shared_address(g.c),
                                      (int)g.m);
  __syncthreads();
}

/* The same where a cluster computes a tile, each of its CTAs a part of k (pipelined_gemm_split_k).
 */
template <typename S, int kStage, int kPlane, bool kAdds, class N>
static __device__ __forceinline__ void pipelined_gemm_tf32_split_k(ObkLanes* w, const ObkGemm& g) {
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  const uint32_t own = shared_address(w->scratch);
  pipelined_gemm_tf32_sums<S, kStage>(pipe, own, N::tile_rows);
  if (threadIdx.x == 0) pipelined_gemm_expect<S>(pipe);
  pipelined_gemm_exchange<S, kPlane, kAdds>(pipe, shared_address(g.c), own);
}

#endif

}  // namespace obk

#endif

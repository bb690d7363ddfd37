/* kernels/cuda/gemm/pipelined_gemm_f32.cuh — the sums of a tile of a pipelined GEMM kernel
 * (pipelined_gemm.cuh) of exact f32, by CUDA cores: up to 128 rows by up to 128 columns. sm_90a.
 *
 *   pipelined_gemm_f32<S, stage, N>(w, g)    after pipe->begin(): the tile to g.c
 *   pipelined_gemm_f32_split_k<S, stage, plane, adds, N>(w, g)    of a cluster's CTA, its slice
 *
 * Operands come as those of tf32 do (pipelined_gemm_tf32.cuh has the layouts of B), but A as it is.
 * A warp's lanes are four rows by eight groups of columns, or of tiles of 16 columns eight by four;
 * warps are side by side in twos or one below another, and a thread has up to 64 sums, 8 x 8 or
 * 4 x 12: for four k it reads 16 bytes of each of its rows, and as much of B for each four of its
 * columns, while it multiplies what it read before. A thread's rows are a stride of all row lanes
 * apart (cyclic), so that the lanes of a load of A meet in no bank. Its four columns are
 * neighbours. Of packed weights, whose panels have 16 columns, a warp reads two panels at once:
 * they lie half of all banks apart (N::panel). Neighbouring lanes have the same columns: where each
 * pair of lanes reads one address, a load of 16 bytes a lane takes two cycles of shared memory,
 * else four.
 *
 * Of small tiles warps share out k: each of two or four parts has every second or fourth four of k,
 * so that a thread has more sums for what it reads (pipelined_gemm_f32_shape in gemm_shape.h). A
 * part's sums are chains of fused multiply-adds over its k, which are added in the order of the
 * parts: bits depend on k and on the size of the tiles, and are not those of fma.cuh, which
 * computes fewer rows. */
#ifndef OBK_PIPELINED_GEMM_F32_CUH
#define OBK_PIPELINED_GEMM_F32_CUH

#include "gemm/pipelined_gemm.cuh"

namespace obk {

/* Where this thread's sums of a tile are. */
template <class S, class N>
struct PipelinedGemmF32Place {
  static constexpr bool kMapped = N::boxes > 0, kKRows = kMapped && N::k_rows,
                        kTurned = kMapped && !N::k_rows, kPanels = !kMapped;
  static constexpr PipelinedF32Shape kShape = pipelined_gemm_f32_shape(
      S::kRows, S::kColumns, pipelined_gemm_f32_lanes(S::kColumns, kTurned));
  static constexpr int kLanes = kShape.lanes, kBeside = kShape.beside, kParts = kShape.parts,
                       kDown = kShape.down, kHigh = kShape.high, kFours = kShape.fours,
                       kOfWarp = 4 * kLanes, /* columns */
      kAcross = kOfWarp * kBeside;           /* from one of a thread's fours to the next */
  int part, row, warp_column, lane_column;

  __device__ __forceinline__ PipelinedGemmF32Place() {
    const int warp = same_in_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
    part = kParts > 1 ? warp / (8 / kParts) : 0;
    row = warp % (8 / kParts) / kBeside * (32 / kLanes) + lane / (2 * kLanes) * 2 + lane % 2;
    warp_column = warp % kBeside * kOfWarp, lane_column = lane / 2 % kLanes;
  }
  /* Number e of its four `q`. */
  __device__ __forceinline__ int column(int q, int e = 0) const {
    const int first = q * kAcross + warp_column;
    return first + (kTurned ? e * 8 + lane_column : lane_column * 4 + e);
  }
};

/* A thread's operands of four k. */
template <int kHigh, int kFours>
struct PipelinedGemmF32Operands {
  uint32_t a[kHigh][4];     /* by row and k */
  uint32_t b[kFours][4][4]; /* by four of columns; then by k and column, turned by column and k */
};

template <class S, class N>
struct PipelinedGemmF32Reader {
  using Place = PipelinedGemmF32Place<S, N>;
  static constexpr int kHigh = Place::kHigh, kFours = Place::kFours;
  using Operands = PipelinedGemmF32Operands<kHigh, kFours>;
  /* Columns that a stage has of B: a thread beyond them reads the last ones. */
  static constexpr int kWide = (S::kColumns + 15) / 16 * 16;
  /* Of the first four k of the thread's part in a block; last_: of its last row, and of its last
   * four columns in panels, which may be beyond the tile. */
  uint32_t a, last_a, b, last_b;

  /* Of block `block` of the stage at `stage`: its rows of A, 128 bytes each, lie one block behind
   * another, and the 16-byte pieces of a row, four k each, are swapped by the number of the row
   * among all of them. */
  __device__ __forceinline__ PipelinedGemmF32Reader(const Place& at, uint32_t stage, int block) {
    const auto of_row = [&](int row) {
      const int line = block * N::tile_rows + row;
      return (stage + (uint32_t)(line * 128 + line % 8 * 16)) ^ (uint32_t)(at.part * 16);
    };
    a = of_row(at.row);
    last_a = of_row(min(at.row + (kHigh - 1) * Place::kDown, N::tile_rows - 1));
    const uint32_t stage_b = stage + N::rows_bytes;
    last_b = 0;
    if (Place::kKRows) {
      b = stage_b + at.warp_column / 32 * (N::stage * 4096) + block * 4096 +
          (uint32_t)(at.lane_column * 16);
      b = (b ^ (uint32_t)(at.part % 2 * 64)) + at.part * 512;
    } else if (Place::kTurned) {
      b = (stage_b + block * (N::bytes / N::stage) + at.lane_column * (128 + 16) +
           at.warp_column * 128) ^
          (uint32_t)(at.part * 16);
    } else {
      const int panel = at.warp_column / 16 + at.lane_column / 4,
                last = panel + (kFours - 1) * (Place::kAcross / 16);
      const auto of_panel = [&](int of) {
        return stage_b + of * N::panel + block * 2048 + at.part * 256 + at.lane_column % 4 * 16;
      };
      b = of_panel(panel), last_b = of_panel(min(last, kWide / 16 - 1));
    }
  }
  /* The next four k of its part, or those behind them; `step`, an even number, counts from the
   * block's first ones. */
  template <bool kBehind>
  __device__ __forceinline__ void load(Operands& to, const Place& at, int step) const {
    constexpr uint32_t kOn = kBehind ? Place::kParts : 0; /* fours behind */
    const uint32_t turn = (uint32_t)(step * (Place::kParts * 16));
    const uint32_t rows = (a ^ turn) ^ kOn * 16, last_row = (last_a ^ turn) ^ kOn * 16;
#pragma unroll
    for (int i = 0; i < kHigh; ++i)
      load_shared16(to.a[i], i + 1 < kHigh ? rows + i * (Place::kDown * 128) : last_row);
    if (Place::kTurned) {
      const uint32_t from = (b ^ turn) ^ kOn * 16;
#pragma unroll
      for (int q = 0; q < kFours; ++q)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int first = q * Place::kAcross + e * 8; /* of the first warp's columns */
          if (first + (Place::kBeside - 1) * 32 + 8 <= kWide)
            load_shared16(to.b[q][e], from + first * 128);
          else /* some warp's columns are beyond the tile */
            load_shared16(to.b[q][e],
                          from + (min(first + at.warp_column, kWide - 8) - at.warp_column) * 128);
        }
    } else if (Place::kKRows) { /* the pieces of a row of 32 columns are swapped by its number */
      const uint32_t from = b + step * (Place::kParts * 512);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t line = from ^ (uint32_t)((kOn % 2 * 4 + k) * 16);
#pragma unroll
        for (int q = 0; q < kFours; ++q)
          load_shared16(to.b[q][k],
                        line + kOn * 512 + k * 128 + q * Place::kBeside * (N::stage * 4096));
      }
    } else {
      const uint32_t on = (uint32_t)(step * (Place::kParts * 256)), from = b + on,
                     last = last_b + on;
#pragma unroll
      for (int q = 0; q < kFours; ++q)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          load_shared16(to.b[q][k],
                        (q + 1 < kFours ? from + q * (Place::kAcross / 16) * N::panel : last) +
                            kOn * 256 + k * 64);
    }
  }
};

/* Stage `s` of the tile has been read, from place `place`: what loads more of them, a stage later,
 * so that no warp waits for others. */
template <int kStages, class N>
static __device__ __forceinline__ void pipelined_gemm_has_read(PipelinedGemmPipe<N>& pipe, int s,
                                                               int place) {
  if (!N::refills) return;
  const int late = N::stages > 2 ? 1 : 0;
  if (!N::single) {
    pipe.give_back(place);
    if (s >= late) pipe.refill();
    if (late && s + 1 == kStages) pipe.refill();
  } else { /* what is not refilled nobody gives back: it might reach a CTA that has ended */
    if (s + N::stages < kStages) pipe.give_back(place);
    const int refilled = s - late + N::stages;
    if (s >= late && refilled < kStages) pipe.refill_with(refilled);
  }
}

/* The sums of `rows` of the tile's rows to `c`. */
template <typename S, int kStage, class N>
static __device__ __forceinline__ void pipelined_gemm_f32_sums(PipelinedGemmPipe<N>& pipe,
                                                               uint32_t c, int rows) {
  using Place = PipelinedGemmF32Place<S, N>;
  constexpr int kBlocks = S::kK / 32, kStages = kBlocks / kStage,
                kSteps = 8 / Place::kParts; /* fours of a block's k */
  static_assert(S::kK % 32 == 0 && kBlocks % kStage == 0 && S::kSplitK == 1 && N::block_k == 32,
                "stages of a tile are whole");
  static_assert(S::kRows <= kTallRows && S::kColumns <= kF32Columns, "sums fit in registers");
  static_assert(S::kPitchC % 2 == 0 && S::kPitchC > S::kColumns - 1 + S::kColumns % 2,
                "sums go in pairs");
  using Reader = PipelinedGemmF32Reader<S, N>;
  constexpr int kHigh = Place::kHigh, kFours = Place::kFours;
  const Place at;
  float sum[kHigh][kFours][4];
#pragma unroll
  for (int i = 0; i < kHigh; ++i)
#pragma unroll
    for (int q = 0; q < kFours; ++q)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][q][e] = 0;
  const auto add = [&](const typename Reader::Operands& x) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < kHigh; ++i)
#pragma unroll
        for (int q = 0; q < kFours; ++q)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sum[i][q][e] =
                fmaf(__uint_as_float(x.a[i][k]),
                     __uint_as_float(Place::kTurned ? x.b[q][e][k] : x.b[q][k][e]), sum[i][q][e]);
  };
  /* The load behind a block's last step is issued whether or not another block follows in the
   * stage: a branch in its place keeps the assembler from interleaving loads and multiply-adds.
   * Where four groups of warps share out k, a block is a single iteration, and such loads cost more
   * than that.
   */
  constexpr bool kAlways = Place::kParts <= 2;
#pragma unroll 1
  for (int s = 0; s < kStages; ++s) {
    const int place = pipe.slot;
    const uint32_t stage = same_in_warp(pipe.wait());
    typename Reader::Operands x[2]; /* one is loaded while the other is multiplied */
    Reader reader(at, stage, 0);
    reader.template load<false>(x[0], at, 0);
#pragma unroll 1
    for (int block = 0; block < kStage; ++block) {
      if (!kAlways && block > 0)
        reader = Reader(at, stage, block), reader.template load<false>(x[0], at, 0);
#pragma unroll 1
      for (int step = 0; step < kSteps; step += 2) {
        reader.template load<true>(x[1], at, step);
        add(x[0]);
        const bool ends = step + 2 == kSteps;
        if (kAlways && kStage > 1 && ends) reader = Reader(at, stage, min(block + 1, kStage - 1));
        if (kAlways || !ends) reader.template load<false>(x[0], at, ends ? 0 : step + 2);
        add(x[1]);
      }
    }
    pipelined_gemm_has_read<kStages>(pipe, s, place);
  }
  allow_next();
  if (N::overlaid > 0) __syncthreads(); /* all have read the last places */
  const auto store =
      [&](bool onto) { /* what another part has left there */
#pragma unroll
                       for (int i = 0; i < kHigh; ++i) {
                         const int row = at.row + i * Place::kDown;
                         if (row >= rows) continue;
#pragma unroll
                         for (int q = 0; q < kFours; ++q) {
                           float(&v)[4] = sum[i][q];
                           const uint32_t to = c + (row * S::kPitchC + at.column(q)) * 4;
                           if (onto) {
#pragma unroll
                             for (int e = 0; e < 4; ++e)
                               if (at.column(q, e) < S::kColumns)
                                 v[e] += load_shared(to + (at.column(q, e) - at.column(q)) * 4);
                           }
                           if (Place::kTurned) {
#pragma unroll
                             for (int e = 0; e < 4; ++e)
                               if (at.column(q, e) < S::kColumns) store_shared(to + e * 32, v[e]);
                           } else if (S::kPitchC % 4 == 0 && S::kColumns % 4 == 0) {
                             const uint32_t words[4] = {
                                 __float_as_uint(v[0]), __float_as_uint(v[1]),
                                 __float_as_uint(v[2]), __float_as_uint(v[3])};
                             if (at.column(q) < S::kColumns) store_shared16(to, words);
                           } else {
                             if (at.column(q) < S::kColumns) store_shared8(to, v[0], v[1]);
                             if (at.column(q, 2) < S::kColumns)
                               store_shared8(to + (at.column(q, 2) - at.column(q)) * 4, v[2], v[3]);
                           }
                         }
                       }
      };
#pragma unroll
  for (int part = 0; part < Place::kParts; ++part) {
    if (part > 0) __syncthreads();
    if (at.part == part) store(part > 0);
  }
}

template <typename S, int kStage, class N>
static __device__ __forceinline__ void pipelined_gemm_f32(ObkLanes* w, const ObkGemm& g) {
  pipelined_gemm_f32_sums<S, kStage>(*(PipelinedGemmPipe<N>*)w->pipe, shared_address(g.c),
                                     (int)g.m);
  __syncthreads();
}

#ifdef OBK_WGMMA

/* The same where a cluster computes a tile, each of its CTAs a part of k (pipelined_gemm_split_k).
 */
template <typename S, int kStage, int kPlane, bool kAdds, class N>
static __device__ __forceinline__ void pipelined_gemm_f32_split_k(ObkLanes* w, const ObkGemm& g) {
  PipelinedGemmPipe<N>& pipe = *(PipelinedGemmPipe<N>*)w->pipe;
  const uint32_t own = shared_address(w->scratch);
  pipelined_gemm_f32_sums<S, kStage>(pipe, own, N::tile_rows);
  if (threadIdx.x == 0) pipelined_gemm_expect<S>(pipe);
  pipelined_gemm_exchange<S, kPlane, kAdds>(pipe, shared_address(g.c), own);
}

#endif

}  // namespace obk

#endif

/* kernels/cuda/gemm.cuh — the product tile of generated bodies: C[m,n] = A[m,k] B[k,n], or +=, by
 * all 256 threads of a CTA.
 *
 *   obk::gemm_tile<kObkF16>(w, g)    f16, bf16: mma.sync, float sums (here); f32, f64, int8:
 * fma.cuh
 *
 * Any m, n, k, strides and alignment. A in global or in shared memory (a prologue's); B packed by
 * cuda_gemm_pack or plain; C in global or, better, in shared memory. g.scratch: shared memory, as
 * much as cuda_gemm_scratch_bytes says. The threads may come from different places: the tile begins
 * with a barrier where A lies in shared memory, and ends with one, so that C may be read at once.
 *
 * One image serves every reader: atoms of 8 rows by 64 k, 1024 bytes, a row of 128 bytes, of which
 * piece p (16 bytes) lies at place p ^ row; so ldmatrix meets no bank twice. Packed weights are
 * such atoms, [n / 8][k / 64]; activations are written so by their copies, [k / 64][row / 8].
 *
 * Operands are swapped: columns of C are the 16-row side of mma.sync, rows of C its 8-column side.
 * Warps 0..3 sum the k-steps 0, 1 of each 64, warps 4..7 the steps 2, 3; the two sums are added at
 * the end. So the order of a sum depends on k alone: not on m, n, the cut into tiles or the SM. */
#ifndef OBK_GEMM_CUH
#define OBK_GEMM_CUH

#include "dialect.cuh"
#include "gemm_shape.h"
#include "ring.cuh"
#include "tiles.h"

namespace obk {

/* Rows of 16-bit elements with any strides: an operand of a product. */
struct Rows16 {
  const uint16_t* at;
  int64_t row, col; /* strides */
  int32_t rows;     /* that are there; those after them are zero */
  int32_t k;
  int mode; /* how they are copied: 0 asynchronously, 1 by 16 bytes, 2 by elements */

  __device__ void choose() {
    const bool aligned = col == 1 && ((uint64_t)at & 15) == 0 && ((row & 7) == 0 || rows <= 1);
    mode = aligned ? (__isShared(at) ? 1 : 0) : 2;
  }
};

static __device__ inline uint32_t two(const uint16_t* p, int64_t stride, int n) {
  const uint32_t low = n > 0 ? p[0] : 0, high = n > 1 ? p[stride] : 0;
  return low | high << 16;
}

/* The copies of load_rows that a thread makes itself: any strides, any alignment. */
static __device__ __noinline__ void load_rows_plainly(uint32_t to, int padded, const Rows16& x,
                                                      int first, int blocks) {
  const bool neighbours = x.row == 1; /* threads side by side take rows, else pieces of a row */
#pragma unroll 1
  for (int i = threadIdx.x; i < blocks * 8 * padded; i += blockDim.x) {
    const int r = neighbours ? i % padded : i / 8 % padded;
    const int piece = neighbours ? i / padded % 8 : i % 8, block = i / padded / 8;
    const int k = (first + block) * 64 + piece * 8, left = r < x.rows ? x.k - k : 0;
    const uint16_t* p = x.at + r * x.row + k * x.col;
    uint32_t v[4];
    if (x.mode == 1 && left >= 8) {
      memcpy(v, __builtin_assume_aligned(p, 16), 16);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = two(p + 2 * e * x.col, x.col, left - 2 * e);
    }
    store_shared16(to + (block * padded + r) * 128 + ((piece ^ (r & 7)) << 4), v);
  }
}

/* Blocks first .. first + blocks of 64 k to shared memory at `to`: [block][padded rows][128 bytes].
 */
static __device__ inline void load_rows(uint32_t to, int padded, const Rows16& x, int first,
                                        int blocks) {
  if (x.mode != 0) {
    load_rows_plainly(to, padded, x, first, blocks);
    return;
  }
  const int piece = threadIdx.x & 7, k = first * 64 + piece * 8;
#pragma unroll 1
  for (int r = threadIdx.x >> 3; r < padded; r += blockDim.x >> 3) {
    const uint16_t* p = x.at + r * x.row + k;
    uint32_t at = to + r * 128 + ((piece ^ (r & 7)) << 4);
    int left = r < x.rows ? x.k - k : 0;
#pragma unroll 1
    for (int b = 0; b < blocks; ++b, at += padded * 128, p += 64, left -= 64)
      copy16_partly(at, left > 0 ? p : x.at, left >= 8 ? 16u : left > 0 ? left * 2u : 0u);
  }
}

/* The same for packed weights, where no ring brings them: `groups` of 8 columns, whole atoms. */
static __device__ inline void load_atoms(uint32_t to, const char* from, int groups, int chunks,
                                         int first, int blocks) {
  const int piece = threadIdx.x & 63; /* of an atom */
#pragma unroll 1
  for (int i = threadIdx.x >> 6; i < groups * blocks; i += blockDim.x >> 6) {
    const int group = i % groups, block = i / groups;
    copy16(to + i * 1024 + piece * 16,
           from + ((int64_t)group * chunks + first + block) * 1024 + piece * 16);
  }
}

/* What a pass over k works on: a rectangle of C no larger than the registers hold. */
struct Pass16 {
  Rows16 a, b;         /* b: plain B as rows of columns */
  WeightPages weights; /* packed B */
  bool ring;
  int padded, blocks16; /* rows of A, a power of two; blocks of 16 columns */
  int rows, columns;    /* of C */
  float* c;
  int64_t c_row;
  bool accumulate;
};

template <bool kBfloat, int kMostBlocks>
static __device__ inline void pass16(Ring& ring, uint32_t work, const Pass16& p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / 4, place = warp % 4;
  /* Four warps share the rectangle: 16 rows each, then columns. */
  const int row_warps = p.padded / 16, row = place % row_warps * 16;
  const int first16 = place / row_warps, step16 = 4 / row_warps;
  const int k_blocks = (p.a.k + 63) / 64, groups = p.blocks16 * 2;
  const GemmStages stages = gemm_stages(p.padded + (p.ring ? 0 : groups * 8), k_blocks);
  const uint32_t stage_bytes = stages.blocks * (p.padded + (p.ring ? 0 : groups * 8)) * 128;
  auto load = [&](int stage) {
    const int first = stage * stages.blocks, left = k_blocks - first;
    if (left > 0) {
      const int blocks = left < stages.blocks ? left : stages.blocks;
      const uint32_t to = work + stage % 4 * stage_bytes;
      load_rows(to, p.padded, p.a, first, blocks);
      const uint32_t behind = to + stages.blocks * p.padded * 128;
      if (p.weights.groups == 0)
        load_rows(behind, groups * 8, p.b, first, blocks);
      else if (!p.ring)
        load_atoms(behind, p.weights.from, groups, p.weights.chunks, first, blocks);
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
  if (p.ring) ring.open(p.weights);

  float sum[kMostBlocks][2][4] = {};
  /* Lane's share of ldmatrix: weights (8 columns, k half), activations (8 rows, k half). */
  const int r = lane & 7, w_group = (lane >> 3) & 1, w_half = lane >> 4, x_group = lane >> 4,
            x_half = (lane >> 3) & 1;
  const int per_page = p.ring ? p.weights.chunks_a_page() : 0;
  uint32_t page = 0;
  int in_page = 0;
#pragma unroll 1
  for (int s = -4, k_block = 0; k_block < k_blocks; ++s) {
    if (s == 0)
      copy16_wait<3>();
    else if (s > 0)
      copy16_wait<2>();
    if (s >= 0) __syncthreads(); /* the stage is there, and all have left the one before it */
    if (s != 0) load(s < 0 ? s + 4 : s + 3);
    if (s < 0) continue;
    const uint32_t stage = work + s % 4 * stage_bytes;
    for (int b = 0; b < stages.blocks && k_block < k_blocks; ++b, ++k_block) {
      uint32_t weights, pitch; /* of groups */
      if (p.ring) {
        if (in_page == 0) page = ring.take();
        weights = page + in_page * 1024, pitch = per_page * 1024;
      } else {
        weights = stage + stages.blocks * p.padded * 128 + b * groups * 1024, pitch = 1024;
      }
      weights += (first16 * 2 + w_group) * pitch + r * 128;
      const uint32_t panel = stage + (b * p.padded + row + x_group * 8 + r) * 128;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const int piece = (part * 2 + t) * 2;
        uint32_t x[4];
        load_matrices(x, panel + (((piece + x_half) ^ r) << 4));
        const uint32_t at = weights + (((piece + w_half) ^ r) << 4);
#pragma unroll
        for (int m = 0; m < kMostBlocks; ++m) {
          if (first16 + m * step16 < p.blocks16) {
            uint32_t a[4];
            load_matrices(a, at + m * step16 * 2 * pitch);
            mma_16x8x16<kBfloat>(sum[m][0], a, x[0], x[1]);
            mma_16x8x16<kBfloat>(sum[m][1], a, x[2], x[3]);
          }
        }
      }
      if (p.ring && (++in_page == per_page || k_block + 1 == k_blocks)) {
        in_page = 0;
        ring.release();
        ring.ask_more();
      }
    }
  }
  copy16_wait<0>();

  /* Both parts meet in scratch; then neighbours write neighbours. */
  const int pitch = groups * 8 + 4, plane = p.padded * pitch;
  __syncthreads();
  {
    const uint32_t at =
        work + 4 * (part * plane + (row + lane % 4 * 2) * pitch + first16 * 16 + lane / 4);
#pragma unroll
    for (int m = 0; m < kMostBlocks; ++m)
      if (first16 + m * step16 < p.blocks16)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            store_shared(at + 4 * ((n * 8 + (e & 1)) * pitch + m * step16 * 16 + (e / 2) * 8),
                         sum[m][n][e]);
  }
  __syncthreads();
#pragma unroll 1
  for (int y = warp; y < p.rows; y += 8) {
    float* to = p.c + y * p.c_row;
    for (int x = lane; x < p.columns; x += 32) {
      const uint32_t at = work + 4 * (y * pitch + x);
      const float both = load_shared(at) + load_shared(at + 4 * plane);
      to[x] = p.accumulate ? to[x] + both : both;
    }
  }
  __syncthreads();
}

template <bool kBfloat>
static __device__ __noinline__ void gemm16(ObkLanes* w, const ObkGemm& g) {
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  if (__isShared(g.a) || (!g.packed && __isShared(g.b))) __syncthreads();
  Ring ring = w->ring; /* in registers for the while */
  const int chunks = (int)((g.k + 63) / 64);
  for (int64_t column = 0; column < g.n; column += gemm_pass_columns(g.m)) {
    const int64_t most = gemm_pass_columns(g.m), columns = min(most, g.n - column);
    for (int64_t row = 0; row < g.m; row += 64) {
      Pass16 p = {};
      p.rows = (int)min((int64_t)64, g.m - row), p.columns = (int)columns;
      p.padded = gemm_pass_rows(g.m), p.blocks16 = (int)((columns + 15) / 16);
      p.c = (float*)g.c + row * g.c_row + column, p.c_row = g.c_row;
      p.accumulate = g.accumulate != 0;
      p.a = {(const uint16_t*)g.a + row * g.a_row, g.a_row, g.a_col, p.rows, (int)g.k, 0};
      p.a.choose();
      if (g.packed) {
        p.weights.groups = p.blocks16 * 2, p.weights.chunks = chunks;
        p.weights.from = (const char*)g.b + (g.column + column) / 8 * chunks * 1024;
        p.ring = ring.pages() > 0;
      } else {
        p.b = {(const uint16_t*)g.b + column * g.b_col, g.b_col, g.b_row, p.columns, (int)g.k, 0};
        p.b.choose();
      }
      pass16<kBfloat, 6>(ring, work, p);
    }
  }
  w->ring = ring;
}

}  // namespace obk

#include "fma.cuh"

namespace obk {

template <int kType>
static __device__ inline void gemm_tile(ObkLanes* w, const ObkGemm& g) {
  if (kType == kObkF16)
    gemm16<false>(w, g);
  else if (kType == kObkBf16)
    gemm16<true>(w, g);
  else if (kType == kObkF64)
    fma_tile<FmaF64>(g);
  else if (kType == kObkF32)
    fma_tile<FmaF32>(g);
  else
    fma_tile<FmaInt>(g);
}

}  // namespace obk

#endif

/* kernels/cuda/gemm/gemm_streamed.cuh — a tile of one to eight rows whose B is an activation with
 * rows of k, or in tf32 of up to 32 rows by packed weights: bound by reading B, which goes from
 * memory straight to registers.
 *
 *   gemm_streamed_tile<kType, kRows, kColumns, kCtas, kPacked>(g)
 *
 *     kRows, kColumns    of a tile at most; columns: 16, 32, 64 or 128 (tf32: up to 64)
 *     kCtas              CTAs that share a multiprocessor: registers for loads in flight
 *     kPacked            B is packed weights (tf32): panels of 16 columns, [n / 16][k][16]
 *
 * A thread loads up to 16 bytes of each of its rows of B and has several rows on their way, so that
 * a multiprocessor has 64 KB and more in flight without a barrier. Sums have the order, and the
 * bits, of the tiles of more rows.
 *
 * f32: a thread has four columns of a block of 32 k, whose partial sum it makes in order of k; the
 * threads of a CTA have all columns of as many blocks as there are threads for, a round. Partial
 * sums go to shared memory and are added in order (fma.cuh). A comes to shared memory a round
 * ahead.
 *
 * By mma.sync (16 bits, tf32): columns of C are the 16-row side of mma, rows of C its 8-column
 * side, so that B is multiplied for each eight rows. Each of the four k-steps of a block has a sum
 * of its own, by a warp; two warps share the columns; (0 + 1) + (2 + 3) at the end (gemm_mma.cuh,
 * gemm_tf32.cuh). A lane's columns lie side by side, so the columns of an mma's fragment are not
 * neighbours; its k are. A goes to registers as B does.
 *
 * Where B or A do not begin at multiples of such loads, elements are loaded one by one. */
#ifndef OBK_GEMM_STREAMED_CUH
#define OBK_GEMM_STREAMED_CUH

#include "core/dialect.cuh"
#include "gemm/fma.cuh"
#include "gemm/gemm_shape.h"
#include "tiles.h"

namespace obk {

/* ---- exact f32 ---- */

/* kRows: 1, 2, 4 or 8; kAhead: groups of kGroup k in flight; kWide: by 16 bytes, else element by
 * element. */
template <int kRows, int kColumns, int kGroup, int kAhead, bool kWide>
static __device__ __forceinline__ void streamed_f32(const ObkGemm& g) {
  constexpr int kAcross = kColumns / 4, kPieces = OBK_THREADS / kAcross,
                kGroups = kFmaDepth / kGroup;
  static_assert(kGroups % kAhead == 0, "a group's registers are the same in every round");
  const int k = (int)g.k, n = (int)g.n, rows = (int)g.m, blocks = (k + kFmaDepth - 1) / kFmaDepth;
  const StreamedF32Shape shape = streamed_f32_shape(kRows, kColumns, blocks);
  const int piece = (int)threadIdx.x / kAcross, column = (int)threadIdx.x % kAcross * 4;
  const bool whole = k % kFmaDepth == 0, takes_part = column < n && piece < shape.pieces;
  const int64_t row_bytes = g.b_row * 4;
  const char* const b = (const char*)g.b + (takes_part ? column * 4 : 0);
  auto left = [&](int round) { /* k of this thread's block that are there, and behind it */
                               return takes_part ? k - (round * kPieces + piece) * kFmaDepth : 0;
  };
  uint32_t at[kAhead][kGroup][4];
  auto request = [&](uint32_t(&to)[kGroup][4], int round, int group) {
    const int there = left(round) - group * kGroup;
    if (there <= 0) return;
    const char* const from =
        b + ((int64_t)(round * kPieces + piece) * kFmaDepth + group * kGroup) * row_bytes;
    if (kWide && (whole || there >= kGroup)) {
#pragma unroll
      for (int q = 0; q < kGroup; ++q) load_global(to[q], from + q * row_bytes);
      return;
    }
#pragma unroll
    for (int q = 0; q < kGroup; ++q) {
#pragma unroll
      for (int c = 0; c < 4; ++c) to[q][c] = 0;
      if (q >= there) continue;
      if constexpr (kWide) {
        load_global(to[q], from + q * row_bytes);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (column + c < n) {
            uint32_t one[1];
            load_global(one, from + q * row_bytes + c * 4);
            to[q][c] = one[0];
          }
      }
    }
  };
#pragma unroll
  for (int group = 0; group < kAhead; ++group) request(at[group], 0, group);

  /* A of a round, [row][block][32 and 4 more]: two rounds have a place. */
  const uint32_t a_at = (shared_address(g.scratch) + 15) & ~15u,
                 parts_at = a_at + shape.places * shape.a_bytes;
  const bool a_is_shared = __isShared(g.a);
  const int64_t a_row = rows > 1 ? g.a_row * 4 : 0;
  const int unit = (int)(((uint64_t)g.a | a_row) & 15);
  auto bring = [&](int round) {
    const int first = round * kPieces * kFmaDepth, pieces = shape.pieces * (kFmaDepth / 4);
    const uint32_t place = a_at + (round & 1) * shape.a_bytes;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < kRows * pieces; i += OBK_THREADS) {
      const int row = kRows == 1 ? 0 : i / pieces, p = i - row * pieces;
      const int from = first + p * 4, there = row < rows ? min(max(k - from, 0), 4) : 0;
      const char* of = (const char*)g.a + (there > 0 ? row * a_row + (int64_t)from * 4 : 0);
      fma_copy_four(place + row * shape.row_bytes + p / 8 * kFewRowsBlockBytes + p % 8 * 16, of,
                    there, unit, a_is_shared);
    }
  };
  bring(0);
  if (shape.rounds > 1) bring(1);
  copy16_commit();
  copy16_wait<0>();
  __syncthreads();

  constexpr int kOutputs = (kRows * kColumns + OBK_THREADS - 1) / OBK_THREADS; /* of a thread */
  float total[kOutputs] = {};
#pragma unroll 1
  for (int round = 0; round < shape.rounds; ++round) {
    const bool busy = left(round) > 0;
    const uint32_t a_mine = a_at + (round & 1) * shape.a_bytes +
                            (piece < shape.pieces ? piece : 0) * kFewRowsBlockBytes;
    const uint32_t parts = parts_at + (round & 1) * shape.parts_bytes;
    float sum[kRows][4] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t(&w)[kGroup][4] = at[group % kAhead];
      if (busy && left(round) > group * kGroup) {
#pragma unroll
        for (int j = 0; j < kGroup; j += 4)
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            uint32_t a[4];
            load_shared16(a, a_mine + r * shape.row_bytes + (group * kGroup + j) * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
              for (int c = 0; c < 4; ++c)
                sum[r][c] = fmaf(__uint_as_float(a[e]), __uint_as_float(w[j + e][c]), sum[r][c]);
          }
      }
      request(w, round + (group + kAhead) / kGroups, (group + kAhead) % kGroups);
    }
    if (busy) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t bits[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) bits[c] = __float_as_uint(sum[r][c]);
        store_shared16(parts + ((r * shape.pieces + piece) * kColumns + column) * 4, bits);
      }
    }
    copy16_wait<0>();
    __syncthreads();
    if (round + 2 < shape.rounds) {
      bring(round + 2);
      copy16_commit();
    }
    const int there = min(shape.pieces, blocks - round * kPieces);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int i = o * OBK_THREADS + (int)threadIdx.x, row = i / kColumns, c = i % kColumns;
      if (row >= rows || c >= n) continue;
      uint32_t from = parts + (row * shape.pieces * kColumns + c) * 4;
#pragma unroll 8
      for (int p = 0; p < there; ++p, from += kColumns * 4) total[o] += load_shared(from);
    }
  }
  float* const c_at = (float*)g.c;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int i = o * OBK_THREADS + (int)threadIdx.x, row = i / kColumns, c = i % kColumns;
    if (row >= rows || c >= n) continue;
    float* const to = c_at + row * g.c_row + c;
    *to = g.accumulate ? *to + total[o] : total[o];
  }
  __syncthreads();
}

/* ---- by mma.sync ---- */

template <int kType, int kColumns>
struct StreamedMma {
  static constexpr bool kTf32 = kType == kObkTf32;
  static constexpr int kSize = kTf32 ? 4 : 2, kOfWord = 4 / kSize;   /* bytes; elements of a word */
  static constexpr int kDepth = kTf32 ? 32 : 64, kStep = kDepth / 4; /* k of a block, of a warp's */
  static constexpr int kWords = kColumns <= 16 * kOfWord ? 1 : kColumns / (16 * kOfWord);
  static constexpr int kOfLane = kWords * kOfWord, kOfWarp = 8 * kOfLane; /* columns */
  static constexpr int kLoads = kTf32 ? 2 : 4;                            /* rows of B of a lane */
  static constexpr int kMmas = kTf32 ? (kWords + 1) / 2 : kWords;
  static constexpr int kRegisters = kLoads * kWords + 2; /* of a block */
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "loads of 4, 8 or 16 bytes");
};

/* A lane's operands of a block: of B kWords words of each of its k, of A two of each eight rows. */
template <int kType, int kColumns, int kEights>
struct StreamedBlock {
  using S = StreamedMma<kType, kColumns>;
  uint32_t b[S::kLoads][S::kWords], a[kEights][2];
};

/* kAhead: blocks in flight; kWide: by kWords words, A by words; else element by element. */
template <int kType, int kRows, int kColumns, int kAhead, bool kWide, bool kPacked>
static __device__ __forceinline__ void streamed_mma(const ObkGemm& g) {
  using S = StreamedMma<kType, kColumns>;
  constexpr int kEights = (kRows + 7) / 8; /* of rows */
  using Block = StreamedBlock<kType, kColumns, kEights>;
  static_assert(!kPacked || (S::kTf32 && kWide && S::kOfLane <= 16),
                "a panel has a lane's columns");
  const int k = (int)g.k, n = (int)g.n, rows = (int)g.m, blocks = (k + S::kDepth - 1) / S::kDepth;
  const int warp = (int)threadIdx.x / 32, chain = warp % 4, lane = (int)threadIdx.x % 32,
            eight = lane / 4, quarter = lane % 4;
  const int column = warp / 4 * S::kOfWarp + eight * S::kOfLane; /* the lane's first */
  const bool busy = warp / 4 * S::kOfWarp < n;                   /* the warp */
  const bool whole = k % S::kDepth == 0;
  const int loaded = column < n ? column : 0; /* who has none loads the first: nobody stores it */
  /* The lane's first k of a block; of a load and of a word of A so many behind it. */
  constexpr int kPair = S::kTf32 ? 1 : 2, kOther = S::kTf32 ? 4 : 8;
  const int first_k = chain * S::kStep + quarter * kPair;
  auto k_of = [](int i) { return S::kTf32 ? 4 * i : i % 2 + i / 2 * 8; };
  const int64_t row_bytes = kPacked ? 64 : g.b_row * S::kSize;
  const int of_all = kPacked ? (int)g.column + loaded : loaded;
  const char* const b =
      (const char*)g.b + first_k * row_bytes +
      (kPacked ? of_all / 16 * ((int64_t)k * 64) + of_all % 16 * 4 : (int64_t)of_all * S::kSize);
  const char* a[kEights];
#pragma unroll
  for (int r = 0; r < kEights; ++r) {
    const int row = r * 8 + eight; /* one that is not there: the first, nobody stores its sums */
    a[r] = (const char*)g.a + ((row < rows ? row * g.a_row : 0) + first_k) * S::kSize;
  }
  Block at[kAhead];
  auto element = [&](const char* from) {
    uint32_t v[1];
    if constexpr (S::kTf32)
      load_global(v, from);
    else
      load_global16(v[0], from);
    return v[0];
  };
  auto request = [&](Block& to, int block) {
    if (block >= blocks) return;
    const int left = k - block * S::kDepth; /* k from the block's first on */
    const char* const from = b + (int64_t)block * S::kDepth * row_bytes;
    const int64_t a_from = (int64_t)block * S::kDepth * S::kSize;
    if (kWide && (whole || left >= S::kDepth)) {
#pragma unroll
      for (int i = 0; i < S::kLoads; ++i) load_global(to.b[i], from + k_of(i) * row_bytes);
#pragma unroll
      for (int r = 0; r < kEights; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t word[1];
          load_global(word, a[r] + a_from + i * kOther * S::kSize);
          to.a[r][i] = word[0];
        }
      return;
    }
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i) {
#pragma unroll
      for (int w = 0; w < S::kWords; ++w) to.b[i][w] = 0;
      if (first_k + k_of(i) >= left) continue;
      const char* const row = from + k_of(i) * row_bytes;
      if constexpr (kWide) {
        load_global(to.b[i], row);
      } else {
#pragma unroll
        for (int e = 0; e < S::kOfLane; ++e)
          if (loaded + e < n)
            to.b[i][e / S::kOfWord] |= element(row + e * S::kSize) << e % S::kOfWord * 16;
      }
    }
#pragma unroll
    for (int r = 0; r < kEights; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to.a[r][i] = 0;
#pragma unroll
        for (int e = 0; e < kPair; ++e) {
          const int of = i * kOther + e;
          if (first_k + of < left) to.a[r][i] |= element(a[r] + a_from + of * S::kSize) << e * 16;
        }
      }
  };
  float sum[kEights][S::kMmas][4] = {};
  auto multiply = [&](const Block& of) {
    if constexpr (S::kTf32) {
      uint32_t x[kEights][2];
#pragma unroll
      for (int r = 0; r < kEights; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) x[r][i] = round_tf32(__uint_as_float(of.a[r][i]));
#pragma unroll
      for (int m = 0; m < S::kMmas; ++m) {
        uint32_t w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          w[e] = 2 * m + e % 2 < S::kWords
                     ? round_tf32(__uint_as_float(of.b[e / 2][(2 * m + e % 2) % S::kWords]))
                     : 0;
#pragma unroll
        for (int r = 0; r < kEights; ++r) mma_16x8x8(sum[r][m], w, x[r][0], x[r][1]);
      }
    } else {
#pragma unroll
      for (int m = 0; m < S::kMmas; ++m) {
        const uint32_t w[4] = {__byte_perm(of.b[0][m], of.b[1][m], 0x5410),
                               __byte_perm(of.b[0][m], of.b[1][m], 0x7632),
                               __byte_perm(of.b[2][m], of.b[3][m], 0x5410),
                               __byte_perm(of.b[2][m], of.b[3][m], 0x7632)};
#pragma unroll
        for (int r = 0; r < kEights; ++r)
          mma_16x8x16<kType == kObkBf16>(sum[r][m], w, of.a[r][0], of.a[r][1]);
      }
    }
  };
  if (busy) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) request(at[i], i);
#pragma unroll 1
    for (int block = 0; block < blocks; block += kAhead)
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (block + i < blocks) {
          multiply(at[i]);
          request(at[i], block + i + kAhead);
        }
  }
  /* [chain][row][column]; of the lane two rows of two columns an mma. */
  const uint32_t sums_at = (shared_address(g.scratch) + 15) & ~15u;
  constexpr int kPlane = kEights * 8 * kColumns * 4;
  if (busy) {
#pragma unroll
    for (int r = 0; r < kEights; ++r)
#pragma unroll
      for (int m = 0; m < S::kMmas; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = r * 8 + quarter * 2 + e % 2, c = column + 2 * m + e / 2;
          if (row < rows && c < n && 2 * m + e / 2 < S::kOfLane)
            store_shared(sums_at + chain * kPlane + (row * kColumns + c) * 4, sum[r][m][e]);
        }
  }
  __syncthreads();
  float* const c_at = (float*)g.c;
#pragma unroll 1
  for (int i = (int)threadIdx.x; i < rows * kColumns; i += OBK_THREADS) {
    const int row = i / kColumns, c = i % kColumns;
    if (c >= n) continue;
    float plane[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) plane[p] = load_shared(sums_at + p * kPlane + i * 4);
    const float total = (plane[0] + plane[1]) + (plane[2] + plane[3]);
    float* const to = c_at + row * g.c_row + c;
    *to = g.accumulate ? *to + total : total;
  }
  __syncthreads();
}

/* ---- the tile ---- */

/* Registers that a thread has for operands on their way, with 256 threads of so many CTAs; in one
 * kernel a body shares them with what calls it, which may leave few (OBK_FEW_REGISTERS: the
 * assembler would keep operands in local memory). */
#if defined OBK_MONO && defined OBK_FEW_REGISTERS
static constexpr int streamed_registers(int) { return 16; }
#elif defined OBK_MONO
static constexpr int streamed_registers(int) { return 80; }
#else
static constexpr int streamed_registers(int ctas) { return ctas > 1 ? 80 : 144; }
#endif
static constexpr int streamed_power(int n) { return n >= 16 ? 16 : n >= 8 ? 8 : n >= 4 ? 4 : 2; }

template <int kType, int kRows, int kColumns, int kCtas, bool kWide, bool kPacked>
static __device__ __forceinline__ void streamed_by(const ObkGemm& g) {
  constexpr int kRegisters = streamed_registers(kCtas);
  if constexpr (kType == kObkF32) {
    constexpr int kPadded = few_rows_padded(kRows);
    constexpr bool kMany = kRegisters >= 144, kSums = kPadded == 8; /* take many, too */
    if constexpr (!kWide)
      streamed_f32<kPadded, kColumns, 4, 1, false>(g);
    else if constexpr (kSums && !kMany)
      streamed_f32<kPadded, kColumns, 4, 2, true>(g);
    else
      streamed_f32<kPadded, kColumns, 8, kMany ? 4 : 2, true>(g);
  } else {
    using S = StreamedMma<kType, kColumns>;
    constexpr int kMore = (kRows + 7) / 8 - 1; /* eights of rows beyond the first */
    constexpr int kBlocks = (kRegisters - kMore * S::kMmas * 4) / (S::kRegisters + kMore * 2);
    streamed_mma<kType, kRows, kColumns, kWide ? streamed_power(kBlocks) : 2, kWide, kPacked>(g);
  }
}
template <int kType, int kRows, int kColumns, int kCtas, bool kWide, bool kPacked>
static __device__ __noinline__ void streamed_called() {
  const ObkGemm g = tile_arguments();
  streamed_by<kType, kRows, kColumns, kCtas, kWide, kPacked>(g);
}
template <int kType, int kRows, int kColumns, int kCtas, bool kWide, bool kPacked>
static __device__ __forceinline__ void streamed_call(const ObkGemm& g) {
  if (threadIdx.x == 0) tile_arguments() = g;
  __syncthreads();
  streamed_called<kType, kRows, kColumns, kCtas, kWide, kPacked>();
}

/* Whether loads of the tile's width are aligned and leave no column over. */
template <int kType, int kColumns>
static __device__ __forceinline__ bool streams_wide(const ObkGemm& g) {
  if constexpr (kType == kObkF32) {
    return (((uint64_t)g.b | g.b_row * 4) & 15) == 0 && g.n % 4 == 0;
  } else {
    using S = StreamedMma<kType, kColumns>;
    const int64_t a_row = g.m > 1 ? g.a_row * S::kSize : 0;
    return (((uint64_t)g.b | g.b_row * S::kSize) & (S::kWords * 4 - 1)) == 0 &&
           g.n % S::kOfLane == 0 && (((uint64_t)g.a | a_row) & 3) == 0;
  }
}

template <int kType, int kRows, int kColumns, int kCtas, bool kPacked = false>
static __device__ __forceinline__ void gemm_streamed_tile(const ObkGemm& g) {
  if constexpr (!kPacked) { /* panels are aligned */
    if (!streams_wide<kType, kColumns>(g))
      return streamed_call<kType, kRows, kColumns, kCtas, false, false>(g);
  }
#ifdef OBK_MONO
  streamed_call<kType, kRows, kColumns, kCtas, true, kPacked>(g);
#else
  streamed_by<kType, kRows, kColumns, kCtas, true, kPacked>(g);
#endif
}

}  // namespace obk

#endif

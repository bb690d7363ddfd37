/* kernels/cuda/gemm/gemm_fixed.cuh — a 16-bit product tile whose shape stands in the text of its
 * body: rows, columns, k and pitches are constants, so that a phase holds little but copies and
 * products.
 *
 *   fixed_takes<FixedShape<...>>(g)     whether this tile is a whole one with aligned rows
 *   fixed_tile<bf16, FixedShape<...>>(g)
 *
 * Rows of C are the 16-row side of mma.sync (8 of them where there are no more), columns the
 * 8-column side. Each of the four k-steps of 64 has a sum of its own, by two warps that share the
 * rectangle: wide pieces, for shared memory is what products wait for. At the end (0 + 1) + (2 +
 * 3), each warp half of its pair's: the order, and the bits, of gemm_mma.cuh.
 *
 * A comes by asynchronous copies that are all requested before anything else, in groups, where all
 * of k has room; else in four stages; by 16 bytes, or by 8 or 4 where rows begin at multiples of
 * those. Weights come by the ring: requested before the barrier, or
 * here. The last tile's rows may be fewer than the others': the rows before repeat. */
#ifndef OBK_GEMM_FIXED_CUH
#define OBK_GEMM_FIXED_CUH

#include "gemm/gemm_operands.cuh"
#include "tiles.h"

namespace obk {

static constexpr int fixed_least(int a, int b) { return a < b ? a : b; }
static constexpr int ceil_div(int n, int by) { return (n + by - 1) / by; }
static constexpr int fixed_power(int n) { /* of two, not below n */
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

/* kPitchA, kPitchC: from row to row, in elements.
 * kSplitK: of k, each summed for itself; they are added in order (gemm_wgmma_pipelined.cuh,
 * gemm_split_k). */
template <int kRows_, int kColumns_, int kK_, int kPitchA_, int kPitchC_, int kSplitK_ = 1>
struct FixedShape {
  static constexpr int kSplitK = kSplitK_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kK = kK_;
  static constexpr int kPitchA = kPitchA_, kPitchC = kPitchC_;
  static constexpr int kUnit = kRows == 1 ? 16 : row_unit(kPitchA); /* bytes of a copy of A */
  static constexpr bool kFits = kRows >= 1 && kRows <= 64 && kColumns >= 1 &&
                                kColumns <= (kRows <= 32 ? 192 : kWgmmaColumns) && kK >= 1 &&
                                kUnit > 0;
  static constexpr int kChunks = (kK + 63) / 64, kGroups = (kColumns + 15) / 16 * 2;
  static constexpr int kPage = /* chunks of a page of weights */
      kGroups < WeightPages::kMostGroups ? WeightPages::kMostGroups / kGroups : 1;
  static constexpr int kPages = ceil_div(kChunks, kPage);
  /* Lines of A in shared memory, and the threads' way over them: kStep chunks in one go. */
  static constexpr bool kSkinny = kRows <= 8;
  static constexpr int kLines = kRows < 8 ? kRows : (kRows + 7) / 8 * 8;
  static constexpr int kBlock = kLines * 128; /* bytes of a chunk */
  static constexpr int kSpread = fixed_least(fixed_power(kLines), 32), kStep = 32 / kSpread;
  static constexpr bool kTwice = kLines > 32;
  /* Warps of a k-step along the rows; the fewest bytes read from shared memory. */
  static constexpr int kBlocks16 = ceil_div(kRows, 16);
  static constexpr int read_bytes(int down) {
    return ceil_div(kBlocks16, down) * 512 + ceil_div(kGroups, 2 / down) * 256;
  }
  static constexpr int kDown = kBlocks16 >= 2 && read_bytes(2) < read_bytes(1) ? 2 : 1;
  static constexpr int kAcross = 2 / kDown;
  static constexpr int kM = ceil_div(kBlocks16, kDown), kN = ceil_div(kGroups, kAcross);
  static constexpr bool kBeyond =
      kDown * kM * 16 > kLines; /* some warp's last 16 rows are not all there */
  /* All of k at once and unrolled, or stages of kStage chunks. */
  static constexpr int kCode = kChunks * (kM + (kN + 1) / 2 + kM * kN);
  static constexpr bool kWhole =
      kBlock * kChunks <= OBK_GEMM_SMEM_A && kCode <= 640 && (kRows <= 32 || kColumns <= 96);
  /* Few rows: all of A at once, and a loop over the pages. Such tiles wait for weights alone, and
   * their unrolled code would be long. */
  static constexpr bool kByPages = kWhole && kSkinny && kPages > 2;
  static constexpr int stage() {
    int best = 1;
    for (int c = 1; c <= kPage; ++c)
      if (kPage % c == 0 && 4 * c * kBlock <= OBK_GEMM_SMEM_A &&
          (kChunks % c == 0 || kChunks % best != 0))
        best = c;
    return best;
  }
  static constexpr int kStage = stage(), kStages = ceil_div(kChunks, kStage);
  static constexpr int kPasses = ceil_div(kChunks, kStep);
  static constexpr int kGroupPasses = ceil_div(kPasses, 4);
  static constexpr int kGroupChunks = kGroupPasses * kStep;
  static constexpr int kCopyGroups = ceil_div(kPasses, kGroupPasses);
  /* The second plane of sums: behind the operands where there is room, else in their place. */
  static constexpr int kPlanePitch = kGroups * 8 + 8;
  static constexpr int kOperands = kBlock * (kWhole ? kChunks : 4 * kStage);
  static constexpr bool kBehind = kOperands + kRows * kPlanePitch * 4 <= OBK_GEMM_SMEM_A;
};

/* At most `pending` groups of copies are under way; a constant where loops are unrolled. */
static __device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0:
      return copy16_wait<0>();
    case 1:
      return copy16_wait<1>();
    case 2:
      return copy16_wait<2>();
    case 3:
      return copy16_wait<3>();
    case 4:
      return copy16_wait<4>();
    case 5:
      return copy16_wait<5>();
    case 6:
      return copy16_wait<6>();
    default:
      return copy16_wait<7>();
  }
}

/* A tile's pages, one after another, when as many as have a place were requested in order. */
struct FixedRing : PageCursor {
  int32_t pending, next;
  WeightPages opened;

  /* What open() looks at, read before there is time to wait for it. */
  __device__ __forceinline__ void look() {
    const RingState& s = ring_state();
    at = s.at, bars = s.bars, pages = s.pages, slot = s.take, turn = s.take_turn;
    pending = s.pending, next = s.next, opened = s.opened;
  }
  __device__ __forceinline__ void open(const WeightPages& range) {
    if (kDataflow) return; /* they come */
    const bool ahead = pending > 0 && pending == next && opened.from == range.from &&
                       opened.groups == range.groups && opened.chunks == range.chunks;
    if (!ahead)
      ring_reopen(range), look();
    else if (kPaces)
      ring_load_rest(range, pending, pages);
  }
  using PageCursor::close;
  /* The same where pages of the next range are on their way. */
  __device__ __forceinline__ void close(const WeightPages& after, int issued) const {
    close();
    if (threadIdx.x != 0 || issued == 0) return;
    RingState& s = ring_state();
    s.load = slot + issued, s.next = s.pending = issued, s.opened = after;
    if (s.load >= pages) s.load -= pages, s.load_turn ^= 1;
  }
};

template <int kHalf>
struct FixedHalf {
  static constexpr int value = kHalf;
};

struct FixedGive {
  __device__ __forceinline__ void operator()(uint32_t at, float x, float y) const {
    store_shared8(at, x, y);
  }
  __device__ __forceinline__ void operator()(uint32_t at, float x) const { store_shared(at, x); }
};
struct FixedAdd {
  __device__ __forceinline__ void operator()(uint32_t at, float& x, float& y) const {
    float a, b;
    load_shared8(a, b, at);
    x += a, y += b;
  }
  __device__ __forceinline__ void operator()(uint32_t at, float& x) const { x += load_shared(at); }
};

template <typename S>
struct FixedTile {
  uint32_t a_at, w_at; /* this lane's share of ldmatrix: in a block of A, in a page of weights */
  uint32_t a_last; /* the same of the warp's last 16 rows, where some are not there: the last one
                      again */
  uint32_t to;     /* this thread's pieces of A: where they go, where they lie */
  const char *from, *from32;
  int chunk; /* of kStep */
  float sum[S::kM][S::kN][4];

  static __device__ __forceinline__ int step() { return threadIdx.x / 64; } /* of k */
  static __device__ __forceinline__ int down() { return threadIdx.x / 32 % 2 % S::kDown; }
  static __device__ __forceinline__ int across() { return threadIdx.x / 32 % 2 / S::kDown; }

  __device__ __forceinline__ void find_rows(const ObkGemm& g, uint32_t work) {
    const int r = threadIdx.x / 8 % S::kSpread, piece = threadIdx.x % 8, last = (int)g.m - 1;
    chunk = threadIdx.x / 8 / S::kSpread;
    const char* a = (const char*)g.a + chunk * 128 + piece * 16;
    from = a + (int64_t)min(r, last) * (S::kPitchA * 2);
    if (S::kTwice) from32 = a + (int64_t)min(r + 32, last) * (S::kPitchA * 2);
    to = work + chunk * S::kBlock + r * 128 + ((piece ^ (r & 7)) << 4);
  }
  /* What is there of this thread's piece of a chunk; the rest becomes zero. */
  static __device__ __forceinline__ uint32_t bytes_of_k(int of_chunk) {
    const int left = S::kK - (of_chunk * 8 + (int)(threadIdx.x % 8)) * 8;
    if (S::kK % 8 == 0) return left > 0 ? 16 : 0;
    return left > 0 ? min(left * 2, 16) : 0;
  }
  /* Pass `pass` of the copies, kStep chunks, to `place` bytes behind `to`. */
  __device__ __forceinline__ void copy(int pass, uint32_t place) const {
    const int c = pass * S::kStep; /* and `chunk` more */
    if (S::kSpread > S::kLines && (int)(threadIdx.x / 8 % S::kSpread) >= S::kLines) return;
    const bool beyond = c + S::kStep > S::kChunks;
    if (beyond && c + chunk >= S::kChunks) return;
    const bool upper = S::kTwice && (int)(threadIdx.x / 8) + 32 < S::kLines;
    if (S::kUnit != 16 || (S::kK % 64 != 0 && c + S::kStep >= S::kChunks)) {
      const uint32_t bytes = bytes_of_k(c + chunk);
      copy_piece<S::kUnit>(to + place, bytes ? from + c * 128 : from, bytes);
      if (upper) copy_piece<S::kUnit>(to + place + 4096, bytes ? from32 + c * 128 : from32, bytes);
      return;
    }
    copy16(to + place, from + c * 128);
    if (upper) copy16(to + place + 4096, from32 + c * 128);
  }
  /* The same of rows that lie in shared memory. */
  __device__ __forceinline__ void copy_shared(int pass, uint32_t place) const {
    const int c = pass * S::kStep, at = c + chunk;
    if (S::kSpread > S::kLines && (int)(threadIdx.x / 8 % S::kSpread) >= S::kLines) return;
    if (at >= S::kChunks) return;
    uint32_t v[4] = {};
    if constexpr (S::kUnit == 16 && S::kK % 8 == 0) {
      if (S::kK % 64 == 0 || bytes_of_k(at) > 0) load_shared16(v, shared_address(from) + c * 128);
    } else {
      const uint32_t bytes = bytes_of_k(at);
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e)
        if (bytes > e * 4) {
          v[e] = load_shared_word(shared_address(from) + c * 128 + e * 4);
          if (bytes < e * 4 + 4) v[e] &= 0xffff;
        }
    }
    store_shared16(to + place, v);
  }
  __device__ __forceinline__ void prepare(uint32_t work) {
    const int lane = threadIdx.x % 32, r = lane & 7, half = lane / 8 & 1;
    const int first = S::kSkinny ? r : down() * S::kM * 16 + (lane & 15),
              piece = step() * 2 + (S::kSkinny ? half : lane / 16);
    const auto at = [&](int wanted) {
      const int row = min(wanted, S::kLines - 1);
      return work + row * 128 + ((piece ^ (row & 7)) << 4);
    };
    a_at = at(first);
    if (S::kBeyond) a_last = at(first + (S::kM - 1) * 16);
    w_at = ((across() * S::kN + lane / 16) * 8 + r) * 128 + (((step() * 2 + half) ^ r) << 4);
#pragma unroll
    for (int m = 0; m < S::kM; ++m)
#pragma unroll
      for (int n = 0; n < S::kN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[m][n][e] = 0;
  }
  /* Products of one chunk: A `panel` bytes behind, weights at `page`. */
  template <bool kBfloat>
  __device__ __forceinline__ void multiply(uint32_t smem_a, uint32_t page) {
    uint32_t a[S::kM][4], w[S::kN + 1][2];
    if (S::kSkinny) {
      load_two_matrices(a[0][0], a[0][2], a_at + smem_a);
      a[0][1] = a[0][3] = 0;
    } else {
#pragma unroll
      for (int m = 0; m < S::kM; ++m)
        load_matrices(a[m],
                      S::kBeyond && m + 1 == S::kM ? a_last + smem_a : a_at + smem_a + m * 2048);
    }
#pragma unroll
    for (int n = 0; n < S::kN; n += 2) {
      const uint32_t from = w_at + page + n * 1024;
      if (n + 1 < S::kN) {
        uint32_t both[4];
        load_matrices(both, from);
        w[n][0] = both[0], w[n][1] = both[1], w[n + 1][0] = both[2], w[n + 1][1] = both[3];
      } else {
        load_two_matrices(w[n][0], w[n][1], from);
      }
    }
#pragma unroll
    for (int m = 0; m < S::kM; ++m)
#pragma unroll
      for (int n = 0; n < S::kN; ++n) mma_16x8x16<kBfloat>(sum[m][n], a[m], w[n][0], w[n][1]);
  }
  /* f(address, first, second) for the pairs of half `half` of this warp's sums, rows lane / 4 or
   * eight further; f(address, one) where C has no place for pairs. */
  template <int kPitch, typename F>
  __device__ __forceinline__ void each(int half, uint32_t base, F&& f) {
    constexpr bool kPlane = kPitch == S::kPlanePitch && kPitch != S::kPitchC;
    constexpr int kWide = kPlane ? S::kGroups * 8 : S::kColumns;
    constexpr bool kPairs = kPitch % 2 == 0 && kWide % 2 == 0;
    const int lane = threadIdx.x % 32;
    const int row = down() * S::kM * 16 + lane / 4 + half * 8;
    const int column = across() * S::kN * 8 + lane % 4 * 2;
    const uint32_t at = base + 4 * (row * kPitch + column);
#pragma unroll
    for (int m = 0; m < S::kM; ++m)
      if ((S::kRows % 16 == 0 && S::kBlocks16 % S::kDown == 0) || row + m * 16 < S::kRows) {
#pragma unroll
        for (int n = 0; n < S::kN; ++n) {
          const uint32_t to = at + 4 * (m * 16 * kPitch + n * 8);
          float &x = sum[m][n][2 * half], &y = sum[m][n][2 * half + 1];
          const bool whole = kWide % 8 == 0 && S::kN * S::kAcross * 8 <= kWide;
          if (kPairs) {
            if (whole || column + n * 8 < kWide) f(to, x, y);
          } else {
            if (column + n * 8 < kWide) f(to, x);
            if (column + n * 8 + 1 < kWide) f(to + 4, y);
          }
        }
      }
  }
  template <int kHalf, int kPitch>
  __device__ __forceinline__ void give(uint32_t plane) {
    each<kPitch>(kHalf, plane, FixedGive());
  }
  template <int kHalf, int kPitch>
  __device__ __forceinline__ void add(uint32_t plane) {
    each<kPitch>(kHalf, plane, FixedAdd());
  }
  /* A pair of k-steps: the other's half of the sums; then the pair's sum in place of it, or, in the
   * first pair, the second's and C. */
  template <int kHalf>
  __device__ __forceinline__ void join_pair(uint32_t c, uint32_t second) {
    if (step() < 2)
      add<kHalf, S::kPitchC>(c);
    else
      add<kHalf, S::kPlanePitch>(second), give<kHalf, S::kPlanePitch>(second);
  }
  template <int kHalf>
  __device__ __forceinline__ void join_all(uint32_t c, uint32_t second) {
    add<kHalf, S::kPlanePitch>(second), give<kHalf, S::kPitchC>(c);
  }
  /* C = (0 + 1) + (2 + 3). Few rows have no lower half: the first of a pair has all. */
  __device__ __forceinline__ void join(uint32_t c, uint32_t second) {
    const bool odd = step() & 1;
    auto give_to = [&](auto half) {
      constexpr int kHalf = decltype(half)::value;
      if (step() < 2)
        give<kHalf, S::kPitchC>(c);
      else
        give<kHalf, S::kPlanePitch>(second);
    };
    if (odd)
      give_to(FixedHalf<0>());
    else if (!S::kSkinny)
      give_to(FixedHalf<1>());
    __syncthreads();
    if (!odd)
      join_pair<0>(c, second);
    else if (!S::kSkinny)
      join_pair<1>(c, second);
    __syncthreads();
    if (step() == 0)
      join_all<0>(c, second);
    else if (step() == 1 && !S::kSkinny)
      join_all<1>(c, second);
  }
};

/* Whether tile g is one that fixed_tile computes: all columns, C where 8 bytes can be requested and
 * rows of A where copies of kUnit can, a ring. */
template <typename S>
static __device__ __forceinline__ bool fixed_takes(const ObkGemm& g) {
  return g.n == S::kColumns && ((uint64_t)g.a & (S::kUnit - 1)) == 0 && ring_state().pages > 1;
}

template <bool kBfloat, typename S>
static __device__ __forceinline__ void fixed_tile(const ObkGemm& g) {
  const uint32_t work = (shared_address(g.scratch) + 1023) & ~1023u;
  FixedTile<S> tile;
  FixedRing ring;
  ring.look();
  if (S::kWhole) {
    tile.find_rows(g, work);
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      tile.copy(pass, pass * S::kStep * S::kBlock);
      if ((pass + 1) % S::kGroupPasses == 0 || pass + 1 == S::kPasses) copy16_commit();
    }
  } else {
    tile.find_rows(g, work);
  }
  /* A stage into its place. Chunks beyond the stage's are other threads' of a larger step. */
  auto bring = [&](int s) {
    const int first = s * S::kStage;
    if (s < S::kStages) {
#pragma unroll
      for (int c = 0; c < S::kStage; c += S::kStep) {
        if (S::kStep > S::kStage && tile.chunk >= S::kStage) break;
        if (c + S::kStep > S::kStage && c + tile.chunk >= S::kStage) break;
        const int at = first + c + tile.chunk;
        if (S::kChunks % S::kStage != 0 && at >= S::kChunks) break;
        const int r = threadIdx.x / 8 % S::kSpread;
        if (S::kSpread > S::kLines && r >= S::kLines) break;
        const int64_t skip = (int64_t)(first + c) * 128;
        const uint32_t place = ((s & 3) * S::kStage + c) * S::kBlock;
        const bool upper = S::kTwice && r + 32 < S::kLines;
        if (S::kUnit != 16 || S::kK % 64 != 0) {
          const uint32_t bytes = tile.bytes_of_k(at);
          copy_piece<S::kUnit>(tile.to + place, bytes ? tile.from + skip : tile.from, bytes);
          if (upper)
            copy_piece<S::kUnit>(tile.to + place + 4096, bytes ? tile.from32 + skip : tile.from32,
                                 bytes);
        } else {
          copy16(tile.to + place, tile.from + skip);
          if (upper) copy16(tile.to + place + 4096, tile.from32 + skip);
        }
      }
    }
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
  if (!S::kWhole) bring(0), bring(1), bring(2);
  const WeightPages range = WeightPages::of_tile(
      (const char*)g.b + ((int64_t)g.column >> 3) * (S::kChunks * 1024), S::kGroups, S::kChunks);
  ring.open(range);
  tile.prepare(work);
  uint32_t weights = 0;
  if (S::kByPages) {
    copy16_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int page = 0, smem_a = 0; page < S::kPages; ++page, smem_a += S::kPage * S::kBlock) {
      weights = ring.take();
      if (page > 0 && page - 1 + ring.pages < S::kPages) ring.load(range, page - 1 + ring.pages);
#pragma unroll
      for (int c = 0; c < S::kPage; ++c)
        if (S::kChunks % S::kPage == 0 || page * S::kPage + c < S::kChunks)
          tile.template multiply<kBfloat>(smem_a + c * S::kBlock,
                                          weights + c * (S::kGroups * 1024));
      ring.release();
    }
  } else if (S::kWhole) {
    weights = ring.take();
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      if (c % S::kGroupChunks == 0) {
        wait_for_copies(S::kCopyGroups - 1 - c / S::kGroupChunks);
        __syncthreads();
      }
      if (c % S::kPage == 0 && c > 0) weights = ring.take();
      tile.template multiply<kBfloat>(c * S::kBlock, weights + c % S::kPage * (S::kGroups * 1024));
      if (c % S::kPage == 0 && c > 0 && c / S::kPage - 1 + ring.pages < S::kPages)
        ring.load(range, c / S::kPage - 1 + ring.pages);
      if (c % S::kPage == S::kPage - 1 || c == S::kChunks - 1) ring.release();
    }
  } else {
    int page = 0, in_page = 0;
#pragma unroll 1
    for (int s = 0; s < S::kStages; ++s) {
      copy16_wait<2>();
      __syncthreads();
      bring(s + 3);
      if (in_page == 0) {
        weights = ring.take();
        if (page > 0 && page - 1 + ring.pages < S::kPages) ring.load(range, page - 1 + ring.pages);
      }
      const uint32_t smem_a = (s & 3) * (S::kStage * S::kBlock);
#pragma unroll
      for (int c = 0; c < S::kStage; ++c)
        if (S::kChunks % S::kStage == 0 || s * S::kStage + c < S::kChunks)
          tile.template multiply<kBfloat>(smem_a + c * S::kBlock,
                                          weights + (in_page + c) * (S::kGroups * 1024));
      in_page += S::kStage;
      if (in_page == S::kPage || s == S::kStages - 1) ring.release(), in_page = 0, ++page;
    }
    copy16_wait<0>();
  }
  const uint32_t second = work + (S::kBehind ? S::kOperands : 0);
  if (!S::kBehind) __syncthreads(); /* all have read the operands */
  tile.join(shared_address(g.c), second);
  ring.close();
  __syncthreads();
}

}  // namespace obk

#endif

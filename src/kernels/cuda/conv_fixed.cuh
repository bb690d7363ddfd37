/* kernels/cuda/conv_fixed.cuh — a 16-bit convolution tile whose shape stands in the text of its body:
 * everything but pointers and the place of the tile is a constant, so that a phase holds little but
 * copies and products.
 *
 *   conv_tile_of<kObkF16, ConvFixed<...>>(g)    what does not fit goes the way of conv.cuh
 *
 * The tile is one pass over all of k, by a patch of X; sums, and so their bits, are those of conv.cuh.
 * All copies are asked for before anything else is worked out; weights come by the ring, asked for
 * before the barrier. The image's last tile may have fewer pixels: the last repeats. */
#ifndef OBK_CONV_FIXED_CUH
#define OBK_CONV_FIXED_CUH

#include "conv_mma.cuh"

namespace obk {

template <int kIn_, int kHeight_, int kWidth_, int kKernelH_, int kKernelW_, int kStrideH_,
          int kStrideW_, int kDilationH_, int kDilationW_, int kTop_, int kLeft_, int kOutWidth_,
          int kXRow_, int kXPixel_, int kPixels_, int kChannels_>
struct ConvFixed {
  static constexpr int kIn = kIn_, kHeight = kHeight_, kWidth = kWidth_, kKernelW = kKernelW_;
  static constexpr int kKernelH = kKernelH_;
  static constexpr int kStrideH = kStrideH_, kStrideW = kStrideW_, kDilationH = kDilationH_;
  static constexpr int kDilationW = kDilationW_, kTop = kTop_, kLeft = kLeft_;
  static constexpr int kOutWidth = kOutWidth_, kPixels = kPixels_, kChannels = kChannels_;
  static constexpr int64_t kXRow = (int64_t)kXRow_ * 2, kXPixel = (int64_t)kXPixel_ * 2;
  static constexpr ConvFit kFit =
      conv_fit(kIn_, kHeight_, kWidth_, kKernelH_, kKernelW_, kStrideH_, kStrideW_, kDilationH_,
               kDilationW_, kTop_, kLeft_, kOutWidth_, kXRow_, kXPixel_, kPixels_, kChannels_);
  static constexpr bool kFits = kFit.fits, kThin = kFit.thin;
  static constexpr int kK16 = kFit.k16, kChunks = (kK16 + 3) / 4;
  static constexpr int kGroups = kChannels / 8;
  static constexpr int kPage = kFits ? 24 / kGroups : 1; /* chunks of a page of weights */
  static constexpr int kPages = (kChunks + kPage - 1) / kPage;
  static constexpr int kPadded = (kPixels + 15) / 16 * 16;
  /* The halves of the CTA share channels, or, where those are only 16, pixels. */
  static constexpr bool kByChannels = kChannels > 16;
  static constexpr int kMs = kChannels > 32 ? 2 : 1;
  static constexpr int kJs = kByChannels ? kPadded / 16 : (kPadded / 16 + 1) / 2; /* blocks of 16 */
};

/* A tile's pages, one after another, where as many as have a place were asked for in order. */
struct ConvPages {
  uint32_t at, bars, turn;
  int pages, slot;

  __device__ __forceinline__ void open(const WeightPages& range) {
    const RingState& s = ring_state();
    const bool ahead = s.pending > 0 && s.pending == s.next && s.opened.from == range.from &&
                       s.opened.groups == range.groups && s.opened.chunks == range.chunks;
    if (!ahead) reopen(range);
    at = s.at, bars = s.bars, pages = s.pages, slot = s.take, turn = s.take_turn;
  }
  /* What is pending is thrown away: nobody asked ahead for this tile. */
  static __device__ __noinline__ void reopen(WeightPages range) {
    __syncthreads();
    Ring ring;
    ring.open(range);
    __syncthreads(); /* all have read the state */
    ring.close();
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t take() const {
    const uint32_t bar = bars + 8 * slot;
    Watchdog dog = ring_state().dog;
    dog.start();
    while (!mbarrier_try(bar, turn)) dog.check(2, slot, turn, 0);
    return at + slot * WeightPages::kPageBytes;
  }
  /* This warp has read the page: on to the next. */
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(bars + 8 * (pages + slot));
    if (++slot == pages) slot = 0, turn ^= 1;
  }
  /* Page `page` takes the place of the one before the present, which all give back soon. */
  __device__ __forceinline__ void ask(const WeightPages& range, int page) const {
    if (threadIdx.x != 224) return;
    const int before = slot == 0 ? pages - 1 : slot - 1;
    ask_page(at + before * WeightPages::kPageBytes, bars + 8 * before, bars + 8 * (pages + before),
             slot == 0 ? turn : turn ^ 1, range, page);
  }
  /* Before the tile's last barrier. */
  __device__ __forceinline__ void close() const {
    if (threadIdx.x != 0) return;
    RingState& s = ring_state();
    s.take = s.back = s.ask = slot, s.take_turn = s.ask_turn = turn, s.pending = 0;
  }
};

template <int kCount>
struct ConvCount {
  static constexpr int value = kCount;
};

/* The patch of a tile whose first row and column of X are y0, x0; returns where its first column lies. */
template <typename S>
static __device__ __forceinline__ uint32_t conv_fixed_patch(uint32_t to, const char* x, int y0,
                                                            int x0) {
  constexpr ConvFit f = S::kFit;
  constexpr int64_t kStep = S::kXRow * f.step_h;
  if (!S::kThin) {
    constexpr int kPieces = (S::kIn + 15) / 16 * 2, kOwn = S::kIn / 8, kAll = f.columns * kPieces;
    constexpr int kTeams = kAll * 2 <= kConvThreads ? kConvThreads / kAll : 1;
    constexpr int kTurns = kTeams > 1 ? 1 : (kAll + kConvThreads - 1) / kConvThreads;
    constexpr int kRows = (f.rows + kTeams - 1) / kTeams;
    const int team = kTeams > 1 ? (int)threadIdx.x / kAll : 0;
    const int first = kTeams > 1 ? (int)threadIdx.x - team * kAll : (int)threadIdx.x;
    const char* tile = x + (y0 + team * f.step_h) * S::kXRow + x0 * S::kXPixel;
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      const int i = first + n * kConvThreads, column = i / kPieces, piece = i % kPieces;
      const bool mine = (n + 1) * kConvThreads <= kAll || (i < kAll && team < kTeams);
      const bool there = (uint32_t)(x0 + column * f.step_w) < (uint32_t)S::kWidth && piece < kOwn;
      const char* from = tile + column * (S::kXPixel * f.step_w) + piece * 16;
      const uint32_t at = to + team * f.row_bytes + column * f.pixel_bytes + piece * 16;
      if (!mine) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool row = f.rows % kTeams == 0 || r * kTeams + team < f.rows;
        const bool in =
            there && (uint32_t)(y0 + (r * kTeams + team) * f.step_h) < (uint32_t)S::kHeight;
        if (row)
          copy16_partly(at + r * kTeams * f.row_bytes, in ? from + r * (kTeams * kStep) : x,
                        in ? 16u : 0u);
      }
    }
    return to;
  }
  if (f.raw) { /* one run of bytes, from where 16 bytes begin */
    const char* first = x + y0 * S::kXRow + x0 * S::kXPixel;
    const int lead = (int)((uint64_t)first & 15), rows = min(f.rows, S::kHeight - y0);
    const int end = lead + (rows - 1) * f.row_bytes + f.columns * f.pixel_bytes;
#pragma unroll 4
    for (int at = threadIdx.x * 16; at < end; at += kConvThreads * 16)
      copy16_partly(to + at, first - lead + at, end - at < 16 ? end - at : 16);
    return to + lead;
  }
  constexpr int kBefore = f.lead + S::kLeft * f.pixel_bytes, kBytes = S::kWidth * f.pixel_bytes;
  constexpr int kUnits = f.row_bytes / f.unit, kTurns = (kUnits + 31) / 32;
#pragma unroll
  for (int q = 0; q < (f.rows + 7) / 8; ++q) {
    const int r = threadIdx.x / 32 + q * 8, y = y0 + r * f.step_h;
    const char* from = x + y * S::kXRow;
    const bool there = r < f.rows && (uint32_t)y < (uint32_t)S::kHeight;
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      const int at = (n * 32 + threadIdx.x % 32) * f.unit;
      const bool in = there && (uint32_t)(at - kBefore) < (uint32_t)kBytes;
      if (at < f.row_bytes && r < f.rows)
        copy_unit<f.unit>(to + r * f.row_bytes + at, in ? from + (at - kBefore) : x, in ? f.unit : 0);
    }
  }
  return to + f.lead;
}

/* For every step of 16 k: its offset in the patch, and how many of its elements are of k (thin). */
template <typename S>
static __device__ __forceinline__ void conv_fixed_table(uint32_t table) {
  constexpr ConvFit f = S::kFit;
  constexpr int kRowK = S::kKernelW * S::kIn, kEach = ((S::kThin ? kRowK : S::kIn) + 15) / 16;
#pragma unroll
  for (int n = 0; n < (S::kChunks * 4 + kConvThreads - 1) / kConvThreads; ++n) {
    const int k = threadIdx.x + n * kConvThreads, tap = k / kEach, c = k % kEach * 16;
    const int ky = S::kThin ? tap : tap / S::kKernelW, kx = S::kThin ? 0 : tap % S::kKernelW;
    const uint32_t offset = ky * (S::kDilationH * f.row_bytes) +
                            kx * (S::kDilationW * f.pixel_bytes) + c * 2;
    const uint32_t own = k >= S::kK16 ? 0 : S::kThin ? min(16, kRowK - c) : 16;
    if (k < S::kChunks * 4)
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(table + k * 4), "r"(own ? offset << 5 | own : 0u)
                   : "memory");
  }
}

/* What is not constant. Y lies in shared memory, pixel after pixel. */
struct ConvPlace {
  const char *x, *weights; /* weights: of the tile's first channel */
  uint32_t y, scratch;
  int row, column, pixels;
};

/* A function of its own: a body that may also go the general way would else keep its structure. */
template <bool kBfloat, typename S>
static __device__ __noinline__ void conv_fixed(ConvPlace g) {
  constexpr ConvFit f = S::kFit;
  constexpr int kMs = S::kMs, kJs = S::kJs, kPitch = S::kPage * WeightPages::kChunkBytes;
  const uint32_t table = (g.scratch + 127) & ~127u, work = table + f.table_bytes;
  const int left = f.one_row ? g.column : 0, pixels = g.pixels;
  const uint32_t patch = conv_fixed_patch<S>(work, g.x, g.row * S::kStrideH - S::kTop,
                                             left * S::kStrideW - S::kLeft);
  copy16_commit();
  WeightPages weights;
  weights.groups = S::kGroups, weights.chunks = S::kChunks;
  weights.from = g.weights;
  ConvPages ring;
  ring.open(weights);
  conv_fixed_table<S>(table);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % 4, half = warp / 4;
  const int r = lane & 7, m0 = S::kByChannels ? half : 0;
  const uint32_t a_at = (m0 * 2 + ((lane >> 3) & 1)) * kPitch + r * 128 +
                        (((part * 2 + (lane >> 4)) ^ r) << 4);
  const uint32_t m_step = kMs > 1 && m0 + 2 < S::kChannels / 16 ? 4 * kPitch : 0;
  /* Where this lane's pixels begin: ldmatrix takes 16 of them, a half of k each; words a pixel a lane. */
  constexpr int kPlaces = S::kThin ? kJs * 2 : kJs;
  uint32_t x_at[kPlaces];
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) {
    const int block = S::kThin ? j / 2 : j;
    const int block_at = S::kByChannels ? block : min(half + block * 2, S::kPadded / 16 - 1);
    int q = block_at * 16 + (S::kThin ? j % 2 * 8 + lane / 4 : (lane >> 4) * 8 + r);
    q = min(q, pixels - 1) + (f.one_row ? 0 : g.column);
    const int row = f.one_row ? 0 : q / S::kOutWidth, column = q - row * S::kOutWidth;
    x_at[j] = patch + row * (f.stride_h * f.row_bytes) + column * (f.stride_w * f.pixel_bytes) +
              (S::kThin ? (lane & 3) * 4 : ((lane >> 3) & 1) * 16);
  }
  float sum[kMs][kJs * 2][4] = {};
  auto step = [&](uint32_t a_from, uint32_t entry) {
    const uint32_t offset = entry >> 5;
    uint32_t a[kMs][4], x[kJs * 2][2];
#pragma unroll
    for (int m = 0; m < kMs; ++m) load_matrices(a[m], a_from + (m ? m_step : 0));
    if (S::kThin) {
#pragma unroll
      for (int j = 0; j < kJs * 2; ++j)
        x[j][0] = conv_word(x_at[j % kPlaces] + offset),
        x[j][1] = conv_word(x_at[j % kPlaces] + offset + 16);
      if (S::kKernelW * S::kIn % 16 != 0) {
        const int own = (int)(entry & 31) - (lane & 3) * 2; /* from this lane's first element on */
        const uint32_t low = own >= 2 ? ~0u : own == 1 ? 0xffffu : 0u;
        const uint32_t high = own >= 10 ? ~0u : own == 9 ? 0xffffu : 0u;
#pragma unroll
        for (int j = 0; j < kJs * 2; ++j) x[j][0] &= low, x[j][1] &= high;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kJs; ++j) {
        uint32_t both[4];
        load_matrices(both, x_at[j] + offset);
        x[j * 2][0] = both[0], x[j * 2][1] = both[1];
        x[j * 2 + 1][0] = both[2], x[j * 2 + 1][1] = both[3];
      }
    }
#pragma unroll
    for (int j = 0; j < kJs * 2; ++j)
#pragma unroll
      for (int m = 0; m < kMs; ++m) mma_16x8x16<kBfloat>(sum[m][j], a[m], x[j][0], x[j][1]);
  };
  copy16_wait<0>();
  __syncthreads();
  uint32_t entries = table + part * 4;
  /* kSteps blocks of a page; only the last block of all may lack some of its four steps. */
  auto page = [&](auto blocks, bool ends) {
    constexpr int kSteps = decltype(blocks)::value;
    uint32_t entry[kSteps];
#pragma unroll
    for (int b = 0; b < kSteps; ++b) entry[b] = conv_entry(entries + b * 16);
    const uint32_t at = ring.take() + a_at;
#pragma unroll
    for (int b = 0; b < kSteps; ++b)
      if (S::kK16 % 4 == 0 || !ends || b + 1 < kSteps || entry[b] != 0)
        step(at + b * WeightPages::kChunkBytes, entry[b]);
    entries += kSteps * 16;
    ring.release();
  };
  constexpr int kRest = S::kChunks - (S::kPages - 1) * S::kPage;
#pragma unroll 1
  for (int p = 0; p + 1 < S::kPages; ++p) {
    page(ConvCount<S::kPage>(), false);
    if (p + ring.pages < S::kPages) ring.ask(weights, p + ring.pages);
  }
  page(ConvCount<kRest>(), true);
  ring.close();
  __syncthreads();

  constexpr int kSumPitch = S::kChannels + 4, kPlane = S::kPadded * kSumPitch * 4;
#pragma unroll
  for (int m = 0; m < kMs; ++m)
#pragma unroll
    for (int j = 0; j < kJs * 2; ++j) {
      const int q16 = S::kByChannels ? j / 2 : half + j / 2 * 2, m16 = m0 + m * 2;
      if (m16 < S::kChannels / 16 && q16 < S::kPadded / 16) {
        const uint32_t at = work + part * kPlane + (q16 * 16 + j % 2 * 8 + lane % 4 * 2) * (kSumPitch * 4) +
                            (m16 * 16 + lane / 4) * 4;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          store_shared(at + ((e & 1) * kSumPitch + (e / 2) * 8) * 4, sum[m][j][e]);
      }
    }
  __syncthreads();
  constexpr int kFours = S::kChannels / 4, kItems = S::kPixels * kFours;
  const uint32_t y = g.y;
#pragma unroll
  for (int n = 0; n < (kItems + kConvThreads - 1) / kConvThreads; ++n) {
    const int i = threadIdx.x + n * kConvThreads, q = i / kFours, c = i % kFours * 4;
    if ((n + 1) * kConvThreads > kItems && i >= kItems) break;
    const uint32_t from = work + q * (kSumPitch * 4) + c * 4;
    uint32_t bits[4][4];
#pragma unroll
    for (int p = 0; p < 4; ++p) load_shared16(bits[p], from + p * kPlane);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      bits[0][e] = __float_as_uint(((__uint_as_float(bits[0][e]) + __uint_as_float(bits[1][e])) +
                                    __uint_as_float(bits[2][e])) + __uint_as_float(bits[3][e]));
    if (q < pixels) store_shared16(y + i * 16, bits[0]);
  }
  __syncthreads();
}

template <int kType, typename S>
static __device__ __forceinline__ void conv_tile_of(const ObkConv& g) {
  if constexpr (kType != kObkF32 && S::kFits) {
    /* Padding below is not in a run of X's own bytes. */
    const int last = ((int)g.row + ((int)g.column + (int)g.pixels - 1) / S::kOutWidth) * S::kStrideH;
    const bool inside = !S::kFit.raw || last + (S::kKernelH - 1) * S::kDilationH < S::kHeight;
    const bool y_is_near = __isShared(g.y) && g.y_pixel == S::kChannels && !g.accumulate;
    if (g.channels == S::kChannels && ((uint64_t)g.x & 15) == 0 && ring_state().pages > 0 &&
        inside && y_is_near) {
      ConvPlace at;
      at.x = (const char*)g.x;
      at.weights = (const char*)g.weights +
                   (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kChunkBytes);
      at.y = shared_address(g.y), at.scratch = shared_address(g.scratch);
      at.row = (int)g.row, at.column = (int)g.column, at.pixels = (int)g.pixels;
      return conv_fixed<kType == kObkBf16, S>(at);
    }
  }
  conv_general<kType>(conv_share(g));
}

}  // namespace obk

#define OBK_CONV_TILE_OF(type, g, ...) obk::conv_tile_of<type, obk::ConvFixed<__VA_ARGS__>>(g)

#endif

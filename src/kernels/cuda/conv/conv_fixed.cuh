/* kernels/cuda/conv/conv_fixed.cuh — a 16-bit convolution tile whose shape stands in the text of
 * its body: all that follows from it is worked out by the compiler.
 *
 *   conv_tile_of<kObkF16, kStatic, kInlined, ConvFixed<...>>(g)    what does not fit: conv.cuh
 *
 * kInlined: the body is part of its kernel; tiles of many pixels by many channels are then those of
 * conv_wgmma.cuh, or conv_wgmma_pipelined.cuh; those of few channels of X conv_first.cuh's.
 * kStatic: the caller knows that g.channels are the shape's, that X lies at a multiple of 16 bytes
 * and Y in shared memory, and that no tile reads below X where nothing is padded above or to the
 * left; where a ring is certain too (OBK_RING), the general way is not compiled at all.
 *
 * The tile is one pass over all of k, by a patch of X; sums, and so their bits, are those of
 * conv.cuh. All copies are requested before anything else is worked out; weights come by the ring,
 * requested before the barrier. The image's last tile may have fewer pixels: the last repeats.
 *
 * Code that misses the instruction caches is slow to come (bench/results/h200_code.json), and one
 * kernel for a network runs other code in each wave. So the code of a
 * tile depends on its size alone, and layers share it: what differs between them are ConvNumbers,
 * passed in registers. In a kernel of its own, whose code the machine fetches before its start, the
 * same text is inlined and the numbers are constants. Thin tiles (few channels), of which a network
 * has one, are written in loops. */
#ifndef OBK_CONV_FIXED_CUH
#define OBK_CONV_FIXED_CUH

#include "conv/conv_mma.cuh"

namespace obk {

template <int kIn_, int kHeight_, int kWidth_, int kKernelH_, int kKernelW_, int kStrideH_,
          int kStrideW_, int kDilationH_, int kDilationW_, int kTop_, int kLeft_, int kOutWidth_,
          int kXRow_, int kXPixel_, int kPixels_, int kChannels_, int kPitch_ = kChannels_>
struct ConvFixed {
  static constexpr int kIn = kIn_, kHeight = kHeight_, kWidth = kWidth_, kKernelW = kKernelW_;
  static constexpr int kKernelH = kKernelH_;
  static constexpr int kStrideH = kStrideH_, kStrideW = kStrideW_, kDilationH = kDilationH_;
  static constexpr int kDilationW = kDilationW_, kTop = kTop_, kLeft = kLeft_;
  static constexpr int kOutWidth = kOutWidth_, kPixels = kPixels_, kChannels = kChannels_;
  static constexpr int kPitch = kPitch_; /* of Y: from pixel to pixel, in elements */
  static constexpr int64_t kXRow = (int64_t)kXRow_ * 2, kXPixel = (int64_t)kXPixel_ * 2;
  static constexpr ConvFit kFit =
      conv_fit(kIn_, kHeight_, kWidth_, kKernelH_, kKernelW_, kStrideH_, kStrideW_, kDilationH_,
               kDilationW_, kTop_, kLeft_, kOutWidth_, kXRow_, kXPixel_, kPixels_, kChannels_);
  static constexpr bool kFits = kFit.fits, kThin = kFit.thin;
  static constexpr int kK16 = kFit.k16, kChunks = (kK16 + 3) / 4;
  static constexpr int kPadded = (kPixels + 15) / 16 * 16;
};

/* What a tile of a given size needs to know of its layer; bytes, counts, or 16s of k. X and its
 * strides; the patch; from pixel to pixel of Y in it; the taps; Y; divisors, as divide() has them.
 * A called function takes them one by one: a structure would lie in memory. */
#define OBK_CONV_NUMBERS(X) \
  X(height)                 \
  X(width)                  \
  X(x_row)                  \
  X(x_pixel)                \
  X(stride_h)               \
  X(stride_w)               \
  X(top)                    \
  X(left)                   \
  X(rows)                   \
  X(columns)                \
  X(pieces)                 \
  X(own)                    \
  X(step_h)                 \
  X(step_w)                 \
  X(row_bytes)              \
  X(pixel_bytes)            \
  X(row_groups)             \
  X(row_step)               \
  X(pixel_step)             \
  X(kernel_w)               \
  X(each)                   \
  X(tap_row)                \
  X(tap_column)             \
  X(k16)                    \
  X(chunks)                 \
  X(out_width)              \
  X(one_row) X(table_bytes) X(y_pixel) X(by_pieces) X(by_all) X(by_each) X(by_kernel) X(by_width)
#define OBK_CONV_FIELD(name) int name;
#define OBK_CONV_PARAMETER(name) , int name##_
#define OBK_CONV_FILL(name) n.name = name##_;
#define OBK_CONV_ARGUMENT(name) , kNumbers.name
struct ConvNumbers {
  OBK_CONV_NUMBERS(OBK_CONV_FIELD)
};
static __device__ __forceinline__ int divide(int n, int by) {
  return (int)((uint64_t)(uint32_t)n * (uint32_t)by >> 24);
}

template <typename S>
static __device__ constexpr ConvNumbers conv_numbers() {
  constexpr ConvFit f = S::kFit;
  ConvNumbers n = {};
  n.height = S::kHeight, n.width = S::kWidth, n.x_row = (int)S::kXRow, n.x_pixel = (int)S::kXPixel;
  n.stride_h = S::kStrideH, n.stride_w = S::kStrideW, n.top = S::kTop, n.left = S::kLeft;
  n.rows = f.rows, n.columns = f.columns, n.pieces = (S::kIn + 15) / 16 * 2, n.own = S::kIn / 8;
  n.step_h = f.step_h, n.step_w = f.step_w, n.row_bytes = f.row_bytes,
  n.pixel_bytes = f.pixel_bytes;
  const int all = n.columns * n.pieces;
  n.row_groups = all * 2 <= kConvThreads ? kConvThreads / all : 1;
  n.row_step = f.stride_h * f.row_bytes, n.pixel_step = f.stride_w * f.pixel_bytes;
  n.kernel_w = S::kKernelW, n.each = (S::kIn + 15) / 16;
  n.tap_row = S::kDilationH * f.row_bytes, n.tap_column = S::kDilationW * f.pixel_bytes;
  n.k16 = S::kK16, n.chunks = S::kChunks;
  n.out_width = S::kOutWidth, n.one_row = f.one_row, n.table_bytes = f.table_bytes;
  n.y_pixel = S::kPitch * 4;
  n.by_pieces = (int)conv_divisor(n.pieces), n.by_all = (int)conv_divisor(all);
  n.by_each = (int)conv_divisor(n.each), n.by_kernel = (int)conv_divisor(n.kernel_w);
  n.by_width = (int)conv_divisor(n.out_width);
  return n;
}

/* How far loops are unrolled: code that misses the instruction caches is short, code that is there
 * is fast. */
static constexpr int kConvUnrolled = 2;

/* A tile's pages, one after another, where as many as have a place were requested in order. */
struct ConvPages : PageCursor {
  __device__ __forceinline__ void open(const WeightPages& range) {
    const RingState& s = ring_state();
    const bool ahead = s.pending > 0 && s.pending == s.next && s.opened.from == range.from &&
                       s.opened.groups == range.groups && s.opened.chunks == range.chunks;
    if (!ahead)
      ring_reopen(range);
    else if (kPaces)
      ring_load_rest(range, s.pending, s.pages);
    at = s.at, bars = s.bars, pages = s.pages, slot = s.take, turn = s.take_turn;
  }
};

/* The patch of a tile whose first row and column of X are y0, x0. A thread walks down a column of
 * pieces; few pieces in a row: several rows at once. */
static __device__ __forceinline__ void conv_patch(uint32_t to, const char* x, int y0, int x0,
                                                  const ConvNumbers& n) {
  const int all = n.columns * n.pieces,
            row_group = n.row_groups > 1 ? divide(threadIdx.x, n.by_all) : 0;
  if (n.row_groups > 1 && row_group >= n.row_groups) return;
  for (int i = (int)threadIdx.x - row_group * all; i < all; i += kConvThreads) {
    const int column = divide(i, n.by_pieces), piece = i - column * n.pieces;
    const int at_x = x0 + column * n.step_w;
    const bool there = (uint32_t)at_x < (uint32_t)n.width && piece < n.own;
    int y = y0 + row_group * n.step_h;
    const char* from = x + (int64_t)y * n.x_row + (int64_t)at_x * n.x_pixel + piece * 16;
    uint32_t at = to + row_group * n.row_bytes + column * n.pixel_bytes + piece * 16;
    const int64_t step = (int64_t)n.x_row * (n.row_groups * n.step_h);
#pragma unroll kConvUnrolled
    for (int r = row_group; r < n.rows; r += n.row_groups) {
      const bool in = there && (uint32_t)y < (uint32_t)n.height;
      copy16_partly(at, in ? from : x, in ? 16u : 0u);
      at += n.row_groups * n.row_bytes, from += step, y += n.row_groups * n.step_h;
    }
  }
}
/* For every step of 16 k its offset in the patch; zero behind the last. */
static __device__ __forceinline__ void conv_table(uint32_t table, const ConvNumbers& n) {
#pragma unroll 1
  for (int k = threadIdx.x; k < n.chunks * 4; k += kConvThreads) {
    const int tap = divide(k, n.by_each), c = k - tap * n.each, ky = divide(tap, n.by_kernel);
    const uint32_t offset = ky * n.tap_row + (tap - ky * n.kernel_w) * n.tap_column + c * 32;
    store_shared_word(table + k * 4, k < n.k16 ? offset << 5 | 16u : 0u);
  }
}

/* Thin: the same; returns where the patch's first column lies. */
template <typename S>
static __device__ __forceinline__ uint32_t conv_thin_patch(uint32_t to, const char* x, int y0,
                                                           int x0) {
  constexpr ConvFit f = S::kFit;
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
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < f.rows; r += kConvThreads / 32) {
    const int y = y0 + r * f.step_h;
    const char* from = x + y * S::kXRow;
    const bool there = (uint32_t)y < (uint32_t)S::kHeight;
#pragma unroll 4
    for (int at = threadIdx.x % 32 * f.unit; at < f.row_bytes; at += 32 * f.unit) {
      const bool in = there && (uint32_t)(at - kBefore) < (uint32_t)kBytes;
      copy_unit<f.unit>(to + r * f.row_bytes + at, in ? from + (at - kBefore) : x, in ? f.unit : 0);
    }
  }
  return to + f.lead;
}
/* Thin: also how many of a step's elements are of k. */
template <typename S>
static __device__ __forceinline__ void conv_thin_table(uint32_t table) {
  constexpr ConvFit f = S::kFit;
  constexpr int kRowK = S::kKernelW * S::kIn, kEach = (kRowK + 15) / 16;
#pragma unroll 1
  for (int k = threadIdx.x; k < S::kChunks * 4; k += kConvThreads) {
    const int ky = k / kEach, c = k % kEach * 16;
    const uint32_t offset = ky * (S::kDilationH * f.row_bytes) + c * 2;
    const uint32_t own = k >= S::kK16 ? 0 : min(16, kRowK - c);
    store_shared_word(table + k * 4, own ? offset << 5 | own : 0u);
  }
}

/* What is not constant. Y lies in shared memory. */
struct ConvPlace {
  const char *x, *weights; /* weights: of the tile's first channel */
  uint32_t y, scratch;
  int row, column, pixels;
};

/* How the warps of a tile of kChannels by kPadded pixels share it, its sums, and their way to Y.
 * Warp w sums the steps of k that are w modulo 4. */
template <int kChannels_, int kPadded_>
struct ConvTile {
  static constexpr int kChannels = kChannels_, kPadded = kPadded_, kGroups = kChannels / 8;
  static constexpr int kPage = 24 / kGroups;             /* chunks of a page of weights */
  static constexpr int kPitch = WeightPages::kAtomBytes; /* of groups in a chunk */
  static constexpr int kChunk = kGroups * WeightPages::kAtomBytes;
  /* The halves of the CTA share channels, or, where those are only 16, pixels: kNs blocks of 8
   * each. */
  static constexpr bool kByChannels = kChannels > 16;
  static constexpr int kMs = kChannels > 32 ? 2 : 1;
  static constexpr int kNs = kByChannels ? kPadded / 8 : kPadded / 16;
  static constexpr int kSumPitch = kChannels + 4, kPlane = kPadded * kSumPitch * 4;

  float sum[kMs][kNs][4];

  __device__ __forceinline__ ConvTile() {
#pragma unroll
    for (int m = 0; m < kMs; ++m)
#pragma unroll
      for (int n = 0; n < kNs; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[m][n][e] = 0;
  }
  static __device__ __forceinline__ int part() { return threadIdx.x / 32 % 4; }
  static __device__ __forceinline__ int half() { return threadIdx.x / 128; }
  static __device__ __forceinline__ int m0() { return kByChannels ? half() : 0; }
  static __device__ __forceinline__ int first_pixel() { return kByChannels ? 0 : half() * kNs * 8; }
  /* This lane's share of ldmatrix in a page of weights. */
  static __device__ __forceinline__ uint32_t weights_at() {
    const int lane = threadIdx.x % 32, r = lane & 7;
    return (m0() * 2 + ((lane >> 3) & 1)) * kPitch + r * 128 +
           (((part() * 2 + (lane >> 4)) ^ r) << 4);
  }
  static __device__ __forceinline__ uint32_t m_step() {
    return kMs > 1 && m0() + 2 < kChannels / 16 ? 4 * kPitch : 0;
  }
  template <bool kBfloat>
  __device__ __forceinline__ void multiply(const uint32_t (&a)[kMs][4],
                                           const uint32_t (&x)[kNs][2]) {
#pragma unroll
    for (int n = 0; n < kNs; ++n)
#pragma unroll
      for (int m = 0; m < kMs; ++m) mma_16x8x16<kBfloat>(sum[m][n], a[m], x[n][0], x[n][1]);
  }
  /* All have read the patch. The four sums to `y`, its pixels `y_pixel` bytes apart. */
  __device__ __forceinline__ void finish(uint32_t work, uint32_t y, int y_pixel, int pixels) {
    const int lane = threadIdx.x % 32;
    const uint32_t base =
        work + part() * kPlane + lane / 4 * 4 + (first_pixel() + lane % 4 * 2) * (kSumPitch * 4);
#pragma unroll
    for (int m = 0; m < kMs; ++m)
      if (const int m16 = m0() + m * 2; m16 < kChannels / 16) {
#pragma unroll
        for (int n = 0; n < kNs; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            store_shared(base + m16 * 64 + ((n * 8 + (e & 1)) * kSumPitch + e / 2 * 8) * 4,
                         sum[m][n][e]);
      }
    __syncthreads();
    constexpr int kFours = kChannels / 4;
#pragma unroll kConvUnrolled / 2
    for (int i = threadIdx.x; i < pixels * kFours; i += kConvThreads) {
      const uint32_t from = work + i / kFours * (kSumPitch * 4) + i % kFours * 16;
      uint32_t bits[4][4];
#pragma unroll
      for (int p = 0; p < 4; ++p) load_shared16(bits[p], from + p * kPlane);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        bits[0][e] = __float_as_uint((__uint_as_float(bits[0][e]) + __uint_as_float(bits[1][e])) +
                                     (__uint_as_float(bits[2][e]) + __uint_as_float(bits[3][e])));
      store_shared16(y + i / kFours * y_pixel + i % kFours * 16, bits[0]);
    }
    __syncthreads();
  }
};

template <bool kBfloat, int kChannels, int kPadded>
static __device__ __noinline__ void conv_patched(ConvPlace g OBK_CONV_NUMBERS(OBK_CONV_PARAMETER)) {
  ConvNumbers n;
  OBK_CONV_NUMBERS(OBK_CONV_FILL)
  typedef ConvTile<kChannels, kPadded> T;
  const uint32_t table = (g.scratch + 127) & ~127u, work = table + n.table_bytes;
  const int left = n.one_row ? g.column : 0;
  conv_patch(work, g.x, g.row * n.stride_h - n.top, left * n.stride_w - n.left, n);
  copy16_commit();
  const WeightPages weights = WeightPages::of_tile(g.weights, T::kGroups, n.chunks);
  ConvPages ring;
  ring.open(weights);
  conv_table(table, n);
  const int lane = threadIdx.x % 32;
  const uint32_t a_at = T::weights_at(), m_step = T::m_step();
  /* Where this lane's pixels begin: ldmatrix takes 16 of them, a half of k each. */
  constexpr int kPairs = (T::kNs + 1) / 2;
  uint32_t x_at[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    int q = T::first_pixel() + j * 16 + (lane >> 4) * 8 + (lane & 7);
    q = min(q, g.pixels - 1) + (n.one_row ? 0 : g.column);
    const int row = n.one_row ? 0 : divide(q, n.by_width), column = q - row * n.out_width;
    x_at[j] = work + row * n.row_step + column * n.pixel_step + ((lane >> 3) & 1) * 16;
  }
  T tile;
  auto step = [&](uint32_t from, uint32_t entry) {
    const uint32_t offset = entry >> 5;
    uint32_t a[T::kMs][4], x[T::kNs][2];
#pragma unroll
    for (int m = 0; m < T::kMs; ++m) load_matrices(a[m], from + (m ? m_step : 0));
#pragma unroll
    for (int n = 0; n < T::kNs; n += 2) {
      if (n + 1 < T::kNs) {
        uint32_t both[4];
        load_matrices(both, x_at[n / 2] + offset);
        x[n][0] = both[0], x[n][1] = both[1], x[n + 1][0] = both[2], x[n + 1][1] = both[3];
      } else {
        load_two_matrices(x[n][0], x[n][1], x_at[n / 2] + offset);
      }
    }
    tile.template multiply<kBfloat>(a, x);
  };
  copy16_wait<0>();
  __syncthreads();
  uint32_t entries = table + T::part() * 4;
  const int whole = n.k16 >> 2; /* chunks all of whose steps are there */
#pragma unroll 1
  for (int page = 0, chunk = 0; chunk < n.chunks; ++page, chunk += T::kPage) {
    uint32_t at = ring.take() + a_at;
    if (chunk + T::kPage <= whole) {
      uint32_t entry[T::kPage];
#pragma unroll
      for (int b = 0; b < T::kPage; ++b) entry[b] = load_shared_word(entries + b * 16);
#pragma unroll
      for (int b = 0; b < T::kPage; ++b) step(at + b * T::kChunk, entry[b]);
    } else {
#pragma unroll 1
      for (int b = chunk; b < n.chunks; ++b, at += T::kChunk)
        if (const uint32_t entry = load_shared_word(entries + (b - chunk) * 16)) step(at, entry);
    }
    entries += T::kPage * 16;
    ring.release();
    if ((page + ring.pages) * T::kPage < n.chunks) ring.load(weights, page + ring.pages);
  }
  ring.close();
  __syncthreads();
  tile.finish(work, g.y, n.y_pixel, g.pixels);
}

/* A kernel row is a run of elements, read by words. */
template <bool kBfloat, typename S>
static __device__ __noinline__ void conv_thin_tile(ConvPlace g) {
  typedef ConvTile<S::kChannels, S::kPadded> T;
  constexpr ConvFit f = S::kFit;
  const uint32_t table = (g.scratch + 127) & ~127u, work = table + f.table_bytes;
  const uint32_t patch = conv_thin_patch<S>(work, g.x, g.row * S::kStrideH - S::kTop, -S::kLeft);
  copy16_commit();
  const WeightPages weights = WeightPages::of_tile(g.weights, T::kGroups, S::kChunks);
  ConvPages ring;
  ring.open(weights);
  conv_thin_table<S>(table);
  const int lane = threadIdx.x % 32;
  const uint32_t a_at = T::weights_at(), m_step = T::m_step();
  uint32_t x_at[T::kNs]; /* a pixel a lane */
#pragma unroll
  for (int j = 0; j < T::kNs; ++j) {
    int q = T::first_pixel() + j * 8 + lane / 4;
    q = min(q, g.pixels - 1) + g.column;
    const int row = q / S::kOutWidth, column = q - row * S::kOutWidth;
    x_at[j] = patch + row * (f.stride_h * f.row_bytes) + column * (f.stride_w * f.pixel_bytes) +
              (lane & 3) * 4;
  }
  T tile;
  copy16_wait<0>();
  __syncthreads();
  uint32_t entries = table + T::part() * 4;
#pragma unroll 1
  for (int page = 0, chunk = 0; chunk < S::kChunks; ++page) {
    uint32_t at = ring.take() + a_at;
    const int end = min(chunk + T::kPage, S::kChunks);
#pragma unroll 1
    for (; chunk < end; ++chunk, at += T::kChunk, entries += 16) {
      const uint32_t entry = load_shared_word(entries), offset = entry >> 5;
      if (entry == 0) continue;
      uint32_t a[T::kMs][4], x[T::kNs][2];
#pragma unroll
      for (int m = 0; m < T::kMs; ++m) load_matrices(a[m], at + (m ? m_step : 0));
#pragma unroll
      for (int j = 0; j < T::kNs; ++j)
        x[j][0] = conv_word(x_at[j] + offset), x[j][1] = conv_word(x_at[j] + offset + 16);
      if (S::kKernelW * S::kIn % 16 != 0) {
        const int own = (int)(entry & 31) - (lane & 3) * 2; /* from this lane's first element on */
        const uint32_t low = own >= 2 ? ~0u : own == 1 ? 0xffffu : 0u;
        const uint32_t high = own >= 10 ? ~0u : own == 9 ? 0xffffu : 0u;
#pragma unroll
        for (int j = 0; j < T::kNs; ++j) x[j][0] &= low, x[j][1] &= high;
      }
      tile.template multiply<kBfloat>(a, x);
    }
    ring.release();
    if ((page + ring.pages) * T::kPage < S::kChunks) ring.load(weights, page + ring.pages);
  }
  ring.close();
  __syncthreads();
  tile.finish(work, g.y, S::kPitch * 4, g.pixels);
}

}  // namespace obk

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "conv/conv_first.cuh"
#include "conv/conv_wgmma.cuh"
#endif

namespace obk {

/* A tile that takes mma.sync, or no tensor core. */
template <int kType, bool kStatic, typename S>
static __device__ __forceinline__ void conv_short_tile(const ObkConv& g) {
  constexpr bool kFits = !OBK_LIES_AS_F32(kType) && S::kFits;
  constexpr bool kAlways = kFits && kStatic && kHasRing;
  if constexpr (kFits) {
    bool takes = true;
    if (!kAlways) {
      /* Padding below is not in a run of X's own bytes. */
      const int last =
          ((int)g.row + ((int)g.column + (int)g.pixels - 1) / S::kOutWidth) * S::kStrideH;
      const bool inside = !S::kFit.raw || last + (S::kKernelH - 1) * S::kDilationH < S::kHeight;
      const bool y_is_shared = __isShared(g.y) && g.y_pixel == S::kPitch && !g.accumulate;
      takes = g.channels == S::kChannels && ((uint64_t)g.x & 15) == 0 && ring_state().pages > 0 &&
              inside && y_is_shared;
    }
    if (takes) {
      ConvPlace at;
      at.x = (const char*)g.x;
      at.weights = (const char*)g.weights +
                   (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kAtomBytes);
      at.y = shared_address(g.y), at.scratch = shared_address(g.scratch);
      at.row = (int)g.row, at.column = (int)g.column, at.pixels = (int)g.pixels;
      if constexpr (S::kThin) {
        conv_thin_tile<kType == kObkBf16, S>(at);
      } else {
        constexpr ConvNumbers kNumbers = conv_numbers<S>();
        conv_patched<kType == kObkBf16, S::kChannels, S::kPadded>(
            at OBK_CONV_NUMBERS(OBK_CONV_ARGUMENT));
      }
      return;
    }
  }
  if constexpr (!kAlways) conv_general<kType>(conv_share(g));
}

template <int kType, bool kStatic, bool kInlined, typename S>
static __device__ __forceinline__ void conv_tile_of(const ObkConv& g) {
#ifdef OBK_WGMMA
  constexpr bool kBfloat = kType == kObkBf16, kHalf = kInlined && !OBK_LIES_AS_F32(kType);
  constexpr bool kFirst = kHalf && conv_first_fits<S>(), kWgmma = kHalf && conv_wgmma_fits<S>();
  constexpr bool kPipelined = kHalf && conv_wgmma_pipelined_fits<S>();
  if constexpr (kFirst || kWgmma || kPipelined) {
    const auto take = [&] {
      if constexpr (kFirst)
        conv_first_tile<kBfloat, S>(g);
      else if constexpr (kWgmma)
        conv_wgmma_tile<kBfloat, S>(g);
      else
        conv_wgmma_pipelined_tile<kBfloat, S>(g);
    };
    if constexpr (kStatic && kHasPages) {
      take();
    } else {
      const bool y_is_shared = __isShared(g.y) && g.y_pixel == S::kPitch && !g.accumulate;
      /* A run of X's own bytes has no padding below. */
      const bool is_static =
          y_is_shared && !S::kFit.raw && g.channels == S::kChannels && ((uint64_t)g.x & 15) == 0;
      if (ring_state().pages > 1 && (kStatic || is_static))
        take();
      else
        conv_short_tile<kType, kStatic, S>(g);
    }
  } else
#endif
    conv_short_tile<kType, kStatic, S>(g);
}

}  // namespace obk

#define OBK_CONV_TILE_OF(type, g, is_static, ...) \
  obk::conv_tile_of<type, is_static, OBK_WGMMA_TILES, obk::ConvFixed<__VA_ARGS__>>(g)

#endif

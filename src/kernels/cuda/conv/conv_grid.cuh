/* kernels/cuda/conv/conv_grid.cuh — a convolution tile of 64 or 128 pixels by 32 to 128 channels,
 * by wgmma, in a kernel whose CTAs share a multiprocessor (grid.cuh): while one waits for its first
 * rows or stores its sums, another multiplies.
 *
 *   OBK_CONV_GRID_BEGIN(type, g, shape ...)    the shape as constants: ConvGrid; loads weights, so
 *                                              may stand before the wait for the previous kernel
 *   OBK_CONV_GRID_TILE(type, g, shape ...)
 *
 * Pixels are those of all images in a row, so that tiles are full also where images are small:
 * g.row is the first of them, g.x the first image. Rows are gathered tap after tap
 * (ConvPipelinedShape's order of k) by asynchronous copies, weights come by one bulk copy a block
 * of 64 k; both in stages of their own, for these kernels have no ring. 128 pixels: a warpgroup has
 * 64 of them; 64: half of the channels. A sum is one chain over k: the same program gives the same
 * bits, but not those of tiles of fewer pixels (gemm.cuh). Y takes the place of the stages when all
 * have been read, but not that of their mbarriers.
 *
 * Copies are of 16 bytes, or of 8 or 4 where pixels begin at multiples of those; what lies behind
 * the channels becomes zero. The layer's last tile of channels may have fewer than the others.
 *
 * Needs sm_90a, 16-bit X whose pixels begin at multiples of 4 bytes and which is less than 2 GB.
 */
#ifndef OBK_CONV_GRID_CUH
#define OBK_CONV_GRID_CUH

#include "conv/conv_fixed.cuh"

namespace obk {

/* Strides of X in elements; kImage: from image to image. kPitch: of Y, in elements. kOutputs: all
 * channels of Y where the last tile has fewer; else 0. */
template <int kIn_, int kHeight_, int kWidth_, int kKernelH_, int kKernelW_, int kStrideH_,
          int kStrideW_, int kDilationH_, int kDilationW_, int kTop_, int kLeft_, int kOutWidth_,
          int kOutHeight_, int kXRow_, int kXPixel_, int kImage_, int kPixels_, int kChannels_,
          int kPitch_, int kCtasPerSm_, int kOutputs_ = 0>
struct ConvGrid {
  static constexpr int kIn = kIn_, kHeight = kHeight_, kWidth = kWidth_, kKernelH = kKernelH_;
  static constexpr int kKernelW = kKernelW_, kStrideH = kStrideH_, kStrideW = kStrideW_;
  static constexpr int kDilationH = kDilationH_, kDilationW = kDilationW_, kTop = kTop_;
  static constexpr int kLeft = kLeft_, kOutWidth = kOutWidth_, kOutHeight = kOutHeight_;
  static constexpr int kXRow = kXRow_ * 2, kXPixel = kXPixel_ * 2, kImage = kImage_ * 2;
  static constexpr int kPixels = kPixels_, kChannels = kChannels_, kPitch = kPitch_;
  static constexpr int kIn16 = (kIn + 15) / 16 * 16;
  static constexpr int kChunks = (kKernelH * kKernelW * kIn16 + 63) / 64;
  static constexpr int kCtasPerSm = kCtasPerSm_,
                       kStep = conv_grid_step(kPixels, kChannels, kChunks, kCtasPerSm);
  static constexpr int kStages = kChunks / kStep, kBlock = kPixels * 128; /* rows of 64 k */
  static constexpr int kStage = conv_grid_stage(kPixels, kChannels, kChunks, kCtasPerSm);
  static constexpr int kPlaces = conv_grid_places(kPixels, kChannels, kChunks, kCtasPerSm);
  static constexpr int kOutputs = kOutputs_;
  static constexpr int kLastGroups = (kOutputs % kChannels + 15) / 16 * 2; /* 8 channels each */
  static constexpr int64_t kStrides = kXRow_ | kXPixel_ | kImage_;
  static constexpr int kUnit = row_unit(kStrides); /* bytes of a copy */
  /* Few channels: the tile of conv_first.cuh. */
  static constexpr bool kThin = kIn % 8 != 0 && !conv_grid_rows(kIn, kKernelH* kKernelW, kStrides);
  typedef ConvFixed<kIn_, kHeight_, kWidth_, kKernelH_, kKernelW_, kStrideH_, kStrideW_,
                    kDilationH_, kDilationW_, kTop_, kLeft_, kOutWidth_, kXRow_, kXPixel_, kPixels_,
                    kChannels_, kPitch_>
      Fixed;
  /* Whether no tap lies outside of X. */
  static constexpr bool kInside =
      kUnit == 16 && kTop == 0 && kLeft == 0 && kIn == kIn16 && kIn % 64 == 0 &&
      (kOutHeight - 1) * kStrideH + (kKernelH - 1) * kDilationH < kHeight &&
      (kOutWidth - 1) * kStrideW + (kKernelW - 1) * kDilationW < kWidth;
};

#ifdef OBK_WGMMA

/* What a thread copies of the pixels threadIdx.x / 8, 32 further, ...: where their first tap lies
 * in X, in bytes, and that tap's row and column, which may be outside. */
template <typename S>
struct GridPixels {
  static constexpr int kEach = S::kPixels / 32;
  const char* x;
  int offset[kEach], row[kEach], column[kEach];

  __device__ __forceinline__ explicit GridPixels(const ObkConv& g) : x((const char*)g.x) {
    const int first = (int)g.row, last = (int)g.pixels - 1;
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      const int q = first + min((int)threadIdx.x / 8 + h * 32, last);
      const int image = q / (S::kOutWidth * S::kOutHeight),
                of = q - image * (S::kOutWidth * S::kOutHeight);
      const int y = of / S::kOutWidth;
      row[h] = y * S::kStrideH - S::kTop;
      column[h] = (of - y * S::kOutWidth) * S::kStrideW - S::kLeft;
      offset[h] = image * S::kImage + row[h] * S::kXRow + column[h] * S::kXPixel +
                  (int)(threadIdx.x % 8) * 16;
    }
  }
  __device__ __forceinline__ void copy(uint32_t to, int block) const {
    const int first = S::kIn16 % 64 == 0 ? block * 64 : block * 64 + (int)(threadIdx.x % 8) * 8;
    const int tap = first / S::kIn16, rest = first - tap * S::kIn16;
    const int channel = S::kIn16 % 64 == 0 ? rest + (int)(threadIdx.x % 8) * 8 : rest;
    const int ky = tap / S::kKernelW, down = ky * S::kDilationH;
    const int across = (tap - ky * S::kKernelW) * S::kDilationW;
    const int skip =
        down * S::kXRow + across * S::kXPixel + (channel - (int)(threadIdx.x % 8) * 8) * 2;
    const bool there = ky < S::kKernelH && channel < S::kIn;
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      if (S::kInside) {
        copy16(to + h * 4096, x + (int64_t)(offset[h] + skip));
      } else {
        const bool in = there && (uint32_t)(row[h] + down) < (uint32_t)S::kHeight &&
                        (uint32_t)(column[h] + across) < (uint32_t)S::kWidth;
        const int bytes = S::kIn % 8 == 0 ? 16 : min(16, (S::kIn - channel) * 2);
        copy_piece<S::kUnit>(to + h * 4096, in ? x + (int64_t)(offset[h] + skip) : x,
                             in ? bytes : 0);
      }
    }
  }
};

/* Where a tile's stages lie, and its weights of each. */
template <typename S>
struct GridStages {
  static constexpr uint32_t kChunk = S::kChannels / 8 * WeightPages::kAtomBytes;
  static constexpr uint32_t kWeights = S::kStep * kChunk;
  /* Stages requested at first: all, or so many that a place is requested again when two are in use.
   */
  static constexpr int kAhead = S::kPlaces < S::kStages ? S::kPlaces - 2 : S::kStages;
  uint32_t work, bars;
  uint32_t chunk; /* bytes of this tile's weights of 64 k */
  const char* weights;

  __device__ __forceinline__ explicit GridStages(const ObkConv& g)
      : work((shared_address(g.scratch) + 1023) & ~1023u),
        bars(work + conv_grid_bars(S::kPixels, S::kPitch, S::kPlaces * S::kStage)),
        chunk(S::kOutputs > 0 && (int)g.channel + S::kChannels > S::kOutputs
                  ? S::kLastGroups * WeightPages::kAtomBytes
                  : kChunk),
        weights((const char*)g.weights +
                (uint32_t)g.channel / 8 * (int64_t)(S::kChunks * WeightPages::kAtomBytes)) {}
  /* One thread. */
  __device__ __forceinline__ void load(int stage, int place) const {
    const uint32_t to = work + place * S::kStage + S::kStep * S::kBlock, bar = bars + 8 * place;
    if constexpr (S::kOutputs > 0) { /* each block where that of a whole tile lies */
      mbarrier_expect(bar, S::kStep * chunk);
#pragma unroll
      for (int c = 0; c < S::kStep; ++c)
        bulk_copy(to + c * kChunk, weights + (int64_t)(stage * S::kStep + c) * chunk, chunk, bar);
    } else {
      mbarrier_expect(bar, kWeights);
      bulk_copy(to, weights + (int64_t)stage * kWeights, kWeights, bar);
    }
  }
};

/* Few channels: all weights, a barrier for them, the patch. */
template <typename S>
struct GridFirst {
  static constexpr uint32_t kWeights = S::Fixed::kChunks * S::kChannels * 128;
  uint32_t weights, patch, bar;

  __device__ __forceinline__ explicit GridFirst(const ObkConv& g)
      : weights((shared_address(g.scratch) + 1023) & ~1023u),
        patch(weights + kWeights),
        bar(weights + conv_grid_bars(S::kPixels, S::kPitch,
                                     kWeights + (S::Fixed::kFit.patch_bytes + 127) / 128 * 128)) {}
};

template <typename S>
static __device__ __forceinline__ void conv_grid_begin(const ObkConv& g) {
  if (threadIdx.x != 0) return;
  if constexpr (S::kThin) {
    const GridFirst<S> at(g);
    mbarrier_init(at.bar, 1);
    mbarrier_init_fence();
    mbarrier_expect(at.bar, at.kWeights);
    return bulk_copy(
        at.weights,
        (const char*)g.weights +
            (uint32_t)g.channel / 8 * (int64_t)(S::Fixed::kChunks * WeightPages::kAtomBytes),
        at.kWeights, at.bar);
  }
  const GridStages<S> stages(g);
#pragma unroll 1
  for (int k = 0; k < S::kPlaces; ++k) mbarrier_init(stages.bars + 8 * k, 1);
  mbarrier_init_fence();
#pragma unroll 1
  for (int k = 0; k < stages.kAhead; ++k) stages.load(k, k);
}

/* Stages whose products are under way while a warp waits: none where a watchdog may end that wait
 * (pipelined_gemm.cuh). */
#ifdef OBK_WATCHDOG
static constexpr int kGridUnderWay = 0;
#else
static constexpr int kGridUnderWay = 1;
#endif
static __device__ __forceinline__ void wait_for_weights(uint32_t bar, int place, uint32_t turn) {
  Watchdog dog = ring_state().dog;
  dog.start();
  while (!mbarrier_try(bar, turn)) dog.check(2, place, turn, 0);
}

/* A thread's sums to Y, whose rows are kPitch floats apart; all may read it then. */
template <int kN, int kPitch>
static __device__ __forceinline__ void grid_store(const float (&sum)[kN / 2], uint32_t to) {
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    store_shared8(to + 32 * j, sum[4 * j], sum[4 * j + 1]);
    store_shared8(to + 32 * (j + kPitch), sum[4 * j + 2], sum[4 * j + 3]);
  }
  __syncthreads();
}

/* 128 pixels of an image, whose kernel rows are runs of elements: conv_first.cuh, in one sum. */
template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_grid_first_tile(const ObkConv& g) {
  typedef typename S::Fixed F;
  constexpr int kN = S::kChannels, kAll = S::kOutWidth * S::kOutHeight;
  const GridFirst<S> at(g);
  const int image = (int)g.row / kAll, first = (int)g.row - image * kAll,
            top = first / S::kOutWidth;
  const uint32_t patch = conv_thin_patch<F>(at.patch, (const char*)g.x + (int64_t)image * S::kImage,
                                            top * S::kStrideH - S::kTop, -S::kLeft);
  copy16_commit();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  ConvRuns<F> runs;
  runs.find(patch, row, first - top * S::kOutWidth, S::kPixels);
  float sum[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here();
  uint32_t a[F::kK16][4]; /* each has registers of its own: products are under way */
  const uint64_t y = matrix_at(at.weights, 1024);
  copy16_wait<0>();
  __syncthreads(); /* the patch and the barrier are there */
  wait_for_weights(at.bar, 0, 0);
#pragma unroll
  for (int c = 0; c < F::kChunks; ++c) {
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (c * 4 + p < F::kK16) runs.step(a[c * 4 + p], c * 4 + p);
    wgmma_begin();
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (c * 4 + p < F::kK16)
        Wgmma<kN, kBfloat>::multiply_rows(sum, a[c * 4 + p], y + c * (kN / 8 * 64) + 2 * p);
    wgmma_commit();
  }
  wgmma_wait<0>();
  __syncthreads(); /* Y lies where weights and patch lay */
  grid_store<kN, S::kPitch>(sum, shared_address(g.y) + (row * S::kPitch + lane % 4 * 2) * 4);
}

template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_grid_rows_tile(const ObkConv& g) {
  constexpr int kPlaces = S::kPlaces, kAhead = GridStages<S>::kAhead;
  constexpr bool kHigh = S::kPixels == 128;
  constexpr int kN = kHigh ? S::kChannels : S::kChannels / 2; /* of a warpgroup */
  const GridStages<S> stages(g);
  const uint32_t work = stages.work, bars = stages.bars;
  const GridPixels<S> pixels(g);
  const int piece = threadIdx.x % 8, r = threadIdx.x / 8;
  const uint32_t to = work + r * 128 + ((piece ^ (r & 7)) << 4);
  int wanted = 0, issued = 0; /* the next stage that is requested, and its place */
  auto bring = [&] {
    if (wanted < S::kStages) {
#pragma unroll
      for (int c = 0; c < S::kStep; ++c)
        pixels.copy(to + issued * S::kStage + c * S::kBlock, wanted * S::kStep + c);
      if (++issued == kPlaces) issued = 0;
    }
    ++wanted;
    copy16_commit(); /* empty at the end, so that the count of groups is the same */
  };
#pragma unroll 1
  for (int s = 0; s < kAhead; ++s) bring();
  __syncthreads(); /* the barriers are there */
  const int part = same_in_warp(threadIdx.x / 128), lane = threadIdx.x % 32;
  const int high = kHigh ? part * 64 : 0, left = kHigh ? 0 : part * kN; /* this warpgroup's first */
  /* This lane's share of ldmatrix: 16 rows of the warp, the first k-step; the others lie at places
   * that differ in two bits. */
  const uint32_t x0 =
      work + (high + threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 + ((lane / 16 ^ (lane & 7)) << 4);
  const uint64_t y0 = matrix_at(work + S::kStep * S::kBlock + left / 8 * 1024, 1024);
  float sum[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sum[e] = zero_here();
  uint32_t rows[2][4 * S::kStep][4];
  int place = 0;
  uint32_t turn = 0;
  auto multiply = [&](uint32_t(&a)[4 * S::kStep][4]) {
    copy16_wait<kAhead - 1>();
    wait_for_weights(bars + 8 * place, place, turn);
    __syncthreads(); /* the stage is there, and all have read the one before the last */
    const uint32_t at = same_in_warp(place * S::kStage);
#pragma unroll
    for (int k = 0; k < 4 * S::kStep; ++k)
      load_matrices(a[k], (x0 + at + k / 4 * S::kBlock) ^ (k % 4 << 5));
    const uint64_t y = y0 + (at >> 4);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4 * S::kStep; ++k)
      Wgmma<kN, kBfloat>::multiply_rows(sum, a[k],
                                        y + k / 4 * (GridStages<S>::kChunk >> 4) + k % 4 * 2);
    wgmma_commit();
    if (threadIdx.x == 0 && wanted < S::kStages) stages.load(wanted, issued);
    bring();
    wgmma_wait<kGridUnderWay>();
    if (++place == kPlaces) place = 0, turn ^= 1;
  };
#pragma unroll 1
  for (int pair = 0; pair < S::kStages / 2; ++pair) multiply(rows[0]), multiply(rows[1]);
  if (S::kStages % 2) { /* the assembler knows rows by their place in a loop */
    wgmma_wait<0>();
    multiply(rows[0]);
  }
  wgmma_wait<0>();
  allow_next();
  __syncthreads(); /* Y lies where the stages lay */
  const uint32_t c =
      shared_address(g.y) +
      4 * ((high + threadIdx.x / 32 % 4 * 16 + lane / 4) * S::kPitch + left + lane % 4 * 2);
  grid_store<kN, S::kPitch>(sum, c);
}

template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_grid_tile(const ObkConv& g) {
  if constexpr (S::kThin)
    return conv_grid_first_tile<kBfloat, S>(g);
  else
    conv_grid_rows_tile<kBfloat, S>(g);
}

#else

template <typename S>
static __device__ __forceinline__ void conv_grid_begin(const ObkConv&) {}
template <bool kBfloat, typename S>
static __device__ __forceinline__ void conv_grid_tile(const ObkConv&) {
  __trap(); /* nobody cuts such tiles for a lesser machine */
}

#endif

}  // namespace obk

#define OBK_CONV_GRID_BEGIN(type, g, ...) obk::conv_grid_begin<obk::ConvGrid<__VA_ARGS__>>(g)
#define OBK_CONV_GRID_TILE(type, g, ...) \
  obk::conv_grid_tile<type == kObkBf16, obk::ConvGrid<__VA_ARGS__>>(g)

#endif

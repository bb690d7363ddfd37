/* kernels/cuda/conv/conv_cores.cuh — convolution tiles of f32: exact on CUDA cores, or on tensor
 * cores from operands rounded to tf32; and depthwise in every type, on CUDA cores.
 *
 * f32: a pass is 64 pixels by 64 channels at most, staged like the 16-bit one (conv.cuh); threads
 * 64 q .. 64 q + 63 sum pieces 2q and 2q + 1 of each block of 32 k, in order of k, each up to 8 x 8
 * elements; the four sums are added in order. Packed weights: [out / 16][k padded to 32][16].
 *
 * tf32: the same stages and the same four sums, each of two warps by mma.sync m16n8k8: the eight k
 * of their pieces at once.
 *
 * Depthwise: an element is one thread's, taps in order of rows, one fused multiply-add each, taps
 * outside of the image left out. Threads read packs of neighbouring channels, as many as divide the
 * channels and the strides of X. Packed weights: [tap][channels] f32. */
#ifndef OBK_CONV_CORES_CUH
#define OBK_CONV_CORES_CUH

#include "conv/conv.cuh"

namespace obk {

/* A thread's part of the pixels: one piece of 16 bytes in each block of 32 k, for two pixels.
 * Blocks are requested in their order. */
struct ConvGather32 {
  int y[2], x[2];   /* the pixels' first tap in X; far outside: there is no such pixel */
  int k, c, ky, kx; /* of the piece in the next block: index, channel, tap times dilation */
  bool whole;       /* 16-byte copies never leave a tap nor an alignment */

  __device__ void start(const ConvWindow& v, int first, int pixels) {
    whole = v.in % 4 == 0 && v.aligned();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = (threadIdx.x >> 3) + i * 32, pixel = first + r;
      const int row = conv_div(pixel, v.out_width), column = pixel - row * v.out_width;
      y[i] = r < pixels ? row * v.stride_h - v.top : -(1 << 30);
      x[i] = column * v.stride_w - v.left;
    }
    k = (threadIdx.x & 7) * 4, c = k, ky = kx = 0;
    if (whole) wrap(v);
  }
  __device__ void wrap(const ConvWindow& v) {
    while (c >= v.in) {
      c -= v.in, kx += v.dilation_w;
      if (kx >= v.kernel_w * v.dilation_w) kx = 0, ky += v.dilation_h;
    }
  }
  /* `blocks` blocks to shared memory at `to`: [block][padded pixels][128 bytes]. */
  __device__ __forceinline__ void load(uint32_t to, const ConvWindow& v, int padded, int blocks) {
    const int piece = threadIdx.x & 7, row = threadIdx.x >> 3;
#pragma unroll 1
    for (int b = 0; b < blocks; ++b, to += padded * 128) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = row + i * 32;
        if (r >= padded) break;
        const uint32_t at = to + r * 128 + ((piece ^ (r & 7)) << 4);
        if (whole) {
          const bool in = ky < v.kernel_h * v.dilation_h && v.has(y[i] + ky, x[i] + kx);
          copy16_partly(at, in ? v.at(y[i] + ky, x[i] + kx) + c * 4 : v.x, in ? 16u : 0u);
        } else {
          elements(at, v, y[i], x[i]);
        }
      }
      k += 32, c += 32;
      if (whole) wrap(v);
    }
  }
  __device__ void elements(uint32_t at, const ConvWindow& v, int y0, int x0) {
    uint32_t words[4] = {};
    int tap = k / v.in, channel = k - tap * v.in, i = tap / v.kernel_w, j = tap - i * v.kernel_w;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = y0 + i * v.dilation_h, column = x0 + j * v.dilation_w;
      if (i < v.kernel_h && v.has(row, column))
        words[e] = *(const uint32_t*)(v.at(row, column) + (int64_t)channel * 4);
      if (++channel == v.in) {
        channel = 0;
        if (++j == v.kernel_w) j = 0, ++i;
      }
    }
    store_shared16(at, words);
  }
};

/* The four sums of f32: a thread's pixels ty + 8 i and channels tx * 4 + 32 j. */
template <int kWide>
struct ConvSums32 {
  float sum[8][kWide * 4] = {};
  int part, tx, ty;
  __device__ __forceinline__ ConvSums32()
      : part(threadIdx.x / 64), tx(threadIdx.x % 8), ty(threadIdx.x / 8 % 8) {}
  /* A block of 32 k: pixels at `x`, weights at `w`. */
  __device__ __forceinline__ void add(const ConvPlan32& p, uint32_t x_at, uint32_t w_at) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int piece = part * 2 + h;
      const uint32_t from = w_at + (piece * 4 * p.weights_pitch + tx * 4) * 4;
      float weight[4][kWide * 4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          uint32_t bits[4];
          load_shared16(bits, from + (k * p.weights_pitch + j * 32) * 4);
#pragma unroll
          for (int e = 0; e < 4; ++e) weight[k][j * 4 + e] = __uint_as_float(bits[e]);
        }
      const uint32_t x_row = x_at + ty * 128 + ((piece ^ ty) << 4);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < p.pixels / 8) {
          uint32_t x[4];
          load_shared16(x, x_row + i * 1024);
#pragma unroll
          for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int e = 0; e < kWide * 4; ++e)
              sum[i][e] = fmaf(__uint_as_float(x[k]), weight[k][e], sum[i][e]);
        }
      }
    }
  }
  __device__ __forceinline__ void leave(const ConvPlan32& p, uint32_t work, int pitch) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < p.pixels / 8)
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          uint32_t bits[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) bits[e] = __float_as_uint(sum[i][j * 4 + e]);
          store_shared16(work + ((part * p.pixels + ty + i * 8) * pitch + tx * 4 + j * 32) * 4,
                         bits);
        }
  }
};

/* Those of tf32: of two warps a part, each half of the channels, 16 pixels by 8 channels in turn.
 */
template <int kWide>
struct ConvSumsTf32 {
  float sum[4][kWide * 2][4] = {};
  int part, side, lane;
  __device__ __forceinline__ ConvSumsTf32()
      : part(threadIdx.x / 64), side(threadIdx.x / 32 % 2), lane(threadIdx.x % 32) {}
  __device__ __forceinline__ void add(const ConvPlan32& p, uint32_t x_at, uint32_t w_at) {
    const uint32_t from =
        w_at + ((part * 8 + lane % 4) * p.weights_pitch + side * kWide * 16 + lane / 4) * 4;
    uint32_t weight[kWide * 2][2];
#pragma unroll
    for (int n = 0; n < kWide * 2; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        weight[n][e] = round_tf32(load_shared(from + (e * 4 * p.weights_pitch + n * 8) * 4));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < p.pixels / 16) {
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) /* rows eight apart have the same places */
          x[e] =
              round_tf32(load_shared(x_at + (i * 16 + (e & 1) * 8 + lane / 4) * 128 +
                                     (((part * 2 + (e >> 1)) ^ (lane / 4)) << 4) + lane % 4 * 4));
#pragma unroll
        for (int n = 0; n < kWide * 2; ++n) mma_16x8x8(sum[i][n], x, weight[n][0], weight[n][1]);
      }
  }
  __device__ __forceinline__ void leave(const ConvPlan32& p, uint32_t work, int pitch) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < p.pixels / 16)
#pragma unroll
        for (int n = 0; n < kWide * 2; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            store_shared8(work + ((part * p.pixels + i * 16 + h * 8 + lane / 4) * pitch +
                                  side * kWide * 16 + n * 8 + lane % 4 * 2) *
                                     4,
                          sum[i][n][2 * h], sum[i][n][2 * h + 1]);
  }
};
template <bool kTf32, int kWide>
struct ConvSums {
  typedef ConvSums32<kWide> Are;
};
template <int kWide>
struct ConvSums<true, kWide> {
  typedef ConvSumsTf32<kWide> Are;
};

/* kWide: 32 channels each that a thread walks. */
template <bool kTf32, int kWide>
static __device__ __noinline__ void conv_pass32(const ObkConv& g, uint32_t work, int pixel,
                                                int pixels, int channel, int channels) {
  const ConvWindow v(g, 4);
  const int first = (int)(g.row * g.out_width + g.column) + pixel;
  const ConvPlan32 p = conv_plan32(&g, pixels, channels);
  const int groups = (channels + 15) / 16;
  const int64_t group_bytes = (int64_t)p.k_blocks * 32 * 64;
  const char* weights = (const char*)g.weights + (g.channel + channel) / 16 * group_bytes;
  const uint32_t behind = p.stage_blocks * p.pixels * 128;

  ConvGather32 gather;
  gather.start(v, first, pixels);
  auto load = [&](int stage) {
    const int block = stage * p.stage_blocks, left = p.k_blocks - block;
    if (left > 0) {
      const int blocks = left < p.stage_blocks ? left : p.stage_blocks;
      const uint32_t to = work + stage % kConvStages * p.stage_bytes;
      const int quarter = threadIdx.x & 3, k = threadIdx.x >> 2 & 31;
#pragma unroll 1
      for (int i = threadIdx.x >> 7; i < blocks * groups; i += 2) {
        const int b = i / groups, group = i - b * groups;
        copy16(to + behind + ((b * 32 + k) * p.weights_pitch + group * 16 + quarter * 4) * 4,
               weights + group * group_bytes + ((block + b) * 32 + k) * 64 + quarter * 16);
      }
      gather.load(to, v, p.pixels, blocks);
    }
    copy16_commit();
  };

  typename ConvSums<kTf32, kWide>::Are sums;
#pragma unroll 1
  for (int s = -kConvStages, block = 0; block < p.k_blocks; ++s) {
    if (s == 0)
      copy16_wait<kConvStages - 1>();
    else if (s > 0)
      copy16_wait<kConvStages - 2>();
    if (s >= 0) __syncthreads();
    if (s != 0) load(s < 0 ? s + kConvStages : s + kConvStages - 1);
    if (s < 0) continue;
    const uint32_t stage = work + s % kConvStages * p.stage_bytes;
#pragma unroll 1
    for (int b = 0; b < p.stage_blocks && block < p.k_blocks; ++b, ++block)
      sums.add(p, stage + b * p.pixels * 128, stage + behind + b * p.weights_pitch * 128);
  }
  copy16_wait<0>();
  __syncthreads();
  const int pitch = p.channels + 4;
  sums.leave(p, work, pitch);
  __syncthreads();
  conv_store(g, work, p.pixels, pitch, pixel, pixels, channel, channels);
}

template <bool kTf32>
static __device__ inline void conv32(const ObkConv& g) {
  const uint32_t work = (shared_address(g.scratch) + 127) & ~127u;
  const int all = conv_pixels(g), channels = (int)g.channels;
#pragma unroll 1
  for (int pixel = 0; pixel < all; pixel += kConvPass)
#pragma unroll 1
    for (int c = 0; c < channels; c += kConvPass) {
      const int pixels = min(kConvPass, all - pixel), wide = min(kConvPass, channels - c);
      if (wide > 32)
        conv_pass32<kTf32, 2>(g, work, pixel, pixels, c, wide);
      else
        conv_pass32<kTf32, 1>(g, work, pixel, pixels, c, wide);
    }
}

/* Depthwise: kPack neighbouring channels, in the fewest words of 32 bits. */
template <int kType, int kPack>
struct ConvPack {
  static constexpr int kSize = OBK_LIES_AS_F32(kType) ? 4 : 2, kBytes = kPack * kSize,
                       kWords = (kBytes + 3) / 4;
  uint32_t words[kWords];
  /* Requested where it stands: a compiler would move a plain load to its use. */
  __device__ __forceinline__ void request(const char* from) {
    if constexpr (kBytes == 2)
      load_global16(words[0], from);
    else if constexpr (kBytes <= 16)
      load_global(words, from);
    else
#pragma unroll
      for (int k = 0; k < kWords; k += 4) load_global(*(uint32_t(*)[4])(words + k), from + 4 * k);
  }
  /* The same of shared memory; of no fewer than four bytes. */
  __device__ __forceinline__ void take(uint32_t from) {
    if constexpr (kWords == 4) {
      load_shared16(words, from);
    } else if constexpr (kWords == 2) {
      float low, high;
      load_shared8(low, high, from);
      words[0] = __float_as_uint(low), words[1] = __float_as_uint(high);
    } else {
      words[0] = load_shared_word(from);
    }
  }
  __device__ __forceinline__ float at(int e) const {
    if constexpr (kSize == 4) return __uint_as_float(words[e]);
    const uint32_t half = words[e / 2] >> (e % 2 * 16);
    return kType == kObkBf16 ? __uint_as_float(half << 16) : widen_f16_bits((uint16_t)half);
  }
};

/* A pixel's sums, to Y. whole: Y takes them four or two at once. */
template <int kPack>
static __device__ __forceinline__ void conv_depthwise_store(float* to, const float (&sum)[kPack],
                                                            bool whole, bool accumulate) {
  constexpr int kAtOnce = kPack < 4 ? kPack : 4;
  if (whole) {
#pragma unroll
    for (int e = 0; e < kPack; e += kAtOnce) {
      if constexpr (kAtOnce == 4)
        *(float4*)(to + e) = make_float4(sum[e], sum[e + 1], sum[e + 2], sum[e + 3]);
      else if constexpr (kAtOnce == 2)
        *(float2*)(to + e) = make_float2(sum[e], sum[e + 1]);
      else
        to[e] = sum[e];
    }
  } else {
#pragma unroll
    for (int e = 0; e < kPack; ++e) to[e] = accumulate ? to[e] + sum[e] : sum[e];
  }
}
template <int kPack>
static __device__ __forceinline__ bool conv_depthwise_whole(const ObkConv& g) {
  constexpr int kBytes = kPack < 4 ? kPack * 4 : 16;
  return !g.accumulate && (((uint64_t)g.y | (g.y_row | g.y_pixel) * 4) & (kBytes - 1)) == 0;
}

/* A pixel and kPack channels a thread at a time, of any window. */
template <int kType, int kPack>
static __device__ inline void conv_depthwise_by(const ObkConv& g) {
  typedef ConvPack<kType, kPack> Pack;
  const ConvWindow v(g, Pack::kSize);
  const int pixels = conv_pixels(g), first = (int)(g.row * g.out_width + g.column);
  const int vectors = (int)g.channels / kPack, all = (int)g.out_channels;
  const bool whole = conv_depthwise_whole<kPack>(g);
  const float* weights = (const float*)g.weights;
#pragma unroll 1
  for (int i = threadIdx.x; i < pixels * vectors; i += kConvThreads) {
    const int q = i / vectors, c = (i - q * vectors) * kPack, channel = (int)g.channel + c;
    const int row = (first + q) / v.out_width, column = first + q - row * v.out_width;
    const int y0 = row * v.stride_h - v.top, x0 = column * v.stride_w - v.left;
    const int from = kPack > 1 ? channel : channel / (int)g.multiplier;
    float sum[kPack] = {};
    for (int ky = 0; ky < v.kernel_h; ++ky) {
      const int y = y0 + ky * v.dilation_h;
      if ((uint32_t)y >= (uint32_t)v.height) continue;
#pragma unroll 4
      for (int kx = 0; kx < v.kernel_w; ++kx) {
        const int x = x0 + kx * v.dilation_w;
        if ((uint32_t)x >= (uint32_t)v.width) continue;
        Pack in;
        ConvPack<kObkF32, kPack> weight;
        in.request(v.at(y, x) + (int64_t)from * Pack::kSize);
        weight.request((const char*)(weights + (ky * v.kernel_w + kx) * all + channel));
#pragma unroll
        for (int e = 0; e < kPack; ++e) sum[e] = fmaf(in.at(e), weight.at(e), sum[e]);
      }
    }
    conv_depthwise_store<kPack>(g.y + conv_place(g, q) + c, sum, whole, g.accumulate != 0);
  }
}

/* Two pixels of eight channels a thread at a time, or four of fewer, that share weights, of kSide x
 * kSide taps. kRows rows of taps are requested at once, as many as registers hold, what lies
 * outside of X from its edge: with a branch around each load there would be one under way at a
 * time. */
template <int kType, int kSide, int kPack>
static __device__ inline void conv_depthwise_pixels(const ObkConv& g) {
  typedef ConvPack<kType, kPack> Pack;
  constexpr int kPixels = kPack == 8 || (kSide == 7 && Pack::kWords == 4) ? 2 : 4;
  constexpr int kRows = kSide == 3 && kPixels * Pack::kWords <= 8 ? 3 : 1, kTaps = kRows * kSide;
  const ConvWindow v(g, Pack::kSize);
  const int pixels = conv_pixels(g), first = (int)(g.row * g.out_width + g.column);
  const int vectors = (int)g.channels / kPack, all = (int)g.out_channels;
  const int x_pixel = (int)v.x_pixel;
#pragma unroll 1
  for (int i = threadIdx.x; i < (pixels + kPixels - 1) / kPixels * vectors; i += kConvThreads) {
    const int run = i / vectors, c = (i - run * vectors) * kPack, channel = (int)g.channel + c;
    const char* weights = (const char*)((const float*)g.weights + channel);
    const char* x =
        v.x + (int64_t)(kPack > 1 ? channel : channel / (int)g.multiplier) * Pack::kSize;
    const int last = pixels - 1 - run * kPixels; /* of the run's pixels, that is there */
    int y0[kPixels], x0[kPixels];
    int row = (first + run * kPixels) / v.out_width;
    int column = first + run * kPixels - row * v.out_width;
#pragma unroll
    for (int p = 0; p < kPixels; ++p) {
      y0[p] = row * v.stride_h - v.top, x0[p] = column * v.stride_w - v.left;
      if (p < last && ++column == v.out_width) column = 0, ++row; /* else the last one again */
    }
    float sum[kPixels][kPack] = {};
#pragma unroll 1
    for (int ky = 0; ky < kSide; ky += kRows) {
      ConvPack<kObkF32, kPack> weight[kTaps];
      Pack in[kPixels][kTaps];
      if (kTaps * kPixels * Pack::kWords >= 40) { /* offsets are worked out again, not kept */
#pragma unroll
        for (int p = 0; p < kPixels; ++p) asm volatile("" : "+r"(x0[p]));
      }
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        weight[tap].request(weights + (int64_t)(ky * kSide + tap) * all * 4);
#pragma unroll
        for (int p = 0; p < kPixels; ++p) {
          const int at_y = y0[p] + (ky + tap / kSide) * v.dilation_h;
          const int at_x = x0[p] + tap % kSide * v.dilation_w;
          in[p][tap].request(x + min(max(at_y, 0), v.height - 1) * v.x_row +
                             (int64_t)min(max(at_x, 0), v.width - 1) * x_pixel);
        }
      }
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
        for (int p = 0; p < kPixels; ++p)
          if (v.has(y0[p] + (ky + tap / kSide) * v.dilation_h,
                    x0[p] + tap % kSide * v.dilation_w)) {
#pragma unroll
            for (int e = 0; e < kPack; ++e)
              sum[p][e] = fmaf(in[p][tap].at(e), weight[tap].at(e), sum[p][e]);
          }
    }
    const bool whole = conv_depthwise_whole<kPack>(g);
#pragma unroll
    for (int p = 0; p < kPixels; ++p) {
      if (p > last) break;
      const int q = run * kPixels + p;
      conv_depthwise_store<kPack>(g.y + conv_place(g, q) + c, sum[p], whole, g.accumulate != 0);
    }
  }
}

/* kSide: depthwise_side; kPack: ObkConv::pack. */
template <int kType, int kSide, int kPack>
static __device__ __noinline__ void conv_depthwise(const ObkConv& g) {
  if constexpr (kSide > 0)
    conv_depthwise_pixels<kType, kSide, kPack>(g);
  else
    conv_depthwise_by<kType, kPack>(g);
  __syncthreads();
}

}  // namespace obk

#endif

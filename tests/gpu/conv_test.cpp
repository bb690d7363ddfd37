// The convolution tile alone: a kernel of one tile a CTA over a table of shapes, types and cuts,
// against the definition in double; the bits of every cut are the same. Skipped where no GPU is.
// OBELISK_GPU_BENCH=1 times layers of residual networks, phases of one kernel with a barrier each.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "device.h"
#include "kernels/cuda/conv/conv.h"
#include "kernels/kernels.h"
#include "sample.h"
#include "tf32.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "exec/barrier.cuh"
#include "conv/conv.cuh"

/* CTA b takes tiles b, b + grid, ... ; a tile's Y lies in shared memory and is then copied, or is
 * where it belongs. Shared memory: the ring, Y, the tile's scratch. */
struct Job {
  ObkConv g;
  int64_t all_pixels, tile_pixels, tile_channels, y_bytes, direct, half, pages, fixed;
};
static __device__ __forceinline__ int ring_bytes(const Job& job) {
  return ((int)job.pages * (obk::WeightPages::kPageBytes + obk::Ring::kBarBytes) + 127) & ~127;
}
static __device__ __forceinline__ int across(const Job& job) {
  return ((int)job.g.out_channels + (int)job.tile_channels - 1) / (int)job.tile_channels;
}
template <int kType>
static __device__ __forceinline__ void ask(const Job& job, int tile) {
  if (OBK_LIES_AS_F32(kType)) return;
  const int wide = (int)job.tile_channels, channel = tile % across(job) * wide;
  obk::WeightPages pages;
  pages.chunks =
      (conv_k16((int)job.g.in_channels, (int)job.g.kernel_h, (int)job.g.kernel_w) + 3) / 4;
  pages.pitch = (min(wide, (int)job.g.out_channels - channel) + 15) / 16 * 2;
  pages.groups = min(pages.pitch, (int)kConvPass / 8);
  pages.from = (const char*)job.g.weights + (int64_t)(channel / 8) * pages.chunks * 1024;
  obk::ring_load_ahead(pages);
}
template <int kType, bool kDepthwise>
static __device__ __forceinline__ void one(const Job& job, int tile, char* shared) {
  char* own = shared + ring_bytes(job);
  ObkConv t = job.g;
  const int wide = (int)t.out_width, height = (int)job.tile_pixels, width = (int)job.tile_channels;
  const int pixel = tile / across(job) * height, channel = tile % across(job) * width;
  const int pixels = min(height, (int)job.all_pixels - pixel);
  const int channels = min(width, (int)t.out_channels - channel);
  t.row = pixel / wide, t.column = pixel % wide, t.pixels = pixels;
  t.channel = channel, t.channels = channels;
  t.scratch = own + (job.direct ? 0 : job.y_bytes);
  float* y = (float*)own;
  if (job.direct) {
    t.y += t.row * t.y_row + t.column * t.y_pixel + channel;
  } else {
    if (t.accumulate)
      for (int i = threadIdx.x; i < pixels * channels; i += 256) y[i] = 0.5f;
    t.y = y, t.y_pixel = channels, t.y_row = t.out_width * t.y_pixel;
  }
  if (kDepthwise)
    OBK_DEPTHWISE_TILE(kType, t);
  else
    switch (job.fixed) {
#ifdef OBK_CASES
      OBK_CASES
#endif
      default: OBK_CONV_TILE(kType, t);
    }
  if (job.direct) return;
  if (job.half && channels % 4 == 0 && job.g.y_row == wide * job.g.y_pixel) {
    const int quarter = channels / 4;
    for (int i = threadIdx.x; i < pixels * quarter; i += 256) {
      const int q = i / quarter, c = (i - q * quarter) * 4;
      const float4 v = *(const float4*)(y + q * channels + c);
      uint2 to;
      to.x = obk::narrow_two<false>(v.x, v.y), to.y = obk::narrow_two<false>(v.z, v.w);
      *(uint2*)((uint16_t*)job.g.y + (pixel + q) * job.g.y_pixel + channel + c) = to;
    }
    return;
  }
  for (int q = threadIdx.x / 32; q < pixels; q += 8) {
    const int row = (pixel + q) / wide, column = (pixel + q) - row * wide;
    const int64_t at = row * job.g.y_row + column * job.g.y_pixel + channel;
    for (int c = threadIdx.x % 32; c < channels; c += 32) {
      const float v = y[q * channels + c];
      if (job.half)
        ((uint16_t*)job.g.y)[at + c] = obk::narrow_f16_bits(v);
      else
        job.g.y[at + c] = v;
    }
  }
}
#define ENTRY(name, type, depthwise)                                                           \
  extern "C" __global__ void __launch_bounds__(256, 1) name(const Job* job, uint64_t* counter, \
                                                            int tiles, int phases) {           \
    extern __shared__ __align__(1024) char shared[];                                           \
    obk::GridBarrier barrier(counter, gridDim.x, nullptr, blockIdx.x);                         \
    __shared__ Job mine;                                                                       \
    if (threadIdx.x == 0) mine = *job;                                                         \
    __syncthreads();                                                                           \
    const int pages = (int)mine.pages;                                                         \
    obk::ring_start(obk::shared_address(shared),                                               \
                    obk::shared_address(shared) + pages * obk::WeightPages::kPageBytes, pages, \
                    nullptr, blockIdx.x);                                                      \
    for (int phase = 0; phase < phases; ++phase) {                                             \
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {                           \
        one<type, depthwise>(mine, tile, shared);                                              \
        __syncthreads();                                                                       \
        if (tile + gridDim.x < tiles) ask<type>(mine, tile + gridDim.x);                       \
      }                                                                                        \
      if (phases > 1) {                                                                        \
        barrier.arrive_after_sync();                                                           \
        if (!depthwise) ask<type>(mine, blockIdx.x);                                           \
        barrier.wait();                                                                        \
      }                                                                                        \
    }                                                                                          \
    obk::ring_finish();                                                                        \
  }
ENTRY(conv, OBK_TYPE, false)
ENTRY(depthwise, OBK_TYPE, true)
)cu";

struct Job {
  ObkConv g;
  int64_t all_pixels, tile_pixels, tile_channels, y_bytes, direct, half, pages, fixed;
};

struct Case {
  int64_t height, width, in, out, kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t top = 0, left = 0, bottom = 0, right = 0;
  int64_t gap = 0;         // elements between pixels of X, and of Y
  int64_t multiplier = 0;  // > 0: depthwise
  int64_t out_height() const {
    return (height + top + bottom - dilation_h * (kernel_h - 1) - 1) / stride_h + 1;
  }
  int64_t out_width() const {
    return (width + left + right - dilation_w * (kernel_w - 1) - 1) / stride_w + 1;
  }
  int64_t pixels() const { return out_height() * out_width(); }
};

const Case kCases[] = {
    {14, 14, 64, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {5, 5, 3, 8, 3, 3},
    {9, 11, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3},   // an image's first layer
    {16, 16, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3},  // rows of whole 16 bytes
    {8, 10, 3, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},   // of 4
    {21, 23, 3, 32, 3, 3, 2, 2},                    // nothing outside
    {32, 33, 1, 20, 5, 3, 1, 2, 1, 1, 2, 1, 2, 1},
    {8, 8, 24, 65, 1, 1},
    {9, 7, 256, 80, 1, 1, 2, 2},
    {7, 7, 130, 70, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {7, 7, 128, 72, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {14, 14, 16, 48, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2},
    {14, 15, 48, 48, 5, 3, 1, 2, 2, 3, 2, 3, 4, 1},   // a patch, dilated
    {12, 13, 17, 19, 3, 2, 2, 3, 2, 3, 1, 2, 0, 1},   // nothing is even
    {3, 3, 4, 5, 3, 3, 1, 1, 1, 1, 5, 4, 3, 2},       // rows wholly outside
    {3, 4, 32, 16, 3, 3, 1, 1, 1, 1, 5, 4, 3, 2},     // the same by a patch
    {1, 100, 6, 33, 1, 9, 1, 1, 1, 4, 0, 16, 0, 16},  // a row, dilated
    {1, 100, 80, 33, 1, 9, 1, 1, 1, 4, 0, 16, 0, 16},
    {10, 10, 2, 16, 9, 9, 1, 1, 1, 1, 4, 4, 4, 4},
    {2, 2, 1100, 17, 1, 1},
    {2, 2, 2200, 17, 2, 2},
    {6, 6, 5, 130, 2, 2, 3, 3, 1, 1, 0, 0, 0, 0},
    {28, 28, 512, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},       // no patch: it is too large
    {6, 200, 64, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},        // pixels within a row
    {8, 8, 32, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 8},       // strides, still aligned
    {8, 8, 32, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 3},       // not aligned
    {14, 14, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1},  // depthwise
    {9, 10, 24, 24, 5, 5, 2, 2, 1, 1, 2, 2, 2, 2, 0, 1},
    {9, 10, 13, 13, 3, 3, 1, 2, 2, 1, 2, 1, 2, 1, 3, 1},
    {7, 6, 5, 15, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 3},
    {9, 9, 16, 16, 7, 7, 1, 1, 1, 1, 3, 3, 3, 3, 0, 1},
    {11, 13, 40, 40, 5, 5, 1, 1, 2, 2, 4, 4, 4, 4, 8, 1},  // dilated, an odd number of pixels
    {3, 3, 16, 16, 3, 3, 1, 1, 1, 1, 5, 4, 3, 2, 0, 1},    // rows wholly outside
    {12, 7, 8, 8, 1, 5, 1, 1, 1, 1, 0, 2, 0, 2, 0, 1},     // not as wide as high
    {11, 12, 42, 42, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3, 0, 1},  // packs of 2
    {10, 9, 84, 84, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2, 0, 1},   // of 4
    {9, 9, 36, 36, 3, 3, 1, 1, 2, 2, 2, 2, 2, 2, 0, 1},
    {8, 11, 90, 90, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, 0, 1},
    {6, 6, 3, 3, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2, 0, 1},      // of 1
    {7, 7, 168, 168, 7, 7, 1, 1, 1, 1, 3, 3, 3, 3, 4, 1},  // of 4 by the strides
    {5, 6, 336, 336, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1},
    {5, 7, 6, 6, 1, 5, 1, 1, 1, 1, 0, 2, 0, 2, 0, 1},
};

class Conv : public testing::TestWithParam<const char*> {};

struct Bench {
  const char* name;
  Case c;
  int images;
};

std::vector<char> random_bytes(DType dtype, int64_t count, std::mt19937& random,
                               std::vector<double>& exact) {
  std::vector<char> bytes(static_cast<size_t>(byte_size(dtype, count)) + 16);
  std::uniform_real_distribution<double> uniform(-1, 1);
  exact.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    set_double(bytes.data(), dtype, i, uniform(random));
    exact[static_cast<size_t>(i)] = get_double(bytes.data(), dtype, i);
  }
  return bytes;
}

/// What the tile takes is a number of tf32, what it reads is near it.
void rounds(std::vector<char>& bytes, std::vector<double>& exact) {
  for (size_t k = 0; k < exact.size(); ++k) {
    exact[k] = to_tf32(exact[k]);
    const float stored = near_tf32(exact[k], static_cast<int64_t>(k));
    memcpy(bytes.data() + 4 * k, &stored, 4);
  }
}

/// Shapes, packed weights and device buffers of one convolution.
struct Layer {
  Job job = {};
  std::vector<double> x, w;
  std::vector<char> plain;  // the weights as the source has them
  DevicePointer packed_at = 0;
  int64_t x_pixel = 0, x_row = 0, y_count = 0;
  DevicePointer y = 0, table = 0, counter = 0;
  DType dtype;
  bool ring = true;
  bool strips = true;  // depthwise: inputs in shared memory, where there is such a tile

  Layer(Device& g, const Case& c, DType type, std::mt19937& random, bool tf32 = false)
      : dtype(type) {
    const bool depthwise = c.multiplier > 0;
    const int64_t taps = c.kernel_h * c.kernel_w, own = depthwise ? 1 : c.in;
    const auto number = tf32 ? int32_t{kObkTf32} : static_cast<int32_t>(type);
    x_pixel = c.in + c.gap, x_row = c.width * x_pixel + c.gap;
    std::vector<char> x_bytes = random_bytes(type, c.height * x_row, random, x);
    plain = random_bytes(type, c.out * own * taps, random, w);
    if (tf32 && !depthwise) rounds(x_bytes, x), rounds(plain, w);
    std::vector<char> packed;
    if (depthwise) {
      packed.resize(kernels::cuda_depthwise_packed_bytes(number, c.out, c.kernel_h, c.kernel_w));
      kernels::cuda_depthwise_pack(static_cast<int32_t>(type), c.out, c.kernel_h, c.kernel_w,
                                   plain.data(), taps, c.kernel_w, 1, packed.data());
    } else {
      packed.resize(kernels::cuda_conv_packed_bytes(number, c.out, c.in, c.kernel_h, c.kernel_w));
    }  // else for a cut's tiles, in run()
    ObkConv& t = job.g;
    t.type = number, t.depthwise = depthwise, t.multiplier = std::max<int64_t>(c.multiplier, 1);
    t.height = c.height, t.width = c.width, t.in_channels = c.in;
    t.kernel_h = c.kernel_h, t.kernel_w = c.kernel_w;
    t.stride_h = c.stride_h, t.stride_w = c.stride_w;
    t.dilation_h = c.dilation_h, t.dilation_w = c.dilation_w, t.pad_top = c.top,
    t.pad_left = c.left;
    t.out_width = c.out_width(), t.out_channels = c.out, t.x_row = x_row, t.x_pixel = x_pixel;
    t.y_pixel = c.out + c.gap, t.y_row = t.out_width * t.y_pixel + c.gap;
    y_count = c.out_height() * t.y_row, job.all_pixels = c.pixels();
    const DevicePointer x_at = g.make(x_bytes.size(), 0);
    packed_at = g.make(packed.size(), 0);
    g.d->CopyToDevice(x_at, x_bytes.data(), x_bytes.size());
    g.d->CopyToDevice(packed_at, packed.data(), packed.size());
    y = g.make(static_cast<size_t>(y_count) * 4, 0), table = g.make(sizeof job, 0);
    counter = g.make(128, 0);
    t.x = reinterpret_cast<const void*>(x_at), t.weights = reinterpret_cast<const void*>(packed_at);
    t.y = reinterpret_cast<float*>(y);
  }
  /// Shared memory of a tile of this cut, at most.
  int shared(int64_t pixels, int64_t channels, bool direct) const {
    ObkConv t = job.g;
    int64_t most = 0;
    for (int64_t pixel = 0; pixel < job.all_pixels; pixel += pixels) {
      t.row = pixel / t.out_width, t.column = pixel % t.out_width;
      t.pixels = std::min(pixels, job.all_pixels - pixel), t.channels = channels;
      most = std::max(most, kernels::cuda_conv_scratch_bytes(&t));
    }
    return static_cast<int>(most + (direct ? 0 : (pixels * channels * 4 + 63) / 64 * 64));
  }
  /// Of the first tile, than which none is larger: it decides of which kind all are.
  int64_t scratch_of_first(int64_t pixels, int64_t channels) const {
    ObkConv t = job.g;
    t.row = 0, t.column = 0, t.pixels = std::min(pixels, job.all_pixels), t.channels = channels;
    return kernels::cuda_conv_scratch_bytes(&t);
  }
  int tiles(int64_t pixels, int64_t channels) const {
    return static_cast<int>((job.all_pixels + pixels - 1) / pixels *
                            ((job.g.out_channels + channels - 1) / channels));
  }
  /// Weights for tiles of so many channels.
  Status pack(Device& g, int64_t channels) {
    const ObkConv& t = job.g;
    if (t.depthwise) return Nothing{};
    const int64_t taps = t.kernel_h * t.kernel_w;
    std::vector<char> packed(static_cast<size_t>(kernels::cuda_conv_packed_bytes(
        t.type, t.out_channels, t.in_channels, t.kernel_h, t.kernel_w)));
    kernels::cuda_conv_pack(t.type, t.out_channels, t.in_channels, t.kernel_h, t.kernel_w, channels,
                            plain.data(), t.in_channels * taps, taps, t.kernel_w, 1, packed.data());
    return check(g.d->CopyToDevice(packed_at, packed.data(), packed.size()), "weights");
  }
  Status run(Device& g, int64_t pixels, int64_t channels, bool direct, int phases, bool half) {
    job.tile_pixels = pixels, job.tile_channels = channels, job.direct = direct, job.half = half;
    job.y_bytes = (pixels * channels * 4 + 63) / 64 * 64;
    job.g.pack = 8;
    while ((job.g.out_channels | channels | x_pixel | x_row) % job.g.pack != 0)
      job.g.pack = static_cast<int16_t>(job.g.pack / 2);
    if (job.g.multiplier > 1) job.g.pack = 1;
    if (job.g.depthwise) job.g.depthwise = strips && scratch_of_first(pixels, channels) > 0 ? 2 : 1;
    const int own = shared(pixels, channels, direct), count = tiles(pixels, channels);
    // As a program has them: as many pages as there is room for, up to five.
    job.pages = dtype == DType::f32 || !ring ? 0 : std::clamp((225 * 1024 - own) / 24592, 0, 5);
    const int bytes = own + static_cast<int>((job.pages * 24592 + 127) / 128 * 128);
    TRY_STATUS(check(g.d->CopyToDevice(table, &job, sizeof job), "job"));
    TRY_STATUS(pack(g, channels));
    const Handle f = g.function(job.g.depthwise ? "depthwise" : "conv", bytes);
    const int grid = std::min(count, g.gpu.sms);
    return check(g.launch(f, grid, bytes, nullptr, table, counter, count, phases), "launch");
  }
};

DType type_named(const std::string& name) {
  return name == "f32" || name == "tf32" ? DType::f32 : name == "f16" ? DType::f16 : DType::bf16;
}
std::string define_of(DType dtype) { return fmt::format("OBK_TYPE={}", static_cast<int>(dtype)); }

TEST_P(Conv, EqualsTheDefinition) {
  const DType dtype = type_named(GetParam());
  const bool tf32 = std::string(GetParam()) == "tf32";
  const int type = tf32 ? int{kObkTf32} : static_cast<int>(dtype);
  OPEN(g, kText, fmt::format("OBK_TYPE={}", type), "OBK_WATCHDOG=4000000000LL");
  std::mt19937 random(3);
  for (size_t k = 0; k < std::size(kCases); ++k) {
    SCOPED_TRACE(fmt::format("case {}", k));
    const Case& c = kCases[k];
    Layer layer(g, c, dtype, random, tf32);
    const bool depthwise = c.multiplier > 0;
    const int64_t own = depthwise ? 1 : c.in, taps = c.kernel_h * c.kernel_w;
    struct Cut {
      int64_t pixels, channels;
      bool direct, ring = true;
    };
    const Cut cuts[] = {{64, 64, false},       {16, 16, false}, {c.out_width(), 32, false},
                        {33, 48, true},        {100, 80, true}, {40, 64, false},
                        {24, 32, false, false}};
    std::vector<float> first;
    for (const Cut& cut : cuts) {
      if (few() && (c.pixels() * c.out * c.in * taps > 1'500'000 || &cut - cuts > 3)) continue;
      SCOPED_TRACE(fmt::format("{} pixels x {} channels", cut.pixels, cut.channels));
      std::vector<float> y(static_cast<size_t>(layer.y_count), -7.0f);
      g.d->CopyToDevice(layer.y, y.data(), y.size() * 4);
      layer.ring = cut.ring, layer.strips = (&cut - cuts) % 3 != 1;
      layer.job.g.accumulate = !cut.direct;  // onto the 0.5 that the kernel put into the tile
      Status ran = layer.run(g, cut.pixels, cut.channels, cut.direct, 1, false);
      if (ran.ok()) ran = check(g.d->CtxSynchronize(), "run");
      ASSERT_TRUE(ran.ok()) << ran.error().text();
      g.d->CopyToHost(y.data(), layer.y, y.size() * 4);
      if (!cut.direct) {
        if (first.empty()) {
          first = y;
        } else {
          ASSERT_EQ(memcmp(first.data(), y.data(), y.size() * 4), 0) << "the cut changes the bits";
          continue;
        }
      }
      const ObkConv& t = layer.job.g;
      for (int64_t pixel = 0; pixel < c.pixels(); ++pixel)
        for (int64_t o = 0; o < c.out; ++o) {
          if (c.in * taps > 2000 && random() % 8) continue;
          const int64_t row = pixel / c.out_width(), column = pixel % c.out_width();
          double sum = cut.direct ? 0 : 0.5, size = 0.5;
          for (int64_t i = 0; i < c.kernel_h; ++i)
            for (int64_t j = 0; j < c.kernel_w; ++j) {
              const int64_t at_row = row * c.stride_h - c.top + i * c.dilation_h;
              const int64_t at_column = column * c.stride_w - c.left + j * c.dilation_w;
              if (at_row < 0 || at_row >= c.height || at_column < 0 || at_column >= c.width)
                continue;
              for (int64_t ch = 0; ch < own; ++ch) {
                const int64_t from = depthwise ? o / c.multiplier : ch;
                const double product =
                    layer.x[at_row * layer.x_row + at_column * layer.x_pixel + from] *
                    layer.w[((o * own + ch) * c.kernel_h + i) * c.kernel_w + j];
                sum += product, size += std::fabs(product);
              }
            }
          const double have = y[row * t.y_row + column * t.y_pixel + o];
          ASSERT_LE(std::fabs(have - sum), 2e-6 * size)
              << "row " << row << " column " << column << " channel " << o << ": " << have
              << " wanted " << sum;
        }
      // Nothing else was touched.
      for (int64_t row = 0; row < c.out_height(); ++row)
        for (int64_t i = 0; i < c.gap; ++i)
          ASSERT_EQ(y[(row + 1) * t.y_row - 1 - i], -7.0f) << "behind row " << row;
    }
    for (DevicePointer p : g.memory) g.d->MemFree(p);
    g.memory.clear();
  }
}
INSTANTIATE_TEST_SUITE_P(Types, Conv, testing::Values("f32", "tf32", "f16", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

// A tile whose shape stands in the text gives the bits of the tile of any shape, which the test
// above compares with the definition: called and inlined, sure of its operands or not.
struct FixedTile {
  Case c;
  int64_t pixels, channels;
};
const std::vector<FixedTile> kFixedTiles = {
    {{56, 56, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 48, 32},
    {{28, 28, 128, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 28, 64},
    {{14, 14, 256, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 28, 16},
    {{7, 7, 512, 48, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 14, 48},
    {{28, 28, 64, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1}, 64, 64},
    {{28, 28, 64, 128, 1, 1, 2, 2}, 14, 32},
    {{14, 14, 24, 64, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2}, 42, 16},
    {{12, 12, 16, 48, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 36, 48},
    {{13, 15, 40, 32, 3, 5, 1, 2, 2, 3, 2, 6, 2, 6}, 20, 32},
    {{8, 60, 208, 96, 1, 7, 1, 1, 1, 1, 0, 3, 0, 3}, 20, 48},
    {{32, 32, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3}, 96, 64},
    {{21, 24, 4, 32, 3, 3, 2, 2}, 33, 32},
    {{8, 10, 3, 80, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 40, 64},
    {{8, 9, 64, 80, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 36, 64},
};
/* In bodies that are part of their kernel: conv_wgmma.cuh, conv_wgmma_pipelined.cuh,
 * conv_first.cuh. */
const std::vector<FixedTile> kPipelinedTiles = {
    {{28, 28, 128, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 56, 128},
    {{14, 14, 256, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 49, 64},
    {{28, 28, 256, 128, 1, 1, 2, 2}, 56, 128},
    {{9, 31, 24, 96, 3, 5, 1, 2, 2, 1, 2, 2, 2, 2}, 64, 96},
    {{8, 60, 208, 160, 1, 7, 1, 1, 1, 1, 0, 3, 0, 3}, 60, 80},
    {{28, 28, 256, 64, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1}, 56, 64},
    {{14, 14, 1024, 128, 1, 1, 2, 2}, 49, 128},
    {{7, 7, 512, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 49, 32},
    {{32, 32, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3}, 96, 64},
    {{21, 24, 4, 32, 3, 3, 2, 2}, 33, 32},
    {{8, 10, 3, 80, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 40, 64},
};

std::string cases_of(const std::vector<FixedTile>& tiles) {
  std::string list = "OBK_CASES=";
  for (size_t k = 0; k < tiles.size(); ++k) {
    const auto& [c, pixels, channels] = tiles[k];
    list += fmt::format(
        " case {}: OBK_CONV_TILE_OF(kType, t, {}, {},{},{},{},{},{},{},{},{},{},{},{},"
        "{},{},{},{}); break;",
        k + 1, c.out % channels == 0, c.in, c.height, c.width, c.kernel_h, c.kernel_w, c.stride_h,
        c.stride_w, c.dilation_h, c.dilation_w, c.top, c.left, c.out_width(), c.width * c.in, c.in,
        pixels, channels);
  }
  return list;
}

void compare_with_any_shape(const std::vector<FixedTile>& all, DType dtype, const char* inlined,
                            const char* bodies) {
  OPEN(g, kText, define_of(dtype), cases_of(all), "OBK_RING=2", inlined, bodies,
       "OBK_WATCHDOG=4000000000LL");
  std::mt19937 random(7);
  int tiles = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    SCOPED_TRACE(fmt::format("case {}", k));
    const auto& [c, pixels, channels] = all[k];
    Layer layer(g, c, dtype, random);
    std::vector<float> first;
    if (few() && c.pixels() * c.out * c.in > 1'000'000) continue;
    for (const bool fixed : {false, true}) {
      std::vector<float> y(static_cast<size_t>(layer.y_count), -7.0f);
      g.d->CopyToDevice(layer.y, y.data(), y.size() * 4);
      layer.job.fixed = fixed ? static_cast<int64_t>(k) + 1 : 0;
      Status ran = layer.run(g, pixels, channels, false, 1, false);
      if (ran.ok()) ran = check(g.d->CtxSynchronize(), "run");
      ASSERT_TRUE(ran.ok()) << ran.error().text();
      g.d->CopyToHost(y.data(), layer.y, y.size() * 4);
      if (!fixed)
        first = y;
      else
        EXPECT_EQ(memcmp(first.data(), y.data(), y.size() * 4), 0);
    }
    tiles += layer.tiles(pixels, channels);
  }
  fmt::print("{{\"fixed_conv_tiles\": {}}}\n", tiles);
}
class ConvFixed : public testing::TestWithParam<int> {};
TEST_P(ConvFixed, HasTheBitsOfAnyShape) {
  compare_with_any_shape(kFixedTiles, static_cast<DType>(GetParam()), "OBK_INLINED=0", "OBK_ANY=1");
}
class ConvPipelined : public testing::TestWithParam<int> {};
TEST_P(ConvPipelined, HasTheBitsOfAnyShape) {
  compare_with_any_shape(kPipelinedTiles, static_cast<DType>(GetParam()), "OBK_INLINED=1",
                         "OBK_ANY=1");
}
INSTANTIATE_TEST_SUITE_P(Tiles, ConvPipelined, testing::Values(int{kObkF16}, int{kObkBf16}));
INSTANTIATE_TEST_SUITE_P(Tiles, ConvFixed, testing::Values(int{kObkF16}, int{kObkBf16}));

// Compiled wherever the device compiler is; no register may lie in memory.
TEST(ConvCompile, NoSpills) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  for (const char* architecture : {"sm_90a", "sm_80"}) {
    auto cubin = compile_cubin(kText, architecture, {define_of(DType::f16)});
    ASSERT_TRUE(cubin.ok()) << cubin.error().text();
    for (size_t at = 0; (at = cubin->log.find(" bytes spill stores", at)) != std::string::npos;
         ++at)
      EXPECT_EQ(cubin->log.substr(at - 2, 2), " 0") << cubin->log;
  }
}

// Tiles by wgmma: the assembler keeps its products apart from what waits for them. A test a tile:
// each is a compilation.
class ConvPipelinedCompile : public testing::TestWithParam<size_t> {};
TEST_P(ConvPipelinedCompile, KeepsProductsApart) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  if (GetParam() % 4 != 0 && !compiles_all() && !open_gpu(0).ok())
    GTEST_SKIP() << "no GPU is here; OBELISK_TEST_ALL compiles this tile, too";
  const FixedTile& tile = kPipelinedTiles[GetParam()];
  SCOPED_TRACE(fmt::format("{} pixels x {} channels of {}", tile.pixels, tile.channels, tile.c.in));
  auto cubin = compile_cubin(
      kText, "sm_90a", {define_of(DType::f16), cases_of({tile}), "OBK_RING=2", "OBK_INLINED=1"});
  ASSERT_TRUE(cubin.ok()) << cubin.error().text();
  EXPECT_EQ(cubin->log.find("(C75"), std::string::npos) << cubin->log;
}
INSTANTIATE_TEST_SUITE_P(Tiles, ConvPipelinedCompile,
                         testing::Range(size_t{0}, kPipelinedTiles.size()));

TEST(ConvBench, Layers) {
  if (!getenv("OBELISK_GPU_BENCH")) GTEST_SKIP() << "OBELISK_GPU_BENCH is not set";
  OPEN(g, kText, define_of(DType::f16));
  const struct {
    const char* name;
    Case c;
  } layers[] = {
      {"stem", {224, 224, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3}},
      {"56x56x64 3x3", {56, 56, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"28x28x128 3x3", {28, 28, 128, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"14x14x256 3x3", {14, 14, 256, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"7x7x512 3x3", {7, 7, 512, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"28x28x128 3x3/2", {56, 56, 128, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1}},
      {"56x56 64-256 1x1", {56, 56, 64, 256}},
      {"56x56 256-64 1x1", {56, 56, 256, 64}},
      {"28x28 512-128 1x1", {28, 28, 512, 128}},
      {"14x14 1024-256 1x1", {14, 14, 1024, 256}},
      {"14x14 256-1024 1x1", {14, 14, 256, 1024}},
      {"7x7 2048-512 1x1", {7, 7, 2048, 512}},
      {"7x7 512-2048 1x1", {7, 7, 512, 2048}},
      {"14x14 1024-2048 1x1/2", {14, 14, 1024, 2048, 1, 1, 2, 2}},
  };
  std::mt19937 random(5);
  Handle begin = nullptr, end = nullptr;
  g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  for (const auto& [name, c] : layers) {
    Layer layer(g, c, DType::f16, random);
    struct Timed {
      double predicted, us;
      int64_t pixels, channels;
      int tiles;
    };
    std::vector<Timed> all;
    std::vector<int64_t> heights = {16, 24, 32, 48, 64, 96, c.out_width(), 2 * c.out_width()};
    std::sort(heights.begin(), heights.end());
    heights.erase(std::unique(heights.begin(), heights.end()), heights.end());
    for (int64_t height : heights) {
      for (int64_t width : {16, 32, 48, 64}) {
        if (width > c.out || height > 96 || height > c.pixels() + 15) continue;
        ObkConv t = layer.job.g;
        const int64_t middle = c.pixels() / 2 / height * height;
        t.row = middle / t.out_width, t.column = middle % t.out_width;
        t.pixels = std::min(height, c.pixels() - middle), t.channels = width;
        const int tiles = layer.tiles(height, width), rounds = (tiles + g.gpu.sms - 1) / g.gpu.sms;
        const double predicted = kernels::cuda_conv_nanos(&t) * rounds / 1000;
        if (rounds > 3 || layer.shared(height, width, false) > 227 * 1024) continue;
        auto micros = [&](int phases) {
          float best = 1e9f;
          for (int k = 0; k < 3; ++k) {
            float millis = 0;
            g.d->EventRecord(begin, nullptr);
            Status ran = layer.run(g, height, width, false, phases, true);
            EXPECT_TRUE(ran.ok()) << ran.error().text();
            g.d->EventRecord(end, nullptr);
            g.d->EventSynchronize(end);
            g.d->EventElapsed(&millis, begin, end);
            best = std::min(best, millis * 1000);
          }
          return best;
        };
        all.push_back({predicted, (micros(90) - micros(10)) / 80.0, height, width, tiles});
      }
    }
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.predicted < b.predicted; });
    const double chosen = all[0].us;
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.us < b.us; });
    fmt::print("{{\"conv_phase\": \"{}\", \"chosen_us\": {:.2f}, \"tiles\": [", name, chosen);
    for (size_t k = 0; k < all.size(); ++k)
      fmt::print("{}[{}, {}, {}, {:.2f}, {:.2f}]", k ? ", " : "", all[k].pixels, all[k].channels,
                 all[k].tiles, all[k].us, all[k].predicted);
    fmt::print("]}}\n");
    for (DevicePointer p : g.memory) g.d->MemFree(p);
    g.memory.clear();
  }
}

}  // namespace
}  // namespace obelisk::runtime::cuda

// Packed weights of the GPU's convolution tile: every element where conv.cuh looks for it, zeros
// around; shared memory suffices for every tile of a cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/conv/conv.h"
#include "kernels/cuda/conv/conv_shape.h"

namespace obelisk::kernels {
namespace {

/// f16 weights of 20 channels, for tiles of any width; `k_of(at)`: the source's (channel, tap) of
/// packed k, or a negative channel for padding.
template <typename Source>
void check_atoms(int64_t in, int64_t kh, int64_t kw, int64_t k_padded, Source source) {
  const int64_t out = 20, k = in * kh * kw, chunks = k_padded / 64;
  std::vector<uint16_t> w(out * k);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint16_t>(i + 1);
  for (int64_t tile : {0, 16, 32}) {
    std::vector<uint16_t> packed(cuda_conv_packed_bytes(kObkF16, out, in, kh, kw) / 2, 0xffff);
    ASSERT_EQ(static_cast<int64_t>(packed.size()), 32 * k_padded);
    cuda_conv_pack(kObkF16, out, in, kh, kw, tile, w.data(), k, kh * kw, kw, 1, packed.data());
    const int64_t wide = tile ? tile : 32;
    for (int64_t o = 0; o < 32; ++o)
      for (int64_t at = 0; at < k_padded; ++at) {
        const int64_t place = (at % 64 / 8) ^ (o % 8), groups = wide / 8;
        const int64_t atom = o / wide * groups * chunks + at / 64 * groups + o % wide / 8;
        const auto [channel, tap] = source(at);
        const uint16_t have = packed[atom * 512 + o % 8 * 64 + place * 8 + at % 8];
        const bool there = o < out && channel >= 0;
        ASSERT_EQ(have, there ? w[o * k + channel * kh * kw + tap] : uint16_t{0})
            << "tile " << tile << " channel " << o << " k " << at;
      }
  }
}

TEST(CudaConv, PacksAtomsByRowsOfThinKernels) {  // 25 elements a row, padded to 32
  check_atoms(5, 3, 5, 128, [](int64_t at) {
    const int64_t row = at / 32, e = at % 32;
    return row < 3 && e < 25 ? std::pair(e % 5, row * 5 + e / 5)
                             : std::pair<int64_t, int64_t>(-1, 0);
  });
}

TEST(CudaConv, PacksAtomsByTaps) {  // 24 channels a tap, padded to 32
  check_atoms(24, 1, 3, 128, [](int64_t at) {
    return at / 32 < 3 && at % 32 < 24 ? std::pair(at % 32, at / 32)
                                       : std::pair<int64_t, int64_t>(-1, 0);
  });
}

TEST(CudaConv, NamesTheWeightsOfATile) {
  EXPECT_EQ(cuda_conv_weights(kObkBf16, 200, 64, 3, 3, 0, 176).bytes, 0);  // two passes
  const WeightRange range = cuda_conv_weights(kObkBf16, 100, 64, 3, 3, 32, 80);
  EXPECT_EQ(range.group, 9 * 1024);
  EXPECT_EQ(range.offset, 4 * range.group);
  EXPECT_EQ(range.bytes, 6 * range.group);
  EXPECT_EQ(cuda_conv_weights(kObkBf16, 100, 64, 3, 3, 80, 112).bytes, 4 * range.group);
  EXPECT_EQ(cuda_conv_weights(kObkF32, 100, 64, 3, 3, 0, 16).bytes, 0);
}

/// A tile whose shape is constant lies in the same patch wherever it begins: no tile of the image
/// reads beyond it.
TEST(CudaConv, APatchHoldsEveryTile) {
  for (int64_t pixels : {7, 14, 16, 24, 28, 33, 49, 56, 64})
    for (int64_t stride : {1, 2}) {
      const int64_t wide = 14, high = 14, width = (wide - 1) * stride + 1;
      const ConvFit f = conv_fit(32, width, width, 3, 3, stride, stride, 1, 1, 1, 1, wide,
                                 width * 32, 32, pixels, 32);
      ASSERT_TRUE(f.fits);
      for (int64_t first = 0; first < wide * high; first += pixels)
        for (int64_t q = first; q < std::min(first + pixels, wide * high); ++q) {
          const int64_t row = (q / wide - first / wide) * stride + 2;
          const int64_t column = (q % wide - (f.one_row ? first % wide : 0)) * stride + 2;
          EXPECT_LT(row, f.rows) << pixels << " from " << first;
          EXPECT_LT(column, f.columns) << pixels << " from " << first;
        }
    }
}

TEST(CudaConv, PacksFloats) {
  const int64_t out = 17, in = 3, k = 27;
  std::vector<float> w(out * k), packed(cuda_conv_packed_bytes(kObkF32, out, in, 3, 3) / 4, -1);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i + 1);
  ASSERT_EQ(packed.size(), 32u * 32);
  cuda_conv_pack(kObkF32, out, in, 3, 3, 0, w.data(), k, 9, 3, 1, packed.data());
  for (int64_t o = 0; o < 32; ++o)
    for (int64_t at = 0; at < 32; ++at)
      ASSERT_EQ(packed[(o / 16 * 32 + at) * 16 + o % 16],
                o < out && at < k ? w[o * k + at % in * 9 + at / in] : 0);
}

TEST(CudaConv, ScratchSufficesForTheLastChannels) {
  ObkConv g = {};
  g.type = kObkF16, g.height = g.width = 7, g.in_channels = 130, g.kernel_h = g.kernel_w = 3;
  g.stride_h = g.stride_w = g.dilation_h = g.dilation_w = 1, g.pad_top = g.pad_left = 1;
  g.out_width = 7, g.out_channels = 70, g.pixels = 49, g.channels = 64;
  const int64_t bytes = cuda_conv_scratch_bytes(&g);
  for (int32_t channels = 1; channels <= 64; ++channels)
    for (int32_t ring : {0, 1})
      EXPECT_LE(conv_plan(&g, 0, 49, channels, 1, ring).bytes, bytes) << channels;
}

/// Tiles of a kernel launched as a grid: a single tap of any channels where pixels begin at
/// multiples of 4 bytes, several taps where channels come in eights.
TEST(CudaConv, GridsTakePixelsThatBeginAtFourBytes) {
  const auto nanos = [](int64_t in, int64_t side, int64_t pixel) {
    ObkConv g = {};
    g.type = kObkF16, g.tasks_per_worker = 2, g.in_channels = in, g.kernel_h = g.kernel_w = side;
    g.stride_h = g.stride_w = g.dilation_h = g.dilation_w = 1, g.height = g.width = 20;
    g.rows = g.out_width = 20, g.x_pixel = pixel, g.x_row = 20 * pixel, g.x_image = 400 * pixel;
    g.pixels = 128, g.channels = 48, g.out_channels = 42, g.y_pixel = 56;
    const double each = cuda_conv_nanos(&g);
    if (each > 0) EXPECT_GE(cuda_conv_scratch_bytes(&g), (128 + 48) * 128);
    return each;
  };
  EXPECT_GT(nanos(42, 1, 42), nanos(42, 1, 44));  // shorter copies
  EXPECT_GT(nanos(42, 1, 44), nanos(42, 1, 48));
  EXPECT_GT(nanos(43, 1, 48), 0);
  EXPECT_EQ(nanos(43, 1, 43), 0);
  EXPECT_GT(nanos(40, 3, 42), 0);
  EXPECT_EQ(nanos(42, 3, 42), 0);
}

TEST(CudaConv, WiderPacksOfDepthwiseTilesCostLess) {
  ObkConv g = {};
  g.type = kObkF16, g.depthwise = 1, g.kernel_h = g.kernel_w = 5, g.pixels = 256, g.channels = 48;
  double before = 0;
  for (const int16_t pack : {8, 4, 2, 1}) {
    g.pack = pack;
    EXPECT_GT(cuda_conv_nanos(&g), before);
    before = cuda_conv_nanos(&g);
  }
}

}  // namespace
}  // namespace obelisk::kernels

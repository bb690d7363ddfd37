// Packed weights of the GPU's convolution tile: every element where conv.cuh looks for it, zeros
// around; shared memory suffices for every tile of a cut.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/conv.h"
#include "kernels/cuda/conv_shape.h"

namespace obelisk::kernels {
namespace {

TEST(CudaConv, PacksAtomsInTheOrderOfTaps) {
  const int64_t out = 20, in = 5, kh = 3, kw = 5, k = in * kh * kw;
  std::vector<uint16_t> w(out * k);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint16_t>(i + 1);
  std::vector<uint16_t> packed(cuda_conv_packed_bytes(kObkF16, out, in, kh, kw) / 2, 0xffff);
  ASSERT_EQ(packed.size(), 32u * 128);
  cuda_conv_pack(kObkF16, out, in, kh, kw, w.data(), k, kh * kw, kw, 1, packed.data());
  for (int64_t o = 0; o < 32; ++o)
    for (int64_t at = 0; at < 128; ++at) {
      const int64_t place = (at % 64 / 8) ^ (o % 8), channel = at % in, tap = at / in;
      const uint16_t have = packed[(o / 8 * 2 + at / 64) * 512 + o % 8 * 64 + place * 8 + at % 8];
      const uint16_t want = o < out && at < k ? w[o * k + channel * kh * kw + tap] : uint16_t{0};
      ASSERT_EQ(have, want) << "channel " << o << " k " << at;
    }
}

TEST(CudaConv, PacksFloats) {
  const int64_t out = 17, in = 3, k = 27;
  std::vector<float> w(out * k), packed(cuda_conv_packed_bytes(kObkF32, out, in, 3, 3) / 4, -1);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i + 1);
  ASSERT_EQ(packed.size(), 32u * 32);
  cuda_conv_pack(kObkF32, out, in, 3, 3, w.data(), k, 9, 3, 1, packed.data());
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
    EXPECT_LE(conv_plan(&g, 0, 49, channels, 1).bytes, bytes) << channels;
}

}  // namespace
}  // namespace obelisk::kernels

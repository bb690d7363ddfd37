#include <gtest/gtest.h>
#include <malloc.h>

#include <vector>

#include "kernels/kernels.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsBytes = false;  // the sanitizer's allocator keeps its own books
#else
constexpr bool kCountsBytes = true;
#endif

namespace obelisk::kernels {
namespace {

TEST(Table, HoldsEveryFunction) {
  const ObkKernels* table = obk_kernels();
  EXPECT_EQ(table->version, kObkVersion);
  EXPECT_EQ(table->gemm_tile, obk_gemm_tile);
  EXPECT_EQ(table->conv_tile, obk_conv_tile);
  EXPECT_EQ(table->attention_tile, obk_attention_tile);
}

TEST(Table, TilesAllocateNothingOnceTheirCodeIsMade) {
  if (!kCountsBytes) GTEST_SKIP() << "allocations are not counted under sanitizers";
  std::vector<float> a(64 * 64, 0.5f), packed(64 * 64 * 9), c(64 * 64), scratch(1 << 17);
  ObkGemm gemm{.a_type = kObkF32, .b_type = kObkF32, .packed = 0, .m = 60, .n = 50, .k = 40};
  gemm.a = a.data(), gemm.a_row = 64, gemm.a_col = 1, gemm.b = a.data(), gemm.b_row = 1;
  gemm.b_col = 64, gemm.c = c.data(), gemm.c_row = 64, gemm.scratch = scratch.data();
  ObkConv conv{.type = kObkF32, .height = 4, .width = 4, .in_channels = 20};
  conv.kernel_h = conv.kernel_w = 3, conv.stride_h = conv.stride_w = 1;
  conv.dilation_h = conv.dilation_w = 1, conv.pad_top = conv.pad_left = 1, conv.out_width = 4;
  conv.rows = 4, conv.out_channels = conv.channels = 40, conv.x = a.data(), conv.x_pixel = 20;
  conv.x_row = 80, conv.weights = packed.data(), conv.y = c.data(), conv.y_pixel = 40;
  conv.y_row = 160, conv.scratch = scratch.data();
  ObkAttention attention{.type = kObkF32, .queries = 33, .keys = 60, .size = 40, .value_size = 40};
  attention.q = attention.k = attention.v = a.data(), attention.y = c.data();
  attention.q_row = attention.k_row = attention.v_row = attention.y_row = 64;
  attention.scale = 1, attention.scratch = scratch.data();
  const auto run = [&] {
    gemm_tile(gemm);
    conv_tile(conv);
    attention_tile(attention);
  };
  run();
  const auto before = mallinfo2();
  for (int i = 0; i < 100; ++i) run();
  const auto after = mallinfo2();
  EXPECT_EQ(before.uordblks, after.uordblks);
  EXPECT_EQ(before.hblkhd, after.hblkhd);
}

}  // namespace
}  // namespace obelisk::kernels

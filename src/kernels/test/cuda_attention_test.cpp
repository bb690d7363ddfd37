#include <gtest/gtest.h>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_shape.h"
#include "kernels/tile_library.h"

namespace obelisk::kernels {
namespace {

TEST(CudaAttention, FitsSharedMemoryWhateverTheShape) {
  for (const int32_t type : {kObkF32, kObkF16, kObkBf16}) {
    ASSERT_TRUE(kCudaTiles.attention.takes(type));
    for (const int64_t size : {1, 16, 40, 64, 96, 128, 200, 256, 512}) {
      if (size > kCudaTiles.attention.widest(type)) continue;
      for (const int64_t queries : {1, 16, 17, 32, 64, 128, 1000}) {
        for (const int64_t keys : {1, 128, 129, 300, 5000}) {
          ObkAttention g = {};
          g.type = type, g.queries = queries, g.keys = keys, g.size = g.value_size = size;
          const int64_t bytes = kCudaTiles.attention.scratch_bytes(&g);
          EXPECT_LE(bytes, 220 * 1024) << type << " " << size << " " << queries << " " << keys;
          const AttentionSizes sizes = attention_sizes(type, keys, size, size);
          const AttentionCut cut = attention_cut(type, sizes, queries, keys);
          EXPECT_GE(cut.stages, 1);
          EXPECT_LE(cut.rows_log + cut.groups_log, 3);
          EXPECT_EQ(size % sizes.columns, 0);
        }
      }
    }
  }
}

TEST(CudaAttention, MoreWorkCostsMore) {
  const auto nanos = [](int64_t queries, int64_t keys, int64_t size) {
    return kCudaTiles.attention.nanos(kObkF16, queries, keys, size, size);
  };
  EXPECT_LT(nanos(16, 128, 64), nanos(64, 128, 64));
  EXPECT_LT(nanos(16, 128, 64), nanos(16, 1024, 64));
  EXPECT_LT(nanos(16, 1024, 64), nanos(16, 1024, 128));
  EXPECT_LT(nanos(128, 1024, 64), 9 * nanos(16, 1024, 64));
}

}  // namespace
}  // namespace obelisk::kernels

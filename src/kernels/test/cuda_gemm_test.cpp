// Packed weights of the GPU's product tile: every element where gemm.cuh looks for it, zeros
// around.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_shape.h"

namespace obelisk::kernels {
namespace {

TEST(CudaGemm, PacksAtomsOfEightColumnsTileByTile) {
  for (auto [n, k] :
       {std::pair<int64_t, int64_t>{40, 100}, {16, 64}, {1, 1}, {17, 129}, {150, 70}, {96, 192}})
    for (int64_t tile : {0, 16, 32, 64, 160, -1}) {  // -1: whole, of a matrix that lies turned
      const bool transposed = tile < 0;
      if (transposed) tile = 0;
      const int64_t row_step = transposed ? 1 : n + 3, column_step = transposed ? k : 1;
      std::vector<uint16_t> b(static_cast<size_t>((n + 3) * k));
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint16_t>(i + 1);
      const int64_t bytes = cuda_gemm_packed_bytes(kObkF16, n, k), chunks = (k + 63) / 64;
      const int64_t padded = (n + 15) / 16 * 16, wide = tile ? tile : padded;
      ASSERT_EQ(bytes, padded / 8 * chunks * 1024);
      std::vector<uint16_t> packed(static_cast<size_t>(bytes / 2), 0xffff);
      cuda_gemm_pack(kObkF16, n, k, tile, b.data(), row_step, column_step, packed.data());
      for (int64_t column = 0; column < padded; ++column)
        for (int64_t row = 0; row < chunks * 64; ++row) {
          const int64_t first = column / wide * wide, groups = std::min(wide, padded - first) / 8;
          const int64_t atom = first / 8 * chunks + row / 64 * groups + (column - first) / 8;
          const int64_t r = column % 8, place = (row % 64 / 8) ^ r;
          const uint16_t have =
              packed[static_cast<size_t>(atom * 512 + r * 64 + place * 8 + row % 8)];
          const bool inside = column < n && row < k;
          ASSERT_EQ(have,
                    inside ? b[static_cast<size_t>(row * row_step + column * column_step)] : 0)
              << "tile " << tile << " column " << column << " row " << row;
        }
    }
}

TEST(CudaGemm, PacksFloatsAndTakesOffZeroPoints) {
  const int64_t n = 20, k = 5;
  std::vector<float> b(n * k), packed(cuda_gemm_packed_bytes(kObkF32, n, k) / 4, -1);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i + 1);
  cuda_gemm_pack(kObkF32, n, k, 0, b.data(), 1, k, packed.data());
  ASSERT_EQ(packed.size(), 32u * 5);
  for (int64_t c = 0; c < 32; ++c)
    for (int64_t r = 0; r < k; ++r)
      EXPECT_EQ(packed[(c / 16 * k + r) * 16 + c % 16], c < n ? b[c * k + r] : 0);

  std::vector<uint8_t> q(n * k, 7), zero(n);
  for (int64_t c = 0; c < n; ++c) zero[c] = static_cast<uint8_t>(10 * c);
  std::vector<int16_t> whole(cuda_gemm_packed_bytes(kObkU8, n, k) / 2);
  cuda_gemm_pack_int8(kObkU8, n, k, q.data(), n, 1, zero.data(), 1, whole.data());
  for (int64_t c = 0; c < n; ++c) EXPECT_EQ(whole[(c / 16 * k + 2) * 16 + c % 16], 7 - 10 * c);
}

TEST(CudaGemm, NamesTheBytesOfATile) {
  const WeightRange range = cuda_gemm_weights(kObkBf16, 100, 130, 32, 80);
  EXPECT_EQ(range.group, 3 * 1024);
  EXPECT_EQ(range.offset, 4 * range.group);
  EXPECT_EQ(range.bytes, 6 * range.group);
  EXPECT_EQ(cuda_gemm_weights(kObkBf16, 100, 130, 80, 112).bytes, 4 * range.group);
  EXPECT_EQ(cuda_gemm_weights(kObkF32, 100, 130, 32, 80).bytes, 0);
}

TEST(CudaGemm, ScratchHoldsWhatTheTileTakes) {
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF16, g.packed = 1, g.m = 64, g.n = 48, g.k = 768;
  EXPECT_EQ(cuda_gemm_scratch_bytes(&g), 64 * 768 * 2 + 3072);
  g.k = 3072;  // no longer whole
  EXPECT_LE(cuda_gemm_scratch_bytes(&g), 98304 + 3072);
  g.m = 1, g.k = 64;
  EXPECT_GE(cuda_gemm_scratch_bytes(&g), (16 + 48) * 128);
}

TEST(CudaGemm, ScratchHoldsEachPassOfATile) {
  for (int64_t m : {8, 16, 30, 64})
    for (int64_t n = 8; n <= 400; n += 8)
      for (int64_t k : {64, 200, 768, 4096}) {
        ObkGemm g = {};
        g.a_type = g.b_type = kObkF16, g.packed = 1, g.m = m, g.n = n, g.k = k;
        const int64_t most = gemm_pass_columns(m), bytes = cuda_gemm_scratch_bytes(&g),
                      little = cuda_gemm_small_scratch_bytes(&g);
        EXPECT_LE(little, bytes);
        for (int64_t column = 0; column < n; column += most) {
          const int wide = static_cast<int>((std::min(most, n - column) + 15) / 16 * 16);
          const int rows = gemm_pass_rows(m) + wide, chunks = static_cast<int>((k + 63) / 64);
          const int blocks = gemm_stages(rows, chunks, 1).blocks;
          ASSERT_GE(bytes, 128 * rows * blocks * std::min(4, (chunks + blocks - 1) / blocks))
              << m << " x " << n << " x " << k << " from column " << column;
          const int fewer = gemm_stages(rows, chunks, 1, kGemmSmallSmemA).blocks;
          ASSERT_GE(little, 128 * rows * fewer * std::min(4, (chunks + fewer - 1) / fewer));
        }
      }
}

TEST(CudaGemm, LongSumsOfFewColumnsComeInParts) {
  EXPECT_TRUE(cuda_gemm_statistics(kObkF16, 33, 3072, 768, true));
  EXPECT_TRUE(cuda_gemm_statistics(kObkBf16, 128, 2304, 768, true));
  EXPECT_TRUE(cuda_gemm_statistics(kObkF16, 197, 3072, 768, true));
  EXPECT_TRUE(cuda_gemm_statistics(kObkF16, 511, 3072, 768, true));
  EXPECT_TRUE(cuda_gemm_statistics(kObkF16, 1024, 3072, 768, true));
  EXPECT_FALSE(cuda_gemm_statistics(kObkF16, 1, 3072, 768, true));
  EXPECT_FALSE(cuda_gemm_statistics(kObkF16, 128, 3072, 768, false));  // part of one kernel
  EXPECT_FALSE(cuda_gemm_statistics(kObkF16, 128, 3072, 760, true));   // no whole blocks
  EXPECT_FALSE(cuda_gemm_statistics(kObkF32, 128, 3072, 768, true));
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 3072, 0), 4);
  EXPECT_EQ(cuda_gemm_split_k(kObkBf16, 384, 1536, 0), 4);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 768, 0), 1);     // short
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 768, 128), 2);   // but not as a phase of one kernel
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 768, 32), 1);    // which has neither few rows
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 768, 1024), 1);  // nor many
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 384, 384, 128), 1);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 2304, 768, 128), 1);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 832, 128), 1);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 3072, 128), 4);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 3072, 3072, 0), 1);  // columns enough for all SMs
  EXPECT_EQ(cuda_gemm_split_k(kObkF32, 768, 3072, 0), 1);
  EXPECT_EQ(cuda_gemm_split_k(kObkF16, 768, 3000, 0), 1);  // parts would end inside an atom
}

/// f32 of few rows: scratch holds A of a round and its partial sums, also of a last tile of fewer
/// columns; a tile costs what its weights take, not 64 rows.
TEST(CudaGemm, FewRowsInFloatsReadWeightsOnce) {
  for (int64_t m : {1, 2, 3, 5, 8})
    for (int64_t n : {5, 16, 40, 64})
      for (int64_t k : {1, 42, 1000, 8192}) {
        ObkGemm g = {};
        g.a_type = g.b_type = kObkF32, g.packed = 1, g.m = m, g.n = n, g.k = k;
        for (int groups = 1; groups <= (n + 15) / 16; ++groups) {
          const FewRowsShape shape =
              few_rows_shape(few_rows_padded(m), groups, static_cast<int>((k + 31) / 32));
          EXPECT_LE(shape.bytes, cuda_gemm_scratch_bytes(&g));
          EXPECT_GE(shape.blocks * shape.rounds * 32, k);
          EXPECT_LE(shape.blocks * groups, 64);
        }
        EXPECT_LT(cuda_gemm_small_scratch_bytes(&g), 49152);
        EXPECT_LT(cuda_gemm_nanos(kObkF32, m, n, k, true), cuda_gemm_nanos(kObkF32, 9, n, k, true));
      }
}

// The last tile of a layer has fewer columns than the others, and may keep more blocks of k: 96 of
// 864 columns behind tiles of 128, k = 864.
TEST(CudaGemm, ScratchHoldsTilesOfFewerColumns) {
  for (int64_t m : {49, 56, 64})
    for (int64_t n = 16; n <= 160; n += 16)
      for (int64_t k = 64; k <= 2048; k += 32) {
        const int chunks = static_cast<int>((k + 63) / 64);
        ObkGemm g = {};
        g.a_type = g.b_type = kObkF16, g.packed = 1, g.m = m, g.n = n, g.k = k;
        for (int groups = 2; groups <= n / 8; groups += 2)
          EXPECT_LE(8192 * gemm_wgmma_stage(groups, chunks) * gemm_wgmma_places(groups, chunks),
                    cuda_gemm_scratch_bytes(&g))
              << m << " x " << n << " x " << k << ", " << groups << " groups";
      }
}

// Weights that no ring loads lie in the stages, whose length depends on the columns.
TEST(CudaGemm, ScratchHoldsStagesOfFewerColumns) {
  for (int64_t m : {16, 32, 64})
    for (int64_t n = 16; n <= 128; n += 16)
      for (int64_t k = 64; k <= 2048; k += 64) {
        ObkGemm g = {};
        g.a_type = g.b_type = kObkBf16, g.packed = 1, g.m = m, g.n = n, g.k = k;
        const int k_blocks = static_cast<int>(k / 64), padded = gemm_pass_rows(m);
        for (int64_t last = 16; last <= n; last += 16) {
          const auto rows =
              static_cast<int>(padded + std::min<int64_t>(last, gemm_pass_columns(m)));
          const int blocks = gemm_stages(rows, k_blocks, true).blocks;
          EXPECT_LE(128 * rows * blocks * std::min(4, (k_blocks + blocks - 1) / blocks),
                    cuda_gemm_scratch_bytes(&g))
              << m << " x " << n << " x " << k << ", the last tile of " << last;
        }
      }
}

// Of two activations a pass's sums leave by the place of its stages.
TEST(CudaGemm, ScratchOfTwoActivationsHoldsStagesAndSums) {
  for (int64_t m : {1, 16, 17, 40, 64, 128})
    for (int smem_a : {OBK_GEMM_SMEM_A, int{kGemmSmallSmemA}}) {
      ObkGemm g = {};
      g.a_type = g.b_type = kObkBf16, g.m = m, g.n = 200, g.k = 1000;
      const int padded = gemm_pass_rows(m), stages = activation_stages(smem_a);
      const int64_t bytes = smem_a == kGemmSmallSmemA ? cuda_gemm_small_scratch_bytes(&g)
                                                      : cuda_gemm_scratch_bytes(&g);
      EXPECT_GE(stages, 3);
      EXPECT_GE(bytes, stages * (padded + 64) * 128 + 1023);
      EXPECT_GE(bytes, 2 * padded * (64 + 4) * 4 + 1023);
      EXPECT_LE(bytes, smem_a + 1024);
    }
}

// f32 of any rows: each pass's stages, and the partial sums that are given from warp to warp.
TEST(CudaGemm, ScratchOfFloatsHoldsEveryPass) {
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF32, g.m = 100, g.n = 100, g.k = 1000;
  for (int rows : {16, 32, 64}) {
    EXPECT_GE(cuda_gemm_scratch_bytes(&g), fma_f32_bytes(rows, OBK_GEMM_SMEM_A) + 15);
    EXPECT_GE(cuda_gemm_small_scratch_bytes(&g), fma_f32_bytes(rows, kGemmSmallSmemA) + 15);
  }
  EXPECT_LT(cuda_gemm_small_scratch_bytes(&g), kGemmSmallSmemA);
}

TEST(CudaGemm, ATileOfOneRowCostsLessThanOfMany) {
  for (int32_t type : {kObkF32, kObkTf32, kObkBf16})
    EXPECT_LT(cuda_gemm_nanos(type, 1, 64, 512, false), cuda_gemm_nanos(type, 64, 64, 512, false));
}

// Threads of a pipelined GEMM of exact f32 have all of a tile, as many sums as fit in registers,
// and rows of A a multiple of eight apart, after which these are swizzled alike. Where warps share
// out k they have no more than kF32Sums.
TEST(PipelinedF32, ThreadsShareATile) {
  int shared = 0;
  for (int rows = 1; rows <= 128; ++rows)
    for (int columns = 2; columns <= kF32Columns; columns += 2)
      for (const bool turned : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {}{}", rows, columns, turned ? ", turned" : ""));
        const PipelinedF32Shape s =
            pipelined_gemm_f32_shape(rows, columns, pipelined_gemm_f32_lanes(columns, turned));
        ASSERT_TRUE(s.parts == 1 || s.parts == 2 || s.parts == 4);
        ASSERT_EQ(8 % (s.parts * s.beside), 0);
        ASSERT_GE(s.high * s.down, rows);
        ASSERT_LT((s.high - 1) * s.down, rows);
        ASSERT_GE(s.fours * s.beside * s.lanes * 4, columns);
        ASSERT_EQ(s.down % 8, 0);
        ASSERT_LE(s.high * s.fours * 4, s.parts == 1 ? 64 : int{kF32Sums});
        shared += s.parts > 1;
      }
  EXPECT_GT(shared, 0);
}

}  // namespace
}  // namespace obelisk::kernels

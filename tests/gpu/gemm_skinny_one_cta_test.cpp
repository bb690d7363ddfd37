// Product tiles of one to eight rows whose shape stands in their text, on a core (one_cta.h):
// against sums in double, tile after tile with weights loaded ahead or not, by rings of two to
// eight pages.
#include "one_cta.h"

#define OBK_RING 1
#define OBK_FEW_ROWS 1
#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm/gemm_skinny.cuh"
#pragma GCC diagnostic pop
#include "skinny.h"

namespace obelisk {
namespace {

const Skinny kSkinny[] = {
    FEW("token_16_columns", 1, 16, 8192, 24, false),
    FEW("token_32", 1, 32, 2048, 40, false),
    FEW("token_128", 1, 128, 2048, 136, true),
    FEW("token_48", 1, 48, 1024, 56, false),
    FEW("three_rows_uneven_k", 3, 32, 1000, 32, false),
    FEW("five_columns", 8, 5, 2048, 6, false),
    FEW("eight_rows_176", 8, 176, 256, 176, true),
    FEW("five_rows_96", 5, 96, 512, 104, false),
    FEW("two_rows_80", 2, 80, 640, 80, true),
    FEW("four_bytes", 4, 48, 1002, 48, false),
    FEW("eight_bytes", 7, 32, 1500, 32, true),
    FEW("one_row_uneven_k", 1, 32, 1999, 32, false),
};

class OneCtaSkinny : public testing::TestWithParam<Skinny> {};

TEST_P(OneCtaSkinny, SumsAsDefined) {
  const Skinny& c = GetParam();
  const auto aligned = [](const void* from, size_t bytes, std::vector<char>& hold) {
    hold.assign(bytes + 16, 0);
    char* at = hold.data() + (16 - reinterpret_cast<uint64_t>(hold.data()) % 16) % 16;
    memcpy(at, from, bytes);
    one_cta::readable.push_back({at, at + bytes});
    return at;
  };
  constexpr int kTiles = 5;
  const SkinnyNumbers numbers(c, kTiles);
  const int wide = c.wide(), n = numbers.n, own = c.rows * c.c_row * 4;
  std::vector<char> hold_a;
  ObkGemm g = numbers.gemm();
  g.a = aligned(numbers.a_bytes.data(), numbers.a.size() * 2, hold_a);
  for (int pages : {2, 3, 8}) {
    const int ring = pages * 24576;
    ObkGemm t = g;
    t.c = reinterpret_cast<float*>(one_cta::shared + ring + 256);
    t.scratch = one_cta::shared + ring + 256 + own;
    if (ring + 256 + own + kernels::cuda_gemm_scratch_bytes(&g) > one_cta::kSharedBytes) continue;
    std::vector<float> y(static_cast<size_t>(c.rows * n));
    one_cta::run(256, [&] {
      obk::ring_start(0, static_cast<uint32_t>(ring), pages, nullptr, 0);
      for (int tile = 0; tile < kTiles; ++tile) {
        ObkGemm mine = t;
        mine.column = tile * wide;
        if (tile % 2) {
          obk::ring_load_ahead(numbers.weights_of(tile));
          __syncthreads();
        }
        if (threadIdx.x == 0) {  // some tiles request pages of the next
          obk::ring_after() = numbers.weights_of(tile + 1);
          if (tile + 1 == kTiles || tile % 3 == 2) obk::ring_after().chunks = 0;
        }
        __syncthreads();
        c.tile(mine);
        for (int i = static_cast<int>(threadIdx.x); i < c.rows * c.columns; i += 256)
          y[static_cast<size_t>(i / c.columns * n + tile * wide + i % c.columns)] =
              static_cast<const float*>(t.c)[i / c.columns * c.c_row + i % c.columns];
        __syncthreads();
      }
      obk::ring_finish();
    });
    numbers.expect_sums(y, pages);
  }
}
INSTANTIATE_TEST_SUITE_P(Gemm, OneCtaSkinny, testing::ValuesIn(kSkinny),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk

// Product tiles of dataflow programs (dataflow.cuh), on a core (one_cta.h): rows that lie in shared
// memory, pages of 16 KB that a warp of its own requests in the order of the tiles, operands of a
// page read while those before are multiplied. Against sums in double.
#include "one_cta.h"

#define OBK_RING 1
#define OBK_DATAFLOW 1
#define OBK_CUDA_DIALECT_CUH
namespace one_cta {
inline void meet_those_that_compute() { named[0].meet(256); }
}  // namespace one_cta
#define __syncthreads one_cta::meet_those_that_compute
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm/gemm_skinny.cuh"
#pragma GCC diagnostic pop
#include "skinny.h"

namespace obelisk {
namespace {

constexpr int kPage = obk::WeightPages::kPageBytes;
static_assert(kPage == 16384);

const Skinny kSkinny[] = {
    FEW("token_16_columns", 1, 16, 8192, 24, false),
    FEW("token_32", 1, 32, 2048, 40, true),
    FEW("token_128", 1, 128, 1024, 136, false),
    FEW("one_page", 1, 48, 128, 56, false),
    FEW("three_rows_uneven_k", 3, 32, 1000, 32, false),
    FEW("eight_rows_112", 8, 112, 448, 112, true),
    FEW("a_last_page_of_one_chunk", 2, 16, 1088, 24, false),
    FEW("one_column", 1, 1, 2048, 40, false),
    FEW("uneven_columns", 1, 40, 1024, 48, true),
};

class OneCtaDataflow : public testing::TestWithParam<Skinny> {};

TEST_P(OneCtaDataflow, SumsAsDefined) {
  const Skinny& c = GetParam();
  ASSERT_TRUE(
      kernels::cuda_gemm_dataflow_bytes(static_cast<int32_t>(c.type()), c.rows, c.columns, c.k))
      << "the schedule would not let it flow";
  constexpr int kTiles = 3;
  const SkinnyNumbers numbers(c, kTiles);
  const int n = numbers.n;
  for (const int pages : {2, 5}) {
    const int ring = pages * kPage, in_smem = ring + 256,
              own = in_smem + (c.rows * c.k * 2 + 127) / 128 * 128,
              scratch = own + (c.rows * c.c_row * 4 + 127) / 128 * 128;
    ObkGemm g = numbers.gemm();
    g.a = one_cta::shared + in_smem, g.c = reinterpret_cast<float*>(one_cta::shared + own),
    g.scratch = one_cta::shared + scratch;
    ASSERT_LE(scratch + kernels::cuda_gemm_scratch_bytes(&g), one_cta::kSharedBytes);
    std::vector<float> y(static_cast<size_t>(c.rows * n));
    one_cta::run(288, [&] {
      if (threadIdx.x < 256) {
        obk::ring_start(0, static_cast<uint32_t>(ring), pages, nullptr, 0);
        if (threadIdx.x == 0)
          memcpy(one_cta::shared + in_smem, numbers.a_bytes.data(), numbers.a.size() * 2);
      }
      obk::named_barrier(15, 288);
      if (threadIdx.x >= 256) {  // as dataflow.cuh asks
        int slot = 0;
        uint32_t turn = 0;
        for (int tile = 0; tile < kTiles && threadIdx.x == 256; ++tile) {
          const obk::WeightPages range = numbers.weights_of(tile);
          for (int chunk = 0; chunk < range.chunks; chunk += range.chunks_a_page()) {
            while (!obk::mbarrier_try(static_cast<uint32_t>(ring + 8 * (pages + slot)), turn ^ 1)) {
            }
            obk::copy_page(static_cast<uint32_t>(slot * kPage), range, chunk,
                           std::min(chunk + range.chunks_a_page(), range.chunks),
                           static_cast<uint32_t>(ring + 8 * slot));
            if (++slot == pages) slot = 0, turn ^= 1;
          }
        }
        return;
      }
      for (int tile = 0; tile < kTiles; ++tile) {
        ObkGemm mine = g;
        mine.column = tile * c.wide();
        c.tile(mine);
        for (int i = static_cast<int>(threadIdx.x); i < c.rows * c.columns; i += 256)
          y[static_cast<size_t>(i / c.columns * n + tile * c.wide() + i % c.columns)] =
              static_cast<const float*>(g.c)[i / c.columns * c.c_row + i % c.columns];
        __syncthreads();
      }
    });
    numbers.expect_sums(y, pages);
  }
}
INSTANTIATE_TEST_SUITE_P(Gemm, OneCtaDataflow, testing::ValuesIn(kSkinny),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk

// Product tiles of programs that flow (flow.cuh), on a core (one_cta.h): rows that lie in shared memory, pages of 16 KB that a warp of its
// own asks for in the order of the tiles, operands of a page read while those before are multiplied. Against sums in double.
#include "one_cta.h"

#include <random>

#include "kernels/cuda/gemm.h"
#include "kernels/kernels.h"

#define OBK_RING 1
#define OBK_FLOW 1
#define OBK_CUDA_DIALECT_CUH
namespace one_cta {
inline void meet_those_that_compute() { named[0].meet(256); }
}  // namespace one_cta
#define __syncthreads one_cta::meet_those_that_compute
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm_few.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

constexpr int kPage = obk::WeightPages::kPageBytes;
static_assert(kPage == 16384);

struct Few {
  const char* name;
  int rows, columns, k, c_row;
  bool bfloat;
  void (*tile)(const ObkGemm&);
};
void PrintTo(const Few& c, std::ostream* out) { *out << c.name; }
template <bool kBfloat, typename S>
void tile_of(const ObkGemm& g) {
  static_assert(obk::few_fits<S>() && S::kGroups <= obk::WeightPages::kMostGroups);
  obk::few_tile<kBfloat, S>(g);
}
#define FEW(name, rows, columns, k, c_row, bfloat)                           \
  Few {                                                                      \
    name, rows, columns, k, c_row, bfloat,                                   \
        tile_of<bfloat, obk::FixedShape<rows, columns, k, k, c_row, false> > \
  }

const Few kFew[] = {
    FEW("token_16_columns", 1, 16, 8192, 24, false), FEW("token_32", 1, 32, 2048, 40, true),
    FEW("token_128", 1, 128, 1024, 136, false),      FEW("one_page", 1, 48, 128, 56, false),
    FEW("three_rows_uneven_k", 3, 32, 1000, 32, false), FEW("eight_rows_112", 8, 112, 448, 112, true),
    FEW("a_last_page_of_one_chunk", 2, 16, 1088, 24, false),
};

class OneCtaFlow : public testing::TestWithParam<Few> {};

TEST_P(OneCtaFlow, SumsAsDefined) {
  const Few& c = GetParam();
  const DType type = c.bfloat ? DType::bf16 : DType::f16;
  const auto number = static_cast<int32_t>(type);
  ASSERT_TRUE(kernels::cuda_gemm_flows(number, c.rows, c.columns, c.k)) << "the schedule would not let it flow";
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto make = [&](int64_t count, std::vector<uint64_t>& bytes, std::vector<double>& exact) {
    bytes.resize(static_cast<size_t>(count * 2 + 15) / 8), exact.resize(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) {
      set_double(bytes.data(), type, k, uniform(random));
      exact[static_cast<size_t>(k)] = get_double(bytes.data(), type, k);
    }
  };
  constexpr int kTiles = 3;
  const int wide = (c.columns + 15) / 16 * 16, n = kTiles * wide, chunks = (c.k + 63) / 64;
  std::vector<uint64_t> a_bytes, b_bytes;
  std::vector<double> a, b;
  make(int64_t{c.rows} * c.k, a_bytes, a), make(int64_t{n} * c.k, b_bytes, b);
  std::vector<char> packed(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(number, n, c.k)) + 16);
  char* const weights = packed.data() + (16 - reinterpret_cast<uint64_t>(packed.data()) % 16) % 16;
  kernels::cuda_gemm_pack(number, n, c.k, wide, b_bytes.data(), 1, c.k, weights);
  for (const int pages : {2, 5}) {
    one_cta::readable.clear();
    one_cta::readable.push_back({weights, weights + packed.size() - 16});
    const int ring = pages * kPage, near = ring + 256, own = near + (c.rows * c.k * 2 + 127) / 128 * 128, scratch = own + (c.rows * c.c_row * 4 + 127) / 128 * 128;
    ObkGemm g = {};
    g.a_type = g.b_type = number, g.packed = 1;
    g.m = c.rows, g.n = c.columns, g.k = c.k, g.n_packed = n;
    g.a_row = c.k, g.a_col = 1, g.c_row = c.c_row;
    g.a = one_cta::shared + near, g.b = weights;
    g.c = reinterpret_cast<float*>(one_cta::shared + own), g.scratch = one_cta::shared + scratch;
    if (scratch + kernels::cuda_gemm_scratch_bytes(&g) > one_cta::kSharedBytes) continue;
    std::vector<float> y(static_cast<size_t>(c.rows * n));
    one_cta::run(288, [&] {
      if (threadIdx.x < 256) {
        obk::ring_start(0, static_cast<uint32_t>(ring), pages, nullptr, 0);
        if (threadIdx.x == 0) memcpy(one_cta::shared + near, a_bytes.data(), a.size() * 2);
      }
      obk::named_barrier(15, 288);
      if (threadIdx.x >= 256) {  // as flow.cuh asks
        int slot = 0;
        uint32_t turn = 0;
        for (int tile = 0; tile < kTiles && threadIdx.x == 256; ++tile) {
          const obk::WeightPages range = obk::WeightPages::of_tile(weights + tile * wide / 8 * int64_t{chunks} * 1024, wide / 8, chunks);
          for (int chunk = 0; chunk < chunks; chunk += range.chunks_a_page()) {
            while (!obk::mbarrier_try(static_cast<uint32_t>(ring + 8 * (pages + slot)), turn ^ 1)) {
            }
            obk::copy_page(static_cast<uint32_t>(slot * kPage), range, chunk, std::min(chunk + range.chunks_a_page(), chunks), static_cast<uint32_t>(ring + 8 * slot));
            if (++slot == pages) slot = 0, turn ^= 1;
          }
        }
        return;
      }
      for (int tile = 0; tile < kTiles; ++tile) {
        ObkGemm mine = g;
        mine.column = tile * wide;
        c.tile(mine);
        for (int i = static_cast<int>(threadIdx.x); i < c.rows * c.columns; i += 256)
          y[static_cast<size_t>(i / c.columns * n + tile * wide + i % c.columns)] = static_cast<const float*>(g.c)[i / c.columns * c.c_row + i % c.columns];
        __syncthreads();
      }
    });
    for (int row = 0; row < c.rows; ++row)
      for (int x = 0; x < n; ++x) {
        if (x % wide >= c.columns) continue;
        double sum = 0, size = 0.01;
        for (int k = 0; k < c.k; ++k) {
          const double product = a[static_cast<size_t>(row * c.k + k)] * b[static_cast<size_t>(int64_t{x} * c.k + k)];
          sum += product, size += std::fabs(product);
        }
        ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(row * n + x)]), sum, 2e-6 * size) << "row " << row << " column " << x << " pages " << pages;
      }
  }
}
INSTANTIATE_TEST_SUITE_P(Gemm, OneCtaFlow, testing::ValuesIn(kFew), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk

// Product tiles of one to eight rows whose shape stands in their text, on a core (one_cta.h):
// against sums in double, tile after tile with weights asked for ahead or not, by rings of two to
// eight pages.
#include "one_cta.h"

#include <random>

#include "kernels/cuda/gemm.h"
#include "kernels/kernels.h"

#define OBK_RING 1
#define OBK_FEW_ROWS 1
#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm_few.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

struct Few {
  const char* name;
  int rows, columns, k, c_row;
  bool bfloat;
  void (*tile)(const ObkGemm&);
};
void PrintTo(const Few& c, std::ostream* out) { *out << c.name; }
template <bool kBfloat, typename S>
void tile_of(const ObkGemm& g) {
  static_assert(obk::few_fits<S>());
  obk::few_tile<kBfloat, S>(g);
}
#define FEW(name, rows, columns, k, c_row, bfloat)                           \
  Few {                                                                      \
    name, rows, columns, k, c_row, bfloat,                                   \
        tile_of<bfloat, obk::FixedShape<rows, columns, k, k, c_row, false> > \
  }

const Few kFew[] = {
    FEW("token_16_columns", 1, 16, 8192, 24, false), FEW("token_32", 1, 32, 2048, 40, false),
    FEW("token_128", 1, 128, 2048, 136, true),       FEW("token_48", 1, 48, 1024, 56, false),
    FEW("three_rows_uneven_k", 3, 32, 1000, 32, false), FEW("five_columns", 8, 5, 2048, 6, false),
    FEW("eight_rows_176", 8, 176, 256, 176, true),   FEW("five_rows_96", 5, 96, 512, 104, false),
    FEW("two_rows_80", 2, 80, 640, 80, true),
};

class OneCtaFew : public testing::TestWithParam<Few> {};

TEST_P(OneCtaFew, SumsAsDefined) {
  const Few& c = GetParam();
  const DType type = c.bfloat ? DType::bf16 : DType::f16;
  const auto number = static_cast<int32_t>(type);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto make = [&](int64_t count, std::vector<uint64_t>& bytes, std::vector<double>& exact) {
    bytes.resize(static_cast<size_t>(count * 2 + 15) / 8), exact.resize(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) {
      set_double(bytes.data(), type, k, uniform(random));
      exact[static_cast<size_t>(k)] = get_double(bytes.data(), type, k);
    }
  };
  const auto aligned = [](const void* from, size_t bytes, std::vector<char>& hold) {
    hold.assign(bytes + 16, 0);
    char* at = hold.data() + (16 - reinterpret_cast<uint64_t>(hold.data()) % 16) % 16;
    memcpy(at, from, bytes);
    one_cta::readable.push_back({at, at + bytes});
    return at;
  };
  constexpr int kTiles = 5;
  const int wide = (c.columns + 15) / 16 * 16, n = kTiles * wide;
  std::vector<uint64_t> a_bytes, b_bytes;
  std::vector<double> a, b;
  make(int64_t{c.rows} * c.k, a_bytes, a), make(int64_t{n} * c.k, b_bytes, b);
  std::vector<char> packed(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(number, n, c.k)));
  std::vector<char> hold_a, hold_b;
  kernels::cuda_gemm_pack(number, n, c.k, wide, b_bytes.data(), 1, c.k, packed.data());
  one_cta::readable.clear();
  ObkGemm g = {};
  g.a_type = g.b_type = number, g.packed = 1;
  g.m = c.rows, g.n = c.columns, g.k = c.k, g.n_packed = n;
  g.a_row = c.k, g.a_col = 1, g.c_row = c.c_row;
  g.a = aligned(a_bytes.data(), a.size() * 2, hold_a);
  g.b = aligned(packed.data(), packed.size(), hold_b);
  const int chunks = (c.k + 63) / 64, own = c.rows * c.c_row * 4;
  const auto weights_of = [&](int tile) {
    return obk::WeightPages::of_tile(
        static_cast<const char*>(g.b) + tile * wide / 8 * int64_t{chunks} * 1024, wide / 8, chunks);
  };
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
          obk::ring_ask_ahead(weights_of(tile));
          __syncthreads();
        }
        if (threadIdx.x == 0) {  // some tiles ask for pages of the next
          obk::ring_after() = weights_of(tile + 1);
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
    for (int row = 0; row < c.rows; ++row)
      for (int x = 0; x < n; ++x) {
        if (x % wide >= c.columns) continue;
        double sum = 0, size = 0.01;
        for (int k = 0; k < c.k; ++k) {
          const double product = a[static_cast<size_t>(row * c.k + k)] *
                                 b[static_cast<size_t>(int64_t{x} * c.k + k)];
          sum += product, size += std::fabs(product);
        }
        ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(row * n + x)]), sum, 2e-6 * size)
            << "row " << row << " column " << x << " pages " << pages;
      }
  }
}
INSTANTIATE_TEST_SUITE_P(Gemm, OneCtaFew, testing::ValuesIn(kFew),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk

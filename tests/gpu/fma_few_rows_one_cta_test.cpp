// f32 products of one to eight rows (fma_few_rows.cuh) and of nine to 64 (fma_rows.cuh) on a core
// (one_cta.h): the bits of the tile of any rows (fma.cuh), which is compared with sums in double:
// any k, columns that are no multiple of 16, rows of A at any distance, A and C in global or in
// shared memory, onto C or beside it.
#include "one_cta.h"

#include <random>

#define OBK_RING 0
#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
using std::isinf;
using std::max, std::min;
#include "kernels/common/abi.h"
#include "kernels/common/numbers.h"
#include "kernels/common/tiles.h"
typedef ObkWorker ObkLanes;
#include "kernels/cuda/gemm/gemm.cuh"
#pragma GCC diagnostic pop
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"

namespace obelisk {
namespace {

struct Case {
  int rows, columns, k, gap;  // gap: elements between rows of A
  bool accumulate, a_in_shared, c_in_shared;
};

template <int kRows>
void tile(const ObkGemm& g) {
  using S = obk::FixedShape<kRows, 64, 64, 64, 64>;  // columns and k are those of g
  if constexpr (kRows <= kFewRowsMost) {
    static_assert(obk::few_rows_fits<kObkF32, S>());
    obk::fma_few_rows_tile<S>(g);
  } else {
    static_assert(obk::fma_rows_fits<kObkF32, S>());
    obk::fma_rows_tile<S>(g);
  }
}

void check(const Case& c, std::mt19937& random) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, rows {} further{}{}{}", c.rows, c.columns, c.k, c.gap,
                           c.accumulate ? ", onto C" : "",
                           c.a_in_shared ? ", A in shared memory" : "",
                           c.c_in_shared ? ", C in shared memory" : ""));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const int pitch = c.k + c.gap, before = 16, all = before + (c.columns + 15) / 16 * 16;
  std::vector<float> a(static_cast<size_t>(c.rows * pitch)), b(static_cast<size_t>(all * c.k));
  for (std::vector<float>* each : {&a, &b})
    for (float& v : *each) v = uniform(random);
  const auto bytes = static_cast<size_t>(kernels::cuda_gemm_packed_bytes(kObkF32, all, c.k));
  std::vector<char> hold(bytes + 16), hold_a(a.size() * 4 + 16);
  const auto aligned = [](std::vector<char>& in) {
    return in.data() + (16 - reinterpret_cast<uint64_t>(in.data()) % 16) % 16;
  };
  kernels::cuda_gemm_pack(kObkF32, all, c.k, 0, b.data(), 1, c.k, aligned(hold));
  memcpy(aligned(hold_a), a.data(), a.size() * 4);
  one_cta::readable.clear();
  one_cta::readable.push_back({aligned(hold), aligned(hold) + bytes});
  one_cta::readable.push_back({aligned(hold_a), aligned(hold_a) + a.size() * 4});
  memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF32, g.packed = 1, g.accumulate = c.accumulate;
  g.m = c.rows, g.n = c.columns, g.k = c.k, g.a = aligned(hold_a), g.a_row = pitch, g.a_col = 1;
  g.b = aligned(hold), g.column = before, g.n_packed = all;
  const int c_row = c.columns + 3;
  const int64_t scratch = kernels::cuda_gemm_scratch_bytes(&g);
  const size_t sums = static_cast<size_t>(c.rows * c_row);
  char* const at = one_cta::shared + (scratch + 1023) / 1024 * 1024;
  ASSERT_LT(at + sums * 4 + (c.a_in_shared ? a.size() * 4 : 0),
            one_cta::shared + one_cta::kSharedBytes);
  g.scratch = one_cta::shared;
  std::vector<float> got[2];
  for (const bool any : {false, true}) {
    std::vector<float> outside(sums, 0.5f);
    float* const to = c.c_in_shared ? reinterpret_cast<float*>(at) : outside.data();
    std::fill(to, to + sums, 0.5f);
    g.c = to, g.c_row = c_row;
    if (c.a_in_shared && !any) {
      char* const own = at + (sums * 4 + 15) / 16 * 16;
      memcpy(own, a.data(), a.size() * 4);
      g.a = own;
    } else {
      g.a = aligned(hold_a);
    }
    one_cta::run(OBK_THREADS, [&] {
      if (any) return obk::gemm_tile<kObkF32>(nullptr, g);
      switch (c.rows > 8 ? (c.rows + 7) / 8 * 8 : c.rows) {
        case 16:
          return tile<16>(g);
        case 24:
          return tile<24>(g);
        case 32:
          return tile<32>(g);
        case 40:
          return tile<40>(g);
        case 48:
          return tile<48>(g);
        case 56:
          return tile<56>(g);
        case 64:
          return tile<64>(g);
        case 1:
          return tile<1>(g);
        case 2:
          return tile<2>(g);
        case 3:
          return tile<3>(g);
        case 4:
          return tile<4>(g);
        case 5:
          return tile<5>(g);
        case 6:
          return tile<6>(g);
        case 7:
          return tile<7>(g);
        default:
          return tile<8>(g);
      }
    });
    got[any].assign(to, to + sums);
  }
  for (int r = 0; r < c.rows; ++r)
    for (int n = 0; n < c_row; ++n) {
      const size_t i = static_cast<size_t>(r * c_row + n);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[0][i]), std::bit_cast<uint32_t>(got[1][i]))
          << "row " << r << ", column " << n << ": " << got[0][i] << " and " << got[1][i];
      double sum = n >= c.columns || c.accumulate ? 0.5 : 0, size = 0.5;
      for (int k = 0; n < c.columns && k < c.k; ++k) {
        const double product = static_cast<double>(a[static_cast<size_t>(r * pitch + k)]) *
                               static_cast<double>(b[static_cast<size_t>((before + n) * c.k + k)]);
        sum += product, size += std::fabs(product);
      }
      ASSERT_NEAR(static_cast<double>(got[0][i]), sum, 2e-6 * size)
          << "row " << r << ", column " << n;
    }
}

TEST(OneCtaFewRows, HaveTheBitsOfAnyRows) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const int k : {1, 10, 42, 84, 126, 400, 1000, 2048, 2100})
    for (int rows = 1; rows <= 8; ++rows) {
      const int columns = below(2) ? 16 * (1 + below(4)) : 1 + below(64);
      check({rows, columns, k, below(2) ? 0 : below(9), below(4) == 0, k < 500 && below(4) == 0,
             below(2) == 0},
            random);
    }
  check({8, 16, 4097, 0, false, false, true}, random);
  check({1, 64, 5000, 0, false, false, false}, random);
  check({5, 48, 3000, 1, true, false, true}, random);
}

TEST(OneCtaFewRows, SoHaveThoseOfTilesWhoseWarpsShareOutK) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const int k : {1, 15, 31, 32, 49, 84, 126, 255, 400})
    for (int eights = 2; eights <= 8; ++eights) {
      const int rows = eights * 8 - (below(2) ? 0 : below(8));
      const int columns = below(2) ? 16 * (1 + below(4)) : 1 + below(64);
      check({rows, columns, k, below(2) ? 0 : below(9), below(4) == 0,
             rows * k < 6000 && below(3) == 0, below(2) == 0},
            random);
    }
  check({49, 16, 2048, 0, false, false, true}, random);
  check({16, 16, 1000, 4, false, false, true}, random);
  check({9, 33, 700, 1, true, false, false}, random);
  check({64, 64, 514, 2, false, false, true}, random);
}

}  // namespace
}  // namespace obelisk

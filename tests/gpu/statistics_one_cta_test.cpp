// A norm's statistics of rows, on a core (one_cta.h): of the rows themselves and of what the body
// that stored them left, beside sums in double; rows whose mean is far from 0, fewer than a CTA has
// places for, some that do not begin at 16 bytes.
#include "one_cta.h"

#include <random>

#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/common/tiles.h"
#include "kernels/cuda/gemm/statistics.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

template <bool kBfloat>
void check(int64_t rows, int64_t k, int64_t pitch, double offset, bool centred, bool partials) {
  SCOPED_TRACE(fmt::format("{} x {} every {}, about {}, centred {}, partials {}", rows, k, pitch,
                           offset, centred, partials));
  const DType type = kBfloat ? DType::bf16 : DType::f16;
  std::mt19937 random(3);
  std::normal_distribution<double> normal(offset, 1);
  std::vector<uint64_t> x(static_cast<size_t>(rows * pitch * 2 + 16) / 8 + 1);
  for (int64_t n = 0; n < rows * pitch; ++n) set_double(x.data(), type, n, normal(random));
  const auto at = [&](int64_t r, int64_t c) { return get_double(x.data(), type, r * pitch + c); };
  std::vector<float> parts;
  for (int64_t r = 0; partials && r < rows; ++r)
    for (int64_t c = 0; c < k; c += 16) {
      double sum = 0, squares = 0;
      for (int64_t e = 0; e < 16; ++e) sum += at(r, c + e);
      for (int64_t e = 0; e < 16; ++e)
        squares += (at(r, c + e) - sum / 16) * (at(r, c + e) - sum / 16);
      parts.push_back(static_cast<float>(sum)), parts.push_back(static_cast<float>(squares));
    }
  std::vector<float> found(static_cast<size_t>(2 * rows + 2), -77);
  ObkGemm g = {};
  g.m = rows, g.k = k, g.a = x.data(), g.a_row = pitch, g.a_col = 1;
  g.statistics = found.data(), g.partials = partials ? parts.data() : nullptr, g.epsilon = 1e-5f,
  g.centred = centred;
  one_cta::run(256, [&] { obk::find_statistics<kBfloat>(g); });
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (int64_t c = 0; c < k && centred; ++c) mean += at(r, c) / static_cast<double>(k);
    for (int64_t c = 0; c < k; ++c)
      squares += (at(r, c) - mean) * (at(r, c) - mean) / static_cast<double>(k);
    ASSERT_NEAR(found[2 * r], mean, 1e-5 * (1 + std::fabs(offset))) << "row " << r;
    ASSERT_NEAR(found[2 * r + 1] * std::sqrt(squares + 1e-5), 1, 2e-5) << "row " << r;
  }
  EXPECT_EQ(found[2 * rows], -77);  // nothing behind the last
  EXPECT_EQ(found[2 * rows + 1], -77);
}

TEST(OneCtaStatistics, AreThoseOfTheRows) {
  for (const bool partials : {false, true})
    for (const double offset : {0.0, 30.0}) {
      check<false>(64, 768, 768, offset, true, partials);
      check<true>(5, 384, 384, offset, true, partials);
      check<false>(130, 64, 64, offset, true, partials);
      check<false>(1, 2048, 2048, offset, false, partials);
      check<true>(37, 1088, 1088, offset, false, partials);
    }
  check<false>(9, 192, 197, 3, true, false);
}

}  // namespace
}  // namespace obelisk

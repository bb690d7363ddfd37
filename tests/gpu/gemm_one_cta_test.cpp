// 16-bit products of any shape (gemm_mma.cuh, gemm_operands.cuh) on a core (one_cta.h), against
// sums in their order, bit by bit: rows, columns and k that are no multiples, A and B by copies of
// their threads or of the engine, packed weights by the ring's pages or with the stages, one or
// several passes, onto C or beside it; and where a GPU has little shared memory
// (one_cta_gemm_small). Run again with copies that come no sooner than they must: what a stage
// reads has been waited for, and met about.
#include "one_cta.h"

#define OBK_RING 4
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
#include "async_rows.h"

namespace obelisk {
namespace {

constexpr bool kSmall =
    OBK_GEMM_SMEM_A < 98304;  // as on a GPU with little shared memory and no ring
int64_t scratch_bytes(const ObkGemm& g) {
  return kSmall ? kernels::cuda_gemm_small_scratch_bytes(&g) : kernels::cuda_gemm_scratch_bytes(&g);
}

constexpr int kPagesBytes = OBK_RING * 24576,
              kScratch = (kPagesBytes + OBK_RING * 16 + 1023) / 1024 * 1024;

struct Case {
  int m, n, k;
  enum { kRing, kWithStages, kRows, kColumns, kOdd } b = kRing;
  int a_shift = 0;                                               // elements
  bool transposed = false, accumulate = false, in_smem = false;  // A; onto C; C in shared memory
};

void check(const Case& c, unsigned slow) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, B {}, A {} behind{}{}{}, slow {:#x}", c.m, c.n, c.k,
                           static_cast<int>(c.b), c.a_shift, c.transposed ? ", transposed" : "",
                           c.accumulate ? ", onto C" : "", c.in_smem ? ", C in shared memory" : "",
                           slow));
  std::mt19937 random(static_cast<unsigned>(c.m * 7 + c.n * 3 + c.k));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto half = [&] {
    return static_cast<uint16_t>(obk::narrow_two<false>(uniform(random), 0));
  };
  const int a_row = c.transposed ? 1 : (c.k + 7) / 8 * 8 + 8, a_col = c.transposed ? c.m : 1;
  const int b_row = c.b == Case::kColumns ? 1
                    : c.b == Case::kOdd   ? 2 * c.n + 1
                                          : (c.n + 7) / 8 * 8,
            b_col = c.b == Case::kColumns ? (c.k + 7) / 8 * 8
                    : c.b == Case::kOdd   ? 2
                                          : 1;
  std::vector<uint64_t> hold_a(static_cast<size_t>(c.m + 8) * (c.k + 24) / 4 + 8),
      hold_b(static_cast<size_t>(c.k + 8) * (2 * c.n + 16) / 4 + 8);
  const auto aligned = [](std::vector<uint64_t>& hold) {
    return reinterpret_cast<uint16_t*>(hold.data()) +
           reinterpret_cast<uint64_t>(hold.data()) % 16 / 2;
  };
  uint16_t *const a = aligned(hold_a) + c.a_shift, *const b = aligned(hold_b);
  for (std::vector<uint64_t>* hold : {&hold_a, &hold_b})
    for (size_t k = 0; k < hold->size() * 4; ++k)
      reinterpret_cast<uint16_t*>(hold->data())[k] = half();
  std::vector<double> exact_a, exact_b;
  for (int r = 0; r < c.m; ++r)
    for (int e = 0; e < c.k; ++e) exact_a.push_back(number(a[r * a_row + e * a_col]));
  for (int n = 0; n < c.n; ++n)
    for (int e = 0; e < c.k; ++e) exact_b.push_back(number(b[e * b_row + n * b_col]));
  const bool packed = c.b == Case::kRing || c.b == Case::kWithStages;
  const int64_t packed_bytes = kernels::cuda_gemm_packed_bytes(kObkF16, c.n, c.k);
  std::vector<uint64_t> hold_packed(static_cast<size_t>(packed_bytes) / 8 + 2);
  uint16_t* const weights = aligned(hold_packed);
  if (packed) kernels::cuda_gemm_pack(kObkF16, c.n, c.k, c.n, b, b_row, b_col, weights);
  one_cta::readable.clear();
  for (std::vector<uint64_t>* hold : {&hold_a, &hold_b, &hold_packed})
    one_cta::readable.push_back({reinterpret_cast<const char*>(hold->data()),
                                 reinterpret_cast<const char*>(hold->data() + hold->size())});
  const int pitch = c.n + 8;
  std::vector<float> out(static_cast<size_t>(c.m) * pitch, 3.0f);
  memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF16, g.packed = packed, g.accumulate = c.accumulate;
  g.m = c.m, g.n = c.n, g.k = c.k, g.a = a, g.a_row = a_row, g.a_col = a_col,
  g.b = packed ? weights : b, g.b_row = b_row, g.b_col = b_col;
  g.scratch = one_cta::shared + kScratch;
  const int64_t scratch = scratch_bytes(g);
  float* const in_smem =
      reinterpret_cast<float*>(one_cta::shared + kScratch + (scratch + 1023) / 1024 * 1024);
  g.c = c.in_smem ? in_smem : out.data(), g.c_row = pitch;
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 12 != 0; };
  one_cta::run(OBK_THREADS, [&] {
    obk::ring_start(0, kPagesBytes, c.b == Case::kRing ? OBK_RING : 0, nullptr, 0);
    if (c.in_smem)
      for (int k = threadIdx.x; k < c.m * pitch; k += OBK_THREADS) in_smem[k] = 3.0f;
    obk::gemm_tile<kObkF16>(nullptr, g);
    if (c.in_smem)
      for (int k = threadIdx.x; k < c.m * pitch; k += OBK_THREADS)
        out[static_cast<size_t>(k)] = in_smem[k];
    obk::ring_finish();
  });
  one_cta::rests = nullptr;
  const auto untouched = [](char byte) { return byte == '\xff'; };
  if (!c.in_smem) {
    EXPECT_TRUE(std::all_of(one_cta::shared + kScratch + scratch,
                            one_cta::shared + one_cta::kSharedBytes, untouched))
        << "more than its scratch is written";
  }
  for (int r = 0; r < c.m; ++r)
    for (int n = 0; n < pitch; ++n) {
      const float sum = n < c.n ? sum_of(&exact_a[static_cast<size_t>(r) * c.k],
                                         &exact_b[static_cast<size_t>(n) * c.k], c.k)
                                : 0;
      const float wanted = n >= c.n ? 3.0f : c.accumulate ? 3.0f + sum : sum;
      ASSERT_EQ(out[static_cast<size_t>(r) * pitch + n], wanted) << "row " << r << ", column " << n;
    }
}

TEST(OneCtaGemm, AnyShapeInItsOrder) {
  const Case cases[] = {
      {64, 48, 768},
      {64, 96, 1600, Case::kRing, 0, false, false, true},
      {24, 32, 1536},
      {5, 16, 7, Case::kRing, 0, false, true},
      {33, 40, 64, Case::kRows},
      {20, 72, 1033, Case::kColumns},
      {40, 21, 50, Case::kOdd, 1},
      {70, 150, 200, Case::kRing},
      {37, 64, 1130, Case::kColumns, 0, true},
      {16, 16, 2320, Case::kRows, 3, false, true},
      {64, 48, 1536, Case::kWithStages},
      {17, 80, 700, Case::kWithStages, 0, false, false, true},
      {3, 5, 1, Case::kRows},
      {70, 150, 200, Case::kRows},
      {64, 96, 1601, Case::kRows, 0, false, false, true},
      {30, 202, 520, Case::kRows, 0, false, true},
  };
  for (Case c : cases) {
    if (kSmall && c.b == Case::kRing) c.b = Case::kWithStages;
    for (const unsigned slow : {0u, 0x96u}) check(c, slow);
  }
}

/// Tiles of a known shape whose rows begin at multiples of 8 or 4 bytes, or whose k ends inside a
/// piece of 16: the same sums. What lies behind a row is no number.
template <int kRows, int kColumns, int kK, int kPitchA>
void check_fixed(int shift = 0) {
  using S = obk::FixedShape<kRows, kColumns, kK, kPitchA, kColumns + 8>;
  SCOPED_TRACE(fmt::format("{} x {} x {}, rows {} apart", kRows, kColumns, kK, kPitchA));
  static_assert(S::kFits);
  std::mt19937 random(kRows * 7 + kColumns * 3 + kK);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto half = [&] {
    return static_cast<uint16_t>(obk::narrow_two<false>(uniform(random), 0));
  };
  std::vector<uint64_t> hold_a(static_cast<size_t>(kRows) * kPitchA / 4 + 8),
      hold_b(static_cast<size_t>(kK) * kColumns / 4 + 8),
      hold_packed(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(kObkF16, kColumns, kK)) / 8 +
                  2);
  const auto aligned = [](std::vector<uint64_t>& hold) {
    return reinterpret_cast<uint16_t*>(hold.data()) +
           reinterpret_cast<uint64_t>(hold.data()) % 16 / 2;
  };
  uint16_t *const a = aligned(hold_a) + shift, *const b = aligned(hold_b),
                  *const weights = aligned(hold_packed);
  for (int r = 0; r < kRows; ++r)
    for (int e = 0; e < kPitchA && (r + 1 < kRows || e < kK); ++e)
      a[r * kPitchA + e] = e < kK ? half() : uint16_t{0x7e00};
  for (int e = 0; e < kK * kColumns; ++e) b[e] = half();
  kernels::cuda_gemm_pack(kObkF16, kColumns, kK, 0, b, 1, kK, weights);
  one_cta::readable.clear();
  one_cta::readable.push_back({reinterpret_cast<const char*>(a),
                               reinterpret_cast<const char*>(a + (kRows - 1) * kPitchA + kK)});
  one_cta::readable.push_back(
      {reinterpret_cast<const char*>(weights),
       reinterpret_cast<const char*>(hold_packed.data() + hold_packed.size())});
  memset(one_cta::shared, 0xff, sizeof one_cta::shared);
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF16, g.packed = 1, g.n = kColumns, g.k = kK, g.a = a;
  g.a_row = kPitchA, g.a_col = 1, g.b = weights, g.n_packed = kColumns;
  g.c = one_cta::shared + kScratch, g.c_row = kColumns + 8;
  g.scratch = one_cta::shared + kScratch + (kRows * (kColumns + 8) * 4 + 1023) / 1024 * 1024;
  for (const int m : {kRows, std::max(1, kRows - 3)}) {
    g.m = m;
    std::vector<float> out(static_cast<size_t>(kRows) * (kColumns + 8));
    one_cta::run(OBK_THREADS, [&] {
      obk::ring_start(0, kPagesBytes, OBK_RING, nullptr, 0);
      if constexpr (obk::skinny_fits<S>())
        obk::skinny_tile<false, S>(g);
      else
        obk::fixed_tile<false, S>(g);
      for (size_t k = threadIdx.x; k < out.size(); k += OBK_THREADS)
        out[k] = static_cast<const float*>(g.c)[k];
      obk::ring_finish();
    });
    std::vector<double> row(kK), column(kK);
    for (int r = 0; r < m; ++r)
      for (int n = 0; n < kColumns; ++n) {
        for (int e = 0; e < kK; ++e)
          row[static_cast<size_t>(e)] = number(a[r * kPitchA + e]),
          column[static_cast<size_t>(e)] = number(b[n * kK + e]);
        ASSERT_EQ(out[static_cast<size_t>(r * (kColumns + 8) + n)],
                  sum_of(row.data(), column.data(), kK))
            << "row " << r << " of " << m << ", column " << n;
      }
  }
}

TEST(OneCtaGemm, KnownShapesOfRowsThatAreNotOfSixteenBytes) {
  if (kSmall) GTEST_SKIP() << "there is no ring";
  check_fixed<64, 48, 84, 84>();
  check_fixed<64, 48, 42, 42>(2);
  check_fixed<32, 48, 42, 42>();
  check_fixed<50, 32, 126, 126>();
  check_fixed<16, 16, 10, 10>(4);
  check_fixed<24, 33, 45, 46>();
  check_fixed<40, 96, 1100, 1100>(4);
  check_fixed<64, 96, 2050, 2050>();
  check_fixed<1, 32, 42, 42>();
  check_fixed<1, 48, 2003, 2003>();
  check_fixed<8, 32, 1004, 1004>(4);
  check_fixed<5, 64, 2002, 2006>(6);
  check_fixed<7, 16, 200, 202>();
}

}  // namespace
}  // namespace obelisk

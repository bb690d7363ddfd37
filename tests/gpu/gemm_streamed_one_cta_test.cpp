// Products of one to eight rows whose B streams to registers (gemm_streamed.cuh) on a core
// (one_cta.h): the bits of the tile of any shape, which is compared with sums in double, in f32,
// tf32, f16 and bf16: any k, columns that no load divides, rows of A and B at any distance and
// place, C in global or in shared memory, onto C or beside it; nothing is read that is not there.
// In tf32 also by packed weights, up to 32 rows.
#include "one_cta.h"

#include <random>

#include "tf32.h"

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
  int32_t type;
  int rows, columns, k, made_for, ctas = 1;
  int a_gap = 0, b_gap = 0, a_shift = 0, b_shift = 0;  // elements between rows; before the first
  bool accumulate = false, c_in_shared = false;
  bool packed = false;  // then of `before` + columns + behind B's columns
  int before = 0, behind = 0;
};

bool is_half(int32_t type) { return type == kObkF16 || type == kObkBf16; }
/// What a tile of tf32 is made for.
int most_rows(const Case& c) { return c.rows > 24 ? 32 : c.rows > 8 ? 24 : 8; }

/// `count` random numbers at `shift` elements behind a multiple of 16 bytes, the only ones that may
/// be read.
struct Operand {
  std::vector<uint64_t> hold;
  char* at;
  int32_t type;
  Operand(int32_t type, int64_t count, int shift, std::mt19937& random)
      : hold(static_cast<size_t>(count) / 2 + 8), type(type) {
    const int64_t size = is_half(type) ? 2 : 4;
    at = reinterpret_cast<char*>(hold.data()) + reinterpret_cast<uint64_t>(hold.data()) % 16 +
         shift * size;
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < count; ++i) {
      const float v = uniform(random);
      const uint32_t bits = type == kObkF16    ? obk::narrow_two<false>(v, 0)
                            : type == kObkBf16 ? obk::narrow_two<true>(v, 0)
                                               : std::bit_cast<uint32_t>(v);
      memcpy(at + i * size, &bits, static_cast<size_t>(size));
    }
    one_cta::readable.push_back({at, at + count * size});
  }
  double operator[](int64_t i) const {
    if (is_half(type)) {
      uint16_t bits;
      memcpy(&bits, at + i * 2, 2);
      return type == kObkF16
                 ? static_cast<double>(std::bit_cast<_Float16>(bits))
                 : static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
    }
    float v;
    memcpy(&v, at + i * 4, 4);
    return type == kObkTf32 ? to_tf32(static_cast<double>(v)) : static_cast<double>(v);
  }
};

template <int kType, int kRows, int kColumns>
void tile(const ObkGemm& g, int ctas) {
  if constexpr (kType == kObkTf32)
    if (g.packed)
      return ctas == 1 ? obk::gemm_streamed_tile<kType, kRows, kColumns, 1, true>(g)
                       : obk::gemm_streamed_tile<kType, kRows, kColumns, 2, true>(g);
  if (ctas == 1)
    obk::gemm_streamed_tile<kType, kRows, kColumns, 1>(g);
  else
    obk::gemm_streamed_tile<kType, kRows, kColumns, 2>(g);
}
template <int kType, int kRows>
void tile_of(const ObkGemm& g, const Case& c) {
  switch (c.made_for) {
    case 16:
      return tile<kType, kRows, 16>(g, c.ctas);
    case 32:
      return tile<kType, kRows, 32>(g, c.ctas);
    case 64:
      return tile<kType, kRows, 64>(g, c.ctas);
    default:
      if constexpr (kType != kObkTf32) return tile<kType, kRows, 128>(g, c.ctas);
  }
  FAIL() << "no tile of " << c.made_for << " columns";
}
template <int kType>
void streamed(const ObkGemm& g, const Case& c) {
  if constexpr (kType == kObkF32) {
    if (c.rows == 1) return tile_of<kType, 1>(g, c);
    if (c.rows == 2) return tile_of<kType, 2>(g, c);
    if (c.rows <= 4) return tile_of<kType, 4>(g, c);
  }
  if constexpr (kType == kObkTf32) {
    if (most_rows(c) == 32) return tile_of<kType, 32>(g, c);
    if (most_rows(c) == 24) return tile_of<kType, 24>(g, c);
  }
  tile_of<kType, 8>(g, c);
}

void check(const Case& c, std::mt19937& random) {
  SCOPED_TRACE(fmt::format(
      "type {}, {} x {} x {}, made for {}, {} CTAs, gaps {} {}, {} {} behind{}{}{}", c.type, c.rows,
      c.columns, c.k, c.made_for, c.ctas, c.a_gap, c.b_gap, c.a_shift, c.b_shift,
      c.accumulate ? ", onto C" : "", c.c_in_shared ? ", C in shared memory" : "",
      c.packed ? fmt::format(", packed, {} columns before", c.before) : ""));
  one_cta::readable.clear();
  const int64_t all = c.before + c.columns + c.behind;  // of packed weights
  const int64_t a_row = c.k + c.a_gap, b_row = all + c.b_gap;
  const Operand a(c.type, (c.rows - 1) * a_row + c.k, c.a_shift, random),
      b(c.type, (c.k - 1) * b_row + all, c.b_shift, random);
  ObkGemm g = {};
  g.a_type = g.b_type = c.type, g.accumulate = c.accumulate;
  g.m = c.rows, g.n = c.columns, g.k = c.k, g.a = a.at, g.a_row = a_row, g.a_col = 1;
  g.b = b.at, g.b_row = b_row, g.b_col = 1, g.scratch = one_cta::shared;
  std::vector<uint64_t> packed;
  if (c.packed) {
    const int64_t bytes = kernels::cuda_gemm_packed_bytes(c.type, all, c.k);
    packed.resize(static_cast<size_t>(bytes) / 8 + 2);
    char* const at =
        reinterpret_cast<char*>(packed.data()) + reinterpret_cast<uint64_t>(packed.data()) % 16;
    kernels::cuda_gemm_pack(c.type, all, c.k, 64, b.at, b_row, 1, at);
    one_cta::readable.back() = {at, at + bytes};
    g.b = at, g.packed = 1, g.column = c.before, g.n_packed = all, g.b_row = g.b_col = 0;
  }
  const int c_row = c.columns + 3;
  const auto sums = static_cast<size_t>(c.rows * c_row);
  std::vector<float> got[2];
  for (const bool any : {false, true}) {
    const int64_t scratch =
        any ? kernels::cuda_gemm_scratch_bytes(&g)
            : kernels::cuda_streamed_gemm_scratch_bytes(
                  c.type, c.type == kObkTf32 ? most_rows(c) : c.rows, c.made_for, c.k);
    memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
    char* const at = one_cta::shared + (scratch + 1023) / 1024 * 1024;
    ASSERT_LT(at + sums * 4, one_cta::shared + one_cta::kSharedBytes);
    std::vector<float> outside(sums, 0.5f);
    float* const to = c.c_in_shared ? reinterpret_cast<float*>(at) : outside.data();
    std::fill(to, to + sums, 0.5f);
    g.c = to, g.c_row = c_row;
    one_cta::run(OBK_THREADS, [&] {
      switch (c.type) {
        case kObkF32:
          return any ? obk::gemm_tile<kObkF32>(nullptr, g) : streamed<kObkF32>(g, c);
        case kObkTf32:
          return any ? obk::gemm_tile<kObkTf32>(nullptr, g) : streamed<kObkTf32>(g, c);
        case kObkF16:
          return any ? obk::gemm_tile<kObkF16>(nullptr, g) : streamed<kObkF16>(g, c);
        default:
          return any ? obk::gemm_tile<kObkBf16>(nullptr, g) : streamed<kObkBf16>(g, c);
      }
    });
    got[any].assign(to, to + sums);
    if (!any && !c.c_in_shared) {
      const auto untouched = [](char byte) { return byte == '\xff'; };
      EXPECT_TRUE(std::all_of(one_cta::shared + scratch, one_cta::shared + one_cta::kSharedBytes,
                              untouched))
          << "more than its scratch is written";
    }
  }
  for (int r = 0; r < c.rows; ++r)
    for (int n = 0; n < c_row; ++n) {
      const auto i = static_cast<size_t>(r * c_row + n);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[0][i]), std::bit_cast<uint32_t>(got[1][i]))
          << "row " << r << ", column " << n << ": " << got[0][i] << " and " << got[1][i];
      double sum = n >= c.columns || c.accumulate ? 0.5 : 0, size = 0.5;
      for (int k = 0; n < c.columns && k < c.k; ++k) {
        const double product = a[r * a_row + k] * b[k * b_row + c.before + n];
        sum += product, size += std::fabs(product);
      }
      ASSERT_NEAR(static_cast<double>(got[0][i]), sum, 2e-6 * size)
          << "row " << r << ", column " << n;
    }
}

TEST(OneCtaStreamedTf32, PackedWeightsGiveTheBitsOfAnyRows) {
  std::mt19937 random(13);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const int k : {1, 16, 32, 40, 100, 512, 777})
    for (int rows = 1; rows <= 32; rows += 1 + below(4)) {
      const int made_for = 16 << below(3);
      Case c{kObkTf32, rows, made_for, k, made_for, 1 + below(2)};
      c.packed = true, c.before = 16 * below(4), c.behind = below(2) * 16;
      if (below(3) == 0) c.columns = 1 + below(made_for), c.behind = 0;
      c.a_gap = below(3) == 0 ? below(9) : 0;
      if (below(4) == 0) c.a_shift = below(8);
      c.accumulate = below(4) == 0, c.c_in_shared = below(3) == 0;
      check(c, random);
    }
  Case deep{kObkTf32, 26, 16, 4200, 16};
  deep.packed = true;
  check(deep, random);
}

class OneCtaStreamed : public testing::TestWithParam<int32_t> {};

TEST_P(OneCtaStreamed, HasTheBitsOfAnyRows) {
  const int32_t type = GetParam();
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const int k : {1, 7, 16, 32, 64, 100, 200, 512, 777, 1300})
    for (int rows = 1; rows <= 8; ++rows) {
      const int made_for = 16 << below(type == kObkTf32 ? 3 : 4);
      Case c{type, rows, made_for, k, made_for, 1 + below(2)};
      if (below(3) == 0) c.columns = 8 * (1 + below(made_for / 8));
      if (below(4) == 0) c.columns = 1 + below(made_for);
      c.b_gap = below(3) == 0 ? 8 * below(4) : below(4) == 0 ? below(9) : 0;
      c.a_gap = below(3) == 0 ? below(9) : 0;
      if (below(4) == 0) c.a_shift = below(8);
      if (below(4) == 0) c.b_shift = below(8);
      c.accumulate = below(4) == 0, c.c_in_shared = below(3) == 0;
      check(c, random);
    }
}

TEST_P(OneCtaStreamed, SoDoesALongK) {
  const int32_t type = GetParam();
  std::mt19937 random(12);
  check({type, 1, 16, 4200, 16}, random);
  check({type, 8, 64, 2100, 64, 2}, random);
  check({type, 2, 40, 3000, 64, 2, 1}, random);
  check({type, 5, 32, 2080, 32, 1, 8, 8, 0, 8}, random);
}

INSTANTIATE_TEST_SUITE_P(Types, OneCtaStreamed,
                         testing::Values(kObkF32, kObkTf32, kObkF16, kObkBf16));

}  // namespace
}  // namespace obelisk

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string_view>
#include <vector>

#include "base/base.h"
#include "kernels/cpu/loops.h"
#include "kernels/kernels.h"

namespace obelisk::kernels {
namespace {

struct Case {
  int64_t m, n, k;
};

// 1, primes, tails of every panel width, depths around the block of k, nothing at all.
const Case kCases[] = {{1, 1, 1},     {3, 5, 7},      {1, 400, 624},  {39, 400, 13}, {7, 64, 512},
                       {6, 65, 513},  {13, 17, 1030}, {64, 16, 33},   {5, 15, 31},   {2, 127, 64},
                       {66, 130, 70}, {8, 200, 1},    {0, 5, 3},      {5, 0, 3},     {5, 20, 0},
                       {31, 33, 600}, {12, 48, 96},   {9, 112, 1537}, {1, 16, 2000}, {17, 1, 40}};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(engine);
  return values;
}

std::vector<char> scratch_for(const ObkGemm& gemm) {
  return std::vector<char>(gemm_scratch_bytes(gemm) + 64);
}
void* aligned(std::vector<char>& bytes) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
}

/// The sum in the order that gemm.h promises.
float in_order(const float* a, int64_t a_col, const float* b, int64_t b_row, int64_t k,
               float start) {
  static const bool fused = std::string_view(loops().name) != "base";
  float sum = start;
  for (int64_t i = 0; i < k; ++i) {
    const float x = a[i * a_col], y = b[i * b_row];
    if (fused) {
      sum = std::fma(x, y, sum);
    } else {
      const float product = x * y;
      sum += product;
    }
  }
  return sum;
}

TEST(Gemm, PackedEqualsTheSumInOrderBitForBit) {
  for (const Case& s : kCases) {
    for (const bool accumulate : {false, true}) {
      const int64_t a_row = s.k + 3, c_row = s.n + 5;
      const auto a = random_floats(s.m * a_row + 1, 1), b = random_floats(s.k * s.n + 1, 2);
      auto c = random_floats(s.m * c_row + 1, 3);
      const auto before = c;
      std::vector<char> packed(gemm_packed_bytes(kObkF32, s.n, s.k) + 64);
      gemm_pack(kObkF32, s.n, s.k, b.data(), s.n, 1, aligned(packed));
      ObkGemm gemm{.a_type = kObkF32,
                   .b_type = kObkF32,
                   .packed = 1,
                   .accumulate = accumulate,
                   .m = s.m,
                   .n = s.n,
                   .k = s.k};
      gemm.a = a.data(), gemm.a_row = a_row, gemm.a_col = 1;
      gemm.b = aligned(packed), gemm.n_packed = s.n;
      gemm.c = c.data(), gemm.c_row = c_row;
      EXPECT_EQ(gemm_scratch_bytes(gemm), 0);
      gemm_tile(gemm);
      for (int64_t row = 0; row < s.m; ++row) {
        for (int64_t column = 0; column < c_row; ++column) {
          const int64_t at = row * c_row + column;
          float want = before[at];
          if (column < s.n)
            want = in_order(&a[row * a_row], 1, &b[column], s.n, s.k, accumulate ? before[at] : 0);
          ASSERT_EQ(c[at], want) << "m " << s.m << " n " << s.n << " k " << s.k << " at " << row
                                 << ", " << column;
        }
      }
    }
  }
}

TEST(Gemm, TilesOfOnePackingGiveTheBitsOfTheWhole) {
  const int64_t m = 70, n = 410, k = 100;
  const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
  std::vector<char> packed(gemm_packed_bytes(kObkF32, n, k) + 64);
  gemm_pack(kObkF32, n, k, b.data(), n, 1, aligned(packed));
  std::vector<float> whole(m * n), tiled(m * n, -7);
  ObkGemm gemm{.a_type = kObkF32, .b_type = kObkF32, .packed = 1, .m = m, .n = n, .k = k};
  gemm.a = a.data(), gemm.a_row = k, gemm.a_col = 1, gemm.b = aligned(packed), gemm.n_packed = n;
  gemm.c = whole.data(), gemm.c_row = n;
  gemm_tile(gemm);
  for (int64_t row = 0; row < m; row += 23) {
    for (int64_t column = 0; column < n; column += 128) {
      // A tile that ends inside a panel, and then the rest of it as columns of another: only whole
      // panels begin a tile.
      gemm.m = std::min<int64_t>(23, m - row), gemm.n = std::min<int64_t>(128, n - column);
      gemm.a = &a[row * k], gemm.column = column, gemm.c = &tiled[row * n + column];
      gemm_tile(gemm);
    }
  }
  EXPECT_EQ(whole, tiled);
  gemm.m = 1, gemm.n = 40, gemm.column = 64, gemm.a = a.data();  // part of a full panel
  std::vector<float> part(40);
  gemm.c = part.data(), gemm.c_row = 40;
  gemm_tile(gemm);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 64));
}

TEST(Gemm, PlainBWithAnyStrides) {
  for (const Case& s : kCases) {
    for (const bool transposed : {false, true}) {
      for (const int64_t a_col : {1, 3}) {
        const int64_t a_row = s.k * a_col + 2, b_row = transposed ? 1 : s.n + 4,
                      b_col = transposed ? s.k + 4 : 1;
        const auto a = random_floats(s.m * a_row + 1, 1),
                   b = random_floats((s.k + 5) * (s.n + 5), 2);
        std::vector<float> c(s.m * s.n + 1, -7);
        ObkGemm gemm{.a_type = kObkF32, .b_type = kObkF32, .m = s.m, .n = s.n, .k = s.k};
        gemm.a = a.data(), gemm.a_row = a_row, gemm.a_col = a_col;
        // The exact slice, so that a sanitizer sees a read past it.
        const std::vector<float> b_exact(
            b.begin(), b.begin() + (s.n && s.k ? (s.k - 1) * b_row + (s.n - 1) * b_col + 1 : 0));
        gemm.b = b_exact.data(), gemm.b_row = b_row, gemm.b_col = b_col;
        gemm.c = c.data(), gemm.c_row = s.n;
        auto scratch = scratch_for(gemm);
        gemm.scratch = aligned(scratch);
        gemm_tile(gemm);
        for (int64_t row = 0; row < s.m; ++row)
          for (int64_t column = 0; column < s.n; ++column)
            ASSERT_EQ(
                c[row * s.n + column],
                in_order(&a[row * a_row], a_col, b_exact.data() + column * b_col, b_row, s.k, 0))
                << "m " << s.m << " n " << s.n << " k " << s.k << " at " << row << ", " << column
                << " t " << transposed;
      }
    }
  }
}

TEST(Gemm, HalfTypesAreConvertedExactly) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Case& s : kCases) {
      const auto a_values = random_floats(s.m * s.k + 1, 1),
                 b_values = random_floats(s.k * s.n + 1, 2);
      std::vector<uint16_t> a(a_values.size()), b(b_values.size());
      std::vector<float> a_exact(a.size()), b_exact(b.size());
      for (size_t i = 0; i < a.size(); ++i)
        set_double(a.data(), dtype, i, a_values[i]), a_exact[i] = get_double(a.data(), dtype, i);
      for (size_t i = 0; i < b.size(); ++i)
        set_double(b.data(), dtype, i, b_values[i]), b_exact[i] = get_double(b.data(), dtype, i);
      std::vector<char> packed(gemm_packed_bytes(static_cast<int>(dtype), s.n, s.k) + 64);
      gemm_pack(static_cast<int>(dtype), s.n, s.k, b.data(), s.n, 1, aligned(packed));
      for (const int is_packed : {1, 0}) {
        std::vector<float> c(s.m * s.n + 1);
        ObkGemm gemm{.a_type = static_cast<int>(dtype),
                     .b_type = static_cast<int>(dtype),
                     .packed = is_packed};
        gemm.m = s.m, gemm.n = s.n, gemm.k = s.k;
        gemm.a = a.data(), gemm.a_row = s.k, gemm.a_col = 1;
        gemm.b = is_packed ? aligned(packed) : static_cast<void*>(b.data()), gemm.b_row = s.n,
        gemm.b_col = 1, gemm.n_packed = s.n;
        gemm.c = c.data(), gemm.c_row = s.n;
        auto scratch = scratch_for(gemm);
        gemm.scratch = aligned(scratch);
        gemm_tile(gemm);
        for (int64_t row = 0; row < s.m; ++row)
          for (int64_t column = 0; column < s.n; ++column)
            ASSERT_EQ(c[row * s.n + column], in_order(a_exact.data() + row * s.k, 1,
                                                      b_exact.data() + column, s.n, s.k, 0));
      }
    }
  }
}

/// The nearest number of 10 bits of mantissa, halves away from zero.
float to_tf32(float v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int shift = 10 - std::ilogb(v);
  return std::ldexp(std::round(std::ldexp(v, shift)), -shift);
}

// Weights are packed as f32, so that a compiled file has them exactly: tiles round both sides.
TEST(Gemm, Tf32RoundsBothOperandsToTenBits) {
  for (const Case& s : kCases) {
    const auto a = random_floats(s.m * s.k, 1), b = random_floats(s.k * s.n, 2);
    std::vector<float> a_exact, b_exact;
    for (float v : a) a_exact.push_back(to_tf32(v));
    for (float v : b) b_exact.push_back(to_tf32(v));
    std::vector<char> packed(gemm_packed_bytes(kObkF32, s.n, s.k) + 64);
    gemm_pack(kObkF32, s.n, s.k, b.data(), s.n, 1, aligned(packed));
    for (const int is_packed : {1, 0}) {
      std::vector<float> c(s.m * s.n + 1);
      ObkGemm gemm{.a_type = kObkTf32, .b_type = kObkTf32, .packed = is_packed};
      gemm.m = s.m, gemm.n = s.n, gemm.k = s.k;
      gemm.a = a.data(), gemm.a_row = s.k, gemm.a_col = 1;
      gemm.b = is_packed ? aligned(packed) : static_cast<const void*>(b.data());
      gemm.b_row = s.n, gemm.b_col = 1, gemm.n_packed = s.n, gemm.c = c.data(), gemm.c_row = s.n;
      auto scratch = scratch_for(gemm);
      gemm.scratch = aligned(scratch);
      gemm_tile(gemm);
      for (int64_t row = 0; row < s.m; ++row)
        for (int64_t column = 0; column < s.n; ++column)
          ASSERT_EQ(c[row * s.n + column],
                    in_order(a_exact.data() + row * s.k, 1, b_exact.data() + column, s.n, s.k, 0))
              << s.m << " " << s.n << " " << s.k << " packed " << is_packed;
    }
  }
}

TEST(Gemm, Tf32RoundsHalvesAwayFromZeroAndKeepsWhatIsNoNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> from = {
      1 + 0x1p-11f,   -1 - 0x1p-11f, 1 + 0x1.8p-11f,
      1 + 0x1.fp-12f, 0x1p-126f,     infinity,
      -infinity,      std::nanf(""), std::numeric_limits<float>::max()};
  const std::vector<float> wanted = {1 + 0x1p-10f, -1 - 0x1p-10f, 1 + 0x1p-10f,  1,       0x1p-126f,
                                     infinity,     -infinity,     std::nanf(""), infinity};
  std::vector<float> to(from.size());
  loops().to_f32(kObkTf32, static_cast<int64_t>(from.size()), from.data(), 1, to.data());
  for (size_t k = 0; k < from.size(); ++k)
    EXPECT_TRUE(to[k] == wanted[k] || (std::isnan(to[k]) && std::isnan(wanted[k]))) << from[k];
}

TEST(Gemm, EveryHalfValueConvertsAsBaseSays) {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    // A column of one-element products: 1 * x, in which every value passes through the conversion
    // of A.
    const float one = 1;
    std::vector<char> packed(gemm_packed_bytes(kObkF32, 1, 1) + 64);
    gemm_pack(kObkF32, 1, 1, &one, 1, 1, aligned(packed));
    std::vector<float> c(65536);
    ObkGemm gemm{.a_type = static_cast<int>(dtype),
                 .b_type = kObkF32,
                 .packed = 1,
                 .m = 65536,
                 .n = 1,
                 .k = 1};
    gemm.a = all.data(), gemm.a_row = 1, gemm.a_col = 1, gemm.b = aligned(packed),
    gemm.n_packed = 1, gemm.c = c.data();
    gemm.c_row = 1;
    auto scratch = scratch_for(gemm);
    gemm.scratch = aligned(scratch);
    gemm_tile(gemm);
    for (int i = 0; i < 65536; ++i) {
      const float want = static_cast<float>(get_double(all.data(), dtype, i));
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(c[i])) << i;
      else
        ASSERT_EQ(c[i], want) << i;
    }
  }
}

TEST(Gemm, Doubles) {
  for (const Case& s : kCases) {
    const auto a_values = random_floats(s.m * s.k + 1, 1),
               b_values = random_floats(s.k * s.n + 1, 2);
    const std::vector<double> a(a_values.begin(), a_values.end()),
        b(b_values.begin(), b_values.end() - 1);
    std::vector<char> packed(gemm_packed_bytes(kObkF64, s.n, s.k) + 64);
    gemm_pack(kObkF64, s.n, s.k, b.data(), s.n, 1, aligned(packed));
    for (const int is_packed : {1, 0}) {
      std::vector<double> c(s.m * s.n + 1);
      ObkGemm gemm{
          .a_type = kObkF64, .b_type = kObkF64, .packed = is_packed, .m = s.m, .n = s.n, .k = s.k};
      gemm.a = a.data(), gemm.a_row = s.k, gemm.a_col = 1;
      gemm.b = is_packed ? aligned(packed) : static_cast<const void*>(b.data());
      gemm.b_row = s.n, gemm.b_col = 1, gemm.n_packed = s.n, gemm.c = c.data(), gemm.c_row = s.n;
      auto scratch = scratch_for(gemm);
      gemm.scratch = aligned(scratch);
      gemm_tile(gemm);
      for (int64_t row = 0; row < s.m; ++row) {
        for (int64_t column = 0; column < s.n; ++column) {
          double want = 0, size = 0;
          for (int64_t i = 0; i < s.k; ++i) {
            want += a[row * s.k + i] * b[i * s.n + column];
            size += std::abs(a[row * s.k + i] * b[i * s.n + column]);
          }
          ASSERT_NEAR(c[row * s.n + column], want, 1e-15 * size * (1 + std::sqrt(s.k)));
        }
      }
    }
  }
}

template <typename A, typename B>
void check_integers(int32_t a_type, int32_t b_type) {
  std::mt19937 engine(7);
  for (const Case& s : kCases) {
    for (const bool zeros : {false, true}) {
      std::vector<A> a(s.m * s.k + 1), a_zero(s.m + 1);
      std::vector<B> b(s.k * s.n + 1), b_zero(s.n + 1);
      for (A& value : a) value = static_cast<A>(engine());
      for (B& value : b) value = static_cast<B>(engine());
      for (A& value : a_zero) value = static_cast<A>(engine());
      for (B& value : b_zero) value = static_cast<B>(engine());
      std::vector<char> packed(gemm_packed_bytes(b_type, s.n, s.k) + 64);
      gemm_pack(b_type, s.n, s.k, b.data(), s.n, 1, aligned(packed),
                zeros ? b_zero.data() : nullptr, 1);
      for (const int is_packed : {1, 0}) {
        std::vector<int32_t> c(s.m * s.n + 1);
        ObkGemm gemm{
            .a_type = a_type, .b_type = b_type, .packed = is_packed, .m = s.m, .n = s.n, .k = s.k};
        gemm.a = a.data(), gemm.a_row = s.k, gemm.a_col = 1;
        gemm.b = is_packed ? aligned(packed) : static_cast<void*>(b.data());
        gemm.b_row = s.n, gemm.b_col = 1, gemm.n_packed = s.n, gemm.c = c.data(), gemm.c_row = s.n;
        if (zeros)
          gemm.a_zero = a_zero.data(), gemm.a_zero_row = 1, gemm.b_zero = b_zero.data(),
          gemm.b_zero_col = 1;
        auto scratch = scratch_for(gemm);
        gemm.scratch = aligned(scratch);
        gemm_tile(gemm);
        for (int64_t row = 0; row < s.m; ++row) {
          for (int64_t column = 0; column < s.n; ++column) {
            int32_t want = 0;
            for (int64_t i = 0; i < s.k; ++i)
              want += (a[row * s.k + i] - (zeros ? a_zero[row] : 0)) *
                      (b[i * s.n + column] - (zeros ? b_zero[column] : 0));
            ASSERT_EQ(c[row * s.n + column], want)
                << "m " << s.m << " n " << s.n << " k " << s.k << " packed " << is_packed;
          }
        }
      }
    }
  }
}

TEST(Gemm, IntegersAreExact) {
  check_integers<uint8_t, int8_t>(kObkU8, kObkI8);
  check_integers<int8_t, int8_t>(kObkI8, kObkI8);
  check_integers<uint8_t, uint8_t>(kObkU8, kObkU8);
  check_integers<int8_t, uint8_t>(kObkI8, kObkU8);
}

}  // namespace
}  // namespace obelisk::kernels

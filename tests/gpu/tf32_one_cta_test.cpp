// Product and convolution tiles that round f32 operands to 10 bits of mantissa, on a core
// (one_cta.h), against sums in double of the rounded numbers; products of exact f32, which come to
// shared memory the same way, against sums in their order; the same bits whatever the cut.
#include "one_cta.h"

#include <random>

#include "kernels/cuda/conv/conv.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"
#include "tf32.h"

#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
using std::isinf;
#include "kernels/common/numbers.h"
#include "kernels/common/tiles.h"
#include "kernels/cuda/conv/conv.cuh"
#include "kernels/cuda/gemm/fma_f32.cuh"
#include "kernels/cuda/gemm/gemm_tf32.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

/// Floats at a multiple of 16 bytes (or `shift` floats behind one) that copies may read, and what a
/// tile takes them for.
struct Floats {
  std::vector<float> hold;
  std::vector<double> exact;
  float* at = nullptr;
  Floats(int64_t count, std::mt19937& random, int64_t shift = 0)
      : hold(static_cast<size_t>(count + shift) + 8), exact(static_cast<size_t>(count)) {
    at = aligned(hold) + shift;
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t k = 0; k < count; ++k) {
      at[k] = uniform(random);
      exact[static_cast<size_t>(k)] = to_tf32(static_cast<double>(at[k]));
    }
    readable(at, count);
  }
  static float* aligned(std::vector<float>& hold) {
    float* at = hold.data();
    while (reinterpret_cast<uint64_t>(at) % 16) ++at;
    return at;
  }
  static void readable(const float* at, int64_t count) {
    const char* from = reinterpret_cast<const char*>(at);
    one_cta::readable.push_back({from, from + count * 4});
  }
  double operator[](int64_t k) const { return exact[static_cast<size_t>(k)]; }
};

enum class B { kPacked, kRows, kColumns, kOdd };
struct Product {
  int64_t m, n, k;
  B b = B::kPacked;
  int64_t a_shift = 0;
  bool transposed = false, staged = false, accumulate = false;
};

const Product kProducts[] = {
    {64, 64, 96},
    {1, 48, 100},
    {5, 16, 7},
    {33, 40, 64, B::kRows},
    {20, 72, 33, B::kColumns},
    {40, 21, 50, B::kOdd, 1},
    {130, 150, 70, B::kPacked, 0, false, false, true},
    {37, 64, 130, B::kColumns, 0, true},
    {30, 32, 60, B::kPacked, 0, false, true},
    {16, 16, 320, B::kRows, 3, false, false, true},
    {3, 5, 1, B::kRows},
    {3, 8, 0, B::kRows},
};
/// Of B, from row to row and from column to column.
int64_t row_step(const Product& p) {
  return p.b == B::kColumns ? 1 : p.b == B::kOdd ? 2 * p.n + 1 : p.n;
}
int64_t column_step(const Product& p) { return p.b == B::kColumns ? p.k : p.b == B::kOdd ? 2 : 1; }

/// C by tiles of so many rows and columns.
std::vector<float> multiply(const Product& p, const Floats& a, const Floats& b, int64_t rows,
                            int64_t columns, int32_t type = kObkTf32) {
  ObkGemm g = {};
  g.a_type = g.b_type = type, g.accumulate = p.accumulate, g.k = p.k;
  g.a_row = p.transposed ? 1 : p.k, g.a_col = p.transposed ? p.m : 1;
  g.b_row = row_step(p), g.b_col = column_step(p);
  std::vector<float> hold;
  if (p.b == B::kPacked) {
    const int64_t count = kernels::cuda_gemm_packed_bytes(type, p.n, p.k) / 4;
    hold.resize(static_cast<size_t>(count) + 4);
    kernels::cuda_gemm_pack(type, p.n, p.k, columns, b.at, g.b_row, g.b_col, Floats::aligned(hold));
    Floats::readable(Floats::aligned(hold), count), g.packed = 1;
  }
  ObkGemm shape = g;
  shape.m = rows, shape.n = columns;
  const int64_t scratch = kernels::cuda_gemm_scratch_bytes(&shape);
  std::vector<float> c(static_cast<size_t>(p.m * p.n), 3.0f);
  for (int64_t row = 0; row < p.m; row += rows)
    for (int64_t column = 0; column < p.n; column += columns) {
      ObkGemm t = g;
      t.m = std::min(rows, p.m - row), t.n = std::min(columns, p.n - column);
      memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
      t.a = a.at + row * g.a_row;
      if (p.staged) {
        float* to = reinterpret_cast<float*>(one_cta::shared + (scratch + 15) / 16 * 16);
        for (int64_t r = 0; r < t.m; ++r)
          for (int64_t k = 0; k < p.k; ++k)
            to[r * (p.k + 4) + k] = a.at[(row + r) * g.a_row + k * g.a_col];
        t.a = to, t.a_row = p.k + 4, t.a_col = 1;
      }
      t.b = g.packed ? Floats::aligned(hold) : b.at + column * g.b_col;
      t.column = g.packed ? column : 0;
      t.c = c.data() + row * p.n + column, t.c_row = p.n, t.scratch = one_cta::shared;
      one_cta::run(256, [&] {
        if (threadIdx.x == 0) obk::tile_arguments() = t;
        __syncthreads();
        type == kObkTf32 ? obk::tf32_tile() : obk::fma_f32_tile();
      });
    }
  return c;
}

TEST(OneCtaTf32, ProductsEqualReferenceWhateverTheCut) {
  std::mt19937 random(7);
  for (const Product& p : kProducts) {
    SCOPED_TRACE(testing::Message() << p.m << " x " << p.n << " x " << p.k);
    one_cta::readable.clear();
    const Floats a(p.m * p.k, random, p.a_shift);
    const Floats b((p.k + 1) * (2 * p.n + 3), random);
    const std::vector<float> c = multiply(p, a, b, 64, 64);
    const int64_t row = row_step(p), column = column_step(p);
    for (int64_t y = 0; y < p.m; ++y)
      for (int64_t x = 0; x < p.n; ++x) {
        double sum = p.accumulate ? 3 : 0, size = 1e-3;
        for (int64_t k = 0; k < p.k; ++k) {
          const double v = a[p.transposed ? k * p.m + y : y * p.k + k] * b[k * row + x * column];
          sum += v, size += std::fabs(v);
        }
        ASSERT_NEAR(static_cast<double>(c[static_cast<size_t>(y * p.n + x)]), sum, 2e-6 * size)
            << y << ", " << x;
      }
    for (const auto& [rows, wide] : {std::pair{128, 160}, std::pair{16, 32}, std::pair{24, 48}})
      EXPECT_EQ(multiply(p, a, b, rows, wide), c) << "tiles of " << rows << " x " << wide;
  }
}

TEST(OneCtaF32, ProductsAreSumsInTheirOrder) {
  std::mt19937 random(8);
  for (const Product& p : kProducts) {
    SCOPED_TRACE(testing::Message() << p.m << " x " << p.n << " x " << p.k);
    one_cta::readable.clear();
    const Floats a(p.m * p.k, random, p.a_shift);
    const Floats b((p.k + 1) * (2 * p.n + 3), random);
    const std::vector<float> c = multiply(p, a, b, 64, 64, kObkF32);
    for (int64_t y = 0; y < p.m; ++y)
      for (int64_t x = 0; x < p.n; ++x) {
        float sum = 0;
        for (int64_t first = 0; first < p.k; first += 32) {
          float part = 0;
          for (int64_t k = first; k < std::min(first + 32, p.k); ++k)
            part = std::fma(a.at[p.transposed ? k * p.m + y : y * p.k + k],
                            b.at[k * row_step(p) + x * column_step(p)], part);
          sum += part;
        }
        ASSERT_EQ(c[static_cast<size_t>(y * p.n + x)], p.accumulate ? 3 + sum : sum)
            << y << ", " << x;
      }
    for (const auto& [rows, wide] : {std::pair{128, 160}, std::pair{16, 32}, std::pair{24, 48}})
      EXPECT_EQ(multiply(p, a, b, rows, wide, kObkF32), c) << "tiles of " << rows << " x " << wide;
  }
}

struct Conv {
  int64_t height, width, in, out, kernel_h = 1, kernel_w = 1, stride = 1, pad = 0, dilation = 1,
                                  gap = 0;
};

TEST(OneCtaTf32, ConvolutionsEqualTheDefinition) {
  const Conv convs[] = {
      {7, 9, 8, 32, 3, 3, 1, 1},
      {9, 11, 3, 64, 7, 7, 2, 3},
      {5, 10, 40, 96},
      {6, 6, 17, 20, 3, 2, 1, 1, 2},
      {8, 8, 16, 70, 1, 1, 2},
      {6, 7, 32, 16, 3, 3, 1, 1, 1, 4},
      {3, 9, 20, 33, 1, 5, 1, 2, 1, 3},
  };
  std::mt19937 random(9);
  for (const Conv& c : convs) {
    SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << " x " << c.in);
    one_cta::readable.clear();
    const int64_t taps = c.kernel_h * c.kernel_w, pixel = c.in + c.gap;
    const auto out_of = [&](int64_t n, int64_t kernel) {
      return (n + 2 * c.pad - c.dilation * (kernel - 1) - 1) / c.stride + 1;
    };
    const int64_t out_height = out_of(c.height, c.kernel_h), wide = out_of(c.width, c.kernel_w);
    const Floats x(c.height * c.width * pixel, random), w(c.out * c.in * taps, random);
    const int64_t count =
        kernels::cuda_conv_packed_bytes(kObkTf32, c.out, c.in, c.kernel_h, c.kernel_w) / 4;
    std::vector<float> hold(static_cast<size_t>(count) + 4);
    float* packed = Floats::aligned(hold);
    kernels::cuda_conv_pack(kObkTf32, c.out, c.in, c.kernel_h, c.kernel_w, 0, w.at, c.in * taps,
                            taps, c.kernel_w, 1, packed);
    Floats::readable(packed, count);
    ObkConv g = {};
    g.type = kObkTf32, g.height = c.height, g.width = c.width, g.in_channels = c.in;
    g.kernel_h = c.kernel_h, g.kernel_w = c.kernel_w, g.stride_h = g.stride_w = c.stride;
    g.dilation_h = g.dilation_w = c.dilation, g.pad_top = g.pad_left = c.pad, g.out_width = wide;
    g.out_channels = c.out, g.x = x.at, g.x_pixel = pixel, g.x_row = c.width * pixel;
    g.weights = packed, g.multiplier = 1;
    const auto run = [&](int64_t pixels, int64_t channels) {
      std::vector<float> y(static_cast<size_t>(out_height * wide * c.out), -7);
      for (int64_t first = 0; first < out_height * wide; first += pixels)
        for (int64_t channel = 0; channel < c.out; channel += channels) {
          ObkConv t = g;
          t.row = first / wide, t.column = first % wide;
          t.pixels = std::min(pixels, out_height * wide - first), t.rows = t.pixels / wide;
          t.channel = channel, t.channels = std::min(channels, c.out - channel);
          t.y = y.data() + first * c.out + channel, t.y_pixel = c.out, t.y_row = wide * c.out;
          CHECK(kernels::cuda_conv_scratch_bytes(&t) <= one_cta::kSharedBytes, "room");
          memset(one_cta::shared, 0xff, sizeof one_cta::shared);
          t.scratch = one_cta::shared;
          one_cta::run(256, [&] { obk::conv_tile<kObkTf32>(t); });
        }
      return y;
    };
    const std::vector<float> y = run(64, 64);
    for (int64_t row = 0; row < out_height; ++row)
      for (int64_t column = 0; column < wide; ++column)
        for (int64_t o = 0; o < c.out; ++o) {
          double sum = 0, size = 1e-3;
          for (int64_t i = 0; i < c.kernel_h; ++i)
            for (int64_t j = 0; j < c.kernel_w; ++j) {
              const int64_t r = row * c.stride - c.pad + i * c.dilation;
              const int64_t s = column * c.stride - c.pad + j * c.dilation;
              if (r < 0 || r >= c.height || s < 0 || s >= c.width) continue;
              for (int64_t ch = 0; ch < c.in; ++ch) {
                const double v = x[(r * c.width + s) * pixel + ch] *
                                 w[((o * c.in + ch) * c.kernel_h + i) * c.kernel_w + j];
                sum += v, size += std::fabs(v);
              }
            }
          const auto at = static_cast<size_t>((row * wide + column) * c.out + o);
          ASSERT_NEAR(static_cast<double>(y[at]), sum, 2e-6 * size)
              << row << ", " << column << ", " << o;
        }
    for (const auto& [pixels, channels] :
         {std::pair{16, 16}, std::pair{100, 80}, std::pair{40, 48}})
      EXPECT_EQ(run(pixels, channels), y) << pixels << " pixels x " << channels << " channels";
  }
}

}  // namespace
}  // namespace obelisk

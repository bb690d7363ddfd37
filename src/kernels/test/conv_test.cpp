#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/base.h"
#include "kernels/kernels.h"

namespace obelisk::kernels {
namespace {

struct Case {
  int64_t height, width, in, out, kernel_h, kernel_w;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t top = 0, left = 0, bottom = 0, right = 0;
  int64_t out_height() const {
    return (height + top + bottom - dilation_h * (kernel_h - 1) - 1) / stride_h + 1;
  }
  int64_t out_width() const {
    return (width + left + right - dilation_w * (kernel_w - 1) - 1) / stride_w + 1;
  }
};

const Case kCases[] = {
    {5, 5, 3, 8, 3, 3},
    {9, 11, 3, 64, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3},  // an image's first layer
    {32, 33, 1, 20, 5, 3, 1, 2, 1, 1, 2, 1, 2, 1},
    {8, 8, 20, 65, 1, 1},  // one product for the tile
    {9, 7, 20, 65, 1, 1, 2, 2},
    {7, 7, 130, 70, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},  // blocks of input channels
    {14, 14, 16, 48, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2},
    {12, 13, 17, 19, 3, 2, 2, 3, 2, 3, 1, 2, 0, 1},   // nothing is even
    {3, 3, 4, 5, 3, 3, 1, 1, 1, 1, 5, 4, 3, 2},       // rows wholly outside
    {1, 100, 6, 33, 1, 9, 1, 1, 1, 4, 0, 16, 0, 16},  // a row, dilated
    {10, 10, 2, 16, 9, 9, 1, 1, 1, 1, 4, 4, 4, 4},    // more products than a batch holds
    {4, 4, 40, 1, 10, 10, 1, 1, 1, 1, 5, 5, 5, 5},
    {2, 2, 1100, 17, 1, 1},
    {6, 6, 5, 130, 2, 2, 3, 3, 1, 1, 0, 0, 0, 0},
};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(engine);
  return values;
}

ObkConv describe(const Case& s) {
  ObkConv t{};
  t.type = kObkF32;
  t.height = s.height, t.width = s.width, t.in_channels = s.in;
  t.kernel_h = s.kernel_h, t.kernel_w = s.kernel_w, t.stride_h = s.stride_h,
  t.stride_w = s.stride_w;
  t.dilation_h = s.dilation_h, t.dilation_w = s.dilation_w, t.pad_top = s.top, t.pad_left = s.left;
  t.out_width = s.out_width(), t.out_channels = s.out, t.rows = s.out_height(), t.channels = s.out;
  t.multiplier = 1;
  return t;
}

void run(ObkConv t) {
  std::vector<char> scratch(conv_scratch_bytes(t) + 64);
  t.scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  conv_tile(t);
}

struct Aligned {
  explicit Aligned(int64_t bytes) : bytes_(bytes + 64) {}
  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes_.data()) + 63) / 64 * 64);
  }
  std::vector<char> bytes_;
};

/// One output element by the definition, w[out][in][kh][kw] (depthwise: [out][kh][kw]).
double exact(const Case& s, const std::vector<double>& x, int64_t x_row, int64_t x_pixel,
             const std::vector<double>& w, int64_t row, int64_t column, int64_t channel,
             bool depthwise, int64_t multiplier = 1) {
  double sum = 0;
  const int64_t in = depthwise ? 1 : s.in;
  for (int64_t c = 0; c < in; ++c)
    for (int64_t i = 0; i < s.kernel_h; ++i)
      for (int64_t j = 0; j < s.kernel_w; ++j) {
        const int64_t at_row = row * s.stride_h - s.top + i * s.dilation_h;
        const int64_t at_column = column * s.stride_w - s.left + j * s.dilation_w;
        if (at_row < 0 || at_row >= s.height || at_column < 0 || at_column >= s.width) continue;
        const int64_t from = depthwise ? channel / multiplier : c;
        sum += x[at_row * x_row + at_column * x_pixel + from] *
               w[((channel * in + c) * s.kernel_h + i) * s.kernel_w + j];
      }
  return sum;
}

void check_dense(const Case& s, DType dtype, int64_t gap, bool accumulate, bool tf32 = false) {
  const int64_t x_pixel = s.in + gap, x_row = s.width * x_pixel + gap;
  const auto x = random_floats((s.height - 1) * x_row + (s.width - 1) * x_pixel + s.in, 1);
  const auto w = random_floats(s.out * s.in * s.kernel_h * s.kernel_w, 2);
  std::vector<char> x_bytes(byte_size(dtype, x.size())), w_bytes(byte_size(dtype, w.size()));
  std::vector<double> x_exact, w_exact;
  for (size_t i = 0; i < x.size(); ++i)
    set_double(x_bytes.data(), dtype, i, x[i]),
        x_exact.push_back(get_double(x_bytes.data(), dtype, i));
  for (size_t i = 0; i < w.size(); ++i)
    set_double(w_bytes.data(), dtype, i, w[i]),
        w_exact.push_back(get_double(w_bytes.data(), dtype, i));
  for (std::vector<double>* all : {&x_exact, &w_exact})
    for (double& v : *all) {
      const int shift = 10 - (v == 0 ? 0 : std::ilogb(v));  // to 10 bits of mantissa
      if (tf32) v = std::ldexp(std::round(std::ldexp(v, shift)), -shift);
    }
  Aligned packed(conv_packed_bytes(s.out, s.in, s.kernel_h, s.kernel_w));
  const int64_t kernel = s.kernel_h * s.kernel_w;
  conv_pack(static_cast<int>(dtype), s.out, s.in, s.kernel_h, s.kernel_w, w_bytes.data(),
            s.in * kernel, kernel, s.kernel_w, 1, packed.data());
  ObkConv t = describe(s);
  t.type = tf32 ? int{kObkTf32} : static_cast<int>(dtype), t.accumulate = accumulate;
  t.x = x_bytes.data(), t.x_row = x_row, t.x_pixel = x_pixel, t.weights = packed.data();
  t.y_pixel = s.out + gap, t.y_row = t.out_width * t.y_pixel + 2 * gap;
  std::vector<float> whole(t.rows * t.y_row, 0.5f);
  t.y = whole.data();
  run(t);
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t column = 0; column < t.out_width; ++column) {
      for (int64_t channel = 0; channel < t.y_pixel; ++channel) {
        const float got = whole[row * t.y_row + column * t.y_pixel + channel];
        const double want =
            channel < s.out ? (accumulate ? 0.5 : 0) + exact(s, x_exact, x_row, x_pixel, w_exact,
                                                             row, column, channel, false)
                            : 0.5;
        ASSERT_NEAR(got, want, 2e-6 * std::sqrt(s.in * kernel))
            << row << ", " << column << ", " << channel << " in " << s.in << " out " << s.out
            << " kernel " << s.kernel_h;
      }
    }
  }
  // The same in tiles: the same bits.
  std::vector<float> tiled(whole.size(), 0.5f);
  const ObkConv all = t;
  for (int64_t row = 0; row < all.rows; row += 2) {
    for (int64_t channel = 0; channel < s.out; channel += kObkPanel) {
      t.row = row, t.rows = std::min<int64_t>(2, all.rows - row);
      t.channel = channel, t.channels = std::min<int64_t>(kObkPanel, s.out - channel);
      t.y = tiled.data() + row * t.y_row + channel;
      run(t);
    }
  }
  EXPECT_EQ(whole, tiled);
}

TEST(Conv, DenseInputsOfEveryShape) {
  for (const Case& s : kCases) check_dense(s, DType::f32, 0, false);
}
TEST(Conv, StridedInputsAndOutputs) {
  for (const Case& s : kCases) check_dense(s, DType::f32, 3, false);
}
TEST(Conv, Accumulates) {
  for (const Case& s : kCases) check_dense(s, DType::f32, 1, true);
}
TEST(Conv, HalfTypes) {
  for (const Case& s : kCases)
    for (const DType dtype : {DType::f16, DType::bf16}) check_dense(s, dtype, 0, false);
}

TEST(Conv, Tf32RoundsPixelsAndWeights) {
  for (const Case& s : kCases)
    for (const int64_t gap : {0, 3}) check_dense(s, DType::f32, gap, gap > 0, true);
}

TEST(Conv, GroupsAreCallsOnSlices) {
  const Case s{6, 7, 5, 9, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1};  // each of 4 groups
  const int64_t groups = 4, kernel = 9;
  const auto x = random_floats(s.height * s.width * s.in * groups, 1),
             w = random_floats(groups * s.out * s.in * kernel, 2);
  const std::vector<double> x_exact(x.begin(), x.end());
  std::vector<float> y(s.height * s.width * s.out * groups);
  for (int64_t group = 0; group < groups; ++group) {
    const float* w_group = &w[group * s.out * s.in * kernel];
    Aligned packed(conv_packed_bytes(s.out, s.in, 3, 3));
    conv_pack(kObkF32, s.out, s.in, 3, 3, w_group, s.in * kernel, kernel, 3, 1, packed.data());
    ObkConv t = describe(s);
    t.x = &x[group * s.in], t.x_pixel = s.in * groups, t.x_row = s.width * t.x_pixel;
    t.weights = packed.data(), t.y = &y[group * s.out], t.y_pixel = s.out * groups,
    t.y_row = s.width * t.y_pixel;
    run(t);
  }
  for (int64_t group = 0; group < groups; ++group) {
    const std::vector<double> x_group(x_exact.begin() + group * s.in, x_exact.end());
    const std::vector<double> w_group(w.begin() + group * s.out * s.in * kernel, w.end());
    for (int64_t pixel = 0; pixel < s.height * s.width; ++pixel)
      for (int64_t channel = 0; channel < s.out; ++channel)
        ASSERT_NEAR(y[(pixel * groups + group) * s.out + channel],
                    exact(s, x_group, s.width * s.in * groups, s.in * groups, w_group,
                          pixel / s.width, pixel % s.width, channel, false),
                    1e-5);
  }
}

TEST(Conv, Depthwise) {
  for (Case s : kCases) {
    for (const int64_t multiplier : {1, 3}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const int64_t channels : {1, 7, 16, 83, 130}) {
          s.in = channels, s.out = channels * multiplier;
          const auto x = random_floats(s.height * s.width * s.in, 1),
                     w = random_floats(s.out * s.kernel_h * s.kernel_w, 2);
          std::vector<char> x_bytes(byte_size(dtype, x.size()));
          std::vector<double> x_exact;
          for (size_t i = 0; i < x.size(); ++i)
            set_double(x_bytes.data(), dtype, i, x[i]),
                x_exact.push_back(get_double(x_bytes.data(), dtype, i));
          const std::vector<double> w_exact(w.begin(), w.end());
          Aligned packed(depthwise_packed_bytes(s.out, s.kernel_h, s.kernel_w));
          depthwise_pack(kObkF32, s.out, s.kernel_h, s.kernel_w, w.data(), s.kernel_h * s.kernel_w,
                         s.kernel_w, 1, packed.data());
          ObkConv t = describe(s);
          t.depthwise = 1, t.multiplier = multiplier, t.type = static_cast<int>(dtype);
          t.x = x_bytes.data(), t.x_pixel = s.in, t.x_row = s.width * s.in,
          t.weights = packed.data();
          t.y_pixel = s.out, t.y_row = t.out_width * s.out;
          std::vector<float> y(t.rows * t.y_row);
          // In tiles of two rows and up to 64 channels.
          const ObkConv all = t;
          for (int64_t row = 0; row < all.rows; row += 2) {
            for (int64_t channel = 0; channel < s.out; channel += kObkPanel) {
              t.row = row, t.rows = std::min<int64_t>(2, all.rows - row);
              t.channel = channel, t.channels = std::min<int64_t>(kObkPanel, s.out - channel);
              t.y = y.data() + row * t.y_row + channel;
              run(t);
            }
          }
          for (int64_t row = 0; row < all.rows; ++row)
            for (int64_t column = 0; column < t.out_width; ++column)
              for (int64_t channel = 0; channel < s.out; ++channel)
                ASSERT_NEAR(y[row * t.y_row + column * t.y_pixel + channel],
                            exact(s, x_exact, t.x_row, t.x_pixel, w_exact, row, column, channel,
                                  true, multiplier),
                            2e-5)
                    << channels << " x " << multiplier << " at " << row << ", " << column << ", "
                    << channel;
        }
      }
    }
  }
}

}  // namespace
}  // namespace obelisk::kernels

// Convolution tiles whose shape stands in their text, on a core (one_cta.h), against the
// definition: every tile of an image, sums of a row of blocks, called one after another with
// weights loaded ahead or not.
#include "one_cta_wgmma.h"

#include <random>

#include "kernels/cuda/conv/conv.h"
#include "kernels/kernels.h"

#define OBK_RING 2
#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
// What a kernel of a graph allows and waits for, which a core has not.
#define OBK_OWN_KERNEL_ORDER
namespace obk {
static void allow_next() {}
static void wait_for_previous() {}
}  // namespace obk
#include "kernels/common/tiles.h"
#include "kernels/cuda/conv/conv.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

struct Case {
  const char* name;
  int64_t in, height, width, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top,
      left, out_width, x_row, x_pixel;
  int64_t pixels, channels;  // of a tile
  int64_t out, out_height;
  bool bfloat;
  void (*tile)(const ObkConv&);
  int pages;  // of the ring
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
#define CASE(...) CASE_OF(false, __VA_ARGS__)
#define LONG_CASE(...) CASE_OF(true, __VA_ARGS__) /* a body that is part of its kernel */
#define CASE_OF(inlined, name, out, out_height, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top,   \
                left, out_width, pixels, channels)                                               \
  Case {                                                                                         \
    name, in, h, w, kh, kw, sh, sw, dh, dw, top, left, out_width, w *in, in, pixels, channels,   \
        out, out_height, bfloat,                                                                 \
        obk::conv_tile_of<bfloat ? kObkBf16 : kObkF16, true, inlined,                            \
                          obk::ConvFixed<in, h, w, kh, kw, sh, sw, dh, dw, top, left, out_width, \
                                         w * in, in, pixels, channels, channels + 8> >,          \
        inlined ? 3 : 2                                                                          \
  }

const Case kCases[] = {
    CASE("across_rows_48x32", 64, 12, false, 64, 12, 14, 3, 3, 1, 1, 1, 1, 1, 1, 14, 48, 32),
    CASE("rows_28x64", 64, 4, true, 128, 4, 28, 3, 3, 1, 1, 1, 1, 1, 1, 28, 28, 64),
    CASE("deep_28x16", 32, 6, false, 256, 6, 14, 3, 3, 1, 1, 1, 1, 1, 1, 14, 28, 16),
    CASE("deep_14x16", 16, 7, false, 512, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 7, 14, 16),
    CASE("wide_14x48", 48, 7, false, 64, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 7, 14, 48),
    CASE("stride_64x64", 64, 14, false, 64, 28, 28, 3, 3, 2, 2, 1, 1, 1, 1, 14, 64, 64),
    CASE("single_pixels_14x32", 32, 14, false, 64, 28, 28, 1, 1, 2, 2, 1, 1, 0, 0, 14, 14, 32),
    CASE("padded_channels_42x16", 16, 14, false, 24, 14, 14, 5, 5, 1, 1, 1, 1, 2, 2, 14, 42, 16),
    CASE("one_step_a_tap_36x48", 48, 12, true, 16, 12, 12, 3, 3, 1, 1, 1, 1, 1, 1, 12, 36, 48),
    CASE("dilated_20x32", 32, 13, false, 40, 13, 15, 3, 5, 1, 2, 2, 3, 2, 6, 8, 20, 32),
    CASE("one_row_20x48", 48, 3, false, 208, 3, 60, 1, 7, 1, 1, 1, 1, 0, 3, 60, 20, 48),
    CASE("three_blocks_48x16", 16, 12, false, 32, 12, 12, 3, 3, 1, 1, 1, 1, 1, 1, 12, 48, 16),
    CASE("four_blocks_64x16", 16, 8, false, 32, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 16, 64, 16),
    CASE("first_layer_96x64", 64, 16, false, 3, 32, 32, 7, 7, 2, 2, 1, 1, 3, 3, 16, 96, 64),
    CASE("thin_40x16", 16, 8, true, 4, 8, 10, 3, 3, 1, 1, 1, 1, 1, 1, 10, 40, 16),
    CASE("rows_as_they_lie_33x32", 32, 10, false, 3, 21, 23, 3, 3, 2, 2, 1, 1, 0, 0, 11, 33, 32),
    CASE("thin_33x32", 32, 8, false, 3, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 8, 33, 32),
    LONG_CASE("first_by_wgmma_96x64", 64, 16, false, 3, 32, 32, 7, 7, 2, 2, 1, 1, 3, 3, 16, 96, 64),
    LONG_CASE("first_by_wgmma_128x64", 64, 17, true, 3, 34, 32, 7, 7, 2, 2, 1, 1, 3, 3, 16, 128,
              64),
    LONG_CASE("thin_by_wgmma_40x16", 16, 8, true, 4, 8, 10, 3, 3, 1, 1, 1, 1, 1, 1, 10, 40, 16),
    LONG_CASE("as_they_lie_by_wgmma_33x32", 32, 10, false, 3, 21, 23, 3, 3, 2, 2, 1, 1, 0, 0, 11,
              33, 32),
    LONG_CASE("thin_by_wgmma_33x32", 32, 8, false, 3, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 8, 33, 32),
    LONG_CASE("wide_56x128", 128, 4, false, 64, 4, 28, 3, 3, 1, 1, 1, 1, 1, 1, 28, 56, 128),
    LONG_CASE("wide_49x64", 64, 7, true, 128, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 7, 49, 64),
    LONG_CASE("wide_single_56x128", 128, 4, false, 256, 8, 56, 1, 1, 2, 2, 1, 1, 0, 0, 28, 56, 128),
    LONG_CASE("wide_dilated_64x96", 96, 9, false, 24, 9, 31, 3, 5, 1, 2, 2, 1, 2, 2, 16, 64, 96),
    LONG_CASE("wide_row_60x80", 160, 2, true, 208, 2, 60, 1, 7, 1, 1, 1, 1, 0, 3, 60, 60, 80),
    LONG_CASE("wide_three_steps_36x48", 48, 12, true, 16, 12, 12, 1, 3, 1, 1, 1, 1, 0, 1, 12, 36,
              48),
    LONG_CASE("long_single_49x128", 128, 7, true, 1024, 14, 14, 1, 1, 2, 2, 1, 1, 0, 0, 7, 49, 128),
    LONG_CASE("long_dilated_64x96", 96, 9, false, 392, 9, 31, 3, 5, 1, 2, 2, 1, 2, 2, 16, 64, 96),
    LONG_CASE("long_strided_56x64", 64, 14, false, 256, 28, 28, 3, 3, 2, 2, 1, 1, 1, 1, 14, 56, 64),
};

/// `count` random numbers: as the tile reads them, and what they are.
std::vector<double> numbers(DType type, int64_t count, std::mt19937& random,
                            std::vector<uint64_t>& bytes) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> exact(static_cast<size_t>(count));
  bytes.resize(static_cast<size_t>(byte_size(type, count) + 15) / 8);
  for (int64_t k = 0; k < count; ++k) {
    set_double(bytes.data(), type, k, uniform(random));
    exact[static_cast<size_t>(k)] = get_double(bytes.data(), type, k);
  }
  return exact;
}
/// A copy that begins where 16 bytes do, and that copies of the tile may read.
const char* aligned(const void* from, size_t bytes, std::vector<char>& hold) {
  hold.assign(bytes + 16, 0);
  char* at = hold.data() + (16 - reinterpret_cast<uint64_t>(hold.data()) % 16) % 16;
  memcpy(at, from, bytes);
  one_cta::readable.push_back({at, at + bytes});
  return at;
}

class OneCta : public testing::TestWithParam<Case> {};

TEST_P(OneCta, ConvolvesAsDefined) {
  const Case& c = GetParam();
  const DType type = c.bfloat ? DType::bf16 : DType::f16;
  const auto number = static_cast<int32_t>(type);
  std::mt19937 random(5);
  std::vector<uint64_t> x_bytes, w_bytes;
  const std::vector<double> x = numbers(type, c.height * c.x_row, random, x_bytes);
  const std::vector<double> w =
      numbers(type, c.out * c.in * c.kernel_h * c.kernel_w, random, w_bytes);
  const int64_t taps = c.kernel_h * c.kernel_w;
  std::vector<char> packed(static_cast<size_t>(
      kernels::cuda_conv_packed_bytes(number, c.out, c.in, c.kernel_h, c.kernel_w))),
      hold_x, hold_w;
  kernels::cuda_conv_pack(number, c.out, c.in, c.kernel_h, c.kernel_w, c.channels, w_bytes.data(),
                          c.in * taps, taps, c.kernel_w, 1, packed.data());
  one_cta::readable.clear();
  ObkConv g = {};
  g.type = number, g.height = c.height, g.width = c.width, g.in_channels = c.in,
  g.kernel_h = c.kernel_h, g.kernel_w = c.kernel_w;
  g.stride_h = c.stride_h, g.stride_w = c.stride_w, g.dilation_h = c.dilation_h,
  g.dilation_w = c.dilation_w;
  g.pad_top = c.top, g.pad_left = c.left, g.out_width = c.out_width, g.out_channels = c.out,
  g.x_row = c.x_row, g.x_pixel = c.x_pixel;
  g.x = aligned(x_bytes.data(), static_cast<size_t>(c.height * c.x_row) * 2, hold_x);
  g.weights = aligned(packed.data(), packed.size(), hold_w);
  const int pages = c.pages, ring = pages * 24576;
  g.y = reinterpret_cast<float*>(one_cta::shared + ring + 128);
  const int64_t pitch = c.channels + 8;
  g.y_pixel = pitch, g.y_row = c.out_width * pitch, g.channels = c.channels;
  g.scratch = one_cta::shared + ring + 128 + c.pixels * pitch * 4;
  const int64_t all = c.out_height * c.out_width;
  std::vector<float> y(static_cast<size_t>(all * c.out));
  int64_t loaded_ahead = 0;
  one_cta::run(256, [&] {
    obk::ring_start(0, ring, pages, nullptr, 0);
    int64_t tile = 0;
    for (int64_t pixel = 0; pixel < all; pixel += c.pixels)
      for (int64_t channel = 0; channel < c.out; channel += c.channels, ++tile) {
        ObkConv t = g;
        t.row = pixel / c.out_width, t.column = pixel % c.out_width,
        t.pixels = std::min(c.pixels, all - pixel);
        t.rows = t.pixels / c.out_width, t.channel = channel;
        if (tile % 2) {
          const kernels::WeightRange range = kernels::cuda_conv_weights(
              number, c.out, c.in, c.kernel_h, c.kernel_w, channel, channel + c.channels);
          obk::ring_load_ahead(obk::WeightPages::of_tile(
              static_cast<const char*>(g.weights) + range.offset,
              static_cast<int>(range.bytes / range.group), static_cast<int>(range.group / 1024)));
          __syncthreads();
          loaded_ahead += threadIdx.x == 0;
        }
        c.tile(t);
        for (int64_t k = threadIdx.x; k < t.pixels * c.channels; k += 256)
          y[static_cast<size_t>((pixel + k / c.channels) * c.out + channel + k % c.channels)] =
              t.y[k / c.channels * pitch + k % c.channels];
        __syncthreads();
      }
    obk::ring_finish();
  });
  for (int64_t pixel = 0; pixel < all; ++pixel)
    for (int64_t o = 0; o < c.out; ++o) {
      double sum = 0, size = 0.01;
      for (int64_t i = 0; i < c.kernel_h; ++i)
        for (int64_t j = 0; j < c.kernel_w; ++j) {
          const int64_t row = pixel / c.out_width * c.stride_h - c.top + i * c.dilation_h;
          const int64_t column = pixel % c.out_width * c.stride_w - c.left + j * c.dilation_w;
          if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
          for (int64_t ch = 0; ch < c.in; ++ch) {
            const double product =
                x[static_cast<size_t>(row * c.x_row + column * c.x_pixel + ch)] *
                w[static_cast<size_t>(((o * c.in + ch) * c.kernel_h + i) * c.kernel_w + j)];
            sum += product, size += std::fabs(product);
          }
        }
      ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(pixel * c.out + o)]), sum, 2e-6 * size)
          << "pixel " << pixel << " channel " << o;
    }
}
INSTANTIATE_TEST_SUITE_P(Conv, OneCta, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// Tiles of kernels whose CTAs share a multiprocessor: pixels of all images in a row.
struct GridCase {
  const char* name;
  int64_t in, height, width, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top,
      left, out_width, out_height, x_row, x_pixel, image;
  int64_t pixels, channels, images, out;
  bool bfloat;
  void (*begin)(const ObkConv&);
  void (*tile)(const ObkConv&);
};
void PrintTo(const GridCase& c, std::ostream* out) { *out << c.name; }
#define GRID(name, images, out, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide, high,   \
             row, pixel, image, pixels, channels, ctas_per_sm)                                     \
  GRID_OF(name, images, out, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide, high, row, \
          pixel, image, pixels, channels, ctas_per_sm, 0)
/* The last tile of channels has fewer. */
#define GRID_TAIL(name, images, out, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide,    \
                  high, row, pixel, image, pixels, channels, ctas_per_sm)                          \
  GRID_OF(name, images, out, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide, high, row, \
          pixel, image, pixels, channels, ctas_per_sm, out)
#define GRID_OF(name, images, out, bfloat, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide,      \
                high, row, pixel, image, pixels, channels, ctas_per_sm, outputs)                   \
  GridCase {                                                                                       \
    name, in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide, high, row, pixel, image, pixels,      \
        channels, images, out, bfloat,                                                             \
        obk::conv_grid_begin<                                                                      \
            obk::ConvGrid<in, h, w, kh, kw, sh, sw, dh, dw, top, left, wide, high, row, pixel,     \
                          image, pixels, channels, channels + 8, ctas_per_sm, outputs> >,          \
        obk::conv_grid_tile<bfloat, obk::ConvGrid<in, h, w, kh, kw, sh, sw, dh, dw, top, left,     \
                                                  wide, high, row, pixel, image, pixels, channels, \
                                                  channels + 8, ctas_per_sm, outputs> >            \
  }
const GridCase kGridCases[] = {
    GRID("single_128x64", 2, 128, false, 64, 10, 14, 1, 1, 1, 1, 1, 1, 0, 0, 14, 10, 14 * 64, 64,
         140 * 64, 128, 64, 2),
    GRID("single_long_128x128", 3, 128, true, 512, 7, 7, 1, 1, 1, 1, 1, 1, 0, 0, 7, 7, 7 * 512, 512,
         49 * 512, 128, 128, 1),
    GRID("single_strided_64x64", 3, 128, false, 256, 14, 14, 1, 1, 2, 2, 1, 1, 0, 0, 7, 7, 14 * 256,
         256, 196 * 256, 64, 64, 2),
    GRID("around_64x128", 3, 128, false, 128, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 7, 7, 7 * 128, 128,
         49 * 128, 64, 128, 1),
    GRID("around_strided_128x96", 3, 96, false, 64, 15, 14, 3, 3, 2, 2, 1, 1, 1, 1, 7, 8, 14 * 64,
         64, 210 * 64, 128, 96, 2),
    GRID("pieces_128x48", 2, 96, true, 40, 9, 9, 1, 1, 1, 1, 1, 1, 0, 0, 9, 9, 9 * 56, 56, 90 * 56,
         128, 48, 1),
    GRID("dilated_64x32", 2, 32, false, 24, 9, 31, 3, 5, 1, 2, 2, 1, 2, 2, 16, 9, 31 * 24, 24,
         279 * 24, 64, 32, 2),
    GRID("row_128x80", 2, 160, true, 208, 2, 60, 1, 7, 1, 1, 1, 1, 0, 3, 60, 2, 60 * 208, 208,
         120 * 208, 128, 80, 1),
    GRID("first_128x64", 2, 64, false, 3, 32, 32, 7, 7, 2, 2, 1, 1, 3, 3, 16, 16, 96, 3, 3072, 128,
         64, 2),
    /* Pixels that begin at multiples of 4 and 8 bytes, channels beyond the last piece of 16. */
    GRID_TAIL("k42_128x48", 2, 42, false, 42, 11, 13, 1, 1, 1, 1, 1, 1, 0, 0, 13, 11, 13 * 42, 42,
              143 * 42, 128, 48, 2),
    GRID_TAIL("k84_64x64", 3, 84, true, 84, 9, 10, 1, 1, 1, 1, 1, 1, 0, 0, 10, 9, 10 * 84, 84,
              90 * 84, 64, 64, 1),
    GRID("k126_strided_128x96", 2, 96, false, 126, 9, 9, 1, 1, 2, 2, 1, 1, 0, 0, 5, 5, 9 * 126, 126,
         81 * 126, 128, 96, 2),
    GRID("k10_128x32", 1, 32, true, 10, 12, 12, 1, 1, 1, 1, 1, 1, 0, 0, 12, 12, 12 * 10, 10,
         144 * 10, 128, 32, 2),
    GRID("k43_of_44_64x32", 1, 64, false, 43, 8, 9, 1, 1, 1, 1, 1, 1, 1, 1, 11, 10, 9 * 44, 44,
         72 * 44, 64, 32, 2),
    GRID("gap_3x3_128x32", 2, 32, false, 24, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1, 9, 9, 9 * 26, 26,
         81 * 26, 128, 32, 2),
    GRID_TAIL("tail_168_128x96", 2, 168, true, 168, 9, 9, 1, 1, 1, 1, 1, 1, 0, 0, 9, 9, 9 * 168,
              168, 81 * 168, 128, 96, 2),
    GRID_TAIL("tail_two_blocks_64x64", 1, 72, false, 128, 9, 9, 1, 1, 1, 1, 1, 1, 0, 0, 9, 9,
              9 * 128, 128, 81 * 128, 64, 64, 1),
    GRID("few_128x32", 2, 64, true, 4, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 16, 16, 64, 4, 1024, 128, 32,
         2),
    GRID_TAIL("three_outputs_128x32", 2, 3, false, 64, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1, 9, 9, 9 * 64,
              64, 81 * 64, 128, 32, 2),
    GRID_TAIL("one_output_64x32", 1, 1, true, 24, 9, 9, 1, 1, 1, 1, 1, 1, 0, 0, 9, 9, 9 * 24, 24,
              81 * 24, 64, 32, 1),
    /* Of one dimension: images of one row. */
    GRID("line_strided_128x64", 3, 128, false, 64, 1, 99, 1, 3, 1, 2, 1, 1, 0, 0, 49, 1, 6336, 64,
         6336, 128, 64, 2),
    GRID("line_dilated_64x64", 2, 64, true, 80, 1, 60, 1, 3, 1, 1, 1, 4, 0, 4, 60, 1, 4800, 80,
         4800, 64, 64, 1),
    GRID("line_first_128x64", 2, 64, false, 1, 1, 1288, 1, 10, 1, 5, 1, 1, 0, 0, 256, 1, 1288, 1,
         1288, 128, 64, 2),
};
class OneCtaConvGrid : public testing::TestWithParam<GridCase> {};

TEST_P(OneCtaConvGrid, ConvolvesAsDefined) {
  const GridCase& c = GetParam();
  const DType type = c.bfloat ? DType::bf16 : DType::f16;
  const auto number = static_cast<int32_t>(type);
  std::mt19937 random(5);
  const int64_t taps = c.kernel_h * c.kernel_w;
  std::vector<char> hold_x, hold_w,
      packed(static_cast<size_t>(
          kernels::cuda_conv_packed_bytes(number, c.out, c.in, c.kernel_h, c.kernel_w)));
  std::vector<uint64_t> x_bytes, w_bytes;
  const std::vector<double> x = numbers(type, c.images * c.image, random, x_bytes);
  const std::vector<double> w = numbers(type, c.out * c.in * taps, random, w_bytes);
  kernels::cuda_conv_pack(number, c.out, c.in, c.kernel_h, c.kernel_w, c.channels, w_bytes.data(),
                          c.in * taps, taps, c.kernel_w, 1, packed.data());
  one_cta::readable.clear();
  ObkConv g = {};
  g.x = aligned(x_bytes.data(), static_cast<size_t>(c.images * c.image) * 2, hold_x);
  g.weights = aligned(packed.data(), packed.size(), hold_w);
  g.y = reinterpret_cast<float*>(one_cta::shared + 64), g.scratch = one_cta::shared + 64;
  const int64_t pitch = c.channels + 8, all = c.images * c.out_height * c.out_width;
  std::vector<float> y(static_cast<size_t>(all * c.out));
  for (int64_t pixel = 0; pixel < all; pixel += c.pixels)
    for (int64_t channel = 0; channel < c.out; channel += c.channels)
      one_cta::run(256, [&] {
        ObkConv t = g;
        t.row = pixel, t.pixels = std::min(c.pixels, all - pixel), t.channel = channel;
        t.channels = std::min(c.channels, c.out - channel);
        c.begin(t), c.tile(t);
        for (int64_t k = threadIdx.x; k < t.pixels * t.channels; k += 256)
          y[static_cast<size_t>((pixel + k / t.channels) * c.out + channel + k % t.channels)] =
              t.y[k / t.channels * pitch + k % t.channels];
      });
  for (int64_t pixel = 0; pixel < all; ++pixel)
    for (int64_t o = 0; o < c.out; ++o) {
      double sum = 0, size = 0.01;
      const int64_t image = pixel / (c.out_width * c.out_height),
                    of = pixel % (c.out_width * c.out_height);
      for (int64_t i = 0; i < c.kernel_h; ++i)
        for (int64_t j = 0; j < c.kernel_w; ++j) {
          const int64_t row = of / c.out_width * c.stride_h - c.top + i * c.dilation_h;
          const int64_t column = of % c.out_width * c.stride_w - c.left + j * c.dilation_w;
          if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
          for (int64_t ch = 0; ch < c.in; ++ch) {
            const double product =
                x[static_cast<size_t>(image * c.image + row * c.x_row + column * c.x_pixel + ch)] *
                w[static_cast<size_t>(((o * c.in + ch) * c.kernel_h + i) * c.kernel_w + j)];
            sum += product, size += std::fabs(product);
          }
        }
      ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(pixel * c.out + o)]), sum, 2e-6 * size)
          << "pixel " << pixel << " channel " << o;
    }
}
INSTANTIATE_TEST_SUITE_P(Conv, OneCtaConvGrid, testing::ValuesIn(kGridCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// Depthwise tiles: packs of 8, 4, 2 and 1 channels, as they divide channels and strides; pixels
/// that share weights where the window is one of three sizes; and strips of inputs in shared
/// memory, with the same bits.
struct DepthwiseCase {
  const char* name;
  int64_t channels, height, width, side, stride, dilation, pad;
  int64_t gap;     // elements between pixels of X
  int64_t pixels;  // of a tile
  int64_t tile_channels = 0, multiplier = 1;
  DType type = DType::f16;
  bool accumulate = false;
};
void PrintTo(const DepthwiseCase& c, std::ostream* out) { *out << c.name; }
class OneCtaDepthwise : public testing::TestWithParam<DepthwiseCase> {};

TEST_P(OneCtaDepthwise, ConvolvesAsDefined) {
  const DepthwiseCase& c = GetParam();
  std::mt19937 random(7);
  const int64_t wide = (c.width + 2 * c.pad - c.dilation * (c.side - 1) - 1) / c.stride + 1;
  const int64_t high = (c.height + 2 * c.pad - c.dilation * (c.side - 1) - 1) / c.stride + 1;
  const int64_t inputs = c.channels / c.multiplier, taps = c.side * c.side;
  const int64_t pixel_of_x = inputs + c.gap, all = wide * high;
  const auto number = static_cast<int32_t>(c.type);
  std::vector<uint64_t> x_bytes, w_bytes;
  const std::vector<double> x = numbers(c.type, c.height * c.width * pixel_of_x, random, x_bytes);
  const std::vector<double> w = numbers(c.type, c.channels * taps, random, w_bytes);
  std::vector<char> hold_x, hold_w,
      packed(static_cast<size_t>(
          kernels::cuda_depthwise_packed_bytes(number, c.channels, c.side, c.side)));
  kernels::cuda_depthwise_pack(number, c.channels, c.side, c.side, w_bytes.data(), taps, c.side, 1,
                               packed.data());
  one_cta::readable.clear();
  ObkConv g = {};
  g.type = number, g.depthwise = 1, g.multiplier = c.multiplier;
  g.height = c.height, g.width = c.width, g.in_channels = inputs, g.out_channels = c.channels;
  g.kernel_h = g.kernel_w = c.side, g.stride_h = g.stride_w = c.stride;
  g.dilation_h = g.dilation_w = c.dilation, g.pad_top = g.pad_left = c.pad, g.out_width = wide;
  g.x_row = c.width * pixel_of_x, g.x_pixel = pixel_of_x;
  g.x = aligned(x_bytes.data(), static_cast<size_t>(byte_size(c.type, c.height * g.x_row)), hold_x);
  g.weights = aligned(packed.data(), packed.size(), hold_w);
  const int64_t most = c.tile_channels ? c.tile_channels : c.channels;
  g.pack = 8, g.accumulate = c.accumulate;
  while ((pixel_of_x | c.channels | most) % g.pack != 0) g.pack = static_cast<int16_t>(g.pack / 2);
  if (c.multiplier > 1) g.pack = 1;
  const int64_t y_bytes = (c.pixels * most * 4 + 63) / 64 * 64;
  ObkConv tile = g;
  tile.pixels = c.pixels, tile.channels = most;
  const int64_t scratch = kernels::cuda_conv_scratch_bytes(&tile);
  const bool may = g.pack >= 2 && c.dilation == 1 && c.side > 1;  // if its patch fits
  EXPECT_TRUE(scratch > 0 ? may : !may || c.channels >= 90);
  std::vector<float> y(static_cast<size_t>(all * c.channels)), strips = y;
  const auto compute = [&](std::vector<float>& y) {
    for (int64_t pixel = 0; pixel < all; pixel += c.pixels)
      for (int64_t channel = 0; channel < c.channels; channel += most) {
        ObkConv t = g;
        t.row = pixel / wide, t.column = pixel % wide, t.pixels = std::min(c.pixels, all - pixel);
        t.channel = channel, t.channels = std::min(most, c.channels - channel);
        t.y = reinterpret_cast<float*>(one_cta::shared);
        t.y_pixel = t.channels, t.y_row = wide * t.channels;
        t.scratch = one_cta::shared + y_bytes;
        for (int64_t k = threadIdx.x; k < t.pixels * t.channels; k += 256) t.y[k] = 0.5f;
        __syncthreads();
        if (c.type == DType::f32)
          obk::depthwise_tile<kObkF32>(t);
        else if (c.type == DType::bf16)
          obk::depthwise_tile<kObkBf16>(t);
        else
          obk::depthwise_tile<kObkF16>(t);
        for (int64_t k = threadIdx.x; k < t.pixels * t.channels; k += 256)
          y[static_cast<size_t>((pixel + k / t.channels) * c.channels + channel + k % t.channels)] =
              t.y[k];
        __syncthreads();
      }
  };
  one_cta::run(256, [&] { compute(y); });
  if (scratch > 0) {
    constexpr int kGuard = 1024;
    g.depthwise = 2;
    ASSERT_LE(y_bytes + scratch + kGuard, int64_t{one_cta::kSharedBytes});
    // What lies outside of X is never written; NaN there would be seen.
    memset(one_cta::shared, 0xff, static_cast<size_t>(y_bytes + scratch + kGuard));
    one_cta::run(256, [&] { compute(strips); });
    EXPECT_EQ(memcmp(y.data(), strips.data(), y.size() * 4), 0) << "strips have other bits";
    for (int k = 0; k < kGuard; ++k)
      ASSERT_EQ(static_cast<unsigned char>(one_cta::shared[y_bytes + scratch + k]), 0xff)
          << "a tile writes beyond its scratch";
  }
  for (int64_t pixel = 0; pixel < all; ++pixel)
    for (int64_t o = 0; o < c.channels; ++o) {
      double sum = c.accumulate ? 0.5 : 0, size = 0.5;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t row = pixel / wide * c.stride - c.pad + tap / c.side * c.dilation;
        const int64_t column = pixel % wide * c.stride - c.pad + tap % c.side * c.dilation;
        if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
        const double product =
            x[static_cast<size_t>(row * g.x_row + column * pixel_of_x + o / c.multiplier)] *
            w[static_cast<size_t>(o * taps + tap)];
        sum += product, size += std::fabs(product);
      }
      ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(pixel * c.channels + o)]), sum,
                  2e-6 * size)
          << "pixel " << pixel << " channel " << o;
    }
}
INSTANTIATE_TEST_SUITE_P(
    Conv, OneCtaDepthwise,
    testing::Values(DepthwiseCase{"three", 40, 9, 11, 3, 1, 1, 1, 0, 99},
                    DepthwiseCase{"across_rows", 16, 8, 7, 3, 1, 1, 1, 8, 15},
                    DepthwiseCase{"five_strided", 24, 9, 10, 5, 2, 1, 2, 0, 9},
                    DepthwiseCase{"five_dilated", 8, 7, 9, 5, 1, 2, 4, 0, 63},
                    DepthwiseCase{"seven", 16, 6, 5, 7, 1, 1, 3, 0, 30},
                    DepthwiseCase{"single", 16, 5, 5, 1, 1, 1, 0, 0, 25},
                    DepthwiseCase{"single_of_twos", 10, 5, 5, 1, 2, 1, 0, 0, 25},
                    DepthwiseCase{"not_of_packs", 13, 7, 6, 3, 1, 1, 1, 3, 20},
                    DepthwiseCase{"fours", 84, 9, 7, 3, 1, 1, 1, 0, 31, 64},
                    DepthwiseCase{"twos", 42, 8, 9, 5, 1, 1, 2, 0, 33, 32},
                    DepthwiseCase{"twos_strided", 42, 11, 11, 7, 2, 1, 3, 0, 36},
                    DepthwiseCase{"eights_behind_twos", 24, 8, 9, 3, 1, 1, 1, 10, 72},
                    DepthwiseCase{"nine_strided", 40, 12, 19, 9, 2, 1, 4, 0, 20, 32},
                    DepthwiseCase{"nine_bf16", 16, 9, 21, 9, 1, 1, 4, 0, 7, 0, 1, DType::bf16},
                    DepthwiseCase{"parts_of_rows", 64, 5, 24, 5, 1, 1, 2, 0, 12, 32},
                    DepthwiseCase{"outside", 32, 3, 4, 3, 1, 1, 4, 0, 17},
                    DepthwiseCase{"f32", 48, 9, 14, 3, 1, 1, 1, 4, 28, 16, 1, DType::f32},
                    DepthwiseCase{"f32_strided", 36, 9, 15, 7, 2, 1, 3, 0, 40, 0, 1, DType::f32}),
    [](const auto& info) { return std::string(info.param.name); });

/// The same of random shapes, of the channels that networks have and others.
std::vector<DepthwiseCase> random_depthwise() {
  std::vector<DepthwiseCase> cases;
  std::mt19937 random(11);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int64_t channels : {1, 2, 3, 6, 12, 36, 42, 84, 90, 168, 336})
    for (DType type : {DType::f16, DType::bf16, DType::f32})
      for (int64_t side : {3, 5, 7}) {
        DepthwiseCase c = {"random",
                           channels,
                           4 + below(8),
                           4 + below(8),
                           side,
                           1 + below(2),
                           1 + below(2),
                           0,
                           below(3) == 0 ? 1 + below(8) : 0,
                           0};
        c.pad = c.dilation * (side / 2);
        c.pixels = 1 + below(40), c.type = type;
        c.tile_channels = channels > 32 && below(2) == 0 ? 16 * (1 + below(3)) : 0;
        c.multiplier = channels % 3 == 0 && below(4) == 0 ? 3 : 1;
        c.accumulate = below(5) == 0;
        cases.push_back(c);
      }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Random, OneCtaDepthwise, testing::ValuesIn(random_depthwise()),
                         [](const auto& info) {
                           const DepthwiseCase& c = info.param;
                           return fmt::format("{}_{}_{}x{}_{}_of_{}", to_string(c.type), c.channels,
                                              c.side, c.side, c.stride, info.index);
                         });

}  // namespace
}  // namespace obelisk

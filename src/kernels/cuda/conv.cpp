#include "kernels/cuda/conv.h"

#include <algorithm>
#include <cstring>

#include "base/base.h"
#include "kernels/cuda/conv_shape.h"

namespace obelisk::kernels {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t pixels_of(const ObkConv& g) { return g.pixels ? g.pixels : g.rows * g.out_width; }

/// The passes of a tile: visit(first pixel of the image, pixels, channels).
template <typename Visit>
void for_passes(const ObkConv& g, Visit visit) {
  const int64_t first = g.row * g.out_width + g.column, pixels = pixels_of(g);
  for (int64_t pixel = 0; pixel < pixels; pixel += kConvPass)
    for (int64_t c = 0; c < g.channels; c += kConvPass)
      visit(static_cast<int32_t>(first + pixel),
            static_cast<int32_t>(std::min<int64_t>(kConvPass, pixels - pixel)),
            static_cast<int32_t>(std::min<int64_t>(kConvPass, g.channels - c)));
}

}  // namespace

int64_t cuda_conv_packed_bytes(int32_t type, int64_t out_channels, int64_t in_channels,
                               int64_t kernel_h, int64_t kernel_w) {
  // Both forms hold 128 bytes of k for each of the padded channels.
  return round_up(out_channels, 16) *
         round_up(in_channels * kernel_h * kernel_w * conv_size(type), 128);
}

void cuda_conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                    int64_t kernel_w, const void* weights, int64_t out_stride, int64_t in_stride,
                    int64_t h_stride, int64_t w_stride, void* packed) {
  const int64_t size = conv_size(type);
  const int64_t blocks = (in_channels * kernel_h * kernel_w * size + 127) / 128;
  const char* from = static_cast<const char*>(weights);
  char* to = static_cast<char*>(packed);
  std::memset(to, 0, static_cast<size_t>(cuda_conv_packed_bytes(type, out_channels, in_channels,
                                                                kernel_h, kernel_w)));
  for (int64_t channel = 0; channel < out_channels; ++channel) {
    int64_t k = 0;
    for (int64_t h = 0; h < kernel_h; ++h)
      for (int64_t w = 0; w < kernel_w; ++w)
        for (int64_t c = 0; c < in_channels; ++c, ++k) {
          int64_t at = (channel / 16 * blocks * 32 + k) * 16 + channel % 16;
          if (size == 2) {
            const int64_t row = channel % 8, place = k % 64 / 8 ^ row;
            at = (channel / 8 * blocks + k / 64) * 512 + row * 64 + place * 8 + k % 8;
          }
          const int64_t source =
              channel * out_stride + c * in_stride + h * h_stride + w * w_stride;
          std::memcpy(to + at * size, from + source * size, static_cast<size_t>(size));
        }
  }
}

int64_t cuda_depthwise_packed_bytes(int32_t type, int64_t channels, int64_t kernel_h,
                                    int64_t kernel_w) {
  (void)type;
  return channels * kernel_h * kernel_w * 4;
}

void cuda_depthwise_pack(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                         const void* weights, int64_t out_stride, int64_t h_stride,
                         int64_t w_stride, void* packed) {
  float* to = static_cast<float*>(packed);
  for (int64_t h = 0; h < kernel_h; ++h)
    for (int64_t w = 0; w < kernel_w; ++w)
      for (int64_t c = 0; c < channels; ++c)
        *to++ = static_cast<float>(get_double(weights, static_cast<DType>(type),
                                              c * out_stride + h * h_stride + w * w_stride));
}

int64_t cuda_conv_scratch_bytes(const ObkConv* conv) {
  int64_t most = 0;
  if (conv->depthwise) return 0;
  // A tile at the end has fewer channels, which may take more: its stages are longer.
  for_passes(*conv, [&](int32_t first, int32_t pixels, int32_t channels) {
    for (int32_t fewer = 1; fewer <= channels; fewer += 16)
      for (int32_t patch : {0, 1})
        most = std::max<int64_t>(most, conv_plan(conv, first, pixels, fewer, patch).bytes);
  });
  return most;
}

double cuda_conv_nanos(const ObkConv* conv) {
  const double taps = static_cast<double>(conv->kernel_h * conv->kernel_w);
  const double size = conv_size(conv->type);
  double nanos = 500;  // a task's beginning and end
  if (conv->depthwise) {
    // The first-level cache gives 128 bytes a clock: X and two words of weights for each tap.
    const double items = static_cast<double>(pixels_of(*conv) * conv->channels);
    return nanos + std::max(items, 2048.0) * taps * 0.03 + items * size / 35;
  }
  for_passes(*conv, [&](int32_t first, int32_t pixels, int32_t channels) {
    const ConvPlan p = conv_plan(conv, first, pixels, channels, 1);
    const double k = taps * static_cast<double>(conv->in_channels);
    const double k_padded = p.k_blocks * 128 / size;
    const double x = p.patch_pitch ? p.patch_bytes : pixels * k * size;
    const double far = (x + p.channels * k_padded * size) / 90;  // L2, bytes a nanosecond
    const double near = k_padded * size * (2 * p.pixels + p.channels) / 240;  // fragments
    const double sums = 2.0 * p.pixels * p.channels * k_padded / (size == 2 ? 2500 : 350);
    // Single elements are gathered by 256 threads, several instructions each.
    const bool whole = static_cast<int64_t>(conv->in_channels * size) % 16 == 0;
    const double single = whole ? 0 : pixels * k / 25;
    nanos += 350 + std::max({far, near, sums}) + single + p.pixels * p.channels * 0.06;
  });
  return nanos;
}

}  // namespace obelisk::kernels

#include "kernels/cuda/conv/conv.h"

#include <algorithm>
#include <cstring>

#include "base/base.h"
#include "kernels/cuda/conv/conv_shape.h"
#include "machine/costs_cuda.h"

namespace obelisk::kernels {
namespace {

int64_t pixels_of(const ObkConv& g) { return g.pixels ? g.pixels : g.rows * g.out_width; }

/// The passes of a tile: visit(first pixel of the image, pixels, channels).
template <typename Visit>
void for_passes(const ObkConv& g, Visit visit) {
  const int64_t first = g.row * g.out_width + g.column, pixels = pixels_of(g);
  const int64_t most = conv_pass_pixels(&g);
  for (int64_t pixel = 0; pixel < pixels; pixel += most)
    for (int64_t c = 0; c < g.channels; c += kConvPass)
      visit(static_cast<int32_t>(first + pixel),
            static_cast<int32_t>(std::min<int64_t>(most, pixels - pixel)),
            static_cast<int32_t>(std::min<int64_t>(kConvPass, g.channels - c)));
}

/// Whether device code may have the tile's shape as constants, and what it takes then.
ConvFit fit_of(const ObkConv& g) {
  return conv_fit(g.in_channels, g.height, g.width, g.kernel_h, g.kernel_w, g.stride_h, g.stride_w,
                  g.dilation_h, g.dilation_w, g.pad_top, g.pad_left, g.out_width, g.x_row,
                  g.x_pixel, pixels_of(g), g.channels);
}

/// Whether a body that is part of its kernel has the tile of conv_wgmma.cuh, or that of
/// conv_wgmma_pipelined.cuh.
bool is_wgmma(const ObkConv& g) {
  return OBK_IS_HALF(g.type) && !g.depthwise && conv_wgmma(pixels_of(g), g.channels) &&
         !conv_thin(static_cast<int32_t>(g.in_channels)) && fit_of(g).patched;
}
bool is_wgmma_pipelined(const ObkConv& g) {
  return OBK_IS_HALF(g.type) && !g.depthwise && !is_wgmma(g) &&
         conv_wgmma_pipelined(g.in_channels, g.height, g.width, g.x_row, g.x_pixel, pixels_of(g),
                              g.channels);
}
/// Whether a depthwise tile has its inputs in shared memory (conv_depthwise.cuh).
bool is_depthwise_strips(const ObkConv& g) {
  return g.depthwise && depthwise_strips(g) &&
         g.out_width * (g.stride_w + 1) * g.channels < INT32_MAX / 16 &&
         depthwise_plan_of_any(g, pixels_of(g)).bytes <= conv_bounds::kMostDepthwisePatch;
}
int chunks_of(const ObkConv& g);
/// The same of conv_first.cuh.
bool is_first(const ObkConv& g) {
  return OBK_IS_HALF(g.type) && !g.depthwise && conv_thin(static_cast<int32_t>(g.in_channels)) &&
         conv_first(pixels_of(g), g.channels, chunks_of(g)) && fit_of(g).patched;
}
int chunks_of(const ObkConv& g) {
  return (conv_k16(static_cast<int32_t>(g.in_channels), static_cast<int32_t>(g.kernel_h),
                   static_cast<int32_t>(g.kernel_w)) +
          3) /
         4;
}

/// Of tiles of a kernel launched as a grid: whether X is read as runs of few channels.
bool is_grid_first(const ObkConv& g) {
  return conv_thin(static_cast<int32_t>(g.in_channels)) &&
         !conv_grid_rows(g.in_channels, g.kernel_h * g.kernel_w, g.x_row | g.x_pixel | g.x_image);
}

/// Blocks of 128 bytes of k.
int64_t blocks_of(int32_t type, int64_t in_channels, int64_t kernel_h, int64_t kernel_w) {
  if (conv_size(type) == 4) return (in_channels * kernel_h * kernel_w + 31) / 32;
  return (conv_k16(static_cast<int32_t>(in_channels), static_cast<int32_t>(kernel_h),
                   static_cast<int32_t>(kernel_w)) +
          3) /
         4;
}

}  // namespace

int64_t cuda_conv_packed_bytes(int32_t type, int64_t out_channels, int64_t in_channels,
                               int64_t kernel_h, int64_t kernel_w) {
  // Both forms hold 128 bytes of k for each of the padded channels.
  return round_up(out_channels, 16) * blocks_of(type, in_channels, kernel_h, kernel_w) * 128;
}

void cuda_conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                    int64_t kernel_w, int64_t tile, const void* weights, int64_t out_stride,
                    int64_t in_stride, int64_t h_stride, int64_t w_stride, void* packed) {
  const int64_t size = conv_size(type);
  const int64_t blocks = blocks_of(type, in_channels, kernel_h, kernel_w);
  const bool half = size == 2, thin = half && conv_thin(static_cast<int32_t>(in_channels));
  const char* from = static_cast<const char*>(weights);
  char* to = static_cast<char*>(packed);
  std::memset(to, 0,
              static_cast<size_t>(
                  cuda_conv_packed_bytes(type, out_channels, in_channels, kernel_h, kernel_w)));
  // 16 bits: tile by tile [block][channels / 8].
  const int64_t padded = round_up(out_channels, 16), wide = tile > 0 ? round_up(tile, 16) : padded;
  for (int64_t channel = 0; channel < out_channels; ++channel) {
    const int64_t first = channel / wide * wide, here = std::min(wide, padded - first);
    int64_t k = 0;
    for (int64_t h = 0; h < kernel_h; ++h, k = thin ? round_up(k, 16) : k)
      for (int64_t w = 0; w < kernel_w; ++w, k = half && !thin ? round_up(k, 16) : k)
        for (int64_t c = 0; c < in_channels; ++c, ++k) {
          int64_t at = (channel / 16 * blocks * 32 + k) * 16 + channel % 16;
          if (half) {
            const int64_t row = channel % 8, place = k % 64 / 8 ^ row;
            at = (first / 8 * blocks + (k / 64 * here + channel - first) / 8) * 512 + row * 64 +
                 place * 8 + k % 8;
          }
          const int64_t source = channel * out_stride + c * in_stride + h * h_stride + w * w_stride;
          std::memcpy(to + at * size, from + source * size, static_cast<size_t>(size));
        }
  }
}

WeightRange cuda_conv_weights(int32_t type, int64_t out_channels, int64_t in_channels,
                              int64_t kernel_h, int64_t kernel_w, int64_t c0, int64_t c1) {
  if (conv_size(type) != 2) return {};
  const int64_t group = blocks_of(type, in_channels, kernel_h, kernel_w) * 1024;
  const int64_t columns = round_up(std::min(c1, out_channels) - c0, 16);
  if (columns > kWgmmaColumns) return {};  // a pass has a part of them
  return {c0 / 8 * group, columns / 8 * group, group};
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

static int64_t scratch_bytes(const ObkConv* conv, int32_t smem_a) {
  int64_t most = 0;
  if (conv->depthwise)
    return is_depthwise_strips(*conv) ? depthwise_plan_of_any(*conv, pixels_of(*conv)).bytes : 0;
  if (conv->tasks_per_worker > 0 && is_grid_first(*conv))
    return conv_grid_first_bytes(fit_of(*conv).patch_bytes, conv->pixels, conv->channels,
                                 conv->y_pixel, chunks_of(*conv));
  if (conv->tasks_per_worker > 0)
    return conv_grid_bytes(conv->pixels, conv->channels, conv->y_pixel, chunks_of(*conv),
                           conv->tasks_per_worker);
  for_passes(*conv, [&](int32_t first, int32_t pixels, int32_t channels) {
    if (!OBK_IS_HALF(conv->type)) {
      // A tile at the end has fewer channels, which may take more: its stages are longer.
      for (int32_t fewer = 1; fewer <= channels; fewer += 32)
        most = std::max<int64_t>(most, conv_plan32(conv, pixels, fewer, smem_a).bytes);
      most = std::max<int64_t>(most, conv_plan32(conv, pixels, channels, smem_a).bytes);
      return;
    }
    for (int32_t aligned : {0, 1})
      for (int32_t ring : {0, 1})
        most =
            std::max<int64_t>(most, conv_plan(conv, first, pixels, channels, aligned, ring).bytes);
  });
  if (OBK_IS_HALF(conv->type)) most = std::max<int64_t>(most, fit_of(*conv).bytes);
  if (is_wgmma(*conv) || is_first(*conv)) most = std::max<int64_t>(most, fit_of(*conv).wgmma_bytes);
  if (is_wgmma_pipelined(*conv)) {
    const int groups = static_cast<int>(conv->channels / 8), chunks = chunks_of(*conv);
    most = std::max<int64_t>(most, 2048 + 8192 * gemm_wgmma_most_blocks(groups, chunks));
  }
  return most;
}

int64_t cuda_conv_scratch_bytes(const ObkConv* conv) {
  return scratch_bytes(conv, OBK_GEMM_SMEM_A);
}
int64_t cuda_conv_small_scratch_bytes(const ObkConv* conv) {
  return scratch_bytes(conv, kGemmSmallSmemA);
}

double cuda_conv_nanos(const ObkConv* conv) {
  namespace costs = machine::cuda_costs;
  const double taps = static_cast<double>(conv->kernel_h * conv->kernel_w);
  double nanos = costs::kConvTask;
  if (conv->depthwise) {
    using Depthwise = costs::ConvDepthwise;
    const double items = static_cast<double>(pixels_of(*conv) * conv->channels);
    if (is_depthwise_strips(*conv)) {
      // Latency, which CTAs that share a multiprocessor hide; then bytes or instructions.
      using Strips = costs::ConvDepthwiseStrips;
      const DepthwisePlan plan = depthwise_plan_of_any(*conv, pixels_of(*conv));
      const int64_t strips = int64_t{plan.out_rows} * plan.across * kDepthwiseStrip;
      const double tap = conv->pack >= 4 ? Strips::kTap : Strips::kTapOfTwo;
      const double busy = static_cast<double>(strips * conv->channels) * taps * tap +
                          items * Strips::kItem + Strips::kTask;
      const double latency = nanos + Strips::kLatency + taps * Strips::kLatencyOfTap;
      constexpr double kRun = 64;  // bytes: shorter ones take as long
      const double run = static_cast<double>(conv->channels * conv_size(conv->type));
      const double bytes = plan.bytes * std::max(1.0, kRun / run);
      return std::max(bytes / Strips::kBytes, busy) +
             latency / std::max<double>(conv->tasks_per_worker, 1);
    }
    const int32_t side = depthwise_side(conv->kernel_h, conv->kernel_w);
    const double tap = side == 0                                  ? Depthwise::kTapAlone
                       : side == 7                                ? Depthwise::kTapOfSeven
                       : conv->pack * conv_size(conv->type) >= 16 ? Depthwise::kTap
                       : conv->pack >= 4                          ? Depthwise::kTapOfFour
                       : conv->pack == 2                          ? Depthwise::kTapOfTwo
                                                                  : Depthwise::kTapOfOne;
    return nanos + std::max(items, Depthwise::kFewest) * (Depthwise::kItem + taps * tap);
  }
  const double n = static_cast<double>(conv->channels), chunks = chunks_of(*conv);
  if (conv->tasks_per_worker > 0) {
    using Grid = costs::ConvGrid;
    const ObkConv& g = *conv;
    if (!OBK_IS_HALF(g.type)) return 0;
    if (is_grid_first(g)) {
      const bool fits = g.tasks_per_worker > 1 && g.out_channels % g.channels == 0 &&
                        conv_grid_first(g.rows * g.out_width, g.pixels, g.channels, chunks_of(g)) &&
                        fit_of(g).patched;
      return fits ? chunks * Grid::kFirstLayerBlock +
                        static_cast<double>(g.pixels) * n * Grid::kFirstLayerOut
                  : 0;
    }
    const int64_t taps = g.kernel_h * g.kernel_w, strides = g.x_row | g.x_pixel | g.x_image;
    if (!conv_grid(g.in_channels, taps, strides, g.pixels, g.channels)) return 0;
    // What a block of 64 k takes of a multiprocessor that two CTAs share, or how long one takes
    // alone, longer where taps may lie outside of X; then the sums become Y.
    const double high = static_cast<double>(g.pixels) / 64, wide = n / 64, area = high * wide;
    const double short_copies = (16.0 / row_unit(strides) - 1) * Grid::kShortCopies * high;
    if (g.tasks_per_worker > 1)
      return chunks * (Grid::kBlock + Grid::kHigh * high + Grid::kWide * wide + short_copies) +
             area * Grid::kOut;
    return chunks *
               (Grid::kAloneBlock + (taps > 1 ? Grid::kAloneHighTaps : Grid::kAloneHigh) * high +
                Grid::kWide * wide + short_copies) +
           area * Grid::kAloneOut;
  }
  using Inlined = costs::ConvInlined;
  if (conv->own_kernel == 1 && is_wgmma(*conv)) {
    // The patch; then a block of 64 k is multiplied, its weights come, or its fragments.
    const double patch = fit_of(*conv).patch_bytes / Inlined::kPatchBytes;
    return Inlined::kBegin + patch +
           chunks * std::max(Inlined::kWgmmaColumn * n, Inlined::kWgmmaBlock) +
           64 * n * Inlined::kWgmmaOut;
  }
  // Channels that are left behind whole tiles have no tile of conv_first.cuh, and take far longer.
  if (conv->own_kernel == 1 && is_first(*conv) && conv->out_channels % conv->channels == 0) {
    const double patch = fit_of(*conv).patch_bytes / Inlined::kPatchBytes;
    return Inlined::kBegin + patch + chunks * Inlined::kFirstBlock +
           static_cast<double>(pixels_of(*conv)) * n * Inlined::kFirstOut;
  }
  if (conv->own_kernel == 1 && is_wgmma_pipelined(*conv))  // rows are gathered
    return Inlined::kPipelinedBegin +
           chunks * std::max(Inlined::kPipelinedColumn * n, Inlined::kPipelinedBlock) +
           64 * n * Inlined::kWgmmaOut;
  const ConvFit fit = OBK_IS_HALF(conv->type) ? fit_of(*conv) : ConvFit{};
  for_passes(*conv, [&](int32_t first, int32_t pixels, int32_t channels) {
    const double area = static_cast<double>(conv_up16(pixels)) * conv_up16(channels);
    if (!OBK_IS_HALF(conv->type)) {
      using Fma = costs::ConvFma;
      const ConvPlan32 p = conv_plan32(conv, pixels, channels);
      const double k = p.k_blocks * 32.0, x = pixels * k * 4;
      const double from_memory = (x + p.channels * k * 4) / Fma::kMemoryBytes,
                   cached = k * 4 * (2 * p.pixels + p.channels) / Fma::kCacheBytes;
      // Single elements are gathered by 256 threads, several instructions each.
      const double single = conv->in_channels % 4 == 0 ? 0 : pixels * k / Fma::kSingles;
      nanos += Fma::kBegin + std::max({from_memory, cached, 2.0 * area * k / Fma::kFlops}) +
               single + area * Fma::kOut;
      return;
    }
    const ConvPlan p = conv_plan(conv, first, pixels, channels, 1, 1);
    // A block of 64 k takes its fragments from shared memory by eight warps, or its products; the
    // patch its bytes; the sums their way through shared memory.
    using Mma = costs::ConvMma;
    const double ms = p.channels > 32 ? 2 : 1;
    const double js = p.channels > 16 ? p.pixels / 16 : (p.pixels + 31) / 32;
    const double fragments = 8 * (ms * 4 + js * (p.source == kConvThin ? 16 : 4));
    const double block =
        std::max(Mma::kFragments * fragments, 8 * ms * js * Mma::kProducts) / Mma::kClock;
    const double pages = std::ceil(p.chunks * p.channels / Mma::kPageBytes);
    double x = Mma::kPatch + p.patch_bytes / Mma::kPatchBytes;
    if (p.source == kConvStaged)
      x = Mma::kStaged + p.chunks * (conv_thin(static_cast<int32_t>(conv->in_channels))
                                         ? Mma::kStagedThin
                                         : Mma::kStagedBlock);
    // Weights are requested about this long before the patch is there.
    const double weights = p.chunks * p.channels * 128 / Mma::kWeightBytes - Mma::kLoadedAhead;
    const bool whole = fit.fits && channels == conv->channels && pixels == pixels_of(*conv);
    nanos += (whole ? Mma::kWhole : Mma::kPass) + std::max(x, weights) + p.chunks * block +
             pages * Mma::kPage + area * Mma::kOut;
  });
  return nanos;
}

}  // namespace obelisk::kernels

/* kernels/cuda/conv/conv_patch.cuh — how a 16-bit convolution's pixels come to shared memory: a
 * patch of X for all taps, or blocks of 64 k for each pixel; and the offset of every step of k in a
 * patch.
 */
#ifndef OBK_CONV_PATCH_CUH
#define OBK_CONV_PATCH_CUH

#include "conv/conv.cuh"

namespace obk {

/* A patch [row][column], zero outside of X and behind its channels. A thread walks down a column of
 * pieces, so that little is worked out for each copy. */
static __device__ __forceinline__ void conv_load_patch(uint32_t to, const ConvWindow& v,
                                                       const ConvPlan& p) {
  const int pieces = conv_up16(v.in) >> 3, own = v.in >> 3, all = p.columns * pieces;
  const int64_t x_step = v.x_row * p.step_h;
  /* Few pieces in a row: several rows at once. */
  const int row_groups = all * 2 <= kConvThreads ? conv_div(kConvThreads, all) : 1;
  const int row_group = row_groups > 1 ? conv_div(threadIdx.x, all) : 0;
  if (row_group >= row_groups) return;
  for (int i = threadIdx.x - row_group * all; i < all; i += kConvThreads) {
    const int column = conv_div(i, pieces), piece = i - column * pieces;
    const int x = p.column + column * p.step_w;
    const bool there = (uint32_t)x < (uint32_t)v.width && piece < own;
    const char* from = v.x + (p.row + row_group * p.step_h) * v.x_row + x * v.x_pixel + piece * 16;
    uint32_t at = to + row_group * p.row_bytes + column * p.pixel_bytes + piece * 16;
    int y = p.row + row_group * p.step_h;
#pragma unroll 4
    for (int r = row_group; r < p.rows; r += row_groups) {
      const bool in = there && (uint32_t)y < (uint32_t)v.height;
      copy16_partly(at, in ? from : v.x, in ? 16u : 0u);
      at += row_groups * p.row_bytes, from += row_groups * x_step, y += row_groups * p.step_h;
    }
    if (row_groups > 1) break;
  }
}

/* Thin: whole rows of X between zeros, in units that X's address and rows allow. */
template <int kUnit>
static __device__ __noinline__ void conv_load_rows(uint32_t to, const ConvWindow v,
                                                   const ConvPlan p) {
  const int before = p.lead - p.column * p.pixel_bytes, bytes = v.width * p.pixel_bytes;
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < p.rows; r += kConvThreads / 32) {
    const int y = p.row + r * p.step_h;
    const char* from = v.x + y * v.x_row;
    const bool there = (uint32_t)y < (uint32_t)v.height;
#pragma unroll 4
    for (int at = threadIdx.x % 32 * kUnit; at < p.row_bytes; at += 32 * kUnit) {
      const bool in = there && (uint32_t)(at - before) < (uint32_t)bytes;
      copy_unit<kUnit>(to + r * p.row_bytes + at, in ? from + (at - before) : v.x, in ? kUnit : 0);
    }
  }
}
/* The same by elements, anywhere. */
static __device__ __noinline__ void conv_load_elements(uint32_t to, const ConvWindow v,
                                                       const ConvPlan p) {
  const int each = p.columns * v.in;
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < p.rows; r += kConvThreads / 32) {
    const int y = p.row + r * p.step_h;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < each; i += 32) {
      const int column = conv_div(i, v.in), x = p.column + column * p.step_w;
      uint16_t value = 0;
      if (v.has(y, x)) value = *(const uint16_t*)(v.at(y, x) + (i - column * v.in) * 2);
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + r * p.row_bytes + p.lead + i * 2),
                   "h"(value)
                   : "memory");
    }
  }
}
/* Thin: returns where the patch's first column lies. */
static __device__ __forceinline__ uint32_t conv_load_thin(uint32_t to, const ConvWindow& v,
                                                          const ConvPlan& p) {
  if (p.raw) { /* one run of bytes, from where 16 bytes begin */
    const char* first = v.at(p.row, p.column);
    const int lead = (int)((uint64_t)first & 15);
    const int end = lead + (p.rows - 1) * p.row_bytes + p.columns * p.pixel_bytes;
#pragma unroll 4
    for (int at = threadIdx.x * 16; at < end; at += kConvThreads * 16)
      copy16_partly(to + at, first - lead + at, end - at < 16 ? end - at : 16);
    return to + lead;
  }
  const uint32_t bits = (uint32_t)(uint64_t)v.x | (uint32_t)v.x_row | (v.width * p.pixel_bytes);
  if (v.x_pixel != p.pixel_bytes || p.step_w != 1 || (bits & 3) != 0)
    conv_load_elements(to, v, p);
  else if ((bits & 15) == 0)
    conv_load_rows<16>(to, v, p);
  else if ((bits & 7) == 0)
    conv_load_rows<8>(to, v, p);
  else
    conv_load_rows<4>(to, v, p);
  return to + p.lead;
}

/* For every step of 16 k: its offset in the patch, and how many of its elements are of k (thin). */
static __device__ __forceinline__ void conv_make_table(uint32_t table, const ConvWindow& v,
                                                       const ConvPlan& p) {
  const bool thin = p.source == kConvThin;
  const int row_k = v.kernel_w * v.in, each = (thin ? conv_up16(row_k) : conv_up16(v.in)) >> 4;
  for (int k = threadIdx.x; k < p.chunks * 4; k += kConvThreads) {
    const int tap = conv_div(k, each), c = (k - tap * each) * 16;
    const int ky = thin ? tap : conv_div(tap, v.kernel_w), kx = thin ? 0 : tap - ky * v.kernel_w;
    const uint32_t offset =
        ky * v.dilation_h * p.row_bytes + kx * v.dilation_w * p.pixel_bytes + c * 2;
    const uint32_t own = k >= p.k16 ? 0 : thin ? min(16, row_k - c) : 16;
    store_shared_word(table + k * 4, own ? offset << 5 | own : 0u);
  }
}

/* Staged: block `chunk` of 64 k of each pixel, 144 bytes a pixel. */
static __device__ __noinline__ void conv_load_stage(uint32_t to, const ConvWindow v, bool aligned,
                                                    int first, int pixels, int padded, int chunk) {
  const bool thin = conv_thin(v.in);
  const int each = thin ? conv_up16(v.kernel_w * v.in) : conv_up16(v.in);
  const int taps = thin ? v.kernel_h : v.kernel_h * v.kernel_w;
#pragma unroll 1
  for (int i = threadIdx.x; i < padded * 8; i += kConvThreads) {
    const int r = i >> 3, k = chunk * 64 + (i & 7) * 8, tap = conv_div(k, each), o = k - tap * each;
    const uint32_t at = to + r * 144 + (i & 7) * 16;
    const int pixel = first + r, row = conv_div(pixel, v.out_width);
    const int y0 = row * v.stride_h - v.top;
    const int x0 = (pixel - row * v.out_width) * v.stride_w - v.left;
    const bool there = r < pixels && tap < taps;
    if (!thin) {
      const int ky = conv_div(tap, v.kernel_w), kx = tap - ky * v.kernel_w;
      const int y = y0 + ky * v.dilation_h, x = x0 + kx * v.dilation_w;
      const bool in = there && o < v.in && v.has(y, x);
      if (aligned) {
        copy16_partly(at, in ? v.at(y, x) + o * 2 : v.x, in ? 16u : 0u);
        continue;
      }
      uint32_t words[4] = {};
      if (in) {
        const uint16_t* from = (const uint16_t*)v.at(y, x) + o;
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = from[2 * e] | (uint32_t)from[2 * e + 1] << 16;
      }
      store_shared16(at, words);
      continue;
    }
    uint32_t words[4] = {};
    const int y = y0 + tap * v.dilation_h;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int kx = conv_div(o + e, v.in), c = o + e - kx * v.in, x = x0 + kx * v.dilation_w;
      if (there && kx < v.kernel_w && v.has(y, x))
        words[e / 2] |= (uint32_t)((const uint16_t*)v.at(y, x))[c] << (e % 2 * 16);
    }
    store_shared16(at, words);
  }
}

}  // namespace obk

#endif

#include "kernels/cpu/conv.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops.h"

namespace obelisk::kernels {

namespace {

// Depth of a block of weights: 64 x 1024 floats are 256 KiB, a quarter of a usual L2.
constexpr int64_t kDepth = 1024;
// Up to here a kernel row is one product: as many input channels fill no vector of A's broadcasts.
constexpr int64_t kFewChannels = 8;
constexpr int64_t kBatch = 64;  // products summed by one call

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t element_bytes(int32_t type) { return OBK_LIES_AS_F32(type) ? 4 : 2; }

const void* at(const void* data, int32_t type, int64_t element) {
  return static_cast<const char*>(data) + element * element_bytes(type);
}

/// Input channels of a block; the last may have fewer.
int64_t block_channels(int64_t in_channels, int64_t kernel_size) {
  const int64_t most = std::max<int64_t>(16, kDepth / std::max<int64_t>(kernel_size, 1));
  const int64_t blocks = std::max<int64_t>(1, divide_up(in_channels, most));
  return std::max<int64_t>(1, divide_up(divide_up(in_channels, blocks), 8) * 8);
}

/// How the tile's input is read: where it lies, or a copy in scratch with zeros to the left and
/// right.
struct Source {
  bool merged;    // a kernel row is one product
  bool gathered;  // only the pixels that are read, as one row: single pixels with strides
  bool copied;
  int64_t first, last;  // input rows of the tile, inside the image
  int64_t width;        // pixels of a copied row
  int64_t bytes;        // of scratch for it

  explicit Source(const ObkConv& t) {
    const int64_t begin = t.row * t.stride_h - t.pad_top;
    first = std::clamp<int64_t>(begin, 0, t.height);
    last = std::clamp<int64_t>(
        begin + (t.rows - 1) * t.stride_h + (t.kernel_h - 1) * t.dilation_h + 1, first, t.height);
    width = (t.out_width - 1) * t.stride_w + (t.kernel_w - 1) * t.dilation_w + 1;
    merged = !t.depthwise && t.in_channels <= kFewChannels && t.kernel_w > 1 && t.dilation_w == 1;
    const bool sticks_out = t.pad_left > 0 || width - t.pad_left > t.width;
    gathered = !t.depthwise && t.kernel_h == 1 && t.kernel_w == 1 && !sticks_out &&
               t.pad_top == 0 && (t.stride_h > 1 || t.stride_w > 1) &&
               last - first == (t.rows - 1) * t.stride_h + 1;
    if (t.depthwise) {
      copied = t.type != kObkF32;  // its loop minds the edges itself
      width = t.width;
    } else {
      copied = sticks_out || t.type != kObkF32 || (merged && t.x_pixel != t.in_channels);
    }
    bytes = copied ? (last - first) * width * t.in_channels * 4 : 0;
    if (gathered) bytes = t.rows * t.out_width * t.in_channels * 4;
  }
};

/// A block of weights, rounded where the tile is of tf32: they are packed as f32.
int64_t rounded_weight_bytes(const ObkConv& t) {
  if (t.type != kObkTf32 || t.depthwise) return 0;
  const int64_t taps = t.kernel_h * t.kernel_w;
  return std::min(t.in_channels, block_channels(t.in_channels, taps)) * taps * kObkPanel * 4;
}

void copy_rows(const ObkConv& t, const Source& source, float* to) {
  const int64_t left = t.depthwise ? 0 : std::min(t.pad_left, source.width);
  const int64_t inside = std::clamp<int64_t>(source.width - left, 0, t.width);
  for (int64_t row = source.first; row < source.last; ++row) {
    const void* from = at(t.x, t.type, row * t.x_row);
    std::fill_n(to, left * t.in_channels, 0.0f);
    float* pixel = to + left * t.in_channels;
    if (t.x_pixel == t.in_channels) {
      loops().to_f32(t.type, inside * t.in_channels, from, 1, pixel);
    } else {
      for (int64_t column = 0; column < inside; ++column)
        loops().to_f32(t.type, t.in_channels, at(from, t.type, column * t.x_pixel), 1,
                       pixel + column * t.in_channels);
    }
    to += source.width * t.in_channels;
    std::fill(pixel + inside * t.in_channels, to, 0.0f);
  }
}

void gather_pixels(const ObkConv& t, float* to) {
  for (int64_t row = 0; row < t.rows; ++row) {
    const void* from = at(t.x, t.type, (t.row + row) * t.stride_h * t.x_row);
    for (int64_t column = 0; column < t.out_width; ++column, to += t.in_channels)
      loops().to_f32(t.type, t.in_channels, at(from, t.type, column * t.stride_w * t.x_pixel), 1,
                     to);
  }
}

/// Collects products and sums them into C in batches.
class Batch {
 public:
  explicit Batch(const Product& product) : product_(product) {}
  void add(const float* a, const float* b) {
    a_[count_] = a, b_[count_] = b;
    if (++count_ == kBatch) flush();
  }
  void flush() {
    if (count_ == 0) return;
    multiply_sum(product_, count_, a_, b_);
    product_.accumulate = true;
    count_ = 0;
  }

 private:
  Product product_;
  int64_t count_ = 0;
  const float* a_[kBatch];
  const float* b_[kBatch];
};

void run_dense(const ObkConv& tile) {
  ObkConv t = tile;
  const Source source(t);
  const float* x = static_cast<const float*>(t.x);
  int64_t x_row = t.x_row, x_pixel = t.x_pixel;
  if (source.gathered) {
    gather_pixels(t, static_cast<float*>(t.scratch));
    x_pixel = t.in_channels, x_row = t.out_width * x_pixel;
    x = static_cast<const float*>(t.scratch);
    t.row = 0, t.stride_h = t.stride_w = 1, t.height = t.rows;
  } else if (source.copied) {
    float* copy = static_cast<float*>(t.scratch);
    copy_rows(t, source, copy);
    x_pixel = t.in_channels, x_row = source.width * x_pixel;
    x = copy - source.first * x_row;
  }
  const int64_t kernel_size = t.kernel_h * t.kernel_w;
  if (kernel_size == 1 && t.stride_h == 1 && t.stride_w == 1 && t.pad_top == 0 &&
      t.row + t.rows <= t.height && x_row == t.out_width * x_pixel &&
      t.y_row == t.out_width * t.y_pixel) {
    x += t.row * x_row;  // all rows of the tile are one
    t.row = 0, t.out_width *= t.rows, t.rows = 1;
  }
  const int64_t depth = t.in_channels * kernel_size;
  const int64_t block = block_channels(t.in_channels, kernel_size);
  // Merged rows of A overlap unless every `turns`-th pixel is taken; kernel_w * in channels fit
  // then.
  const int64_t step = t.stride_w * x_pixel;
  const int64_t turns = source.merged ? divide_up(t.kernel_w * t.in_channels, step) : 1;
  for (int64_t column = 0; column < t.channels; column += kObkPanel) {
    const int64_t width = panel_width(t.out_channels, t.channel + column);
    const float* panel = static_cast<const float*>(t.weights) + (t.channel + column) * depth;
    for (int64_t begin = 0; begin < std::max<int64_t>(t.in_channels, 1); begin += block) {
      const int64_t channels = std::min(block, t.in_channels - begin);
      const float* weights = panel + begin * kernel_size * width;
      if (t.type == kObkTf32) {
        float* rounded = reinterpret_cast<float*>(static_cast<char*>(t.scratch) + source.bytes);
        loops().to_f32(t.type, kernel_size * channels * width, weights, 1, rounded);
        weights = rounded;
      }
      for (int64_t row = 0; row < t.rows; ++row) {
        const int64_t top = (t.row + row) * t.stride_h - t.pad_top;
        for (int64_t turn = 0; turn < std::min(turns, t.out_width); ++turn) {
          float* y = t.y + row * t.y_row + turn * t.y_pixel + column;
          const Product product{.m = divide_up(t.out_width - turn, turns),
                                .n = std::min<int64_t>(kObkPanel, t.channels - column),
                                .k = source.merged ? t.kernel_w * channels : channels,
                                .a = nullptr,
                                .a_row = turns * step,
                                .a_col = 1,
                                .b = nullptr,
                                .b_row = width,
                                .padded = true,
                                .c = y,
                                .c_row = turns * t.y_pixel,
                                .accumulate = t.accumulate || begin > 0};
          Batch batch(product);
          bool any = false;
          for (int64_t i = 0; i < t.kernel_h && channels > 0; ++i) {
            const int64_t in_row = top + i * t.dilation_h;
            if (in_row < 0 || in_row >= t.height) continue;
            const float* a = x + in_row * x_row + turn * step + begin;
            const float* b = weights + i * t.kernel_w * channels * width;
            any = true;
            for (int64_t j = 0; j < (source.merged ? 1 : t.kernel_w); ++j)
              batch.add(a + j * t.dilation_w * x_pixel, b + j * channels * width);
          }
          batch.flush();
          for (int64_t pixel = 0; !any && !product.accumulate && pixel < product.m; ++pixel)
            std::fill_n(y + pixel * product.c_row, product.n, 0.0f);
        }
      }
    }
  }
}

void run_depthwise(const ObkConv& t) {
  const Source source(t);
  const float* x = static_cast<const float*>(t.x);
  int64_t x_row = t.x_row, x_pixel = t.x_pixel;
  if (source.copied) {
    float* copy = static_cast<float*>(t.scratch);
    copy_rows(t, source, copy);
    x_pixel = t.in_channels, x_row = source.width * x_pixel;
    x = copy - source.first * x_row;
  }
  const float* weights = static_cast<const float*>(t.weights) + t.channel;
  for (int64_t row = 0; row < t.rows; ++row) {
    ObkConv part = t;
    float* y = t.y + row * t.y_row;
    const int64_t top = (t.row + row) * t.stride_h - t.pad_top;
    for (int64_t i = 0; i < t.kernel_h || i == 0;) {
      // The kernel rows that exist, as many at a time as fit.
      const float *rows[kBatch], *kernels[kBatch];
      int64_t count = 0;
      for (; i < t.kernel_h && count < kBatch; ++i) {
        const int64_t in_row = top + i * t.dilation_h;
        if (in_row < 0 || in_row >= t.height) continue;
        rows[count] = x + in_row * x_row;
        kernels[count++] = weights + i * t.kernel_w * t.out_channels;
      }
      if (t.multiplier == 1) {
        for (int64_t j = 0; j < count; ++j) rows[j] += t.channel;
        loops().depthwise_row(&part, count, rows, kernels, x_pixel, y);
      } else {
        // Each input channel feeds several output channels; rare, so one output channel at a time.
        for (int64_t c = 0; c < t.channels; ++c) {
          ObkConv one = part;
          const float *one_rows[kBatch], *one_kernels[kBatch];
          for (int64_t j = 0; j < count; ++j) {
            one_rows[j] = rows[j] + (t.channel + c) / t.multiplier;
            one_kernels[j] = kernels[j] + c;
          }
          one.channels = 1;
          loops().depthwise_row(&one, count, one_rows, one_kernels, x_pixel, y + c);
        }
      }
      part.accumulate = 1;
      if (t.kernel_h == 0) break;
    }
  }
}

}  // namespace

}  // namespace obelisk::kernels

using namespace obelisk::kernels;

extern "C" {

int64_t obk_conv_packed_bytes(int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                              int64_t kernel_w) {
  return divide_up(out_channels, 16) * 16 * in_channels * kernel_h * kernel_w * 4;
}

void obk_conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                   int64_t kernel_w, const void* weights, int64_t out_stride, int64_t in_stride,
                   int64_t h_stride, int64_t w_stride, void* packed) {
  float* to = static_cast<float*>(packed);
  const int64_t block = block_channels(in_channels, kernel_h * kernel_w);
  for (int64_t panel = 0; panel < out_channels; panel += kObkPanel) {
    const int64_t width = panel_width(out_channels, panel);
    const int64_t columns = std::min<int64_t>(kObkPanel, out_channels - panel);
    for (int64_t begin = 0; begin < in_channels; begin += block) {
      for (int64_t h = 0; h < kernel_h; ++h) {
        for (int64_t w = 0; w < kernel_w; ++w) {
          for (int64_t c = begin; c < std::min(begin + block, in_channels); ++c, to += width) {
            const int64_t first = panel * out_stride + c * in_stride + h * h_stride + w * w_stride;
            loops().to_f32(type, columns, at(weights, type, first), out_stride, to);
            std::fill(to + columns, to + width, 0.0f);
          }
        }
      }
    }
  }
}

int64_t obk_depthwise_packed_bytes(int64_t channels, int64_t kernel_h, int64_t kernel_w) {
  return channels * kernel_h * kernel_w * 4;
}

void obk_depthwise_pack(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                        const void* weights, int64_t out_stride, int64_t h_stride, int64_t w_stride,
                        void* packed) {
  float* to = static_cast<float*>(packed);
  for (int64_t h = 0; h < kernel_h; ++h)
    for (int64_t w = 0; w < kernel_w; ++w, to += channels)
      loops().to_f32(type, channels, at(weights, type, h * h_stride + w * w_stride), out_stride,
                     to);
}

int64_t obk_conv_scratch_bytes(const ObkConv* conv) {
  return Source(*conv).bytes + rounded_weight_bytes(*conv);
}

void obk_conv_tile(const ObkConv* conv) {
  if (conv->rows <= 0 || conv->out_width <= 0 || conv->channels <= 0) return;
  if (conv->depthwise)
    run_depthwise(*conv);
  else
    run_dense(*conv);
}

}  // extern "C"

// kernels/cpu/loops.inl — the text behind loops.h. The including file sets OBK_NAME (of the table),
// OBK_ISA (its printed name) and OBK_ROWS (rows of C held in registers), and is compiled for its
// instruction set.
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/table.h"

namespace obelisk::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));
  static constexpr int kLanes = kBytes / sizeof(T);
};

// ---- products
// -----------------------------------------------------------------------------------------------------------

/// kRows x kGroup elements of C, with all of k. Columns past `columns` are computed and dropped.
template <typename T, int kRows, bool kPadded>
inline void block(int64_t columns, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                  int64_t b_row, T* c, int64_t c_row, bool accumulate) {
  using V = typename Vector<T>::type;
  constexpr int kLanes = Vector<T>::kLanes, kVectors = kGroup / kLanes;
  V sum[kRows][kVectors] = {};
  T edge[kRows][kGroup], b_edge[kGroup] = {};
  const bool whole = columns == kGroup;
  if (accumulate) {
    for (int r = 0; r < kRows; ++r) {
      if (!whole) memcpy(edge[r], c + r * c_row, columns * sizeof(T));
      const T* from = whole ? c + r * c_row : edge[r];
      for (int v = 0; v < kVectors; ++v) sum[r][v] = *reinterpret_cast<const V*>(from + v * kLanes);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    const T* b_at = b + i * b_row;
    if constexpr (!kPadded) {
      for (int64_t j = 0; j < columns; ++j) b_edge[j] = b_at[j];
      b_at = b_edge;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T x = a[r * a_row + i * a_col];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] += x * *reinterpret_cast<const V*>(b_at + v * kLanes);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    T* to = whole ? c + r * c_row : edge[r];
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(to + v * kLanes) = sum[r][v];
    if (!whole) memcpy(c + r * c_row, edge[r], columns * sizeof(T));
  }
}

template <typename T, bool kPadded>
void column_of_blocks(int64_t m, int64_t columns, int64_t k, const T* a, int64_t a_row,
                      int64_t a_col, const T* b, int64_t b_row, T* c, int64_t c_row,
                      bool accumulate) {
  int64_t row = 0;
  for (; row + OBK_ROWS <= m; row += OBK_ROWS)
    block<T, OBK_ROWS, kPadded>(columns, k, a + row * a_row, a_row, a_col, b, b_row,
                                c + row * c_row, c_row, accumulate);
  for (; row < m; ++row)
    block<T, 1, kPadded>(columns, k, a + row * a_row, a_row, a_col, b, b_row, c + row * c_row,
                         c_row, accumulate);
}

template <typename T>
void gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
          int64_t b_row, T* c, int64_t c_row, bool accumulate, bool padded) {
  for (int64_t column = 0; column < n; column += kGroup) {
    const int64_t columns = n - column < kGroup ? n - column : kGroup;
    const auto blocks =
        padded || columns == kGroup ? column_of_blocks<T, true> : column_of_blocks<T, false>;
    blocks(m, columns, k, a, a_row, a_col, b + column, b_row, c + column, c_row, accumulate);
  }
}

#if defined(__AVX512BW__)
using Pairs = __m512i;
inline Pairs load_pairs(const void* p) { return _mm512_loadu_si512(p); }
inline Pairs same_pair(int32_t pair) { return _mm512_set1_epi32(pair); }
inline Pairs add_products(Pairs sum, Pairs x, Pairs y) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y));
}
#elif defined(__AVX2__)
using Pairs = __m256i;
inline Pairs load_pairs(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Pairs same_pair(int32_t pair) { return _mm256_set1_epi32(pair); }
inline Pairs add_products(Pairs sum, Pairs x, Pairs y) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
}
#else
using Pairs = __m128i;
inline Pairs load_pairs(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline Pairs same_pair(int32_t pair) { return _mm_set1_epi32(pair); }
inline Pairs add_products(Pairs sum, Pairs x, Pairs y) {
  return _mm_add_epi32(sum, _mm_madd_epi16(x, y));
}
#endif

template <int kRows>
inline void block_i16(int64_t columns, int64_t k, const int16_t* a, int64_t a_row, const int16_t* b,
                      int64_t b_row, int32_t* c, int64_t c_row, bool accumulate) {
  constexpr int kLanes = sizeof(Pairs) / 4, kVectors = kGroup / kLanes;
  Pairs sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Pairs{};
  for (int64_t i = 0; i < k; ++i) {
    const int16_t* b_at = b + 2 * i * b_row;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      memcpy(&pair, a + 2 * (r * a_row + i), 4);
      const Pairs x = same_pair(pair);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = add_products(sum[r][v], x, load_pairs(b_at + 2 * v * kLanes));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    int32_t out[kGroup];
    memcpy(out, sum[r], sizeof(out));
    for (int64_t j = 0; j < columns; ++j) {
      // Wraps around as i32 sums do; in unsigned arithmetic, where C++ allows it.
      const uint32_t before = accumulate ? static_cast<uint32_t>(c[r * c_row + j]) : 0u;
      c[r * c_row + j] = static_cast<int32_t>(before + static_cast<uint32_t>(out[j]));
    }
  }
}

void gemm_i16(int64_t m, int64_t n, int64_t k, const int16_t* a, int64_t a_row, const int16_t* b,
              int64_t b_row, int32_t* c, int64_t c_row, bool accumulate) {
  for (int64_t column = 0; column < n; column += kGroup) {
    const int64_t columns = n - column < kGroup ? n - column : kGroup;
    int64_t row = 0;
    for (; row + OBK_ROWS <= m; row += OBK_ROWS)
      block_i16<OBK_ROWS>(columns, k, a + 2 * row * a_row, a_row, b + 2 * column, b_row,
                          c + row * c_row + column, c_row, accumulate);
    for (; row < m; ++row)
      block_i16<1>(columns, k, a + 2 * row * a_row, a_row, b + 2 * column, b_row,
                   c + row * c_row + column, c_row, accumulate);
  }
}

// ---- conversions
// --------------------------------------------------------------------------------------------------------

/// Exact; NaN stays NaN. Shifts the exponent by a multiplication, which also puts denormals right.
inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const float scaled = obk::from_bits(magnitude << 13) * 0x1p112f;
  const uint32_t bits = obk::to_bits(scaled) | (magnitude >= 0x7c00u ? 0x7f800000u : 0u);
  return obk::from_bits(bits | sign);
}

/// Weights are packed from where they lie in the model's file, which need not be aligned.
template <typename T>
inline T read(const T* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

/// To 10 bits of mantissa, the nearest, halves away from zero; NaN stays NaN.
inline float rounded_to_tf32(float value) {
  const uint32_t bits = obk::to_bits(value), rounded = (bits + 0x1000u) & 0xffffe000u;
  return obk::from_bits((bits & 0x7f800000u) == 0x7f800000u ? bits : rounded);
}

void to_f32(int32_t type, int64_t count, const void* source, int64_t stride, float* destination) {
  if (type == kObkF32) {
    const float* from = static_cast<const float*>(source);
    if (stride == 1) {
      memcpy(destination, from, count * sizeof(float));
    } else {
      for (int64_t i = 0; i < count; ++i) destination[i] = read(from + i * stride);
    }
    return;
  }
  if (type == kObkTf32) {
    const float* from = static_cast<const float*>(source);
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) destination[i] = rounded_to_tf32(read(from + i));
    } else {
      for (int64_t i = 0; i < count; ++i) destination[i] = rounded_to_tf32(read(from + i * stride));
    }
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(source);
  if (type == kObkBf16) {
    for (int64_t i = 0; i < count; ++i)
      destination[i] = obk::from_bits(static_cast<uint32_t>(read(from + i * stride)) << 16);
  } else if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) destination[i] = half_to_float(read(from + i));
  } else {
    for (int64_t i = 0; i < count; ++i) destination[i] = half_to_float(read(from + i * stride));
  }
}

#if defined(__AVX__)
inline void transpose_8x8(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 row[8], pair[8];
  for (int r = 0; r < 8; ++r) row[r] = _mm256_loadu_ps(from + r * from_row);
  for (int r = 0; r < 8; r += 2) {
    pair[r] = _mm256_unpacklo_ps(row[r], row[r + 1]);
    pair[r + 1] = _mm256_unpackhi_ps(row[r], row[r + 1]);
  }
  for (int r = 0; r < 8; r += 4) {
    row[r] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0x44);
    row[r + 1] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0xee);
    row[r + 2] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0x44);
    row[r + 3] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0xee);
  }
  for (int r = 0; r < 4; ++r) {
    _mm256_storeu_ps(to + r * to_row, _mm256_permute2f128_ps(row[r], row[r + 4], 0x20));
    _mm256_storeu_ps(to + (r + 4) * to_row, _mm256_permute2f128_ps(row[r], row[r + 4], 0x31));
  }
}
#else
inline void transpose_8x8(const float* from, int64_t from_row, float* to, int64_t to_row) {
  for (int64_t c = 0; c < 8; ++c)
    for (int64_t r = 0; r < 8; ++r) to[c * to_row + r] = read(from + r * from_row + c);
}
#endif

void transpose(int64_t rows, int64_t columns, const float* source, int64_t source_row,
               float* destination, int64_t destination_row) {
  for (int64_t row = 0; row < rows; row += 8) {
    for (int64_t column = 0; column < columns; column += 8) {
      const float* from = source + row * source_row + column;
      float* to = destination + column * destination_row + row;
      if (row + 8 <= rows && column + 8 <= columns) {
        transpose_8x8(from, source_row, to, destination_row);
      } else {
        const int64_t height = rows - row < 8 ? rows - row : 8;
        const int64_t width = columns - column < 8 ? columns - column : 8;
        for (int64_t c = 0; c < width; ++c)
          for (int64_t r = 0; r < height; ++r)
            to[c * destination_row + r] = read(from + r * source_row + c);
      }
    }
  }
}

void scale(int64_t count, float factor, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

// ---- attention

constexpr int64_t kKeys = 16;  // keys whose mask is turned at a time

/// tile[key][query] = what `mask` and `causal` add to the scores of keys [begin, begin + count).
void turn_mask(const ObkAttention& t, int64_t begin, int64_t count, int64_t width, float* tile) {
  const float* floats = static_cast<const float*>(t.mask) + begin * t.mask_key;
  const uint8_t* bytes = static_cast<const uint8_t*>(t.mask) + begin * t.mask_key;
  for (int64_t i = 0; i < count * width; ++i) tile[i] = 0;
  if (t.mask_type == 1 && t.mask_query != 0 && t.mask_key == 1) {
    transpose(t.queries, count, floats, t.mask_query, tile, width);
  } else if (t.mask_type == 1) {
    for (int64_t key = 0; key < count; ++key)
      for (int64_t query = 0; query < t.queries; ++query)
        tile[key * width + query] = floats[query * t.mask_query + key * t.mask_key];
  } else if (t.mask_type == 2) {
    for (int64_t key = 0; key < count; ++key)
      for (int64_t query = 0; query < t.queries; ++query)
        tile[key * width + query] =
            bytes[query * t.mask_query + key * t.mask_key] ? 0.0f : -INFINITY;
  }
  if (t.causal) {
    for (int64_t key = 0; key < count; ++key) {
      const int64_t first = begin + key - t.causal_offset;  // the first query that sees the key
      const int64_t unseen = first < 0 ? 0 : first < t.queries ? first : t.queries;
      for (int64_t query = 0; query < unseen; ++query) tile[key * width + query] = -INFINITY;
    }
  }
}

void softmax_keys(const ObkAttention* attention, int64_t keys, int64_t width, float* scores,
                  float* tile, float* total) {
  const ObkAttention& t = *attention;
  // Causal: the first key that some query does not see is 1 + causal_offset.
  for (int64_t begin = 0; begin < keys; begin += kKeys) {
    const int64_t count = keys - begin < kKeys ? keys - begin : kKeys;
    float* block = scores + begin * width;
    if (t.softcap > 0) {
      const float inverse = 1.0f / t.softcap;
      for (int64_t i = 0; i < count * width; ++i)
        block[i] = t.softcap * obk::tanh(block[i] * inverse);
    }
    if (t.mask_type != 0 || (t.causal && begin + count > 1 + t.causal_offset)) {
      turn_mask(t, begin, count, width, tile);
      if (t.zero_if_masked)  // infinities and NaN of masked keys do not count
        for (int64_t i = 0; i < count * width; ++i)
          block[i] = tile[i] == -INFINITY ? -INFINITY : block[i] + tile[i];
      else
        for (int64_t i = 0; i < count * width; ++i) block[i] += tile[i];
    }
  }
  // 16 queries side by side, all keys below one another, so that largest and sum stay in registers.
  for (int64_t query = 0; query < width; query += 16) {
    float largest[16], sum[16];
    for (int lane = 0; lane < 16; ++lane) largest[lane] = -INFINITY, sum[lane] = 0;
    float* row = scores + query;
    for (int64_t key = 0; key < keys; ++key, row += width)
      for (int lane = 0; lane < 16; ++lane)
        largest[lane] = row[lane] > largest[lane] ? row[lane] : largest[lane];
    // Every key forbidden: -inf - -inf is the NaN that the definition gives; -inf - 0 makes zeros.
    if (t.zero_if_masked)
      for (int lane = 0; lane < 16; ++lane)
        largest[lane] = largest[lane] == -INFINITY ? 0.0f : largest[lane];
    row = scores + query;
    for (int64_t key = 0; key < keys; ++key, row += width) {
      for (int lane = 0; lane < 16; ++lane) {
        const float weight = obk::exp(row[lane] - largest[lane]);
        row[lane] = weight;
        sum[lane] += weight;
      }
    }
    for (int lane = 0; lane < 16; ++lane) total[query + lane] = sum[lane];
  }
}

// ---- depthwise convolution

/// kVectors vectors of channels of one pixel.
template <int kVectors>
inline void depthwise_channels(const ObkConv& t, int64_t kernel_rows, const float* const* rows,
                               const float* const* weights, int64_t pixel_stride, int64_t column,
                               int64_t channel, float* y) {
  using V = typename Vector<float>::type;
  constexpr int kLanes = Vector<float>::kLanes;
  V sum[kVectors] = {};
  if (t.accumulate)
    for (int v = 0; v < kVectors; ++v) sum[v] = *reinterpret_cast<const V*>(y + v * kLanes);
  const int64_t first = column * t.stride_w - t.pad_left;
  for (int64_t i = 0; i < kernel_rows; ++i) {
    for (int64_t j = 0; j < t.kernel_w; ++j) {
      const int64_t at = first + j * t.dilation_w;
      if (at < 0 || at >= t.width) continue;
      const float* x = rows[i] + at * pixel_stride + channel;
      const float* w = weights[i] + j * t.out_channels + channel;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[v] += *reinterpret_cast<const V*>(x + v * kLanes) *
                  *reinterpret_cast<const V*>(w + v * kLanes);
    }
  }
  for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(y + v * kLanes) = sum[v];
}

void depthwise_row(const ObkConv* conv, int64_t kernel_rows, const float* const* rows,
                   const float* const* weights, int64_t pixel_stride, float* y) {
  const ObkConv& t = *conv;
  constexpr int kLanes = Vector<float>::kLanes;
  for (int64_t column = 0; column < t.out_width; ++column) {
    float* to = y + column * t.y_pixel;
    int64_t c = 0;
    for (; c + 4 * kLanes <= t.channels; c += 4 * kLanes)
      depthwise_channels<4>(t, kernel_rows, rows, weights, pixel_stride, column, c, to + c);
    for (; c + kLanes <= t.channels; c += kLanes)
      depthwise_channels<1>(t, kernel_rows, rows, weights, pixel_stride, column, c, to + c);
    for (; c < t.channels; ++c) {
      float sum = t.accumulate ? to[c] : 0.0f;
      for (int64_t i = 0; i < kernel_rows; ++i) {
        for (int64_t j = 0; j < t.kernel_w; ++j) {
          const int64_t at = column * t.stride_w - t.pad_left + j * t.dilation_w;
          if (at < 0 || at >= t.width) continue;
          sum += rows[i][at * pixel_stride + c] * weights[i][j * t.out_channels + c];
        }
      }
      to[c] = sum;
    }
  }
}

}  // namespace

const Loops OBK_NAME = {
    .name = OBK_ISA,
    .gemm_f32 = gemm<float>,
    .gemm_f64 = gemm<double>,
    .gemm_i16 = gemm_i16,
    .to_f32 = to_f32,
    .transpose = transpose,
    .scale = scale,
    .depthwise_row = depthwise_row,
    .softmax_keys = softmax_keys,
};

}  // namespace obelisk::kernels

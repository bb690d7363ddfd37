#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/base.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops.h"

namespace obelisk::kernels {

namespace {

constexpr int64_t kConverted = 64;  // keys whose K or V is converted to f32 at a time

const void* at(const ObkAttention& t, const void* data, int64_t element) {
  return static_cast<const char*>(data) + element * (OBK_LIES_AS_F32(t.type) ? 4 : 2);
}

/// Where the parts of the scratch begin, in floats.
struct Layout {
  int64_t width, queries, scores, mask, total, converted, end;
  explicit Layout(const ObkAttention& t) {
    width = round_up(t.queries, 16);
    queries = 0;  // Q transposed and scaled, [size][width]
    scores = queries + t.size * width;
    mask = scores + t.keys * width;
    total = mask + 16 * width;
    converted = total + width;
    const int64_t widest = round_up(std::max(t.size, t.value_size), 16);
    end = converted + (t.type == kObkF32 ? 0 : kConverted * widest);
    // Q is transposed from f32 rows; those of another type pass through the place of the scores or
    // here.
    end = std::max(end, scores + t.size);
  }
};

/// Calls body(first key, count, rows as f32, stride) over K or V, converting it piece by piece if
/// need be.
template <typename Body>
void for_rows(const ObkAttention& t, const void* rows, int64_t row, int64_t columns, int64_t keys,
              float* converted, Body body) {
  if (t.type == kObkF32) {
    body(0, keys, static_cast<const float*>(rows), row);
    return;
  }
  const int64_t width = round_up(columns, 16);
  for (int64_t key = 0; key < keys; key += kConverted) {
    const int64_t count = std::min(kConverted, keys - key);
    for (int64_t i = 0; i < count; ++i)
      loops().to_f32(t.type, columns, at(t, rows, (key + i) * row), 1, converted + i * width);
    body(key, count, converted, width);
  }
}

void run(const ObkAttention& t) {
  int64_t keys = t.keys;
  bool nothing_seen = false;
  if (t.causal) {
    const int64_t seen = std::clamp<int64_t>(t.queries + t.causal_offset, 0, keys);
    nothing_seen = seen == 0 && keys > 0;
    keys = seen;
  }
  if (keys == 0) {
    const float value =
        nothing_seen && !t.zero_if_masked ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (int64_t query = 0; query < t.queries; ++query)
      std::fill_n(t.y + query * t.y_row, t.value_size, value);
    return;
  }
  const Layout layout(t);
  float* scratch = static_cast<float*>(t.scratch);
  float *transposed = scratch + layout.queries, *scores = scratch + layout.scores;
  float *total = scratch + layout.total, *converted = scratch + layout.converted;
  const int64_t width = layout.width;

  std::fill_n(transposed, t.size * width, 0.0f);
  if (t.type == kObkF32) {
    loops().transpose(t.queries, t.size, static_cast<const float*>(t.q), t.q_row, transposed,
                      width);
  } else {
    for (int64_t query = 0; query < t.queries; ++query) {
      loops().to_f32(t.type, t.size, at(t, t.q, query * t.q_row), 1, scores);
      for (int64_t i = 0; i < t.size; ++i) transposed[i * width + query] = scores[i];
    }
  }
  loops().scale(t.size * width, t.scale, transposed);

  if (t.size == 0) std::fill_n(scores, keys * width, 0.0f);
  if (t.size > 0) {
    for_rows(t, t.k, t.k_row, t.size, keys, converted,
             [&](int64_t key, int64_t count, const float* rows, int64_t row) {
               multiply({.m = count,
                         .n = width,
                         .k = t.size,
                         .a = rows,
                         .a_row = row,
                         .a_col = 1,
                         .b = transposed,
                         .b_row = width,
                         .padded = true,
                         .c = scores + key * width,
                         .c_row = width,
                         .accumulate = false});
             });
  }
  loops().softmax_keys(&t, keys, width, scores, scratch + layout.mask, total);
  if (t.type == kObkTf32) loops().to_f32(kObkTf32, keys * width, scores, 1, scores);
  if (t.value_size == 0) return;
  for_rows(t, t.v, t.v_row, t.value_size, keys, converted,
           [&](int64_t key, int64_t count, const float* rows, int64_t row) {
             multiply({.m = t.queries,
                       .n = t.value_size,
                       .k = count,
                       .a = scores + key * width,
                       .a_row = 1,
                       .a_col = width,
                       .b = rows,
                       .b_row = row,
                       .padded = t.type != kObkF32,
                       .c = t.y,
                       .c_row = t.y_row,
                       .accumulate = key > 0});
           });
  for (int64_t query = 0; query < t.queries; ++query) {
    // A total of zero happens only where zeros are asked for: the weights are zeros already.
    const float inverse = total[query] == 0 ? 0.0f : 1.0f / total[query];
    loops().scale(t.value_size, inverse, t.y + query * t.y_row);
  }
}

}  // namespace

}  // namespace obelisk::kernels

extern "C" {

int64_t obk_attention_scratch_bytes(const ObkAttention* attention) {
  return obelisk::kernels::Layout(*attention).end * 4;
}

void obk_attention_tile(const ObkAttention* attention) {
  if (attention->queries > 0) obelisk::kernels::run(*attention);
}

}  // extern "C"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/base.h"
#include "kernels/kernels.h"

namespace obelisk::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(engine);
  return values;
}

void run(ObkAttention t) {
  std::vector<char> scratch(attention_scratch_bytes(t) + 64);
  t.scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  attention_tile(t);
}

/// The definition, in double.
void expect_attention(const ObkAttention& t, const std::vector<double>& q,
                      const std::vector<double>& k, const std::vector<double>& v,
                      double allowed = 6e-6) {
  for (int64_t query = 0; query < t.queries; ++query) {
    std::vector<double> score(t.keys);
    double largest = -kInfinity, total = 0;
    for (int64_t key = 0; key < t.keys; ++key) {
      double dot = 0;
      for (int64_t i = 0; i < t.size; ++i) dot += q[query * t.q_row + i] * k[key * t.k_row + i];
      dot *= t.scale;
      if (t.softcap > 0) dot = t.softcap * std::tanh(dot / t.softcap);
      const int64_t at = query * t.mask_query + key * t.mask_key;
      if (t.mask_type == 1) dot += static_cast<const float*>(t.mask)[at];
      if (t.mask_type == 2 && !static_cast<const uint8_t*>(t.mask)[at]) dot = -kInfinity;
      if (t.causal && key > query + t.causal_offset) dot = -kInfinity;
      score[key] = dot;
      largest = std::max(largest, dot);
    }
    const bool masked = largest == -kInfinity;
    for (double& s : score) total += s = std::exp(s - largest);
    for (int64_t i = 0; i < t.value_size; ++i) {
      double want = 0;
      for (int64_t key = 0; key < t.keys; ++key) want += score[key] / total * v[key * t.v_row + i];
      if (masked && t.zero_if_masked) want = 0;
      const float got = t.y[query * t.y_row + i];
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(got)) << query << ", " << i;
      else
        ASSERT_NEAR(got, want, allowed)
            << query << ", " << i << " of " << t.queries << " x " << t.keys;
    }
  }
}

struct Case {
  int64_t queries, keys, size, value_size;
};
const Case kCases[] = {{1, 1, 1, 1},      {1, 37, 64, 64}, {48, 128, 32, 32}, {17, 65, 24, 40},
                       {64, 197, 64, 64}, {5, 3, 7, 11},   {16, 16, 16, 16},  {33, 70, 80, 5},
                       {3, 129, 128, 96}, {2, 5, 4, 0}};

/// Fills all but the options and compares; y's other columns must stay as they were.
void check(const Case& s, ObkAttention t, DType dtype = DType::f32) {
  const bool tf32 = t.type == kObkTf32;
  t.queries = s.queries, t.keys = s.keys, t.size = s.size, t.value_size = s.value_size;
  if (!tf32) t.type = static_cast<int>(dtype);
  t.q_row = s.size + 3, t.k_row = s.size + 5, t.v_row = s.value_size + 2,
  t.y_row = s.value_size + 1;
  t.scale = 1 / std::sqrt(static_cast<float>(s.size));
  // Exactly as many elements as the tile may touch, so that a sanitizer sees one more.
  const auto stored = [&](int64_t rows, int64_t row, int64_t columns, uint32_t seed,
                          std::vector<double>& exact) {
    const auto values = random_floats(rows == 0 ? 0 : (rows - 1) * row + columns, seed);
    std::vector<char> bytes(byte_size(dtype, values.size()));
    for (size_t i = 0; i < values.size(); ++i) set_double(bytes.data(), dtype, i, 3 * values[i]);
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = get_double(bytes.data(), dtype, i);
      const int shift = 10 - (v == 0 ? 0 : std::ilogb(v));  // to 10 bits of mantissa
      exact.push_back(tf32 ? std::ldexp(std::round(std::ldexp(v, shift)), -shift) : v);
    }
    return bytes;
  };
  std::vector<double> q_exact, k_exact, v_exact;
  const auto q = stored(s.queries, t.q_row, s.size, 1, q_exact),
             k = stored(s.keys, t.k_row, s.size, 2, k_exact);
  const auto v = stored(s.keys, t.v_row, s.value_size, 3, v_exact);
  t.q = q.data(), t.k = k.data(), t.v = v.data();
  std::vector<float> y(s.queries * t.y_row, 99);
  t.y = y.data();
  run(t);
  // The weights are rounded too: half a unit of ten bits of the largest value.
  expect_attention(t, q_exact, k_exact, v_exact, tf32 ? 2e-3 : 6e-6);
  for (int64_t query = 0; query < s.queries; ++query)
    ASSERT_EQ(y[query * t.y_row + s.value_size], 99);
}

TEST(Attention, Plain) {
  for (const Case& s : kCases) check(s, {});
}

TEST(Attention, HalfTypes) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const Case& s : kCases) check(s, {.causal = 1, .causal_offset = 2}, dtype);
}

TEST(Attention, Tf32RoundsWhatItMultiplies) {
  for (const Case& s : kCases) check(s, {.type = kObkTf32, .causal = 1, .causal_offset = 2});
}

TEST(Attention, CausalWithAnyOffset) {
  for (const Case& s : kCases)
    for (const int64_t offset : {0, 1, 7, 200, -1, -3, -100})
      for (const int zero : {0, 1})
        check(s, {.causal = 1, .causal_offset = offset, .zero_if_masked = zero});
}

/// A query or a key that is masked everywhere may hold what it likes.
TEST(Attention, MaskedScoresDoNotCountWhereRowsAreZeros) {
  constexpr int64_t kQueries = 5, kKeys = 19, kSize = 8;
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  std::vector<float> q = random_floats(kQueries * kSize, 1), k = random_floats(kKeys * kSize, 2),
                     v = random_floats(kKeys * kSize, 3), added(kQueries * kKeys, 0);
  q[2 * kSize] = nan, q[3 * kSize] = inf, k[7 * kSize + 1] = inf, k[18 * kSize] = nan;
  for (int64_t key = 0; key < kKeys; ++key)
    added[2 * kKeys + key] = added[3 * kKeys + key] = -kInfinity;
  for (int64_t query = 0; query < kQueries; ++query)
    added[query * kKeys + 7] = added[query * kKeys + 18] = -kInfinity;
  std::vector<uint8_t> allowed;
  for (const float one : added) allowed.push_back(one == 0);
  for (const int type : {1, 2}) {
    std::vector<float> y(kQueries * kSize, 99);
    run({.type = kObkF32,
         .queries = kQueries,
         .keys = kKeys,
         .size = kSize,
         .value_size = kSize,
         .q = q.data(),
         .k = k.data(),
         .v = v.data(),
         .q_row = kSize,
         .k_row = kSize,
         .v_row = kSize,
         .y = y.data(),
         .y_row = kSize,
         .scale = 0.5f,
         .mask_type = type,
         .mask = type == 1 ? static_cast<const void*>(added.data()) : allowed.data(),
         .mask_query = kKeys,
         .mask_key = 1,
         .zero_if_masked = 1});
    for (int64_t at = 0; at < kQueries * kSize; ++at) {
      const bool masked = at / kSize == 2 || at / kSize == 3;
      EXPECT_TRUE(masked ? y[at] == 0 : std::isfinite(y[at]) && y[at] != 0) << type << ", " << at;
    }
  }
}

TEST(Attention, MasksWithAnyStrides) {
  for (const Case& s : kCases) {
    auto floats = random_floats(s.queries * s.keys, 9);
    for (size_t i = 0; i < floats.size(); i += 3) floats[i] = -kInfinity;
    std::vector<uint8_t> bytes(floats.size());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 3 != 1;
    for (const auto& [query, key] :
         std::vector<std::pair<int64_t, int64_t>>{{s.keys, 1}, {0, 1}, {1, s.queries}, {1, 0}}) {
      for (const int causal : {0, 1}) {
        check(s, {.mask_type = 1,
                  .mask = floats.data(),
                  .mask_query = query,
                  .mask_key = key,
                  .causal = causal});
        check(s, {.mask_type = 2,
                  .mask = bytes.data(),
                  .mask_query = query,
                  .mask_key = key,
                  .causal = causal});
      }
    }
  }
}

TEST(Attention, FullyMaskedRowsAreNanOrZerosAsAsked) {
  std::vector<uint8_t> none(64 * 197, 0);
  for (const Case& s : kCases)
    for (const int zero : {0, 1})
      check(s, {.mask_type = 2,
                .mask = none.data(),
                .mask_query = s.keys,
                .mask_key = 1,
                .zero_if_masked = zero});
}

TEST(Attention, Softcap) {
  for (const Case& s : kCases) check(s, {.softcap = 0.7f, .causal = 1});
}

TEST(Attention, NoKeysGiveZeros) {
  std::vector<float> q(64), y(16, 5);
  ObkAttention t{.type = kObkF32,
                 .queries = 2,
                 .keys = 0,
                 .size = 8,
                 .value_size = 8,
                 .q = q.data(),
                 .q_row = 8};
  t.y = y.data(), t.y_row = 8, t.scale = 1;
  run(t);
  EXPECT_EQ(y, std::vector<float>(16, 0));
}

TEST(Attention, AQueryDoesNotDependOnItsTile) {
  const int64_t queries = 70, keys = 90, size = 48;
  const auto q = random_floats(queries * size, 1), k = random_floats(keys * size, 2),
             v = random_floats(keys * size, 3);
  std::vector<float> whole(queries * size), parts(queries * size);
  ObkAttention t{
      .type = kObkF32, .queries = queries, .keys = keys, .size = size, .value_size = size};
  t.q = q.data(), t.k = k.data(), t.v = v.data(), t.q_row = t.k_row = t.v_row = t.y_row = size;
  t.scale = 0.2f, t.y = whole.data();
  run(t);
  for (const int64_t rows : {1, 7, 16, 33}) {
    for (int64_t begin = 0; begin < queries; begin += rows) {
      t.queries = std::min(rows, queries - begin), t.q = &q[begin * size],
      t.y = &parts[begin * size];
      run(t);
    }
    EXPECT_EQ(whole, parts) << rows;
  }
}

}  // namespace
}  // namespace obelisk::kernels

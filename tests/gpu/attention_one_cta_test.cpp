// Attention tiles of 16-bit heads on a core (one_cta.h) against sums in double: any number of
// queries and keys, masks, the causal rule, rows that are not aligned; and the same bits whatever
// the rows of a tile.
#include "one_cta.h"

#include <random>

#include "kernels/cuda/attention/attention.h"
#include "kernels/kernels.h"
#include "tf32.h"

#define OBK_CUDA_DIALECT_CUH
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
struct ObkLanes;
#include "kernels/common/tiles.h"
#include "kernels/cuda/attention/attention.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

struct Case {
  const char* name;
  int32_t type;
  int64_t size, value_size, rows, keys;  // rows: of a tile
  void (*tile)(ObkLanes*, const ObkAttention&);
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
#define CASE(type, size, value, rows, keys)                                              \
  Case {                                                                                 \
    #type "_" #size "_" #value "_" #rows "_" #keys, kObk##type, size, value, rows, keys, \
        obk::attention_tile<kObk##type, size, value, rows, keys>                         \
  }

const Case kCases[] = {
    CASE(F16, 64, 64, 16, 128),    CASE(F16, 64, 64, 32, 128),   CASE(F16, 64, 64, 64, 128),
    CASE(F16, 64, 64, 128, 128),   CASE(F16, 128, 64, 16, 256),  CASE(F16, 128, 64, 64, 256),
    CASE(F16, 128, 128, 128, 100), CASE(F16, 128, 128, 30, 100), CASE(F16, 32, 32, 16, 64),
    CASE(F16, 32, 32, 48, 64),     CASE(Bf16, 64, 64, 16, 197),  CASE(Bf16, 64, 64, 32, 197),
    CASE(Bf16, 64, 64, 64, 197),   CASE(F16, 64, 64, 128, 197),  CASE(F16, 128, 32, 16, 37),
    CASE(F16, 128, 32, 64, 37),    CASE(F16, 96, 128, 7, 300),   CASE(F16, 96, 128, 32, 300),
    CASE(F16, 32, 64, 16, 1),      CASE(F16, 32, 64, 128, 1),    CASE(F16, 64, 32, 128, 1000),
    CASE(F16, 64, 32, 16, 1000),   CASE(F16, 64, 64, 16, 0),     CASE(F16, 64, 64, 32, 0),
    CASE(F16, 128, 128, 64, 520),  CASE(F16, 128, 128, 9, 520),  CASE(Tf32, 64, 64, 16, 128),
    CASE(Tf32, 64, 64, 64, 128),   CASE(Tf32, 64, 64, 128, 197), CASE(Tf32, 20, 12, 16, 37),
    CASE(Tf32, 20, 12, 48, 37),    CASE(Tf32, 5, 7, 16, 300),    CASE(Tf32, 80, 160, 32, 100),
    CASE(Tf32, 64, 64, 16, 0),
};

DType type_of(int32_t type) {
  return type == kObkTf32 ? DType::f32 : type == kObkF16 ? DType::f16 : DType::bf16;
}

struct Problem {
  const Case* c;
  int64_t queries;
  bool aligned = true, causal = false, softcap = false, zero = false;
  int64_t offset = 0;
  int mask = 0;
  bool keys_alone = false;  // one row of the mask for all queries
  bool wild = false;        // infinities and NaN where everything is masked; with `zero`
};

/// Values of a matrix: `at` in memory, with rows `row` apart.
struct Matrix {
  int64_t row;
  std::vector<double> exact;
  std::vector<char> hold;
  char* at;
  double operator()(int64_t r, int64_t c) const { return exact[static_cast<size_t>(r * row + c)]; }
};

Matrix make(std::mt19937& random, DType type, int64_t rows, int64_t columns, bool aligned) {
  const bool tf32 = type == DType::f32; /* what a tile takes is rounded, what it reads is not */
  Matrix m;
  const int64_t size = tf32 ? 4 : 2;
  m.row = aligned ? columns : columns + 3;
  const int64_t count = rows * m.row, first = aligned ? 0 : size;
  m.exact.resize(static_cast<size_t>(count));
  m.hold.assign(static_cast<size_t>(count * size + 32), 0);
  m.at = m.hold.data() + (16 - reinterpret_cast<uint64_t>(m.hold.data()) % 16) % 16 + first;
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (int64_t k = 0; k < count; ++k) {
    set_double(m.at, type, k, uniform(random));
    m.exact[static_cast<size_t>(k)] = get_double(m.at, type, k);
    if (tf32) m.exact[static_cast<size_t>(k)] = to_tf32(m.exact[static_cast<size_t>(k)]);
  }
  one_cta::readable.push_back({m.at, m.at + count * size});
  return m;
}

class OneCtaAttention : public testing::TestWithParam<Case> {};

std::vector<float> attend(const Problem& p, const Matrix& q, const Matrix& k, const Matrix& v,
                          const std::vector<float>& mask, const std::vector<uint8_t>& bytes) {
  const Case& c = *p.c;
  ObkAttention shape = {};
  shape.type = c.type, shape.queries = c.rows, shape.keys = c.keys, shape.size = c.size,
  shape.value_size = c.value_size;
  const int64_t scratch = kernels::cuda_attention_scratch_bytes(&shape);
  std::vector<float> all;
  for (int64_t first = 0; first < p.queries; first += c.rows) {
    ObkAttention g = shape;
    g.queries = std::min(c.rows, p.queries - first);
    g.q = q.at + first * q.row * (c.type == kObkTf32 ? 4 : 2), g.k = k.at, g.v = v.at;
    g.q_row = q.row, g.k_row = k.row, g.v_row = v.row;
    g.scale = 1 / std::sqrt(static_cast<float>(c.size));
    g.softcap = p.softcap ? 5 : 0, g.zero_if_masked = p.zero;
    g.causal = p.causal, g.causal_offset = p.offset + first;
    g.mask_type = p.mask, g.mask_query = p.keys_alone ? 0 : c.keys, g.mask_key = 1;
    const int64_t at = first * g.mask_query;
    g.mask = p.mask == 1 ? static_cast<const void*>(mask.data() + at) : bytes.data() + at;
    memset(one_cta::shared, 0xff, sizeof one_cta::shared);
    g.scratch = one_cta::shared;
    g.y = reinterpret_cast<float*>(one_cta::shared + (scratch + 15) / 16 * 16);
    g.y_row = c.value_size + 1;
    const float* end = g.y + g.queries * g.y_row;
    CHECK(reinterpret_cast<const char*>(end) <= one_cta::shared + one_cta::kSharedBytes, "room");
    one_cta::run(256, [&] { c.tile(nullptr, g); });
    for (const char* at = one_cta::shared + scratch; at < reinterpret_cast<char*>(g.y); ++at)
      EXPECT_EQ(*at, '\xff') << "written beyond the scratch";
    for (int64_t r = 0; r < g.queries; ++r)
      all.insert(all.end(), g.y + r * g.y_row, g.y + r * g.y_row + c.value_size);
  }
  return all;
}

TEST_P(OneCtaAttention, EqualsReference) {
  const Case& c = GetParam();
  const DType type = type_of(c.type);
  const int64_t most = std::min<int64_t>(c.rows + 5, 133);
  const Problem problems[] = {
      {&c, most, true},
      {&c, c.rows, false, false, true},
      {&c, most, true, true, false, false, c.keys - most},
      {&c, 3, true, true, false, true, -1},
      {&c, std::min<int64_t>(c.rows, 20), true, false, false, false, 0, 1},
      {&c, std::min<int64_t>(c.rows, 20), false, true, false, true, c.keys / 2, 2},
      {&c, c.rows, true, false, false, false, 0, 1, true},
      {&c, 3, true, false, true, false, 0, 2, true},
      {&c, std::min<int64_t>(c.rows, 20), true, false, false, true, 0, 1, false, true},
      {&c, std::min<int64_t>(c.rows, 20), false, false, true, true, 0, 2, false, true},
      {&c, c.rows, true, false, false, true, 0, 1, true, true},
  };
  std::mt19937 random(9);
  for (const Problem& p : problems) {
    SCOPED_TRACE(testing::Message() << p.queries << " queries, aligned " << p.aligned << ", causal "
                                    << p.causal << " " << p.offset << ", mask " << p.mask);
    one_cta::readable.clear();
    Matrix q = make(random, type, p.queries, c.size, p.aligned);
    Matrix k = make(random, type, c.keys, c.size, p.aligned);
    const Matrix v = make(random, type, c.keys, c.value_size, p.aligned);
    std::vector<float> mask(static_cast<size_t>(p.queries * c.keys) + 1);
    std::vector<uint8_t> bytes(mask.size());
    for (size_t e = 0; e < mask.size(); ++e) {
      mask[e] = e % 3 == 1 ? -INFINITY : static_cast<float>(e % 7) / 7;
      bytes[e] = e % 3 != 1;
    }
    if (p.wild) {  // the second query sees nothing, and nobody sees the second key
      for (int64_t i = 0; i < p.queries; ++i)
        for (int64_t j = 0; j < c.keys; ++j)
          if (j == 1 || (i == 1 && !p.keys_alone)) {
            mask[static_cast<size_t>(i * c.keys + j)] = -INFINITY;
            bytes[static_cast<size_t>(i * c.keys + j)] = 0;
          }
      if (p.queries > 1 && !p.keys_alone) set_double(q.at, type, q.row, NAN);
      if (c.keys > 1) set_double(k.at, type, k.row, INFINITY);
    }
    const std::vector<float> y = attend(p, q, k, v, mask, bytes);
    for (int64_t i = 0; i < p.queries; ++i) {
      std::vector<double> score(static_cast<size_t>(c.keys));
      double largest = -INFINITY, total = 0;
      for (int64_t j = 0; j < c.keys; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < c.size; ++e) dot += q(i, e) * k(j, e);
        dot *= static_cast<double>(1 / std::sqrt(static_cast<float>(c.size)));
        if (p.softcap) dot = 5 * std::tanh(dot / 5);
        const auto at = static_cast<size_t>((p.keys_alone ? 0 : i * c.keys) + j);
        if (p.mask == 1)
          dot = mask[at] == -INFINITY ? -INFINITY : dot + static_cast<double>(mask[at]);
        if (p.mask == 2 && !bytes[at]) dot = -INFINITY;
        if (p.causal && j > i + p.offset) dot = -INFINITY;
        score[static_cast<size_t>(j)] = dot, largest = std::max(largest, dot);
      }
      for (double& s : score) total += s = largest == -INFINITY ? 0 : std::exp(s - largest);
      for (int64_t e = 0; e < c.value_size; ++e) {
        double want = 0;
        for (int64_t j = 0; j < c.keys; ++j)
          want += score[static_cast<size_t>(j)] / total * v(j, e);
        if (largest == -INFINITY) want = p.zero || c.keys == 0 ? 0 : NAN;
        const auto got = static_cast<double>(y[static_cast<size_t>(i * c.value_size + e)]);
        if (std::isnan(want))
          ASSERT_TRUE(std::isnan(got)) << i << ", " << e;
        else
          ASSERT_NEAR(got, want, type == DType::bf16 ? 2.4e-2 : 3e-3) << i << ", " << e;
      }
    }
  }
}

TEST(OneCtaAttentions, BitsDependOnTheRowAlone) {
  for (const Case& a : kCases)
    for (const Case& b : kCases) {
      if (&a >= &b || a.type != b.type || a.size != b.size || a.value_size != b.value_size ||
          a.keys != b.keys || a.keys == 0)
        continue;
      SCOPED_TRACE(testing::Message() << a.name << " and " << b.name);
      const DType type = type_of(a.type);
      std::mt19937 random(3);
      one_cta::readable.clear();
      constexpr int64_t kQueries = 45;
      const Matrix q = make(random, type, kQueries, a.size, true);
      const Matrix k = make(random, type, a.keys, a.size, true);
      const Matrix v = make(random, type, a.keys, a.value_size, true);
      for (const bool causal : {false, true}) {
        Problem p = {&a, kQueries, true, causal};
        p.offset = a.keys - kQueries;
        const std::vector<float> first = attend(p, q, k, v, {}, {});
        p.c = &b;
        const std::vector<float> second = attend(p, q, k, v, {}, {});
        EXPECT_EQ(0, memcmp(first.data(), second.data(), first.size() * 4));
      }
    }
}

/// Pieces of one head in any order of coming: one of them has the answer, with the same bits; and
/// again with the counts that the first run left.
template <int kType, int kSize, int kValue, int kKeys, int kKvSplits>
void check_splits(int64_t queries, bool causal) {
  const DType type = kType == kObkF16 ? DType::f16 : DType::bf16;
  std::mt19937 random(4);
  one_cta::readable.clear();
  const Matrix q = make(random, type, queries, kSize, true);
  const Matrix k = make(random, type, kKeys, kSize, true);
  const Matrix v = make(random, type, kKeys, kValue, true);
  const Case c = {"",
                  kType,
                  kSize,
                  kValue,
                  queries,
                  kKeys,
                  obk::attention_tile<kType, kSize, kValue, 16, kKeys>};
  Problem p = {&c, queries, true, causal};
  p.offset = kKeys - queries - 2;
  const std::vector<float> want = attend(p, q, k, v, {}, {});
  std::vector<float> exchange(
      static_cast<size_t>(kernels::cuda_attention_exchange_bytes(kKvSplits, kValue) / 4), 0);
  one_cta::readable.push_back({reinterpret_cast<char*>(exchange.data()),
                               reinterpret_cast<char*>(exchange.data() + exchange.size())});
  std::vector<float> y(static_cast<size_t>(queries * kValue)), first;
  std::vector<int> order(kKvSplits);
  for (int k = 0; k < kKvSplits; ++k) order[static_cast<size_t>(k)] = k;
  for (int run = 0; run < 3; ++run) {
    std::shuffle(order.begin(), order.end(), random);
    std::fill(y.begin(), y.end(), 77.0f);
    for (int n = 0; n < kKvSplits; ++n) {
      ObkAttention g = {};
      g.type = kType, g.queries = queries, g.keys = kKeys, g.size = kSize, g.value_size = kValue;
      g.q = q.at, g.k = k.at, g.v = v.at, g.q_row = q.row, g.k_row = k.row, g.v_row = v.row;
      g.scale = 1 / std::sqrt(static_cast<float>(kSize));
      g.causal = causal, g.causal_offset = p.offset;
      g.y = y.data(), g.y_row = kValue, g.scratch = one_cta::shared;
      g.kv_split = order[static_cast<size_t>(n)], g.exchange = exchange.data();
      memset(one_cta::shared, 0xff, sizeof one_cta::shared);
      int last = 0;
      one_cta::run(256, [&] {
        last += obk::attention_split<kType, kSize, kValue, kKeys, kKvSplits>(nullptr, g);
      });
      EXPECT_EQ(last, n + 1 == kKvSplits ? 256 : 0);
      if (n + 1 < kKvSplits) {
        EXPECT_EQ(y[0], 77.0f);
      }
    }
    for (size_t e = 0; e < y.size(); ++e) ASSERT_NEAR(y[e], want[e], 2e-3) << e;
    if (run == 0) first = y;
    EXPECT_EQ(0, memcmp(y.data(), first.data(), y.size() * 4));
  }
}

TEST(OneCtaAttentions, SplitsOfKeysJoinInTheirOrder) {
  check_splits<kObkF16, 64, 64, 1025, 16>(4, false);
  check_splits<kObkF16, 64, 64, 1024, 8>(4, false);
  check_splits<kObkBf16, 128, 128, 2048, 8>(4, true);
  check_splits<kObkF16, 64, 64, 300, 4>(1, true);
  check_splits<kObkF16, 128, 128, 2500, 16>(9, true);
  check_splits<kObkBf16, 32, 32, 256, 2>(16, false);
}

INSTANTIATE_TEST_SUITE_P(Tiles, OneCtaAttention, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace obelisk

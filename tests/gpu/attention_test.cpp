// Attention tiles on the GPU against sums in double: types, head sizes, any number of queries and
// keys, masks of any strides, the causal rule, what is forbidden or not a number; the same bits
// whatever the cut and in every run. Without a GPU they are only compiled.
#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "device.h"
#include "kernels/cuda/attention/attention.h"
#include "tf32.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// CTA b runs tile b; Y through shared memory, as a body has it, or straight into global memory.
constexpr const char* kText = R"cu(
#include "attention/attention.cuh"

#define ATTEND(QUERIES, KEYS)                                                             \
  extern "C" __global__ void __launch_bounds__(256, 1)                                    \
      attend_##QUERIES##_##KEYS(const ObkAttention* tiles, int scratch, int through) {    \
    extern __shared__ __align__(128) char shared[];                                       \
    ObkLanes lanes = {};                                                                  \
    ObkLanes* w = &lanes;                                                                 \
    ObkAttention g = tiles[blockIdx.x];                                                   \
    float* y = g.y;                                                                       \
    const int64_t pitch = g.y_row;                                                        \
    g.scratch = shared;                                                                   \
    if (through) g.y = (float*)(shared + scratch), g.y_row = g.value_size;                \
    OBK_ATTENTION_TILE(OBK_TYPE, g, OBK_SIZE, OBK_VALUE, QUERIES, KEYS);                  \
    if (!through) return;                                                                 \
    for (int64_t i = threadIdx.x; i < g.queries * g.value_size; i += 256)                 \
      y[i / g.value_size * pitch + i % g.value_size] = g.y[i];                            \
  }

// CTA b: piece b % SPLITS of the keys of tile b / SPLITS.
#define ATTEND_SPLITS(KEYS, SPLITS)                                                       \
  extern "C" __global__ void __launch_bounds__(256, 1)                                    \
      attend_splits_##KEYS##_##SPLITS(const ObkAttention* tiles, int, int) {              \
    extern __shared__ __align__(128) char shared[];                                       \
    ObkLanes lanes = {};                                                                  \
    ObkLanes* w = &lanes;                                                                 \
    ObkAttention g = tiles[blockIdx.x / SPLITS];                                          \
    g.scratch = shared, g.kv_split = blockIdx.x % SPLITS;                                    \
    float* y = g.y;                                                                       \
    const int64_t pitch = g.y_row;                                                        \
    g.y = (float*)(shared + 150000), g.y_row = g.value_size;                              \
    if (!OBK_ATTENTION_SPLIT(OBK_TYPE, g, OBK_SIZE, OBK_VALUE, KEYS, SPLITS)) return;     \
    for (int64_t i = threadIdx.x; i < g.queries * g.value_size; i += 256)                 \
      y[i / g.value_size * pitch + i % g.value_size] = g.y[i];                            \
  }
)cu";

using Extents = std::vector<std::pair<int64_t, int64_t>>;
const Extents kExtents = {{1, 1},    {1, 37},   {16, 128},  {17, 65},
                          {40, 130}, {70, 197}, {130, 150}, {2, 1100}};
const Extents kOdd = {{20, 200}, {20, 0}};
const std::vector<std::tuple<int64_t, int64_t, int>> kCut = {{130, 1000, 1}, {70, 197, 0}};
const std::vector<int64_t> kCuts = {64, 32, 16, 7};
const Extents kKvSplits = {{1025, 16}, {300, 4}};  // keys, pieces

struct Shape {
  int type;
  int64_t size, value_size;
};

/// A matrix of `type` on both sides, with a pitch and a first element of its own.
struct Matrix {
  int64_t row = 0;
  std::vector<double> exact;
  DevicePointer at = 0;
};

class Attention : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const Shape s = GetParam();
    if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
    const std::vector<std::string> defines = {fmt::format("OBK_TYPE={}", s.type),
                                              fmt::format("OBK_SIZE={}", s.size),
                                              fmt::format("OBK_VALUE={}", s.value_size)};
    Extents all = kExtents;
    all.insert(all.end(), kOdd.begin(), kOdd.end());
    for (const auto& [queries, keys, causal] : kCut) {
      if (queries != 70) all.push_back({queries, keys});
      for (const int64_t cut : kCuts) all.push_back({cut, keys});
    }
    if (few()) std::erase_if(all, [](const auto& e) { return e.first * e.second > 16 * 128; });
    if (auto gpu = first_gpu(); !gpu.ok()) {
      if (getenv("OBELISK_GPU_CUBINS")) {  // for a GPU elsewhere
        const auto made = cubin_of(text(all), "sm_90a", defines);
        ASSERT_TRUE(made.ok()) << made.error().text();
        GTEST_SKIP() << "compiled, not run: " << gpu.error().text();
      }
      static std::set<std::vector<std::string>> compiled;  // tests of a shape have the same text
      if (!compiled.insert(defines).second)
        GTEST_SKIP() << "compiled by another test, not run: " << gpu.error().text();
      const Extents few = {{17, 65}, {16, 128}, {128, 128}, {64, 300}};
      auto cubin = compile_cubin(text(few), s.size % 64 ? "sm_80" : "sm_90a", defines);
      ASSERT_TRUE(cubin.ok()) << cubin.error().text();
      GTEST_SKIP() << "compiled, not run: " << gpu.error().text();
    }
    const Status opened = g_.open(text(all).c_str(), defines);
    ASSERT_TRUE(opened.ok()) << opened.error().text();
  }
  static bool shares_keys() {
    return kernels::cuda_attention_kv_splits(GetParam().type, 8, 4, 1025, GetParam().size,
                                             GetParam().value_size, false) > 1;
  }
  static std::string text(const Extents& extents) {
    std::string all = kText;
    if (shares_keys())
      for (const auto& [keys, kv_splits] : kKvSplits)
        all += fmt::format("ATTEND_SPLITS({}, {})\n", keys, kv_splits);
    for (const auto& [queries, keys] : extents)
      all += fmt::format("ATTEND({}, {})\n", queries, keys);
    return all;
  }
  double rounded(double v) const {
    const float f = static_cast<float>(v);
    if (GetParam().type == kObkTf32) return to_tf32(f);
    if (GetParam().type == kObkF16) return f16_to_float(float_to_f16(f));
    return GetParam().type == kObkBf16 ? bf16_to_float(float_to_bf16(f)) : f;
  }
  Matrix matrix(int64_t rows, int64_t columns, bool aligned) {
    Matrix m;
    const int64_t width = std::max<int64_t>(columns, 1), first = aligned ? 0 : 1;
    m.row = aligned ? (width + 7) / 8 * 8 : width + 3;
    m.exact.resize(static_cast<size_t>(std::max<int64_t>(rows * m.row, 1)));
    std::uniform_real_distribution<double> value(-3, 3);
    for (double& v : m.exact) v = rounded(value(random_));
    upload(m, first);
    return m;
  }
  void upload(Matrix& m, int64_t first = 0) {
    const int type = GetParam().type;
    const int64_t width = OBK_LIES_AS_F32(type) ? 4 : 2;
    std::vector<char> bytes((m.exact.size() + static_cast<size_t>(first)) * width);
    for (size_t k = 0; k < m.exact.size(); ++k) {
      const float f = type == kObkTf32 ? near_tf32(m.exact[k], static_cast<int64_t>(k))
                                       : static_cast<float>(m.exact[k]);
      const uint16_t half = type == kObkF16 ? float_to_f16(f) : float_to_bf16(f);
      memcpy(bytes.data() + (k + static_cast<size_t>(first)) * width,
             OBK_LIES_AS_F32(type) ? static_cast<const void*>(&f) : &half,
             static_cast<size_t>(width));
    }
    m.at = to_device(bytes) + static_cast<uint64_t>(first * width);
  }
  template <typename T>
  DevicePointer to_device(const std::vector<T>& values) {
    const DevicePointer p = g_.make(values.size() * sizeof(T), 0);
    EXPECT_EQ(g_.d->CopyToDevice(p, values.data(), values.size() * sizeof(T)), 0);
    return p;
  }
  ObkAttention tile(const Matrix& q, const Matrix& k, const Matrix& v, int64_t queries,
                    int64_t keys) {
    ObkAttention t = {};
    t.type = GetParam().type, t.size = GetParam().size, t.value_size = GetParam().value_size;
    t.queries = queries, t.keys = keys;
    t.q = pointer(q.at), t.k = pointer(k.at), t.v = pointer(v.at);
    t.q_row = q.row, t.k_row = k.row, t.v_row = v.row;
    t.scale = 1 / std::sqrt(static_cast<float>(std::max<int64_t>(t.size, 1)));
    return t;
  }
  static void* pointer(DevicePointer p) { return reinterpret_cast<void*>(p); }

  /// Runs tiles side by side; each writes its rows of one Y [rows, value_size + 1], whose last
  /// column must stay as it was.
  std::vector<float> run(std::vector<ObkAttention> tiles, bool through, int64_t queries = 0) {
    if (queries == 0) queries = tiles[0].queries;
    const int64_t kv_splits = std::max<int64_t>(tiles[0].kv_splits, 1);
    const std::string name = kv_splits > 1
                                 ? fmt::format("attend_splits_{}_{}", tiles[0].keys, kv_splits)
                                 : fmt::format("attend_{}_{}", queries, tiles[0].keys);
    const Handle kernel = g_.function(name.c_str(), 227 * 1024);
    const int64_t pitch = GetParam().value_size + 1;
    int64_t rows = 0, scratch = 0, most = 0;
    for (const ObkAttention& t : tiles) {
      rows += t.queries, most = std::max(most, t.queries * t.value_size * 4);
      ObkAttention widest = t;
      widest.queries = queries;
      scratch = std::max(scratch, kernels::cuda_attention_scratch_bytes(&widest));
    }
    scratch = (scratch + 15) / 16 * 16;
    if (scratch + most > 227 * 1024) through = false;
    const DevicePointer y = g_.make(static_cast<size_t>(rows * pitch) * 4, 0x42);
    int64_t row = 0;
    for (ObkAttention& t : tiles) {
      t.y = static_cast<float*>(pointer(y)) + row * pitch, t.y_row = pitch;
      row += t.queries;
    }
    const int64_t shared = kv_splits > 1 ? 227 * 1024 : scratch + (through ? most : 0);
    EXPECT_EQ(g_.launch(kernel, static_cast<int>(tiles.size() * static_cast<size_t>(kv_splits)),
                        static_cast<int>(shared), nullptr, to_device(tiles),
                        static_cast<int>(scratch), through ? 1 : 0),
              0);
    const Status done = check(g_.d->CtxSynchronize(), "attention");
    EXPECT_TRUE(done.ok()) << done.error().text();
    std::vector<float> all(static_cast<size_t>(rows * pitch)), out;
    EXPECT_EQ(g_.d->CopyToHost(all.data(), y, all.size() * 4), 0);
    const float untouched = std::bit_cast<float>(0x42424242);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(all[static_cast<size_t>(r * pitch + pitch - 1)], untouched) << "after row " << r;
      out.insert(out.end(), all.begin() + r * pitch, all.begin() + (r + 1) * pitch - 1);
    }
    return out;
  }
  /// The mask's values lie on both sides: `mask` is what `t.mask` points to.
  void check_tile(const ObkAttention& t, const Matrix& q, const Matrix& k, const Matrix& v,
                  const std::vector<float>& mask, bool through, const std::string& what) {
    SCOPED_TRACE(fmt::format("{}: {} queries, {} keys, causal {} {}, zero {}", what, t.queries,
                             t.keys, t.causal, t.causal_offset, t.zero_if_masked));
    const std::vector<float> got = run({t}, through);
    const double step = t.type == kObkF32 ? 2e-5 : t.type == kObkBf16 ? 2.4e-2 : 3e-3;
    for (int64_t i = 0; i < t.queries; ++i) {
      std::vector<double> score(static_cast<size_t>(t.keys));
      double largest = -kInfinity, total = 0;
      bool forbidden = true;
      for (int64_t j = 0; j < t.keys; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < t.size; ++e)
          dot += q.exact[static_cast<size_t>(i * q.row + e)] *
                 k.exact[static_cast<size_t>(j * k.row + e)];
        dot *= t.scale;
        if (t.softcap > 0) dot = t.softcap * std::tanh(dot / t.softcap);
        if (t.mask_type) {
          const float m = mask[static_cast<size_t>(i * t.mask_query + j * t.mask_key)];
          dot += t.mask_type == 1 ? m : m != 0 ? 0.0 : -kInfinity;
        }
        if (t.causal && j > i + t.causal_offset) dot = -kInfinity;
        score[static_cast<size_t>(j)] = dot;
        largest = std::max(largest, dot);
        forbidden = forbidden && dot == -kInfinity;
      }
      for (double& s : score) total += s = std::exp(s - largest);
      for (int64_t e = 0; e < t.value_size; ++e) {
        double want = 0;
        for (int64_t j = 0; j < t.keys; ++j)
          want +=
              score[static_cast<size_t>(j)] / total * v.exact[static_cast<size_t>(j * v.row + e)];
        if (t.keys > 0 && forbidden && t.zero_if_masked) want = 0;
        const float y = got[static_cast<size_t>(i * t.value_size + e)];
        if (std::isnan(want))
          ASSERT_TRUE(std::isnan(y)) << i << ", " << e << ": " << y;
        else
          ASSERT_NEAR(y, want, step) << i << ", " << e;
      }
    }
  }

  Device g_;
  std::mt19937 random_{11};
};

TEST_P(Attention, EqualsReference) {
  bool aligned = true;
  for (const auto& [queries, keys] : kExtents) {
    aligned = !aligned;
    if (few() && queries * keys > 16 * 128) continue;
    const Matrix q = matrix(queries, GetParam().size, aligned);
    const Matrix k = matrix(keys, GetParam().size, aligned);
    const Matrix v = matrix(keys, GetParam().value_size, aligned);
    ObkAttention t = tile(q, k, v, queries, keys);
    check_tile(t, q, k, v, {}, aligned, "plain");
    t.softcap = 5;
    check_tile(t, q, k, v, {}, !aligned, "softcap");
    t.softcap = 0, t.causal = 1;
    for (const int64_t offset : {int64_t{0}, keys - queries, int64_t{-3}, int64_t{-200}}) {
      t.causal_offset = offset, t.zero_if_masked ^= 1;
      check_tile(t, q, k, v, {}, aligned, "causal");
    }
    t.causal_offset = keys / 3;
    // Masks: by query and key, turned, of keys alone with the lowest float, of queries alone,
    // nothing allowed at all.
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> mask(static_cast<size_t>(queries * keys));
    for (size_t e = 0; e < mask.size(); ++e) mask[e] = e % 3 == 1 ? -kInfinity : value(random_);
    std::vector<float> lowest(mask.size(), std::numeric_limits<float>::lowest());
    for (size_t e = 0; e < mask.size() / 2; ++e) lowest[e] = 0;
    const std::vector<std::pair<int64_t, int64_t>> strides = {
        {keys, 1}, {1, queries}, {0, 1}, {1, 0}};
    for (size_t s = 0; s < strides.size(); ++s) {
      for (const std::vector<float>& values : {mask, lowest}) {
        std::vector<uint8_t> bytes;
        std::vector<float> flags;
        for (float m : values) bytes.push_back(m > 0), flags.push_back(m > 0);
        t.mask_query = strides[s].first, t.mask_key = strides[s].second;
        t.causal = s & 1, t.zero_if_masked ^= 1;
        t.mask_type = 1, t.mask = pointer(to_device(values));
        check_tile(t, q, k, v, values, aligned, fmt::format("mask {}", s));
        t.mask_type = 2, t.mask = pointer(to_device(bytes));
        check_tile(t, q, k, v, flags, !aligned, fmt::format("bytes {}", s));
      }
    }
  }
}

/// Pieces of the keys, of several heads at once, one run after another with the counts of the one
/// before: the same bits in each.
TEST_P(Attention, SplitsOfKeysJoin) {
  if (!shares_keys()) GTEST_SKIP() << "keys of such heads are not shared out";
  for (const auto& [keys, kv_splits] : kKvSplits)
    for (const int64_t queries : {1, 4, 16}) {
      const Matrix q = matrix(queries, GetParam().size, true);
      const Matrix k = matrix(keys, GetParam().size, queries != 4);
      const Matrix v = matrix(keys, GetParam().value_size, true);
      ObkAttention t = tile(q, k, v, queries, keys);
      t.kv_splits = static_cast<int32_t>(kv_splits), t.causal = queries == 16,
      t.causal_offset = keys / 2;
      const auto bytes = static_cast<size_t>(
          kernels::cuda_attention_exchange_bytes(kv_splits, GetParam().value_size));
      t.exchange = pointer(g_.make(bytes, 0));
      check_tile(t, q, k, v, {}, true, "pieces");
      std::vector<ObkAttention> heads(8, t);
      for (ObkAttention& head : heads) head.exchange = pointer(g_.make(bytes, 0));
      const std::vector<float> first = run(heads, true);
      const size_t one = first.size() / heads.size();
      for (size_t h = 1; h < heads.size(); ++h)
        EXPECT_EQ(0, memcmp(first.data(), first.data() + h * one, one * 4)) << h;
      for (int again = 0; again < (few() ? 2 : 20); ++again) {
        const std::vector<float> next = run(heads, true);
        ASSERT_EQ(0, memcmp(first.data(), next.data(), first.size() * 4)) << "run " << again;
      }
    }
}

TEST_P(Attention, NotANumberStaysInItsRow) {
  Matrix q = matrix(20, GetParam().size, true), k = matrix(200, GetParam().size, true);
  Matrix v = matrix(200, GetParam().value_size, true);
  const ObkAttention plain = tile(q, k, v, 20, 200);
  check_tile(tile(q, k, v, 20, 0), q, k, v, {}, true, "no keys");
  q.exact[static_cast<size_t>(3 * q.row)] = kNan;
  upload(q);
  ObkAttention t = plain;
  t.q = pointer(q.at);
  check_tile(t, q, k, v, {}, true, "a query");
  k.exact[static_cast<size_t>(190 * k.row)] = kNan;
  upload(k);
  t.k = pointer(k.at), t.causal = 1, t.causal_offset = 170;  // the last row alone sees it
  check_tile(t, q, k, v, {}, true, "a key that most rows do not see");
}

TEST_P(Attention, BitsDependOnTheRowAlone) {
  for (const auto& [queries, keys, causal] : kCut) {
    const Matrix q = matrix(queries, GetParam().size, true),
                 k = matrix(keys, GetParam().size, true);
    const Matrix v = matrix(keys, GetParam().value_size, true);
    std::vector<float> whole;
    std::vector<int64_t> cuts = {queries, queries};
    cuts.insert(cuts.end(), kCuts.begin(), kCuts.end());
    for (const int64_t cut : cuts) {
      std::vector<float> got;
      for (int64_t first = 0; first < queries; first += cut) {
        ObkAttention t = tile(q, k, v, std::min(cut, queries - first), keys);
        t.q = static_cast<const char*>(t.q) + first * q.row * (OBK_LIES_AS_F32(t.type) ? 4 : 2);
        t.causal = causal, t.causal_offset = first + keys - queries;
        const std::vector<float> rows = run({t}, true, cut);
        got.insert(got.end(), rows.begin(), rows.end());
      }
      if (whole.empty()) whole = got;
      EXPECT_EQ(0, memcmp(whole.data(), got.data(), got.size() * 4))
          << queries << " x " << keys << " in blocks of " << cut;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiles, Attention,
                         testing::Values(Shape{kObkF16, 64, 64}, Shape{kObkF16, 32, 32},
                                         Shape{kObkF16, 24, 40}, Shape{kObkF16, 128, 96},
                                         Shape{kObkF16, 256, 256}, Shape{kObkBf16, 64, 64},
                                         Shape{kObkBf16, 7, 11}, Shape{kObkF32, 64, 64},
                                         Shape{kObkF32, 80, 5}, Shape{kObkF32, 300, 320},
                                         Shape{kObkTf32, 64, 64}, Shape{kObkTf32, 20, 5},
                                         Shape{kObkTf32, 300, 320}),
                         [](const auto& info) {
                           const Shape& s = info.param;
                           return fmt::format("{}_{}_{}",
                                              s.type == kObkF32    ? "f32"
                                              : s.type == kObkTf32 ? "tf32"
                                              : s.type == kObkF16  ? "f16"
                                                                   : "bf16",
                                              s.size, s.value_size);
                         });

}  // namespace
}  // namespace obelisk::runtime::cuda

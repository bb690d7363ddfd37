// Product tiles of known shapes on the GPU: against sums in double, and bit for bit against the
// tile that takes any shape. Whole and partial rows, few rows, k that is no multiple of 64, all of
// k at once and in stages, more pages of weights than the ring holds, weights loaded ahead or
// not. Without a GPU they are only compiled.
#include <random>

#include "device.h"
#include "kernels/cuda/gemm/gemm.h"

namespace obelisk::runtime::cuda {
namespace {

struct FixedCase {
  int rows, columns, k, a_row, c_row, parts = 1;
};

const std::vector<FixedCase> kMixed = {
    {64, 48, 768, 776, 48},
    {32, 48, 384, 384, 56},
    {64, 32, 384, 384, 40},
    {16, 32, 1536, 1536, 32},
    {32, 16, 1536, 2048, 16},
    {32, 80, 768, 768, 80},
    {48, 16, 136, 136, 16},
    {24, 64, 8, 8, 64},
    {50, 96, 320, 320, 96},
    {64, 96, 1024, 1024, 96},
    {32, 32, 3072, 3072, 32},
    {64, 16, 2000, 2000, 24},
    {1, 16, 2048, 0, 16},
    {1, 64, 8192, 0, 64},
    {3, 32, 1000, 1000, 32},
    {8, 16, 8192, 8192, 16},
    {8, 176, 256, 256, 176},
    {8, 32, 3072, 3072, 32},
    {32, 1, 392, 392, 1},
    {8, 5, 256, 256, 6},
    {64, 40, 384, 384, 48},
    {16, 33, 128, 128, 33},
    {32, 24, 16, 16, 24},
    /* Rows that begin at multiples of 8 and 4 bytes, k beyond the last piece of 16. */
    {64, 48, 84, 84, 56},
    {32, 48, 42, 42, 56},
    {64, 32, 126, 126, 40},
    {16, 16, 10, 10, 16},
    {40, 96, 1100, 1100, 96},
    {64, 96, 2050, 2050, 96},
    {1, 32, 42, 0, 32},
    {1, 48, 2003, 0, 48},
    {8, 32, 1004, 1004, 32},
    {5, 64, 2002, 2006, 64},
    {24, 32, 45, 46, 32},
    {50, 64, 84, 84, 72},
};
/* Both operands pipelined: gemm_wgmma_pipelined.cuh. */
const std::vector<FixedCase> kPipelined = {
    {64, 128, 768, 776, 136},    {64, 128, 64, 64, 136},        {50, 160, 320, 320, 168},
    {64, 144, 1000, 1000, 152},  {64, 64, 2304, 2304, 72},      {64, 32, 2048, 2048, 40},
    {56, 112, 576, 576, 112},    {50, 72, 768, 768, 72},        {64, 96, 1536, 1536, 104},
    {64, 96, 1096, 1096, 104},   {64, 48, 768, 768, 56},        {64, 96, 3072, 3072, 104, 4},
    {64, 64, 1536, 1536, 72, 2}, {64, 144, 1536, 1536, 152, 4}, {50, 80, 576, 576, 88, 3},
    {64, 32, 768, 768, 40},      {64, 144, 768, 768, 152},      {64, 144, 832, 832, 152},
    {64, 128, 128, 128, 136},    {64, 160, 192, 192, 168},      {64, 112, 256, 256, 120},
    {64, 64, 832, 832, 72},
};

std::string text(const std::vector<FixedCase>& cases) {
  std::string all = R"cu(
#include "gemm/gemm.cuh"
template <int kRows, int kColumns, int kK, int kPitchA, int kPitchC, int kSplitK>
static __device__ __forceinline__ void both(const uint16_t* a, const char* packed, float* out,
                                            unsigned long long* wrong, int m, int n, int pages,
                                            int ahead) {
  extern __shared__ __align__(1024) char shared[];
  ObkLanes lanes = {};
  ObkLanes* w = &lanes;
  const int ring_bytes = pages * obk::WeightPages::kPageBytes;
  float* c = (float*)(shared + ring_bytes + 128);
  float* known = c + kRows * kPitchC;
  obk::ring_start(obk::shared_address(shared), obk::shared_address(shared + ring_bytes), pages,
                  nullptr, blockIdx.x);
  ObkGemm g = {};
  g.a_type = g.b_type = OBK_TYPE, g.packed = 1;
  g.m = m, g.n = kColumns, g.k = kK, g.a = a, g.a_row = kPitchA, g.a_col = 1;
  g.b = packed, g.column = blockIdx.x * ((kColumns + 15) / 16 * 16), g.n_packed = n;
  g.c = c, g.c_row = kPitchC, g.scratch = known + kRows * kPitchC;
  const int groups = (kColumns + 15) / 16 * 2, chunks = (kK + 63) / 64;
  const obk::WeightPages range =
      obk::WeightPages::of_tile(packed + (g.column >> 3) * chunks * 1024, groups, chunks);
  for (int repeat = 0; repeat < 3; ++repeat) {
    if (ahead) obk::ring_load_ahead(range);
    for (int i = threadIdx.x; i < kRows * kPitchC; i += 256) c[i] = -7;
    __syncthreads();
    OBK_GEMM_TILE_OF(OBK_TYPE, g, false, kRows, kColumns, kK, kPitchA, kPitchC, kSplitK);
    for (int i = threadIdx.x; i < kRows * kPitchC; i += 256)
      known[i] = c[i], c[i] = -7;
    __syncthreads();
    if constexpr (kSplitK > 1)
      obk::gemm_split_k<OBK_TYPE == kObkBf16, obk::FixedShape<kRows, kColumns, kK, kPitchA, kPitchC,
                                                            kSplitK>>(g);
    else
      OBK_GEMM_TILE(OBK_TYPE, g);
    unsigned bad = 0;
    for (int i = threadIdx.x; i < m * kColumns; i += 256) {
      const int at = i / kColumns * kPitchC + i % kColumns;
      bad += __float_as_int(known[at]) != __float_as_int(c[at]);
      out[(int64_t)(i / kColumns) * n + g.column + i % kColumns] = known[at];
    }
    for (int i = threadIdx.x; i < kRows * kPitchC; i += 256) /* nothing is written beside */
      bad += i % kPitchC >= kColumns && known[i] != -7;
    if (bad) atomicAdd(wrong, (unsigned long long)bad);
    __syncthreads();
  }
  obk::ring_finish();
}
#define CASE(id, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(256, 1)                                       \
      both_##id(const uint16_t* a, const char* b, float* out, unsigned long long* wrong, int m, \
                int n, int pages, int ahead) {                                               \
    both<__VA_ARGS__>(a, b, out, wrong, m, n, pages, ahead);                                 \
  }
)cu";
  int id = 0;
  for (const FixedCase& c : cases)
    all += fmt::format("CASE({}, {}, {}, {}, {}, {}, {})\n", id++, c.rows, c.columns, c.k, c.a_row,
                       c.c_row, c.parts);
  return all;
}

void expect_registers_alone(const std::vector<FixedCase>& cases) {
  const std::string source = text(cases);
  auto cubin = compile_cubin(source, "sm_90a", {fmt::format("OBK_TYPE={}", int{kObkF16})});
  ASSERT_TRUE(cubin.ok()) << cubin.error().text();
  EXPECT_EQ(cubin->log.find("(C75"), std::string::npos) << cubin->log;  // wgmma in turns
  // Between the two tiles that it calls a test may keep some numbers in memory; sums are many.
  for (const char* bytes : {" bytes stack frame", " bytes spill stores"})
    for (size_t at = 0; (at = cubin->log.find(bytes, at)) != std::string::npos; ++at)
      EXPECT_LE(atoi(cubin->log.c_str() + cubin->log.rfind(' ', at - 1)), 64) << cubin->log;
}

TEST(GemmFixed, NeitherSpillsNorUsesLocalMemory) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  expect_registers_alone(kMixed);
}
TEST(GemmLong, NeitherSpillsNorUsesLocalMemory) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  expect_registers_alone(kPipelined);
}

void compare(std::vector<FixedCase> cases, int type) {
  if (few()) std::erase_if(cases, [](const FixedCase& c) { return c.k > 400; });
  const std::string source = text(cases);
  OPEN(g, source.c_str(), fmt::format("OBK_TYPE={}", type), "OBK_WATCHDOG=4000000000LL");
  const bool brain = type == kObkBf16;
  auto widen = [&](uint16_t v) { return brain ? bf16_to_float(v) : f16_to_float(v); };
  std::mt19937 random(3);
  std::uniform_real_distribution<float> value(-1, 1);
  int id = 0;
  for (const FixedCase& c : cases) {
    const int tiles = 3;
    const int n = tiles * ((c.columns + 15) / 16 * 16), pitch = !c.a_row ? c.k : c.a_row;
    auto fill = [&](size_t count) {
      std::vector<uint16_t> v(count);
      for (uint16_t& e : v) e = brain ? float_to_bf16(value(random)) : float_to_f16(value(random));
      return v;
    };
    const std::vector<uint16_t> a = fill(static_cast<size_t>(c.rows) * pitch),
                                b = fill(static_cast<size_t>(n) * c.k);
    std::vector<char> packed(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(type, n, c.k)));
    kernels::cuda_gemm_pack(type, n, c.k, n / tiles, b.data(), 1, c.k, packed.data());
    const DevicePointer a_at = g.make(a.size() * 2, 0), b_at = g.make(packed.size(), 0),
                        out = g.make(static_cast<size_t>(c.rows) * n * 4, 0), wrong = g.make(8, 0);
    ASSERT_EQ(g.d->CopyToDevice(a_at, a.data(), a.size() * 2), 0);
    ASSERT_EQ(g.d->CopyToDevice(b_at, packed.data(), packed.size()), 0);
    ObkGemm shape = {};
    shape.a_type = shape.b_type = type, shape.packed = 1;
    shape.m = c.rows, shape.n = c.columns, shape.k = c.k;
    for (const int m : {c.rows, std::max(1, c.rows - 3)})
      for (const int pages : {2, 3, 1})
        for (const int ahead : {1, 0}) {
          if (few() && (m != c.rows || pages != 2)) continue;
          const int shared = pages * 24576 + 128 + 2 * c.rows * c.c_row * 4 + 1024 +
                             static_cast<int>(kernels::cuda_gemm_scratch_bytes(&shape));
          if (shared > g.gpu.shared_bytes) continue;
          const Handle kernel = g.function(fmt::format("both_{}", id).c_str(), shared);
          ASSERT_EQ(
              g.launch(kernel, tiles, shared, nullptr, a_at, b_at, out, wrong, m, n, pages, ahead),
              0);
          Status done = check(g.d->CtxSynchronize(), "both");
          ASSERT_TRUE(done.ok()) << done.error().text() << " case " << id;
          EXPECT_EQ(g.read<uint64_t>(wrong), 0u)
              << c.rows << " x " << c.columns << " x " << c.k << ", rows " << m << ", pages "
              << pages << ", ahead " << ahead;
        }
    std::vector<float> got(static_cast<size_t>(c.rows) * n);
    ASSERT_EQ(g.d->CopyToHost(got.data(), out, got.size() * 4), 0);
    for (int y = 0; y < c.rows; ++y)
      for (int x = 0; x < n; ++x) {
        if (x % (n / tiles) >= c.columns) continue;
        double sum = 0, size = 0;
        for (int k = 0; k < c.k; ++k) {
          const double v = static_cast<double>(widen(a[static_cast<size_t>(y) * pitch + k])) *
                           widen(b[static_cast<size_t>(x) * c.k + k]);
          sum += v, size += std::fabs(v);
        }
        ASSERT_NEAR(got[static_cast<size_t>(y) * n + x], sum, size * 1e-6 + 1e-6)
            << c.rows << " x " << c.columns << " x " << c.k << " at " << y << ", " << x;
      }
    ++id;
  }
  fmt::print("{{\"fixed_tiles\": {}, \"type\": {}}}\n", id, type);
}

class Fixed : public testing::TestWithParam<int> {};
TEST_P(Fixed, EqualsReferenceAndTheBitsOfAnyTile) { compare(kMixed, GetParam()); }
TEST_P(Fixed, LongTilesEqualReferenceAndTheBitsOfAnyTile) { compare(kPipelined, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Gemm, Fixed, testing::Values(int{kObkF16}, int{kObkBf16}),
                         [](const auto& info) { return info.param == kObkF16 ? "f16" : "bf16"; });

}  // namespace
}  // namespace obelisk::runtime::cuda

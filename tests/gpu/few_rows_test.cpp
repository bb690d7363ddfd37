// fp32 tiles of one to eight rows (fma_few_rows.cuh) and of nine to 64 (fma_rows.cuh) on the GPU:
// the bits of the tile of any rows, which other tests compare with sums in double. Without a GPU
// they are only compiled: no register lies in memory.
#include <random>

#include "device.h"
#include "kernels/cuda/gemm/gemm.h"

namespace obelisk::runtime::cuda {
namespace {

struct Case {
  int rows, columns, k, pitch;
};
const std::vector<Case> kCases = {
    {1, 16, 1024, 1024},  {2, 16, 400, 400},   {3, 48, 126, 127},   {4, 64, 2048, 2048},
    {5, 40, 42, 42},      {6, 32, 1000, 1004}, {7, 5, 2100, 2102},  {8, 16, 4096, 4096},
    {8, 64, 84, 84},      {1, 64, 10, 10},     {8, 33, 5000, 5001}, {16, 16, 1024, 1024},
    {49, 16, 2048, 2048}, {33, 48, 126, 127},  {64, 64, 400, 402},  {57, 32, 49, 49},
};

std::string text() {
  std::string all = R"cu(
#include "gemm/gemm.cuh"
template <int kRows, int kColumns, int kK, int kPitchA>
static __device__ __forceinline__ void both(const float* a, const char* packed, float* out,
                                            unsigned long long* wrong, int m, int n, int repeats) {
  extern __shared__ __align__(1024) char shared[];
  ObkLanes lanes = {};
  ObkLanes* w = &lanes;
  float* c = (float*)shared;
  ObkGemm g = {};
  g.a_type = g.b_type = kObkF32, g.packed = 1;
  g.m = m, g.n = kColumns, g.k = kK, g.a = a, g.a_row = kPitchA, g.a_col = 1;
  g.b = packed, g.column = blockIdx.x * ((kColumns + 15) / 16 * 16), g.n_packed = n;
  g.c = c, g.c_row = kColumns, g.scratch = shared + (kRows * kColumns * 4 + 1023) / 1024 * 1024;
  for (int repeat = 0; repeat < repeats; ++repeat)
    OBK_GEMM_TILE_OF(kObkF32, g, true, kRows, kColumns, kK, kPitchA, kColumns);
  if (!out) return;
  for (int i = threadIdx.x; i < m * kColumns; i += 256)
    out[(int64_t)(i / kColumns) * n + g.column + i % kColumns] = c[i];
  __syncthreads();
  for (int i = threadIdx.x; i < m * kColumns; i += 256) c[i] = -7;
  obk::gemm_tile<kObkF32>(w, g);
  unsigned bad = 0;
  for (int i = threadIdx.x; i < m * kColumns; i += 256)
    bad += __float_as_int(c[i]) !=
           __float_as_int(out[(int64_t)(i / kColumns) * n + g.column + i % kColumns]);
  if (bad) atomicAdd(wrong, (unsigned long long)bad);
}
#define CASE(id, ...)                                                                          \
  extern "C" __global__ void __launch_bounds__(256, 1)                                         \
      both_##id(const float* a, const char* b, float* out, unsigned long long* wrong, int m, \
                int n, int repeats) {                                                          \
    both<__VA_ARGS__>(a, b, out, wrong, m, n, repeats);                                        \
  }
)cu";
  int id = 0;
  for (const Case& c : kCases)
    all += fmt::format("CASE({}, {}, {}, {}, {})\n", id++, c.rows, c.columns, c.k, c.pitch);
  return all;
}

TEST(FewRows, NoRegisterLiesInMemory) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  auto cubin = compile_cubin(text(), "sm_90a");
  ASSERT_TRUE(cubin.ok()) << cubin.error().text();
  for (size_t at = 0; (at = cubin->log.find(" bytes spill stores", at)) != std::string::npos; ++at)
    EXPECT_EQ(cubin->log.substr(at - 2, 2), " 0") << cubin->log;
}

TEST(FewRows, HaveTheBitsOfAnyRows) {
  const std::string source = text();
  OPEN(g, source.c_str());
  std::mt19937 random(3);
  std::uniform_real_distribution<float> value(-1, 1);
  int id = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", c.rows, c.columns, c.k));
    const int tiles = 3, n = tiles * ((c.columns + 15) / 16 * 16);
    std::vector<float> a(static_cast<size_t>(c.rows) * c.pitch), b(static_cast<size_t>(n) * c.k);
    for (std::vector<float>* each : {&a, &b})
      for (float& v : *each) v = value(random);
    std::vector<char> packed(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(kObkF32, n, c.k)));
    kernels::cuda_gemm_pack(kObkF32, n, c.k, 0, b.data(), 1, c.k, packed.data());
    const DevicePointer a_at = g.make(a.size() * 4, 0), b_at = g.make(packed.size(), 0),
                        out = g.make(static_cast<size_t>(c.rows) * n * 4, 0), wrong = g.make(8, 0);
    ASSERT_EQ(g.d->CopyToDevice(a_at, a.data(), a.size() * 4), 0);
    ASSERT_EQ(g.d->CopyToDevice(b_at, packed.data(), packed.size()), 0);
    ObkGemm shape = {};
    shape.a_type = shape.b_type = kObkF32, shape.packed = 1;
    shape.m = c.rows, shape.n = c.columns, shape.k = c.k;
    const int shared = (c.rows * c.columns * 4 + 1023) / 1024 * 1024 +
                       static_cast<int>(kernels::cuda_gemm_scratch_bytes(&shape));
    const Handle kernel = g.function(fmt::format("both_{}", id++).c_str(), shared);
    for (const int m : {c.rows, std::max(1, c.rows - 2)}) {
      ASSERT_EQ(g.launch(kernel, tiles, shared, nullptr, a_at, b_at, out, wrong, m, n, 2), 0);
      Status done = check(g.d->CtxSynchronize(), "both");
      ASSERT_TRUE(done.ok()) << done.error().text();
      EXPECT_EQ(g.read<uint64_t>(wrong), 0u) << "of " << m << " rows";
    }
    std::vector<float> got(static_cast<size_t>(c.rows) * n);
    ASSERT_EQ(g.d->CopyToHost(got.data(), out, got.size() * 4), 0);
    for (int y = 0; y < c.rows; ++y)
      for (int x = 0; x < n; ++x) {
        if (x % (n / tiles) >= c.columns) continue;
        double sum = 0, size = 0;
        for (int k = 0; k < c.k; ++k) {
          const double v = static_cast<double>(a[static_cast<size_t>(y) * c.pitch + k]) *
                           static_cast<double>(b[static_cast<size_t>(x) * c.k + k]);
          sum += v, size += std::fabs(v);
        }
        ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(y) * n + x]), sum,
                    size * 2e-6 + 1e-6)
            << "row " << y << ", column " << x;
      }
  }
}

}  // namespace
}  // namespace obelisk::runtime::cuda

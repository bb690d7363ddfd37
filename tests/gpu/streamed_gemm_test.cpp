// Products of one to eight rows whose B streams to registers (gemm_streamed.cuh) on the GPU: the
// bits of the tile of any shape, and sums in double. Without a GPU they are only compiled: no
// register lies in memory.
#include <random>

#include "device.h"
#include "kernels/cuda/gemm/gemm.h"
#include "tf32.h"

namespace obelisk::runtime::cuda {
namespace {

struct Case {
  int32_t type;
  int rows, columns, k, made_for, ctas, b_pitch = 0;  // 0: as many as there are columns
  int a_shift = 0, b_shift = 0;                       // elements
};
constexpr Case kCases[] = {
    {kObkF32, 1, 16, 512, 16, 1},         {kObkF32, 1, 200, 512, 64, 2},
    {kObkF32, 2, 64, 1000, 64, 2, 68},    {kObkF32, 3, 129, 77, 32, 1, 0, 1, 3},
    {kObkF32, 4, 256, 2100, 128, 2},      {kObkF32, 8, 96, 520, 32, 1},
    {kObkF32, 8, 512, 512, 128, 2},       {kObkF32, 7, 100, 31, 64, 2},
    {kObkTf32, 1, 16, 512, 16, 1},        {kObkTf32, 1, 200, 512, 64, 2},
    {kObkTf32, 3, 129, 77, 32, 1, 0, 3},  {kObkTf32, 8, 128, 1300, 64, 2, 132},
    {kObkTf32, 8, 512, 512, 32, 1},       {kObkTf32, 5, 50, 100, 32, 2, 0, 0, 2},
    {kObkF16, 1, 16, 512, 16, 1},         {kObkF16, 1, 200, 512, 64, 2},
    {kObkF16, 8, 136, 1300, 128, 2, 144}, {kObkF16, 6, 101, 63, 32, 1, 0, 1, 1},
    {kObkBf16, 1, 512, 512, 128, 1},      {kObkBf16, 4, 100, 777, 64, 2},
    {kObkBf16, 8, 512, 4096, 128, 2},     {kObkBf16, 2, 30, 200, 32, 1, 0, 2, 2},
};
bool is_half(int32_t type) { return type == kObkF16 || type == kObkBf16; }

std::string text() {
  std::string all = R"cu(
#include "gemm/gemm.cuh"
/* Tile b of the columns. `any`: by the tile of any shape, `wrong` counts sums that are not in out;
 * in a kernel of its own, for the other is compiled for fewer registers. */
template <bool any, int kType, typename In, int kRows, int kColumns, int kCtas>
static __device__ __forceinline__ void tile(const In* a, const In* b, float* out, float* other,
                                            unsigned long long* wrong, int m, int n, int k,
                                            int b_pitch) {
  extern __shared__ __align__(1024) char shared[];
  ObkLanes lanes = {};
  ObkGemm g = {};
  g.a_type = g.b_type = kType, g.scratch = shared;
  const int first = (int)blockIdx.x * kColumns, columns = min(kColumns, n - first);
  g.m = m, g.n = columns, g.k = k, g.a = a, g.a_row = k, g.a_col = 1;
  g.b = b + first, g.b_row = b_pitch, g.b_col = 1, g.c = (any ? other : out) + first, g.c_row = n;
  if constexpr (!any) {
    OBK_GEMM_STREAMED_TILE(kType, g, kRows, kColumns, kCtas);
  } else {
    obk::gemm_tile<kType>(&lanes, g);
    __syncthreads();
    unsigned bad = 0;
    for (int i = threadIdx.x; i < m * columns; i += 256) {
      const int at = i / columns * n + first + i % columns;
      bad += __float_as_int(out[at]) != __float_as_int(other[at]);
    }
    if (bad) atomicAdd(wrong, (unsigned long long)bad);
  }
}
#define KERNEL(name, any, ctas, type, In, ...)                                                \
  extern "C" __global__ void __launch_bounds__(256, ctas)                                     \
      name(const In* a, const In* b, float* out, float* other, unsigned long long* wrong,     \
           int m, int n, int k, int b_pitch) {                                                \
    tile<any, type, In, __VA_ARGS__>(a, b, out, other, wrong, m, n, k, b_pitch);              \
  }
#define CASE(id, type, In, rows, columns, ctas)                            \
  KERNEL(streamed_##id, false, ctas, type, In, rows, columns, ctas)        \
  KERNEL(any_##id, true, 1, type, In, rows, columns, ctas)
)cu";
  int id = 0;
  for (const Case& c : kCases)
    all += fmt::format("CASE({}, {}, {}, {}, {}, {})\n", id++, c.type,
                       is_half(c.type) ? "uint16_t" : "float", c.rows, c.made_for, c.ctas);
  return all;
}

/// Random numbers as they are stored, and as they are multiplied.
struct Numbers {
  std::vector<char> bytes;
  std::vector<double> exact;
  Numbers(int32_t type, size_t count, std::mt19937& random) {
    std::uniform_real_distribution<float> value(-1, 1);
    const auto put = [&](auto v) {
      const char* at = reinterpret_cast<const char*>(&v);
      bytes.insert(bytes.end(), at, at + sizeof v);
    };
    for (size_t i = 0; i < count; ++i) {
      const float v = value(random);
      if (type == kObkF16)
        put(float_to_f16(v)), exact.push_back(static_cast<double>(f16_to_float(float_to_f16(v))));
      else if (type == kObkBf16)
        put(float_to_bf16(v)),
            exact.push_back(static_cast<double>(bf16_to_float(float_to_bf16(v))));
      else
        put(v), exact.push_back(type == kObkTf32 ? to_tf32(static_cast<double>(v))
                                                 : static_cast<double>(v));
    }
  }
};

TEST(StreamedGemm, NoRegisterLiesInMemory) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  auto cubin = compile_cubin(text(), "sm_90a", {});
  ASSERT_TRUE(cubin.ok()) << cubin.error().text();
  for (size_t at = 0; (at = cubin->log.find(" bytes spill stores", at)) != std::string::npos; ++at)
    EXPECT_EQ(cubin->log.substr(at - 2, 2), " 0") << cubin->log;
}

TEST(StreamedGemm, HasTheBitsOfAnyRows) {
  const std::string source = text();
  OPEN(g, source.c_str());
  std::mt19937 random(5);
  int id = 0;
  for (const Case& c : kCases) {
    const int pitch = c.b_pitch > 0 ? c.b_pitch : c.columns;
    SCOPED_TRACE(
        fmt::format("type {}: {} x {} x {}, {} apart", c.type, c.rows, c.columns, c.k, pitch));
    const size_t size = is_half(c.type) ? 2 : 4;
    const Numbers a(c.type, static_cast<size_t>(c.rows) * c.k, random),
        b(c.type, static_cast<size_t>(c.k) * pitch, random);
    const auto sums = static_cast<size_t>(c.rows) * c.columns;
    const DevicePointer a_at = g.make(a.bytes.size() + 64, 0) + c.a_shift * size,
                        b_at = g.make(b.bytes.size() + 64, 0) + c.b_shift * size,
                        out = g.make(sums * 4, 0x7f), other = g.make(sums * 4, 0x7b),
                        wrong = g.make(8, 0);
    ASSERT_EQ(g.d->CopyToDevice(a_at, a.bytes.data(), a.bytes.size()), 0);
    ASSERT_EQ(g.d->CopyToDevice(b_at, b.bytes.data(), b.bytes.size()), 0);
    ObkGemm shape = {};
    shape.a_type = shape.b_type = c.type;
    shape.m = c.rows, shape.n = c.made_for, shape.k = c.k;
    const int shared = static_cast<int>(
        std::max(kernels::cuda_gemm_scratch_bytes(&shape),
                 kernels::cuda_streamed_gemm_scratch_bytes(c.type, c.rows, c.made_for, c.k)));
    const Handle streamed = g.function(fmt::format("streamed_{}", id).c_str(), shared),
                 any = g.function(fmt::format("any_{}", id++).c_str(), shared);
    const int tiles = (c.columns + c.made_for - 1) / c.made_for;
    for (const int m : {std::max(1, c.rows - 2), c.rows}) {
      for (const Handle kernel : {streamed, any})
        ASSERT_EQ(g.launch(kernel, tiles, shared, nullptr, a_at, b_at, out, other, wrong, m,
                           c.columns, c.k, pitch),
                  0);
      Status done = check(g.d->CtxSynchronize(), "both");
      ASSERT_TRUE(done.ok()) << done.error().text();
      EXPECT_EQ(g.read<uint64_t>(wrong), 0u) << "of " << m << " rows";
    }
    std::vector<float> got(sums);
    ASSERT_EQ(g.d->CopyToHost(got.data(), out, sums * 4), 0);
    for (int y = 0; y < c.rows; ++y)
      for (int x = 0; x < c.columns; ++x) {
        double sum = 0, all = 0;
        for (int k = 0; k < c.k; ++k) {
          const double v = a.exact[static_cast<size_t>(y) * c.k + k] *
                           b.exact[static_cast<size_t>(k) * pitch + x];
          sum += v, all += std::fabs(v);
        }
        ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(y) * c.columns + x]), sum,
                    all * 4e-6 + 1e-6)
            << "row " << y << ", column " << x;
      }
  }
}

}  // namespace
}  // namespace obelisk::runtime::cuda

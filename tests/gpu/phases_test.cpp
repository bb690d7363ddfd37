// The device blocks under load, each kernel checked word by word: the grid barrier while weights
// stream, side by side on two streams, after a run that ended early; chains of GEMM phases in one
// kernel, timed per phase. Skipped where no GPU is. OBELISK_GPU_PHASES sets the barriers of the
// stress test.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "runtime/cuda/mono.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "gemm.cuh"

/* Every phase each CTA writes 1536 words and checks 12288 that others wrote; 36 KB of weights stream
 * in meanwhile and are checked as well. Two buffers take turns; both are poisoned by the host. */
extern "C" __global__ void __launch_bounds__(256, 1)
    barrier_stress(uint64_t* counter, uint32_t* words, const uint32_t* weights,
                   int64_t weight_words, unsigned long long* wrong, int phases, int stop_sm,
                   int stop_phase, ObkWatch* watch) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t bar;
  constexpr int kOwn = 1536, kSeen = 12288, kWeights = 9216, kThreads = 256;
  const int sm = blockIdx.x, sms = gridDim.x, all = sms * kOwn, thread = threadIdx.x;
  const uint32_t page = obk::shared_address(shared), full = obk::shared_address(&bar);
  obk::GridBarrier barrier(counter, sms, watch, sm);
  if (thread == 0) obk::mbarrier_init(full, 1), obk::mbarrier_init_fence();
  __syncthreads();
  int64_t at = (int64_t)sm * kWeights % weight_words;
  unsigned bad = 0;
  for (int phase = 0; phase < phases; ++phase) {
    if (sm == stop_sm && phase == stop_phase) return; /* a run that ends early */
    barrier.dog().task = phase;
    const uint32_t tag = (uint32_t)phase * 2654435761u;
    uint32_t* to = words + (phase & 1) * all;
    for (int k = thread; k < kOwn; k += kThreads) to[sm * kOwn + k] = tag + sm * kOwn + k;
    barrier.arrive();
    if (thread == 0) {
      obk::mbarrier_expect(full, kWeights * 4);
      for (int k = 0; k < 4; ++k)
        obk::bulk_copy(page + k * kWeights, weights + at + k * (kWeights / 4), kWeights, full);
    }
    barrier.wait();
    const int start = ((sm * 4099 + phase % 65536 * 7919) & 0x3fffffff) % (all / 4) * 4;
    uint4 seen[kSeen / 4 / kThreads];
#pragma unroll
    for (int k = 0; k < kSeen / 4 / kThreads; ++k) {
      const int i = start + (thread + k * kThreads) * 4;
      seen[k] = *(const uint4*)(to + (i < all ? i : i - all));
    }
#pragma unroll
    for (int k = 0; k < kSeen / 4 / kThreads; ++k) {
      const int i = start + (thread + k * kThreads) * 4;
      const uint32_t want = tag + (i < all ? i : i - all);
      bad += (seen[k].x != want) + (seen[k].y != want + 1) + (seen[k].z != want + 2) +
             (seen[k].w != want + 3);
    }
    while (!obk::mbarrier_try(full, phase & 1)) {
    }
#pragma unroll
    for (int k = thread; k < kWeights; k += kThreads * 4)
      bad += ((uint32_t*)shared)[k] != (uint32_t)(at + k) * 747796405u;
    __syncthreads();
    at += (int64_t)sms * kWeights;
    if (at + kWeights > weight_words) at = (int64_t)sm * kWeights;
  }
  if (bad) atomicAdd(wrong, (unsigned long long)bad);
}

#ifndef OBK_GEMM
#define OBK_GEMM 3, 16, 4, 3
#endif
#ifdef OBK_BFLOAT
using G = obk::Gemm<OBK_GEMM, true>;
#define NARROW obk::narrow_bf16_bits
#else
using G = obk::Gemm<OBK_GEMM, false>;
#define NARROW obk::narrow_f16_bits
#endif

/* Phase p: y[p] = x W[p % layers]^T, where x is the first k columns of y[p - 1]. */
extern "C" __global__ void __launch_bounds__(256, 1)
    gemm_chain(uint64_t* counter, const char* weights, const uint16_t* input, uint16_t* outputs,
               int tokens, int n, int k, int layers, int phases, int keep, ObkWatch* watch) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t base = obk::shared_address(shared), work = base + G::kRingBytes;
  obk::GridBarrier barrier(counter, gridDim.x, watch, blockIdx.x);
  G::Ring ring;
  ring.start(base, work + G::kWork);
  const int across = n / G::kRows, tile = blockIdx.x % across, block = blockIdx.x / across;
  const int pages = k / G::kChunk;
  const int64_t tile_bytes = (int64_t)pages * G::kPageBytes;
  int ready = 0;
  for (int p = 0; p < phases; ++p) {
    const char* own = weights + ((int64_t)(p % layers) * across + tile) * tile_bytes;
    const uint16_t* x = p == 0 ? input : outputs + (int64_t)((p - 1) % keep) * tokens * n;
    uint16_t* y = outputs + (int64_t)(p % keep) * tokens * n;
    const int64_t pitch = p == 0 ? k : n;
    x += (int64_t)block * G::kTokens * pitch;
    y += (int64_t)block * G::kTokens * n + tile * G::kRows;
    G::tile(ring, work, own, ready, x, pitch, k, barrier.dog(), [&](int t, int r, const float* v) {
      uint64_t four = 0;
      for (int e = 0; e < 4; ++e) four |= (uint64_t)NARROW(v[e]) << (16 * e);
      *(uint64_t*)(y + (int64_t)t * n + r) = four;
    });
    if (p + 1 == phases) return;
    barrier.arrive();
    ready = pages < G::kRing ? pages : G::kRing;
    const char* next = weights + ((int64_t)((p + 1) % layers) * across + tile) * tile_bytes;
    if (threadIdx.x == 0)
      for (int q = 0; q < ready; ++q) ring.ask(next + (int64_t)q * G::kPageBytes, barrier.dog());
    barrier.wait();
  }
}
extern "C" __global__ void gemm_shared(int* bytes) { *bytes = G::kSharedBytes; }

/* A barrier that one CTA never reaches: the watchdog's case. */
extern "C" __global__ void barrier_missed(uint64_t* counter, ObkWatch* watch) {
  obk::GridBarrier barrier(counter, gridDim.x, watch, blockIdx.x);
  barrier.dog().task = 42;
  if (blockIdx.x == 1) return;
  barrier.arrive();
  barrier.wait();
}
)cu";

/// One module, and device memory that lives as long as the test.
struct Device {
  const Driver* d = nullptr;
  Gpu gpu;
  Handle module = nullptr;
  std::vector<DevicePointer> memory;
  std::string log;

  Status open(const std::vector<std::string>& defines) {
    TRY(d, load_driver());
    TRY(gpu, first_gpu());
    TRY(Cubin cubin, compile_cubin(kText, gpu.architecture, defines));
    log = cubin.log;
    return check(d->ModuleLoadData(&module, cubin.bytes.data()), "load");
  }
  Handle function(const char* name, int shared) {
    Handle f = nullptr;
    EXPECT_EQ(d->ModuleGetFunction(&f, module, name), 0);
    EXPECT_EQ(d->FuncSetAttribute(f, kDynamicShared, shared), 0);
    return f;
  }
  DevicePointer make(size_t bytes, int fill) {
    DevicePointer p = 0;
    EXPECT_EQ(d->MemAlloc(&p, bytes), 0);
    EXPECT_EQ(d->MemsetD8(p, static_cast<unsigned char>(fill), bytes), 0);
    memory.push_back(p);
    return p;
  }
  template <typename T>
  T read(DevicePointer p) {
    T value = {};
    EXPECT_EQ(d->CopyToHost(&value, p, sizeof value), 0);
    return value;
  }
  template <typename... Args>
  int launch(Handle f, int grid, int shared, Handle stream, Args... args) {
    void* list[] = {&args...};
    return d->LaunchCooperative(f, static_cast<unsigned>(grid), 1, 1, 256, 1, 1,
                                static_cast<unsigned>(shared), stream, list);
  }
  ~Device() {
    if (!d) return;
    for (DevicePointer p : memory) d->MemFree(p);
    if (module) d->ModuleUnload(module);
  }
};

int phases_wanted(int otherwise) {
  const char* text = getenv("OBELISK_GPU_PHASES");
  return text ? atoi(text) : otherwise;
}

#define OPEN(device, ...)                                       \
  Device device;                                                \
  if (Status opened = device.open({__VA_ARGS__}); !opened.ok()) \
  GTEST_SKIP() << opened.error().text()

struct Stress {
  DevicePointer counter, words, wrong;
};

TEST(Phases, BarrierUnderStreamingWeights) {
  OPEN(g, "OBK_WATCHDOG=4000000000LL");
  const int phases = phases_wanted(20000), sms = g.gpu.sms, shared = 36864;
  const int64_t weight_words = int64_t{64} << 20;
  std::vector<uint32_t> host(static_cast<size_t>(weight_words));
  for (size_t k = 0; k < host.size(); ++k) host[k] = static_cast<uint32_t>(k) * 747796405u;
  const DevicePointer weights = g.make(host.size() * 4, 0);
  ASSERT_EQ(g.d->CopyToDevice(weights, host.data(), host.size() * 4), 0);
  const Handle kernel = g.function("barrier_stress", shared);
  auto make = [&] {
    return Stress{g.make(128, 0), g.make(static_cast<size_t>(sms) * 1536 * 8, 0xee), g.make(8, 0)};
  };
  auto start = [&](Stress& s, int count, Handle stream, int stop_sm, int stop_phase) {
    return g.launch(kernel, sms, shared, stream, s.counter, s.words, weights, weight_words, s.wrong,
                    count, stop_sm, stop_phase, DevicePointer{0});
  };
  Handle begin = nullptr, end = nullptr;
  g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  Stress one = make(), two = make();
  g.d->EventRecord(begin, nullptr);
  ASSERT_EQ(start(one, phases, nullptr, -1, 0), 0);
  g.d->EventRecord(end, nullptr);
  Status done = check(g.d->CtxSynchronize(), "stress");
  ASSERT_TRUE(done.ok()) << done.error().text();
  float millis = 0;
  g.d->EventElapsed(&millis, begin, end);
  EXPECT_EQ(g.read<uint64_t>(one.wrong), 0u);
  EXPECT_EQ(g.read<uint64_t>(one.counter), static_cast<uint64_t>(phases) * sms);
  fmt::print(
      "{{\"stress\": \"one stream\", \"phases\": {}, \"us_a_phase\": {:.3f}, \"wrong_words\": "
      "{}}}\n",
      phases, millis * 1e3 / phases, g.read<uint64_t>(one.wrong));

  Handle streams[2] = {};
  for (Handle& stream : streams) g.d->StreamCreate(&stream, kStreamNonBlocking);
  const int fewer = phases / 5;
  g.d->EventRecord(begin, streams[0]);
  ASSERT_EQ(start(one, fewer, streams[0], -1, 0), 0);
  ASSERT_EQ(start(two, fewer, streams[1], -1, 0), 0);
  ASSERT_EQ(g.d->StreamSynchronize(streams[1]), 0);
  g.d->EventRecord(end, streams[0]);
  done = check(g.d->CtxSynchronize(), "two streams");
  ASSERT_TRUE(done.ok()) << done.error().text();
  g.d->EventElapsed(&millis, begin, end);
  const uint64_t both = g.read<uint64_t>(one.wrong) + g.read<uint64_t>(two.wrong);
  EXPECT_EQ(both, 0u);
  fmt::print(
      "{{\"stress\": \"two streams at once\", \"phases\": {}, \"us_a_phase_of_both\": {:.3f}, "
      "\"wrong_words\": {}}}\n",
      fewer, millis * 1e3 / fewer, both);

  // A run whose CTAs all leave in the middle of a barrier: what it leaves is a partial count, which
  // the owner clears.
  for (int k = 0; k < 3; ++k) {
    const uint64_t partial = static_cast<uint64_t>(sms) * 9 + static_cast<uint64_t>(k) * 17 + 1;
    ASSERT_EQ(g.d->CopyToDevice(one.counter, &partial, 8), 0);
    ASSERT_EQ(g.d->MemsetD8(one.counter, 0, 8), 0);
    ASSERT_EQ(g.d->MemsetD8(one.words, 0xee, static_cast<size_t>(sms) * 1536 * 8), 0);
    ASSERT_EQ(start(one, 1000, nullptr, -1, 0), 0);
    ASSERT_EQ(g.d->CtxSynchronize(), 0);
    EXPECT_EQ(g.read<uint64_t>(one.wrong), 0u);
  }
  g.d->EventDestroy(begin), g.d->EventDestroy(end);
  for (Handle stream : streams) g.d->StreamDestroy(stream);
}

float f16_to_float(uint16_t h) {
  const int e = (h >> 10) & 31, m = h & 1023;
  const float v =
      e ? std::ldexp(static_cast<float>(m + 1024), e - 25) : std::ldexp(static_cast<float>(m), -24);
  return h & 0x8000 ? -v : v;
}
uint16_t float_to_f16(float f) {
  return static_cast<uint16_t>(std::bit_cast<uint16_t>(static_cast<_Float16>(f)));
}
float bf16_to_float(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }
uint16_t float_to_bf16(float f) {
  const uint32_t b = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

struct ChainCase {
  int tokens, n, k;
  bool bfloat;
  const char* shape;  // of Gemm: blocks of rows, steps a page, pages, panels
};

/// Weights [n, k] as Gemm<3, 8, ..> reads them: [tile of 48][k / 16][block of 16][lane] of four
/// pairs.
std::vector<uint16_t> packed(const std::vector<uint16_t>& w, int n, int k) {
  std::vector<uint16_t> out;
  out.reserve(w.size());
  for (int tile = 0; tile < n / 48; ++tile)
    for (int step = 0; step < k / 16; ++step)
      for (int block = 0; block < 3; ++block)
        for (int lane = 0; lane < 32; ++lane)
          for (int reg = 0; reg < 4; ++reg)
            for (int half = 0; half < 2; ++half) {
              const int row = tile * 48 + block * 16 + lane / 4 + (reg & 1) * 8;
              const int column = step * 16 + lane % 4 * 2 + (reg / 2) * 8 + half;
              out.push_back(w[static_cast<size_t>(row) * k + column]);
            }
  return out;
}

class Chain : public testing::TestWithParam<ChainCase> {};

TEST_P(Chain, EqualsReferenceAndIsTimed) {
  const ChainCase c = GetParam();
  std::vector<std::string> defines;
  if (c.bfloat) defines.push_back("OBK_BFLOAT");
  defines.push_back(std::string("OBK_GEMM=") + c.shape);
  Device g;
  if (Status opened = g.open(defines); !opened.ok()) GTEST_SKIP() << opened.error().text();
  const int64_t layer = static_cast<int64_t>(c.n) * c.k;
  const int layers = static_cast<int>(std::max<int64_t>(2, (int64_t{150} << 20) / (layer * 2))),
            checked = 6;
  auto widen = [&](uint16_t v) { return c.bfloat ? bf16_to_float(v) : f16_to_float(v); };
  auto narrow = [&](float v) { return c.bfloat ? float_to_bf16(v) : float_to_f16(v); };
  std::mt19937 random(5);
  std::uniform_real_distribution<float> value(-1, 1);
  const float scale = std::sqrt(3.0f / static_cast<float>(c.k));
  std::vector<std::vector<uint16_t>> host;
  const DevicePointer weights = g.make(static_cast<size_t>(layer) * 2 * layers, 0);
  for (int l = 0; l < layers; ++l) {
    std::vector<uint16_t> w(static_cast<size_t>(layer));
    if (l < checked)
      for (uint16_t& v : w) v = narrow(value(random) * scale);
    else
      for (size_t k = 0; k < w.size(); ++k)
        w[k] = host[l % checked][(k + static_cast<size_t>(l) * 977) % w.size()];
    const std::vector<uint16_t> p = packed(w, c.n, c.k);
    ASSERT_EQ(
        g.d->CopyToDevice(weights + static_cast<uint64_t>(l) * layer * 2, p.data(), p.size() * 2),
        0);
    if (l < checked) host.push_back(std::move(w));
  }
  std::vector<uint16_t> x(static_cast<size_t>(c.tokens) * c.k);
  for (uint16_t& v : x) v = narrow(value(random) * 1.7f);
  const DevicePointer input = g.make(x.size() * 2, 0), counter = g.make(128, 0),
                      bytes = g.make(4, 0);
  ASSERT_EQ(g.d->CopyToDevice(input, x.data(), x.size() * 2), 0);
  const size_t out_bytes = static_cast<size_t>(c.tokens) * c.n * 2;
  const DevicePointer outputs = g.make(out_bytes * checked, 0xee);
  ASSERT_EQ(g.launch(g.function("gemm_shared", 0), 1, 0, nullptr, bytes), 0);
  ASSERT_EQ(g.d->CtxSynchronize(), 0);
  const int shared = g.read<int>(bytes), grid = c.tokens / 64 * (c.n / 48);
  const Handle kernel = g.function("gemm_chain", shared);
  ASSERT_LE(grid, g.gpu.sms);
  int registers = 0, local = 0;
  g.d->FuncGetAttribute(&registers, kRegisters, kernel),
      g.d->FuncGetAttribute(&local, kLocalBytes, kernel);
  EXPECT_EQ(local, 0) << "registers spill";

  auto run = [&](int phases, int keep) {
    EXPECT_EQ(g.launch(kernel, grid, shared, nullptr, counter, weights, input, outputs, c.tokens,
                       c.n, c.k, layers, phases, keep, DevicePointer{0}),
              0);
  };
  run(checked, checked);
  Status done = check(g.d->CtxSynchronize(), "chain");
  ASSERT_TRUE(done.ok()) << done.error().text();
  std::vector<std::vector<uint16_t>> got(
      checked, std::vector<uint16_t>(static_cast<size_t>(c.tokens) * c.n));
  double worst = 0;
  for (int p = 0; p < checked; ++p) {
    ASSERT_EQ(
        g.d->CopyToHost(got[p].data(), outputs + static_cast<uint64_t>(p) * out_bytes, out_bytes),
        0);
    const std::vector<uint16_t>& from = p ? got[p - 1] : x;
    const size_t pitch = p ? c.n : c.k;
    // Every element of a few random tokens; all columns, so that every CTA's tile is looked at.
    for (int look = 0; look < 12; ++look) {
      const size_t t = random() % c.tokens;
      std::vector<float> row(c.k);
      for (int k = 0; k < c.k; ++k) row[k] = widen(from[t * pitch + k]);
      for (int n = 0; n < c.n; ++n) {
        double sum = 0;
        for (int k = 0; k < c.k; ++k)
          sum += static_cast<double>(row[k]) * widen(host[p][static_cast<size_t>(n) * c.k + k]);
        const double have = widen(got[p][t * c.n + n]);
        const double error = std::fabs(have - sum) / (0.1 + std::fabs(sum));
        ASSERT_LE(error, c.bfloat ? 8e-3 : 1e-3)
            << "phase " << p << " token " << t << " row " << n << ": " << have << " wanted " << sum;
        worst = std::max(worst, error);
      }
    }
  }
  // The same again: other bits would be a race.
  run(checked, checked);
  ASSERT_EQ(g.d->CtxSynchronize(), 0);
  std::vector<uint16_t> again(got.back().size());
  ASSERT_EQ(g.d->CopyToHost(again.data(), outputs + static_cast<uint64_t>(checked - 1) * out_bytes,
                            out_bytes),
            0);
  EXPECT_EQ(again, got.back());

  Handle begin = nullptr, end = nullptr;
  g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  auto micros = [&](int phases) {
    std::vector<float> all;
    for (int k = 0; k < 15; ++k) {
      float millis = 0;
      g.d->EventRecord(begin, nullptr);
      run(phases, 2);
      g.d->EventRecord(end, nullptr);
      g.d->EventSynchronize(end);
      g.d->EventElapsed(&millis, begin, end);
      all.push_back(millis * 1000);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  };
  micros(200);
  const double phase = (micros(1200) - micros(200)) / 1000.0,
               stream = static_cast<double>(layer) * 2 / 4.67e6;
  fmt::print(
      "{{\"gemm_phase\": {{\"tokens\": {}, \"n\": {}, \"k\": {}, \"type\": \"{}\", \"tile\": "
      "\"{}\", \"ctas\": {}}}, "
      "\"us\": {:.2f}, \"stream_us\": {:.2f}, \"exposed_us\": {:.2f}, \"registers\": {}, "
      "\"shared\": {}, \"worst\": {:.1e}}}\n",
      c.tokens, c.n, c.k, c.bfloat ? "bf16" : "f16", c.shape, grid, phase, stream, phase - stream,
      registers, shared, worst);
}

constexpr const char *kWide = "3,16,4,3", *kThin = "3,8,8,6", *kSmall = "3,8,7,3";
INSTANTIATE_TEST_SUITE_P(Bert, Chain,
                         testing::Values(ChainCase{128, 3072, 768, false, kWide},
                                         ChainCase{128, 3072, 768, false, kThin},
                                         ChainCase{128, 3072, 768, false, kSmall},
                                         ChainCase{128, 3072, 768, true, kWide},
                                         ChainCase{128, 2304, 768, false, kWide},
                                         ChainCase{128, 1536, 768, false, kWide},
                                         ChainCase{128, 3072, 384, false, kThin},
                                         ChainCase{64, 3072, 3072, false, kWide}),
                         [](const auto& info) {
                           std::string name = fmt::format(
                               "m{}_n{}_k{}_{}_{}", info.param.tokens, info.param.n, info.param.k,
                               info.param.bfloat ? "bf16" : "f16", info.param.shape);
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

// Run apart (--gtest_also_run_disabled_tests --gtest_filter=*Watchdog*), since a trap ends the
// process's context.
TEST(Phases, DISABLED_WatchdogNamesWhatWasWaitedFor) {
  OPEN(g, "OBK_WATCHDOG=20000000");
  void* memory = nullptr;
  ASSERT_EQ(g.d->MemHostAlloc(&memory, 64, kHostMapped), 0);
  memset(memory, 0, 64);
  const DevicePointer counter = g.make(128, 0);
  ASSERT_EQ(g.launch(g.function("barrier_missed", 0), 4, 0, nullptr, counter, memory), 0);
  EXPECT_NE(g.d->CtxSynchronize(), 0);
  struct {
    uint32_t hit, sm, task, kind;
    uint64_t counter, want, have;
  } seen;
  memcpy(&seen, memory, sizeof seen);
  EXPECT_EQ(seen.hit, 1u);
  EXPECT_EQ(seen.kind, 1u);
  EXPECT_EQ(seen.task, 42u);
  EXPECT_EQ(seen.counter, counter);
  EXPECT_EQ(seen.want, 4u);
  EXPECT_EQ(seen.have, 3u);
  fmt::print("{{\"watchdog\": {{\"sm\": {}, \"task\": {}, \"want\": {}, \"have\": {}}}}}\n",
             seen.sm, seen.task, seen.want, seen.have);
}

}  // namespace
}  // namespace obelisk::runtime::cuda

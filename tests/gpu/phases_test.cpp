// The device blocks under load, each kernel checked word by word: the grid barrier while weights
// stream, side by side on two streams, after a run that ended early. Skipped where no GPU is.
// OBELISK_GPU_PHASES sets the barriers of the stress test.
#include <cstdlib>

#include "device.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "barrier.cuh"

/* Where idle CTAs are wanted: three phases in eight, each its own. */
__device__ inline bool idle_in(int idle, int cta, int phase) {
  return idle && phase >= 8 && (cta * 5 + phase) % 8 < 3;
}
/* What stands in a CTA's words when it may have been idle: of the last phase that wrote there. */
__device__ inline uint32_t tag_of(int idle, int cta, int phase) {
  while (idle_in(idle, cta, phase)) phase -= 2;
  return (uint32_t)phase * 2654435761u;
}

/* Every phase each CTA writes 1536 words and checks 12288 that others wrote; 36 KB of weights stream
 * in meanwhile and are checked as well. Two buffers take turns; both are poisoned by the host. An
 * idle CTA writes nothing, has read nothing since it left the barrier before, has its copies under
 * way when it arrives, and arrives without order. */
extern "C" __global__ void __launch_bounds__(256, 1)
    barrier_stress(uint64_t* counter, uint32_t* words, const uint32_t* weights,
                   int64_t weight_words, unsigned long long* wrong, int phases, int idle,
                   int stop_sm, int stop_phase, ObkWatch* watch) {
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
    const bool idles = idle_in(idle, sm, phase);
    if (!idles) {
      for (int k = thread; k < kOwn; k += kThreads) to[sm * kOwn + k] = tag + sm * kOwn + k;
      barrier.arrive();
    }
    if (thread == 0) {
      obk::mbarrier_expect(full, kWeights * 4);
      for (int k = 0; k < 4; ++k)
        obk::bulk_copy(page + k * kWeights, weights + at + k * (kWeights / 4), kWeights, full);
    }
    if (idles) barrier.arrive_idle();
    barrier.wait();
    const int start = ((sm * 4099 + phase % 65536 * 7919) & 0x3fffffff) % (all / 4) * 4;
    const bool looks = !idle_in(idle, sm, phase + 1);
    uint4 seen[kSeen / 4 / kThreads];
#pragma unroll
    for (int k = 0; k < kSeen / 4 / kThreads; ++k) {
      const int i = start + (thread + k * kThreads) * 4;
      if (looks) seen[k] = *(const uint4*)(to + (i < all ? i : i - all));
    }
#pragma unroll
    for (int k = 0; k < kSeen / 4 / kThreads; ++k) {
      const int i = start + (thread + k * kThreads) * 4, word = i < all ? i : i - all;
      const uint32_t want = (idle ? tag_of(idle, word / kOwn, phase) : tag) + word;
      if (!looks) continue;
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

/* A barrier that one CTA never reaches: the watchdog's case. */
extern "C" __global__ void barrier_missed(uint64_t* counter, ObkWatch* watch) {
  obk::GridBarrier barrier(counter, gridDim.x, watch, blockIdx.x);
  barrier.dog().task = 42;
  if (blockIdx.x == 1) return;
  barrier.arrive();
  barrier.wait();
}

extern "C" __global__ void count_unlike(const uint32_t* at, int words, uint32_t wanted, uint32_t* unlike) {
  for (int k = threadIdx.x; k < words; k += blockDim.x)
    if (at[k] != wanted) atomicAdd(unlike, 1u);
}
)cu";

int phases_wanted(int otherwise) {
  const char* text = getenv("OBELISK_GPU_PHASES");
  return text ? atoi(text) : otherwise;
}

struct Stress {
  DevicePointer counter, words, wrong;
};

TEST(Phases, BarrierUnderStreamingWeights) {
  OPEN(g, kText, "OBK_WATCHDOG=4000000000LL");
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
  int idle = 0;
  auto start = [&](Stress& s, int count, Handle stream, int stop_sm, int stop_phase) {
    return g.launch(kernel, sms, shared, stream, s.counter, s.words, weights, weight_words, s.wrong,
                    count, idle, stop_sm, stop_phase, DevicePointer{0});
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

  idle = 1;
  Stress some = make();
  g.d->EventRecord(begin, nullptr);
  ASSERT_EQ(start(some, phases, nullptr, -1, 0), 0);
  g.d->EventRecord(end, nullptr);
  done = check(g.d->CtxSynchronize(), "idle CTAs");
  ASSERT_TRUE(done.ok()) << done.error().text();
  g.d->EventElapsed(&millis, begin, end);
  EXPECT_EQ(g.read<uint64_t>(some.wrong), 0u);
  fmt::print(
      "{{\"stress\": \"idle CTAs\", \"phases\": {}, \"us_a_phase\": {:.3f}, \"wrong_words\": {}}}\n",
      phases, millis * 1e3 / phases, g.read<uint64_t>(some.wrong));
  idle = 0;

  // A run whose CTAs all leave in the middle of a barrier: what it leaves is a partial count, which
  // the owner clears.
  for (int k = 0; k < 3; ++k) {
    const uint64_t partial = static_cast<uint64_t>(sms) * 9 + static_cast<uint64_t>(k) * 17 + 1;
    ASSERT_EQ(g.d->CopyToDevice(one.counter, &partial, 8), 0);
    ASSERT_EQ(g.d->MemsetD8(one.counter, 0, 8), 0);
    ASSERT_EQ(g.d->MemsetD8(one.words, 0xee, static_cast<size_t>(sms) * 1536 * 8), 0);
    ASSERT_EQ(start(one, std::min(phases, 1000), nullptr, -1, 0), 0);
    ASSERT_EQ(g.d->CtxSynchronize(), 0);
    EXPECT_EQ(g.read<uint64_t>(one.wrong), 0u);
  }
  g.d->EventDestroy(begin), g.d->EventDestroy(end);
  for (Handle stream : streams) g.d->StreamDestroy(stream);
}

// A stream of its own does not wait for copies, which go to the default stream: who copies in waits for them.
TEST(Phases, CopiedWordsAreThereForEveryStream) {
  OPEN(g, kText);
  const Handle kernel = g.function("count_unlike", 0);
  Handle stream = nullptr;
  ASSERT_EQ(g.d->StreamCreate(&stream, kStreamNonBlocking), 0);
  const DevicePointer unlike = g.make(4, 0);
  for (size_t words : {32u, 8192u, 65536u}) {  // a counter; less and more than the driver stages at once
    const DevicePointer at = g.make(words * 4, 0);
    ASSERT_EQ(g.d->CtxSynchronize(), 0);
    for (uint32_t k = 1; k <= (few() ? 3u : 2000u); ++k) {
      const std::vector<uint32_t> host(words, k);
      Status copied = copy_in(*g.d, at, host.data(), static_cast<int64_t>(words * 4), "words");
      ASSERT_TRUE(copied.ok()) << copied.error().text();
      ASSERT_EQ(g.launch(kernel, 1, 0, stream, at, static_cast<int>(words), k, unlike), 0);
      ASSERT_EQ(g.d->StreamSynchronize(stream), 0);
    }
    EXPECT_EQ(g.read<uint32_t>(unlike), 0u) << words << " words";
  }
  g.d->StreamDestroy(stream);
}

// Run apart (--gtest_also_run_disabled_tests --gtest_filter=*Watchdog*), since a trap ends the
// process's context.
TEST(Phases, DISABLED_WatchdogNamesWhatWasWaitedFor) {
  OPEN(g, kText, "OBK_WATCHDOG=20000000");
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

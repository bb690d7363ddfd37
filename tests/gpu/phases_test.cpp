// The grid barrier's class under load, every word checked: while weights stream, with CTAs that are
// idle, side by side on two streams, after a run that ended early; what its watchdog says. Skipped
// where no GPU is. OBELISK_GPU_PHASES sets how many barriers a stress has.
#include <algorithm>
#include <cstdlib>

#include "base/test/apart.h"
#include "weight_stream.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "exec/barrier.cuh"

/* Where idle CTAs are wanted: three phases in eight, each its own. */
__device__ inline bool idle_in(int idle, int cta, int phase) {
  return idle && phase >= 8 && (cta * 5 + phase) % 8 < 3;
}
/* What stands in a CTA's words when it may have been idle: of the last phase that wrote there. */
__device__ inline uint32_t tag_of(int idle, int cta, int phase) {
  while (idle_in(idle, cta, phase)) phase -= 2;
  return (uint32_t)phase * 2654435761u;
}
/* barrier.wait() of who gives up after so many nanoseconds: whether all came. */
__device__ inline bool all_came(obk::GridBarrier& barrier, const uint64_t* counter, uint64_t patience) {
  __shared__ int came;
  if (threadIdx.x == 0) {
    const uint64_t since = obk::clock_nanos();
    bool there;
    while (!(there = obk::poll_acquire(counter) >= barrier.wanted()) && obk::clock_nanos() - since < patience) {
    }
    came = there;
  }
  __syncthreads();
  return came;
}

/* Every phase each CTA writes 1536 words and checks 12288 that others wrote; 36 KB of weights stream
 * in meanwhile and are checked as well. Two buffers take turns; both are poisoned by the host. An
 * idle CTA writes nothing, has read nothing since it left the barrier before, has its copies under
 * way when it arrives, and arrives without order. kEnds: CTA `stop_sm` leaves before phase `stop_phase`, and the
 * others when they have waited `patience` nanoseconds. `span`: from when to when the first CTA ran. */
template <bool kEnds>
__device__ __forceinline__ void stress(uint64_t* counter, uint32_t* words, const uint32_t* weights,
                                       int64_t weight_words, unsigned long long* wrong, int phases, int idle,
                                       uint64_t* span, int stop_sm, int stop_phase, uint64_t patience) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t bar;
  constexpr int kOwn = 1536, kSeen = 12288, kWeights = 9216, kThreads = 256;
  const int sm = blockIdx.x, sms = gridDim.x, all = sms * kOwn, thread = threadIdx.x;
  const uint32_t page = obk::shared_address(shared), full = obk::shared_address(&bar);
  obk::GridBarrier barrier(counter, sms, nullptr, sm);
  if (thread == 0) obk::mbarrier_init(full, 1), obk::mbarrier_init_fence();
  if (sm == 0 && thread == 0) span[0] = obk::clock_nanos();
  __syncthreads();
  int64_t at = (int64_t)sm * kWeights % weight_words;
  unsigned bad = 0;
  for (int phase = 0; phase < phases; ++phase) {
    if (kEnds && sm == stop_sm && phase == stop_phase) break;
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
    bool came = true;
    if (kEnds)
      came = all_came(barrier, counter, patience);
    else
      barrier.wait();
    const int start = ((sm * 4099 + phase % 65536 * 7919) & 0x3fffffff) % (all / 4) * 4;
    const bool looks = came && !idle_in(idle, sm, phase + 1);
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
    while (!obk::mbarrier_try(full, phase & 1)) { /* no copy outlives its CTA */
    }
#pragma unroll
    for (int k = thread; k < kWeights; k += kThreads * 4)
      bad += ((uint32_t*)shared)[k] != (uint32_t)(at + k) * 747796405u;
    __syncthreads();
    if (!came) break;
    at += (int64_t)sms * kWeights;
    if (at + kWeights > weight_words) at = (int64_t)sm * kWeights;
  }
  if (bad) atomicAdd(wrong, (unsigned long long)bad);
  if (sm == 0 && thread == 0) span[1] = obk::clock_nanos();
}
extern "C" __global__ void __launch_bounds__(256, 1)
    barrier_stress(uint64_t* counter, uint32_t* words, const uint32_t* weights, int64_t weight_words,
                   unsigned long long* wrong, int phases, int idle, uint64_t* span) {
  stress<false>(counter, words, weights, weight_words, wrong, phases, idle, span, -1, 0, 0);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    barrier_ends_early(uint64_t* counter, uint32_t* words, const uint32_t* weights, int64_t weight_words,
                       unsigned long long* wrong, int phases, int idle, uint64_t* span, int stop_sm,
                       int stop_phase, uint64_t patience) {
  stress<true>(counter, words, weights, weight_words, wrong, phases, idle, span, stop_sm, stop_phase, patience);
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

/// What one instance of a program has: its barrier's counter, its memory. And what the stress says.
struct Instance {
  DevicePointer counter, words, wrong, span;
};

/// The stress's kernels, and weights for them.
struct Load : WeightStream {
  int sms = g.gpu.sms;
  Handle plain = nullptr, early = nullptr;

  explicit Load(Device& device) : WeightStream(device) {
    plain = g.function("barrier_stress", kShared);
    early = g.function("barrier_ends_early", kShared);
  }

  static int phases() {
    const char* text = getenv("OBELISK_GPU_PHASES");
    return text ? atoi(text) : few() ? 10 : 1000000;
  }
  Instance make() const {
    Instance made{g.make(128, 0), g.make(static_cast<size_t>(sms) * 1536 * 8, 0xee), g.make(8, 0),
                  g.make(16, 0)};
    EXPECT_EQ(g.d->CtxSynchronize(), 0);  // streams of their own do not wait for what fills memory
    return made;
  }
  int start(const Instance& of, int phases, int idle, Handle stream) const {
    return g.launch(plain, sms, kShared, stream, of.counter, of.words, weights, kWords, of.wrong,
                    phases, idle, of.span);
  }
  /// Waits for all; says the counts of a form of the signal, by its name.
  void finish(const char* form, std::initializer_list<Instance> all, int phases) const {
    const std::optional<double> us = finished(form);
    ASSERT_TRUE(us);
    uint64_t wrong = 0;
    for (const Instance& of : all) {
      wrong += g.read<uint64_t>(of.wrong);
      EXPECT_EQ(g.read<uint64_t>(of.counter),
                static_cast<uint64_t>(phases) * static_cast<uint64_t>(sms))
          << form;
    }
    EXPECT_EQ(wrong, 0u) << form;
    fmt::print(
        "{{\"test\": \"{}\", \"phases\": {}, \"instances\": {}, \"us_a_phase\": {:.3f}, "
        "\"wrong_words\": {}}}\n",
        form, phases, all.size(), *us / phases, wrong);
  }
};

TEST(Phases, BarrierUnderStreamingWeights) {
  OPEN(g, kText, "OBK_WATCHDOG=4000000000LL");
  const Load load(g);
  const int phases = Load::phases();
  for (const int idle : {0, 1}) {
    const Instance one = load.make();
    load.starts();
    ASSERT_EQ(load.start(one, phases, idle, nullptr), 0);
    load.ends();
    load.finish(idle ? "barrier, three CTAs in eight idle" : "barrier, weights after the signal",
                {one}, phases);
    if (HasFatalFailure()) return;
  }
  Handle streams[2] = {};
  for (Handle& stream : streams) ASSERT_EQ(g.d->StreamCreate(&stream, kStreamNonBlocking), 0);
  const Instance one = load.make(), two = load.make();
  load.starts(streams[0]);
  ASSERT_EQ(load.start(one, phases, 0, streams[0]), 0);
  ASSERT_EQ(load.start(two, phases, 0, streams[1]), 0);
  ASSERT_EQ(g.d->StreamSynchronize(streams[1]), 0);
  load.ends(streams[0]);
  load.finish("barrier, two streams at once", {one, two}, phases);
  if (HasFatalFailure()) return;
  int fit = 0;  // CTAs of the kernel on an SM: with two the streams ran at once, each with its own
                // counter
  ASSERT_EQ(g.d->Occupancy(&fit, load.plain, 256, Load::kShared), 0);
  struct Span {
    uint64_t from, to;
  };
  const Span a = g.read<Span>(one.span), b = g.read<Span>(two.span);
  if (fit >= 2 && phases >= 1000) {
    EXPECT_LT(std::max(a.from, b.from), std::min(a.to, b.to)) << "one stream waited for the other";
  }
  for (Handle stream : streams) g.d->StreamDestroy(stream);
}

// A run of which one CTA leaves early, and the others when they have waited long enough, leaves a
// count in the middle of a barrier. A context whose run failed never runs again (load.cpp, failed);
// the next one begins with a counter and a workspace that it clears itself (CudaContext::init),
// perhaps in the same memory.
TEST(Phases, ACountInTheMiddleOfABarrierIsClearedForTheNextContext) {
  OPEN(g, kText, "OBK_WATCHDOG=4000000000LL");
  const Load load(g);
  const auto sms = static_cast<uint64_t>(load.sms);
  const int phases = std::min(Load::phases(), 1000);
  const uint64_t patience =
      few() ? 20'000'000'000ull : 500'000'000ull;  // nanoseconds; under a tool a phase takes long
  const Instance one = load.make();
  for (const int k : few() ? std::vector<int>{1} : std::vector<int>{0, 1, 2, 3}) {
    const int stop_sm = std::vector{0, 5, load.sms / 2, load.sms - 1}[static_cast<size_t>(k)],
              stop_phase = k == 0 ? 0 : phases * k / 4;
    SCOPED_TRACE(fmt::format("CTA {} leaves before phase {} of {}", stop_sm, stop_phase, phases));
    ASSERT_EQ(
        g.launch(load.early, load.sms, Load::kShared, nullptr, one.counter, one.words, load.weights,
                 Load::kWords, one.wrong, phases, 0, one.span, stop_sm, stop_phase, patience),
        0);
    Status done = check(g.d->CtxSynchronize(), "a run that ends early");
    ASSERT_TRUE(done.ok()) << done.error().text();
    EXPECT_EQ(g.read<uint64_t>(one.counter), static_cast<uint64_t>(stop_phase) * sms + sms - 1)
        << "all but one arrived at the last barrier";
    EXPECT_EQ(g.read<uint64_t>(one.wrong), 0u);
    const uint64_t zero[16] = {};
    done = copy_in(*g.d, one.counter, zero, sizeof zero, "the barrier");
    ASSERT_TRUE(done.ok()) << done.error().text();
    ASSERT_EQ(g.d->MemsetD8(one.words, 0xee, static_cast<size_t>(load.sms) * 1536 * 8), 0);
    load.starts();
    ASSERT_EQ(load.start(one, phases, 0, nullptr), 0);
    load.ends();
    load.finish("barrier, after a run that ended early", {one}, phases);
    if (HasFatalFailure()) return;
    ASSERT_EQ(g.d->MemsetD8(one.counter, 0, 128), 0);
  }
}

// A stream of its own does not wait for copies, which go to the default stream: who copies in waits
// for them.
TEST(Phases, CopiedWordsAreThereForEveryStream) {
  OPEN(g, kText);
  const Handle kernel = g.function("count_unlike", 0);
  Handle stream = nullptr;
  ASSERT_EQ(g.d->StreamCreate(&stream, kStreamNonBlocking), 0);
  const DevicePointer unlike = g.make(4, 0);
  for (size_t words :
       {32u, 8192u, 65536u}) {  // a counter; less and more than the driver stages at once
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

// A trap ends the context of its process.
TEST(Phases, WatchdogNamesWhatWasWaitedFor) {
  if (auto gpu = open_gpu(0); !gpu.ok()) GTEST_SKIP() << gpu.error().text();
  if (few()) GTEST_SKIP() << "a tool reports every trap";
  EXPECT_TRUE(passes_apart("Phases.DISABLED_WatchdogNamesWhatWasWaitedFor"));
}
TEST(Phases, DISABLED_WatchdogNamesWhatWasWaitedFor) {
  OPEN(g, kText, "OBK_WATCHDOG=200000000");
  const DevicePointer counter = g.make(128, 0);
  const ObkWatch seen = watched(g, "barrier_missed", 4, counter);
  EXPECT_EQ(seen.kind, 1u);
  EXPECT_EQ(seen.want, 4u);
  EXPECT_EQ(seen.have, 3u);
  fmt::print(
      "{{\"test\": \"watchdog of the barrier\", \"sm\": {}, \"task\": {}, \"want\": {}, \"have\": "
      "{}}}\n",
      seen.sm, seen.task, seen.want, seen.have);
}

}  // namespace
}  // namespace obelisk::runtime::cuda

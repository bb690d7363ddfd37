// The words that members of a gang exchange (kernels/cuda/recurrent/recurrence.cuh), each checked,
// while weights stream through every SM and members are late by turns. Skipped where no GPU is.
// OBELISK_GPU_STEPS sets the steps of a run.
#include "base/test/apart.h"
#include "weight_stream.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#define OBK_THREADS 256
#include "exec/barrier.cuh"
#include "recurrent/recurrence.cuh"

typedef obk::Recurrence<float, 4, 256, 8, 1> Gang;

static __device__ uint32_t word_of(uint32_t step, uint32_t gang, uint32_t unit) {
  uint32_t x = (step * 2654435761u) ^ (gang * 40503u + unit * 747796405u);
  x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
  return x;
}

/* As obk::recurrence walks the steps, without its sums: every member posts 32 words, reads all 256 and
 * checks them. 36 KB of weights are in flight for most of the time and are checked as well. */
template <bool kDsmem>
static __device__ __forceinline__ void stress(uint64_t* exchange, const uint32_t* weights,
                                              int64_t weight_words, unsigned long long* wrong,
                                              int steps, int late, ObkWatch* watch) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t bar;
  __shared__ __align__(16) char states[2 * Gang::kState];
  __shared__ __align__(16) uint64_t dsmem_words[512];
  constexpr int kWeights = 9216;
  const int member = blockIdx.x % 8, gang = blockIdx.x / 8, thread = threadIdx.x;
  uint64_t* const counts = exchange + gang * (8 + 512);
  uint64_t* const words = counts + 8;
  const uint32_t page = obk::shared_address(shared), full = obk::shared_address(&bar);
  if (thread == 0) obk::mbarrier_init(full, 1), obk::mbarrier_init_fence();
  obk::Watchdog dog{watch, blockIdx.x, 0, 0};
  const uint32_t base = (uint32_t)obk::poll_relaxed(counts + member);
  for (int k = thread; k < 512; k += 256) dsmem_words[k] = 0;
  if (kDsmem)
    obk::cluster_meet();
  else
    __syncthreads();
  int64_t at = (int64_t)blockIdx.x * kWeights % weight_words;
  unsigned bad = 0, page_turn = 0;
  for (int step = 0; step < steps; ++step) {
    dog.task = step;
    uint64_t* const posted = words + (step & 1) * 256;
    char* const next = states + (step & 1 ? 0 : Gang::kState);
    const uint32_t number = base + step + 1;
    if (late && word_of(step, gang, member + 1000) % 8 == 0) {
      const int64_t since = obk::clock_cycles();
      while (obk::clock_cycles() - since < (int64_t)(word_of(step, gang, member) % late)) {
      }
    }
    if (thread < 32) {
      const int unit = member * 32 + thread;
      const uint64_t word = (uint64_t)number << 32 | word_of(number, gang, unit);
      if (kDsmem)
        Gang::post_to_all(obk::shared_address(dsmem_words + (step & 1) * 256), unit, word);
      else
        obk::post_relaxed(posted + unit, word);
    }
    if (thread == 0 && step % 4 == 0) {
      obk::mbarrier_expect(full, kWeights * 4);
      for (int k = 0; k < 4; ++k)
        obk::bulk_copy(page + k * kWeights, weights + at + k * (kWeights / 4), kWeights, full);
    }
    if (kDsmem)
      Gang::collect_dsmem(obk::shared_address(dsmem_words + (step & 1) * 256), number, 1,
                         obk::shared_address(next), dog);
    else
      Gang::collect(posted, number, 1, obk::shared_address(next), dog);
    __syncthreads();
    bad += ((const uint32_t*)next)[thread] != word_of(number, gang, thread);
    if (step % 4 == 3) {
      while (!obk::mbarrier_try(full, page_turn & 1)) {
      }
      ++page_turn;
      for (int k = thread; k < kWeights; k += 256 * 4)
        bad += ((uint32_t*)shared)[k] != (uint32_t)(at + k) * 747796405u;
      __syncthreads();
      at += (int64_t)gridDim.x * kWeights;
      if (at + kWeights > weight_words) at = (int64_t)blockIdx.x * kWeights;
    }
  }
  if (bad) atomicAdd(wrong, (unsigned long long)bad);
  if (kDsmem)
    obk::cluster_meet();
  else if (thread == 0)
    obk::post_relaxed(counts + member, base + (uint32_t)steps);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    gangs_stress(uint64_t* exchange, const uint32_t* weights, int64_t weight_words,
                 unsigned long long* wrong, int steps, int late, ObkWatch* watch) {
  stress<false>(exchange, weights, weight_words, wrong, steps, late, watch);
}
extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(256, 1)
    clusters_stress(uint64_t* exchange, const uint32_t* weights, int64_t weight_words,
                    unsigned long long* wrong, int steps, int late, ObkWatch* watch) {
  stress<true>(exchange, weights, weight_words, wrong, steps, late, watch);
}

/* A gang whose last member never comes: the watchdog's case. */
extern "C" __global__ void __launch_bounds__(256, 1) gang_missed(uint64_t* words, ObkWatch* watch) {
  __shared__ __align__(16) char state[Gang::kState];
  if (blockIdx.x == 7) return;
  if (threadIdx.x < 32)
    obk::post_relaxed(words + blockIdx.x * 32 + threadIdx.x, (uint64_t)5 << 32);
  Gang::collect(words, 5, 1, obk::shared_address(state), obk::Watchdog{watch, blockIdx.x, 42, 0});
}
)cu";

/// A run of steps, with the words in global memory or in one another's shared memory.
void stress(const char* name, bool dsmem) {
  OPEN(g, kText, "OBK_WATCHDOG=4000000000LL");
  const char* wished = getenv("OBELISK_GPU_STEPS");
  const int steps = (wished ? atoi(wished) : 40000) / 4 * 4, gangs = g.gpu.sms / 8;
  const WeightStream stream(g);
  DevicePointer weights = stream.weights, wrong = g.make(8, 0), watch = 0;
  DevicePointer exchange = g.make(static_cast<size_t>(gangs) * (8 + 512) * 8, 0);
  const int shared = WeightStream::kShared;
  const Handle kernel = g.function(name, shared);
  for (int late : {0, 0, 400, 6000}) {  // clocks; numbers go on from run to run
    stream.starts();
    int64_t words = WeightStream::kWords;
    int count = steps, most = late;
    void* list[] = {&exchange, &weights, &words, &wrong, &count, &most, &watch};
    const auto ctas = static_cast<unsigned>(gangs * 8);
    if (dsmem)
      ASSERT_EQ(g.d->Launch(kernel, ctas, 1, 1, 256, 1, 1, shared, nullptr, list, nullptr), 0);
    else
      ASSERT_EQ(g.d->LaunchCooperative(kernel, ctas, 1, 1, 256, 1, 1, shared, nullptr, list), 0);
    stream.ends();
    const std::optional<double> us = stream.finished("stress");
    ASSERT_TRUE(us);
    EXPECT_EQ(g.read<uint64_t>(wrong), 0u) << "late by up to " << late;
    fmt::print(
        "{{\"stress\": \"words of {} gangs, {}\", \"late\": {}, \"steps\": {}, "
        "\"us_a_step\": {:.3f}, \"wrong_words\": {}}}\n",
        gangs, dsmem ? "clusters" : "one kernel", late, steps, *us / steps,
        g.read<uint64_t>(wrong));
  }
  if (!dsmem) {
    EXPECT_EQ(g.read<uint64_t>(exchange), static_cast<uint64_t>(steps) * 4);
  }
}

TEST(GangWords, AreRightWhileWeightsStream) { stress("gangs_stress", false); }
TEST(GangWords, OfAClusterAreRightWhileWeightsStream) { stress("clusters_stress", true); }

// A trap ends the context of its process.
TEST(GangWords, WatchdogNamesTheWaitForAMember) {
  if (auto gpu = open_gpu(0); !gpu.ok()) GTEST_SKIP() << gpu.error().text();
  if (few()) GTEST_SKIP() << "a tool reports every trap";
  EXPECT_TRUE(passes_apart("GangWords.DISABLED_WatchdogNamesTheWaitForAMember"));
}
TEST(GangWords, DISABLED_WatchdogNamesTheWaitForAMember) {
  OPEN(g, kText, "OBK_WATCHDOG=200000000");
  const DevicePointer words = g.make(2048, 0);
  const ObkWatch seen = watched(g, "gang_missed", 8, words);
  EXPECT_EQ(seen.kind, 4u);
  EXPECT_EQ(seen.want, 5u);
}

}  // namespace
}  // namespace obelisk::runtime::cuda

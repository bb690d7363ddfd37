// Joins of what threads summed each (joins.cuh), on a core (one_cta.h): one after another, while
// some warps fall behind, each in the order that its header says, bit by bit.
#include "one_cta.h"

#include <random>

#define OBK_ALL_THREADS 256
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
namespace obk {
template <typename T>
T maximum(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
T minimum(T a, T b) {
  return b < a ? b : a;
}
}  // namespace obk
#include "kernels/cuda/core/joins.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

constexpr int kThreads = 256, kRounds = 7;

struct Lanes {
  int32_t warp, lanes;
  char* scratch;
  uint64_t* parts;
  int32_t turn;
};

/// Neighbours first, the lower one on the left.
float tree(const float* v, int count) {
  return count == 1 ? v[0] : tree(v, count / 2) + tree(v + count / 2, count / 2);
}
float joined(const float* v, int lanes) {
  if (lanes <= 32) return tree(v, lanes);
  float sum = tree(v, 32);
  for (int warp = 1; warp < lanes / 32; ++warp) sum += tree(v + 32 * warp, 32);
  return sum;
}

template <int kLanes>
void check(bool told, unsigned slow) {
  SCOPED_TRACE(fmt::format("{} lanes, {}, slow {:#x}", kLanes,
                           told ? "as w says" : "as the text says", slow));
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(kRounds * kThreads), found(v.size(), -77);
  for (float& one : v) one = uniform(random);
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 9 != 0; };
  one_cta::run(kThreads, [&] {
    const int thread = static_cast<int>(threadIdx.x);
    Lanes lanes = {thread / 32, kLanes, nullptr, reinterpret_cast<uint64_t*>(one_cta::shared), 0};
    for (int round = 0; round < kRounds; ++round) {
      const float mine = v[static_cast<size_t>(round * kThreads + thread)];
      found[static_cast<size_t>(round * kThreads + thread)] =
          told ? obk::join(&lanes, mine, obk::Sum())
               : obk::join_lanes<kLanes>(&lanes, mine, obk::Sum());
    }
  });
  one_cta::rests = nullptr;
  for (int round = 0; round < kRounds; ++round)
    for (int thread = 0; thread < kThreads; ++thread)
      ASSERT_EQ(
          found[static_cast<size_t>(round * kThreads + thread)],
          joined(&v[static_cast<size_t>(round * kThreads + thread / kLanes * kLanes)], kLanes))
          << "join " << round << ", thread " << thread;
}

TEST(Joins, EachInItsOrderWhileWarpsFallBehind) {
  for (const unsigned slow : {0u, 0x1u, 0x80u, 0x5au}) {
    check<256>(false, slow), check<256>(true, slow);
    check<32>(false, slow), check<32>(true, slow), check<8>(false, slow);
  }
}

TEST(Joins, TheLargestOfAllThreads) {
  std::vector<float> found(kThreads);
  one_cta::run(kThreads, [&] {
    Lanes lanes = {static_cast<int>(threadIdx.x) / 32, 256, nullptr,
                   reinterpret_cast<uint64_t*>(one_cta::shared), 0};
    const float mine = threadIdx.x == 77 ? 5.0f : -static_cast<float>(threadIdx.x);
    const float least = obk::join_lanes<256>(&lanes, mine, obk::Smallest());
    found[threadIdx.x] = obk::join_lanes<256>(&lanes, mine, obk::Largest()) + 1000 * least;
  });
  for (const float one : found) ASSERT_EQ(one, 5 - 255000);
}

/// Slices of a warp are joined as neighbours, the warps' in order.
template <int kSlices, int kVector>
void check_slices(unsigned slow) {
  constexpr int kTogether = kThreads / kSlices, kGroup = std::max(kTogether, 32);
  SCOPED_TRACE(fmt::format("{} slices of {}, slow {:#x}", kSlices, kVector, slow));
  std::mt19937 random(9);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(kRounds * kThreads * kVector), found(v.size(), -77);
  for (float& one : v) one = uniform(random);
  const auto at = [](int round, int thread, int e) {
    return static_cast<size_t>((round * kThreads + thread) * kVector + e);
  };
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 9 != 0; };
  one_cta::run(kThreads, [&] {
    const int thread = static_cast<int>(threadIdx.x);
    Lanes lanes = {thread / 32, kThreads, one_cta::shared, nullptr, 0};
    for (int round = 0; round < kRounds; ++round) {
      float mine[1][kVector];
      for (int e = 0; e < kVector; ++e) mine[0][e] = v[at(round, thread, e)];
      obk::join_slices<kSlices>(&lanes, mine, obk::Sum());
      for (int e = 0; e < kVector; ++e) found[at(round, thread, e)] = mine[0][e];
    }
  });
  one_cta::rests = nullptr;
  for (int round = 0; round < kRounds; ++round)
    for (int thread = 0; thread < kThreads; ++thread)
      for (int e = 0; e < kVector; ++e) {
        float sum = 0;
        for (int group = 0; group < kThreads / kGroup; ++group) {
          std::vector<float> of_group;
          for (int k = thread % kTogether; k < kGroup; k += kTogether)
            of_group.push_back(v[at(round, group * kGroup + k, e)]);
          const float part = tree(of_group.data(), static_cast<int>(of_group.size()));
          sum = group == 0 ? part : sum + part;
        }
        ASSERT_EQ(found[at(round, thread, e)], sum)
            << "join " << round << ", thread " << thread << ", element " << e;
      }
}

TEST(Joins, OfSlicesWhileWarpsFallBehind) {
  for (const unsigned slow : {0u, 0x1u, 0x5au}) {
    check_slices<8, 8>(slow), check_slices<16, 8>(slow), check_slices<32, 8>(slow);
    check_slices<32, 1>(slow), check_slices<16, 2>(slow);
  }
}

}  // namespace
}  // namespace obelisk

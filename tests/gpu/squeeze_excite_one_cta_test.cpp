// A squeeze-and-excitation block (squeeze_excite.cuh) by a cluster of CTAs on a core (one_cta.h),
// against sums in double: maps whose pixels and channels the members share evenly and unevenly, one
// image after another by the same cluster, weights that come late, warps that fall behind, and no
// load of the map before the kernel before has ended.
#include "one_cta.h"

#include <random>

#define OBK_ALL_THREADS 256
#define OBK_CUDA_DIALECT_CUH
#define OBK_OWN_KERNEL_ORDER
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
using std::isinf;
using std::max, std::min;
#include "kernels/common/abi.h"
#include "kernels/common/numbers.h"
struct ObkLanes : ObkWorker {
  int32_t lane, lanes, group, groups, warp, warps;
  char* stage;
  uint64_t* parts;
  int32_t turn;
};
namespace obk {
inline bool waited[8][256];
static void allow_next() {}
static void wait_for_previous() { waited[one_cta::rank][threadIdx.x] = true; }
static float sigmoid_of(float x) { return 1.0f / (1.0f + std::exp(-x)); }
template <int n>
void load_bytes(const void* from, uint32_t* words) {
  memcpy(words, from, n);
}
template <int n>
void store_bytes(void* to, const uint32_t* words) {
  memcpy(to, words, n);
}
}  // namespace obk
#include "kernels/common/packs.h"
#include "kernels/cuda/core/joins.cuh"
#include "kernels/cuda/exec/barrier.cuh"
namespace obk {
struct Ring {
  Watchdog dog;
};
static Ring ring_state() { return {}; }
}  // namespace obk
#include "kernels/cuda/conv/squeeze_excite.cuh"
#pragma GCC diagnostic pop

namespace obelisk {
namespace {

double activated(int kind, double x, double alpha, double beta) {
  const auto hard = [](double y) { return std::min(std::max(y, 0.0), 1.0); };
  switch (kind) {
    case OBK_RELU:
      return std::max(x, 0.0);
    case OBK_SWISH:
      return x / (1 + std::exp(-x));
    case OBK_HARD_SWISH:
      return x * hard(x / 6 + 0.5);
    case OBK_SIGMOID:
      return 1 / (1 + std::exp(-x));
    default:
      return hard(alpha * x + beta);
  }
}

template <class T, int kPixels, int kChannels, int kSqueezed, int kActivation, int kGate>
void check(int images, bool biased, unsigned slow, float tolerance) {
  SCOPED_TRACE(fmt::format("{} bytes, {} images of {} pixels, {} channels, {} squeezed, slow {:#x}",
                           sizeof(T), images, kPixels, kChannels, kSqueezed, slow));
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  // 16-byte vectors are read where they lie.
  const auto numbers = [&](int64_t count, float scale, float mean) {
    std::vector<T, std::allocator<T>> v(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) obk::store(v.data(), k, mean + scale * uniform(random));
    return v;
  };
  const int64_t all = int64_t{images} * kPixels * kChannels;
  const auto x = numbers(all, 1, 0.25), w1 = numbers(kSqueezed * kChannels, 0.25, 0),
             b1 = numbers(kSqueezed, 1, 0), w2 = numbers(kSqueezed * kChannels, 0.25, 0),
             b2 = numbers(kChannels, 1, 0);
  std::vector<T> y(static_cast<size_t>(all));
  const double alpha = 0.3, beta = 0.4;
  ObkSqueezeExcite params = {images, std::bit_cast<int64_t>(alpha), std::bit_cast<int64_t>(beta)};
  void* const operands[] = {const_cast<T*>(x.data()),
                            const_cast<T*>(w1.data()),
                            biased ? const_cast<T*>(b1.data()) : nullptr,
                            const_cast<T*>(w2.data()),
                            biased ? const_cast<T*>(b2.data()) : nullptr,
                            y.data()};
  one_cta::rests = [&](int warp, int round) { return (slow >> warp & 1) != 0 && round % 7 != 0; };
  memset(obk::waited, 0, sizeof obk::waited);
  one_cta::cta.x = 0;
  one_cta::run_cluster(
      OBK_EXCITE_GANG, OBK_THREADS,
      [&] {
        ObkLanes lanes = {};
        lanes.scratch = one_cta::shared, lanes.scratch_bytes = one_cta::kSharedBytes;
        for (int image = 0; image < images; ++image) {
          obk::squeeze_excite<T, kPixels, kChannels, kSqueezed, kActivation, kGate>(
              reinterpret_cast<const int64_t*>(&params), operands,
              image * OBK_EXCITE_GANG + one_cta::rank, &lanes);
          __syncthreads();  // as between the tasks of a kernel
        }
      },
      [&] {
        const auto bytes = [](const auto& v) {
          const char* const at = reinterpret_cast<const char*>(v.data());
          return std::pair<const char*, const char*>{at, at + v.size() * sizeof(T)};
        };
        one_cta::readable = {bytes(w1), bytes(w2), bytes(x)};
        memset(one_cta::shared, 0xff, sizeof one_cta::shared);  // NaN wherever nothing is brought
      },
      [&] {
        for (const auto& [at, bar] : one_cta::bars) EXPECT_EQ(bar.bytes, 0) << "more is on its way";
      });
  one_cta::rests = nullptr;
  for (const auto& member : obk::waited)
    for (const bool thread : member) ASSERT_TRUE(thread) << "the map is read too early";

  for (int64_t image = 0; image < images; ++image) {
    const T* const own = x.data() + image * kPixels * kChannels;
    std::vector<double> gates(kChannels), h(kSqueezed);
    std::vector<double> mean(kChannels, 0.0);
    for (int64_t p = 0; p < kPixels; ++p)
      for (int64_t c = 0; c < kChannels; ++c)
        mean[c] += static_cast<double>(obk::load(own, p * kChannels + c)) / kPixels;
    for (int64_t r = 0; r < kSqueezed; ++r) {
      double sum = biased ? static_cast<double>(obk::load(b1.data(), r)) : 0.0;
      for (int64_t c = 0; c < kChannels; ++c)
        sum += static_cast<double>(obk::load(w1.data(), r * kChannels + c)) * mean[c];
      h[r] = activated(kActivation, sum, 0, 0);
    }
    for (int64_t c = 0; c < kChannels; ++c) {
      double sum = biased ? static_cast<double>(obk::load(b2.data(), c)) : 0.0;
      for (int64_t r = 0; r < kSqueezed; ++r)
        sum += static_cast<double>(obk::load(w2.data(), r * kChannels + c)) * h[r];
      gates[c] = activated(kGate, sum, alpha, beta);
    }
    for (int64_t k = 0; k < kPixels * kChannels; ++k)
      ASSERT_NEAR(obk::load(y.data(), image * kPixels * kChannels + k),
                  static_cast<double>(obk::load(own, k)) * gates[k % kChannels], tolerance)
          << "image " << image << ", pixel " << k / kChannels << ", channel " << k % kChannels;
  }
}

TEST(SqueezeExcite, OfMapsThatMembersShare) {
  for (const unsigned slow : {0u, 0x81u}) {
    check<obk::f16, 3136, 48, 12, OBK_RELU, OBK_SIGMOID>(1, true, slow, 2e-3f);       // by pixels
    check<obk::f16, 49, 1152, 48, OBK_SWISH, OBK_SIGMOID>(1, true, slow, 2e-3f);      // by channels
    check<obk::f16, 196, 240, 10, OBK_RELU, OBK_HARD_SIGMOID>(2, true, slow, 2e-3f);  // by both
    check<obk::bf16, 50, 520, 33, OBK_HARD_SWISH, OBK_SIGMOID>(2, false, slow, 1e-2f);
    check<float, 25, 20, 5, OBK_RELU, OBK_SIGMOID>(3, true, slow, 1e-5f);
    check<float, 3, 4, 1, OBK_SWISH, OBK_HARD_SIGMOID>(1, true, slow, 1e-5f);  // members without
  }
}

}  // namespace
}  // namespace obelisk

// The device text of recurrent steps (cuda/recurrent/recurrence.cuh) run on the host: every thread
// of every member of a gang is a fiber, warps and CTAs meet as the machine lets them, matrix
// instructions are told by their definition. Checks which element goes where and that members wait
// for the right words, in many orders; the machine's memory order is what it cannot check
// (tests/gpu).
#include <gtest/gtest.h>
#include <math.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

// ---- threads ----
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int cta = 0, thread = 0;
  bool done = false;
};
struct Meeting {
  int arrived = 0;
  unsigned turn = 0;
};
struct Warp {
  Meeting meeting;
  uint64_t values[32];
  uint32_t a[32][4], b[32][2];
};
struct Cta {
  Meeting meeting;
  Warp warps[8];
  alignas(64) char shared[1 << 16];
};
struct Machine {
  int gang = 1;
  std::vector<Meeting> clusters;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Cta>> ctas;
  ucontext_t main;
  Fiber* now = nullptr;
  std::function<void(int cta)> body;
};
Machine machine;

void yield() { swapcontext(&machine.now->context, &machine.main); }
void meet(Meeting& meeting, int of) {
  const unsigned turn = meeting.turn;
  if (++meeting.arrived == of) {
    meeting.arrived = 0, ++meeting.turn;
  } else {
    while (meeting.turn == turn) yield();
  }
}
Cta& cta() { return *machine.ctas[machine.now->cta]; }
Warp& warp() { return cta().warps[machine.now->thread / 32]; }
int lane() { return machine.now->thread % 32; }

void enter() {
  machine.body(machine.now->cta);
  machine.now->done = true;
  yield();
}

std::unique_ptr<Fiber> begin(int cta, int thread) {
  auto fiber = std::make_unique<Fiber>();
  constexpr size_t kStack = 96 << 10;
  fiber->stack = std::make_unique<char[]>(kStack);
  fiber->cta = cta, fiber->thread = thread;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get(), fiber->context.uc_stack.ss_size = kStack;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, enter, 0);
  return fiber;
}

/// All threads of `ctas` CTAs, each turn in another order; some CTAs rest for a while.
void run(int ctas, std::mt19937& random, std::function<void(int)> body) {
  machine.body = std::move(body);
  machine.fibers.clear(), machine.ctas.clear();
  machine.clusters.assign(ctas / machine.gang, Meeting{});
  for (int c = 0; c < ctas; ++c) machine.ctas.push_back(std::make_unique<Cta>());
  for (int k = 0; k < ctas * 256; ++k) machine.fibers.push_back(begin(k / 256, k % 256));
  for (bool left = true; left;) {
    left = false;
    for (int c = 0; c < ctas; ++c) {
      const bool rests = ctas > 1 && random() % 3 == 0;
      for (int t = 0; t < 256; ++t) {
        Fiber& fiber = *machine.fibers[c * 256 + t];
        if (fiber.done) continue;
        left = true;
        if (rests) continue;
        machine.now = &fiber;
        swapcontext(&machine.main, &fiber.context);
      }
    }
  }
}

struct Index {
  unsigned x;
};
struct uint4 {
  uint32_t x, y, z, w;
};
uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
int min(int a, int b) { return a < b ? a : b; }

template <typename T>
T shuffle(T v, int from) {
  Warp& w = warp();
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof v);
  w.values[lane()] = bits;
  meet(w.meeting, 32);
  bits = w.values[from];
  memcpy(&v, &bits, sizeof v);
  meet(w.meeting, 32);
  return v;
}

}  // namespace

// ---- the words of device texts ----
#define __device__
#define __forceinline__ inline
#define OBK_DEVICE static inline
#define OBK_THREADS 256
#define threadIdx (Index{(unsigned)machine.now->thread})
#define __syncthreads() meet(cta().meeting, 256)
#define __shfl_sync(mask, v, from) shuffle(v, from)
#define OBK_CUDA_DIALECT_CUH

#include "abi.h"
#include "numbers.h"

struct ObkLanes : ObkWorker {};

namespace obk {
struct Watchdog {
  int64_t turns = 0;
  void start() { turns = 0; }
  void check(uint32_t, uint64_t, uint64_t, uint64_t) {
    if (++turns > 1000000) throw std::runtime_error("a member waits for ever");
  }
};
struct RingState {
  Watchdog dog;
};
static RingState& ring_state() {
  static RingState state;
  return state;
}
static void post_relaxed(uint64_t* to, uint64_t word) { *to = word; }
static uint64_t poll_relaxed(const uint64_t* from) {
  yield();
  return *from;
}
static uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - cta().shared);
}
static void load_shared16(uint32_t (&r)[4], uint32_t address) {
  ASSERT_EQ(address % 16, 0u);
  memcpy(r, cta().shared + address, 16);
}
static void store_shared_word(uint32_t address, uint32_t v) {
  memcpy(cta().shared + address, &v, 4);
}
static void store_shared_half(uint32_t address, uint32_t v) {
  memcpy(cta().shared + address, &v, 2);
}
/* A member's number stands above an address of its memory. */
static uint32_t dsmem_address(uint32_t shared, int rank) {
  return shared | static_cast<uint32_t>(rank + 1) << 24;
}
static void post_dsmem(uint32_t to, uint64_t word) {
  const int first = machine.now->cta / machine.gang * machine.gang;
  Cta& other = *machine.ctas[first + static_cast<int>(to >> 24) - 1];
  memcpy(other.shared + (to & 0xffffff), &word, 8);
}
static uint64_t poll_dsmem(uint32_t own) {
  yield();
  uint64_t word;
  memcpy(&word, cta().shared + own, 8);
  return word;
}
static void cluster_meet() {
  meet(machine.clusters[machine.now->cta / machine.gang], 256 * machine.gang);
}
template <typename T>
static T other_lane(T v, int mask) {
  return shuffle(v, lane() ^ mask);
}
static float exp2_approx(float x) { return std::exp2(x); }
static float reciprocal_approx(float x) { return 1.0f / x; }
static float sigmoid_of(float a) { return 1.0f / (1.0f + std::exp(-a)); }
static float tanh_of(float a) { return std::tanh(a); }

/* By the definition of mma.m16n8k16: where lanes hold a[row][k], b[k][column] and d. */
template <bool kBfloat>
static void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Warp& w = warp();
  memcpy(w.a[lane()], a, 16);
  w.b[lane()][0] = b0, w.b[lane()][1] = b1;
  meet(w.meeting, 32);
  const auto wide = [](uint32_t pair, int k) {
    const auto bits = static_cast<uint16_t>(pair >> (k % 2 * 16));
    return kBfloat ? widen(bf16{bits}) : widen(f16{bits});
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
    double sum = d[e];
    for (int k = 0; k < 16; ++k)
      sum += static_cast<double>(wide(w.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k)) *
             static_cast<double>(wide(w.b[column * 4 + k % 8 / 2][k / 8], k));
    d[e] = static_cast<float>(sum);
  }
  meet(w.meeting, 32);
}
}  // namespace obk

#include "kernels/cuda/recurrent/recurrence.cuh"

namespace {

template <typename T>
double rounded(double x) {
  T stored;
  obk::store(&stored, 0, static_cast<float>(x));
  return obk::load(&stored, 0);
}

struct Sizes {
  int steps, batch, directions;
  bool backwards = false, full = false;
};

/// Two runs in a row, against sums in double.
template <class T, int kGates, int kHidden, int kGang, int kBatch, bool kDsmem = false>
void check(Sizes z) {
  SCOPED_TRACE(testing::Message() << kGates << " gates, " << kHidden << " units, gang " << kGang);
  std::mt19937 random(kHidden * 10 + kGang);
  std::normal_distribution<float> normal(0, 1);
  const int64_t states = int64_t{z.directions} * z.batch * kHidden, gates = kGates * kHidden;
  std::vector<float> fed(z.steps * z.batch * z.directions * gates), bias(z.directions * kHidden);
  std::vector<T> r(z.directions * gates * kHidden), h0(states), c0(states);
  std::vector<int32_t> lengths(z.batch);
  for (float& v : fed) v = normal(random);
  for (float& v : bias) v = normal(random);
  for (size_t k = 0; k < r.size(); ++k) obk::store(r.data(), k, normal(random) / 16);
  for (int64_t k = 0; k < states; ++k)
    obk::store(h0.data(), k, normal(random) / 2), obk::store(c0.data(), k, normal(random));
  for (int b = 0; b < z.batch; ++b) lengths[b] = z.steps - b % (z.steps + 1);

  std::vector<double> want_y(z.steps * states, 0), want_h(states, 0), want_c(states, 0);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int d = 0; d < z.directions; ++d)
    for (int b = 0; b < z.batch; ++b) {
      double *h = &want_h[(d * z.batch + b) * kHidden], *c = &want_c[(d * z.batch + b) * kHidden];
      for (int n = 0; z.full && n < kHidden; ++n)
        h[n] = obk::load(h0.data(), (d * z.batch + b) * kHidden + n),
        c[n] = obk::load(c0.data(), (d * z.batch + b) * kHidden + n);
      const int own = z.full ? lengths[b] : z.steps;
      for (int s = 0; s < own; ++s) {
        const int time = d == 1 || z.backwards ? own - 1 - s : s;
        const float* x = &fed[((time * z.batch + b) * z.directions + d) * gates];
        std::vector<double> sums(gates, 0);
        for (int64_t row = 0; row < gates; ++row)
          for (int k = 0; k < kHidden; ++k)
            sums[row] += static_cast<double>(obk::load(r.data(), (d * gates + row) * kHidden + k)) *
                         rounded<T>(h[k]);
        for (int n = 0; n < kHidden; ++n) {
          const auto sum = [&](int gate) {
            return x[gate * kHidden + n] + sums[gate * kHidden + n];
          };
          if (kGates == 4) {
            c[n] = sigmoid(sum(2)) * c[n] + sigmoid(sum(0)) * std::tanh(sum(3));
            h[n] = sigmoid(sum(1)) * std::tanh(c[n]);
          } else if (kGates == 3) {
            const double u = sigmoid(sum(0)),
                         back = sums[2 * kHidden + n] + (z.full ? bias[d * kHidden + n] : 0);
            h[n] = (1 - u) * std::tanh(x[2 * kHidden + n] + sigmoid(sum(1)) * back) + u * h[n];
          } else {
            h[n] = std::tanh(sum(0));
          }
          want_y[((time * z.directions + d) * z.batch + b) * kHidden + n] = h[n];
        }
      }
    }

  const int64_t parts = z.directions * ((z.batch + kBatch - 1) / kBatch);
  std::vector<uint64_t> exchange(parts * (kGang + 2 * kBatch * kHidden), 0);
  const ObkRecurrent params{z.steps, z.batch, z.directions, z.backwards};
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<T> y(want_y.size(), T{}), h(states), c(states);
    void* operands[] = {fed.data(),
                        r.data(),
                        z.full ? bias.data() : nullptr,
                        z.full ? lengths.data() : nullptr,
                        z.full ? h0.data() : nullptr,
                        z.full ? c0.data() : nullptr,
                        y.data(),
                        h.data(),
                        c.data(),
                        exchange.data()};
    machine.gang = kGang;
    run(static_cast<int>(parts * kGang), random, [&](int item) {
      ObkLanes lanes = {};
      lanes.scratch = cta().shared;
      lanes.scratch_bytes = obk_recurrent_scratch(kHidden, kBatch, sizeof(T));
      ASSERT_LE(lanes.scratch_bytes, static_cast<int64_t>(sizeof cta().shared));
      obk::recurrence<T, kGates, kHidden, kGang, kBatch, kDsmem>(
          reinterpret_cast<const int64_t*>(&params), operands, item, &lanes);
    });
    const double limit = sizeof(T) == 4 ? 2e-5 : 2e-2;
    for (size_t k = 0; k < want_y.size(); ++k)
      ASSERT_NEAR(obk::load(y.data(), k), want_y[k], limit) << "y " << k << " of run " << turn;
    for (int64_t k = 0; k < states; ++k) {
      ASSERT_NEAR(obk::load(h.data(), k), want_h[k], limit) << "h " << k << " of run " << turn;
      if (kGates == 4) {
        ASSERT_NEAR(obk::load(c.data(), k), want_c[k], 2 * limit) << "c " << k;
      }
    }
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_FIBERS GTEST_SKIP() << "the sanitizer does not know fibers"
#else
#define SKIP_FIBERS (void)0
#endif

TEST(DeviceRecurrence, ApproximateGates) {
  for (double x = -20; x < 20; x += 0.0037) {
    const auto v = static_cast<float>(x);
    ASSERT_NEAR(obk::sigmoid_approx(v), 1 / (1 + std::exp(-static_cast<double>(v))), 3e-7) << x;
    ASSERT_NEAR(obk::tanh_approx(v), std::tanh(static_cast<double>(v)),
                3e-6 * std::fabs(std::tanh(v)))
        << x;
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(obk::sigmoid_approx(inf), 1.0f);
  EXPECT_EQ(obk::sigmoid_approx(-inf), 0.0f);
  EXPECT_EQ(obk::tanh_approx(inf), 1.0f);
  EXPECT_EQ(obk::tanh_approx(-inf), -1.0f);
  EXPECT_TRUE(std::isnan(obk::tanh_approx(NAN)) && std::isnan(obk::sigmoid_approx(NAN)));
  EXPECT_EQ(obk::tanh_approx(1e-6f), 1e-6f);
}

TEST(DeviceRecurrence, HalvesOnTensorCores) {
  SKIP_FIBERS;
  check<obk::f16, 4, 256, 8, 1>({.steps = 4, .batch = 1, .directions = 1, .full = true});
  check<obk::f16, 4, 64, 1, 3>({.steps = 5, .batch = 3, .directions = 2, .full = true});
  check<obk::bf16, 4, 100, 2, 8>({.steps = 3, .batch = 11, .directions = 1, .backwards = true});
  check<obk::f16, 3, 200, 8, 2>({.steps = 5, .batch = 2, .directions = 1, .full = true});
  check<obk::f16, 1, 77, 4, 8>({.steps = 6, .batch = 8, .directions = 1});
}

TEST(DeviceRecurrence, MembersOfAClusterWriteToOneAnother) {
  SKIP_FIBERS;
  check<obk::f16, 4, 256, 8, 1, true>({.steps = 5, .batch = 1, .directions = 2, .full = true});
  check<obk::f16, 3, 100, 4, 2, true>({.steps = 4, .batch = 4, .directions = 1, .full = true});
  check<float, 1, 77, 2, 3, true>({.steps = 4, .batch = 3, .directions = 1, .backwards = true});
}

TEST(DeviceRecurrence, WhatRegistersCannotHoldIsReadAgain) {
  SKIP_FIBERS;
  check<obk::f16, 4, 512, 8, 1>({.steps = 2, .batch = 1, .directions = 1, .full = true});
  check<obk::bf16, 3, 330, 2, 2>({.steps = 3, .batch = 2, .directions = 1, .backwards = true});
  check<float, 3, 260, 2, 2>({.steps = 3, .batch = 3, .directions = 1, .full = true});
}

TEST(DeviceRecurrence, FloatsOnCores) {
  SKIP_FIBERS;
  check<float, 4, 256, 8, 1>({.steps = 3, .batch = 1, .directions = 1, .full = true});
  check<float, 4, 60, 1, 3>({.steps = 5, .batch = 3, .directions = 2, .full = true});
  check<float, 3, 130, 4, 2>(
      {.steps = 4, .batch = 3, .directions = 1, .backwards = true, .full = true});
  check<float, 1, 77, 2, 8>({.steps = 4, .batch = 8, .directions = 1});
}

}  // namespace

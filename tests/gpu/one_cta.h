// tests/gpu/one_cta.h — a CTA on one core: its threads are fibers, its instructions (ptx.cuh) plain
// C++. So tiles of device code are tested where no GPU is: their indexing, their shares of work,
// that all meet where they should.
//
//   #include "one_cta.h"            before any device header
//   one_cta::run(256, [&] { ... });  every thread runs it; addresses of shared memory are
//                                    offsets into one_cta::shared
//   one_cta::cta, one_cta::grid      which CTA that is, of how many: the test runs one after
//   another one_cta::run_cluster(4, ...)     CTAs that write into one another's shared memory, in
//   turns
//
// A fiber runs until it waits; one_cta::rests lets warps fall behind. What a real machine adds,
// orders of memory between threads that do not meet, is not seen here. Copies are done when they
// are requested, those of single threads (copy16) with OBELISK_LATE_COPIES=1 not before their
// thread waits for their group, and only inside memory that one_cta::readable names.
#pragma once

#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/base.h"

// What kernels are handed, as they see it.
#define OBK_DEVICE_POINTER(type) type*

namespace obk {
// Where kernels declare it: `extern __shared__ char shared[]`.
alignas(1024) inline char shared[227 * 1024];
}  // namespace obk

namespace one_cta {

using obk::shared;
inline constexpr int kSharedBytes = sizeof shared;
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline Index thread, block_size{256, 1, 1}, cta, grid{1, 1, 1};

/// A copy that its thread has not waited for yet.
struct Later {
  uint32_t to;
  int bytes;
  char data[16];
};
/// Where a fiber, or who runs it, goes on. Calls of the system library's contexts ask the system
/// about signals, thousands of times a task.
#ifdef __x86_64__
using Context = void*;  // its stack, with the registers that a call keeps on top
asm(R"(
.text
.p2align 4
.local one_cta_switch
.type one_cta_switch, @function
one_cta_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size one_cta_switch, .-one_cta_switch
)");
extern "C" void one_cta_switch(Context* from, const Context* to);
inline void change(Context& from, const Context& to) { one_cta_switch(&from, &to); }
inline void prepare(Context& context, char* stack, size_t bytes, void (*what)()) {
  auto** top =
      reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15});
  *--top = nullptr;  // nobody is returned to, and a function begins 8 bytes below a multiple of 16
  *--top = reinterpret_cast<void*>(what);
  for (int k = 0; k < 6; ++k) *--top = nullptr;
  context = top;
}
#else
using Context = ucontext_t;
inline void change(Context& from, const Context& to) { swapcontext(&from, &to); }
inline void prepare(Context& context, char* stack, size_t bytes, void (*what)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = bytes;
  makecontext(&context, what, 0);
}
#endif

struct Fiber {
  std::vector<std::vector<Later>> groups{1};  // the last one is not committed
  Context context = {};
  std::unique_ptr<char[]> stack;
  bool done = false;
  int64_t arrived = -1;  // at which turn of the cluster's barrier
};
inline std::vector<Fiber> fibers;
inline std::vector<std::unique_ptr<char[]>> stacks;  // of fibers that have ended
inline Context scheduler;
inline std::function<void()> body;

inline void yield() { change(fibers[thread.x].context, scheduler); }
template <typename Ready>
void wait_until(Ready ready) {
  while (!ready()) yield();
}

/// Whether a warp sits out a round of all fibers.
inline std::function<bool(int warp, int round)> rests;
inline std::function<void()> copies_rows;  // before a thread copies rows by a map
inline std::function<void(uint64_t* counter)> waits_for_others;  // whenever a count is looked at
inline int64_t events;                                           // waits that came to an end
inline int rounds;                                               // of the CTA that runs

/// Threads that meet: all of a CTA, or a warp's 32 with what each brings.
struct Meeting {
  int here = 0;
  int64_t turn = 0;
  void meet(int count) {
    const int64_t mine = turn;
    if (++here == count) here = 0, ++turn, ++events;
    wait_until([&] { return turn != mine; });
  }
};
struct Lane {
  uint32_t words[8];
};
struct Warp {
  Meeting meeting;
  Lane lanes[2][32];
};
inline Meeting all, named[16];
inline std::vector<Warp> warps;
struct Bar {
  int arrivals = 0, waiting = 0, phase = 0;
  int64_t bytes = 0;
  void look() {
    if (waiting == 0 && bytes == 0) phase ^= 1, waiting = arrivals, ++events;
  }
};
inline std::map<uint32_t, Bar> bars;
inline std::vector<std::pair<const char*, const char*>> readable;

/// What a tensor map says of a matrix of 16-bit elements, in the place of one: rows `pitch`
/// elements apart, of which blocks of 64 come, so many at once, of so many rows.
struct RowsMap {
  const char* at;
  int64_t rows, pitch, blocks, together;
  int64_t size = 2;   // bytes of an element
  bool tf32 = false;  // floats are rounded to it
};
/// The same of copies of boxes, of 128 bytes of a row.
struct BoxesMap {
  const char* at;
  int64_t rows, columns, pitch, together;
  int64_t size = 2;
  bool tf32 = false;
};
/// What bulk_prefetch requested.
inline std::vector<std::pair<const char*, uint32_t>> prefetched;

/// What each lane brings, seen by all of its warp.
inline const Lane* exchange(const Lane& mine) {
  Warp& warp = warps[thread.x / 32];
  Lane* lanes = warp.lanes[warp.meeting.turn & 1];
  lanes[thread.x % 32] = mine;
  warp.meeting.meet(32);
  return lanes;
}
inline char* at(uint32_t address, int bytes) {
  CHECK(address + bytes <= kSharedBytes && address % std::min(bytes, 16) == 0,
        "shared address {} of {} bytes", address, bytes);
  return shared + address;
}
inline void look(const void* from, int bytes, int aligned) {
  const char* first = static_cast<const char*>(from);
  const bool inside = std::any_of(readable.begin(), readable.end(), [&](auto& range) {
    return first >= range.first && first + bytes <= range.second;
  });
  CHECK(inside && reinterpret_cast<uint64_t>(first) % static_cast<uint64_t>(aligned) == 0,
        "a copy reads what is not there");
}
inline void copy(uint32_t to, const void* from, uint32_t read, int bytes) {
  const char* first = static_cast<const char*>(from);
  char* target = at(to, bytes);
  memset(target, 0, static_cast<size_t>(bytes));
  if (read == 0) return;
  look(from, static_cast<int>(read), bytes);
  memcpy(target, first, read);
}

/// The same by one thread, of its present group.
inline void copy_later(uint32_t to, const void* from, uint32_t read, int bytes) {
  static const bool late = getenv("OBELISK_LATE_COPIES") != nullptr;
  if (!late) return copy(to, from, read, bytes);
  Later later = {to, bytes, {}};
  at(to, bytes);
  if (read > 0) look(from, static_cast<int>(read), bytes), memcpy(later.data, from, read);
  fibers[thread.x].groups.back().push_back(later);
}
/// All groups of the thread but the last `pending` ones are there.
inline void land(size_t pending) {
  auto& groups = fibers[thread.x].groups;
  while (groups.size() > pending + 1) {
    for (const Later& later : groups.front())
      memcpy(at(later.to, later.bytes), later.data, static_cast<size_t>(later.bytes));
    groups.erase(groups.begin());
  }
}

inline void enter() {
  body();
  fibers[thread.x].done = true;
  yield();
}
inline void begin(int threads) {
  for (Fiber& fiber : fibers)
    if (fiber.stack) stacks.push_back(std::move(fiber.stack));
  fibers = std::vector<Fiber>(static_cast<size_t>(threads));
  warps = std::vector<Warp>(static_cast<size_t>(threads) / 32);
  all = {}, bars.clear(), rounds = 0, block_size.x = static_cast<unsigned>(threads);
  for (Fiber& fiber : fibers) {
    constexpr size_t kStack = 1 << 16;
    if (stacks.empty()) {
      fiber.stack.reset(new char[kStack]);
    } else {
      fiber.stack = std::move(stacks.back());
      stacks.pop_back();
    }
    prepare(fiber.context, fiber.stack.get(), kStack, enter);
  }
}
/// Until all threads have ended, or so many rounds have brought nothing; whether they have ended.
inline bool go_on(int idle_rounds) {
  int64_t seen = events;
  for (int idle = 0; idle < idle_rounds; ++rounds, ++idle) {
    if (events != seen) seen = events, idle = 0;
    bool any = false;
    for (size_t k = 0; k < fibers.size(); ++k) {
      thread.x = static_cast<unsigned>(k);
      if (fibers[thread.x].done) continue;
      any = true;
      if (rests && rests(static_cast<int>(k / 32), rounds)) continue;
      change(scheduler, fibers[thread.x].context);
    }
    if (!any) return true;
  }
  return false;
}
inline void run(int threads, std::function<void()> what) {
  body = std::move(what);
  begin(threads);
  CHECK(go_on(1000), "the CTA waits for ever");
}

/// What is a CTA's own, while others of its cluster run.
struct Member {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Meeting all, named[16];
  std::map<uint32_t, Bar> bars;
  std::vector<std::pair<const char*, const char*>> readable;
  std::vector<char> shared;
  int rounds = 0;
};
inline std::vector<Member> members;
inline int rank;  // of the member that runs; its own state is in the globals
inline Meeting clusters;
inline void exchange_state(Member& m) {
  std::swap(fibers, m.fibers), std::swap(warps, m.warps), std::swap(all, m.all);
  std::swap(named, m.named), std::swap(bars, m.bars), std::swap(readable, m.readable);
  std::swap(rounds, m.rounds);
  std::swap_ranges(m.shared.begin(), m.shared.end(), shared);
}
/// CTAs cta.x .. cta.x + count - 1, whose shared memory `before` fills. `after` looks at what each
/// leaves behind.
inline void run_cluster(int count, int threads, std::function<void()> what,
                        const std::function<void()>& before, const std::function<void()>& after) {
  body = std::move(what), clusters = {};
  const unsigned first = cta.x;
  members = std::vector<Member>(static_cast<size_t>(count));
  for (Member& m : members) {
    m.shared.resize(kSharedBytes);
    exchange_state(m), before(), begin(threads), exchange_state(m);
  }
  std::vector<bool> ended(members.size());
  for (int stuck = 0; stuck < 100 && std::find(ended.begin(), ended.end(), false) != ended.end();
       ++stuck) {
    const int64_t seen = events;
    for (rank = 0; rank < count; ++rank) {
      const auto k = static_cast<size_t>(rank);
      if (ended[k]) continue;
      cta.x = first + static_cast<unsigned>(rank);
      exchange_state(members[k]), ended[k] = go_on(2), exchange_state(members[k]);
    }
    if (events != seen) stuck = 0;
  }
  for (Member& m : members) {
    CHECK(ended[static_cast<size_t>(&m - members.data())], "a CTA of a cluster waits for ever");
    exchange_state(m), after(), exchange_state(m);
  }
  cta.x = first, rank = 0;
}

}  // namespace one_cta

// The compiler's words and functions of device code.
#define __device__
#define __shared__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __CUDA_ARCH__ 900
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx one_cta::thread
#define blockIdx one_cta::cta
#define gridDim one_cta::grid
#define blockDim one_cta::block_size
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline void __trap() { CHECK(false, "the CTA gives up"); }
inline void __syncthreads() { one_cta::all.meet(static_cast<int>(one_cta::fibers.size())); }
inline void __syncwarp() { one_cta::exchange({}); }
inline float __uint_as_float(uint32_t v) { return std::bit_cast<float>(v); }
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (by & 31));
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t pick) {
  uint32_t v = 0;
  for (int k = 0; k < 4; ++k)
    v |= static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (pick >> 4 * k & 7) * 8 & 255)
         << 8 * k;
  return v;
}
inline float __shfl_xor_sync(uint32_t, float v, int mask) {
  const one_cta::Lane* lanes = one_cta::exchange({{std::bit_cast<uint32_t>(v)}});
  const unsigned other = (one_cta::thread.x % 32) ^ static_cast<unsigned>(mask);
  return std::bit_cast<float>(lanes[other].words[0]);
}
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t v, int mask) {
  return one_cta::exchange({{v}})[(one_cta::thread.x % 32) ^ static_cast<unsigned>(mask)].words[0];
}
inline unsigned long long __shfl_xor_sync(uint32_t, unsigned long long v, int mask) {
  const one_cta::Lane other = one_cta::exchange(
      {{static_cast<uint32_t>(v),
        static_cast<uint32_t>(v >> 32)}})[(one_cta::thread.x % 32) ^ static_cast<unsigned>(mask)];
  return uint64_t{other.words[1]} << 32 | other.words[0];
}
inline uint32_t __shfl_sync(uint32_t, uint32_t v, int from) {
  return one_cta::exchange({{v}})[from].words[0];
}
inline float __shfl_sync(uint32_t, float v, int from) {
  return std::bit_cast<float>(one_cta::exchange({{std::bit_cast<uint32_t>(v)}})[from].words[0]);
}
inline uint64_t __shfl_sync(uint32_t, uint64_t v, int from) {
  const one_cta::Lane other =
      one_cta::exchange({{static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)}})[from];
  return uint64_t{other.words[1]} << 32 | other.words[0];
}
inline uint32_t __ballot_sync(uint32_t, bool v) {
  const one_cta::Lane* lanes = one_cta::exchange({{v}});
  uint32_t bits = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) bits |= lanes[lane].words[0] << lane;
  return bits;
}
inline int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline bool __any_sync(uint32_t, bool v) {
  const one_cta::Lane* lanes = one_cta::exchange({{v}});
  return std::any_of(lanes, lanes + 32,
                     [](const one_cta::Lane& lane) { return lane.words[0] != 0; });
}
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline bool __isShared(const void* p) {
  return p >= one_cta::shared && p < one_cta::shared + one_cta::kSharedBytes;
}

#define OBK_PTX_CUH
#define OBK_DEVICE static inline
namespace obk {
OBK_DEVICE void arrive_release(uint64_t* counter) { ++*counter; }
OBK_DEVICE void arrive_relaxed(uint64_t* counter) { ++*counter; }
OBK_DEVICE uint64_t poll_acquire(const uint64_t* counter) {
  if (one_cta::waits_for_others)
    one_cta::waits_for_others(const_cast<uint64_t*>(counter)), one_cta::yield();
  return *counter;
}
OBK_DEVICE uint64_t poll_relaxed(const uint64_t* counter) { return *counter; }
OBK_DEVICE uint32_t sm_id() { return 0; }
OBK_DEVICE int64_t clock_cycles() { return 0; }
OBK_DEVICE uint32_t take_ticket(uint32_t* counter) { return (*counter)++; }
OBK_DEVICE float exp2_approx(float x) { return std::exp2(x); }
OBK_DEVICE void named_barrier(int name, int threads) { one_cta::named[name].meet(threads); }
OBK_DEVICE uint32_t shared_address(const void* p) {
  CHECK(__isShared(p), "not an address of shared memory");
  return static_cast<uint32_t>(static_cast<const char*>(p) - one_cta::shared);
}
OBK_DEVICE void mbarrier_init(uint32_t bar, uint32_t arrivals) {
  one_cta::bars[bar] = {static_cast<int>(arrivals), static_cast<int>(arrivals), 0, 0};
}
OBK_DEVICE void mbarrier_init_fence() {}
OBK_DEVICE void mbarrier_arrive(uint32_t bar) {
  --one_cta::bars.at(bar).waiting, one_cta::bars.at(bar).look();
}
OBK_DEVICE void mbarrier_expect(uint32_t bar, uint32_t bytes) {
  one_cta::bars.at(bar).bytes += bytes, mbarrier_arrive(bar);
}
OBK_DEVICE bool mbarrier_try(uint32_t bar, uint32_t parity) {
  if (one_cta::bars.at(bar).phase != static_cast<int>(parity)) return true;
  one_cta::yield();
  return false;
}
OBK_DEVICE bool mbarrier_test(uint32_t bar, uint32_t parity) { return mbarrier_try(bar, parity); }
OBK_DEVICE uint32_t dsmem_address(uint32_t shared, int rank) {
  CHECK(rank >= 0 && rank < static_cast<int>(one_cta::members.size()), "CTA {} of a cluster", rank);
  return shared | static_cast<uint32_t>(rank + 1) << 24;
}
OBK_DEVICE void store_dsmem(uint32_t to, const void* values, int bytes, uint32_t bar) {
  const int rank = static_cast<int>(to >> 24) - 1;
  CHECK(rank >= 0 && bar >> 24 == to >> 24, "an mbarrier counts what comes beside it");
  to &= 0xffffff, bar &= 0xffffff;
  one_cta::at(to, static_cast<size_t>(bytes));
  one_cta::Member& other = one_cta::members[static_cast<size_t>(rank)];
  const bool own = rank == one_cta::rank;  // whose state is not in its place
  memcpy((own ? one_cta::shared : other.shared.data()) + to, values, static_cast<size_t>(bytes));
  one_cta::Bar& counts = (own ? one_cta::bars : other.bars).at(bar);
  counts.bytes -= bytes, counts.look();
}
OBK_DEVICE void store_dsmem4(uint32_t to, float value, uint32_t bar) {
  store_dsmem(to, &value, 4, bar);
}
OBK_DEVICE void store_dsmem8(uint32_t to, float a, float b, uint32_t bar) {
  const float values[] = {a, b};
  store_dsmem(to, values, 8, bar);
}
OBK_DEVICE void store_dsmem16(uint32_t to, const uint32_t (&words)[4], uint32_t bar) {
  store_dsmem(to, words, 16, bar);
}
OBK_DEVICE void cluster_arrive() {
  one_cta::Fiber& fiber = one_cta::fibers[threadIdx.x];
  CHECK(fiber.arrived < one_cta::clusters.turn, "a thread arrives twice");
  fiber.arrived = one_cta::clusters.turn;
  if (++one_cta::clusters.here ==
      static_cast<int>(one_cta::members.size() * one_cta::fibers.size()))
    one_cta::clusters.here = 0, ++one_cta::clusters.turn, ++one_cta::events;
}
OBK_DEVICE void cluster_arrive_relaxed() { cluster_arrive(); }
OBK_DEVICE void cluster_wait();
OBK_DEVICE void cluster_meet_relaxed() { cluster_arrive(), cluster_wait(); }
OBK_DEVICE void cluster_wait() {
  const int64_t mine = one_cta::fibers[threadIdx.x].arrived;
  CHECK(mine >= 0, "a thread waits for a cluster at which it has not arrived");
  one_cta::wait_until([=] { return one_cta::clusters.turn != mine; });
}
OBK_DEVICE void copy16(uint32_t to, const void* from) { one_cta::copy_later(to, from, 16, 16); }
OBK_DEVICE void copy16_partly(uint32_t to, const void* from, uint32_t bytes) {
  one_cta::copy_later(to, from, bytes, 16);
}
OBK_DEVICE void copy16_if(bool copies, uint32_t to, const void* from, uint32_t bytes) {
  if (copies) one_cta::copy_later(to, from, bytes, 16);
}
OBK_DEVICE void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  for (uint32_t k = 0; k < bytes; k += 16)
    one_cta::copy(to + k, static_cast<const char*>(from) + k, 16, 16);
  one_cta::bars.at(bar).bytes -= bytes, one_cta::bars.at(bar).look();
}
OBK_DEVICE void bulk_copy_to_all(uint32_t to, const void* from, uint32_t bytes, uint32_t bar,
                                 uint16_t ctas) {
  one_cta::at(to, 16), one_cta::look(from, static_cast<int>(bytes), 16);
  for (int rank = 0; rank < static_cast<int>(one_cta::members.size()); ++rank) {
    if ((ctas >> rank & 1) == 0) continue;
    one_cta::Member& other = one_cta::members[static_cast<size_t>(rank)];
    const bool own = rank == one_cta::rank;  // whose state is not in its place
    memcpy((own ? one_cta::shared : other.shared.data()) + to, from, bytes);
    one_cta::Bar& counts = (own ? one_cta::bars : other.bars).at(bar);
    counts.bytes -= bytes, counts.look();
  }
  CHECK(ctas >> one_cta::members.size() == 0, "CTAs {:#x} of a cluster of {}", ctas,
        one_cta::members.size());
}
OBK_DEVICE void mbarrier_arrive_dsmem(uint32_t bar) {
  const int rank = static_cast<int>(bar >> 24) - 1;
  CHECK(rank >= 0, "not an address of a CTA");
  one_cta::Bar& counts =
      (rank == one_cta::rank ? one_cta::bars : one_cta::members[static_cast<size_t>(rank)].bars)
          .at(bar & 0xffffff);
  --counts.waiting, counts.look();
}
OBK_DEVICE void line_prefetch(const void* from) { one_cta::look(from, 1, 1); }
OBK_DEVICE void bulk_prefetch(const void* from, uint32_t bytes) {
  CHECK(bytes > 0 && bytes % 16 == 0, "{} bytes asked ahead", bytes);
  one_cta::look(from, static_cast<int>(bytes), 16);
  one_cta::prefetched.push_back({static_cast<const char*>(from), bytes});
}
OBK_DEVICE void fetch_map(const void* map) {
  CHECK(reinterpret_cast<uint64_t>(map) % 64 == 0, "a map lies at a multiple of 64 bytes");
}
OBK_DEVICE void acquire_map(const void* map) { fetch_map(map); }
OBK_DEVICE uint32_t round_tf32(float v);
/* What a map of floats does to those that it brings. */
OBK_DEVICE void round_copied(uint32_t to, int bytes) {
  for (int e = 0; e < bytes; e += 4) {
    float v;
    memcpy(&v, one_cta::at(to + static_cast<uint32_t>(e), 4), 4);
    const uint32_t bits = round_tf32(v);
    memcpy(one_cta::at(to + static_cast<uint32_t>(e), 4), &bits, 4);
  }
}
OBK_DEVICE void copy_blocks(uint32_t to, const void* map, int row, int block, uint32_t bar) {
  if (one_cta::copies_rows) one_cta::copies_rows();
  fetch_map(map);
  one_cta::RowsMap m;
  memcpy(&m, map, sizeof m);
  CHECK(to % 1024 == 0 && row >= 0 && block >= 0, "atoms at {}, row {}, block {}", to, row, block);
  for (int64_t b = 0; b < m.blocks; ++b)
    for (int64_t r = 0; r < m.together; ++r)
      for (int64_t piece = 0; piece < 8; ++piece) {
        const bool inside = row + r < m.rows && block + b < m.pitch * m.size / 128;
        const char* from = m.at + (row + r) * m.pitch * m.size + (block + b) * 128 + piece * 16;
        const uint32_t place =
            to + static_cast<uint32_t>(b * m.together * 128 + r * 128 +
                                       (piece ^ ((b * m.together + r) & 7)) * 16);
        one_cta::copy(place, from, inside ? 16 : 0, 16);
        if (m.tf32) round_copied(place, 16);
      }
  one_cta::bars.at(bar).bytes -= m.blocks * m.together * 128, one_cta::bars.at(bar).look();
}
OBK_DEVICE void copy_box(uint32_t to, const void* map, int row, int column, uint32_t bar) {
  if (one_cta::copies_rows) one_cta::copies_rows();
  fetch_map(map);
  one_cta::BoxesMap m;
  memcpy(&m, map, sizeof m);
  CHECK(to % 1024 == 0 && row >= 0 && column >= 0, "atoms at {}, row {}, column {}", to, row,
        column);
  for (int64_t r = 0; r < m.together; ++r)
    for (int64_t e = 0; e < 128 / m.size; ++e) {
      const bool inside = row + r < m.rows && column + e < m.columns;
      const int64_t byte = e * m.size;
      const auto size = static_cast<int>(m.size);
      const uint32_t place =
          to + static_cast<uint32_t>(r * 128 + (byte / 16 ^ (r & 7)) * 16 + byte % 16);
      one_cta::copy(place, m.at + ((row + r) * m.pitch + column + e) * m.size, inside ? size : 0,
                    size);
      if (m.tf32) round_copied(place, 4);
    }
  one_cta::bars.at(bar).bytes -= m.together * 128, one_cta::bars.at(bar).look();
}
template <int kUnit>
OBK_DEVICE void copy_unit(uint32_t to, const void* from, uint32_t bytes) {
  one_cta::copy_later(to, from, bytes, kUnit);
}
template <int kUnit>
OBK_DEVICE void copy_piece(uint32_t to, const void* from, uint32_t bytes) {
  for (uint32_t e = 0; e < 16; e += kUnit) {
    const uint32_t left = bytes > e ? bytes - e : 0;
    copy_unit<kUnit>(to + e, left > 0 ? static_cast<const char*>(from) + e : from,
                     left < kUnit ? left : kUnit);
  }
}
OBK_DEVICE void copy16_commit() { one_cta::fibers[threadIdx.x].groups.emplace_back(); }
template <int kPending>
OBK_DEVICE void copy16_wait() {
  one_cta::land(kPending);
}

OBK_DEVICE uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  memcpy(&v, one_cta::at(address, 4), 4);
  return v;
}
OBK_DEVICE void store_shared_word(uint32_t address, uint32_t v) {
  memcpy(one_cta::at(address, 4), &v, 4);
}
OBK_DEVICE float load_shared(uint32_t address) {
  return __uint_as_float(load_shared_word(address));
}
OBK_DEVICE void store_shared(uint32_t address, float v) {
  store_shared_word(address, __float_as_uint(v));
}
OBK_DEVICE void fence_async_shared() {}
OBK_DEVICE void fence_async_global() {}
OBK_DEVICE uint64_t clock_nanos() { return 0; }
OBK_DEVICE float zero_here() { return 0; }
OBK_DEVICE float widen_f16_bits(uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
OBK_DEVICE void load_shared16(uint32_t (&r)[4], uint32_t address) {
  memcpy(r, one_cta::at(address, 16), 16);
}
OBK_DEVICE void store_shared16(uint32_t address, const uint32_t (&r)[4]) {
  memcpy(one_cta::at(address, 16), r, 16);
}

OBK_DEVICE void load_shared8(float& a, float& b, uint32_t address) {
  one_cta::at(address, 8);
  a = load_shared(address), b = load_shared(address + 4);
}
OBK_DEVICE void store_shared8(uint32_t address, float a, float b) {
  one_cta::at(address, 8);
  store_shared(address, a), store_shared(address + 4, b);
}
template <int kWords>
OBK_DEVICE void load_global(uint32_t (&r)[kWords], const void* from) {
  one_cta::look(from, 4 * kWords, 4 * kWords);
  memcpy(r, from, sizeof r);
}
OBK_DEVICE void load_global16(uint32_t& r, const void* from) {
  one_cta::look(from, 2, 2);
  uint16_t half;
  memcpy(&half, from, 2);
  r = half;
}
template <bool kBfloat>
OBK_DEVICE uint32_t narrow_two(float low, float high) {
  const auto bits = [](float v) -> uint32_t {
    if (!kBfloat) return std::bit_cast<uint16_t>(static_cast<_Float16>(v));
    const auto all = std::bit_cast<uint32_t>(v);
    return v != v ? 0x7fc0u : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  };
  return bits(low) | bits(high) << 16;
}

OBK_DEVICE uint32_t matrix_word(const one_cta::Lane* lanes, int matrix) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t v;
  memcpy(&v, one_cta::at(lanes[matrix * 8 + lane / 4].words[0], 16) + lane % 4 * 4, 4);
  return v;
}
OBK_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
  const one_cta::Lane* lanes = one_cta::exchange({{address}});
  for (int k = 0; k < 4; ++k) r[k] = matrix_word(lanes, k);
}
OBK_DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  const one_cta::Lane* lanes = one_cta::exchange({{address}});
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t k = 0; k < 4; ++k) {
    r[k] = 0;
    for (uint32_t e = 0; e < 2; ++e) {
      uint16_t v;
      memcpy(&v, one_cta::at(lanes[k * 8 + lane % 4 * 2 + e].words[0], 16) + lane / 4 * 2, 2);
      r[k] |= static_cast<uint32_t>(v) << 16 * e;
    }
  }
}
OBK_DEVICE void load_two_matrices(uint32_t& a, uint32_t& b, uint32_t address) {
  const one_cta::Lane* lanes = one_cta::exchange({{address}});
  a = matrix_word(lanes, 0), b = matrix_word(lanes, 1);
}
OBK_DEVICE uint32_t round_tf32(float v) { /* the nearest, halves away from zero */
  const auto bits = std::bit_cast<uint32_t>(v);
  return v != v ? 0x7fffffffu : (bits + (1u << 12)) >> 13 << 13;
}
OBK_DEVICE void mma_16x8x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const one_cta::Lane* lanes = one_cta::exchange({{a[0], a[1], a[2], a[3], b0, b1}});
  const auto number = [](uint32_t word) {
    CHECK((word & 0x1fff) == 0 || (word & 0x7f800000) == 0x7f800000, "an operand is not rounded");
    return static_cast<double>(std::bit_cast<float>(word));
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    double sum = static_cast<double>(d[e]);
    for (int k = 0; k < 8; ++k)
      sum += number(lanes[row * 4 + k % 4].words[e / 2 + k / 4 * 2]) *
             number(lanes[column * 4 + k % 4].words[4 + k / 4]);
    d[e] = static_cast<float>(sum);
  }
}
template <bool kBfloat>
OBK_DEVICE void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const one_cta::Lane* lanes = one_cta::exchange({{a[0], a[1], a[2], a[3], b0, b1}});
  const auto number = [](uint32_t word, int k) {
    const auto bits = static_cast<uint16_t>(word >> (k & 1) * 16);
    return kBfloat ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16)
                   : static_cast<float>(std::bit_cast<_Float16>(bits));
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    double sum = static_cast<double>(d[e]);
    for (int k = 0; k < 16; ++k) {
      const uint32_t* of_a = lanes[row * 4 + k % 8 / 2].words;
      const uint32_t* of_b = lanes[column * 4 + k % 8 / 2].words;
      sum += static_cast<double>(number(of_a[e / 2 + k / 8 * 2], k)) *
             static_cast<double>(number(of_b[4 + k / 8], k));
    }
    d[e] = static_cast<float>(sum);
  }
}
}  // namespace obk

/// tests/random/twin.h — bodies for a GPU as functions of this machine: the device's own dialect
/// and tiles, a CTA's threads as fibers (tests/gpu/one_cta.h). Texts of bodies follow it, each with
/// a TWIN_BODY behind it.
///
/// A task is run as a kernel of its work runs it (program.cuh, grid.cuh): rows to warps, staged
/// rows apart, scratch poisoned. What stands between tasks is not here: tables in device memory,
/// rings of weights (tiles bring theirs), barriers of the grid, copies by a map.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>

#include "one_cta.h"
#include "one_cta_wgmma.h"
#include "twin_task.h"

// Words and functions of the device compiler that one_cta.h leaves out, for tiles alone do without
// them.
struct uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline uint32_t atomicCAS(uint32_t* at, uint32_t wanted, uint32_t next) {
  const uint32_t old = *at;
  if (old == wanted) *at = next;
  return old;
}
inline uint32_t atomicCAS_system(uint32_t* at, uint32_t wanted, uint32_t next) {
  return atomicCAS(at, wanted, next);
}
inline void __threadfence_system() {}
inline void __threadfence() {}
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)

namespace obk {
OBK_DEVICE float reciprocal_approx(float x) { return 1.0f / x; }
OBK_DEVICE uint16_t narrow_f16_bits(float v) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(v));
}
OBK_DEVICE uint16_t narrow_bf16_bits(float v) {
  return static_cast<uint16_t>(narrow_two<true>(v, 0));
}
OBK_DEVICE void store_shared_half(uint32_t address, uint32_t v) {
  const auto half = static_cast<uint16_t>(v);
  memcpy(one_cta::at(address, 2), &half, 2);
}
OBK_DEVICE bool mbarrier_try_for(uint32_t bar, uint32_t parity, uint32_t) {
  return mbarrier_try(bar, parity);
}
OBK_DEVICE void cluster_meet() { cluster_meet_relaxed(); }
OBK_DEVICE void post_relaxed(uint64_t* to, uint64_t word) { *to = word; }
OBK_DEVICE void post_dsmem(uint32_t, uint64_t) { __trap(); }
OBK_DEVICE uint64_t poll_dsmem(uint32_t) {
  __trap();
  return 0;
}
}  // namespace obk

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
using std::isinf, std::isnan, std::max, std::min;
#include "attention/attention.cuh"
#include "conv/conv.cuh"
#include "core/dialect.cuh"
#include "exec/grid.cuh"
#include "gemm/gemm.cuh"
#pragma GCC diagnostic pop
#undef OBK_BEGIN_WAVE
#define OBK_BEGIN_WAVE() /* waves come one after another here */

/// What is wrong, or nothing: text that lives until the next call.
inline const char* twin_run(obk::Body body, const TwinTask& of) {
  static std::string wrong;
  constexpr int kGuard = 4096;
  constexpr unsigned char kPoison = 0xc5, kBeyond = 0x5c;
  wrong.clear();
  const int64_t bytes = of.scratch + of.groups * of.row_scratch;
  if (bytes + kGuard > one_cta::kSharedBytes)
    return "a task wants more shared memory than there is";
  memset(one_cta::shared, kPoison, static_cast<size_t>(bytes));
  memset(one_cta::shared + bytes, kBeyond, kGuard);
  one_cta::readable = {{nullptr, reinterpret_cast<const char*>(~uintptr_t{0})}};
  one_cta::cta.x = static_cast<unsigned>(of.sm), one_cta::grid.x = static_cast<unsigned>(of.sms);
  static uint64_t parts[32];
  ObkWork work = {};
  work.groups = of.groups, work.row_scratch = of.row_scratch;
  try {
    one_cta::run(OBK_THREADS, [&] {
      try {
        ObkLanes lanes = {};
        if (of.table) {
          lanes.scratch = one_cta::shared, lanes.scratch_bytes = bytes, lanes.sm = of.sm,
          lanes.sms = of.sms;
          lanes.warp = static_cast<int32_t>(threadIdx.x / 32), lanes.warps = OBK_THREADS / 32,
          lanes.parts = parts;
          obk::assign_lanes(&lanes, &work);
        } else {
          obk::set_up_grid(&lanes, one_cta::shared, bytes, parts);
        }
        body(of.task, of.params, of.operands, &lanes);
      } catch (const std::exception& error) {
        wrong = error.what();
      }
    });
  } catch (const std::exception& error) {
    if (wrong.empty()) wrong = error.what();
  }
  for (int k = 0; k < kGuard && wrong.empty(); ++k)
    if (static_cast<unsigned char>(one_cta::shared[bytes + k]) != kBeyond)
      wrong = "a task writes beyond its shared memory";
  return wrong.c_str();
}
#define TWIN_BODY(name, body) \
  extern "C" const char* name(const TwinTask* of) { return twin_run(body, *of); }

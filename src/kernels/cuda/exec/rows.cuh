/* kernels/cuda/exec/rows.cuh — the barrier before a task's wave, in its body; and the TMA load of a
 * GEMM's rows of A that the waiting thread issues.
 *
 *   OBK_BEGIN_WAVE()         in the body, when it has done all that depends on no other task
 *
 *   OBK_ROWS(together, x, row, block, at, shape...)    of a GEMM whose A lies in a matrix of whole
 *                            blocks of 64 columns; before all else, for the first warp waits here
 *                            and issues the load:
 *       together      blocks of one copy
 *       x             the matrix's tensor map, behind the operands (runtime/cuda/tables.h)
 *       row, block    where the tile begins in it
 *       at            where A goes
 *       shape         FixedShape
 *   OBK_BEGIN_ROWS()                          then, instead of OBK_BEGIN_WAVE
 *   OBK_GEMM_ROWS_OF(type, g, shape...)       the tile
 *
 * The thread that waits for the other SMs loads all of A as soon as the wave before has ended: few
 * instructions of one thread, where copies by all threads (gemm_fixed.cuh) are some hundred, each
 * behind a barrier of the CTA. What others have stored is made visible to TMA by a proxy fence of
 * that thread, after the acquire. */
#ifndef OBK_ROWS_CUH
#define OBK_ROWS_CUH

#include "exec/barrier.cuh"
#include "gemm/gemm.cuh"

namespace obk {

/* What a task waits for: of thread 0, in shared memory, for called bodies wait as well. */
struct WaveGate {
  uint64_t* counter;
  uint64_t want;
  uint64_t* begun; /* where the task says when it began, or null */
  Watchdog dog;
  int32_t waits; /* or the CTA has not left the wave */
};
static __device__ __forceinline__ WaveGate& wave_gate() {
  static __shared__ WaveGate gate;
  return gate;
}
/* Thread 0, once a task: first() as soon as all have left the wave before. */
template <typename F>
static __device__ __forceinline__ void leave_wave(F&& first) {
  WaveGate& gate = wave_gate();
  if (gate.waits) {
    Watchdog dog = gate.dog;
    const uint64_t want = gate.want;
    dog.start();
    for (uint64_t have; (have = poll_acquire(gate.counter)) < want;)
      dog.check(1, (uint64_t)gate.counter, want, have);
  }
  first();
  if (gate.begun) *gate.begun = clock_nanos();
}
/* All threads, once a task, before anything is read that another task stores. */
static __device__ __forceinline__ void begin_wave() {
  if (threadIdx.x == 0) leave_wave([] {});
  __syncthreads();
}

/* mbarriers of the rows that come by maps, one a copy; and how often each copy has come, even or
 * odd: a bit each, for tiles have few or many. */
static constexpr int kRowBars = 16;
#ifndef OBK_OWN_ROW_BARS
static __device__ __forceinline__ uint32_t row_bars() {
  static __shared__ uint64_t bars[kRowBars];
  return shared_address(bars);
}
#endif
static __device__ __forceinline__ uint32_t& row_turn() {
  static __shared__ uint32_t turn;
  return turn;
}
/* Thread 0, at the kernel's start, before all meet. */
static __device__ inline void start_rows() {
  for (int k = 0; k < kRowBars; ++k) mbarrier_init(row_bars() + 8 * k, 1);
  mbarrier_init_fence();
  row_turn() = 0;
}

/* kTogether: blocks of 64 columns that a copy loads. */
template <bool kInlined, int kTogether_, typename S>
struct AsyncRows {
  static constexpr int kTogether = kTogether_, kCopies = S::kChunks / kTogether,
                       kBytes = kTogether * S::kBlock;
  static constexpr bool kAsync = kInlined && kHasPages && wgmma_fits<S>() &&
                                 S::kChunks % kTogether == 0 && kCopies <= kRowBars;
  const void* map;
  int row, block;
  uint32_t to;

  __device__ __forceinline__ AsyncRows(const void* map, int row, int block, const void* at)
      : map(map), row(row), block(block), to((shared_address(at) + 1023) & ~1023u) {}
  /* Where the text says OBK_ROWS: the first warp waits while the others do what stands before
   * begin(), and does it then, while the rows come. */
  __device__ __forceinline__ void load() const {
    if constexpr (kAsync) {
      if (threadIdx.x != 0) return;
      const uint32_t bars = row_bars();
      fetch_map(map);
      fence_async_shared(); /* what was stored where these rows go */
#pragma unroll
      for (int k = 0; k < kCopies; ++k) mbarrier_expect(bars + 8 * k, kBytes);
      leave_wave([&] {
        fence_async_global();
#pragma unroll
        for (int k = 0; k < kCopies; ++k)
          copy_blocks(to + k * kBytes, map, row, block + k * kTogether, bars + 8 * k);
      });
    }
  }
  __device__ __forceinline__ void begin() const {
    if constexpr (kAsync)
      __syncthreads();
    else
      begin_wave();
  }
  static __device__ __forceinline__ uint32_t turn() { return row_turn(); }
  static __device__ __forceinline__ void wait(int copy, uint32_t turn) {
    Watchdog dog = ring_state().dog;
    dog.start();
    while (!mbarrier_try(row_bars() + 8 * copy, turn >> copy & 1)) dog.check(6, copy, turn, 0);
  }
  /* All threads have waited for all copies; they meet afterwards. */
  static __device__ __forceinline__ void read(uint32_t turn) {
    if (threadIdx.x == 0) row_turn() = turn ^ ((1u << kCopies) - 1);
  }
  /* All threads: a tile that does not read them. */
  static __device__ __forceinline__ void drain() {
    if constexpr (kAsync) {
      const uint32_t now = turn();
      for (int k = 0; k < kCopies; ++k) wait(k, now);
      __syncthreads();
      read(now);
    }
  }
};

/* The tile of a product whose rows were requested. S: its shape, perhaps of fewer columns than
 * requested. What fixed_takes would ask holds: the text has a tile for each number of columns, a
 * map wants rows where 16 bytes begin, and there is a ring. So no other form stands beside, whose
 * code would come from HBM with it. */
template <int kType, typename S, bool kInlined, typename Rows>
static __device__ __forceinline__ void gemm_rows_of(ObkLanes* w, const ObkGemm& g, const Rows&) {
#ifdef OBK_WGMMA
  if constexpr (Rows::kAsync && wgmma_fits<S>())
    return fixed_wgmma_tile<kType == kObkBf16, S, Rows>(g);
#endif
  if constexpr (Rows::kAsync) {
    Rows::drain();
    gemm_tile<kType>(w, g);
  } else {
    gemm_tile_of<kType, S, kInlined, true>(w, g);
  }
}

}  // namespace obk

#define OBK_BEGIN_WAVE() obk::begin_wave()
#define OBK_ROWS(together, x, row, block, at, ...)                                        \
  const obk::AsyncRows<OBK_WGMMA_TILES, together, obk::FixedShape<__VA_ARGS__>> obk_rows( \
      x, row, block, at);                                                                 \
  obk_rows.load();
#define OBK_BEGIN_ROWS() obk_rows.begin()
#define OBK_GEMM_ROWS_OF(type, g, ...) \
  obk::gemm_rows_of<type, obk::FixedShape<__VA_ARGS__>, OBK_WGMMA_TILES>(w, g, obk_rows)

#endif

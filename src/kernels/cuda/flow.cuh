/* kernels/cuda/flow.cuh — the kernel of a program that flows (schedule/flow.h): no barrier of the grid.
 *
 * Each CTA runs its list. What other CTAs compute in parts comes by words that carry their own
 * readiness (given.cuh): the first task that reads such a value gathers all of it into the CTA's own
 * copy, in shared memory, where this and later tasks find it. What is cheap each CTA computes for itself.
 * Nothing is released, so copies never have to stop: a warp of its own asks for the pages of all
 * tasks of the list, in their order, as places become free. Far memory is quickest with little in line
 * (ring.cuh), and what is gathered stands behind it: so many pages are under way and no more.
 *
 * Why nobody waits for ever: lists are in the order of waves, and a task waits only for what tasks of
 * earlier waves give. All CTAs are resident: a cooperative launch.
 *
 * The number of a run comes from the instance's counter, to which every CTA adds one at its end: no CTA
 * of a run begins before all of the run before have ended, so all find the same. */
#ifndef OBK_FLOW_CUH
#define OBK_FLOW_CUH

#include "given.cuh"

/* What a task reads that other CTAs give: its place in the arena in units of 16 bytes, its number among
 * all such values, where the copy goes, how many pairs of words. */
struct ObkGather {
  uint32_t from, number;
  int32_t near, pairs;
};
#ifndef OBK_MOST_GIVEN
#error "OBK_MOST_GIVEN stands before (schedule/schedule.h)"
#endif

static __device__ __forceinline__ void obk_dispatch(int32_t body, const ObkTask* t,
                                                    const int64_t* p, void* const* x,
                                                    ObkLanes* w);

namespace obk {

/* Pages under way to an SM: of the task that runs, and of one that will. All that is asked for stands
 * in line before far memory, and a look at a given word behind it: a page more on each of 132 SMs is
 * 2 MB more, half a microsecond. While a task runs that waits for nothing but its pages, far memory must not run dry; between such tasks it has
 * time. H200, a decoder: of 3 to 8 and of 1 to 3 these are best. */
static constexpr int kFlowPages = 6, kQuietPages = 2;

static __device__ __forceinline__ const ObkGather* gathers_of(const uint64_t* block) {
  const ObkWork* work = (const ObkWork*)block;
  return (const ObkGather*)(block + ((OBK_WORK_WORDS + work->params + work->operands + 1) & ~1));
}
/* All threads: what the work waits for, into the CTA's copies. Seen after the next meeting. One text for
 * all bodies: code that each has of its own would come from as far as weights. */
static __device__ __forceinline__ void gather(const char* arena, const uint64_t* block,
                                              const uint32_t* there, uint32_t copies, uint32_t tag,
                                              Watchdog dog) {
  constexpr int kBatch = 8;
  const int count = ((const ObkWork*)block)->gathers;
  const ObkGather* all = gathers_of(block);
  int k = -1, pairs = 0, n = (int)threadIdx.x; /* of the present value; the pair in it */
  uint32_t from = 0, to = 0;
  auto step = [&] { /* on to the value that has pair n */
    while (n >= pairs) {
      n -= pairs, pairs = 0;
      if (++k >= count) return;
      if (there[all[k].number / 32] >> all[k].number % 32 & 1) continue;
      pairs = all[k].pairs;
      from = all[k].from, to = all[k].near;
    }
  };
  step();
#pragma unroll 1
  while (k < count) {
    GivenTwo two[kBatch];
    uint32_t at[kBatch], put[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      at[i] = k < count ? from + n : kNowhere, put[i] = copies + to + n * 8;
      if (k < count) n += OBK_THREADS, step();
    }
    await_all(two, arena, at, tag, dog);
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (at[i] != kNowhere)
        store_shared8(put[i], __uint_as_float(two[i].first()), __uint_as_float(two[i].second()));
  }
}
/* A warp, when all have met: these copies are there. */
static __device__ __forceinline__ void mark(const uint64_t* block, uint32_t* there) {
  const ObkGather* all = gathers_of(block);
#pragma unroll 1
  for (int k = threadIdx.x % 32; k < ((const ObkWork*)block)->gathers; k += 32)
    atomicOr(&there[all[k].number / 32], 1u << all[k].number % 32);
}
/* What stands between two tasks is shared out among the warps, beside the first: its instructions are
 * waited for. */
enum FlowWarp { kMarks = 1, kPlaces, kFetches };
/* Far memory is far while weights flow, and some tasks take half a microsecond: tasks and blocks are fetched so far ahead
 * that what was asked for during the last three tasks may still be under way; operands become addresses one ahead. */
static constexpr int kFetchesUnderWay = 3, kBlocksAhead = kFetchesUnderWay + 2;
static constexpr int kTasksAhead = kBlocksAhead + kFetchesUnderWay + 1, kTaskPlaces = 16;
static_assert(kBlocksAhead < OBK_FLOW_BLOCKS && kTasksAhead < kTaskPlaces, "what is fetched has a place");

/* The warp that asks: pages of tasks first .. last, one after another. `now`: the task that runs. */
static __device__ __noinline__ void ask_for_all(const ObkProgram& program, int first, int last,
                                                uint32_t pages_at, uint32_t bars,
                                                const volatile int* now) {
  const int lane = threadIdx.x % 32, pages = program.ring_pages;
  if (pages == 0) return;
  const int most = pages < kFlowPages ? pages : kFlowPages;
  Watchdog dog = ring_state().dog;
  int slot = 0, oldest = 0, under_way = 0; /* the next place; of what is under way */
  uint32_t turn = 0, oldest_turn = 0;
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    WeightPages mine = {};
    if (base + lane < last) {
      const ObkTask* task = program.tasks + base + lane;
      if (task->weight_bytes > 0) mine = pages_of(task);
    }
    const int here = last - base < 32 ? last - base : 32;
#pragma unroll 1
    for (int k = 0; k < here; ++k) {
      const uint64_t from = __shfl_sync(0xffffffffu, (uint64_t)mine.from, k);
      const int groups = __shfl_sync(0xffffffffu, mine.groups, k);
      const int chunks = __shfl_sync(0xffffffffu, mine.chunks, k);
      if (chunks == 0 || lane != 0) continue;
      const WeightPages range = WeightPages::of_tile((const char*)from, groups, chunks);
      const int per_page = range.chunks_a_page();
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; chunk += per_page) {
        dog.start();
        while (!mbarrier_try(bars + 8 * (pages + slot), turn ^ 1)) dog.check(3, slot, turn, base + k);
        while (under_way >= (base + k <= *now ? most : kQuietPages)) {
          if (!mbarrier_try(bars + 8 * oldest, oldest_turn)) {
            dog.check(2, oldest, oldest_turn, base + k);
            continue;
          }
          if (++oldest == pages) oldest = 0, oldest_turn ^= 1;
          --under_way;
        }
        const int beyond = chunk + per_page;
        copy_page(pages_at + slot * WeightPages::kPageBytes, range, chunk,
                  beyond < chunks ? beyond : chunks, bars + 8 * slot);
        if (++slot == pages) slot = 0, turn ^= 1;
        ++under_way;
      }
    }
    __syncwarp();
  }
}

}  // namespace obk

extern "C" __global__ void __launch_bounds__(OBK_THREADS + 32, 1)
    obk_program(const __grid_constant__ ObkProgram program) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  __shared__ __align__(16) ObkTask tasks[obk::kTaskPlaces];
  __shared__ uint32_t there[OBK_MOST_GIVEN / 32]; /* copies, a bit each */
  __shared__ uint32_t run;
  __shared__ volatile int now; /* the task that runs */
  const int sm = blockIdx.x, first = program.first[sm], last = program.first[sm + 1];
  ObkLanes lanes = {};
  if (threadIdx.x < OBK_THREADS) {
    obk::set_up(&lanes, program, shared, parts, sm);
    if (threadIdx.x < OBK_MOST_GIVEN / 32) there[threadIdx.x] = 0;
    if (threadIdx.x == 0) now = -1;
    if (threadIdx.x == 0) run = (uint32_t)(obk::poll_relaxed(program.counter) / gridDim.x) + 1;
  }
  obk::named_barrier(15, OBK_THREADS + 32);
  if (threadIdx.x >= OBK_THREADS)
    return obk::ask_for_all(program, first, last, obk::shared_address(shared),
                            obk::shared_address(shared + program.ring_pages * obk::WeightPages::kPageBytes),
                            &now);
  lanes.tag = run == 0 ? 1 : run;
  char* const near = shared + program.near_at;
  using obk::kBlocksAhead, obk::kTasksAhead;
  auto task_at = [&](int task) { return &tasks[task % obk::kTaskPlaces]; };
  auto block_at = [&](int task) {
    return (uint64_t*)(shared + program.block_at + task % OBK_FLOW_BLOCKS * program.block_bytes);
  };
  const int warp = threadIdx.x / 32;
  auto fetch_block_of = [&](int task) {
    if (task < last) obk::fetch_block(program, task_at(task)->nanos, block_at(task));
  };
  auto place = [&](int task) {
    if (task >= last) return;
    obk::fetch_small(block_at(task), shared + program.soon_at + (task & 1) * program.soon_bytes);
    obk::place_operands(program, block_at(task), near);
  };
  int at = first;
  if (warp == obk::kFetches)
    for (int k = 0; k < kTasksAhead && at + k < last; ++k) obk::fetch_task(program.tasks + at + k, task_at(at + k));
  obk::copy16_commit();
  obk::copy16_wait<0>();
  __syncthreads();
  if (warp == obk::kFetches)
    for (int k = 0; k < kBlocksAhead; ++k) fetch_block_of(at + k);
  obk::copy16_commit();
  obk::copy16_wait<0>();
  __syncthreads();
  if (warp == obk::kPlaces) place(at);
  obk::copy16_commit();
  obk::copy16_wait<0>();
  __syncthreads();
  obk::Watchdog dog = obk::ring_state().dog; /* this thread's own */
#pragma unroll 1
  for (; at < last; ++at) {
    uint64_t* const block = block_at(at);
    if (warp == obk::kPlaces) {
      place(at + 1);
      obk::copy16_commit();
    }
    if (warp == obk::kFetches) {
      fetch_block_of(at + kBlocksAhead);
      if (at + kTasksAhead < last) obk::fetch_task(program.tasks + at + kTasksAhead, task_at(at + kTasksAhead));
      obk::copy16_commit();
    }
    const ObkWork* work = (const ObkWork*)block;
    obk::deal(&lanes, work);
    dog.task = at;
    if (threadIdx.x == 0) obk::ring_state().dog.task = at;
    if (work->gathers > 0 && !(task_at(at)->nanos & OBK_GATHERED)) {
      obk::gather(program.arena, block, there, obk::shared_address(near), lanes.tag, dog);
      __syncthreads();
      if (warp == obk::kMarks) obk::mark(block, there);
    }
    if (threadIdx.x == 0) now = at;
    obk::stamp(program, at, false);
    obk_dispatch(work->body, task_at(at), (const int64_t*)(block + OBK_WORK_WORDS),
                 (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
    if (warp == obk::kFetches) obk::copy16_wait<obk::kFetchesUnderWay>();
    if (warp == obk::kPlaces) obk::copy16_wait<0>();
    __syncthreads(); /* the body's shared memory before the next */
    obk::stamp(program, at, true);
  }
  if (threadIdx.x == 0) obk::arrive_relaxed(program.counter);
}

#endif

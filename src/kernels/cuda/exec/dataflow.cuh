/* kernels/cuda/exec/dataflow.cuh — the kernel of a dataflow program (schedule/dataflow.h): no grid
 * barrier.
 *
 * Each CTA runs its list. Values whose parts other CTAs compute arrive as broadcast words
 * (broadcast.cuh): the first task that reads such a value gathers all of it into the CTA's own copy
 * in shared memory, where this and later tasks find it. Cheap works are replicated: each CTA
 * computes what it reads. Nothing is released, so loads never have to drain: a warp of its own
 * issues the loads of the pages of all tasks of the list, in order, as places become free. Gathers
 * queue behind outstanding loads (ring.cuh), so the number of pages in flight is limited.
 *
 * No deadlock: lists are in the order of waves, and a task waits only for words of tasks of earlier
 * waves. All CTAs are resident: a cooperative launch.
 *
 * The number of a run comes from the instance's counter, to which every CTA adds one at its end: no
 * CTA of a run begins before all of the run before have ended, so all find the same. */
#ifndef OBK_DATAFLOW_CUH
#define OBK_DATAFLOW_CUH

#include "exec/broadcast.cuh"

static __device__ __forceinline__ void obk_dispatch(int32_t body, const ObkTask* t,
                                                    const int64_t* p, void* const* x, ObkLanes* w);

namespace obk {

/* Pages in flight to an SM: for tasks that wait for nothing but their pages, and for those behind a
 * task that has not gathered yet. A poll of a broadcast word queues behind all outstanding loads,
 * so few pages are under way then; while a task waits for nothing but its pages, HBM must be kept
 * busy. Flat near its best: h200_networks.json, llama1b_decode. */
static constexpr int kDataflowPages = 6, kQuietPages = 2;
/* While all places are taken, so many of the next pages of the same task are prefetched into the L2
 * cache, one after another at this pace; faster they delay the words that others wait for. Fit to a
 * decoder's token; not on record. */
static constexpr int kPrefetchPages = 8, kPrefetchNanos = 300;

static __device__ __forceinline__ const ObkGather* gathers_of(const uint64_t* block) {
  const ObkWork* work = (const ObkWork*)block;
  return (const ObkGather*)(block + ((OBK_WORK_WORDS + work->params + work->operands + 1) & ~1));
}
/* All threads: what the task is the first of the CTA's to read, bit k of `fresh` the k-th value
 * that its work gathers, into the CTA's copies. Seen after the next meeting. One text for all
 * bodies: code of each body's own would be fetched from global memory. */
static __device__ __forceinline__ void gather(const char* arena, const uint64_t* block,
                                              uint32_t fresh, uint32_t copies, uint32_t tag,
                                              Watchdog dog) {
  constexpr int kBatch = 8;
  const ObkGather* all = gathers_of(block);
  int pairs = 0, n = (int)threadIdx.x; /* of the present value; the pair in it */
  uint32_t from = 0, to = 0;
  bool more = true;
  auto step = [&] { /* on to the value that has pair n */
                    while (n >= pairs) {
                      n -= pairs;
                      if (fresh == 0) return void(more = false);
                      const ObkGather* const next = all + (__ffs(fresh) - 1);
                      fresh &= fresh - 1;
                      pairs = next->pairs, from = next->from, to = next->smem_copy;
                    }
  };
  step();
#pragma unroll 1
  while (__any_sync(0xffffffffu, more)) {
    BroadcastPair two[kBatch];
    uint32_t at[kBatch], put[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      at[i] = more ? from + n : kNowhere, put[i] = copies + to + n * 8;
      if (more) n += OBK_THREADS, step();
    }
    await_all(two, arena, at, tag, dog);
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (at[i] != kNowhere)
        store_shared8(put[i], __uint_as_float(two[i].first()), __uint_as_float(two[i].second()));
  }
}
/* Warps beside the eight that compute; what computes never waits for what they do but at the end of
 * a task. The registers of a thread are the same with one of them and with four. */
enum DataflowWarp { kLoads = OBK_THREADS / 32, kFetches, kPlaces };
/* HBM latency is high while weights are loaded, and some tasks take half a microsecond: tasks and
 * blocks are fetched so far ahead that the loads of the last three tasks may still be in flight;
 * operands become addresses one task ahead. */
static constexpr int kFetchesUnderWay = 3, kBlocksAhead = kFetchesUnderWay + 2;
static constexpr int kTasksAhead = kBlocksAhead + kFetchesUnderWay + 1, kTaskPlaces = 16;
static_assert(kBlocksAhead < obk::kDataflowBlocks && kTasksAhead < kTaskPlaces,
              "what is fetched has a place");

/* What a task loads in pages: one range of packed weights, or a range of keys and one of values in
 * place (schedule/in_place_kv.h). */
struct TaskLoads {
  const char *from, *also; /* also: null where there is one range */
  int page, bytes;         /* of a page; of either range */

  static __device__ __forceinline__ TaskLoads of(const ObkProgram& program, const ObkTask* task) {
    TaskLoads s = {};
    if (task->weight_bytes <= 0) return s;
    if (task->weight_group > 0) {
      const WeightPages pages = pages_of(task);
      const int chunk = pages.groups * WeightPages::kAtomBytes;
      s.from = pages.from, s.page = pages.chunks_a_page() * chunk, s.bytes = pages.chunks * chunk;
      return s;
    }
    const uint64_t* block = (const uint64_t*)(program.blocks + block_offset(task->block));
    const ObkWork* work = (const ObkWork*)block;
    const uint64_t* last = block + OBK_WORK_WORDS + work->params + work->operands - 1;
    auto port = [&](uint64_t word) { return (const char*)program_port(program, word); };
    s.from = port(last[-1]) + (int64_t)(uint32_t)task->weights * 16;
    s.also = port(last[0]) + (int64_t)(task->weights >> 32) * 16;
    const int row = OBK_IN_PLACE_ROW(task);
    s.page = WeightPages::kPageBytes / row * row, s.bytes = task->weight_bytes; /* InPlaceRows */
    return s;
  }
};

/* The warp that issues loads: pages of tasks first .. last, one after another. */
static __device__ __noinline__ void issue_all_loads(const ObkProgram& program, int first, int last,
                                                    uint32_t pages_at, uint32_t bars) {
  const int lane = threadIdx.x % 32, pages = program.ring_pages;
  if (pages == 0) return;
  const int most = pages < kDataflowPages ? pages : kDataflowPages;
  Watchdog dog = ring_state().dog;
  int slot = 0, oldest = 0, under_way = 0; /* the next place; of what is under way */
  uint32_t turn = 0, oldest_turn = 0;
  const char* prefetched = nullptr; /* up to where its range is in L2 */
  uint64_t since = 0;
  /* Lane 0: a page of the range that ends at `end`, to the next place. `waits`: the last task, up
   * to the page's own, that gathers. */
  auto load = [&](const char* from, int bytes, const char* end, int task, int waits) {
    if (prefetched < from || prefetched > end) prefetched = from;
    const char* const most_prefetched = from + kPrefetchPages * (int64_t)bytes;
    dog.start_late(); /* for places that a task gives back, which may itself wait for words */
    while (!mbarrier_try_for(bars + 8 * (pages + slot), turn ^ 1, kPrefetchNanos / 2)) {
      dog.check(3, slot, turn, task);
      if (prefetched >= end || prefetched >= most_prefetched ||
          clock_nanos() - since < kPrefetchNanos)
        continue;
      const int64_t left = end - prefetched;
      bulk_prefetch(prefetched, left < bytes ? (uint32_t)left : bytes);
      prefetched += bytes, since = clock_nanos();
    }
    while (under_way >= (waits <= task_now() ? most : kQuietPages)) {
      if (!mbarrier_try(bars + 8 * oldest, oldest_turn)) {
        dog.check(2, oldest, oldest_turn, task);
        continue;
      }
      if (++oldest == pages) oldest = 0, oldest_turn ^= 1;
      --under_way;
    }
    mbarrier_expect(bars + 8 * slot, bytes);
    bulk_copy(pages_at + slot * WeightPages::kPageBytes, from, bytes, bars + 8 * slot);
    if (++slot == pages) slot = 0, turn ^= 1;
    ++under_way;
  };
  int before = -1; /* the last task before these that gathers */
#pragma unroll 1
  for (int base = first; base < last; base += 32) {
    TaskLoads mine = {};
    const ObkTask* const task = program.tasks + base + lane;
    if (base + lane < last) mine = TaskLoads::of(program, task);
    const uint32_t gathers = __ballot_sync(
        0xffffffffu, base + lane < last && (uint64_t)task->block >> OBK_FRESH_AT != 0);
    const int here = last - base < 32 ? last - base : 32;
#pragma unroll 1
    for (int k = 0; k < here; ++k) {
      const uint64_t from[2] = {__shfl_sync(0xffffffffu, (uint64_t)mine.from, k),
                                __shfl_sync(0xffffffffu, (uint64_t)mine.also, k)};
      const int page = __shfl_sync(0xffffffffu, mine.page, k),
                bytes = __shfl_sync(0xffffffffu, mine.bytes, k);
      if (gathers >> k & 1) before = base + k;
      if (lane != 0) continue;
#pragma unroll 1
      for (int which = 0; which < (from[1] ? 2 : 1); ++which)
#pragma unroll 1
        for (int at = 0; at < bytes; at += page)
          load((const char*)from[which] + at, bytes - at < page ? bytes - at : page,
               (const char*)from[which] + bytes, base + k, before);
    }
    __syncwarp();
  }
}

}  // namespace obk

extern "C" __global__ void __launch_bounds__(obk::kDataflowThreads, 1)
    obk_program(OBK_PARAMETER(ObkProgram)) {
  const ObkProgram& program = OBK_RECORD(ObkProgram);
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  __shared__ __align__(16) ObkTask tasks[obk::kTaskPlaces];
  __shared__ uint32_t run;
  using namespace obk;
  const int sm = blockIdx.x, first = program.first[sm], last = program.first[sm + 1],
            warp = threadIdx.x / 32;
  ObkLanes lanes = {};
  if (threadIdx.x < OBK_THREADS) {
    set_up(&lanes, program, shared, parts, sm);
    if (threadIdx.x == 0)
      task_now() = -1, run = (uint32_t)(poll_relaxed(program.counter) / gridDim.x) + 1;
  }
  char* const smem_copies = shared + program.smem_copies_at;
  auto task_at = [&](int task) { return &tasks[task % kTaskPlaces]; };
  auto block_at = [&](int task) {
    return (uint64_t*)(shared + program.block_at +
                       task % obk::kDataflowBlocks * program.block_bytes);
  };
  auto fetch_block_of = [&](int task) {
    if (task < last) fetch_block(program, task_at(task)->block, block_at(task));
  };
  auto place = [&](int task) {
    if (task >= last) return;
    fetch_small(block_at(task),
                shared + program.soon_at + task % obk::kDataflowSoon * program.soon_bytes);
    place_operands(program, block_at(task), smem_copies);
  };
  auto meet_all = [] { named_barrier(15, obk::kDataflowThreads); };
  auto meet = [] {
    named_barrier(14, obk::kDataflowThreads - 32);
  }; /* without the warp that issues loads */
  if (warp == kFetches)
    for (int k = 0; k < kTasksAhead && first + k < last; ++k)
      fetch_task(program.tasks + first + k, task_at(first + k));
  copy16_commit();
  copy16_wait<0>();
  meet_all();
  if (warp == kLoads)
    return issue_all_loads(program, first, last, shared_address(shared),
                           shared_address(shared + program.ring_pages * WeightPages::kPageBytes));
  if (warp == kFetches)
    for (int k = 0; k < kBlocksAhead; ++k) fetch_block_of(first + k);
  copy16_commit();
  copy16_wait<0>();
  meet();
  if (warp == kPlaces) place(first);
  meet();
  if (warp == kFetches) {
#pragma unroll 1
    for (int at = first; at < last; ++at) {
      fetch_block_of(at + kBlocksAhead);
      if (at + kTasksAhead < last)
        fetch_task(program.tasks + at + kTasksAhead, task_at(at + kTasksAhead));
      copy16_commit();
      copy16_wait<kFetchesUnderWay>();
      meet();
    }
    return;
  }
  if (warp == kPlaces) {
#pragma unroll 1
    for (int at = first; at < last; ++at) {
      place(at + 1);
      meet();
    }
    return;
  }
  lanes.tag = run == 0 ? 1 : run;
  Watchdog dog = ring_state().dog; /* this thread's own */
#pragma unroll 1
  for (int at = first; at < last; ++at) {
    uint64_t* const block = block_at(at);
    const ObkTask* const task = task_at(at);
    const ObkWork* work = (const ObkWork*)block;
    assign_lanes(&lanes, work);
    dog.task = at;
    if (const uint32_t fresh = (uint64_t)task->block >> OBK_FRESH_AT) {
      gather(program.arena, block, fresh, shared_address(smem_copies), lanes.tag, dog);
      __syncthreads();
    }
    if (threadIdx.x == 0) task_now() = at;
    stamp(program, at, false);
    obk_dispatch(work->body, task, (const int64_t*)(block + OBK_WORK_WORDS),
                 (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
    meet(); /* the body's shared memory before the next; what the next task needs is there */
    stamp(program, at, true);
  }
  if (threadIdx.x == 0) arrive_relaxed(program.counter);
}

#endif

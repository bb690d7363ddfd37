/* kernels/cuda/program.cuh — how tasks of a program run on a GPU: all of them in one kernel, each
 * CTA its own list with a barrier between waves; or the tasks of one work as a kernel of a graph.
 *
 *   obk_program          one cooperative launch; the emitted text defines obk_dispatch
 *   OBK_KERNEL(k, body)  an entry for one body; CTA b runs task b of the launch
 *
 * A work's body, parameters and operands lie in one block of words, which is copied to shared
 * memory while the CTA waits for the others; operands become pointers on the way. So tables hold no
 * address that differs between instances: a table serves all contexts and whatever memory the
 * caller brings. Weights of the next task are asked for right after the CTA has arrived, before it
 * waits (or before the kernel waits for the one before it): a release waits for copies in flight on
 * its SM.
 *
 * Host and device lay out these structures alike (runtime/cuda/tables.h). */
#ifndef OBK_PROGRAM_CUH
#define OBK_PROGRAM_CUH

#include "barrier.cuh"
#include "dialect.cuh"
#include "conv.cuh"
#include "gemm.cuh"

/* The head of a work's block; `params` words and `operands` words follow. */
struct ObkWork {
  int32_t body, params, operands;
  int32_t groups;      /* groups of lanes that have room for their staged rows */
  int64_t row_scratch; /* bytes of a group's staged rows */
};
#define OBK_WORK_WORDS 3

/* An operand: an address, or one of these with an index of a port or an offset into the arena. */
#define OBK_PORT (1ull << 63)
#define OBK_ARENA (1ull << 62)

/* When a task ran, in nanoseconds of the GPU's clock, and where. */
struct ObkStamp {
  uint64_t start, end;
  uint32_t sm, spare;
};

#define OBK_INLINE_PORTS 48

/* The kernel's only parameter. A task's `nanos` is its work's block: byte offset * 65536 + words.
 */
struct ObkProgram {
  const ObkTask* tasks;
  const int32_t* first; /* SM s runs tasks first[s] .. first[s + 1]; null: CTA b runs task b */
  const char* blocks;
  char* arena;
  void* const* ports; /* inputs, then outputs; null: `inline_ports` */
  uint64_t* counter;  /* the barrier's, this instance's own */
  ObkWatch* watch;    /* memory of the host, or null */
  ObkStamp* stamps;   /* by task, or null */
  int32_t waves, ring_pages;
  int32_t scratch_at, block_at; /* where in dynamic shared memory these lie */
  void* inline_ports[OBK_INLINE_PORTS];
};

#ifndef OBK_THREADS
#define OBK_THREADS 256
#endif

namespace obk {

/* Rows to warps, or, when there are fewer rows than groups and they are long, each row to the whole
 * CTA. */
static __device__ inline void deal(ObkLanes* w, const ObkTask* t, const ObkWork* work) {
  const int groups = work->groups;
  const bool whole = groups == 1 || ((t->r1 - t->r0) * 2 <= groups && t->c1 - t->c0 >= 4 * 32);
  w->lanes = whole ? (int)blockDim.x : 32;
  w->lane = whole ? (int)threadIdx.x : (int)(threadIdx.x % 32);
  w->groups = whole ? 1 : groups;
  w->group = whole              ? 0
             : w->warp < groups ? w->warp
                                : 1 << 30; /* a group without a place gets no row */
  w->stage = (char*)w->scratch + (w->group < w->groups ? w->group * work->row_scratch : 0);
}

/* All threads: a task's block to shared memory. Seen after the next meeting of the CTA. */
static __device__ inline void load_block(const ObkProgram& program, const ObkTask* task,
                                         uint64_t* to) {
  const uint64_t* from = (const uint64_t*)(program.blocks + (task->nanos >> 16));
  const int words = (int)(task->nanos & 0xffff);
  const int operands = OBK_WORK_WORDS + (int)(from[0] >> 32); /* where they begin */
  for (int k = threadIdx.x; k < words; k += OBK_THREADS) {
    uint64_t word = from[k];
    if (k >= operands) {
      if (word & OBK_PORT) {
        const int port = (int)(word & 0xffffffffu);
        word = (uint64_t)(program.ports ? program.ports[port] : program.inline_ports[port]);
      } else if (word & OBK_ARENA) {
        word = (uint64_t)(program.arena + (word & ~OBK_ARENA));
      }
    }
    to[k] = word;
  }
}

/* All threads, after they met: the first pages of the weights that a task will stream. */
static __device__ inline void ask_ahead(const ObkTask* task) {
  if (task->weight_bytes <= 0) return;
  WeightPages pages;
  pages.from = (const char*)task->weights;
  pages.chunks = task->weight_group / WeightPages::kChunkBytes;
  pages.groups = min(task->weight_bytes / task->weight_group,
                     (int32_t)(gemm_pass_columns(task->r1 - task->r0) / 8));
  ring_ask_ahead(pages);
}

static __device__ inline uint32_t sm_id() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
/* The kernels of a graph overlap: the next may start once all CTAs allow it, and reads only after
 * the one before has ended and its stores are seen. */
static __device__ inline void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* 64 bytes by four threads, without waiting. */
static __device__ inline void fetch_task(const ObkTask* from, ObkTask* to) {
  if (threadIdx.x < 4)
    copy16(shared_address((char*)to + 16 * threadIdx.x), (const char*)from + 16 * threadIdx.x);
  copy16_commit();
}

static __device__ inline void stamp(const ObkProgram& program, int at, bool end) {
  if (!program.stamps || threadIdx.x != 0) return;
  if (end) {
    program.stamps[at].end = clock_nanos();
  } else {
    program.stamps[at].start = clock_nanos();
    program.stamps[at].sm = sm_id();
  }
}

static __device__ inline void set_up(ObkLanes* lanes, const ObkProgram& program, char* shared,
                                     uint64_t* parts, int sm) {
  lanes->scratch = shared + program.scratch_at;
  lanes->scratch_bytes = program.block_at - program.scratch_at;
  lanes->sm = sm, lanes->sms = (int)gridDim.x;
  lanes->warp = threadIdx.x / 32, lanes->warps = OBK_THREADS / 32;
  lanes->parts = parts;
  ring_start(shared_address(shared),
             shared_address(shared + program.ring_pages * WeightPages::kPageBytes),
             program.ring_pages, program.watch, sm);
}

typedef void (*Body)(const ObkTask*, const int64_t*, void* const*, ObkLanes*);

/* A kernel of one body. */
template <Body body>
static __device__ inline void run_task(const ObkProgram& program) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  __shared__ __align__(16) ObkTask task;
  const int at = blockIdx.x;
  allow_next();
  if (threadIdx.x < 4)
    ((uint4*)&task)[threadIdx.x] = ((const uint4*)(program.tasks + at))[threadIdx.x];
  ObkLanes lanes = {};
  set_up(&lanes, program, shared, parts, at);
  if (threadIdx.x == 0) ring_state().dog.task = at;
  __syncthreads();
  ask_ahead(&task);
  uint64_t* block = (uint64_t*)(shared + program.block_at);
  load_block(program, &task, block);
  __syncthreads();
  const ObkWork* work = (const ObkWork*)block;
  deal(&lanes, &task, work);
  wait_for_previous();
  stamp(program, at, false);
  body(&task, (const int64_t*)(block + OBK_WORK_WORDS),
       (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
  ring_finish();
  if (program.stamps) __syncthreads();
  stamp(program, at, true);
}

}  // namespace obk

#define OBK_KERNEL(name, body)                              \
  extern "C" __global__ void __launch_bounds__(OBK_THREADS) \
      name(const __grid_constant__ ObkProgram program) {    \
    obk::run_task<body>(program);                           \
  }

#ifdef OBK_MONO
static __device__ __forceinline__ void obk_dispatch(int32_t body, const ObkTask* t,
                                                    const int64_t* p, void* const* x,
                                                    ObkLanes* w);

extern "C" __global__ void __launch_bounds__(OBK_THREADS, 1)
    obk_program(const __grid_constant__ ObkProgram program) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  __shared__ __align__(16) ObkTask tasks[2];
  const int sm = blockIdx.x;
  ObkLanes lanes = {};
  obk::set_up(&lanes, program, shared, parts, sm);
  obk::GridBarrier barrier(program.counter, gridDim.x, program.watch, sm);
  uint64_t* block = (uint64_t*)(shared + program.block_at);
  const int last = program.first[sm + 1], end = program.waves - 1;
  int wave = 0, at = program.first[sm];
  /* What comes next is read while the others are waited for. */
  auto go_to = [&](const ObkTask* next) {
    const int wanted = next ? (int)next->wave : end;
    const bool arrives = wave < wanted;
    if (arrives) barrier.arrive_after_sync();
    if (next) {
      obk::ask_ahead(next);
      obk::load_block(program, next, block);
    }
    if (!arrives) return __syncthreads();
    barrier.wait();
    for (++wave; wave < wanted; ++wave) barrier.arrive(), barrier.wait();
  };
  if (at < last) obk::fetch_task(program.tasks + at, &tasks[at & 1]), obk::copy16_wait<0>();
  __syncthreads();
  auto name_task = [&](int task) {
    barrier.dog().task = task;
    if (threadIdx.x == 0) obk::ring_state().dog.task = task;
  };
  name_task(at);
  go_to(at < last ? &tasks[at & 1] : nullptr);
  for (; at < last; ++at) {
    const ObkTask* task = &tasks[at & 1];
    if (at + 1 < last) obk::fetch_task(program.tasks + at + 1, &tasks[(at + 1) & 1]);
    const ObkWork* work = (const ObkWork*)block;
    obk::deal(&lanes, task, work);
    obk::stamp(program, at, false);
    obk_dispatch(work->body, task, (const int64_t*)(block + OBK_WORK_WORDS),
                 (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
    obk::copy16_wait<0>();
    __syncthreads(); /* the body's stores before the signal; its shared memory before the next */
    obk::stamp(program, at, true);
    name_task(at + 1);
    go_to(at + 1 < last ? &tasks[(at + 1) & 1] : nullptr);
  }
  obk::ring_finish();
}
#endif

#endif

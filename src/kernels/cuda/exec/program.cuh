/* kernels/cuda/exec/program.cuh — how tasks of a program run on a GPU: all of them in one kernel,
 * each CTA its own list with a barrier between waves; or the tasks of one work as a kernel of a
 * graph.
 *
 *   obk_program          one cooperative launch; the emitted text defines obk_dispatch
 *   OBK_KERNEL(k, body)  an entry for one body; CTAs share the tasks of the launch
 *
 * With OBK_INSTANCES a launch holds several programs of the same code side by side, one for each
 * blockIdx.y (ObkInstances, layout.h). What waits for other CTAs waits for those of its own
 * instance.
 *
 * A work's body, parameters and operands lie in one block of words, which is copied to shared
 * memory a task ahead; operands become pointers while the CTA signals. So tables hold no
 * address that differs between instances: a table serves all contexts and whatever memory the
 * caller brings. Weights of the next task are requested right after the CTA has arrived, before it
 * waits (or before the kernel waits for the one before it): a release waits for copies in flight on
 * its SM. A body of one kernel waits itself: rows.cuh. (A program without barriers has warps of its
 * own for all that: dataflow.cuh.)
 *
 * What the host lays out stands in layout.h. */
#ifndef OBK_PROGRAM_CUH
#define OBK_PROGRAM_CUH

/* A kernel's parameter, and the record that it is or, of several instances, leads to. The records
 * lie in global memory and do not change while a kernel runs. */
#ifdef OBK_INSTANCES
#define OBK_PARAMETER(Record) const __grid_constant__ ObkInstances instances
#define OBK_RECORD(Record) \
  (*(const Record*)((const char*)instances.records[blockIdx.y] + instances.at))
#else
#define OBK_PARAMETER(Record) const __grid_constant__ Record record
#define OBK_RECORD(Record) record
#endif

#include "conv/conv.cuh"
#include "core/dialect.cuh"
#include "exec/barrier.cuh"
#include "exec/rows.cuh"
#include "gemm/gemm.cuh"

namespace obk {

/* Threads that fetch what tables say: of a dataflow program a warp; of one kernel with barriers
 * all but the first warp, which signals meanwhile. */
#ifdef OBK_DATAFLOW
static constexpr int kTableThreads = 32;
static __device__ __forceinline__ int table_thread() { return (int)(threadIdx.x % 32); }
#elif defined OBK_MONO
static constexpr int kTableThreads = OBK_THREADS - 32;
static __device__ __forceinline__ int table_thread() { return (int)threadIdx.x - 32; }
#else
static constexpr int kTableThreads = OBK_THREADS;
static __device__ __forceinline__ int table_thread() { return (int)threadIdx.x; }
#endif

/* Rows to warps: those that have room for their staged rows. A text may share a row among all
 * threads instead (OBK_SHARE_ROWS). */
static __device__ inline void assign_lanes(ObkLanes* w, const ObkWork* work) {
  w->lanes = 32, w->lane = (int)(threadIdx.x % 32);
  w->groups = work->groups;
  w->group = w->warp < w->groups ? w->warp : 1 << 30; /* a group without a place gets no row */
  w->stage = (char*)w->scratch + (w->group < w->groups ? w->group * work->row_scratch : 0);
}

static __device__ inline int64_t block_offset(int64_t block) {
  return block >> OBK_BLOCK_AT & ((1ll << (OBK_FRESH_AT - OBK_BLOCK_AT)) - 1);
}
/* All threads (of a dataflow program: a warp): a work's block to shared memory, without waiting.
 * `block`: as a task's `block` says it. */
static __device__ inline void fetch_block(const ObkProgram& program, int64_t block, uint64_t* to) {
  const char* from = program.blocks + block_offset(block);
  const int bytes = (int)(block & 0xffff) * 8;
#pragma unroll 1
  for (int k = table_thread() * 16; k < bytes; k += kTableThreads * 16)
    copy16(shared_address(to) + k, from + k);
}
static __device__ inline void* program_port(const ObkProgram& program, uint64_t word) {
  const int port = (int)(word & 0xffffffffu);
  return program.ports ? program.ports[port] : program.inline_ports[port];
}
/* All threads (of a dataflow program: a warp), when the block is there: operands become
 * addresses. Seen after the next meeting. */
static __device__ inline void place_operands(const ObkProgram& program, uint64_t* block,
                                             char* smem_copies = nullptr) {
  const ObkWork* work = (const ObkWork*)block;
  uint64_t* operands = block + OBK_WORK_WORDS + work->params;
#pragma unroll 1
  for (int k = table_thread(); k < work->operands; k += kTableThreads) {
    const uint64_t word = operands[k];
    if (word & OBK_PORT) {
      operands[k] = (uint64_t)program_port(program, word);
    } else if (word & OBK_ARENA) {
      operands[k] = (uint64_t)(program.arena + (word & ~OBK_ARENA));
    } else if (kDataflow && (word & OBK_SMEM_COPY)) {
      operands[k] = (uint64_t)(smem_copies + (word & ~OBK_SMEM_COPY));
    }
  }
}
/* A warp, before the operands of the block are placed: its small weights to `soon`. (A prefetch to
 * L1 has no effect.) */
static __device__ inline void fetch_small(uint64_t* block, char* soon) {
  const ObkWork* work = (const ObkWork*)block;
  uint64_t* operands = block + OBK_WORK_WORDS + work->params;
  const int lane = threadIdx.x % 32, count = work->operands;
#pragma unroll 1
  for (int base = 0; base < count; base += 32) {
    const uint64_t word = base + lane < count ? operands[base + lane] : 0;
    const bool small = (word & (OBK_PORT | OBK_ARENA | OBK_SMEM_COPY | OBK_SOON)) == OBK_SOON;
#pragma unroll 1
    for (uint32_t all = __ballot_sync(0xffffffffu, small); all != 0; all &= all - 1) {
      const int k = __ffs(all) - 1;
      const uint64_t one = __shfl_sync(0xffffffffu, word, k);
      const char* const from = (const char*)(one & ((1ull << OBK_SOON_AT) - 1));
      const int bytes = (int)((one & ~OBK_SOON) >> OBK_SOON_AT) * 128;
      constexpr int kTogether = 4;
#pragma unroll 1
      for (int at = lane * 16; at < bytes; at += kTogether * 512) {
        uint4 x[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (at + i * 512 < bytes) x[i] = *(const uint4*)(from + at + i * 512);
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (at + i * 512 < bytes) *(uint4*)(soon + at + i * 512) = x[i];
      }
      if (lane == k) operands[base + k] = (uint64_t)soon;
      soon += bytes;
    }
  }
  __syncwarp();
}

/* The packed weights that a task streams. */
static __device__ inline WeightPages pages_of(const ObkTask* task) {
  const int groups = task->weight_bytes / task->weight_group, rows = (int)(task->r1 - task->r0);
  WeightPages pages = WeightPages::of_tile((const char*)task->weights, groups,
                                           task->weight_group / WeightPages::kAtomBytes);
  const int most = rows > 32 && rows <= 64 ? (int)kWgmmaColumns : gemm_pass_columns(rows);
  pages.groups = min(groups, most / 8);
  return pages;
}
/* All threads, after they met: the first pages of the weights that a task will stream. */
static __device__ inline void load_ahead(const ObkTask* task, int at_once = 1 << 30) {
  if (task->weight_bytes > 0) ring_load_ahead(pages_of(task), at_once);
}
/* What a tile may go on with: `task`, or null. Seen after the next meeting. */
static __device__ inline void tell_after(const ObkTask* task) {
  if (!kFewRows || threadIdx.x != 0) return;
  if (task && task->weight_bytes > 0)
    ring_after() = pages_of(task);
  else
    ring_after().chunks = 0;
}

/* 64 bytes by four threads, without waiting. */
static __device__ inline void fetch_task(const ObkTask* from, ObkTask* to) {
  const int k = table_thread();
  if (k < 4) copy16(shared_address((char*)to + 16 * k), (const char*)from + 16 * k);
}

static __device__ inline void stamp(const ObkProgram& program, int at, bool end) {
  if (!program.stamps || threadIdx.x != 0) return;
  if (end) {
    program.stamps[at].end = clock_nanos();
    program.stamps[at].sm = sm_id();
  } else {
    program.stamps[at].start = clock_nanos();
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

/* A kernel of one body: CTA b runs tasks b, b + CTAs, ... of its launch. Tasks are fetched two
 * ahead. kWaits: the body waits for the kernel before. */
template <Body body, bool kWaits = false>
static __device__ inline void run_tasks(const ObkProgram& program) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  __shared__ __align__(16) ObkTask tasks[4];
  const int step = gridDim.x, count = program.waves;
  int at = blockIdx.x;
  if (program.early) allow_next();
  uint64_t* block = (uint64_t*)(shared + program.block_at);
  fetch_task(program.tasks + at, &tasks[0]);
  if (at + step < count) fetch_task(program.tasks + at + step, &tasks[1]);
  fetch_block(program, program.block, block);
  copy16_commit();
  ObkLanes lanes = {};
  set_up(&lanes, program, shared, parts, at);
  if (threadIdx.x == 0) ring_state().dog.task = at;
  copy16_wait<0>();
  __syncthreads();
  load_ahead(&tasks[0]);
  tell_after(at + step < count ? &tasks[1] : nullptr);
  place_operands(program, block);
  __syncthreads();
  const ObkWork* work = (const ObkWork*)block;
  assign_lanes(&lanes, work);
  if (!kWaits || program.stamps) wait_for_previous(); /* a task's time does not hold the wait */
#pragma unroll 1
  for (int k = 0;; ++k) {
    const int next = at + step;
    if (next + step < count) fetch_task(program.tasks + next + step, &tasks[(k + 2) & 3]);
    copy16_commit();
    stamp(program, at, false);
    body(&tasks[k & 3], (const int64_t*)(block + OBK_WORK_WORDS),
         (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
    if (next >= count) break;
    copy16_wait<0>();
    __syncthreads(); /* the body's shared memory before the next */
    stamp(program, at, true);
    at = next;
    if (threadIdx.x == 0) ring_state().dog.task = at;
    load_ahead(&tasks[(k + 1) & 3]);
    tell_after(at + step < count ? &tasks[(k + 2) & 3] : nullptr);
    __syncthreads();
  }
  allow_next();
  ring_finish();
  if (program.stamps) __syncthreads();
  stamp(program, at, true);
}

}  // namespace obk

/* One CTA a multiprocessor is said, though several may run there: without it the assembler saves
 * registers, and of thirty loads that a thread could have under way it has three. */
#define OBK_KERNEL(name, body)                                                                   \
  extern "C" __global__ void __launch_bounds__(OBK_THREADS, 1) name(OBK_PARAMETER(ObkProgram)) { \
    obk::run_tasks<body>(OBK_RECORD(ObkProgram));                                                \
  }

/* The same for a body whose CTAs wait for each other, `gang` in a row: a cluster runs at once. */
#define OBK_CLUSTER_KERNEL(name, body, gang, waits)                                         \
  extern "C" __global__ void __cluster_dims__(gang, 1, 1) __launch_bounds__(OBK_THREADS, 1) \
      name(OBK_PARAMETER(ObkProgram)) {                                                     \
    obk::run_tasks<body, waits>(OBK_RECORD(ObkProgram));                                    \
  }

#ifdef OBK_DATAFLOW
#include "exec/dataflow.cuh"
#elif defined OBK_MONO
namespace obk {
/* The CTA's dynamic shared memory, and its places of four tasks, which copies reach: a test on a
 * core has those among the former. */
static __device__ __forceinline__ char* cta_memory() {
  extern __shared__ __align__(1024) char shared[];
  return shared;
}
#ifndef OBK_OWN_TASK_PLACES
static __device__ __forceinline__ ObkTask* task_places() {
  static __shared__ __align__(16) ObkTask tasks[4];
  return tasks;
}
#endif
}  // namespace obk

static __device__ __forceinline__ void obk_dispatch(int32_t body, const ObkTask* t,
                                                    const int64_t* p, void* const* x, ObkLanes* w);

extern "C" __global__ void __launch_bounds__(OBK_THREADS, 1)
    obk_program(OBK_PARAMETER(ObkProgram)) {
  const ObkProgram& program = OBK_RECORD(ObkProgram);
  char* const shared = obk::cta_memory();
  static __shared__ uint64_t parts[32];
  ObkTask* const tasks = obk::task_places();
  static __shared__ volatile int left; /* the wave that the CTA is in, once it knows: of few rows */
  if (obk::kFewRows && threadIdx.x == 0) left = 0;
  const int sm = blockIdx.x;
  ObkLanes lanes = {};
  obk::set_up(&lanes, program, shared, parts, sm);
  obk::GridBarrier barrier(program.counter, gridDim.x, program.watch, sm);
  const int last = program.first[sm + 1], end = program.waves - 1;
  int wave = 0, at = program.first[sm];
  /* Tasks are fetched two ahead and blocks one while the CTA waits for the others, and a body does
   * first what depends on no other task: after the barrier nothing is waited for but the operands.
   */
  auto task_at = [&](int task) { return &tasks[task & 3]; };
  auto block_at = [&](int task) {
    return (uint64_t*)(shared + program.block_at + (task & 1) * program.block_bytes);
  };
  auto go_to = [&](int next) {
#ifdef OBK_WATCHDOG
    if (threadIdx.x == 0) { /* before the waits below */
      barrier.dog().task = next;
      if (program.watch) ((volatile uint32_t*)(program.watch + 1))[sm] = (uint32_t)next + 1;
    }
#endif
    const int wanted = next < last ? (int)task_at(next)->wave : end;
    const bool arrives = wave < wanted;
    const bool streams = obk::kFewRows && next < last && task_at(next)->weight_bytes > 0;
    if (threadIdx.x < 32) { /* its release takes a while */
      if (arrives) barrier.arrive_after_sync();
    } else if (next < last) {
      if (next + 1 < last) obk::fetch_block(program, task_at(next + 1)->block, block_at(next + 1));
      if (next + 2 < last) obk::fetch_task(program.tasks + next + 2, task_at(next + 2));
      obk::copy16_commit();
      obk::place_operands(program, block_at(next));
    }
    if (next < last) {
      if (streams || !obk::kFewRows)
        obk::load_ahead(task_at(next), arrives ? obk::kPacedPages : 1 << 30);
      else if (next + 1 < last)
        obk::load_ahead(task_at(next + 1), obk::kEarlyPages);
      const bool goes_on = streams && next + 1 < last && (int)task_at(next + 1)->wave == wanted;
      obk::tell_after(goes_on ? task_at(next + 1) : nullptr);
    }
    bool waits = arrives; /* still */
    if (arrives && obk::kFewRows) {
      for (waits = false;;) {
        if (streams && obk::issues_loads()) obk::ring_follow(&left, wave + 1);
        barrier.wait(&left, ++wave);
        if (wave == wanted) break;
        barrier.arrive_idle();
      }
    } else if (arrives) {
      while (++wave < wanted) barrier.wait(), barrier.arrive();
    }
    obk::WaveGate& gate = obk::wave_gate();
    if (threadIdx.x == 0) {
      gate.want = barrier.wanted(), gate.waits = waits, gate.dog.task = next;
      gate.begun = program.stamps && next < last ? &program.stamps[next].start : nullptr;
      barrier.dog().task = obk::ring_state().dog.task = next;
    }
    __syncthreads();
  };
  if (threadIdx.x == 0) {
    obk::wave_gate().counter = program.counter,
    obk::wave_gate().dog = {program.watch, (uint32_t)sm, 0, 0};
    obk::start_rows();
  }
  const bool fetches = threadIdx.x >= 32;
  if (fetches && at < last) obk::fetch_task(program.tasks + at, task_at(at));
  if (fetches && at + 1 < last) obk::fetch_task(program.tasks + at + 1, task_at(at + 1));
  obk::copy16_commit();
  obk::copy16_wait<0>();
  __syncthreads();
  if (fetches && at < last) obk::fetch_block(program, task_at(at)->block, block_at(at));
  obk::copy16_commit();
  obk::copy16_wait<0>();
  __syncthreads();
  go_to(at);
  for (; at < last; ++at) {
    const ObkTask* task = task_at(at);
    const uint64_t* block = block_at(at);
    const ObkWork* work = (const ObkWork*)block;
    obk::assign_lanes(&lanes, work);
    obk_dispatch(work->body, task, (const int64_t*)(block + OBK_WORK_WORDS),
                 (void* const*)(block + OBK_WORK_WORDS + work->params), &lanes);
    obk::copy16_wait<0>();
    __syncthreads(); /* the body's stores before the signal; its shared memory before the next */
    obk::stamp(program, at, true);
    go_to(at + 1);
  }
  obk::begin_wave(); /* the last wave's end */
  obk::ring_finish();
}
#endif

#endif

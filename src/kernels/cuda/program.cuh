/* kernels/cuda/program.cuh — one kernel that runs a whole program: each CTA its own list of tasks,
 * a barrier between waves.
 *
 * Host and device lay out ObkProgram alike. The emitted text includes this, then the bodies, then
 * defines obk_dispatch. */
#ifndef OBK_PROGRAM_CUH
#define OBK_PROGRAM_CUH

#include "barrier.cuh"
#include "dialect.cuh"

/* One work: its body, and where its parameters and operands begin. */
struct ObkWork {
  int32_t body, params, operands, spare;
};

/* The kernel's only parameter. */
struct ObkProgram {
  const ObkTask* tasks;
  const int32_t* first; /* SM s runs tasks first[s] .. first[s + 1] */
  const ObkWork* works;
  const int64_t* params;
  void* const* operands;
  uint64_t* counter;     /* the barrier's, this instance's own */
  ObkWatch* watch;       /* memory of the host, or null */
  uint64_t* times;       /* [wave][sm] nanoseconds at which the SM enters the wave, or null */
  int32_t waves, groups; /* groups of lanes that have room for their staged rows */
  int64_t scratch;       /* bytes of a group */
};

#ifndef OBK_THREADS
#define OBK_THREADS 256
#endif

static __device__ void obk_dispatch(int32_t body, const ObkTask* t, const int64_t* p,
                                    void* const* x, ObkLanes* w);

namespace obk {

/* Rows to warps, or, when there are fewer rows than groups and they are long, each row to the whole
 * CTA. */
static __device__ inline void deal(ObkLanes* w, const ObkTask* t, int groups, int64_t scratch) {
  const bool whole = groups == 1 || ((t->r1 - t->r0) * 2 <= groups && t->c1 - t->c0 >= 4 * 32);
  w->lanes = whole ? (int)blockDim.x : 32;
  w->lane = whole ? (int)threadIdx.x : (int)(threadIdx.x % 32);
  w->groups = whole ? 1 : groups;
  w->group = whole              ? 0
             : w->warp < groups ? w->warp
                                : 1 << 30; /* a group without a place gets no row */
  w->stage = (char*)w->scratch + (w->group < w->groups ? w->group * scratch : 0);
}

}  // namespace obk

extern "C" __global__ void __launch_bounds__(OBK_THREADS, 1) obk_program(const ObkProgram program) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t parts[32];
  const int sm = blockIdx.x;
  ObkLanes lanes = {};
  lanes.scratch = shared;
  lanes.scratch_bytes = program.scratch * program.groups;
  lanes.sm = sm, lanes.sms = (int)gridDim.x;
  lanes.warp = threadIdx.x / 32, lanes.warps = blockDim.x / 32;
  lanes.parts = parts;
  obk::GridBarrier barrier(program.counter, gridDim.x, program.watch, sm);
  int wave = 0;
  auto stamp = [&] {
    if (program.times && threadIdx.x == 0)
      program.times[(int64_t)wave * gridDim.x + sm] = obk::clock_nanos();
  };
  auto go_to = [&](int next) {
    for (; wave < next; ++wave, stamp()) barrier.arrive(), barrier.wait();
  };
  stamp();
  const int last = program.first[sm + 1];
  for (int at = program.first[sm]; at < last; ++at) {
    const ObkTask* task = program.tasks + at;
    barrier.dog().task = at;
    go_to((int)task->wave);
    const ObkWork work = program.works[task->work];
    obk::deal(&lanes, task, program.groups, program.scratch);
    obk_dispatch(work.body, task, program.params + work.params, program.operands + work.operands,
                 &lanes);
    __syncthreads(); /* the next task uses the same shared memory */
  }
  go_to(program.waves - 1);
}

#endif

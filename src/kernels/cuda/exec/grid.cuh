/* kernels/cuda/exec/grid.cuh — one group as a kernel launched as a grid: no task table, a CTA
 * derives its tile and operands from blockIdx and the kernel's parameter (ObkGrid, layout.h).
 *
 *   OBK_GRID_KERNEL(k, body, ctas_per_sm, waits)    an entry
 *
 *     ctas_per_sm    CTAs that an SM has room for: while one waits for loads, others compute
 *     waits          the body itself waits for the kernel before (OBK_WAIT_FOR_PREVIOUS)
 *
 * Tiles are scheduled dynamically, by the hardware: the next CTA starts on the SM that is free.
 * Also used for kernels whose tasks are rectangles in order (stitched bodies, depthwise
 * convolutions, attention of no more tasks than SMs): no table fetch, earlier start. */
#ifndef OBK_GRID_CUH
#define OBK_GRID_CUH

#include "exec/program.cuh"

namespace obk {

/* What a body knows of its CTA. */
static __device__ __forceinline__ void set_up_grid(ObkLanes* w, char* shared, int64_t bytes,
                                                   uint64_t* parts) {
  w->scratch = shared, w->scratch_bytes = bytes;
  w->sm = (int)blockIdx.x, w->sms = (int)gridDim.x;
  w->warp = threadIdx.x / 32, w->warps = OBK_THREADS / 32;
  w->parts = parts;
  assign_warps(w);
}

template <Body body, bool kWaits>
static __device__ __forceinline__ void run_grid(const ObkGrid& grid) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  if (grid.early) allow_next();
  const int at = (int)blockIdx.x, down = at / grid.across;
  const int row = down * grid.tile_rows, column = (at - down * grid.across) * grid.tile_columns;
  ObkTask task = {};
  task.r0 = row, task.r1 = min(row + grid.tile_rows, grid.rows);
  task.c0 = column, task.c1 = min(column + grid.tile_columns, grid.columns);
  ObkLanes lanes = {};
  set_up_grid(&lanes, shared, grid.scratch_bytes, parts);
  if (!kWaits || grid.stamps) wait_for_previous(); /* a task's time does not hold the wait */
#ifdef OBK_WATCHDOG
  if (threadIdx.x == 0) ring_state().dog = {grid.watch, blockIdx.x, (uint32_t)at, 0};
  __syncthreads();
#endif
  ObkProgram stamped = {};
  stamped.stamps = grid.stamps;
  stamp(stamped, at, false);
  body(&task, nullptr, grid.operands, &lanes);
  allow_next();
  if (grid.stamps) __syncthreads();
  stamp(stamped, at, true);
}

}  // namespace obk

#define OBK_WAIT_FOR_PREVIOUS() obk::wait_for_previous()
#define OBK_GRID_KERNEL(name, body, ctas_per_sm, waits)                  \
  extern "C" __global__ void __launch_bounds__(OBK_THREADS, ctas_per_sm) \
      name(OBK_PARAMETER(ObkGrid)) {                                     \
    obk::run_grid<body, waits>(OBK_RECORD(ObkGrid));                     \
  }

#endif

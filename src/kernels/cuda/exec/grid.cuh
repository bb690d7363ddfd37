/* kernels/cuda/exec/grid.cuh — a kernel of one long work, whose many small tasks the hardware deals
 * to whatever multiprocessor is free. Several CTAs share one: while one waits, others compute.
 *
 *   OBK_GRID_KERNEL(k, body, residents, waits)   an entry; `ctas_per_sm` CTAs fit an SM at once;
 *                            waits: the body itself waits for the kernel before
 * (OBK_WAIT_FOR_PREVIOUS)
 *
 * So is attention of no more tasks than multiprocessors, each of which has one to itself: it begins
 * sooner without a table.
 *
 * CTA b runs rectangle b of the work's rows and columns. There is no table: rectangle and operands
 * follow from the kernel's parameter alone, so that a CTA's first loads are those of its rows.
 *
 * ObkGrid, the kernel's parameter, stands in layout.h. */
#ifndef OBK_GRID_CUH
#define OBK_GRID_CUH

#include "exec/program.cuh"

namespace obk {

template <Body body, bool kWaits>
static __device__ __forceinline__ void run_grid(const ObkGrid& grid) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t parts[32];
  allow_next();
  const int at = (int)blockIdx.x, down = at / grid.across;
  const int row = down * grid.tile_rows, column = (at - down * grid.across) * grid.tile_columns;
  ObkTask task = {};
  task.r0 = row, task.r1 = min(row + grid.tile_rows, grid.rows);
  task.c0 = column, task.c1 = min(column + grid.tile_columns, grid.columns);
  ObkLanes lanes = {};
  lanes.scratch = shared, lanes.scratch_bytes = grid.scratch_bytes;
  lanes.sm = at, lanes.sms = (int)gridDim.x;
  lanes.warp = threadIdx.x / 32, lanes.warps = OBK_THREADS / 32;
  lanes.parts = parts;
  if (!kWaits || grid.stamps) wait_for_previous(); /* a task's time does not hold the wait */
#ifdef OBK_WATCHDOG
  if (threadIdx.x == 0) ring_state().dog = {grid.watch, blockIdx.x, (uint32_t)at, 0};
  __syncthreads();
#endif
  ObkProgram stamped = {};
  stamped.stamps = grid.stamps;
  stamp(stamped, at, false);
  body(&task, nullptr, grid.operands, &lanes);
  if (grid.stamps) __syncthreads();
  stamp(stamped, at, true);
}

}  // namespace obk

#define OBK_WAIT_FOR_PREVIOUS() obk::wait_for_previous()
#define OBK_GRID_KERNEL(name, body, ctas_per_sm, waits)                  \
  extern "C" __global__ void __launch_bounds__(OBK_THREADS, ctas_per_sm) \
      name(const __grid_constant__ ObkGrid grid) {                       \
    obk::run_grid<body, waits>(grid);                                    \
  }

#endif

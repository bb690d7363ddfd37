/* kernels/cuda/exec/barrier.cuh — the barrier of all CTAs of one kernel, in two halves, and the
 * clock that guards every spin.
 *
 *   GridBarrier barrier(counter, ctas, watch, sm);
 *   barrier.arrive();    after the CTA's stores; waits for no other CTA. Bulk copies issued right
 *                        after it stay in flight
 *   barrier.wait();      returns when every CTA has arrived; their stores are then visible to the
 *                        whole CTA
 *
 * One 64-bit counter per instance of a program, zero when the instance is made, that only grows: no
 * reset between runs. A run finds the count at which it starts by rounding what it reads down to a
 * multiple of the CTAs: until this CTA has arrived once, no more than one barrier's arrivals can
 * lie above it. After a run that ended early the owner sets the counter to zero. Several instances
 * run side by side with a counter each. The CTAs must all be resident: a cooperative launch.
 *
 * A release waits for every copy in flight on its SM, so issue loads of weights right after
 * arrive(), by the thread that signals. A CTA that has neither stored nor loaded what others share
 * since it left the barrier before has nothing to order: arrive_idle() adds its one relaxed, and
 * waits for no copy. A CTA that then acquires the count still sees what the releases before it
 * published: each adds to what it read, so that an acquire which reads the last sum stands behind
 * all of them (the chain of read-modify-writes of PTX's observation order), the idle CTA's own last
 * release among them.
 *
 * With OBK_WATCHDOG, a number of clocks, a spin that lasts longer writes what it waits for and
 * traps. */
#ifndef OBK_BARRIER_CUH
#define OBK_BARRIER_CUH

#ifndef OBK_DEVICE_POINTER
#define OBK_DEVICE_POINTER(type) type*
#endif
#include "core/ptx.cuh"
#include "exec/layout.h"

namespace obk {

/* The kernels of a graph overlap (programmatic dependent launch): the next may start once every CTA
 * has allowed it or has ended, and reads only after this one has ended and its stores are seen. A
 * CTA allows it when its tile is computed, or, if its record says `early`, when it begins; of a
 * pipelined GEMM, when its first rows are requested. The later calls count for nothing then. */
#ifndef OBK_OWN_KERNEL_ORDER /* a test on the host has its own */
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
#endif

#ifdef OBK_DATAFLOW
/* The task that runs, -1 before the first: warps go their own ways, and some look while it changes.
 */
OBK_DEVICE volatile int& task_now() {
  static __shared__ volatile int now;
  return now;
}
#endif
static constexpr uint32_t kTaskNow =
    0xffffffffu; /* as a Watchdog's task: whichever runs when it reports */

struct Watchdog {
  ObkWatch* watch;
  uint32_t sm, task;
  int64_t since;

  __device__ void start() {
#ifdef OBK_WATCHDOG
    since = clock_cycles();
#endif
  }
  /* Of a wait that ends when another one of this CTA's does: that one is to be reported, so its
   * time is up first. */
  __device__ void start_late() {
#ifdef OBK_WATCHDOG
    since = clock_cycles() + (int64_t)(OBK_WATCHDOG);
#endif
  }
  __device__ void check(uint32_t kind, uint64_t counter, uint64_t want, uint64_t have) {
#ifdef OBK_WATCHDOG
    if (clock_cycles() - since < (int64_t)(OBK_WATCHDOG)) return;
    if (watch) {
      if (atomicCAS_system(&watch->hit, 0u, 1u) != 0u)
        return start(); /* who came first writes, and traps: not before it has */
      volatile ObkWatch* out = watch;
      out->sm = sm, out->task = task, out->kind = kind;
#ifdef OBK_DATAFLOW
      if (task == kTaskNow) out->task = task_now();
#elif defined OBK_MONO
      volatile uint32_t* const tasks = (volatile uint32_t*)(watch + 1);
      for (unsigned k = 0; kind == 1 && k < gridDim.x; ++k) tasks[gridDim.x + k] = tasks[k];
#endif
      out->counter = counter, out->want = want, out->have = have;
      __threadfence_system();
    }
    __trap();
#else
    (void)kind, (void)counter, (void)want, (void)have;
#endif
  }
};

class GridBarrier {
 public:
  __device__ GridBarrier(uint64_t* counter, uint32_t ctas, ObkWatch* watch, uint32_t sm)
      : counter_(counter), ctas_(ctas), dog_{watch, sm, 0, 0} {
    const uint64_t seen = threadIdx.x == 0 ? poll_relaxed(counter) : 0;
    want_ = seen - seen % ctas;
  }
  __device__ void arrive() {
    __syncthreads();
    arrive_after_sync();
  }
  /* For a caller whose threads have met already. */
  __device__ void arrive_after_sync() {
    want_ += ctas_;
    if (threadIdx.x == 0) arrive_release(counter_);
  }
  /* For a CTA that did nothing since it left the barrier before. */
  __device__ void arrive_idle() {
    want_ += ctas_;
    if (threadIdx.x == 0) arrive_relaxed(counter_);
  }
  __device__ void wait() {
    if (threadIdx.x == 0) {
      dog_.start();
      for (uint64_t have; (have = poll_acquire(counter_)) < want_;)
        dog_.check(1, (uint64_t)counter_, want_, have);
    }
    __syncthreads();
  }
  /* The same; `left`, of the CTA's shared memory, becomes `wave` as soon as thread 0 knows. */
  __device__ void wait(volatile int* left, int wave) {
    if (threadIdx.x == 0) {
      dog_.start();
      for (uint64_t have; (have = poll_acquire(counter_)) < want_;)
        dog_.check(1, (uint64_t)counter_, want_, have);
      *left = wave;
    }
    __syncthreads();
  }
  /* What the count becomes; of thread 0. */
  __device__ uint64_t wanted() const { return want_; }
  __device__ Watchdog& dog() { return dog_; }

 private:
  uint64_t* counter_;
  uint32_t ctas_;
  uint64_t want_ = 0; /* thread 0's alone */
  Watchdog dog_;
};

}  // namespace obk

#endif

/// machine/costs.h — what the cost models of the compiler take from a machine, beside the rates in
/// Machine: fitted once, used to choose and to predict. Values with their sources: costs_cuda.h,
/// costs_cpu.h. A unit that is not named is nanoseconds.
#pragma once

namespace obelisk::machine {

struct Costs {
  // What a task, a phase, a kernel takes beside its work.
  double task = 0;              // any task, whatever it holds
  double phase = 0;             // a phase more, as a network exposes it
  double pipelined_begin = 0;   // a pipelined GEMM's kernel until its first operands are there
  double grid_begin = 0;        // a grid of tiles until the first one multiplies
  double split_k_exchange = 0;  // partial sums of a split-K GEMM go to who adds them
  double gemm_task = 0;         // a GEMM's task where the machine's rates price its tiles
  double graph_node = 0;        // in a graph with lanes: from a kernel's end to a dependent's start
  double graph_edge = 0;        // in a graph: of each edge
  // How far a roof is from what is measured, a ratio each.
  double loop_over_roof = 1;       // elementwise bodies, which wait for their loads
  double reduction_over_roof = 1;  // bodies with a reduction
  double alone_over_tile = 1;      // a tile that has a worker for itself, beside its tile's cost
  double block_over_roof = 1;      // blocks (sort, scan, scatter), which walk elements one by one
  double cache_over_memory = 1;    // how much quicker rows come that many tasks share
  // A batch of rows that threads reduce at once, neighbours taking neighbouring rows.
  double batch_begin = 0;
  double batch_column = 0;  // for each column of the reduction: of windows, each with its bounds
  double batch_slice = 0;   // for each column of a thread where threads share a long reduction
  // Sizes that were fitted.
  double grid_task_bytes = 0;  // bytes that a task of a memory-bound grid moves
};

/// What the hardware does at most, a worker's share each: floors come from these and from nothing
/// that was fitted.
struct Peaks {
  double tensor_16 = 0, tensor_tf32 = 0;  // flops a ns on tensor cores; 0: none
  double f32 = 0, f64 = 0;                // flops a ns, multiply-adds count two
  double cache_bytes = 0;                 // bytes a ns from the last cache
  double memory_bytes = 0;                // bytes a ns from memory
  double cache_capacity = 0;              // bytes of the last cache, of the whole machine
};

}  // namespace obelisk::machine

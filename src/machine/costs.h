/// machine/costs.h — what the cost models of the compiler take from a machine, beside the rates in
/// Machine: fitted once, used to choose and to predict. Values with their sources: costs_cuda.h,
/// costs_cpu.h. A unit that is not named is nanoseconds. `thresholds`: bounds of choices, the same
/// for every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace obelisk::machine {

/// All steps of a recurrent layer as one block (ops/block.cpp). R, the recurrent weights, lies in
/// registers as far as they suffice; the rest is read again each step.
struct RecurrenceCosts {
  double begin = 0;                 // of the block
  double step = 0;                  // of a step beside its products, where one member runs it
  double exchange_step = 0;         // the same where the members of a gang exchange the state
  double register_16 = 0;           // of a register of R in 16 bits, in each step
  double register_32 = 0;           // in 32 bits, for each sequence
  double register_read_again = 0;   // of a register that has no place, in each step
  int64_t most_registers = 0;       // of R in a member's thread; with more, ops step by step are
                                    // quicker
  double multiply_adds_a_nano = 0;  // of a worker that is one thread
};

/// A squeeze-and-excitation block by a cluster (ops/block.cpp).
struct ExciteCosts {
  double begin = 0;   // of the block: its loads' latency, three joins, an exchange
  double vector = 0;  // of a vector of a thread, that is loaded, multiplied and stored
  double weight = 0;  // of a vector of the weights of a member
  double apart = 0;   // of each of the four kernels that it is instead of, beside their bytes
};

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
  RecurrenceCosts recurrence;
  ExciteCosts excite;
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

/// Chosen, not measured: each keeps a choice from costing more than it can gain, on any machine.
namespace thresholds {
// passes
inline constexpr int64_t kEarlyElements = 16384;  // of a concatenation's early pieces, that a copy
                                                  // of their own is worth
inline constexpr int64_t kManyRows = 512;         // of a product whose tiles fill all workers
inline constexpr int64_t kWastedTaps = 4;  // taps of zero for each tap of a transposed convolution
// stitch
inline constexpr double kComputedAgain = 16384;      // elements that readers compute again, so that
inline constexpr double kComputedAgainShare = 0.05;  // a value need not be stored; of its elements
inline constexpr size_t kMostReadsLeft = 6;          // reads, and nodes of the expression, of what
inline constexpr int kMostExprsLeft = 48;            // readers compute
inline constexpr int64_t kWidenedElements = 65536;   // of a group of fewer rows than workers, that
                                                     // takes its reader's columns
// schedule
inline constexpr int kWavesAhead = 12;         // waves that a copy may wait in memory
inline constexpr double kAsLong = 1;           // ns that two waves may differ in and count as equal
inline constexpr double kAsIdle = 0.01;        // the same, as a share of a wave
inline constexpr int64_t kTaskColumns = 4;     // what a dataflow GEMM's task costs beside its
                                               // weights, in columns of weights
inline constexpr double kAsUrgent = 0.9;       // of the longest remaining path: as urgent as it
inline constexpr size_t kMostUrgent = 16;      // kernels that are compared
inline constexpr double kLongerApart = 1.05;   // of a wave whose classes have disjoint workers
inline constexpr double kWorthLeaving = 0.99;  // of the time of the plainest dispatch
// Chosen, not measured: kernels run one after another where that takes less than this part of their
// time side by side; a batch of GEMMs is two kernels where these take less than this part of one; a
// convolution's groups are merged where that takes less than this part.
inline constexpr double kWorthTurns = 0.95, kWorthSplitting = 0.95, kWorthMergingGroups = 0.8;
inline constexpr double kLongerForMemory = 1.02;  // of the longest path: what sharing bytes may
                                                  // make of it
// Limits of an arena, by the sequential plan's bytes: each is tried when the one before it would
// lengthen the longest path by more. A schedule's live bytes are bounded by a part of the limit,
// for packing wastes some. The first is the goal; the others are steps, not fitted.
inline constexpr double kMoreMemory[] = {1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3};
inline constexpr double kPackedParts[] = {0.8, 0.85, 0.9, 0.95, 1};
inline constexpr int kPackings = 120;  // tried for one schedule
inline constexpr int kTurns = 6;       // packings after which gaps half as long count as enough
inline constexpr size_t kMostOrdered = 4096;  // buffers; of more only the DAG keeps bytes apart
inline constexpr int64_t kMostBroadcast = 32 << 10;  // bytes of a value that a dataflow program
                                                     // passes on
inline constexpr int64_t kMostCopies = 64 << 10;     // bytes of all such copies of a worker
inline constexpr int64_t kMostDataflowArena = 256 << 20;  // bytes: nothing of it is written twice
inline constexpr int64_t kMostReplicated = 64 << 10;      // elements of a work that each worker
                                                          // computes for itself
// runtime/cuda
// Pages of weights on their way to an SM that waits: all that one token wants of most layers.
inline constexpr int64_t kMostRingPages = 8, kMostDataflowRingPages = 12;
inline constexpr int64_t kMostSoon = 8192;            // bytes of a task's small weights that are
                                                      // copied ahead
inline constexpr int64_t kMostPrefetched = 12 << 20;  // bytes of the next GEMM's weights that one
                                                      // brings to L2: a quarter of an H200's
inline constexpr size_t kFewInlined = 16;             // bodies of one kernel that are all inlined
inline constexpr size_t kMostInlined = 8;             // else so many products' are
inline constexpr int64_t kFewStreamedRows = 8;        // rows of a token: such a program streams
inline constexpr int64_t kManyStreamed = int64_t{64} << 20;  // bytes, more than stay near from run
                                                             // to run
inline constexpr size_t kBodiesOfPart = 3, kMostParts = 16;  // compiled side by side
// fit
// Chosen, not measured: a reduction is made of parts where these take less than this part of it.
inline constexpr double kWorthParts = 0.67;
inline constexpr int64_t kLanesOfWorker = 64;  // columns of a reduction that a worker takes at once
inline constexpr int64_t kFewestLanes = 8;     // neighbouring rows that threads reduce side by side
}  // namespace thresholds

}  // namespace obelisk::machine

/// machine/costs_cpu.h — every number of the cost models that is of a CPU, with its unit and the
/// key of the measurement behind it: a file under bench/results and a name in it.
#pragma once

#include "machine/costs.h"

namespace obelisk::machine::cpu_costs {

// Not measured: estimates. A core with AVX-512 near 2.5 GHz.
inline constexpr double kBarrierNanos = 400;  // two threads that spin on one line
inline constexpr double kFlops = 80;          // a ns, f32
inline constexpr double kBytes = 8;           // a ns from memory, of one core
inline constexpr double kSmallestTaskNanos = 1500;

// How many threads pay (runtime/cpu). Not measured: estimates, of two threads on a machine that
// does other things too.
inline constexpr double kHandOverNanos = 6000;     // a run's start on other threads
inline constexpr double kBusyBarrierNanos = 1000;  // a wave's barrier there

// Not measured on a CPU: estimates.
inline constexpr Costs kCosts = {
    .task = 700,
    .gemm_task = 300,
    // cpu_dispatch.json, alone: the least times of towers_b1 differ by 139 ns a work. Three to four
    // times that, an estimate: beside other programs runs of such works scatter.
    .graph_node = 500,
    .block_over_roof = 16,  // about the lanes of a vector
    .cache_over_memory = 4,
    .recurrence = {.multiply_adds_a_nano = 10},
};

// What a core does at most, by its data sheet: two units of 512 bits at 3.5 GHz, AMX for 16 bits.
// Caches keep what a run needs, so that bytes never come from further than the nearest one.
inline constexpr Peaks kPeaks = {.tensor_16 = 7168,
                                 .tensor_tf32 = 224,
                                 .f32 = 224,
                                 .f64 = 112,
                                 .cache_bytes = 224,
                                 .memory_bytes = 224,
                                 .cache_capacity = 0};

}  // namespace obelisk::machine::cpu_costs

/// schedule/dataflow.h — programs without barriers: a worker waits for the values that it reads,
/// never for all other workers.
///
/// At decode batch sizes activations are tiny: broadcasting or recomputing them is cheaper than a
/// grid barrier, whose release also drains every weight load in flight. So each worker keeps copies
/// of intermediate values in its scratchpad memory:
///
///   broadcast    values whose parts several workers compute go to all of them, in words that carry
///                their own ready flag
///   replicated   cheap works are computed by every worker that reads them, and only the part it
///                reads: a norm, one head's rotation, its part of a copy
///
/// and large values are written only by the workers that read them. Weights are loaded ahead
/// through the whole program (kernels/README.md).
///
/// Sources: the all-gather with flags in the data of NCCL's low-latency protocol; MonoNN §4.4 for
/// the waves, which stay the order of every list: a task waits only for tasks of earlier waves, so
/// that there is no deadlock.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Turns a table into one without barriers where every work of it can be computed so; else leaves
/// it as it is. Which programs: products of up to 8 rows of 16-bit numbers with constant weights,
/// attention with KV splits, bodies without tiles; all intermediate values small; no output
/// of the program read inside it.
bool try_dataflow(const stitch::Plan& plan, const machine::Machine& machine,
                  const machine::Strategy& strategy, TaskGraph& tasks);

}  // namespace obelisk::schedule

/// schedule/dataflow.h — programs without barriers: a worker waits for the values that it reads,
/// never for all other workers.
///
/// Few rows are little to send and little to compute twice. A barrier would cost such a program
/// more than all that its works wait for, and weights would have to stop at each: what signals it
/// waits for every copy in flight on its SM. So each worker has copies of its own, in its fast
/// memory, of what is passed on:
///
///   given   what several workers compute in parts goes to all of them, in words that carry their
///   own readiness own     what is cheap is computed by every worker that reads it, and only what
///   it reads: a norm, one head's rotation, its piece of a copy
///
/// and what is large is written only by the workers that read it. Weights then flow through the
/// whole program (kernels/README.md).
///
/// Sources: the all-gather with flags in the data of NCCL's low-latency protocol; MonoNN §4.4 for
/// the waves, which stay the order of every list: who waits in a wave waits for earlier ones, so
/// that nobody waits for ever.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Turns a table into one without barriers where every work of it can be computed so; else leaves
/// it as it is. Which programs: products of up to 8 rows of 16-bit numbers with constant weights,
/// attention whose keys are in pieces, bodies without tiles; all that is passed on small; no output
/// of the program read inside it.
bool try_dataflow(const stitch::Plan& plan, const machine::Machine& machine,
                  const machine::Strategy& strategy, TaskGraph& tasks);

}  // namespace obelisk::schedule

/// schedule/flow.h — programs without barriers: a worker waits for the values that it reads, never
/// for all other workers.
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

/// Products of few rows in tiles that take their weights as they come, all alike: where the cut for
/// time alone has others.
void cut_to_flow(const stitch::Plan& plan, const machine::Machine& device, TaskGraph& tasks);

/// Turns a table into one without barriers where every work of it can be computed so; else leaves
/// it as it is. Which programs: products of up to 8 rows of 16-bit numbers with constant weights,
/// attention whose keys are in pieces, bodies without tiles; all that is passed on small; no output
/// of the program read inside it.
bool let_flow(const stitch::Plan& plan, const machine::Machine& machine,
              const machine::Strategy& strategy, TaskGraph& tasks);

/// Elements [low, high) of a buffer.
struct Span {
  int64_t low = 0, high = 0;
  bool empty() const { return low >= high; }
  void join(const Span& other);
  bool operator==(const Span&) const = default;
};

/// The offset of a row's first element, by an affine access.
int64_t row_offset(const Nest& nest, const Access& access, int64_t row);

/// What a task reads of operand `slot` of its work, at most; of a buffer that it does not read,
/// nothing.
Span read_by(const stitch::Plan& plan, const TaskGraph& tasks, const ObkTask& task, size_t slot);

/// What the body's stores write of buffer `buffer` in row `row`: columns [c0, c1).
Span written_in_row(const stitch::Plan& plan, const TaskGraph& tasks, const Work& work, int buffer,
                    int64_t row, int64_t c0, int64_t c1);

/// Of a table that flows: whatever a worker reads was given, or computed by itself before. Errors:
/// kBuild.
Status validate_flow(const stitch::Plan& plan, const TaskGraph& tasks);

}  // namespace obelisk::schedule

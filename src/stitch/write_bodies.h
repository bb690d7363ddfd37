/// stitch/write_bodies.h — a finished group becomes a body: its domain ordered for memory, its
/// steps, what is staged.
///
///   in   Draft: members with expressions         x ─ max ─ exp(x - max) ─ sum ─ exp(..)/sum
///   out  Body                                     reduce max x · stage e = exp(x - max) · reduce
///   sum e · store e / sum
///
/// Coordinates are ordered by the strides of what the body stores, so that its innermost loop is
/// contiguous. A value that costs a transcendental and is used in two passes over the row is staged
/// in shared memory (regional). One that does not fit is returned, and goes through global memory
/// instead: plan() forms the groups again.
///
/// Stands   after form_groups; before schedule, which distributes rows over workers.
/// Paper    AStitch §3.3 adaptive thread mapping, §4.3 step 2, §4.4 memory.
/// Errors   none.    Cost  O(expressions).
#pragma once

#include "stitch/form_groups.h"

namespace obelisk::stitch {

/// Which members of a draft must reach memory: graph outputs, what others read, what has no other
/// way.
std::vector<ValueId> stored_members(const Graph& graph, const Views& views,
                                    const Grouping& grouping, const Draft& draft);

/// Completes draft.group.body. Returns a node whose row ought to be staged and has no place, kNone
/// where all have one.
NodeId write_body(const Graph& graph, const Views& views, const Grouping& grouping,
                  const machine::Machine& device, Draft& draft);

}  // namespace obelisk::stitch

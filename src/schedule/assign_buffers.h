/// schedule/assign_buffers.h — which buffers works read and write, and where in the arena those lie
/// that waves keep apart.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Needs the works' waves, which decide how long a buffer lives.
void assign_buffers(const Graph& graph, const stitch::Plan& plan, TaskGraph& tasks);

}  // namespace obelisk::schedule

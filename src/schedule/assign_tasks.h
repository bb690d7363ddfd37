/// schedule/assign_tasks.h — which worker runs which task, and in which order.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Assigns the tasks of each wave to workers: longest first, to the worker that is free first;
/// lists keep the order of works. In pairs: a GEMM's tiles with the same columns lie side by side,
/// on workers 2k and 2k + 1, neighbours on a GPU: what both load at the same time is fetched once.
void assign_tasks(const stitch::Plan& plan, int workers, bool in_pairs, TaskGraph& tasks);

}  // namespace obelisk::schedule

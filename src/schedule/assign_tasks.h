/// schedule/assign_tasks.h — which worker runs which task, and in which order.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Deals the tasks of each wave to workers: longest first, to whoever is free first; lists keep the
/// order of works. In pairs: a product's tiles with the same columns lie side by side, on workers
/// 2k and 2k + 1, neighbours on a GPU: what both ask for in one moment is brought once (H200,
/// BERT-base of ten layers as one kernel: 231.9 to 224.1 us).
void assign_tasks(const stitch::Plan& plan, int workers, bool in_pairs, TaskGraph& tasks);

}  // namespace obelisk::schedule

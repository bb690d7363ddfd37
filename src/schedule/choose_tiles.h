/// schedule/choose_tiles.h — which of the ways to tile each work takes (tile_*.h), and for how many
/// workers.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// Rows and columns of a task, so that each worker has a few and none is too small to be worth a
/// record, `waits` times what its roof says. On GPUs one: a task's beginning and end cost more than
/// an uneven share.
void cut_work(const stitch::Plan& plan, const Cutting& cut, const TaskGraph& tasks, Work& work,
              double waits = 1);

/// Every work is cut for all workers; where a GPU's wave has several, each is then cut again for
/// its share of them, so that together they fill the workers once.
void cut_tiles(const stitch::Plan& plan, const Cutting& cut, TaskGraph& tasks);

}  // namespace obelisk::schedule

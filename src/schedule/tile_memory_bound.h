/// schedule/tile_memory_bound.h — how long elementwise works, reductions and copies are tiled.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// Whether something is read along the rows, as in a transposition: whole squares are transposed
/// at once.
bool transposes(const Nest& nest);

/// A long work as a grid (a kernel of its own): small tasks that are scheduled dynamically, several
/// a worker at once, of about `Costs::grid_task_bytes`: a long row, a square of a transposition,
/// two packs of each thread. Workers are not equally fast, so equal shares assigned beforehand take
/// longer (h200_memory.json). False: it is short, or no such work.
bool cut_to_grid(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                 Work& work);

/// One node that reads one value, which no group has made, at plain places, and stores it.
bool is_copy(const stitch::Group& group, const Work& work);

}  // namespace obelisk::schedule

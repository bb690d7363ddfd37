/// schedule/assign_waves.h — in which wave each work runs.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// A work's wave is the longest chain of works before it: works of one wave are independent and
/// share a barrier (MonoNN §4.4). `one_by_one`: each work has a wave of its own.
void assign_waves(const stitch::Plan& plan, bool one_by_one, TaskGraph& tasks);

/// Copies of what is there before anything is computed (a cache's past) may run in any wave before
/// their readers: each goes to the one of the last few that it lengthens least, and of those that
/// it does not lengthen to the idlest, the later of equals. True: some moved, and buffers live
/// otherwise.
bool place_copies(const stitch::Plan& plan, const Cutting& cut, TaskGraph& tasks);

/// The same of all works, not only of copies: each that is not on a longest chain may run in any
/// wave between its operands and its readers, and goes to the one that it lengthens least; works
/// are placed from the last to the first. There are no more waves than before.
bool place_all(const stitch::Plan& plan, const Cutting& cut, TaskGraph& tasks);

}  // namespace obelisk::schedule

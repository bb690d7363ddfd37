/// schedule/floor.h — what no machine of its kind could go below: bytes that a work must move and
/// operations that it must do, over the rates that the hardware has at most (machine::Peaks).
/// Nothing here is fitted, and nothing is chosen by it.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Nanoseconds of each work, all workers at it. Each operand is moved once: elements that are read
/// or written, no more than the value has. What the last cache may hold comes at the cache's rate.
/// From memory comes what is beyond its capacity: of one work, and of the weights of all, which a
/// run goes through one after another. Attention counts no mask; blocks count no more than their op
/// says.
std::vector<double> floor_nanos(const stitch::Plan& plan, const TaskGraph& tasks,
                                const machine::Machine& machine);

/// What floors are made of, for a roofline.
struct Traffic {
  double bytes = 0;  // moved at least
  double flops = 0;
  double peak = 0;  // flops a ns that one worker's unit for them does at most
};
std::vector<Traffic> traffic(const stitch::Plan& plan, const TaskGraph& tasks,
                             const machine::Machine& machine);

}  // namespace obelisk::schedule

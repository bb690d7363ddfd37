/// schedule/cutting.h — what every choice of tiles looks at beside the group that is cut.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// How many workers a group's tasks may fill: all that the machine has, or a share where other
/// groups run in the same wave.
struct WorkerBudget {
  int count = 1;
};

struct Cutting {
  const machine::Machine& machine;
  const machine::Strategy& strategy;
  const kernels::TileLibrary& tiles;  // the machine's
  WorkerBudget workers;

  Cutting within(WorkerBudget budget) const { return {machine, strategy, tiles, budget}; }
};

}  // namespace obelisk::schedule

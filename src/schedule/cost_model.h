/// schedule/cost_model.h — what every choice of tiles looks at beside the group that is tiled, and
/// what works cost that no tile library prices: bytes that they move, how much longer than a roof
/// they take.
#pragma once

#include "schedule/dispatch.h"
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

/// Bytes of scratchpad memory beside a tile and its scratch: parameters, operands, staged rows.
inline constexpr int64_t kBlockRoom = 4096;

/// Whether a worker should have one task of a wave: its threads wait for what a task's beginning
/// loads.
bool cuts_once(const Cutting& cut);

/// Whether a group computes or moves memory, from its operations and bytes beside the machine's
/// ridge; by the op of its anchor where either is not known.
Classified class_of(const graph::Graph& graph, const stitch::Group& group,
                    const machine::Machine& machine);

/// How much longer a work's tasks take than the roofs that predict them. On GPUs bodies wait for
/// their loads, reductions most.
double slower_than_roof(const stitch::Group& group, const Cutting& cut);

/// Bytes that a work reads and writes: what its nodes do one by one; of one loop on a GPU, where
/// intermediate values stay in registers, each operand once, and of one that is larger than the
/// loop (a table of embeddings) as many elements as the loop has.
double moved_bytes(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                   const Work& work);

/// Rows that the threads of a GPU's task reduce at once where neighbouring threads take
/// neighbouring rows (a pooling's channels), 16 bytes each; 0: it is no such work. A part of a
/// batch takes as long as a whole one.
int64_t rows_at_once(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                     const Work& work);

/// Such a batch's time, by which tiles are chosen.
double batch_nanos(const Cutting& cut, const Work& work);

/// What a task of a tiled work is predicted to take. Where it is nearer to what is measured than
/// the cost that chose the tile, no choice follows from it.
double predicted_nanos(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                       const Work& work);

}  // namespace obelisk::schedule

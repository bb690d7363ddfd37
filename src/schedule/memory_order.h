/// schedule/memory_order.h — where buffers lie in one memory when works run in a partial order, and
/// in which order works use the same bytes.
///
///   in   a Dag of works, what each needs of the machine, buffers with the works that use them
///   out  an offset of each buffer, and the waves of the order with its edges of reuse
///
/// Two buffers share bytes only where all uses of one precede all uses of the other. Where the Dag
/// does not say which goes first, the plan may: it makes a schedule in which live bytes are
/// bounded, and lets buffers share bytes that are not live at the same time there. Each edge of
/// reuse then leads from the end of a work to a later begin, so edges close no cycle and no path is
/// longer than the schedule.
#pragma once

#include "schedule/dag.h"

namespace obelisk::schedule {

/// What a work needs of the machine.
struct Need {
  double nanos = 1;     // alone
  int64_t workers = 1;  // at most at once
};

/// Bytes that some works use, from the begin of the first to the end of the last.
struct Used {
  int64_t size = 0;
  std::vector<int> users = {};    // each once, writers among them
  std::vector<int> writers = {};  // of its users; all others follow one of them
  int64_t offset = 0;             // the answer
};

struct MemoryOrder {
  int64_t bytes = 0;       // of all
  int64_t sequential = 0;  // bytes if works ran one after another, by number where they may
  double critical = 0;     // ns; the longest path, edges of reuse among its edges
  std::vector<int> wave;   // of each work: how many works the longest chain before it has, as well
  int waves = 0;
};

/// Buffers at multiples of `align`, in no more than thresholds::kMoreMemory of the sequential
/// plan's bytes. Edges of reuse make no path longer than thresholds::kLongerForMemory of the
/// longest; where less memory would, more is taken. Where the Dag alone keeps enough buffers apart
/// no edge is added. What all works use shares its bytes with nobody. `adds_edges` false: none is
/// added, whatever memory that takes.
MemoryOrder place_in_order(const Dag& dag, const std::vector<Need>& needs, int64_t workers,
                           std::vector<Used>& all, int64_t align, bool adds_edges = true);

}  // namespace obelisk::schedule

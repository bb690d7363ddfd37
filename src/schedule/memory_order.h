/// schedule/memory_order.h — where buffers lie in one memory when works run in a partial order, and
/// in which order works use the same bytes.
///
///   in   a Dag of works, how long each takes, buffers with the works that use them
///   out  an offset of each buffer, and the waves of the order with its reuse edges
///
/// Two buffers share bytes only where all uses of one precede all uses of the other. Where the Dag
/// does not say which goes first, the plan may: it makes a schedule on a machine with room for all
/// works at once, in which live bytes are bounded, and lets those buffers share bytes that are not
/// live at the same time there. Each edge of reuse then leads from the end of a work to a later
/// begin, so edges close no cycle and no path is longer than the schedule.
#pragma once

#include "schedule/dag.h"

namespace obelisk::schedule {

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
  double critical = 0;     // ns; the longest path, reuse edges among its edges
  std::vector<int> wave;   // of each work: the longest chain of works before it, in the same order
  int waves = 0;
};

/// Buffers at multiples of `align`, none sharing bytes with one that is live at the same time in
/// the schedule: the one with the tightest bound of memory, from the sequential plan's upwards,
/// under which reuse lengthens the longest path by no more than thresholds::kLongerForMemory. What
/// all works use shares its bytes with nobody. Works take `nanos`, more than 0.
MemoryOrder place_in_order(const Dag& dag, const std::vector<double>& nanos, std::vector<Used>& all,
                           int64_t align);

}  // namespace obelisk::schedule

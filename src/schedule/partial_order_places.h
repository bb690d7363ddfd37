/// schedule/partial_order_places.h — where buffers lie in one memory when works run in a partial
/// order, not in waves.
///
/// Two buffers share bytes only where all uses of one precede all uses of the other.
#pragma once

#include "schedule/dag.h"

namespace obelisk::schedule {

/// Bytes that some works use, and which of those works write them.
struct Used {
  int64_t size = 0;
  std::vector<int> users = {}, writers = {};
  int64_t offset = 0;  // the answer
};

/// Whether all uses of `first` precede all uses of `then`.
bool precedes(const Reachability& reaches, const Used& first, const Used& then);

/// Largest first, each at the lowest multiple of `align` where nothing lies that it may not share
/// with. Gives the bytes of all.
int64_t place_used(std::vector<Used>& all, const Reachability& reaches, int64_t align);

/// The same, adding edges to `dag` where that makes the memory smaller and no path longer than the
/// longest is now: all that use one buffer before all that write another. Nobody else moves.
/// `tries`: placements at most.
struct Ordered {
  int64_t bytes = 0;    // with the edges
  int64_t without = 0;  // before any was added
  std::vector<std::pair<int, int>> added;
};
Result<Ordered> place_and_order(std::vector<Used>& all, Dag& dag, const std::vector<double>& nanos,
                                int64_t align, int tries);

}  // namespace obelisk::schedule

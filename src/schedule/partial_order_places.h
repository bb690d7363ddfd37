/// schedule/partial_order_places.h — where buffers lie in one memory when works run in a partial
/// order, not in waves.
///
/// Two buffers share bytes only where all uses of one precede all uses of the other.
#pragma once

#include "schedule/dag.h"

namespace obelisk::schedule {

/// Bytes that some works use.
struct Used {
  int64_t size = 0;
  std::vector<int> users = {};
  int64_t offset = 0;  // the answer
};

/// Largest first, each at the lowest multiple of `align` where nothing lies that it may not share
/// with. Gives the bytes of all.
int64_t place_used(std::vector<Used>& all, const Reachability& reaches, int64_t align);

}  // namespace obelisk::schedule

// Whether an order of works keeps a partial order.
#pragma once

#include "schedule/dag.h"

namespace obelisk::schedule {

/// Whether `order` has every work once, each behind its predecessors.
inline bool is_topological(const Dag& dag, const std::vector<int>& order) {
  std::vector<bool> met(dag.size(), false);
  for (const int work : order) {
    if (work < 0 || work >= dag.size() || met[work]) return false;
    for (const int before : dag.before[work])
      if (!met[before]) return false;
    met[work] = true;
  }
  return static_cast<int>(order.size()) == dag.size();
}

}  // namespace obelisk::schedule

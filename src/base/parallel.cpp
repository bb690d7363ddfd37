#include "base/parallel.h"

#include <sched.h>

namespace obelisk {

int cores_we_may_use() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

}  // namespace obelisk

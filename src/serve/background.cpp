#include "serve/background.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

namespace obelisk::serve {
namespace {

/// The kernel's struct sched_attr; libraries have none.
struct Scheduling {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // runtime of a usual thread: its slice, in nanoseconds
  uint32_t least, most;                // utilization
};

/// Gives this thread, and those that it starts, low priority: about a tenth of a core beside a
/// busy thread of normal priority. Their time slice is long, so that the scheduler (EEVDF) preempts
/// them as soon as a thread with a normal slice wakes; with a nice value alone they would keep the
/// core to the end of their slice. Linux before 6.12 ignores the slice.
void stand_behind() {
  constexpr int kNice = 10;
  constexpr uint64_t kSlice = 100'000'000;  // the longest there is
  const Scheduling wanted{.size = sizeof(Scheduling), .nice = kNice, .runtime = kSlice};
  syscall(SYS_sched_setattr, 0, &wanted, 0U);
}

}  // namespace

void in_background(const std::function<void()>& work) {
  std::thread([&] {
    stand_behind();
    work();
  }).join();
}

}  // namespace obelisk::serve

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

/// This thread and those that it will start get what others leave, a tenth beside one that never
/// sleeps. Whoever wakes has a shorter slice than theirs and so need not wait for the end of it, as
/// it would beside a thread that is no more than nice (Linux 6.12; before, the slice is not heard).
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

#include "runtime/cpu/threads.h"

#include <algorithm>

#include "machine/costs_cpu.h"

namespace obelisk::runtime::cpu {

int threads_that_pay(const Program& program, int most) {
  using machine::cpu_costs::kBusyBarrierNanos;
  using machine::cpu_costs::kHandOverNanos;
  double best = 0;
  int chosen = 1;
  bool predicted = false;
  for (int threads = 1; threads <= most; ++threads) {
    std::vector<double> busy(static_cast<size_t>(std::max(program.waves, 1)) * threads, 0);
    for (size_t sm = 0; sm < program.lists.size(); ++sm)
      for (const ObkTask& task : program.lists[sm]) {
        const double nanos = program.works[task.work].task_nanos;
        busy[task.wave * threads + sm % threads] += nanos, predicted |= nanos > 0;
      }
    double total = threads > 1 ? kHandOverNanos + kBusyBarrierNanos * program.waves : 0;
    for (int wave = 0; wave < program.waves; ++wave)
      total +=
          *std::max_element(busy.begin() + wave * threads, busy.begin() + (wave + 1) * threads);
    if (threads == 1 || total < best) best = total, chosen = threads;
    if (threads >= 16) threads += threads / 4;  // many cores: look at fewer counts
  }
  return predicted ? chosen : most;
}

}  // namespace obelisk::runtime::cpu

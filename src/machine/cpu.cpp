#include "base/parallel.h"
#include "machine/costs_cpu.h"
#include "machine/machine.h"

namespace obelisk::machine {
Machine cpu(int sms) {
  Machine machine;
  machine.family = Family::kCpu;
  machine.name = "cpu";
  machine.sms = sms > 0 ? sms : cores_we_may_use();
  machine.scratchpad = 256_KiB;  // a quarter of a 1 MiB L2: the tile, its scratch, and room for
                                 // the streams beside it
  machine.barrier = Nanos(cpu_costs::kBarrierNanos);
  machine.smallest_task = Nanos(cpu_costs::kSmallestTaskNanos);
  machine.flops_per_sm = cpu_costs::kFlops;
  machine.bytes_per_sm = cpu_costs::kBytes;
  machine.costs = cpu_costs::kCosts;
  machine.peaks = cpu_costs::kPeaks;
  return machine;
}

}  // namespace obelisk::machine

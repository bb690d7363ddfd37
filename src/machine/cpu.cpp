#include "base/parallel.h"
#include "machine/machine.h"

namespace obelisk::machine {
Machine cpu(int sms) {
  Machine machine;
  machine.family = Family::kCpu;
  machine.name = "cpu";
  machine.sms = sms > 0 ? sms : cores_we_may_use();
  machine.fast_memory = 256_KiB;  // a quarter of a 1 MiB L2: the tile, its scratch, and room for
                                  // the streams beside it
  machine.barrier = Nanos(400);   // two threads that spin on one line
  machine.flops_per_sm = 80;      // AVX-512 fp32 near 2.5 GHz
  machine.bytes_per_sm = 8;
  return machine;
}

}  // namespace obelisk::machine

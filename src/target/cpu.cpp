#include "base/parallel.h"
#include "target/target.h"

namespace obelisk::target {
DeviceSpec cpu(int sms) {
  DeviceSpec spec;
  spec.family = Family::kCpu;
  spec.name = "cpu";
  spec.sms = sms > 0 ? sms : cores_we_may_use();
  spec.fast_memory = 256_KiB;  // a quarter of a 1 MiB L2: the tile, its scratch, and room for the
                               // streams beside it
  spec.barrier = Nanos(400);    // two threads that spin on one line
  spec.flops_per_sm = 80;       // AVX-512 fp32 near 2.5 GHz
  spec.bytes_per_sm = 8;
  return spec;
}

}  // namespace obelisk::target

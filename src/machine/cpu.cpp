#include <sched.h>

#include <algorithm>

#include "machine/machine.h"

namespace obelisk::machine {
namespace {

int cores_we_may_use() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

}  // namespace

Machine cpu(int sms) {
  Machine spec;
  spec.family = Family::kCpu;
  spec.name = "cpu";
  spec.sms = sms > 0 ? sms : cores_we_may_use();
  spec.fast_memory = 256_KiB;  // a quarter of a 1 MiB L2: the tile, its scratch, and room for the
                               // streams beside it
  spec.vector_bytes = 64;
  spec.barrier = Nanos(400);    // two threads that spin on one line
  spec.flops_per_sm = 80;       // AVX-512 fp32 near 2.5 GHz
  spec.bytes_per_sm = 8;
  return spec;
}

}  // namespace obelisk::machine

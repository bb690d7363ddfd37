/// target/target.h — the door of `target`: what the compiler knows of a machine, as numbers with their sources.
#pragma once

#include <string>

#include "base/base.h"

namespace obelisk::target {

enum class Family { kCpu, kCuda };

/// A machine as the schedule sees it: `sms` workers that each run a list of tasks, each with fast memory of its own.
struct DeviceSpec {
  Family family = Family::kCpu;
  std::string name;         // "cpu", "sm_90a"
  int sms = 1;              // workers: streaming multiprocessors, or threads of the CPU
  Bytes fast_memory;        // per worker: shared memory, or the part of a core's L2 that a tile may fill
  Nanos barrier{1000};      // one barrier of all workers
  Nanos smallest_task{1500};  // below this a task costs more to deal than to run
  int team = 0;             // of a GPU: so many workers surely run at once when a kernel is made of such teams, a power of two; 0: no teams
  int team_registers = 0;   // of each thread of a member, that may hold weights from step to step
  Bytes deals{0};           // a work that moves so much is cut into small tasks that go to whoever is free; 0: lists say who runs what
  bool copies_blocks = false;  // of a GPU: a copy engine brings blocks of a matrix to shared memory, whence warpgroups multiply them
  bool flows = false;       // one kernel runs all, and workers may pass words to each other that carry their own readiness: schedule/flow.h
  bool one_kernel = false;  // of a GPU: all works are one kernel, with barriers where it does not flow
  bool own_kernels = false; // of a GPU: a work is a kernel of its own, whose body is part of it
  bool any_batch = false;   // no choice that changes the order of a sum looks at how many rows there are
  double flops_per_sm = 1;  // multiply-adds count two; per nanosecond
  double bytes_per_sm = 1;  // streaming from far memory; per nanosecond
};

/// Clusters of so many CTAs, one to a multiprocessor, that run at once. A cluster lies in one of the groups of multiprocessors (GPCs)
/// that a GPU consists of, which are unequal and differ from one GPU to the next: of 2, 3, 4 and 8 an H200 with 132 held 66, 39, 30, 15.
int64_t clusters_at_once(int64_t sms, int64_t ctas);

/// This machine's CPU with `sms` workers (0: one for each core we may run on).
DeviceSpec cpu(int sms = 0);

/// A GPU by its architecture, "sm_90a"; `sms` 0: as many as its largest product has. Errors: kUsage with the names that are known.
Result<DeviceSpec> gpu(const std::string& architecture, int sms = 0);

/// "cpu" or a GPU's architecture. Errors: kUsage with the names that exist.
Result<DeviceSpec> device(const std::string& name, int sms = 0);

}  // namespace obelisk::target

/// machine/machine.h — the door of `machine`: what is constant of a machine, as numbers with their
/// sources (Machine), and what one compilation chose for it (strategy.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/base.h"
#include "machine/arch.h"
#include "machine/costs.h"
#include "machine/strategy.h"

namespace obelisk::machine {

enum class Family { kCpu, kCuda };

/// A machine as the schedule sees it: `sms` workers that each run a list of tasks, each with fast
/// memory of its own. Nothing here is a choice.
struct Machine {
  Family family = Family::kCpu;
  std::string name;   // "cpu", "sm_90a"
  Arch arch;          // of a GPU
  Features features;  // of a GPU
  int sms = 1;        // workers: streaming multiprocessors, or threads of the CPU
  Bytes scratchpad;   // per worker: shared memory, or the part of a core's L2 that a tile may fill
  int gang = 0;       // of a GPU: so many workers surely run at once when a kernel is made of such
                      // gangs, a power of two; 0: no gangs
  int gang_registers = 0;     // of each thread of a member, that may hold weights from step to step
  Nanos barrier{1000};        // one barrier of all workers
  Nanos smallest_task{1500};  // below this a task costs more to schedule than to run
  double flops_per_sm = 1;    // multiply-adds count two; per nanosecond
  double bytes_per_sm = 1;    // streaming from device memory; per nanosecond
  Costs costs;                // what models take beside these rates
  Peaks peaks;                // what the hardware does at most
};

/// Clusters of so many CTAs, one to a multiprocessor, that run at once. A cluster lies in one of
/// the groups of multiprocessors (GPCs) that a GPU consists of, which are unequal and differ from
/// one GPU to the next: of 2, 3, 4 and 8 an H200 with 132 held 66, 39, 30, 15.
int64_t gangs_at_once(int64_t sms, int64_t ctas);

/// This machine's CPU with `sms` workers (0: one for each core we may run on).
Machine cpu(int sms = 0);

/// A GPU by its architecture; `sms` 0: as many as its largest product has. Errors: kUsage with the
/// names that are known.
Result<Machine> gpu(const Arch& architecture, int sms = 0);
Result<Machine> gpu(const std::string& architecture, int sms = 0);

/// "cpu" or a GPU's architecture. Errors: kUsage with the names that exist.
Result<Machine> device(const std::string& name, int sms = 0);

/// The architectures that programs are made for.
std::span<const Arch> architectures();

/// Whether GEMMs and convolutions may take tiles that TMA tensor copies feed and wgmma multiplies.
/// What such a tile sums, and whether it takes a GEMM at all, follows from how many rows there are.
inline bool takes_async_mma(const Machine& machine, const Strategy& strategy) {
  return machine.features.tma && machine.features.wgmma && !strategy.batch_invariant;
}

/// What is left open or switched off where a strategy is chosen.
struct Wishes {
  Granularity granularity = Granularity::kMono;  // of a GPU
  bool dataflow = true;                          // where it can be
  bool batch_invariant = false;
  bool tall_gemm = true;
  GemmTile gemm_tile;
  Placement placement = Placement::kWaves;  // of one kernel
  bool tf32 = false;
};

/// The one place where a strategy is made of a machine and what was wished.
Strategy strategy_for(const Machine& machine, const Wishes& wishes);

}  // namespace obelisk::machine

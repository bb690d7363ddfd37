#include <algorithm>
#include <vector>

#include "machine/costs_cuda.h"
#include "machine/machine.h"

namespace obelisk::machine {
namespace {

/// A row of what is known of an architecture: NVIDIA's tuning guides (shared memory that a block
/// may take, features), SMs of its largest product, and rates (costs_cuda.h).
struct Row {
  Arch arch;
  Features features;
  int sms;
  Bytes shared;
  cuda_costs::Rates rates;
};
constexpr Features kAmpere = {};
constexpr Features kHopper = {.tma = true, .wgmma = true, .clusters = true, .pdl = true};
constexpr Features kBlackwell = {.tma = true, .clusters = true, .pdl = true};
constexpr Row kRows[] = {
    {{9, 0, 'a'}, kHopper, 132, 227_KiB, cuda_costs::kSm90},
    {{8, 0}, kAmpere, 108, 163_KiB, cuda_costs::kSm80},
    {{8, 6}, kAmpere, 84, 99_KiB, cuda_costs::kSm86},
    {{8, 7}, kAmpere, 16, 163_KiB, cuda_costs::kSm87},
    {{8, 9}, kAmpere, 142, 99_KiB, cuda_costs::kSm89},
    {{10, 0, 'a'}, kBlackwell, 148, 227_KiB, cuda_costs::kSm100},
    {{10, 3, 'a'}, kBlackwell, 148, 227_KiB, cuda_costs::kSm103},
    {{11, 0, 'a'}, kBlackwell, 20, 227_KiB, cuda_costs::kSm110},
    {{12, 0, 'a'}, kBlackwell, 170, 99_KiB, cuda_costs::kSm120},
    {{12, 1, 'a'}, kBlackwell, 48, 99_KiB, cuda_costs::kSm121},
};

constexpr Bytes kReserved = 2_KiB;   // of shared memory, for what is not a task's
constexpr int kPortableCluster = 8;  // CTAs of a cluster that every device with clusters takes
constexpr int kGangRegisters = 128;

Error unknown(const std::string& name) {
  std::string names, meant;
  for (const Row& known : kRows) {
    const std::string other = to_string(known.arch);
    names += std::string(names.empty() ? "" : ", ") + other;
    if (name + "a" == other)
      meant = fmt::format("{} is the one with all of its instructions; ", other);
  }
  return Error{Code::kUsage, "machine", fmt::format("no GPU architecture is called '{}'", name), "",
               meant + "architectures: " + names};
}

}  // namespace

std::span<const Arch> architectures() {
  static const std::vector<Arch> all = [] {
    std::vector<Arch> made;
    for (const Row& row : kRows) made.push_back(row.arch);
    return made;
  }();
  return all;
}

Result<Machine> gpu(const Arch& architecture, int sms) {
  for (const Row& known : kRows) {
    if (architecture != known.arch) continue;
    Machine machine;
    machine.family = Family::kCuda;
    machine.arch = known.arch;
    machine.name = to_string(known.arch);
    machine.features = known.features;
    machine.sms = sms > 0 ? sms : known.sms;
    machine.scratchpad = {known.shared.count - kReserved.count};
    machine.gang = known.features.clusters ? kPortableCluster : 0;
    machine.gang_registers = kGangRegisters;
    machine.barrier = Nanos(known.rates.barrier);
    machine.smallest_task = Nanos(cuda_costs::kSmallestTaskNanos);
    machine.flops_per_sm = known.rates.flops;
    machine.bytes_per_sm = known.rates.bytes;
    machine.costs = cuda_costs::kCosts;
    machine.peaks = known.rates.peaks;
    return machine;
  }
  return unknown(to_string(architecture));
}

Result<Machine> gpu(const std::string& architecture, int sms) {
  const std::optional<Arch> arch = parse_arch(architecture);
  if (!arch) return unknown(architecture);
  return gpu(*arch, sms);
}

int64_t gangs_at_once(int64_t sms, int64_t ctas) {
  constexpr int64_t kSmall = 16;  // all in one group
  if (ctas == 1) return sms;
  if (ctas == 2) return std::max<int64_t>(sms / 2, 1);  // groups consist of pairs
  const double held =
      static_cast<double>(sms / ctas) * (sms <= kSmall ? 1.0 : cuda_costs::kClusterShare);
  return held < 1 ? 1 : static_cast<int64_t>(held);
}

}  // namespace obelisk::machine

#include <algorithm>

#include "target/target.h"

namespace obelisk::target {
namespace {

/// What a multiprocessor of each architecture has: NVIDIA's tuning guides (shared memory a block may take), and rates measured on an
/// H200 (streaming from far memory 35 GB/s each, a barrier of all 0.95 us; bench/results/h200_device_blocks.json).
struct Architecture {
  const char* name;
  int sms;
  Bytes shared;
  double barrier, flops, bytes;
  int cluster;  // CTAs of a cluster on every device of the architecture, which run at once; 0: no clusters
  bool copies_blocks;  // by tensor maps, for wgmma
};
constexpr Architecture kArchitectures[] = {
    {"sm_90a", 132, 227_KiB, 950, 400, 35, 8, true},
    {"sm_80", 108, 163_KiB, 1200, 250, 14, 0, false},
    {"sm_89", 142, 99_KiB, 1200, 350, 6, 0, false},
    // Compiled for as the two above are, without what is particular to them. Their rates are guesses: nothing was measured there.
    {"sm_86", 84, 99_KiB, 1200, 180, 7, 0, false},
    {"sm_87", 16, 163_KiB, 1200, 150, 12, 0, false},
    {"sm_100a", 148, 227_KiB, 1200, 400, 50, 0, false},
    {"sm_103a", 148, 227_KiB, 1200, 400, 50, 0, false},
    {"sm_120a", 170, 99_KiB, 1200, 350, 10, 0, false},
};

}  // namespace

Result<DeviceSpec> gpu(const std::string& architecture, int sms) {
  for (const Architecture& known : kArchitectures) {
    if (architecture != known.name) continue;
    DeviceSpec spec;
    spec.family = Family::kCuda;
    spec.name = known.name;
    spec.sms = sms > 0 ? sms : known.sms;
    spec.fast_memory = {known.shared.count - (2_KiB).count};
    spec.barrier = Nanos(known.barrier);
    spec.smallest_task = Nanos(60);
    spec.copies_blocks = known.copies_blocks;
    spec.team = known.cluster, spec.team_registers = 128;
    spec.flops_per_sm = known.flops;
    spec.bytes_per_sm = known.bytes;
    return spec;
  }
  std::string names, meant;
  for (const Architecture& known : kArchitectures) {
    names += std::string(names.empty() ? "" : ", ") + known.name;
    if (architecture + "a" == known.name) meant = fmt::format("{} is the one with all of its instructions; ", known.name);
  }
  return Error{Code::kUsage, "target", fmt::format("no GPU architecture is called '{}'", architecture), "", meant + "architectures: " + names};
}

int64_t clusters_at_once(int64_t sms, int64_t ctas) {
  constexpr double kInGroups = 0.89;  // of the multiprocessors, in whole clusters
  constexpr int64_t kSmall = 16;      // all in one group
  if (ctas == 1) return sms;
  if (ctas == 2) return std::max<int64_t>(sms / 2, 1);  // groups consist of pairs
  const double held = static_cast<double>(sms / ctas) * (sms <= kSmall ? 1.0 : kInGroups);
  return held < 1 ? 1 : static_cast<int64_t>(held);
}

}  // namespace obelisk::target

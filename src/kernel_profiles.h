/// kernel_profiles.h — what was measured of the kernels of a program's graph on a GPU, kept from
/// one process to the next: a small database beside the machine code. Stands beside compile.cpp.
///
/// A profile is of one program (its model, shapes, types and machine code), one GPU, one driver and
/// one version of Obelisk: with any other it is not found, and is measured again. Opara keeps the
/// same by model and input shapes (IEEE Transactions on Computers 74(1), 2025, section 3.2).
#pragma once

#include <map>
#include <optional>

#include "base/database.h"
#include "runtime/runtime.h"
#include "schedule/schedule.h"

namespace obelisk::compiler {

/// What a local search found (schedule/local_search.h).
struct FoundDispatch {
  double seconds = 0;            // that were searched for
  std::vector<int> order, lane;  // kernels in order, and the lane of each of these; empty: nothing
                                 // that was better
};

struct KernelProfile {
  std::map<int, double> nanos;       // by kernel: from its first task's start to its last one's end
  std::map<std::string, double> us;  // of one run: by dispatch, "search" the one that was found;
                                     // and by SMs, "88 SMs" (fewer_sms.h)
  FoundDispatch found;
};

class KernelProfiles {
 public:
  /// In the folder of the object cache; empty: nothing is kept.
  explicit KernelProfiles(const std::string& folder);

  std::optional<KernelProfile> find(const Hash& key) const;
  /// `kernels`: what the compiled code needs, kept with the times for readers of the
  /// database.
  void keep(const Hash& key, const runtime::DeviceReport& device,
            const std::vector<schedule::Kernel>& kernels, const KernelProfile& profile) const;

 private:
  Database database_;
};

/// Of a program that is loaded on a GPU, what waves are in its place (nothing: the same program),
/// and the options that its candidates are made with.
Hash profile_key(const runtime::Executable& executable, const runtime::Program* in_waves,
                 const schedule::DispatchOptions& options);

}  // namespace obelisk::compiler

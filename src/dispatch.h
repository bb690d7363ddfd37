/// dispatch.h — which kernels of a graph, or works on a CPU, may run beside which, and in what
/// order they are launched. Stands beside compile.cpp.
///
/// The rules are schedule/dispatch.h's; here they get what each kernel needs: from the compiled
/// code of a GPU, from the task table of a CPU.
#pragma once

#include <memory>

#include "runtime/runtime.h"
#include "schedule/schedule.h"

namespace obelisk::compiler {

struct Options;
struct Lowered;
struct Compilation;

/// What was decided, and from what.
struct Dispatching {
  schedule::Dependencies dependencies;
  std::vector<schedule::Kernel> kernels;  // by work
  schedule::Dispatch dispatch;
  std::optional<Hash> profile;  // by which what was measured is kept (kernel_profiles.h)
  std::string sms;  // what kernels were compiled for, where that was measured (fewer_sms.h)
};

/// Dependencies, kernels and dispatch of a loaded graph of kernels; `executable` is replaced by one
/// that has it. `auto` measures where the program's GPU is, and predicts where it is not; kernels
/// that all follow one another have nothing to choose. Where it chooses waves, `made.tasks` becomes
/// the table that was made for them (Lowered::tasks_in_waves).
/// Errors: kBuild, kUsage for a dispatch that was given and does not fit, those of loading.
Result<Dispatching> dispatch_kernels(const Options& options, const machine::Machine& machine,
                                     Lowered& made,
                                     std::shared_ptr<const runtime::Executable>& executable);

/// The kernels of a graph that has lanes, launched as `options.dispatch` says: by its policy or in
/// its launch order. What was compiled for `made` is shared, and with options.load.device_weights
/// so are weights on the GPU. The policy is none that has a table of its own: neither `waves` nor
/// `auto`. Errors: as above.
Result<std::shared_ptr<const runtime::Executable>> redispatched(const Options& options,
                                                                const Compilation& made);

/// What dispatch_kernels() does, of a CPU, before its code is compiled: `made.tasks` are placed so
/// that works may run as soon as those that they follow have ended, unless waves are chosen. `auto`
/// predicts. Errors: as above.
Status dispatch_works(const Options& options, const machine::Machine& machine, Lowered& made);

/// As text, with the dependencies when explaining.
std::string explain_dispatch(const Compilation& made, bool explain);

}  // namespace obelisk::compiler

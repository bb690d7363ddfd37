/// dispatch.h — which kernels of a graph may run beside which, and in what order they are launched.
/// Stands beside compile.cpp.
///
/// The rules are schedule/dispatch.h's; here they get what each kernel needs, from the
/// compiled code.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::compiler {

struct Options;
struct Compilation;

/// What was decided, and from what.
struct Dispatching {
  schedule::Dependencies dependencies;
  std::vector<schedule::Kernel> kernels;  // by work
  schedule::Dispatch dispatch;
};

/// Dependencies, kernels and dispatch of a loaded compilation. Where the dispatch is not waves, its
/// program and its executable get it. `auto` measures where the program's GPU is, and predicts
/// where it is not. Nothing is done for what is no graph of kernels. Errors: kBuild, kUsage for a
/// dispatch that was given and does not fit, those of loading.
Status dispatch_kernels(const Options& options, const machine::Machine& machine, Compilation& made);

/// As text, with the dependencies when explaining.
std::string explain_dispatch(const Compilation& made, bool explain);

}  // namespace obelisk::compiler

/// fewer_sms.h — kernels of branches, compiled for fewer SMs than the GPU has, so that those of
/// several branches fit side by side. Stands beside compile.cpp.
#pragma once

#include "compile.h"

namespace obelisk::compiler {

/// A graph of kernels whose dispatch `auto` measured is compiled again for a part of the GPU's SMs
/// and measured beside the one for all; `made` becomes the quickest where 1 % is gained. That is
/// done where options.dispatch.search_seconds are given and kernels have others to run beside (none
/// is begun when the seconds are over, and a later search goes on), and kept: later compilations of
/// the program take what was found without them. Needs made.dispatching and made.executable.
/// `options`: those that `made` was compiled with. Errors: kInterrupted, kDevice; what fails
/// otherwise is left out.
Status take_fewer_sms(const Network& network, const Options& options, Compilation& made);

}  // namespace obelisk::compiler

/// measured_dispatch.h — of the dispatches of a graph of kernels the one that takes least on the
/// GPU that is here. Stands beside dispatch.cpp.
#pragma once

#include <functional>

#include "compile.h"

namespace obelisk::compiler {

/// What was lowered, and its executable as it was loaded: in waves.
struct Loaded {
  const Lowered& made;
  std::shared_ptr<const runtime::Executable> executable;
  /// By Lowered::tasks_in_waves, where `auto` compares it with others.
  std::shared_ptr<const runtime::Program> plain_waves = nullptr;
  const schedule::TaskGraph& tasks_in_waves() const {
    return plain_waves ? *made.tasks_in_waves : made.tasks;
  }
};

/// The same program and machine code, its kernels dispatched like that. Errors: those of loading.
Result<std::shared_ptr<const runtime::Executable>> dispatched(const Loaded& in_waves,
                                                              const schedule::Dispatch& dispatch,
                                                              const runtime::LoadOptions& load);

/// By the policy's name, from the durations that the kernels have in Dispatching::kernels, in at
/// most `streams` lanes; 0: in as many as are wished.
using MakeDispatch =
    std::function<Result<schedule::Dispatch>(const std::string& policy, int streams)>;

/// `auto` where there is a GPU: kernels are timed by their stamps, candidates are made from these
/// durations and timed in turns; then the best of those with lanes in fewer of them, and by which
/// kernels start early.
/// What was measured before, of the same program on the same GPU, is not measured again. Sets
/// `all.dispatch`, `all.profile`, and the durations of `all.kernels`. Errors: those of loading;
/// kDevice.
Status choose_by_measurement(const Options& options, const schedule::DispatchOptions& how,
                             const machine::Machine& machine, const Loaded& in_waves,
                             const MakeDispatch& make, Dispatching& all);

}  // namespace obelisk::compiler

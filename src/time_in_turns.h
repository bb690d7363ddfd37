/// time_in_turns.h — device times of programs that answer the same inputs, measured side by side.
/// Stands beside compile.cpp.
#pragma once

#include "runtime/runtime.h"

namespace obelisk::compiler {

/// A program and what was found of it.
struct Timed {
  const runtime::Executable* executable = nullptr;
  double us = 0;        // of one run, as time_in_turns() measures it; 0: refused
  std::string refused;  // why it has no time
};

/// Runs all once and times them in alternating rounds, so that clocks that rise and whatever else
/// uses the GPU affect all alike; the first round is thrown away. Programs of less than 5 ms are
/// timed in two ways: each run launched as soon as the host can, where a program may be bound by
/// its launches, and all runs of a row launched before the GPU begins, where a graph of many
/// branches may take several times as long. Of each way the median of the quickest round counts,
/// since other processes use the host, and of both ways the longer. No other process of this user
/// times programs meanwhile (TimedAlone). What fails is refused. Errors: kDevice, for the GPU's
/// context is lost with it.
Status time_in_turns(std::vector<Timed>& all, const std::vector<Tensor>& inputs);

/// While it lives, no other process of this user, and no other thread of this one, times programs
/// on a GPU of that name: what runs beside changes times. Waits for them, a minute at most, and
/// goes on without where no file can be locked. The file, in the temporary folder, stays.
class TimedAlone {
 public:
  explicit TimedAlone(const runtime::Executable& executable);
  ~TimedAlone();
  TimedAlone(const TimedAlone&) = delete;

 private:
  int lock_ = -1;
};

/// A context of a program that has answered the inputs once. Errors: those of the run.
Result<std::unique_ptr<runtime::Context>> run_once(const runtime::Executable& executable,
                                                   const std::vector<Tensor>& inputs);

}  // namespace obelisk::compiler

/// lane_report.h — what ran beside what: the kernels of a graph in their lanes, from the times that
/// their tasks record. Stands beside compile.cpp.
#pragma once

#include "dispatch.h"
#include "runtime/runtime.h"

namespace obelisk::compiler {

/// A kernel as it ran: from its first task's start to its last one's end, in microseconds.
struct KernelSpan {
  int kernel = 0, lane = 0;
  double start_us = 0, end_us = 0;
};

struct LaneReport {
  struct Lane {
    int kernels = 0;
    double start_us = 0, end_us = 0;  // of its first and of its last kernel
    double busy_us = 0;               // one of its kernels runs
  };
  std::vector<KernelSpan> spans;  // by start
  std::vector<Lane> lanes;
  double measured_us = 0;    // from the first task's start to the last one's end
  double critical_us = 0;    // the longest path through the dependencies, of measured durations
  double sm_busy_share = 0;  // of all SMs over that time: some task runs
  double overlap_us = 0;     // a compute-bound and a memory-bound kernel run at once
};

/// `sms`: of the machine. Nothing for a run that recorded no task.
std::optional<LaneReport> lane_report(const Dispatching& dispatching, int sms,
                                      const std::vector<runtime::TaskTime>& times);

}  // namespace obelisk::compiler

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

/// Whether a GPU heeds priorities: of each two kernels of different priority that become ready at
/// once (the graph's edges lead to both from the same kernels, or from none), which began first.
/// Two with the same stamp show nothing and are left out.
struct PriorityReport {
  static constexpr double kHeeded = 0.95;  // of the pairs: fewer are not an order
  int runs = 0;
  int64_t pairs = 0;   // in all runs, that began at different times
  int64_t obeyed = 0;  // of these the one of higher priority began first
  int64_t ties = 0;    // pairs beside these, with the same stamp
  double share() const {
    return pairs == 0 ? 0 : static_cast<double>(obeyed) / static_cast<double>(pairs);
  }
  bool heeded() const { return share() >= kHeeded; }
  std::string text() const;  // a line; empty where there is no pair
};
PriorityReport priority_report(const schedule::Dispatch& dispatch,
                               const std::vector<std::vector<runtime::TaskTime>>& runs);

}  // namespace obelisk::compiler

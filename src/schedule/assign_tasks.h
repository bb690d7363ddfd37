/// schedule/assign_tasks.h — which worker runs which task, and in which order.
#pragma once

#include "schedule/dispatch.h"
#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// How tasks are shared out.
struct Assignment {
  int workers = 1;
  /// A GEMM's tiles with the same columns lie side by side, on workers 2k and 2k + 1, neighbours on
  /// a GPU: what both load at the same time is fetched once.
  bool in_pairs = false;
  /// By work; empty: they do not matter. Where a wave has works of both classes, those that compute
  /// and those that move memory have disjoint workers, so that one class runs beside the other for
  /// as long as the wave lasts (Opara §3.3, inside one kernel). Not where the wave would
  /// take more than kLongerApart times as long as by longest task first, or where members of a gang
  /// wait for each other.
  std::vector<KernelClass> classes = {};
};

/// Assigns the tasks of each wave to workers: longest first, to the worker that is free first;
/// lists keep the order of works.
void assign_tasks(const stitch::Plan& plan, const Assignment& how, TaskGraph& tasks);

}  // namespace obelisk::schedule

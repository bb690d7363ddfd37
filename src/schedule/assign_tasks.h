/// schedule/assign_tasks.h — which worker runs which task, and in which order.
#pragma once

#include <functional>

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// How tasks are shared out.
struct Assignment {
  int workers = 1;
  /// A GEMM's tiles with the same columns lie side by side, on workers 2k and 2k + 1, neighbours on
  /// a GPU: what both load at the same time is fetched once.
  bool in_pairs = false;
  /// By work, a number; empty: all share all workers. Works of a wave that have different numbers
  /// (their classes or lanes) have disjoint workers, as many as follow from what their tasks take,
  /// so that they run side by side for as long as the wave lasts (Opara §3.3, inside one kernel).
  /// Not where the wave would take more than kLongerApart times as long as by longest task first,
  /// where members of a gang wait for each other, or there are not enough workers.
  std::vector<int> sharing = {};
};

/// Assigns the tasks of each wave to workers: longest first, to the worker that is free first;
/// lists keep the order of works.
void assign_tasks(const stitch::Plan& plan, const Assignment& how, TaskGraph& tasks);

/// Of each wave what the worker takes that is busy longest, added up; a task takes `nanos_of` it.
double busiest_nanos(const std::vector<std::vector<ObkTask>>& lists, int waves,
                     const std::function<double(const ObkTask&)>& nanos_of);

}  // namespace obelisk::schedule

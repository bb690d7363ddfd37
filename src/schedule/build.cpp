#include "schedule/assign_buffers.h"
#include "schedule/assign_tasks.h"
#include "schedule/assign_waves.h"
#include "schedule/choose_tiles.h"
#include "schedule/dataflow.h"
#include "schedule/schedule.h"
#include "schedule/tile_gemm_dataflow.h"
#include "schedule/tile_gemm_pipelined.h"

namespace obelisk::schedule {

using stitch::GroupKind;
using stitch::Plan;

int64_t TaskGraph::task_count() const {
  int64_t count = 0;
  for (const auto& list : lists) count += static_cast<int64_t>(list.size());
  return count;
}

namespace {

/// By work: which works of a wave share workers. Empty: all do.
std::vector<int> sharing_of(const Graph& graph, const Plan& plan, const TaskGraph& tasks,
                            const machine::Machine& machine, machine::Placement placement) {
  std::vector<int> sharing;
  if (placement == machine::Placement::kLanes)
    for (size_t w = 0; w < tasks.works.size(); ++w) sharing.push_back(static_cast<int>(w));
  if (placement == machine::Placement::kClasses)
    for (const Work& work : tasks.works)
      sharing.push_back(static_cast<int>(class_of(graph, plan.groups[work.group], machine).kind));
  return sharing;
}

void predict(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  for (Work& work : tasks.works)
    work.predicted_nanos = predicted_nanos(plan.groups[work.group], cut, tasks, work);
}

}  // namespace

namespace {

/// What the lists are predicted to take: of each wave the worker that is busy longest, and a
/// barrier. Tables without barriers are compared by the same.
double list_nanos(const TaskGraph& tasks, const machine::Machine& machine) {
  return busiest_nanos(tasks.lists, tasks.waves,
                       [&](const ObkTask& task) {
                         return static_cast<double>(task.nanos) + machine.costs.task;
                       }) +
         static_cast<double>(tasks.waves) * static_cast<double>(machine.barrier.count());
}

/// The quicker by prediction; lists of works as early as they may run, unless it is worth it.
TaskGraph quicker(const Graph& graph, const Plan& plan, const machine::Machine& machine,
                  machine::Strategy strategy) {
  strategy.placement = machine::Placement::kWaves;
  TaskGraph early = build(graph, plan, machine, strategy);
  strategy.placement = machine::Placement::kCritical;
  TaskGraph put_off = build(graph, plan, machine, strategy);
  const ComparedLists compared{list_nanos(early, machine), list_nanos(put_off, machine)};
  const bool worth = put_off.dataflow == early.dataflow &&
                     compared.put_off < machine::thresholds::kWorthLeaving * compared.early;
  TaskGraph& chosen = worth ? put_off : early;
  chosen.compared = compared;
  return std::move(chosen);
}

}  // namespace

TaskGraph build(const Graph& graph, const Plan& plan, const machine::Machine& machine,
                const machine::Strategy& strategy) {
  if (strategy.placement == machine::Placement::kQuicker)
    return quicker(graph, plan, machine, strategy);
  const Cutting all{machine, strategy, kernels::tile_library(machine), {machine.sms}};
  TaskGraph tasks;
  tasks.scratchpad = machine.scratchpad;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Work work;
    work.group = static_cast<int>(g);
    if (plan.groups[g].kind != GroupKind::kCustom) work.nest = fold_domain(plan, plan.groups[g]);
    tasks.works.push_back(std::move(work));
  }
  const machine::Placement placement = strategy.placement;
  const bool one_by_one = placement == machine::Placement::kSequential;
  assign_waves(plan, one_by_one, tasks);
  assign_buffers(graph, plan, tasks);
  const auto place = placement == machine::Placement::kCritical ? place_all : place_copies;
  if (!one_by_one && place(plan, all, tasks)) {
    tasks.buffers.clear(), tasks.weights.clear();
    for (Work& work : tasks.works) work.buffers.clear();
    assign_buffers(graph, plan, tasks);
  }
  cut_tiles(plan, all, tasks);
  if (strategy.dataflow()) {
    TaskGraph flowing = tasks;
    cut_for_dataflow(plan, machine, flowing);
    assign_tasks(plan, {.workers = machine.sms}, flowing);
    if (try_dataflow(plan, machine, strategy, flowing)) {
      predict(plan, all, flowing);
      return flowing;
    }
  }
  for (Work& work : tasks.works) {
    if (!strategy.one_kernel() || !work.list()) continue;
    work.form = TaskList{.waits_in_body = true,
                         .shares_rows = !strategy.batch_invariant,
                         .a_rows = async_rows(plan.groups[work.group], all, tasks, work)};
  }
  assign_tasks(plan,
               {.workers = machine.sms,
                .in_pairs = strategy.one_kernel(),
                .sharing = sharing_of(graph, plan, tasks, machine, placement)},
               tasks);
  predict(plan, all, tasks);
  return tasks;
}

}  // namespace obelisk::schedule

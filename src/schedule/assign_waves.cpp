#include "schedule/assign_waves.h"

#include <algorithm>
#include <vector>

#include "schedule/choose_tiles.h"
#include "schedule/tile_memory_bound.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

namespace {

/// What a wave takes with the works that were added to it.
struct Wave {
  double longest = 0, all = 0,
         bytes = 0;  // a task's, all tasks' nanoseconds; what goes to and from device memory

  double nanos(const machine::Machine& of) const {
    return std::max({longest, all / of.sms, bytes / (of.bytes_per_sm * of.sms)});
  }
  void add(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, Work& work) {
    const Group& group = plan.groups[work.group];
    cut_work(plan, cut, tasks, work);
    const double task = work.task_nanos + cut.machine.costs.task;
    all += static_cast<double>(count_tasks(group, work)) * task;
    if (!is_copy(group, work))
      longest =
          std::max(longest, group.kind == GroupKind::kProduct ? work.task_nanos
                                                              : task);  // streams all the while
    if (is_copy(group, work) || group.kind != GroupKind::kStitched)
      bytes += moved_bytes(group, cut, tasks, work);
  }
};

/// Adds `work` to one of its wave and those behind it up to `until`.
void place(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, int until,
           std::vector<Wave>& waves, Work& work) {
  int best = -1;
  double least = 0, idlest = 0;
  Wave filled;
  for (int wave = until; wave >= std::max(work.wave, until - machine::thresholds::kWavesAhead);
       --wave) {
    Wave with = waves[wave];
    with.add(plan, cut, tasks, work);
    const double longer = std::max(
        with.nanos(cut.machine) - std::max(waves[wave].nanos(cut.machine), cut.machine.costs.task),
        0.0);
    const double share = std::max(with.all / cut.machine.sms,
                                  with.bytes / (cut.machine.bytes_per_sm * cut.machine.sms)) /
                         with.nanos(cut.machine);
    if (best >= 0 && (longer > least + machine::thresholds::kAsLong ||
                      (longer > least - machine::thresholds::kAsLong &&
                       share > idlest - machine::thresholds::kAsIdle)))
      continue;
    best = wave, least = longer, idlest = share, filled = with;
  }
  work.wave = best, waves[best] = filled;
}

}  // namespace

void assign_waves(const Plan& plan, bool one_by_one, TaskGraph& tasks) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Work& work = tasks.works[g];
    if (one_by_one) work.wave = static_cast<int>(g);
    for (int before : plan.groups[g].after)
      work.wave = std::max(work.wave, tasks.works[before].wave + 1);
    tasks.waves = std::max(tasks.waves, work.wave + 1);
  }
}

bool place_copies(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  std::vector<Wave> waves(tasks.waves);
  std::vector<int> last(tasks.works.size(), -1);  // the wave before the first reader
  std::vector<std::pair<int, size_t>> copies;
  for (size_t w = 0; w < tasks.works.size(); ++w)
    for (int before : plan.groups[tasks.works[w].group].after)
      if (last[before] < 0 || tasks.works[w].wave - 1 < last[before])
        last[before] = tasks.works[w].wave - 1;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    Work& work = tasks.works[w];
    if (last[w] > work.wave && is_copy(plan.groups[work.group], work))
      copies.push_back({last[w], w});
    else
      waves[work.wave].add(plan, cut, tasks, work);
  }
  std::stable_sort(copies.begin(), copies.end());
  for (const auto& [until, w] : copies) place(plan, cut, tasks, until, waves, tasks.works[w]);
  return !copies.empty();
}

bool place_all(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  std::vector<int> latest(tasks.works.size(), tasks.waves - 1);  // where all are as late as may be
  for (size_t w = tasks.works.size(); w-- > 0;)
    for (int before : plan.groups[tasks.works[w].group].after)
      latest[before] = std::min(latest[before], latest[w] - 1);
  std::vector<Wave> waves(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w)
    if (Work& work = tasks.works[w]; latest[w] == work.wave)
      waves[work.wave].add(plan, cut, tasks, work);
  // From the last work on, so that the waves of all that read a work are known.
  std::vector<int> until(tasks.works.size(), tasks.waves - 1);
  bool moved = false;
  for (size_t w = tasks.works.size(); w-- > 0;) {
    Work& work = tasks.works[w];
    const int earliest = work.wave;
    if (latest[w] > earliest) place(plan, cut, tasks, until[w], waves, work);
    moved = moved || work.wave != earliest;
    for (int before : plan.groups[work.group].after)
      until[before] = std::min(until[before], work.wave - 1);
  }
  return moved;
}

}  // namespace obelisk::schedule

#include "schedule/assign_waves.h"

#include <algorithm>
#include <vector>

#include "schedule/choose_tiles.h"
#include "schedule/tile_memory_bound.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

void assign_waves(const Plan& plan, TaskGraph& tasks) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Work& work = tasks.works[g];
    for (int before : plan.groups[g].after)
      work.wave = std::max(work.wave, tasks.works[before].wave + 1);
    tasks.waves = std::max(tasks.waves, work.wave + 1);
  }
}

bool place_copies(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  const double task_begin = cut.machine.costs.task;
  struct Wave {
    double longest = 0, all = 0,
           bytes = 0;  // a task's, all tasks' nanoseconds; what goes to and from device memory
    double nanos(const machine::Machine& of) const {
      return std::max({longest, all / of.sms, bytes / (of.bytes_per_sm * of.sms)});
    }
  };
  std::vector<Wave> waves(tasks.waves);
  std::vector<int> last(tasks.works.size(), -1);  // the wave before the first reader
  std::vector<std::pair<int, size_t>> copies;
  for (size_t w = 0; w < tasks.works.size(); ++w)
    for (int before : plan.groups[tasks.works[w].group].after)
      if (last[before] < 0 || tasks.works[w].wave - 1 < last[before])
        last[before] = tasks.works[w].wave - 1;
  const auto add = [&](Work& work, Wave& to) {
    const Group& group = plan.groups[work.group];
    cut_work(plan, cut, tasks, work);
    const double task = work.task_nanos + task_begin;
    to.all += static_cast<double>(count_tasks(group, work)) * task;
    if (!is_copy(group, work))
      to.longest =
          std::max(to.longest, group.kind == GroupKind::kProduct ? work.task_nanos
                                                                 : task);  // streams all the while
    if (is_copy(group, work) || group.kind != GroupKind::kStitched)
      to.bytes += moved_bytes(group, cut, tasks, work);
  };
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    Work& work = tasks.works[w];
    if (last[w] > work.wave && is_copy(plan.groups[work.group], work))
      copies.push_back({last[w], w});
    else
      add(work, waves[work.wave]);
  }
  std::stable_sort(copies.begin(), copies.end());
  for (const auto& [until, w] : copies) {
    Work& work = tasks.works[w];
    int best = -1;
    double least = 0, idlest = 0;
    Wave filled;
    for (int wave = until; wave >= std::max(work.wave, until - machine::thresholds::kWavesAhead);
         --wave) {
      Wave with = waves[wave];
      add(work, with);
      const double longer = std::max(
          with.nanos(cut.machine) - std::max(waves[wave].nanos(cut.machine), task_begin), 0.0);
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
  return !copies.empty();
}

}  // namespace obelisk::schedule

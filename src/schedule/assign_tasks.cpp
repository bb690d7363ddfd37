#include "schedule/assign_tasks.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

void assign_tasks(const Plan& plan, int workers, bool in_pairs, TaskGraph& tasks) {
  tasks.lists.assign(workers, {});
  std::vector<std::vector<int>> by_wave(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w)
    by_wave[tasks.works[w].wave].push_back(static_cast<int>(w));
  int turn = 0;  // who goes first in a wave, so that single tasks spread over the workers
  for (int wave = 0; wave < tasks.waves; ++wave) {
    struct Item {
      ObkTask task;
      double nanos;
    };
    std::vector<Item> items;
    for (int w : by_wave[wave]) {
      const Work& work = tasks.works[w];
      const Group& group = plan.groups[work.group];
      const int64_t rows = group.kind == GroupKind::kCustom ? 1 : work.nest.row_count();
      const int64_t columns = group.kind == GroupKind::kCustom ? 1 : work.nest.column_count();
      // A product's tile stays inside one of its matrices.
      const int64_t span = tile_span(group, work);
      if (rows == 0 || span == 0 || (columns == 0 && work.nest.cut_columns)) continue;
      const auto begin = static_cast<std::ptrdiff_t>(items.size());
      for (int64_t base = 0; base < rows; base += span) {
        for (int64_t r = base; r < base + span; r += work.tile_rows) {
          const int64_t r1 = std::min(base + span, r + work.tile_rows);
          for (int64_t c = 0; c < std::max<int64_t>(columns, 1); c += work.tile_columns) {
            ObkTask task{};
            task.work = static_cast<uint32_t>(w), task.wave = static_cast<uint32_t>(wave);
            task.nanos = static_cast<int64_t>(work.task_nanos);
            task.r0 = r, task.r1 = r1, task.c0 = c,
            task.c1 = std::min(columns, c + work.tile_columns);
            items.push_back({task, work.task_nanos});
          }
        }
      }
      if (in_pairs && group.kind == GroupKind::kProduct)
        std::stable_sort(items.begin() + begin, items.end(), [&](const Item& a, const Item& b) {
          return std::pair(a.task.r0 / span, a.task.c0) < std::pair(b.task.r0 / span, b.task.c0);
        });
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.nanos > b.nanos; });
    std::vector<double> busy(workers, 0);
    std::vector<std::vector<ObkTask>> assigned(workers);
    std::vector<std::pair<uint32_t, int64_t>> member_of(
        workers, {0, -1});  // the gang, by work and number, that an SM last joined
    for (const Item& item : items) {
      const int gang = plan.groups[tasks.works[item.task.work].group].block.gang;
      const std::pair<uint32_t, int64_t> mine{item.task.work, gang > 0 ? item.task.r0 / gang : -1};
      int best = -1;
      for (int k = 0; k < workers; ++k) {
        const int sm = (turn + k) % workers;
        if (gang > 0 && member_of[sm] == mine)
          continue;  // members wait for each other: each has an SM
        if (best < 0 || busy[sm] < busy[best] - 1e-9) best = sm;
      }
      if (gang > 0) member_of[best] = mine;
      busy[best] += item.nanos;
      assigned[best].push_back(item.task);
    }
    turn = (turn + static_cast<int>(items.size())) % workers;
    if (in_pairs) turn = turn / 2 * 2;
    for (int sm = 0; sm < workers; ++sm) {
      std::stable_sort(assigned[sm].begin(), assigned[sm].end(),
                       [](const ObkTask& a, const ObkTask& b) {
                         return std::tie(a.work, a.r0, a.c0) < std::tie(b.work, b.r0, b.c0);
                       });
      tasks.lists[sm].insert(tasks.lists[sm].end(), assigned[sm].begin(), assigned[sm].end());
    }
  }
}

}  // namespace obelisk::schedule

#include "schedule/assign_tasks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "machine/machine.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

namespace {

struct Item {
  ObkTask task;
  double nanos;
};

/// The tasks of some works; in pairs: those of a product so that neighbours have the same columns.
std::vector<Item> tasks_of(const Plan& plan, const TaskGraph& tasks, const std::vector<int>& works,
                           bool in_pairs) {
  std::vector<Item> items;
  for (const int w : works) {
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
          task.work = static_cast<uint32_t>(w), task.wave = static_cast<uint32_t>(work.wave);
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
  return items;
}

/// Lists of one wave, by worker, and how long the longest takes.
struct Lists {
  std::vector<std::vector<ObkTask>> of;
  std::vector<double> busy;

  explicit Lists(int workers) : of(workers), busy(workers, 0) {}
  double longest() const { return *std::max_element(busy.begin(), busy.end()); }
};

/// Shares out `items` among `count` workers from `first` on, longest first. All workers stand in a
/// circle.
void share_out(const Plan& plan, const TaskGraph& tasks, std::vector<Item> items, int first,
               int count, Lists& lists) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.nanos > b.nanos; });
  const int workers = static_cast<int>(lists.of.size());
  std::vector<std::pair<uint32_t, int64_t>> member_of(
      workers, {0, -1});  // the gang, by work and number, that an SM last joined
  for (const Item& item : items) {
    const int gang = plan.groups[tasks.works[item.task.work].group].block.gang;
    const std::pair<uint32_t, int64_t> mine{item.task.work, gang > 0 ? item.task.r0 / gang : -1};
    int best = -1;
    for (int k = 0; k < count; ++k) {
      const int sm = (first + k) % workers;
      if (gang > 0 && member_of[sm] == mine)
        continue;  // members wait for each other: each has an SM
      if (best < 0 || lists.busy[sm] < lists.busy[best] - 1e-9) best = sm;
    }
    if (gang > 0) member_of[best] = mine;
    lists.busy[best] += item.nanos;
    lists.of[best].push_back(item.task);
  }
}

/// Lists in which no worker has tasks of works that do not share workers; none where that would
/// take much longer than `mixed`, or does not apply.
std::optional<Lists> apart(const Plan& plan, const Assignment& how, const TaskGraph& tasks,
                           const std::vector<Item>& items, int turn, double mixed) {
  struct Part {
    std::vector<Item> items;
    double nanos = 0;
  };
  std::map<int, Part> by_number;
  double all = 0;
  for (const Item& item : items) {
    if (plan.groups[tasks.works[item.task.work].group].block.gang > 0) return {};
    Part& part = by_number[how.sharing[item.task.work]];
    part.items.push_back(item), part.nanos += item.nanos, all += item.nanos;
  }
  if (by_number.size() < 2) return {};
  std::optional<Lists> best;
  // Where one part ends and the next begins is rounded down, or up.
  const int step = how.in_pairs ? 2 : 1;
  for (const int up : {0, step}) {
    Lists lists(how.workers);
    double before = 0;
    int first = 0;
    size_t left = by_number.size();
    for (const auto& [number, part] : by_number) {
      before += part.nanos;
      const int share = static_cast<int>(how.workers * before / all) / step * step + up;
      const int end = --left > 0 ? share : how.workers;
      if (end <= first || (left > 0 && end >= how.workers)) break;
      share_out(plan, tasks, part.items, turn + first, end - first, lists);
      first = end;
    }
    if (left == 0 &&
        lists.longest() <= (best ? best->longest() : mixed * machine::thresholds::kLongerApart))
      best = std::move(lists);
  }
  return best;
}

}  // namespace

void assign_tasks(const Plan& plan, const Assignment& how, TaskGraph& tasks) {
  const int workers = how.workers;
  tasks.lists.assign(workers, {});
  std::vector<std::vector<int>> by_wave(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w)
    by_wave[tasks.works[w].wave].push_back(static_cast<int>(w));
  int turn = 0;  // who goes first in a wave, so that single tasks spread over the workers
  for (const std::vector<int>& works : by_wave) {
    const std::vector<Item> items = tasks_of(plan, tasks, works, how.in_pairs);
    Lists lists(workers);
    share_out(plan, tasks, items, turn, workers, lists);
    if (!how.sharing.empty())
      if (auto disjoint = apart(plan, how, tasks, items, turn, lists.longest()))
        lists = std::move(*disjoint);
    turn = (turn + static_cast<int>(items.size())) % workers;
    if (how.in_pairs) turn = turn / 2 * 2;
    for (int sm = 0; sm < workers; ++sm) {
      std::stable_sort(lists.of[sm].begin(), lists.of[sm].end(),
                       [](const ObkTask& a, const ObkTask& b) {
                         return std::tie(a.work, a.r0, a.c0) < std::tie(b.work, b.r0, b.c0);
                       });
      tasks.lists[sm].insert(tasks.lists[sm].end(), lists.of[sm].begin(), lists.of[sm].end());
    }
  }
}

double busiest_nanos(const std::vector<std::vector<ObkTask>>& lists, int waves,
                     const std::function<double(const ObkTask&)>& nanos_of) {
  std::vector<double> longest(waves, 0);
  for (const std::vector<ObkTask>& list : lists) {
    std::vector<double> busy(waves, 0);
    for (const ObkTask& task : list) busy[task.wave] += nanos_of(task);
    for (int wave = 0; wave < waves; ++wave) longest[wave] = std::max(longest[wave], busy[wave]);
  }
  return std::accumulate(longest.begin(), longest.end(), 0.0);
}

}  // namespace obelisk::schedule

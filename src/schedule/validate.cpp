#include <algorithm>
#include <map>

#include "schedule/dataflow_check.h"
#include "schedule/dataflow_spans.h"
#include "schedule/in_place_kv.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule {
namespace {

Error refused(std::string text) {
  return Error{Code::kBuild, "schedule", "the task table is refused: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

/// Tasks of one work, as rectangles: inside the domain, disjoint, and together all of it.
Status check_cover(const stitch::Plan& plan, const TaskGraph& tasks, size_t w,
                   const std::vector<const ObkTask*>& mine) {
  const Work& work = tasks.works[w];
  const bool custom = plan.groups[work.group].kind == stitch::GroupKind::kCustom;
  const int64_t rows = custom ? 1 : work.nest.row_count();
  const int64_t columns = custom                  ? 1
                          : work.nest.cut_columns ? work.nest.column_count()
                                                  : std::max<int64_t>(work.nest.column_count(), 1);
  const bool whole_columns = !custom && !work.nest.cut_columns;
  const int64_t span = tile_span(plan.groups[work.group], work);
  std::vector<const ObkTask*> sorted = mine;
  std::sort(sorted.begin(), sorted.end(), [](const ObkTask* a, const ObkTask* b) {
    return std::tie(a->r0, a->c0) < std::tie(b->r0, b->c0);
  });
  int64_t row = 0;
  for (size_t k = 0; k < sorted.size();) {
    const ObkTask& first = *sorted[k];
    if (first.r0 != row)
      return refused(fmt::format("work {} computes row {} {}", w, std::min(first.r0, row),
                                 first.r0 < row ? "twice" : "never"));
    if (first.r1 <= first.r0 || first.r1 > rows)
      return refused(fmt::format("work {} has rows {}..{} of {}", w, first.r0, first.r1, rows));
    if (span > 0 && first.r0 / span != (first.r1 - 1) / span)
      return refused(fmt::format("work {} has a tile over two matrices", w));
    int64_t column = 0;
    for (; k < sorted.size() && sorted[k]->r0 == first.r0; ++k) {
      const ObkTask& task = *sorted[k];
      if (task.r1 != first.r1)
        return refused(fmt::format("work {} has tiles of unequal rows side by side", w));
      if (task.c0 != column)
        return refused(fmt::format("work {} computes column {} {}", w, std::min(task.c0, column),
                                   task.c0 < column ? "twice" : "never"));
      if (whole_columns && task.c1 - task.c0 < work.nest.column_count())
        return refused(fmt::format("work {} reduces only a part of its columns", w));
      column = task.c1;
    }
    if (column != columns && !whole_columns)
      return refused(fmt::format("work {} computes {} of {} columns", w, column, columns));
    row = first.r1;
  }
  const bool empty =
      rows == 0 || (work.nest.cut_columns && work.nest.column_count() == 0 && !custom);
  if (row != rows && !empty)
    return refused(fmt::format("work {} computes {} of {} rows", w, row, rows));
  if (empty && !mine.empty())
    return refused(fmt::format("work {} has tasks but nothing to compute", w));
  return ok_status();
}

/// Tasks of a work that each worker computes for itself, as much as it reads: inside the domain.
Status check_inside(const Work& work, size_t w, const std::vector<const ObkTask*>& mine) {
  for (const ObkTask* task : mine)
    if (task->r0 < 0 || task->r1 <= task->r0 || task->r1 > work.nest.row_count() || task->c0 < 0 ||
        task->c1 > std::max<int64_t>(work.nest.column_count(), 1) ||
        (!work.nest.cut_columns && task->c1 - task->c0 != work.nest.column_count()))
      return refused(fmt::format("work {} has rows {}..{} and columns {}..{} of {} x {}", w,
                                 task->r0, task->r1, task->c0, task->c1, work.nest.row_count(),
                                 work.nest.column_count()));
  return ok_status();
}

/// Members of a gang wait for each other, so each has an SM of its own; and all SMs meet the gangs
/// of a wave in one order, so that no two gangs wait for each other's members.
Status check_gangs(const stitch::Plan& plan, const TaskGraph& tasks) {
  for (size_t sm = 0; sm < tasks.lists.size(); ++sm) {
    std::tuple<uint32_t, uint32_t, int64_t> before{0, 0, -1};
    for (const ObkTask& task : tasks.lists[sm]) {
      const int gang = plan.groups[tasks.works[task.work].group].block.gang;
      if (gang <= 0) continue;
      if (task.r1 != task.r0 + 1)
        return refused(fmt::format("work {} has {} members of a gang in one task", task.work,
                                   task.r1 - task.r0));
      const std::tuple<uint32_t, uint32_t, int64_t> mine{task.wave, task.work, task.r0 / gang};
      if (mine == before)
        return refused(fmt::format("SM {} has two members of gang {} of work {}", sm,
                                   task.r0 / gang, task.work));
      if (mine < before)
        return refused(
            fmt::format("SM {} meets gang {} of work {} too late", sm, task.r0 / gang, task.work));
      before = mine;
    }
  }
  return ok_status();
}

/// Whatever a work reads was stored before, all of it, and nobody stores any of it in the wave in
/// which it is read: not even the work itself, whose tasks run in any order. Elements are compared
/// as boxes of a storage, so that a concatenation is what all its pieces are.
Status check_order(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  struct Store {
    size_t work;
    ValueId value;
    StorageBox box;
  };
  std::map<ValueId, std::vector<Store>> stores;  // by storage
  for (size_t w = 0; w < tasks.works.size(); ++w)
    for (const WorkAccess& access : accesses_of(graph, plan, tasks.works[w]).stores) {
      TRY(StorageBox box, storage_box(graph, plan, access.value));
      for (const Store& other : stores[box.storage])
        if (shared_volume(other.box, box) > 0)
          return refused(fmt::format("work {} stores value %{} where work {} stores value %{}", w,
                                     access.value, other.work, other.value));
      stores[box.storage].push_back({w, access.value, std::move(box)});
    }
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    for (const WorkAccess& access : accesses_of(graph, plan, work).reads) {
      TRY(const StorageBox box, storage_box(graph, plan, access.value));
      const BufferKind kind = tasks.buffers[work.buffers[access.slot]].kind;
      int64_t stored = kind == BufferKind::kInput || kind == BufferKind::kWeight ? box.volume() : 0;
      for (const Store& store : stores[box.storage]) {
        const int64_t volume = shared_volume(store.box, box);
        if (volume == 0) continue;
        if (store.work == w)
          return refused(
              fmt::format("work {} reads value %{}, of which it stores a part, %{}, itself", w,
                          access.value, store.value));
        const int wave = tasks.works[store.work].wave;
        if (wave >= work.wave)
          return refused(
              fmt::format("work {} (wave {}) reads of value %{} what work {} writes in wave {}", w,
                          work.wave, access.value, store.work, wave));
        stored += volume;
      }
      if (stored != box.volume())
        return refused(fmt::format("work {} reads value %{}, of which {} of {} elements are stored",
                                   w, access.value, stored, box.volume()));
    }
  }
  return ok_status();
}

/// A work that writes where an input lies: into the output that takes the input's memory, and when
/// all that read the input have run. What it does not write is read as the output's from then on.
Status check_in_place(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  for (const stitch::InPlace& each : plan.in_place) {
    if (each.group < 0) continue;
    const ValueId old = graph.inputs()[static_cast<size_t>(each.input)];
    if (graph.in_place_of(static_cast<size_t>(each.output)) != each.input ||
        plan.groups[static_cast<size_t>(each.group)].in_place_of != old)
      return refused(fmt::format("output '{}' is not in place of input %{}",
                                 graph.output_names()[static_cast<size_t>(each.output)], old));
  }
  std::map<ValueId, size_t> writers;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    const ValueId old = plan.groups[work.group].in_place_of;
    if (old == graph::kNone) continue;
    if (tasks.dataflow && !updates_caches(plan, tasks, w))
      return refused(fmt::format("work {} of a dataflow program overwrites input %{}", w, old));
    const auto declared =
        std::find_if(plan.in_place.begin(), plan.in_place.end(),
                     [&](const stitch::InPlace& each) { return each.group == work.group; });
    if (declared == plan.in_place.end())
      return refused(
          fmt::format("work {} overwrites input %{}, whose memory no output takes", w, old));
    if (graph.is_output(old))
      return refused(fmt::format("work {} overwrites input %{}, which is an output", w, old));
    for (const WorkAccess& access : accesses_of(graph, plan, work).stores) {
      const Buffer& buffer = tasks.buffers[work.buffers[access.slot]];
      if (buffer.kind != BufferKind::kOutput || buffer.index != declared->output)
        return refused(fmt::format("work {} overwrites input %{}, but stores value %{} elsewhere",
                                   w, old, access.value));
    }
    writers.emplace(old, w);  // the only one: no two outputs are in place of one input
  }
  if (writers.empty()) return ok_status();
  for (size_t w = 0; w < tasks.works.size(); ++w)
    for (const WorkAccess& access : accesses_of(graph, plan, tasks.works[w]).reads) {
      const auto writer = writers.find(plan.layouts[access.value].storage);
      if (writer == writers.end()) continue;
      const int wave = tasks.works[writer->second].wave;
      if (tasks.works[w].wave >= wave)
        return refused(
            fmt::format("work {} (wave {}) reads input %{}, which work {} overwrites in "
                        "wave {}",
                        w, tasks.works[w].wave, writer->first, writer->second, wave));
    }
  return ok_status();
}

}  // namespace

Status validate(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  std::vector<std::vector<const ObkTask*>> by_work(tasks.works.size());
  for (size_t sm = 0; sm < tasks.lists.size(); ++sm) {
    uint32_t wave = 0;
    for (const ObkTask& task : tasks.lists[sm]) {
      if (task.work >= tasks.works.size())
        return refused(
            fmt::format("SM {} has a task of work {}, of {}", sm, task.work, tasks.works.size()));
      if (task.wave < wave)
        return refused(fmt::format("SM {} goes back from wave {} to {}", sm, wave, task.wave));
      if (static_cast<int>(task.wave) != tasks.works[task.work].wave)
        return refused(fmt::format("SM {} runs work {} in wave {} instead of {}", sm, task.work,
                                   task.wave, tasks.works[task.work].wave));
      wave = task.wave;
      by_work[task.work].push_back(&task);
    }
    if (static_cast<int>(wave) >= std::max(tasks.waves, 1))
      return refused(fmt::format("SM {} has wave {} of {}", sm, wave, tasks.waves));
  }
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    TRY_STATUS(work.replicated() ? check_inside(work, w, by_work[w])
                                 : check_cover(plan, tasks, w, by_work[w]));
    for (int before : plan.groups[work.group].after)
      if (tasks.works[before].wave >= work.wave)
        return refused(fmt::format("work {} (wave {}) reads what work {} writes in wave {}", w,
                                   work.wave, before, tasks.works[before].wave));
    for (int b : work.buffers) {
      if (b < 0 || b >= static_cast<int>(tasks.buffers.size()))
        return refused(fmt::format("work {} names buffer {}", w, b));
      const Buffer& buffer = tasks.buffers[b];
      if (buffer.kind == BufferKind::kArena &&
          (work.wave < buffer.first || work.wave > buffer.last))
        return refused(fmt::format("work {} uses buffer {} in wave {}, alive in {}..{}", w, b,
                                   work.wave, buffer.first, buffer.last));
    }
  }
  TRY_STATUS(check_order(graph, plan, tasks));
  TRY_STATUS(check_in_place(graph, plan, tasks));
  TRY_STATUS(check_gangs(plan, tasks));
  if (tasks.dataflow) TRY_STATUS(validate_dataflow(plan, tasks));
  // Buffers that are alive together do not share bytes, and none leaves the arena.
  std::vector<const Buffer*> arena;
  for (const Buffer& buffer : tasks.buffers) {
    if (buffer.kind != BufferKind::kArena) continue;
    if (buffer.offset.count < 0 || buffer.offset + buffer.room() > tasks.arena)
      return refused(fmt::format("value %{} lies outside of the arena", buffer.value));
    arena.push_back(&buffer);
  }
  std::sort(arena.begin(), arena.end(),
            [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
  for (size_t a = 0; a < arena.size(); ++a) {
    for (size_t b = a + 1;
         b < arena.size() && arena[b]->offset < arena[a]->offset + arena[a]->room(); ++b) {
      if (arena[a]->first <= arena[b]->last && arena[b]->first <= arena[a]->last)
        return refused(fmt::format("values %{} and %{} share bytes in wave {}", arena[a]->value,
                                   arena[b]->value, std::max(arena[a]->first, arena[b]->first)));
    }
  }
  return ok_status();
}

}  // namespace obelisk::schedule

#include "schedule/dataflow_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "schedule/dataflow_spans.h"
#include "schedule/in_place_kv.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;
using stitch::Step;
using stitch::StepKind;

Status validate_dataflow(const Plan& plan, const TaskGraph& tasks) {
  const auto refused = [](std::string text) {
    return Error{Code::kBuild, "schedule", "the task table is refused: " + std::move(text), "",
                 "this is a defect of Obelisk; please report it with the model"};
  };
  std::vector<int> broadcast_in(tasks.buffers.size(), -1);  // the last wave that gives to it
  for (const Work& work : tasks.works) {
    const Group& group = plan.groups[work.group];
    if (reads_an_output(plan, tasks, work))
      return refused(
          fmt::format("wave {} reads an output of the program, for which nobody waits", work.wave));
    for (const Step& step : group.body.steps) {
      if (step.kind != StepKind::kStore) continue;
      const Buffer& buffer = tasks.buffers[work.buffers[step.slot]];
      if (work.replicated() && std::any_of(work.nest.accesses.begin(), work.nest.accesses.end(),
                                           [&](const Access& access) {
                                             return access.step >= 0 &&
                                                    !stores_neighbours(work, group, access);
                                           }))
        return refused(
            fmt::format("nobody can tell which elements of value %{} a worker has", buffer.value));
      if (buffer.reach == Reach::kBroadcast && work.replicated())
        return refused(
            fmt::format("value %{} is broadcast, and computed by each worker", buffer.value));
      if (buffer.reach != Reach::kBroadcast && !work.replicated() &&
          buffer.kind == BufferKind::kArena)
        return refused(
            fmt::format("value %{} is computed in parts and not broadcast", buffer.value));
      if (!work.replicated())
        broadcast_in[work.buffers[step.slot]] =
            std::max(broadcast_in[work.buffers[step.slot]], work.wave);
    }
  }
  for (const Buffer& buffer : tasks.buffers) {
    if (buffer.copy_at.count < 0) continue;
    if (buffer.copy_at + buffer.size > tasks.copies)
      return refused(fmt::format("the copy of value %{} leaves its place", buffer.value));
  }
  for (size_t sm = 0; sm < tasks.lists.size(); ++sm) {
    std::map<int, std::vector<Span>> written;
    std::map<int64_t, std::pair<int64_t, int>>
        lies;  // in scratchpad memory: from, to, which copy was put there last
    const auto put = [&](int b) {
      const Buffer& buffer = tasks.buffers[b];
      const int64_t low = buffer.copy_at.count, high = low + buffer.size.count;
      for (auto it = lies.begin(); it != lies.end();)
        it = it->first < high && low < it->second.first ? lies.erase(it) : std::next(it);
      lies[low] = {high, b};
    };
    const auto is_there = [&](int b) {
      const auto it = lies.find(tasks.buffers[b].copy_at.count);
      return it != lies.end() && it->second.second == b;
    };
    std::set<int> gathered;
    for (const ObkTask& task : tasks.lists[sm]) {
      const Work& work = tasks.works[task.work];
      const Group& group = plan.groups[work.group];
      if (group.kind == GroupKind::kAttention && task.weight_group != 0) {
        const auto kv = find_in_place_kv(plan, tasks, task);
        ObkTask named = task;
        if (kv) name_in_place_kv(*kv, named);
        const size_t last = work.buffers.size() - 1;
        if (!kv || !work.dataflow || !work.dataflow->in_place_kv ||
            memcmp(&named, &task, sizeof task) != 0 || work.buffers[last - 1] != kv->k_buffer ||
            work.buffers[last] != kv->v_buffer)
          return refused(fmt::format("work {} takes keys from where the caller does not keep them",
                                     task.work));
      }
      if (const auto update = find_cache_update(plan, tasks, work)) {
        const auto& named = work.dataflow ? work.dataflow->cache_rows : std::nullopt;
        Dataflow::NewRows rows = update->rows;
        if (named) rows.slot = named->slot;
        if (!named || rows != *named || named->slot + 3 > work.buffers.size() ||
            work.buffers[named->slot] != update->index ||
            work.buffers[named->slot + 1] != update->new_keys ||
            work.buffers[named->slot + 2] != update->new_values)
          return refused(fmt::format("work {} takes new keys from where they are not", task.work));
        for (const int operand : {1, 2})
          if (!attention_reads(group.attention, task, operand).empty())
            return refused(fmt::format("work {} reads keys that nobody waits for", task.work));
      }
      for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
        const int b = work.buffers[slot];
        const Buffer& buffer = tasks.buffers[b];
        const Span reads = read_by(plan, tasks, task, slot);
        if (reads.empty()) continue;
        if (buffer.reach == Reach::kBroadcast) {
          if (broadcast_in[b] < 0 || broadcast_in[b] >= work.wave)
            return refused(fmt::format("work {} waits for value %{}, which is not broadcast before",
                                       task.work, buffer.value));
          if (gathered.insert(b).second)
            put(b);
          else if (!is_there(b))
            return refused(
                fmt::format("SM {} has overwritten its copy of value %{}, which work {} reads", sm,
                            buffer.value, task.work));
          continue;
        }
        if (buffer.reach == Reach::kLocal && !is_there(b))
          return refused(fmt::format("SM {} has no copy of value %{}, which work {} reads", sm,
                                     buffer.value, task.work));
        // All of what is read: spans of rows, joined where they meet.
        std::vector<Span>& mine = written[b];
        std::sort(mine.begin(), mine.end(),
                  [](const Span& x, const Span& y) { return x.low < y.low; });
        int64_t end = reads.low;
        for (const Span& span : mine)
          if (span.low <= end) end = std::max(end, span.high);
        if (end < reads.high)
          return refused(
              fmt::format("SM {} reads element {} of value %{} in work {} and has not computed it",
                          sm, end, buffer.value, task.work));
      }
      std::set<int> stored;
      for (const Step& step : group.body.steps)
        if (step.kind == StepKind::kStore && work.replicated())
          stored.insert(work.buffers[step.slot]);
      for (const int b : stored) {
        if (tasks.buffers[b].reach == Reach::kLocal && !is_there(b)) put(b), written[b].clear();
        for (int64_t row = task.r0; row < task.r1; ++row)
          written[b].push_back(written_in_row(plan, tasks, work, b, row, task.c0, task.c1));
      }
    }
  }
  return ok_status();
}

}  // namespace obelisk::schedule

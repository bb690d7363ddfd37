#include "schedule/choose_tiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "schedule/schedule.h"
#include "schedule/tile_attention.h"
#include "schedule/tile_conv.h"
#include "schedule/tile_gemm.h"
#include "schedule/tile_gemm_pipelined.h"
#include "schedule/tile_gemm_streamed.h"
#include "schedule/tile_memory_bound.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;
using stitch::StepKind;

void cut_work(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, Work& work,
              double waits) {
  const Group& group = plan.groups[work.group];
  if (group.kind == GroupKind::kCustom) {
    work.tile_rows = work.tile_columns = 1;
    return;
  }
  if (group.kind == GroupKind::kBlock && group.block.gang > 0) {  // an item a task
    work.tile_rows = work.tile_columns = 1;
    work.task_nanos = group.block.nanos;
    work.form = Gang{static_cast<int>(group.block.gang)};
    return;
  }
  const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
  const double bytes = moved_bytes(group, cut, tasks, work);
  // A block walks its elements one by one, with compares or divisions: about a vector's width
  // slower.
  const double slower = group.kind == GroupKind::kBlock ? cut.machine.costs.block_over_roof : 1;
  const double nanos = std::max(bytes / cut.machine.bytes_per_sm,
                                group.cost.flops.count * slower / cut.machine.flops_per_sm);
  int64_t pieces =
      std::clamp<int64_t>(static_cast<int64_t>(nanos * waits / cut.machine.smallest_task.count()),
                          1, int64_t{cuts_once(cut) ? 1 : 2} * cut.workers.count);
  if (pieces > cut.workers.count) pieces = pieces / cut.workers.count * cut.workers.count;
  work.tile_rows = std::max<int64_t>(rows, 1);
  work.tile_columns = std::max<int64_t>(columns, 1);
  for (const stitch::Step& step :
       group.body.steps)  // packed elements share bytes: one worker writes them all
    if (step.kind == StepKind::kStore &&
        bits(tasks.buffers[work.buffers[step.slot]].type.dtype) < 8)
      pieces = 1;
  work.form = TaskList{}, work.streams_b = false;
  if (group.kind == GroupKind::kProduct && cut_streamed(group, tasks, cut, work)) return;
  if (group.kind == GroupKind::kProduct) work.tile_rows = tile_span(group, work.nest);
  if (group.kind == GroupKind::kProduct && cut_pipelined(group, cut, tasks, work)) return;
  if (group.kind == GroupKind::kProduct && cut_by_cost(group, tasks, cut, work)) {
    const double nanos = cut_gemm_grid(group, tasks, cut, count_tasks(group, work), work);
    cut_pipelined(group, cut, tasks, work, nanos);
    return;
  }
  if (group.kind == GroupKind::kConv) {
    if (cut_conv_by_cost(plan, group.conv, cut, work))
      return cut_conv_grid(plan, group.conv, cut, count_tasks(group, work), work);
    cut_conv(group.conv, cut, pieces, work);
    work.task_nanos = nanos * (static_cast<double>(work.tile_rows) / rows) *
                      (static_cast<double>(work.tile_columns) / columns);
    return;
  }
  if (group.kind == GroupKind::kAttention) {
    cut_attention(group.attention, cut, pieces, work);
    const int64_t tasks_of_it = group.attention.images * group.attention.heads *
                                group.attention.kv_splits *
                                ((group.attention.queries + work.tile_rows - 1) / work.tile_rows);
    work.task_nanos = nanos / static_cast<double>(std::max<int64_t>(tasks_of_it, 1));
    // No more tasks than workers need no table, and start earlier without.
    const stitch::AttentionTile& tile = group.attention;
    const bool even = rows == tile.queries ||
                      tile.queries % work.tile_rows ==
                          0;  // rectangles of one grid: none ends with a head's or an image's rows
    const bool rectangles = cut.strategy.min_grid_bytes.count != 0 && tile.kv_splits == 1 && even &&
                            tasks_of_it <= cut.workers.count &&
                            work.buffers.size() <= size_t{kGridOperands};
    if (rectangles) work.form = Rectangles{};
    return;
  }
  if (pieces <= 1 && group.kind != GroupKind::kProduct) {
    work.task_nanos = nanos;
    return;
  }
  if (cut_to_grid(group, cut, tasks, work)) return;
  if (group.kind == GroupKind::kProduct) {
    cut_product(group, cut, pieces, work);
  } else if (work.nest.cut_columns && rows < pieces) {
    int64_t per_row = (pieces + rows - 1) / std::max<int64_t>(rows, 1);
    // A few tasks more than workers would take twice as long.
    if (cuts_once(cut) && is_copy(group, work) && rows * per_row > cut.workers.count)
      per_row = std::max<int64_t>(pieces / rows, 1);
    work.tile_rows = 1;
    work.tile_columns = std::max<int64_t>(((columns + per_row - 1) / per_row + 63) / 64 * 64, 64);
  } else {
    work.tile_rows = (rows + pieces - 1) / pieces;
    if (work.nest.lanes_in_rows || transposes(work.nest))
      work.tile_rows = (work.tile_rows + 63) / 64 * 64;  // whole vectors
    if (cuts_once(cut) && transposes(work.nest)) {  // whole squares, which a task takes in turn
      constexpr int64_t kSide = kernels::kGridSide;
      const int64_t across =
          std::max<int64_t>(pieces / ((rows + work.tile_rows - 1) / work.tile_rows), 1);
      work.tile_columns =
          std::min(columns, ((columns + across - 1) / across + kSide - 1) / kSide * kSide);
    }
    if (const int64_t batch = rows_at_once(group, cut, tasks, work)) {
      if (work.tile_rows > batch) work.tile_rows = batch;
      work.task_nanos = batch_nanos(cut, work);
      return;
    }
  }
  work.task_nanos =
      nanos * (static_cast<double>(work.tile_rows) / std::max<int64_t>(rows, 1)) *
      (static_cast<double>(std::min(work.tile_columns, columns)) / std::max<int64_t>(columns, 1));
}

namespace {

/// What all tasks of a work take.
double nanos_of(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, const Work& work) {
  const Group& group = plan.groups[work.group];
  if (const int64_t batch = rows_at_once(group, cut, tasks, work))
    return static_cast<double>((work.nest.row_count() + batch - 1) / batch) *
           batch_nanos(cut, work);
  return static_cast<double>(count_tasks(group, work)) *
         (slower_than_roof(group, cut) * work.task_nanos + cut.machine.costs.task);
}

/// Whether a worker computes two tasks of kernels of their own at once, each of which waits
/// for its loads most of the time (`h200_batches.json`, `steps`).
bool two_share_a_worker(const Plan& plan, const Cutting& cut, const Work& work) {
  const Group& group = plan.groups[work.group];
  return cut.strategy.min_grid_bytes.count != 0 &&
         (group.kind == GroupKind::kStitched ||
          (group.kind == GroupKind::kConv && group.conv.depthwise));
}

/// What a work takes in rounds of so many workers, or gangs of them.
double rounds_nanos(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, const Work& work,
                    int workers) {
  const double all = nanos_of(plan, cut, tasks, work);
  const auto count = static_cast<double>(count_tasks(plan.groups[work.group], work));
  const int64_t parts = work.pipelined() ? work.pipelined()->parts : 1;
  const auto at_once = static_cast<double>(machine::gangs_at_once(workers, parts));
  return count == 0 ? 0 : all / count * std::ceil(count / at_once);
}

/// Works of a wave are cut again, each for its share of the workers, so that together they fill
/// them once. A worker computes one task of a pipelined GEMM at a time: where each GEMM of a wave
/// fills the workers alone they run one after another, and keep the tiles that they have alone if
/// that takes less. A worker computes several tasks of other kernels at once, and networks were
/// slower where these kept theirs (`h200_dispatch_peers.json`, `kernels_in_turn`).
void share_workers(const Plan& plan, const Cutting& cut, TaskGraph& tasks,
                   const std::vector<size_t>& wave) {
  if (wave.size() < 2) return;
  std::vector<double> nanos;
  std::vector<Work> alone;
  double in_turn = 0, together = 0;
  bool pipelined = true;
  for (size_t w : wave) {
    const Work& work = alone.emplace_back(tasks.works[w]);
    pipelined &= work.pipelined() != nullptr;
    nanos.push_back(nanos_of(plan, cut, tasks, work));
    in_turn += rounds_nanos(plan, cut, tasks, work, cut.workers.count);
  }
  const double all = std::accumulate(nanos.begin(), nanos.end(), 0.0);
  for (size_t k = 0; k < wave.size(); ++k) {
    Work& work = tasks.works[wave[k]];
    const double tasks_of_worker = two_share_a_worker(plan, cut, work) ? 2 : 1;
    const WorkerBudget share{
        std::clamp(static_cast<int>(tasks_of_worker * cut.workers.count * nanos[k] / all), 1,
                   cut.workers.count)};
    cut_work(plan, cut.within(share), tasks, work, slower_than_roof(plan.groups[work.group], cut));
    together = std::max(together, rounds_nanos(plan, cut, tasks, work, share.count));
  }
  if (!pipelined || in_turn >= machine::thresholds::kWorthTurns * together) return;
  for (size_t k = 0; k < wave.size(); ++k) tasks.works[wave[k]] = std::move(alone[k]);
}

/// Whether a kernel of its own is a grid of rectangles whose operands fit its parameter, and
/// nothing in its tasks is found in a table: it starts earlier without one.
bool needs_no_table(const Plan& plan, const Cutting& cut, const TaskGraph& tasks,
                    const Work& work) {
  const Group& group = plan.groups[work.group];
  const bool conv = group.kind == GroupKind::kConv && group.conv.depthwise;
  if (cut.strategy.min_grid_bytes.count == 0 || !work.list() || work.list()->shares_rows ||
      (group.kind != GroupKind::kStitched && !conv) || group.partials != graph::kNone)
    return false;
  const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
  if (rows == 0 || columns == 0 || rows > INT32_MAX || columns > INT32_MAX ||
      work.buffers.size() > size_t{kGridOperands})
    return false;
  // Rectangles of one grid: none ends with an image's rows.
  const int64_t span = tile_span(group, work);
  if (rows != span && span % work.tile_rows != 0) return false;
  // Kernels that name the caller's memory are told of it anew where it changes.
  return std::none_of(work.buffers.begin(), work.buffers.end(), [&](int buffer) {
    const BufferKind kind = tasks.buffers[buffer].kind;
    return kind == BufferKind::kInput || kind == BufferKind::kOutput;
  });
}

/// Works that are cut, each for the workers that it has.
void cut_works(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  for (Work& work : tasks.works) cut_work(plan, cut, tasks, work);
  if (!cuts_once(cut)) return;
  std::vector<std::vector<size_t>> by_wave(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w) by_wave[tasks.works[w].wave].push_back(w);
  for (std::vector<size_t>& wave : by_wave) {
    if (wave.size() < 2 || wave.size() > static_cast<size_t>(cut.workers.count)) continue;
    // Copies beside what is computed take the workers that it leaves, or where those are few their
    // share of all.
    const auto first_copy = std::stable_partition(wave.begin(), wave.end(), [&](size_t w) {
      return !is_copy(plan.groups[tasks.works[w].group], tasks.works[w]);
    });
    std::vector<size_t> copies;
    if (first_copy != wave.begin())
      copies.assign(first_copy, wave.end()), wave.erase(first_copy, wave.end());
    double computed = 0, copied = 0;
    for (size_t w : wave) computed += nanos_of(plan, cut, tasks, tasks.works[w]);
    for (size_t w : copies) copied += nanos_of(plan, cut, tasks, tasks.works[w]);
    share_workers(plan, cut, tasks, wave);
    if (copies.empty()) continue;
    int64_t busy = 0;
    for (size_t w : wave) busy += count_tasks(plan.groups[tasks.works[w].group], tasks.works[w]);
    WorkerBudget rest = cut.workers;
    if (busy < rest.count)
      rest.count = std::max(rest.count - static_cast<int>(busy),
                            static_cast<int>(rest.count * (copied / (copied + computed))));
    rest.count = std::max<int>(rest.count / static_cast<int>(copies.size()), 1);
    for (size_t w : copies)
      cut_work(plan, cut.within(rest), tasks, tasks.works[w],
               slower_than_roof(plan.groups[tasks.works[w].group], cut));
  }
}

}  // namespace

void cut_tiles(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  cut_works(plan, cut, tasks);
  for (Work& work : tasks.works)
    if (needs_no_table(plan, cut, tasks, work)) work.form = Rectangles{};
}

}  // namespace obelisk::schedule

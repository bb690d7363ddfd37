#include "schedule/tile_memory_bound.h"

#include <algorithm>

#include "schedule/schedule.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::StepKind;

bool transposes(const Nest& nest) {
  if (nest.rows == 0 || nest.dims.size() != static_cast<size_t>(nest.rows) + 1 || !nest.cut_columns)
    return false;
  return std::any_of(nest.accesses.begin(), nest.accesses.end(), [&](const Access& access) {
    return access.affine && access.step < 0 && access.strides[nest.rows - 1] == 1 &&
           access.strides.back() > 1;
  });
}

bool cut_to_grid(const Group& group, const Cutting& cut, const TaskGraph& tasks, Work& work) {
  constexpr int64_t kSide = kernels::kGridSide;
  const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
  work.form = TaskList{};
  if (cut.strategy.min_grid_bytes.count == 0 || group.kind != GroupKind::kStitched ||
      work.nest.lanes_in_rows || columns == 0)
    return false;
  const double bytes = moved_bytes(group, cut, tasks, work);
  if (bytes < static_cast<double>(cut.strategy.min_grid_bytes.count) ||
      work.buffers.size() > size_t{kGridOperands})
    return false;
  for (const stitch::Step& step : group.body.steps)  // packed elements share bytes
    if (step.kind == StepKind::kStore &&
        bits(tasks.buffers[work.buffers[step.slot]].type.dtype) < 8)
      return false;
  const auto fit =
      static_cast<int64_t>(cut.machine.costs.grid_task_bytes * static_cast<double>(rows) *
                           static_cast<double>(columns) / bytes);  // elements
  work.form = Grid{}, work.tile_rows = 1, work.tile_columns = columns;
  if (transposes(work.nest)) {
    const int64_t tall = byte_size(tasks.buffers[work.buffers.back()].type.dtype, 1) == 2
                             ? 2 * kSide
                             : kSide;  // of 16 bits: as many bytes
    work.tile_rows = std::min(rows, tall),
    work.tile_columns = std::min(columns, std::max(fit / tall / kSide, int64_t{1}) * kSide);
  } else if (work.nest.cut_columns && fit < columns) {
    const int64_t cuts = (columns + fit - 1) / std::max<int64_t>(fit, 1);
    work.tile_columns =
        std::min(columns, ((columns + cuts - 1) / cuts + kSide - 1) / kSide * kSide);
  } else {
    // A task of few rows waits for its loads and its sums, so it takes some more than fit: where
    // one and a part fit two, where two and a part four; the latter not where rows are staged. Fit;
    // not on record.
    int64_t most = fit / columns;
    if (most == 1 || (most < 4 && most > 1 && group.body.staged == 0))
      most = fit > 2 * columns ? 4 : fit > columns ? 2 : 1;
    work.tile_rows = std::clamp<int64_t>(most, 1, rows);
    if (work.tile_rows > kSide) work.tile_rows = work.tile_rows / kSide * kSide;
  }
  work.task_nanos = bytes / cut.machine.bytes_per_sm *
                    (static_cast<double>(work.tile_rows) / static_cast<double>(rows)) *
                    (static_cast<double>(work.tile_columns) / static_cast<double>(columns));
  return true;
}

bool is_copy(const Group& group, const Work& work) {
  const bool one_store =
      group.body.steps.size() == 1 && group.body.steps[0].kind == StepKind::kStore;
  if (group.kind != GroupKind::kStitched || !group.after.empty() || group.nodes.size() != 1 ||
      !one_store)
    return false;
  return work.nest.accesses.size() == 2 && work.nest.accesses[0].affine &&
         work.nest.accesses[1].affine;
}

}  // namespace obelisk::schedule

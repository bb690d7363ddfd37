#include "schedule/cost_model.h"

#include <algorithm>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::StepKind;

bool cuts_once(const Cutting& cut) { return cut.tiles.vectors; }

double slower_than_roof(const Group& group, const Cutting& cut) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched) return 1;
  for (const stitch::Step& step : group.body.steps)
    if (step.kind == StepKind::kReduce) return 10;
  return 3;
}

double moved_bytes(const Group& group, const Cutting& cut, const TaskGraph& tasks,
                   const Work& work) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched)
    return static_cast<double>(group.cost.read.count + group.cost.written.count);
  const int64_t most = work.nest.row_count() * std::max<int64_t>(work.nest.column_count(), 1);
  double bytes = 0;
  for (int buffer : work.buffers) {
    const Type& type = tasks.buffers[buffer].type;
    bytes += static_cast<double>(byte_size(type.dtype, std::min(type.count(), most)));
  }
  return bytes;
}

int64_t rows_at_once(const Group& group, const Cutting& cut, const TaskGraph& tasks,
                     const Work& work) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched || !work.nest.lanes_in_rows ||
      work.buffers.empty())
    return 0;
  if (slower_than_roof(group, cut) < 10) return 0;
  constexpr int64_t kThreads = 256, kWide = 16;
  return kThreads * kWide /
         std::max<int64_t>(byte_size(tasks.buffers[work.buffers.front()].type.dtype, 1), 1);
}

double batch_nanos(const Work& work) {
  return 700 + 330.0 * static_cast<double>(work.nest.column_count());
}

}  // namespace obelisk::schedule

#include "schedule/cost_model.h"

#include <algorithm>
#include <set>

#include "schedule/schedule.h"

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::StepKind;
using namespace kernels::vector_bounds;

bool cuts_once(const Cutting& cut) { return cut.tiles.vectors; }

namespace {

bool reduces(const Group& group) {
  return std::any_of(group.body.steps.begin(), group.body.steps.end(),
                     [](const stitch::Step& step) { return step.kind == StepKind::kReduce; });
}

}  // namespace

Classified class_of(const graph::Graph& graph, const Group& group,
                    const machine::Machine& machine) {
  const graph::NodeId anchor = group.anchor == graph::kNone ? group.nodes.front() : group.anchor;
  return classify(static_cast<double>(group.cost.flops.count),
                  static_cast<double>(group.cost.read.count + group.cost.written.count),
                  machine.flops_per_sm / machine.bytes_per_sm,
                  ops::to_string(graph.node(anchor).op));
}

double slower_than_roof(const Group& group, const Cutting& cut) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched) return 1;
  return reduces(group) ? cut.machine.costs.reduction_over_roof : cut.machine.costs.loop_over_roof;
}

double moved_bytes(const Group& group, const Cutting& cut, const TaskGraph& tasks,
                   const Work& work) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched)
    return static_cast<double>(group.cost.read.count + group.cost.written.count);
  const int64_t most = work.nest.row_count() * std::max<int64_t>(work.nest.column_count(), 1);
  double bytes = 0;
  for (int buffer : std::set<int>(work.buffers.begin(), work.buffers.end())) {
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
  if (!reduces(group)) return 0;
  return kThreads * kLoadBytes /
         std::max<int64_t>(byte_size(tasks.buffers[work.buffers.front()].type.dtype, 1), 1);
}

double batch_nanos(const Cutting& cut, const Work& work) {
  return cut.machine.costs.batch_begin +
         cut.machine.costs.batch_column * static_cast<double>(work.nest.column_count());
}

double predicted_nanos(const Group& group, const Cutting& cut, const TaskGraph& tasks,
                       const Work& work) {
  if (group.kind == GroupKind::kAttention && group.attention.kv_splits == 1 &&
      cut.tiles.attention.nanos) {
    const stitch::AttentionTile& tile = group.attention;
    return cut.tiles.attention.nanos(tile.tile_type(), work.tile_rows, tile.keys, tile.size,
                                     tile.value_size);
  }
  if (rows_at_once(group, cut, tasks, work) == 0 || work.pipelined()) return work.task_nanos;
  // Threads share the columns of a long reduction, by their number alone (codegen's vectors); what
  // they read is on its way together, where windows look at their bounds.
  const int64_t columns = work.nest.column_count(), threads = threads_of_columns(columns);
  if (threads == 1) return work.task_nanos;
  return strided_columns_nanos(cut.machine, tasks.buffers[work.buffers.front()].type.dtype,
                               work.tile_rows, columns);
}

double strided_columns_nanos(const machine::Machine& machine, DType type, int64_t rows,
                             int64_t columns) {
  const int64_t threads = threads_of_columns(columns);
  if (threads == 1)
    return machine.costs.batch_begin + machine.costs.batch_column * static_cast<double>(columns);
  const int64_t size = std::max<int64_t>(byte_size(type, 1), 1),
                at_once = kThreads / threads * std::max<int64_t>(kLoadBytes / size, 1),
                passes = (rows + at_once - 1) / at_once, each = (columns + threads - 1) / threads;
  return machine.costs.batch_begin + machine.costs.batch_slice * static_cast<double>(passes * each);
}

double roof_nanos(const Group& group, const machine::Machine& machine) {
  const double bytes = static_cast<double>(group.cost.read.count + group.cost.written.count);
  return std::max(bytes / machine.bytes_per_sm, group.cost.flops.count / machine.flops_per_sm) /
         machine.sms;
}

std::vector<Need> kernel_needs(const stitch::Plan& plan, const TaskGraph& tasks,
                               const machine::Machine& machine) {
  std::vector<int64_t> count(tasks.works.size(), 0);
  for (const auto& list : tasks.lists)
    for (const ObkTask& task : list) ++count[task.work];
  const auto workers = std::max<int64_t>(static_cast<int64_t>(tasks.lists.size()), 1);
  std::vector<Need> needs;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    const auto rounds = static_cast<double>((count[w] + workers - 1) / workers);
    needs.push_back(
        {std::max({roof_nanos(plan.groups[work.group], machine), rounds * work.task_nanos, 1.0}),
         std::min(count[w], workers)});
  }
  return needs;
}

}  // namespace obelisk::schedule

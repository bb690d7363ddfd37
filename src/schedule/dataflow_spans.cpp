#include "schedule/dataflow_spans.h"

#include <algorithm>

#include "schedule/in_place_kv.h"

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

/// What an affine access touches from its row's first element on, for columns [c0, c1).
Span column_span(const Nest& nest, const Access& access, int64_t c0, int64_t c1) {
  const size_t first = static_cast<size_t>(nest.rows);
  if (c0 >= c1 && nest.column_count() > 0) return {};
  if (nest.dims.size() == first + 1) {
    const int64_t stride = access.strides[first], a = c0 * stride, b = (c1 - 1) * stride;
    return {std::min(a, b), std::max(a, b) + 1};
  }
  Span span{0, 1};
  for (size_t d = first; d < nest.dims.size(); ++d) {
    const int64_t reach = (nest.dims[d].extent - 1) * access.strides[d];
    (reach < 0 ? span.low : span.high) += reach;
  }
  return span;
}

Span touched(const Nest& nest, const Access& access, const ObkTask& task, int64_t count) {
  if (!access.affine || task.r1 - task.r0 > kMostRowsLooked) return {0, count};
  const Span columns = column_span(nest, access, task.c0, task.c1);
  Span all;
  for (int64_t row = task.r0; row < task.r1; ++row) {
    const int64_t at = row_offset(nest, access, row);
    all.join({at + columns.low, at + columns.high});
  }
  return {std::max<int64_t>(all.low, 0), std::min(all.high, count)};
}

/// The keys of a task's split.
Span keys_of_split(const stitch::AttentionTile& tile, const ObkTask& task) {
  constexpr int64_t kBlock = 16;  // keys: attention_shape.h
  const int64_t blocks = (tile.keys + kBlock - 1) / kBlock,
                kv_split = tile.kv_splits > 1 ? task.c0 * tile.kv_splits / tile.value_size : 0;
  return {blocks * kv_split / tile.kv_splits * kBlock,
          std::min(blocks * (kv_split + 1) / tile.kv_splits * kBlock, tile.keys)};
}

/// What a split reads of a mask.
Span mask_reads(const stitch::AttentionTile& tile, const ObkTask& task) {
  const int64_t plane = task.r0 / tile.queries, image = plane / tile.heads,
                head = plane % tile.heads;
  const stitch::AttentionTile::Operand& mask = tile.mask;
  const Span keys = keys_of_split(tile, task);
  if (keys.empty()) return {};
  const int64_t at = mask.offset + image * mask.image + head * mask.head +
                     task.r0 % tile.queries * mask.row + keys.low * mask.column;
  return {at,
          at + (task.r1 - task.r0 - 1) * mask.row + (keys.high - keys.low - 1) * mask.column + 1};
}

/// The new rows of a head's keys and values, and where they belong.
Span new_row_reads(const stitch::AttentionTile& tile, const Dataflow::NewRows& rows,
                   const ObkTask& task, size_t which) {
  if (which == 0) return {rows.index_at, rows.index_at + 1};
  const int64_t plane = task.r0 / tile.queries, image = plane / tile.heads,
                head = plane % tile.heads / tile.shared;
  const Dataflow::NewRows::At& at = which == 1 ? rows.keys : rows.values;
  const int64_t from = at.offset + image * at.image + head * at.head;
  return {from, from + (which == 1 ? tile.size : tile.value_size)};
}

}  // namespace

int64_t count_of(const Buffer& buffer) { return buffer.type.count(); }

bool stores_neighbours(const Work& work, const Group& group, const Access& access) {
  if (!access.affine) return false;
  if (group.body.steps[access.step].per_row || work.nest.column_count() == 1) return true;
  return work.nest.dims.size() == static_cast<size_t>(work.nest.rows) + 1 &&
         access.strides.back() == 1;
}

bool reads_an_output(const Plan& plan, const TaskGraph& tasks, const Work& work) {
  const Group& group = plan.groups[work.group];
  for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
    if (tasks.buffers[work.buffers[slot]].kind != BufferKind::kOutput) continue;
    if (slot >= group.body.operands.size()) {  // of its tile
      if (find_cache_update(plan, tasks, work)) continue;
      return true;
    }
    for (const Access& access : work.nest.accesses)
      if (access.load != ops::kNoExpr && static_cast<size_t>(access.operand) == slot) return true;
  }
  return false;
}

int64_t row_offset(const Nest& nest, const Access& access, int64_t row) {
  int64_t at = access.offset;
  for (int d = nest.rows - 1; d >= 0; --d)
    at += row % nest.dims[d].extent * access.strides[d], row /= nest.dims[d].extent;
  return at;
}

void Span::join(const Span& other) {
  if (other.empty()) return;
  if (empty())
    *this = other;
  else
    low = std::min(low, other.low), high = std::max(high, other.high);
}

Span read_by(const Plan& plan, const TaskGraph& tasks, const ObkTask& task, size_t slot) {
  const Work& work = tasks.works[task.work];
  const Group& group = plan.groups[work.group];
  const Buffer& buffer = tasks.buffers[work.buffers[slot]];
  if (buffer.kind != BufferKind::kArena) return {};
  const int64_t count = count_of(buffer);
  if (slot < group.body.operands.size()) {
    if (group.kind == GroupKind::kBlock) return {0, count};
    Span all;
    for (const Access& access : work.nest.accesses)
      if (access.load != ops::kNoExpr && static_cast<size_t>(access.operand) == slot)
        all.join(touched(work.nest, access, task, count));
    return all;
  }
  const size_t operand = slot - group.body.operands.size();
  if (const auto& rows = work.dataflow ? work.dataflow->cache_rows : std::nullopt;
      rows && slot >= rows->slot && slot < rows->slot + 3)
    return new_row_reads(group.attention, *rows, task, slot - rows->slot);
  if (group.kind == GroupKind::kProduct) return operand == 0 ? Span{0, count} : Span{};
  if (group.kind == GroupKind::kAttention && operand < 3)
    return attention_reads(group.attention, task, static_cast<int>(operand));
  if (group.kind == GroupKind::kAttention && operand == 3 &&
      group.attention.mask.value != graph::kNone)
    return mask_reads(group.attention, task);
  return {};
}

Span attention_reads(const stitch::AttentionTile& tile, const ObkTask& task, int operand) {
  const int64_t plane = task.r0 / tile.queries, image = plane / tile.heads,
                head = plane % tile.heads;
  if (operand == 0) {
    const int64_t at = tile.q.offset + image * tile.q.image + head * tile.q.head +
                       task.r0 % tile.queries * tile.q.row;
    return {at, at + (task.r1 - task.r0 - 1) * tile.q.row + tile.size};
  }
  const stitch::AttentionTile::Operand& from = operand == 1 ? tile.k : tile.v;
  Span keys = keys_of_split(tile, task);
  keys.low += in_place_keys_of(task);
  const int64_t first = keys.low, end = keys.high;
  const int64_t at = from.offset + image * from.image + head / tile.shared * from.head;
  if (first >= end) return {};
  return {at + first * from.row,
          at + (end - 1) * from.row + (operand == 1 ? tile.size : tile.value_size)};
}

Span written_in_row(const Plan& plan, const TaskGraph& tasks, const Work& work, int buffer,
                    int64_t row, int64_t c0, int64_t c1) {
  const Group& group = plan.groups[work.group];
  Span all;
  for (const Access& access : work.nest.accesses) {
    if (access.step < 0 || work.buffers[group.body.steps[access.step].slot] != buffer) continue;
    if (!access.affine) return {0, count_of(tasks.buffers[buffer])};
    const int64_t at = row_offset(work.nest, access, row);
    const Span columns =
        group.body.steps[access.step].per_row ? Span{0, 1} : column_span(work.nest, access, c0, c1);
    all.join({at + columns.low, at + columns.high});
  }
  return all;
}

}  // namespace obelisk::schedule

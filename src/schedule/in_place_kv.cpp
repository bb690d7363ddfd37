#include "schedule/in_place_kv.h"

#include <algorithm>

#include "schedule/dataflow_spans.h"

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

constexpr int64_t kUnit = 16, kMostRow = 16 << 10;  // bytes: of a copy, of a page
constexpr int64_t kMostRows = 4096;                 // of a copy, row by row

/// The two accesses of a body that only copies: element by element, perhaps to a narrower type.
struct Copy {
  const Access *load = nullptr, *store = nullptr;
};
std::optional<Copy> copy_of(const stitch::Plan& plan, const TaskGraph& tasks, const Work& work) {
  const Group& group = plan.groups[work.group];
  if (!work.replicated() || group.kind != GroupKind::kStitched || group.body.steps.size() != 1)
    return {};
  const Step& step = group.body.steps.front();
  if (step.kind != StepKind::kStore || step.per_row ||
      work.nest.dims.size() != static_cast<size_t>(work.nest.rows) + 1 ||
      work.nest.row_count() > kMostRows)
    return {};
  const ops::Expr* expr = &group.body.exprs[step.expr];
  const DType to = tasks.buffers[work.buffers[step.slot]].type.dtype;
  if (expr->scalar == ops::Scalar::kCast && expr->dtype == to)
    expr = &group.body.exprs[expr->args[0]];
  if (expr->scalar != ops::Scalar::kLoad || expr->args[0] != ops::kNoExpr) return {};
  Copy copy;
  for (const Access& access : work.nest.accesses) {
    if (!access.affine || access.strides.empty() || access.strides.back() != 1) return {};
    const Access*& mine = access.step >= 0 ? copy.store : copy.load;
    if (mine) return {};
    mine = &access;
  }
  if (!copy.load || !copy.store) return {};
  const Buffer& from = tasks.buffers[work.buffers[copy.load->operand]];
  if (from.kind != BufferKind::kInput || (from.type.dtype != to && from.type.dtype != DType::f32))
    return {};
  return copy;
}

struct Range {
  int64_t elements = 0, offset = 0;  // from its first element on; in the input
  int buffer = -1;
};
/// What of buffer `b` from element `at` on is a copy of an input's elements that follow one
/// another.
Range copied_from(const stitch::Plan& plan, const TaskGraph& tasks, int b, int64_t at) {
  for (const Work& work : tasks.works) {
    const auto copy = copy_of(plan, tasks, work);
    if (!copy || work.buffers[plan.groups[work.group].body.steps.front().slot] != b) continue;
    for (int64_t row = 0; row < work.nest.row_count(); ++row) {
      const int64_t to = row_offset(work.nest, *copy->store, row),
                    end = to + work.nest.column_count();
      if (at >= to && at < end)
        return {end - at, row_offset(work.nest, *copy->load, row) + at - to,
                work.buffers[copy->load->operand]};
    }
  }
  return {};
}

}  // namespace

std::optional<InPlaceKv> find_in_place_kv(const stitch::Plan& plan, const TaskGraph& tasks,
                                          const ObkTask& task) {
  const Work& work = tasks.works[task.work];
  const Group& group = plan.groups[work.group];
  const stitch::AttentionTile& tile = group.attention;
  if (group.kind != GroupKind::kAttention || tile.kv_splits < 2 || tile.size != tile.value_size ||
      tile.mask.value != graph::kNone)
    return {};
  for (const stitch::AttentionTile::Operand* operand : {&tile.q, &tile.k, &tile.v})
    if (operand->row % 8 != 0 || operand->offset % 8 != 0 || operand->head % 8 != 0 ||
        operand->image % 8 != 0)
      return {};
  if (tile.k.row != tile.size || tile.v.row != tile.size) return {};
  ObkTask whole = task;  // as if nothing were kept
  whole.weight_group = 0;
  Range ranges[2];
  int64_t keys = 0;
  for (size_t which = 0; which < 2; ++which) {
    const size_t slot = group.body.operands.size() + 1 + which;
    const Span reads = read_by(plan, tasks, whole, slot);
    if (reads.empty()) return {};
    ranges[which] = copied_from(plan, tasks, work.buffers[slot], reads.low);
    const int64_t here = std::min(ranges[which].elements, reads.high - reads.low) / tile.size;
    keys = which == 0 ? here : std::min(keys, here);
  }
  if (keys == 0) return {};
  const DType from = tasks.buffers[ranges[0].buffer].type.dtype;
  if (tasks.buffers[ranges[1].buffer].type.dtype != from) return {};
  const int64_t element = byte_size(from, 1);
  const InPlaceKv kv{.keys = keys,
                     .row_bytes = tile.size * element,
                     .k_offset = ranges[0].offset * element,
                     .v_offset = ranges[1].offset * element,
                     .k_buffer = ranges[0].buffer,
                     .v_buffer = ranges[1].buffer};
  if (kv.row_bytes % kUnit != 0 || kv.row_bytes > kMostRow || kv.k_offset % kUnit != 0 ||
      kv.v_offset % kUnit != 0)
    return {};
  if (std::max(kv.k_offset, kv.v_offset) / kUnit > INT32_MAX || kv.keys * kv.row_bytes > INT32_MAX)
    return {};
  return kv;
}

void name_in_place_kv(const InPlaceKv& kv, ObkTask& task) {
  task.weights = kv.k_offset / kUnit | kv.v_offset / kUnit << 32;
  task.weight_bytes = static_cast<int32_t>(kv.keys * kv.row_bytes),
  task.weight_group = -static_cast<int32_t>(kv.row_bytes);
}

}  // namespace obelisk::schedule

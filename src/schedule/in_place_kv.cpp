#include "schedule/in_place_kv.h"

#include <algorithm>
#include <cstring>
#include <functional>

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

/// Whether all elements of a buffer are one: a work stores the same value everywhere.
bool is_one_value(const stitch::Plan& plan, const TaskGraph& tasks, int b) {
  if (tasks.buffers[b].kind != BufferKind::kArena) return false;
  const Work* writer = nullptr;
  for (const Work& work : tasks.works)
    for (const Step& step : plan.groups[work.group].body.steps)
      if (step.kind == StepKind::kStore && work.buffers[step.slot] == b) {
        if (writer) return false;
        writer = &work;
      }
  if (!writer) return false;
  const Group& group = plan.groups[writer->group];
  if (group.kind != GroupKind::kStitched || group.body.steps.size() != 1) return false;
  const std::function<bool(ExprId)> names_a_coordinate = [&](ExprId id) {
    if (id == ops::kNoExpr) return false;
    const ops::Expr& expr = group.body.exprs[id];
    return expr.scalar == ops::Scalar::kCoord ||
           std::any_of(std::begin(expr.args), std::end(expr.args), names_a_coordinate);
  };
  if (names_a_coordinate(group.body.steps.front().expr)) return false;
  return std::all_of(
      writer->nest.accesses.begin(), writer->nest.accesses.end(), [](const Access& access) {
        return access.step >= 0 ||
               (access.affine && std::all_of(access.strides.begin(), access.strides.end(),
                                             [](int64_t stride) { return stride == 0; }));
      });
}

/// A scatter of one row of `size` elements into each of the matrices [keys, size] of a cache.
struct RowScatter {
  size_t work = 0;
  int index = -1, rows = -1;  // buffers
  int64_t index_at = 0, offset = 0;
  int64_t matrices = 0, keys = 0, size = 0;
};
std::optional<RowScatter> row_scatter_to(const stitch::Plan& plan, const TaskGraph& tasks,
                                         int cache) {
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    const Group& group = plan.groups[work.group];
    if (group.kind != GroupKind::kBlock || group.in_place_of == graph::kNone ||
        group.block.name != "scatter_elements" || group.block_inputs.size() != 3)
      continue;
    const auto buffer_of = [&](graph::ValueId value) {
      const auto& operands = group.body.operands;
      const auto at = std::find(operands.begin(), operands.end(), value);
      return at == operands.end() ? -1 : work.buffers[static_cast<size_t>(at - operands.begin())];
    };
    if (work.buffers[group.body.operands.size() - 1] != cache) continue;
    const stitch::BlockInput &index = group.block_inputs[1], &rows = group.block_inputs[2];
    RowScatter found{.work = w,
                     .index = buffer_of(index.value),
                     .rows = buffer_of(rows.value),
                     .index_at = index.offset,
                     .offset = rows.offset};
    ObkScatterElements p;
    if (group.block.params.size() * sizeof(int64_t) < sizeof p) return {};
    std::memcpy(&p, group.block.params.data(), sizeof p);
    if (found.index < 0 || found.rows < 0 || p.fold != OBK_REPLACE || p.update_extent != 1 ||
        p.stride <= 0 || !is_one_value(plan, tasks, found.index))
      return {};
    int64_t updates = 1;
    for (int64_t d = 0; d < p.rank; ++d) updates *= p.update_shape[d];
    const int64_t matrix = p.extent * p.stride, count = count_of(tasks.buffers[cache]);
    if (matrix == 0 || updates != count / p.extent || updates % p.stride != 0) return {};
    found.matrices = updates / p.stride, found.keys = p.extent, found.size = p.stride;
    return found;
  }
  return {};
}

}  // namespace

std::optional<CacheUpdate> find_cache_update(const stitch::Plan& plan, const TaskGraph& tasks,
                                             const Work& attention) {
  const Group& group = plan.groups[attention.group];
  if (group.kind != GroupKind::kAttention) return {};
  const stitch::AttentionTile& tile = group.attention;
  CacheUpdate found;
  for (size_t which = 0; which < 2; ++which) {
    const stitch::AttentionTile::Operand& operand = which == 0 ? tile.k : tile.v;
    const int cache = attention.buffers[group.body.operands.size() + 1 + which];
    if (tasks.buffers[cache].kind != BufferKind::kOutput ||
        tasks.buffers[cache].type.dtype != tile.type)
      return {};
    const auto scatter = row_scatter_to(plan, tasks, cache);
    if (!scatter) return {};
    const int64_t size = which == 0 ? tile.size : tile.value_size, heads = tile.heads / tile.shared;
    if (scatter->keys != tile.keys || scatter->size != size || operand.offset != 0 ||
        operand.row != size || operand.column != 1 || scatter->matrices != tile.images * heads ||
        (heads > 1 && operand.head != tile.keys * size) ||
        (tile.images > 1 && operand.image != heads * tile.keys * size) || scatter->offset % 8 != 0)
      return {};
    if (which == 1 && (scatter->index != found.index || scatter->index_at != found.rows.index_at))
      return {};
    found.index = scatter->index, found.rows.index_at = scatter->index_at;
    found.rows.index_type = tasks.buffers[found.index].type.dtype;
    (which == 0 ? found.new_keys : found.new_values) = scatter->rows;
    (which == 0 ? found.rows.keys : found.rows.values) = {scatter->offset, heads * size, size};
  }
  return found;
}

bool updates_caches(const stitch::Plan& plan, const TaskGraph& tasks, size_t w) {
  const Work& work = tasks.works[w];
  const Group& group = plan.groups[work.group];
  if (group.kind != GroupKind::kBlock || group.in_place_of == graph::kNone) return false;
  const size_t output = group.body.operands.size() - 1;
  for (size_t slot = 0; slot < output; ++slot)  // nobody waits for what others store in outputs
    if (tasks.buffers[work.buffers[slot]].kind == BufferKind::kOutput) return false;
  const int cache = work.buffers[output];
  for (const Work& other : tasks.works) {
    if (&other == &work) continue;
    const Group& reader = plan.groups[other.group];
    for (size_t slot = 0; slot < other.buffers.size(); ++slot) {
      const int b = other.buffers[slot];
      if (tasks.buffers[b].value == group.in_place_of &&
          tasks.buffers[b].kind == BufferKind::kInput)
        return false;
      if (b != cache) continue;
      if (slot < reader.body.operands.size() || !find_cache_update(plan, tasks, other))
        return false;
    }
  }
  return true;
}

std::optional<InPlaceKv> find_in_place_kv(const stitch::Plan& plan, const TaskGraph& tasks,
                                          const ObkTask& task) {
  const Work& work = tasks.works[task.work];
  const Group& group = plan.groups[work.group];
  const stitch::AttentionTile& tile = group.attention;
  if (group.kind != GroupKind::kAttention || tile.kv_splits < 2 || tile.size != tile.value_size)
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
  const bool updated = work.dataflow && work.dataflow->cache_rows;
  for (size_t which = 0; which < 2; ++which) {
    const int b = work.buffers[group.body.operands.size() + 1 + which];
    const Span reads = attention_reads(tile, whole, static_cast<int>(1 + which));
    if (reads.empty()) return {};
    ranges[which] = updated ? Range{reads.high - reads.low, reads.low, b}
                            : copied_from(plan, tasks, b, reads.low);
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
                     .v_buffer = ranges[1].buffer,
                     .updated = updated};
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

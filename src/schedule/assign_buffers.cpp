#include "schedule/assign_buffers.h"

#include <algorithm>
#include <map>

#include "schedule/places.h"

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;

constexpr int64_t kAlign = 64;  // bytes; a line of the cache and the widest vector

/// Bytes that a value's storage spans (its layout is a permutation of dense, or a piece inside
/// another value).
Bytes storage_size(const Graph& graph, ValueId value) {
  return {std::max<int64_t>(graph.type(value).bytes(), 1)};
}

class Buffers {
 public:
  Buffers(const Graph& graph, const Plan& plan, TaskGraph& tasks)
      : graph_(graph), plan_(plan), tasks_(tasks) {
    for (size_t k = 0; k < graph.inputs().size(); ++k)
      input_[graph.inputs()[k]] = static_cast<int>(k);
    for (size_t k = 0; k < graph.outputs().size(); ++k)
      output_.try_emplace(graph.outputs()[k], static_cast<int>(k));
  }

  int of(ValueId value, int wave) {
    const ValueId storage = plan_.layouts[value].storage;
    auto [it, fresh] = made_.try_emplace(storage, static_cast<int>(tasks_.buffers.size()));
    if (fresh) tasks_.buffers.push_back(make(storage));
    Buffer& buffer = tasks_.buffers[it->second];
    if (fresh || wave < buffer.first) buffer.first = fresh ? wave : std::min(buffer.first, wave);
    buffer.last = fresh ? wave : std::max(buffer.last, wave);
    return it->second;
  }

  /// Partial statistics of the rows of `value`.
  int partials_of(ValueId value, int wave) {
    auto [it, fresh] = partials_.try_emplace(value, static_cast<int>(tasks_.buffers.size()));
    const int64_t count = graph_.type(value).count() / stitch::kPartialColumns;
    if (fresh)
      tasks_.buffers.push_back(
          {.size = {count * 8}, .type = {DType::f32, {count, 2}}, .first = wave, .last = wave});
    Buffer& buffer = tasks_.buffers[it->second];
    buffer.first = std::min(buffer.first, wave), buffer.last = std::max(buffer.last, wave);
    return it->second;
  }

 private:
  Buffer make(ValueId value) {
    Buffer buffer{.size = storage_size(graph_, value), .type = graph_.type(value), .value = value};
    if (graph_.value(value).is_constant()) {
      buffer.kind = BufferKind::kWeight;
      buffer.index = static_cast<int>(tasks_.weights.size());
      tasks_.weights.push_back(graph_.value(value).constant);
    } else if (auto in = input_.find(value); in != input_.end()) {
      buffer.kind = BufferKind::kInput, buffer.index = in->second;
    } else if (auto out = output_.find(value); out != output_.end()) {
      buffer.kind = BufferKind::kOutput, buffer.index = out->second;
    }
    return buffer;
  }

  const Graph& graph_;
  const Plan& plan_;
  TaskGraph& tasks_;
  std::map<ValueId, int> input_, output_, made_, partials_;
};

/// Places arena buffers: none shares bytes with one that is alive in the same waves.
void place_arena(TaskGraph& tasks) {
  std::vector<Living> living;
  std::vector<Buffer*> of;
  for (Buffer& buffer : tasks.buffers)
    if (buffer.kind == BufferKind::kArena)
      living.push_back({.size = buffer.size.count, .first = buffer.first, .last = buffer.last}),
          of.push_back(&buffer);
  tasks.arena = {place_living(living, kAlign)};
  for (size_t k = 0; k < living.size(); ++k) of[k]->offset = {living[k].offset};
}

}  // namespace

void assign_buffers(const Graph& graph, const Plan& plan, TaskGraph& tasks) {
  Buffers buffers(graph, plan, tasks);
  // Lasts from run to run: alive in all waves, so that nobody else writes there.
  const auto keep = [&](int64_t bytes, Work& work) {
    work.buffers.push_back(static_cast<int>(tasks.buffers.size()));
    tasks.buffers.push_back({.size = {bytes},
                             .type = {DType::u8, {bytes}},
                             .first = 0,
                             .last = std::max(tasks.waves - 1, 0)});
  };
  for (Work& work : tasks.works) {
    const Group& group = plan.groups[work.group];
    for (ValueId v : group.body.operands) work.buffers.push_back(buffers.of(v, work.wave));
    if (group.kind == GroupKind::kProduct) {
      if (group.product.statistics.of_partials)
        work.buffers.push_back(buffers.partials_of(group.product.a, work.wave));
      if (group.partials != graph::kNone)
        work.buffers.push_back(buffers.partials_of(group.partials, work.wave));
      work.buffers.push_back(buffers.of(group.product.a, work.wave));
      work.buffers.push_back(buffers.of(group.product.b, work.wave));
    } else if (group.kind == GroupKind::kConv) {
      work.buffers.push_back(buffers.of(group.conv.x, work.wave));
      work.buffers.push_back(buffers.of(group.conv.w, work.wave));
    } else if (group.kind == GroupKind::kBlock && group.block.exchange > 0) {
      keep(group.block.exchange, work);
    } else if (group.kind == GroupKind::kAttention) {
      const stitch::AttentionTile& tile = group.attention;
      for (const auto* operand : {&tile.q, &tile.k, &tile.v, &tile.mask})
        if (operand->value != graph::kNone)
          work.buffers.push_back(buffers.of(operand->value, work.wave));
      if (tile.kv_splits > 1) keep(tile.images * tile.heads * tile.exchange, work);
    }
  }
  place_arena(tasks);
}

}  // namespace obelisk::schedule

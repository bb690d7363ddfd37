#include "schedule/dataflow.h"

#include <algorithm>
#include <map>
#include <set>

#include "machine/machine.h"
#include "schedule/dataflow_spans.h"
#include "schedule/in_place_kv.h"
#include "schedule/places.h"
#include "schedule/tile_gemm_dataflow.h"

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;
using stitch::Step;
using stitch::StepKind;

using machine::thresholds::kMostBroadcast, machine::thresholds::kMostCopies,
    machine::thresholds::kMostReplicated;

constexpr int64_t kCopyAlign = 128;

bool stores(const Group& group, size_t slot) {
  return std::any_of(group.body.steps.begin(), group.body.steps.end(), [&](const Step& step) {
    return step.kind == StepKind::kStore && static_cast<size_t>(step.slot) == slot;
  });
}

/// Makes one table flow, or finds that it does not.
class DataflowTable {
 public:
  DataflowTable(const Plan& plan, const machine::Machine& device, TaskGraph& tasks)
      : plan_(plan), device_(device), tasks_(tasks) {}

  bool run() {
    if (!sort_works() || !sort_buffers()) return false;
    move_attention();
    move_updates();
    hold_back_copies();
    leave_keys();
    assign_replicated();
    return !too_much_ && place();
  }

 private:
  const Group& group_of(const Work& work) const { return plan_.groups[work.group]; }

  /// Which works each worker does for itself; false where one is of a kind that waits for others.
  bool sort_works() {
    bool gives = false;
    for (Work& work : tasks_.works) work.dataflow.emplace();
    for (size_t w = 0; w < tasks_.works.size(); ++w) {
      Work& work = tasks_.works[w];
      const Group& group = group_of(work);
      if (!work.has_tasks() || reads_an_output(plan_, tasks_, work)) return false;
      switch (group.kind) {
        case GroupKind::kStitched: {
          if (work.nest.lanes_in_rows || work.nest.row_count() == 0 ||
              work.nest.column_count() == 0)
            return false;
          bool ports = false, arena = false;
          for (const Step& step : group.body.steps)
            if (step.kind == StepKind::kStore)
              (tasks_.buffers[work.buffers[step.slot]].kind == BufferKind::kArena ? arena : ports) =
                  true;
          if (ports && arena) return false;
          // A body that turns what it reads requests it by copies of global memory: not of a
          // worker's copy.
          if (arena && work.nest.row_count() > 1)
            for (const Access& access : work.nest.accesses)
              if (access.affine && access.step < 0 && !access.strides.empty() &&
                  access.strides.back() != 0 && access.strides.back() != 1 &&
                  tasks_.buffers[work.buffers[access.operand]].kind != BufferKind::kInput)
                return false;
          work.dataflow->replicated = arena;
          break;
        }
        case GroupKind::kProduct:
          if (!takes_product(work, group)) return false;
          gives = true;
          break;
        case GroupKind::kAttention:
          if (!takes_attention(work, group)) return false;
          name_cache_rows(work);
          gives = true;
          break;
        case GroupKind::kBlock:
          if (!takes_caches() || !updates_caches(plan_, tasks_, w)) return false;
          break;
        default:
          return false;
      }
    }
    return gives;
  }
  bool takes_product(const Work& work, const Group& group) const {
    const stitch::Product& p = group.product;
    const kernels::TileLibrary& tiles = kernels::tile_library(device_);
    const int64_t rows = work.nest.row_count(), n = work.nest.column_count();
    if (group.partials != graph::kNone || p.statistics.wanted || p.split_k != 1 || !p.batch.empty())
      return false;
    if (rows < 1 || rows > kMostDataflowRows || work.tile_rows != rows || n == 0) return false;
    if (p.k.size() != 1 || p.k[0].a != 1 || p.n.size() != 1 || p.a_type != p.b_type ||
        tile_span(group, work.nest) != rows)
      return false;
    if (p.a_type != DType::f16 && p.a_type != DType::bf16) return false;
    if (tasks_.buffers[work.buffers.back()].kind != BufferKind::kWeight) return false;
    // Its rows are read where the worker's copy of them lies.
    if (tiles.dataflow &&
        (tasks_.buffers[work.buffers[work.operand_count(group)]].kind != BufferKind::kArena ||
         p.a_offset % 8 != 0))
      return false;
    return !tiles.dataflow || has_dataflow_tiles(tiles, p, rows, n, work.tile_columns);
  }
  bool takes_attention(const Work& work, const Group& group) const {
    const stitch::AttentionTile& tile = group.attention;
    if (tile.packed || tile.queries > kMostDataflowRows || tile.queries == 0 || tile.keys == 0)
      return false;
    if (tile.q.column != 1 || tile.k.column != 1 || tile.v.column != 1 ||
        work.tile_rows != tile.queries)
      return false;
    if (find_cache_update(plan_, tasks_, work) &&
        (!takes_caches() || tile.kv_splits < 2 || tile.size != tile.value_size))
      return false;
    return tile.kv_splits > 1 || device_.family == machine::Family::kCpu;
  }
  /// Whether the machine's tiles read keys and values where the caller keeps them.
  bool takes_caches() const {
    const auto& dataflow = kernels::tile_library(device_).dataflow;
    return dataflow && dataflow->in_place_kv;
  }
  /// Attention to caches that the run updates takes the new rows from where their scatter does.
  void name_cache_rows(Work& work) {
    const auto update = find_cache_update(plan_, tasks_, work);
    if (!update) return;
    work.dataflow->cache_rows = update->rows;
    work.dataflow->cache_rows->slot = work.buffers.size();
    work.buffers.insert(work.buffers.end(), {update->index, update->new_keys, update->new_values});
  }

  /// Which values are given and which are a worker's own; false where one is too large to be passed
  /// on, or comes in both ways.
  bool sort_buffers() {
    std::vector<int64_t> broadcast(tasks_.buffers.size(), 0);  // elements that works give
    std::vector<bool> local(tasks_.buffers.size(), false);
    for (const Work& work : tasks_.works) {
      const Group& group = group_of(work);
      for (const Step& step : group.body.steps) {
        if (step.kind != StepKind::kStore) continue;
        const int b = work.buffers[step.slot];
        if (tasks_.buffers[b].kind != BufferKind::kArena) continue;
        const int64_t elements =
            work.nest.row_count() * (step.per_row ? 1 : work.nest.column_count());
        // Words of 32 bits are stored whole, by one thread.
        const auto store = std::find_if(
            work.nest.accesses.begin(), work.nest.accesses.end(), [&](const Access& access) {
              return access.step >= 0 && &group.body.steps[access.step] == &step;
            });
        if (store == work.nest.accesses.end() || !stores_neighbours(work, group, *store))
          return false;
        if (work.replicated()) {
          local[b] = true;
          continue;
        }
        const int64_t per_word =
            4 / std::max<int64_t>(byte_size(tasks_.buffers[b].type.dtype, 1), 1);
        const size_t lane = work.nest.dims.size() - 1;
        if (step.per_row || per_word < 1 || bits(tasks_.buffers[b].type.dtype) < 16) return false;
        if (work.nest.dims.size() != static_cast<size_t>(work.nest.rows) + 1 ||
            store->strides[lane] != 1 || store->offset % per_word != 0)
          return false;
        if (work.nest.dims[lane].extent % per_word != 0 || work.tile_columns % per_word != 0)
          return false;
        for (size_t d = 0; d < lane; ++d)
          if (store->strides[d] % per_word != 0) return false;
        broadcast[b] += elements;
      }
    }
    // Keys and values are read where the worker has written them.
    std::vector<bool> attended(tasks_.buffers.size(), false);
    for (const Work& work : tasks_.works)
      if (group_of(work).kind == GroupKind::kAttention)
        for (size_t operand = 1; operand <= 2; ++operand)
          attended[work.buffers[group_of(work).body.operands.size() + operand]] = true;
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      Buffer& buffer = tasks_.buffers[b];
      if (buffer.kind != BufferKind::kArena || buffer.value == graph::kNone) continue;
      if (broadcast[b] > 0) {
        // Who reads a copy waits for all of its words, so all of them must come.
        if (local[b] || broadcast[b] != count_of(buffer) || buffer.size.count > kMostBroadcast ||
            buffer.size.count % 8 != 0)
          return false;
        buffer.reach = Reach::kBroadcast;
      } else if (local[b] && !attended[b] && buffer.size.count <= kMostBroadcast) {
        buffer.reach = Reach::kLocal;
      }
    }
    for (const Work& work : tasks_.works) {
      const Group& group = group_of(work);
      int broadcast_here = 0;
      for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
        const Buffer& buffer = tasks_.buffers[work.buffers[slot]];
        if (buffer.reach == Reach::kBroadcast && ++broadcast_here > kMostGathers) return false;
        if (buffer.kind != BufferKind::kArena || slot < group.body.operands.size()) continue;
        const size_t operand = slot - group.body.operands.size();
        const bool query = group.kind == GroupKind::kAttention && operand == 0;
        // Rows of a product, queries: copies. Keys and values: whatever the worker has written.
        if (group.kind == GroupKind::kProduct && buffer.reach == Reach::kAll) return false;
        if (group.kind == GroupKind::kAttention && operand < 3 && buffer.value != graph::kNone &&
            query != (buffer.reach != Reach::kAll))
          return false;
      }
    }
    return true;
  }

  /// Attention goes to workers that have no part of what is computed just before it: those have
  /// time to load its keys and values.
  void move_attention() {
    for (size_t w = 0; w < tasks_.works.size(); ++w) {
      const Work& work = tasks_.works[w];
      if (group_of(work).kind != GroupKind::kAttention) continue;
      int before = -1;  // the wave of the last product before it
      for (const Work& other : tasks_.works)
        if (group_of(other).kind == GroupKind::kProduct && other.wave < work.wave)
          before = std::max(before, other.wave);
      std::vector<ObkTask> mine;
      std::vector<std::pair<int, size_t>> load;  // tasks around there, worker
      for (size_t sm = 0; sm < tasks_.lists.size(); ++sm) {
        std::vector<ObkTask>& list = tasks_.lists[sm];
        const auto ours = std::stable_partition(
            list.begin(), list.end(), [&](const ObkTask& task) { return task.work != w; });
        mine.insert(mine.end(), ours, list.end());
        list.erase(ours, list.end());
        int busy = 0;
        for (const ObkTask& task : list)
          busy += !tasks_.works[task.work].replicated() && static_cast<int>(task.wave) >= before &&
                  static_cast<int>(task.wave) <= work.wave;
        load.push_back({busy, sm});
      }
      std::stable_sort(load.begin(), load.end());
      std::sort(mine.begin(), mine.end(), [](const ObkTask& a, const ObkTask& b) {
        return std::tie(a.r0, a.c0) < std::tie(b.r0, b.c0);
      });
      for (size_t k = 0; k < mine.size(); ++k)
        tasks_.lists[load[k % load.size()].second].push_back(mine[k]);
    }
  }

  /// A cache is updated by workers that have no part of the attention to it: nobody waits for them.
  void move_updates() {
    for (size_t w = 0; w < tasks_.works.size(); ++w) {
      if (group_of(tasks_.works[w]).kind != GroupKind::kBlock) continue;
      const Group& group = group_of(tasks_.works[w]);
      const int cache = tasks_.works[w].buffers[group.body.operands.size() - 1];
      std::vector<ObkTask> mine;
      std::vector<std::pair<int, size_t>> load;  // tasks of its readers, worker
      for (size_t sm = 0; sm < tasks_.lists.size(); ++sm) {
        std::vector<ObkTask>& list = tasks_.lists[sm];
        const auto ours = std::stable_partition(
            list.begin(), list.end(), [&](const ObkTask& task) { return task.work != w; });
        mine.insert(mine.end(), ours, list.end());
        list.erase(ours, list.end());
        load.push_back(
            {std::count_if(list.begin(), list.end(),
                           [&](const ObkTask& task) {
                             const std::vector<int>& read = tasks_.works[task.work].buffers;
                             return std::find(read.begin(), read.end(), cache) != read.end();
                           }),
             sm});
      }
      std::stable_sort(load.begin(), load.end());
      const auto idle = std::count_if(load.begin(), load.end(), [&](const auto& each) {
        return each.first == load.front().first;
      });
      for (size_t k = 0; k < mine.size(); ++k)
        tasks_.lists[load[k % static_cast<size_t>(idle)].second].push_back(mine[k]);
    }
  }

  /// Keys and values that would only be copied stay where the caller keeps them, if the machine's
  /// tiles take them so.
  void leave_keys() {
    if (!takes_caches()) return;
    for (std::vector<ObkTask>& list : tasks_.lists)
      for (ObkTask& task : list) {
        const auto kv = find_in_place_kv(plan_, tasks_, task);
        if (!kv) continue;
        Work& work = tasks_.works[task.work];
        if (!work.dataflow->in_place_kv)
          work.dataflow->in_place_kv = tasks_.buffers[kv->k_buffer].type.dtype,
          work.buffers.push_back(kv->k_buffer), work.buffers.push_back(kv->v_buffer);
        const size_t last = work.buffers.size() - 1;
        if (work.buffers[last - 1] == kv->k_buffer && work.buffers[last] == kv->v_buffer)
          name_in_place_kv(*kv, task);
      }
  }

  /// What waits for nothing is copied as late as its readers let: while others compute what those
  /// wait for. (Beside a large product's weights a copy takes longer, and its worker falls behind.)
  void hold_back_copies() {
    for (Work& work : tasks_.works) {
      if (!work.replicated() || !plan_.groups[work.group].after.empty()) continue;
      int reader = tasks_.waves;
      for (const Work& other : tasks_.works)
        for (const int before : plan_.groups[other.group].after)
          if (tasks_.works[before].group == work.group) reader = std::min(reader, other.wave);
      if (reader < tasks_.waves) work.wave = std::max(reader - 1, work.wave);
    }
  }

  /// Every worker's tasks of the works that it does for itself: what its other tasks read, of works
  /// from the last to the first.
  void assign_replicated() {
    const size_t workers = tasks_.lists.size();
    std::vector<std::vector<std::vector<ObkTask>>> of(tasks_.works.size(),
                                                      std::vector<std::vector<ObkTask>>(workers));
    for (size_t sm = 0; sm < workers; ++sm)
      for (const ObkTask& task : tasks_.lists[sm])
        if (!tasks_.works[task.work].replicated()) of[task.work][sm].push_back(task);
    std::vector<std::map<int, Span>> wanted(workers);
    for (size_t w = tasks_.works.size(); w-- > 0;) {
      Work& work = tasks_.works[w];
      int64_t rows = 1, columns = 1;
      for (size_t sm = 0; sm < workers; ++sm) {
        if (work.replicated()) of[w][sm] = replicated_tasks(w, wanted[sm]);
        int64_t elements = 0;
        for (const ObkTask& task : of[w][sm]) {
          rows = std::max(rows, task.r1 - task.r0), columns = std::max(columns, task.c1 - task.c0);
          elements += (task.r1 - task.r0) * std::max<int64_t>(task.c1 - task.c0, 1);
          for (size_t slot = 0; slot < work.buffers.size(); ++slot)
            if (const Span span = read_by(plan_, tasks_, task, slot); !span.empty())
              wanted[sm][work.buffers[slot]].join(span);
        }
        too_much_ |= work.replicated() && elements > kMostReplicated;
      }
      if (!work.replicated()) continue;
      work.tile_rows = rows;
      if (work.nest.cut_columns)
        work.tile_columns = std::min(round_up(columns, 64), work.nest.column_count());
    }
    // Tasks that wait for no other come first in a wave.
    std::vector<bool> waits(tasks_.works.size(), false);
    for (size_t w = 0; w < tasks_.works.size(); ++w)
      for (size_t slot = 0; slot < tasks_.works[w].buffers.size(); ++slot)
        if (tasks_.buffers[tasks_.works[w].buffers[slot]].reach == Reach::kBroadcast &&
            !gives(tasks_.works[w], slot))
          waits[w] = true;
    for (size_t sm = 0; sm < workers; ++sm) {
      std::vector<ObkTask> list;
      for (size_t w = 0; w < of.size(); ++w)
        list.insert(list.end(), of[w][sm].begin(), of[w][sm].end());
      std::stable_sort(list.begin(), list.end(), [&](const ObkTask& a, const ObkTask& b) {
        return std::make_pair(a.wave, bool{waits[a.work]}) <
               std::make_pair(b.wave, bool{waits[b.work]});
      });
      tasks_.lists[sm] = std::move(list);
    }
  }
  bool gives(const Work& work, size_t slot) const {
    return !work.replicated() && slot < group_of(work).body.operands.size() &&
           stores(group_of(work), slot);
  }

  std::vector<ObkTask> replicated_tasks(size_t w, const std::map<int, Span>& wanted) const {
    const Work& work = tasks_.works[w];
    const Group& group = group_of(work);
    const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
    std::vector<ObkTask> found;
    const auto add = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
      if (!found.empty() && found.back().r1 == r0 && found.back().c0 == c0 &&
          found.back().c1 == c1) {
        found.back().r1 = r1;
        return;
      }
      ObkTask task{};
      task.work = static_cast<uint32_t>(w), task.wave = static_cast<uint32_t>(work.wave);
      task.nanos = static_cast<int64_t>(work.task_nanos);
      task.r0 = r0, task.r1 = r1, task.c0 = c0, task.c1 = c1;
      found.push_back(task);
    };
    std::set<int> buffers;
    for (const Step& step : group.body.steps)
      if (step.kind == StepKind::kStore)
        if (const auto it = wanted.find(work.buffers[step.slot]);
            it != wanted.end() && !it->second.empty())
          buffers.insert(it->first);
    if (buffers.empty()) return found;
    if (rows > kMostRowsLooked) {
      add(0, rows, 0, columns);
      return found;
    }
    constexpr int64_t kVector = 8;  // columns that are stored at once
    for (int64_t row = 0; row < rows; ++row) {
      Span here;  // columns
      for (const int buffer : buffers) {
        const Span& span = wanted.at(buffer);
        const Span all = written_in_row(plan_, tasks_, work, buffer, row, 0, columns),
                   first = written_in_row(plan_, tasks_, work, buffer, row, 0, 1);
        if (std::max(all.low, span.low) >= std::min(all.high, span.high)) continue;
        if (!work.nest.cut_columns || all.high - all.low != columns ||
            first.high - first.low != 1 || first.low != all.low) {
          here = {0, columns};
          continue;
        }
        here.join({std::max<int64_t>(span.low - all.low, 0) / kVector * kVector,
                   std::min(round_up(span.high - all.low, kVector), columns)});
      }
      if (!here.empty()) add(row, row + 1, here.low, here.high);
    }
    return found;
  }

  /// Places for copies, by the waves in which a worker needs them. In the arena nothing is written
  /// twice: nobody knows when all have read it.
  bool place() {
    struct Life {
      int first = -1, last = -1;
    };
    std::vector<Life> lives(tasks_.buffers.size());
    for (const Work& work : tasks_.works)
      for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
        if (gives(work, slot)) continue;
        Life& life = lives[work.buffers[slot]];
        life.first = life.first < 0 ? work.wave : std::min(life.first, work.wave),
        life.last = std::max(life.last, work.wave);
      }
    int64_t arena = 0;
    std::vector<Living> copies;
    std::vector<Buffer*> of;
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      Buffer& buffer = tasks_.buffers[b];
      if (buffer.kind != BufferKind::kArena) continue;
      buffer.first = 0, buffer.last = std::max(tasks_.waves - 1, 0);
      buffer.offset = {arena}, arena += round_up(buffer.room().count, kCopyAlign);
      if (buffer.reach == Reach::kAll || lives[b].first < 0) continue;
      copies.push_back({.size = buffer.size.count, .first = lives[b].first, .last = lives[b].last}),
          of.push_back(&buffer);
    }
    const int64_t copy_bytes = place_living(copies, kCopyAlign);
    for (size_t k = 0; k < copies.size(); ++k) of[k]->copy_at = {copies[k].offset};
    tasks_.arena = {arena}, tasks_.copies = {copy_bytes}, tasks_.dataflow = true;
    for (Work& work : tasks_.works) {
      for (size_t slot = 0; slot < group_of(work).body.operands.size(); ++slot)
        work.dataflow->broadcasts.push_back(
            gives(work, slot) && tasks_.buffers[work.buffers[slot]].reach == Reach::kBroadcast);
    }
    return copy_bytes <= kMostCopies && arena <= machine::thresholds::kMostDataflowArena;
  }

  const Plan& plan_;
  const machine::Machine& device_;
  TaskGraph& tasks_;
  bool too_much_ = false;
};

}  // namespace

bool try_dataflow(const Plan& plan, const machine::Machine& device,
                  const machine::Strategy& strategy, TaskGraph& tasks) {
  if (!strategy.dataflow() || tasks.waves < 2) return false;
  TaskGraph flowing = tasks;
  if (!DataflowTable(plan, device, flowing).run()) return false;
  tasks = std::move(flowing);
  return true;
}

}  // namespace obelisk::schedule

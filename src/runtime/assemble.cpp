#include <algorithm>
#include <cmath>
#include <map>

#include "base/parallel.h"
#include "runtime/packing.h"
#include "runtime/weight_pool.h"

namespace obelisk::runtime {
namespace {

using graph::ValueId;
using stitch::GroupKind;

/// The weight itself, or a copy where the model's file has it at an address that is no multiple of
/// its element's size: machine code reads whole elements.
Tensor aligned(const Tensor& weight) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(weight.data());
  const uintptr_t size = static_cast<uintptr_t>(std::max(bits(weight.dtype()) / 8, 1));
  return address % size == 0 ? weight : weight.cast(weight.dtype());
}

/// `work`: where its tiles stream weights, packing puts together what one tile reads.
PackRecipe recipe_of(const stitch::Group& group, const schedule::Work& work,
                     const kernels::TileLibrary& tiles) {
  const auto tile = [&](int64_t columns, const kernels::WeightRange& all) {
    if (all.group == 0 || work.tile_columns >= columns) return int64_t{0};
    CHECK(work.tile_columns % tiles.panel == 0, "a tile of {} columns", work.tile_columns);
    return work.tile_columns;
  };
  if (group.kind != GroupKind::kConv) {
    const stitch::Product& p = group.product;
    PackRecipe recipe = {.kind = PackRecipe::Kind::kProduct,
                         .n = p.n[0].extent,
                         .k = p.k[0].extent,
                         .row = p.k[0].b,
                         .column = p.n[0].b,
                         .offset = p.b_offset};
    if (!p.batch.empty()) recipe.groups = p.batch[0].extent, recipe.outputs = p.batch[0].b;
    recipe.tile = tile(recipe.n, tiles.gemm.weights(static_cast<int32_t>(p.b_type), recipe.n,
                                                    recipe.k, 0, recipe.n));
    if (p.dual) recipe.n *= 2, recipe.tile *= 2, recipe.half = work.tile_columns;
    return recipe;
  }
  const stitch::ConvTile& conv = group.conv;
  const ops::ConvGeometry& shape = conv.shape;
  if (conv.depthwise)
    return {.kind = PackRecipe::Kind::kDepthwise,
            .outputs = shape.outputs,
            .inputs = shape.group_inputs,
            .height = conv.kernel_h,
            .width = conv.kernel_w};
  PackRecipe recipe = {.kind = PackRecipe::Kind::kConv,
                       .outputs = shape.group_outputs,
                       .inputs = shape.group_inputs,
                       .height = conv.kernel_h,
                       .width = conv.kernel_w,
                       .groups = shape.groups};
  if (tiles.conv.pixels)
    recipe.tile = tile(recipe.outputs, tiles.conv.pixels->weights(
                                           static_cast<int32_t>(conv.type), recipe.outputs,
                                           recipe.inputs, recipe.height, recipe.width, 0, 1));
  return recipe;
}

/// The packed weights that a task streams.
kernels::WeightRange weights_of(const stitch::Group& group, const schedule::Work& work,
                                const kernels::TileLibrary& tiles, const ObkTask& task) {
  if (group.kind == GroupKind::kProduct) {
    const stitch::Product& p = group.product;
    const auto type = static_cast<int32_t>(p.b_type);
    kernels::WeightRange range =
        tiles.gemm.weights(type, p.n[0].extent * p.b_count(), p.k[0].extent, task.c0 * p.b_count(),
                           task.c1 * p.b_count());
    if (!p.batch.empty() && range.bytes > 0)
      range.offset +=
          schedule::matrix_of_row(work, schedule::packed_matrix_dim(group, work), task.r0) *
          tiles.gemm.packed_bytes(type, p.n[0].extent, p.k[0].extent);
    return range;
  }
  const stitch::ConvTile& conv = group.conv;
  if (group.kind != GroupKind::kConv || conv.depthwise || !tiles.conv.pixels) return {};
  const ops::ConvGeometry& shape = conv.shape;
  const auto type = static_cast<int32_t>(conv.type);
  const int64_t of_group = task.c0 / shape.group_outputs, before = of_group * shape.group_outputs;
  kernels::WeightRange range =
      tiles.conv.pixels->weights(type, shape.group_outputs, shape.group_inputs, conv.kernel_h,
                                 conv.kernel_w, task.c0 - before, task.c1 - before);
  range.offset += of_group * tiles.conv.packed_bytes(type, shape.group_outputs, shape.group_inputs,
                                                     conv.kernel_h, conv.kernel_w);
  return range;
}

/// Tells every task which part of the packed weights it streams.
void name_weights(const stitch::Plan& plan, const schedule::TaskGraph& tasks,
                  const kernels::TileLibrary& tiles, Program& program) {
  for (auto& list : program.lists) {
    for (ObkTask& task : list) {
      const schedule::Work& work = tasks.works[task.work];
      if (work.grid() || !schedule::work_packs_weights(plan.groups[work.group], tasks, work, tiles))
        continue;  // tasks of a grid have no ring
      const kernels::WeightRange range = weights_of(plan.groups[work.group], work, tiles, task);
      CHECK(range.bytes <= INT32_MAX,
            "work {}: a tile streams {} bytes of weights, a task's record holds {} at most",
            task.work, range.bytes, INT32_MAX);
      task.weights = range.offset;
      task.weight_bytes = static_cast<int32_t>(range.bytes),
      task.weight_group = static_cast<int32_t>(range.group);
    }
  }
}

CustomRecord custom_record(const graph::Graph& graph, const stitch::Group& group) {
  const graph::Node& node = graph.node(group.anchor);
  CustomRecord record{.op = node.op, .attrs = node.attrs, .name = node.name};
  int operand = 0;  // operands stand in first-use order: inputs without repetition, then outputs
  std::map<ValueId, int> slot;
  for (ValueId v : group.body.operands) slot.try_emplace(v, operand++);
  for (ValueId v : node.inputs) {
    record.inputs.push_back(v == graph::kNone ? -1 : slot.at(v));
    record.input_types.push_back(v == graph::kNone ? Type{} : graph.type(v));
  }
  for (ValueId v : node.outputs) {
    record.outputs.push_back(v == graph::kNone ? -1 : slot.at(v));
    record.output_types.push_back(v == graph::kNone ? Type{} : graph.type(v));
  }
  return record;
}

}  // namespace

int64_t Program::task_count() const {
  int64_t count = 0;
  for (const auto& list : lists) count += static_cast<int64_t>(list.size());
  return count;
}

int64_t bytes_of_a_run(const Program& program) {
  const auto machine = machine::device(program.target, program.sms);
  std::vector<int64_t> read(program.weights.size(), 0);
  for (const WorkRecord& work : program.works)
    for (const Place& place : work.operands) {
      if (place.kind != BufferKind::kWeight ||
          program.weights[static_cast<size_t>(place.index)].empty())
        continue;
      int64_t bytes = program.weights[static_cast<size_t>(place.index)].bytes();
      if (machine.ok() && work.floor_nanos > 0)
        bytes = std::min(
            bytes, static_cast<int64_t>(std::ceil(1.001 * work.floor_nanos *
                                                  machine->peaks.cache_bytes * machine->sms)));
      read[static_cast<size_t>(place.index)] =
          std::max(read[static_cast<size_t>(place.index)], bytes);
    }
  int64_t sum = 0;
  for (const int64_t bytes : read) sum += bytes;
  for (const auto* ports : {&program.inputs, &program.outputs})
    for (const Port& port : *ports)
      if (!port.written_in_place()) sum += port.type.bytes();
  return sum;
}

Program assemble(const graph::Graph& graph, const stitch::Plan& plan,
                 const schedule::TaskGraph& tasks, codegen::Source source,
                 const std::string& target, WeightPool* pool) {
  Program program;
  program.name = graph.name;
  program.target = target;
  program.sms = static_cast<int>(tasks.lists.size());
  for (ValueId v : graph.inputs()) program.inputs.push_back({graph.value(v).name, graph.type(v)});
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    program.outputs.push_back({graph.output_names()[k], graph.type(graph.outputs()[k])});
  for (const stitch::InPlace& each : plan.in_place)
    program.outputs[each.output].in_place_of = each.input,
    program.outputs[each.output].staged = each.group < 0;
  program.bodies = std::move(source.bodies);
  program.lists = tasks.lists;
  program.waves = tasks.waves, program.dataflow = tasks.dataflow,
  program.smem_copies = tasks.copies;
  program.arena = tasks.arena;
  for (const codegen::Source::Scratch& scratch : source.scratch)
    program.scratch = std::max(program.scratch, Bytes{scratch.bytes});
  program.weights = tasks.weights;
  const auto known = machine::device(target, program.sms);
  const machine::Machine machine = known.ok() ? *known : machine::cpu(program.sms);
  const std::vector<double> floors = schedule::floor_nanos(plan, tasks, machine);
  // A weight that only products read in packed form is dropped; one packed form serves every reader
  // with the same strides.
  std::vector<bool> read_plain(tasks.weights.size(), false);
  std::map<std::pair<int, PackRecipe>, int64_t> packed_as;
  std::map<int, int32_t> broadcast;  // broadcast buffers, in the order of their first reader
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const schedule::Work& work = tasks.works[w];
    const stitch::Group& group = plan.groups[work.group];
    WorkRecord record;
    record.body = source.body_of_work[w];
    record.params = std::move(source.params[w]);
    record.scratch = source.scratch[w].bytes, record.row_scratch = source.scratch[w].row;
    record.label = graph.node(group.nodes.front()).name;
    if (record.label.empty() && record.body >= 0) record.label = program.bodies[record.body].label;
    record.task_nanos = work.predicted_nanos;
    record.floor_nanos = floors[w];
    const bool packs =
        schedule::work_packs_weights(plan.groups[work.group], tasks, work, *source.tiles);
    for (size_t k = 0; k < work.buffers.size(); ++k) {
      const schedule::Buffer& buffer = tasks.buffers[work.buffers[k]];
      Place place{buffer.kind,
                  buffer.kind == BufferKind::kArena ? buffer.offset.count : buffer.index};
      const bool gives = work.broadcasts(k);
      if (buffer.reach != schedule::Reach::kAll && !gives) place.smem_copy = buffer.copy_at.count;
      if (buffer.reach == schedule::Reach::kBroadcast && !gives) {
        const int32_t number =
            broadcast.try_emplace(work.buffers[k], static_cast<int32_t>(broadcast.size()))
                .first->second;
        record.gathers.push_back(
            {buffer.offset.count, buffer.copy_at.count, buffer.size.count / 4, number});
      }
      if (packs && k + 1 == work.buffers.size()) {
        const PackRecipe recipe = recipe_of(group, work, *source.tiles);
        auto [it, fresh] = packed_as.try_emplace({buffer.index, recipe},
                                                 static_cast<int64_t>(program.weights.size()));
        if (fresh) {
          const Tensor& weight = tasks.weights[buffer.index];
          program.packings.push_back(
              {static_cast<int>(program.weights.size()), recipe, weight.type(), weight});
          program.weights.emplace_back();
        }
        place.index = it->second;
      } else if (buffer.kind == BufferKind::kWeight) {
        read_plain[buffer.index] = true;
      }
      record.operands.push_back(place);
    }
    if (record.body >= 0) {
      const codegen::BodyTraits& traits = program.bodies[record.body].traits;
      CHECK(static_cast<int64_t>(record.operands.size()) == traits.operands &&
                static_cast<int64_t>(record.params.size()) == traits.params,
            "{} has {} operands and {} params, its body takes: {}", record.label,
            record.operands.size(), record.params.size(), to_string(traits));
    }
    if (group.kind == GroupKind::kCustom) {
      record.custom = static_cast<int32_t>(program.customs.size());
      program.customs.push_back(custom_record(graph, group));
    }
    program.works.push_back(std::move(record));
  }
  for_each_on_all_cores(program.packings.size(), [&](size_t k) {
    Packing& packing = program.packings[k];
    if (pool) packing.source = pool->share(packing.source);
    program.weights[packing.weight] =
        pool ? pool->packed(*source.tiles, packing.recipe, packing.source)
             : pack(*source.tiles, packing.recipe, packing.source);
  });
  name_weights(plan, tasks, *source.tiles, program);
  for (size_t k = 0; k < read_plain.size(); ++k)
    program.weights[k] = !read_plain[k] ? Tensor()
                         : pool         ? pool->share(aligned(program.weights[k]))
                                        : aligned(program.weights[k]);
  // Outputs that are inputs, constants, or a second name of another output.
  std::map<ValueId, int> first;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    const ValueId v = graph.outputs()[k];
    auto [it, fresh] = first.try_emplace(v, static_cast<int>(k));
    const graph::Value& value = graph.value(v);
    if (!fresh) {
      program.copies.push_back({static_cast<int>(k), {BufferKind::kOutput, it->second}});
    } else if (value.is_constant()) {
      program.copies.push_back(
          {static_cast<int>(k),
           {BufferKind::kWeight, static_cast<int64_t>(program.weights.size())}});
      program.weights.push_back(value.constant);
    } else if (value.producer == graph::kNone) {
      const auto at = std::find(graph.inputs().begin(), graph.inputs().end(), v);
      CHECK(at != graph.inputs().end(), "output '{}' has no source", value.name);
      program.copies.push_back(
          {static_cast<int>(k), {BufferKind::kInput, at - graph.inputs().begin()}});
    }
  }
  return program;
}

Program with_table(Program program, const stitch::Plan& plan, const schedule::TaskGraph& tasks) {
  CHECK(program.works.size() == tasks.works.size() && program.lists.size() == tasks.lists.size(),
        "a table of {} works on {} workers for a program of {} on {}", tasks.works.size(),
        tasks.lists.size(), program.works.size(), program.lists.size());
  program.lists = tasks.lists, program.waves = tasks.waves, program.arena = tasks.arena;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const schedule::Work& work = tasks.works[w];
    for (size_t k = 0; k < work.buffers.size(); ++k) {
      const schedule::Buffer& buffer = tasks.buffers[work.buffers[k]];
      if (buffer.kind == BufferKind::kArena)
        program.works[w].operands[k].index = buffer.offset.count;
    }
  }
  name_weights(plan, tasks, *tiles_of(program.target), program);
  return program;
}

}  // namespace obelisk::runtime

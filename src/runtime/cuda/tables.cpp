#include "runtime/cuda/tables.h"
#include "runtime/cuda/source.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "machine/costs_cuda.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr int64_t kAlign = 128;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

constexpr int64_t kMostFlowPages = 12;  // of a program that flows
constexpr int64_t kMostPages = 8;  // 192 KB on their way to an SM while it waits for the others:
                                   // all that one token asks of most layers

int64_t ring_bytes(int64_t pages, int64_t page_bytes = obk::kRingPageBytes) {
  return pages ? aligned(pages * (page_bytes + obk::kPageBarBytes)) : 0;
}

/// A work's shared memory beside the ring: its tile, staged rows of as many groups as fit, then the
/// block.
struct Shape {
  int64_t tile = 0, row = 0, words = 0;
  int groups = 1;
  bool streams = false;  // its tasks name weights that a ring brings
  int64_t scratch() const { return aligned(tile + groups * row); }
  int64_t bytes() const { return scratch() + 2 * aligned(words * 8); }
};

/// `mapped`: the address of a map stands behind its operands.
Result<Shape> shape_of(const WorkRecord& work, bool mapped, int64_t room) {
  Shape shape{.tile = work.scratch - work.row_scratch, .row = work.row_scratch};
  shape.words =
      OBK_WORK_WORDS + static_cast<int64_t>(work.params.size() + work.operands.size()) + mapped;
  if (!work.gathers.empty())
    shape.words += shape.words % 2 + 2 * static_cast<int64_t>(work.gathers.size());
  const auto refuse = [&](const std::string& what) {
    return Error{Code::kUnsupported, "runtime", what, work.label, "compile with --target cpu"};
  };
  if (shape.words > 0xffff)
    return refuse(
        fmt::format("a body takes {} parameters, a GPU's table holds 65535", shape.words));
  if (shape.bytes() > room)
    return refuse(fmt::format("a task wants {} of shared memory, a multiprocessor has {}",
                              to_string(Bytes{shape.bytes()}), to_string(Bytes{room})));
  return shape;
}

/// Of a program that flows, by a work's operand: the lines of a small weight, which its body reads
/// of its own accord, as a norm's scale; 0 of another operand, and where those before it fill the
/// place of a task.
constexpr int64_t kLine = 128, kMostSoon = 8192;  // bytes
std::vector<int64_t> small_weights(const Program& program, const WorkRecord& work) {
  std::vector<int64_t> lines(work.operands.size(), 0);
  int64_t left = kMostSoon;
  for (size_t k = 0; k < work.operands.size() && program.flows; ++k) {
    const Place& place = work.operands[k];
    if (place.kind != BufferKind::kWeight ||
        program.weights[static_cast<size_t>(place.index)].empty())
      continue;
    const bool packed =
        std::any_of(program.packings.begin(), program.packings.end(),
                    [&](const Packing& packing) { return packing.weight == place.index; });
    const int64_t all =
        (program.weights[static_cast<size_t>(place.index)].bytes() + kLine - 1) / kLine;
    if (packed || all * kLine > left) continue;
    lines[k] = all, left -= all * kLine;
  }
  return lines;
}

/// The layout of a kernel that runs these works: pages first, then as many groups of lanes as there
/// is room for.
/// `flowing`: the program, where it flows; `soon`: bytes of the small weights of a task.
Launch lay_out(std::vector<Shape*> shapes, int64_t room, bool has_ring, int blocks,
               const Program* flowing = nullptr, int64_t soon = 0) {
  Launch launch;
  const int64_t near = flowing ? flowing->near.count : 0,
                page_bytes = flowing ? obk::kFlowPageBytes : obk::kRingPageBytes;
  room -= aligned(near) + obk::kFlowSoon * soon;
  int64_t least = 0, words = 0;
  bool streams = false;
  for (const Shape* shape : shapes) {
    least = std::max(least, shape->scratch());
    words = std::max(words, aligned(shape->words * 8));
    streams = streams || shape->streams;
  }
  launch.block_bytes = static_cast<int32_t>(words), launch.streams = streams;
  words *= blocks;
  if (has_ring && streams)
    launch.ring_pages = static_cast<int32_t>(
        std::clamp<int64_t>((room - least - words - kAlign) / (page_bytes + obk::kPageBarBytes), 0,
                            flowing ? kMostFlowPages : kMostPages));
  launch.scratch_at = static_cast<int32_t>(ring_bytes(launch.ring_pages, page_bytes));
  const int64_t left = room - words - launch.scratch_at;
  int64_t scratch = 0;
  for (Shape* shape : shapes) {
    shape->groups = kWarps;
    while (shape->groups > 1 && shape->scratch() > left) --shape->groups;
    scratch = std::max(scratch, shape->scratch());
  }
  launch.block_at = static_cast<int32_t>(launch.scratch_at + scratch);
  launch.near_at = static_cast<int32_t>(launch.block_at + words);
  launch.soon_at = static_cast<int32_t>(launch.near_at + aligned(near)),
  launch.soon_bytes = static_cast<int32_t>(soon);
  launch.shared = static_cast<int32_t>(launch.soon_at + obk::kFlowSoon * soon);
  return launch;
}

constexpr int32_t kOwnOfTables =
    1024;  // shared memory of their own that kernels with a table have beside

/// CTAs of a kernel begin where the one before it has ended first, as many as an SM holds. Where it
/// has a task for each SM at most, a CTA takes so much shared memory that the next one waits for an
/// SM of its own. Not beside other kernels, whose SMs it may share; and not where tasks are short:
/// then it is better to leave SMs for the kernel after it, whose weights are on their way before it
/// may begin.
void spread_out(std::vector<Launch>& launches, const Program& program, int64_t room) {
  std::map<int, int> kernels;
  for (const Launch& launch : launches) ++kernels[launch.wave];
  for (Launch& launch : launches) {
    const bool long_tasks =
        program.works[launch.work].task_nanos >= machine::cuda_costs::kShortTaskNanos;
    if (kernels[launch.wave] == 1 && launch.tasks <= static_cast<int>(program.lists.size()) &&
        long_tasks)
      launch.shared = std::max(
          launch.shared, static_cast<int32_t>(room / 2 + kAlign +
                                              (launch.product || launch.dealt ? kOwnOfTables : 0)));
  }
}

/// Keys and values that a task takes from where the caller keeps them lie in inputs. Errors:
/// kBuild, for a table of a damaged file.
Status check_kept_keys(const Program& program, const ObkTask& task) {
  const WorkRecord& work = program.works[task.work];
  const int64_t row = -int64_t{task.weight_group}, bytes = task.weight_bytes;
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format("a task takes keys of {} bytes, {} a row, from {:#x}; wanted: whole rows of "
                    "multiples of {} bytes up to {}, inside its last two operands, two inputs",
                    bytes, row, task.weights, obk::kGatherUnit, obk::kFlowPageBytes),
        work.label, "compile the model again"};
  };
  if (!program.flows || row > obk::kFlowPageBytes || row % obk::kGatherUnit != 0 || bytes <= 0 ||
      bytes % row != 0 || work.operands.size() < 2)
    return broken();
  for (size_t which = 0; which < 2; ++which) {
    const Place& place = work.operands[work.operands.size() - 2 + which];
    if (place.kind != BufferKind::kInput || place.near >= 0 || place.index < 0 ||
        place.index >= static_cast<int64_t>(program.inputs.size()))
      return broken();
    const int64_t from =
        (which == 0 ? OBK_KEPT_KEYS(&task) : OBK_KEPT_VALUES(&task)) * obk::kGatherUnit;
    if (task.weights < 0 ||
        from + bytes > program.inputs[static_cast<size_t>(place.index)].type.bytes())
      return broken();
  }
  return ok_status();
}

/// The packed weights that a task of a program that flows takes page by page lie in them. Errors:
/// kBuild, for a table of a damaged file.
Status check_streamed(const Program& program, const ObkTask& task) {
  const WorkRecord& work = program.works[task.work];
  const int64_t bytes = task.weight_bytes, group = task.weight_group;
  const auto broken = [&] {
    return Error{Code::kBuild, "runtime",
                 fmt::format("a task streams {} bytes, {} a group, from {}; wanted: whole groups "
                             "of multiples of {} bytes, inside its last operand, a weight",
                             bytes, group, task.weights, obk::kAtomBytes),
                 work.label, "compile the model again"};
  };
  if (bytes < 0 || group <= 0 || group % obk::kAtomBytes != 0 || bytes % group != 0 ||
      work.operands.empty() || work.operands.back().kind != BufferKind::kWeight)
    return broken();
  const Tensor& weight = program.weights[static_cast<size_t>(work.operands.back().index)];
  return task.weights >= 0 && !weight.empty() && task.weights <= weight.bytes() - bytes
             ? ok_status()
             : Status(broken());
}

/// A kernel whose CTAs find their own rectangles: what these follow from. Errors:
/// kBuild, for a table (of a damaged file) whose tasks are not such rectangles.
Status deal(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
            Launch& launch) {
  const WorkRecord& work = program.works[launch.work];
  launch.dealt = program.bodies[work.body].traits.form == codegen::BodyTraits::Form::kGrid;
  if (!launch.dealt) return ok_status();
  const ObkTask &first = tasks.front(), &last = tasks.back();
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format("{} tasks, the first of {} x {}, are not a grid of such rectangles over {} x "
                    "{}, by up to {} operands without parameters",
                    launch.tasks, first.r1, first.c1, last.r1, last.c1, schedule::kDealtOperands),
        work.label, "compile the model again"};
  };
  if (!work.params.empty() || work.operands.size() > size_t{schedule::kDealtOperands} ||
      first.r1 < 1 || first.c1 < 1 || last.r1 > INT32_MAX || last.c1 > INT32_MAX)
    return broken();
  ObkDealt& cut = launch.rectangles;
  cut.rows = static_cast<int32_t>(last.r1), cut.columns = static_cast<int32_t>(last.c1);
  cut.tile_rows = static_cast<int32_t>(first.r1), cut.tile_columns = static_cast<int32_t>(first.c1);
  cut.across = static_cast<int32_t>((last.c1 + first.c1 - 1) / first.c1);
  cut.scratch_bytes = launch.shared = static_cast<int32_t>(shape.scratch());
  const int64_t down = (int64_t{cut.rows} + cut.tile_rows - 1) / cut.tile_rows;
  return int64_t{cut.across} * down == launch.tasks ? ok_status() : Status(broken());
}

constexpr int kSharers =
    2;  // tiles of a cluster that share weights: with four fewer clusters find a place, for as much

/// A product that has a kernel of its own: what its CTAs' rectangles and copies follow from.
/// Errors: kBuild, as above.
Status stream(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
              int64_t there, Launch& launch) {
  const WorkRecord& work = program.works[launch.work];
  if (!program.bodies[work.body].traits.gemm) return ok_status();
  const codegen::PipelinedGemm& gemm = *program.bodies[work.body].traits.gemm;
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format(
            "a product's kernel is told {}, of {} operands and {} tasks over {} x {}; wanted: "
            "stages of whole blocks, its parts' alike, and even tiles inside its operands",
            to_string(program.bodies[work.body].traits), work.operands.size(), launch.tasks,
            tasks.back().r1, tasks.back().c1),
        work.label, "compile the model again"};
  };
  TRY(const machine::Machine device, machine::gpu(program.target, 0));
  const int64_t room = device.fast_memory.count;  // what its numbers are compiled for
  ProductNumbers& p = launch.numbers;
  const int64_t a = gemm.a, wide = gemm.columns, blocks = gemm.blocks, sides = gemm.sides,
                sums = gemm.late_scratch, operands = static_cast<int64_t>(work.operands.size());
  if (a < 0 || a >= operands || gemm.b < 0 || gemm.b >= operands ||
      operands > schedule::kDealtOperands || !work.params.empty())
    return broken();
  for (const int64_t number :
       {gemm.rows, gemm.span, gemm.row, gemm.block, gemm.row_step, gemm.block_step, blocks,
        gemm.stage, sides, wide, gemm.split_k, sums})
    if (number < 0 || number > INT32_MAX) return broken();
  launch.weights = static_cast<int>(gemm.b);
  const auto set = [](int& to, int64_t number) { to = static_cast<int>(number); };
  set(p.span, gemm.span), set(p.row, gemm.row), set(p.block, gemm.block),
      set(p.row_step, gemm.row_step), set(p.block_step, gemm.block_step);
  set(p.stage, gemm.stage), set(p.parts, gemm.split_k);
  if (work.operands[a].kind != BufferKind::kArena || work.operands[a].index % 16 != 0)
    return broken();
  if (work.operands[launch.weights].kind != BufferKind::kWeight) return broken();
  if (p.parts < 1 || p.parts > schedule::kMostOfCluster) return broken();
  if (p.span < 1 || p.stage < 1 || blocks < int64_t{p.stage} * p.parts ||
      blocks % (int64_t{p.stage} * p.parts) != 0 || sides < 1 || wide < 1 || wide > 256)
    return broken();
  const ObkTask &first = tasks.front(), &last = tasks.back();
  if (first.r1 < 1 || first.r1 > 64 || first.c1 < 1 || last.r1 > INT32_MAX || last.c1 > INT32_MAX ||
      last.r1 % p.span != 0)
    return broken();
  if (last.r1 != gemm.all_rows || last.c1 != gemm.all_columns)
    return broken();  // works with the same text have the same numbers
  p.tile_rows = static_cast<int>(first.r1), p.tile_columns = static_cast<int>(first.c1),
  p.columns = static_cast<int>(last.c1);
  p.across = (p.columns + p.tile_columns - 1) / p.tile_columns,
  p.each = (p.span + p.tile_rows - 1) / p.tile_rows;
  p.scratch_bytes = static_cast<int>(shape.scratch()), p.tasks = launch.tasks;
  if (int64_t{p.across} * p.each * (last.r1 / p.span) != launch.tasks) return broken();
  if (gemm.weights_step < 0 || gemm.weights_step % 16 != 0 || sums > p.scratch_bytes ||
      sums % 16 != 0)
    return broken();
  p.weights_step = gemm.weights_step;
  const auto weights_of = [&](int64_t columns) {
    return static_cast<int>(p.stage * ((sides * columns + 15) / 16 * 2048));
  };
  const int64_t tile_wide = sides * p.tile_columns;
  constexpr int kMostBlocks = 1 << 14;  // bytes of a tile's weights are 32 bits
  const bool has_place = tile_wide <= (wide + 15) / 16 * 16,
             whole = p.across == 1 ||
                     tile_wide % 8 == 0;  // in a stage; groups of 8 columns, as they are packed
  if (!has_place || !whole || blocks > kMostBlocks ||
      p.across * (tile_wide / 8 * blocks * 1024) > INT32_MAX)
    return broken();
  p.tile_bytes = static_cast<int>(tile_wide / 8 * blocks * 1024);
  p.bytes = weights_of(p.tile_columns),
  p.last_bytes = weights_of(p.columns - int64_t{p.across - 1} * p.tile_columns);
  p.rows_bytes = (p.stage * p.tile_rows * 128 + 1023) / 1024 * 1024,
  p.stage_bytes = p.rows_bytes + p.stage * ((wide + 15) / 16 * 2048);
  p.tile_stages = blocks / p.parts / p.stage;
  const auto at_once = [&](int64_t share) {
    return std::min(launch.tasks / share,
                    machine::clusters_at_once(static_cast<int64_t>(program.lists.size()),
                                              p.parts * share)) *
           share;
  };
  p.single = at_once(1) == launch.tasks;
  if (p.single && p.each % kSharers == 0 && p.parts * kSharers <= schedule::kMostOfCluster &&
      at_once(kSharers) == launch.tasks)
    p.share = kSharers;
  launch.ctas = static_cast<int>(at_once(p.share) * p.parts);
  const int64_t wanted = p.tile_stages * ((launch.tasks + at_once(p.share) - 1) / at_once(p.share));
  const auto places = [&](int64_t scratch) {
    return std::min(
        {wanted, (room - scratch - kAlign) / p.stage_bytes, int64_t{obk::kProductStages}});
  };
  p.stages = static_cast<int>(places(p.scratch_bytes));
  // Sums lie where stages were if these have no other place: nobody needs them any more.
  if (const int64_t more = places(p.scratch_bytes - sums);
      p.single && more > p.stages && sums <= more * p.stage_bytes)
    p.stages = static_cast<int>(more), p.overlaid = static_cast<int>(sums);
  const int64_t least = std::min<int64_t>(wanted, 2);
  if (p.stages < least)
    return Error{
        Code::kUnsupported, "runtime",
        fmt::format("a product's kernel wants {} of shared memory, a multiprocessor has {}",
                    to_string(Bytes{p.scratch_bytes + least * p.stage_bytes + kAlign}),
                    to_string(Bytes{room})),
        work.label, "compile with --granularity mono"};
  p.refills = p.stages < wanted;
  launch.product = true, launch.streams = false, launch.ring_pages = 0;
  launch.shared = p.stages * p.stage_bytes + p.scratch_bytes - p.overlaid;
  if (launch.shared > there)
    return Error{
        Code::kUnsupported, "runtime",
        fmt::format(
            "a product's kernel takes {} of shared memory, this GPU's multiprocessors have {}",
            to_string(Bytes{launch.shared}), to_string(Bytes{there})),
        work.label, "compile with --granularity mono"};
  launch.rows = {static_cast<int>(a), gemm.rows, gemm.pitch, p.stage, p.tile_rows};
  return ok_status();
}

/// The matrix whose rows a product of one kernel asks for, if it does: where its map lies, 0 of
/// others. Errors: kBuild, as above.
Result<int64_t> asked_rows(const Program& program, const WorkRecord& work, Tables& tables) {
  if (work.body < 0 || !program.bodies[work.body].traits.asked_rows) return 0;
  const codegen::AskedRows& asked = *program.bodies[work.body].traits.asked_rows;
  constexpr int64_t kMost = 256;  // rows and blocks of a copy
  const int64_t a = asked.a, rows = asked.rows, pitch = asked.pitch, together = asked.blocks,
                box = asked.box;
  const bool inside = a >= 0 && a < static_cast<int64_t>(work.operands.size()) && rows > 0 &&
                      pitch >= 64 && pitch % 8 == 0 && together > 0 && together <= kMost &&
                      box > 0 && box <= kMost && rows <= INT32_MAX / pitch &&
                      work.operands[a].kind == BufferKind::kArena && work.operands[a].index >= 0 &&
                      work.operands[a].index % 16 == 0 &&
                      rows * pitch * 2 <= program.arena.count - work.operands[a].index;
  if (!inside)
    return Error{Code::kBuild, "runtime",
                 fmt::format("a product asks for rows as {}; wanted: a matrix of 16-bit numbers "
                             "inside the workspace",
                             to_string(program.bodies[work.body].traits)),
                 work.label, "compile the model again"};
  const int64_t from = work.operands[a].index;
  for (const ArenaMap& map : tables.maps)
    if (map.from == from && map.rows.rows == rows && map.rows.pitch == pitch &&
        map.rows.blocks == together && map.rows.together == box)
      return map.at;
  tables.maps.push_back(
      {aligned(program.arena.count) + static_cast<int64_t>(tables.maps.size()) * obk::kMapBytes,
       from,
       {0, rows, pitch, together, box}});
  tables.map_bytes = tables.maps.back().at + obk::kMapBytes - program.arena.count;
  return tables.maps.back().at;
}

}  // namespace

std::string text_of(const ProductNumbers& p, const std::string& name) {
  return fmt::format(
      "struct {} {{\n"
      "  static constexpr int parts = {}, share = {}, tasks = {}, across = {}, each = {}, span = "
      "{}, tile_rows = {}, tile_columns = {}, columns = {};\n"
      "  static constexpr int tile_bytes = {}, bytes = {}, last_bytes = {}, rows_bytes = {}, "
      "stage_bytes = {}, stage = {}, tile_stages = {}, stages = {};\n"
      "  static constexpr int row = {}, block = {}, row_step = {}, block_step = {}, overlaid = {}, "
      "scratch_bytes = {};\n"
      "  static constexpr int64_t weights_step = {};\n"
      "  static constexpr bool single = {}, refills = {};\n}};\n",
      name, p.parts, p.share, p.tasks, p.across, p.each, p.span, p.tile_rows, p.tile_columns,
      p.columns, p.tile_bytes, p.bytes, p.last_bytes, p.rows_bytes, p.stage_bytes, p.stage,
      p.tile_stages, p.stages, p.row, p.block, p.row_step, p.block_step, p.overlaid,
      p.scratch_bytes, p.weights_step, p.single, p.refills);
}

Status has_device_code(const Program& program) {
  for (const CustomRecord& custom : program.customs)
    return Error{Code::kUnsupported, "runtime",
                 fmt::format("{} has no device code", ops::to_string(custom.op)), custom.name,
                 "compile with --target cpu"};
  return ok_status();
}

Result<Tables> make_tables(const Program& program, bool one_kernel, int64_t room) {
  TRY_STATUS(has_device_code(program));
  Tables tables;
  std::vector<Shape> shapes;
  std::vector<int64_t> block_of;  // bytes
  int64_t soon = 0;
  TRY(const machine::Machine machine, machine::gpu(program.target));
  const bool has_ring = machine.features.tma;
  for (const WorkRecord& work : program.works) {
    int64_t map = 0;
    if (one_kernel) {
      TRY(map, asked_rows(program, work, tables));
    }
    TRY(const Shape shape, shape_of(work, map != 0, room));
    shapes.push_back(shape);
    block_of.push_back(static_cast<int64_t>(tables.blocks.size()) * 8);
    if (block_of.back() >> (OBK_FRESH_AT - OBK_BLOCK_AT) != 0)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tables take {}, a GPU's kernels find the first 4 GiB",
                               to_string(Bytes{block_of.back()})),
                   work.label, "compile with --target cpu"};
    const ObkWork head = {.body = work.body,
                          .params = static_cast<int32_t>(work.params.size()),
                          .operands = static_cast<int32_t>(work.operands.size()) + (map != 0),
                          .row_scratch = work.row_scratch,
                          .gathers = static_cast<int32_t>(work.gathers.size())};
    uint64_t words[OBK_WORK_WORDS];
    memcpy(words, &head, sizeof head);
    tables.blocks.insert(tables.blocks.end(), words, words + OBK_WORK_WORDS);
    for (int64_t param : work.params) tables.blocks.push_back(static_cast<uint64_t>(param));
    const std::vector<int64_t> small = small_weights(program, work);
    soon = std::max(soon, std::accumulate(small.begin(), small.end(), int64_t{0}) * kLine);
    for (const Place& place : work.operands) {
      uint64_t word = static_cast<uint64_t>(place.index);
      if (place.near >= 0 && program.flows) {
        tables.blocks.push_back(static_cast<uint64_t>(place.near) | OBK_NEAR);
        continue;
      }
      if (place.kind == BufferKind::kInput) word |= OBK_PORT;
      if (place.kind == BufferKind::kOutput) word = (word + program.inputs.size()) | OBK_PORT;
      if (place.kind == BufferKind::kArena) word |= OBK_ARENA;
      if (place.kind == BufferKind::kWeight)
        tables.weight_words.push_back({static_cast<int64_t>(tables.blocks.size()),
                                       small[static_cast<size_t>(&place - work.operands.data())]});
      tables.blocks.push_back(word);
    }
    if (map != 0) tables.blocks.push_back(static_cast<uint64_t>(map) | OBK_ARENA);
    if (tables.blocks.size() % 2) tables.blocks.push_back(0);
    if (work.gathers.size() > schedule::kMostGathers)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("a work gathers {} values, a GPU's table says it of {}",
                               work.gathers.size(), schedule::kMostGathers),
                   work.label, "compile with --disable flow"};
    for (const Gather& gather : work.gathers) {
      if (gather.from % obk::kGatherUnit != 0 || gather.from / obk::kGatherUnit > UINT32_MAX ||
          gather.words % 2 != 0 || gather.near % obk::kGatherUnit != 0)
        return Error{Code::kBuild, "runtime",
                     fmt::format("a given value of {} words lies at {}, its copy at {}; wanted: "
                                 "pairs of words at multiples of {}",
                                 gather.words, gather.from, gather.near, obk::kGatherUnit),
                     work.label, "compile the model again"};
      const ObkGather one = {static_cast<uint32_t>(gather.from / obk::kGatherUnit),
                             static_cast<uint32_t>(gather.near),
                             static_cast<int32_t>(gather.words / 2), 0};
      uint64_t two[2];
      memcpy(two, &one, sizeof one);
      tables.blocks.insert(tables.blocks.end(), two, two + 2);
    }
  }
  const auto with_block = [&](ObkTask task) {
    task.block = block_of[task.work] << OBK_BLOCK_AT | shapes[task.work].words;
    return task;
  };
  std::vector<std::vector<ObkTask>> by_work(program.works.size());
  for (const auto& list : program.lists) {
    tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
    std::set<int64_t> gathered;  // by tasks before
    for (const ObkTask& task : list) {
      shapes[task.work].streams |= task.weight_bytes > 0;
      if (OBK_KEEPS_KEYS(&task)) {
        TRY_STATUS(check_kept_keys(program, task));
      } else if (program.flows && (task.weight_bytes != 0 || task.weight_group != 0)) {
        TRY_STATUS(check_streamed(program, task));
      }
      (one_kernel ? tables.tasks : by_work[task.work]).push_back(with_block(task));
      if (!one_kernel) continue;
      const std::vector<Gather>& gathers = program.works[task.work].gathers;
      for (size_t k = 0; k < gathers.size(); ++k)
        if (gathered.insert(gathers[k].number).second)
          tables.tasks.back().block |= static_cast<int64_t>(uint64_t{1} << (OBK_FRESH_AT + k));
    }
  }
  tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
  if (one_kernel) {
    std::vector<Shape*> all;
    for (Shape& shape : shapes) all.push_back(&shape);
    Launch launch = lay_out(all, room, has_ring, program.flows ? obk::kFlowBlocks : 2,
                            program.flows ? &program : nullptr, soon);
    if (program.flows) launch.threads = obk::kFlowThreads;
    const auto largest = std::max_element(
        program.works.begin(), program.works.end(),
        [](const WorkRecord& a, const WorkRecord& b) { return a.scratch < b.scratch; });
    if (program.flows && launch.streams && launch.ring_pages < 2)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tasks want {} of shared memory beside {} of copies and two "
                               "pages of weights, a multiprocessor has {}",
                               to_string(Bytes{largest->scratch}),
                               to_string(program.near + Bytes{obk::kFlowSoon * soon}),
                               to_string(Bytes{room})),
                   largest->label, "compile with --disable flow"};
    launch.tasks = static_cast<int>(program.lists.size());
    tables.launches.push_back(launch);
  } else {
    std::vector<int> order;
    for (size_t w = 0; w < by_work.size(); ++w)
      if (!by_work[w].empty()) order.push_back(static_cast<int>(w));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return by_work[a].front().wave < by_work[b].front().wave;
    });
    for (int w : order) {
      std::vector<ObkTask>& mine = by_work[w];
      std::sort(mine.begin(), mine.end(), [](const ObkTask& a, const ObkTask& b) {
        return std::tie(a.r0, a.c0) < std::tie(b.r0, b.c0);
      });
      Launch launch = lay_out({&shapes[w]}, room, has_ring, 1);
      launch.work = w, launch.body = program.works[w].body;
      launch.wave = static_cast<int>(mine.front().wave);
      launch.first_task = static_cast<int>(tables.tasks.size());
      launch.tasks = static_cast<int>(mine.size()), launch.block = mine.front().block;
      TRY_STATUS(deal(program, shapes[w], mine, launch));
      TRY_STATUS(stream(program, shapes[w], mine, room, launch));
      tables.tasks.insert(tables.tasks.end(), mine.begin(), mine.end());
      tables.launches.push_back(launch);
    }
    spread_out(tables.launches, program, room);
    int next = -1;
    for (size_t k = tables.launches.size(); k-- > 0;) {
      Launch& launch = tables.launches[k];
      if (!launch.product) continue;
      launch.next = next;
      next = static_cast<int>(program.works[launch.work].operands[launch.weights].index);
    }
  }
  for (size_t w = 0; w < shapes.size(); ++w) {
    ObkWork head;
    memcpy(&head, &tables.blocks[block_of[w] / 8], sizeof head);
    head.groups = shapes[w].groups;
    memcpy(&tables.blocks[block_of[w] / 8], &head, sizeof head);
  }
  return tables;
}

Status make_maps(const Tables& tables, DevicePointer arena) {
  if (tables.maps.empty()) return ok_status();
  TRY(const Driver* driver, load_driver());
  for (const ArenaMap& map : tables.maps) {
    alignas(64) char text[128];
    TRY_STATUS(encode_rows(arena + static_cast<uint64_t>(map.from), map.rows.rows, map.rows.pitch,
                           map.rows.blocks, map.rows.together, text));
    TRY_STATUS(
        copy_in(*driver, arena + static_cast<uint64_t>(map.at), text, sizeof text, "copy a map"));
  }
  return ok_status();
}

void place_weights(Tables& tables, const Program& program,
                   const std::vector<DevicePointer>& weights) {
  for (const auto& [at, lines] : tables.weight_words) {
    tables.blocks[at] = weights[tables.blocks[at]];
    if (lines > 0) tables.blocks[at] |= OBK_SOON | static_cast<uint64_t>(lines) << OBK_SOON_AT;
  }
  for (ObkTask& task : tables.tasks) {
    const std::vector<Place>& operands = program.works[task.work].operands;
    if (OBK_KEEPS_KEYS(&task)) continue;
    if (task.weight_bytes > 0 && !operands.empty() && operands.back().kind == BufferKind::kWeight)
      task.weights += static_cast<int64_t>(weights[operands.back().index]);
    else
      task.weight_bytes = 0;
  }
}

}  // namespace obelisk::runtime::cuda

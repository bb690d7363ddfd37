#include "runtime/cuda/launch_forms.h"

#include <algorithm>

namespace obelisk::runtime::cuda {

using kernels::pipelined_bounds::kTallRows, kernels::pipelined_bounds::kTileRows;

static constexpr int kSharers =
    2;  // tiles of a cluster that share weights: with four fewer clusters find a place, for as much

/// Bytes of a kernel's operand from where it begins, at most.
static int64_t bytes_of(const Program& program, const Place& place) {
  switch (place.kind) {
    case BufferKind::kInput:
      return program.inputs[static_cast<size_t>(place.index)].type.bytes();
    case BufferKind::kOutput:
      return program.outputs[static_cast<size_t>(place.index)].type.bytes();
    case BufferKind::kArena:
      return place.index % 16 == 0 ? program.arena.count - place.index : 0;
    case BufferKind::kWeight:
      return 0;  // weights are packed
  }
  return 0;
}

/// Whether `wide` elements of `size` bytes of each row of a matrix lie in an operand, and where
/// copies may begin.
static bool has_matrix(const Program& program, const Place& place, int64_t rows, int64_t pitch,
                       int64_t wide, int64_t size) {
  return pitch >= wide && wide > 0 && pitch * size % 16 == 0 && rows > 0 &&
         rows <= INT32_MAX / pitch &&
         ((rows - 1) * pitch + wide) * size <= bytes_of(program, place);
}

/// Whether all matrices of a batch, `high` rows of `wide` columns, lie in the one whose map B has.
static bool holds(const codegen::BoxMatrix& b, int64_t batches, int64_t high, int64_t wide) {
  for (const int64_t number : {b.row, b.column, b.row_step, b.column_step})
    if (number < 0 || number > INT32_MAX) return false;
  return b.row + (batches - 1) * b.row_step + high <= b.rows &&
         b.column + (batches - 1) * b.column_step + wide <= b.columns;
}

Status stream(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
              int64_t there, Launch& launch) {
  const WorkRecord& work = program.works[launch.work];
  if (!program.bodies[work.body].traits.gemm) return ok_status();
  const codegen::PipelinedGemm& gemm = *program.bodies[work.body].traits.gemm;
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format("a product's kernel has {}, of {} operands and {} tasks over {} x {}; wanted: "
                    "stages of whole blocks, its parts' alike, and even tiles inside its operands",
                    to_string(program.bodies[work.body].traits), work.operands.size(), launch.tasks,
                    tasks.back().r1, tasks.back().c1),
        work.label, "compile the model again"};
  };
  TRY(const machine::Machine device, machine::gpu(program.target, 0));
  const int64_t room = device.scratchpad.count;  // what its numbers are compiled for
  PipelinedGemmNumbers& p = launch.numbers;
  const int64_t a = gemm.a, wide = gemm.columns, blocks = gemm.blocks, b_count = gemm.b_count,
                sums = gemm.late_scratch, operands = static_cast<int64_t>(work.operands.size());
  if (a < 0 || a >= operands || gemm.b < 0 || gemm.b >= operands ||
      operands > schedule::kGridOperands || !work.params.empty())
    return broken();
  for (const int64_t number :
       {gemm.rows, gemm.span, gemm.row, gemm.block, gemm.row_step, gemm.block_step, blocks,
        gemm.stage, b_count, wide, gemm.split_k, sums})
    if (number < 0 || number > INT32_MAX) return broken();
  launch.weights = static_cast<int>(gemm.b);
  const auto set = [](int& to, int64_t number) { to = static_cast<int>(number); };
  set(p.span, gemm.span), set(p.row, gemm.row), set(p.block, gemm.block),
      set(p.row_step, gemm.row_step), set(p.block_step, gemm.block_step);
  set(p.stage, gemm.stage), set(p.split_k, gemm.split_k);
  const int64_t size = gemm.size, wide_block = 128 / size;
  const bool words = size == 4;
  if ((size != 2 && !words) || (gemm.tf32 && !words) || (words && b_count != 1)) return broken();
  p.block_k = static_cast<int>(wide_block);
  if (!gemm.boxes &&
      !has_matrix(program, work.operands[a], gemm.rows, gemm.pitch, wide_block, size))
    return broken();
  if (!gemm.boxes && work.operands[launch.weights].kind != BufferKind::kWeight) return broken();
  if (p.split_k < 1 || p.split_k > schedule::kMostOfGang) return broken();
  if (p.span < 1 || p.stage < 1 || blocks < int64_t{p.stage} * p.split_k ||
      blocks % (int64_t{p.stage} * p.split_k) != 0 || b_count < 1 || wide < 1 || wide > 256)
    return broken();
  const ObkTask &first = tasks.front(), &last = tasks.back();
  if (first.r1 < 1 || first.r1 > kTallRows || first.c1 < 1 || last.r1 > INT32_MAX ||
      last.c1 > INT32_MAX || last.r1 % p.span != 0)
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
    return static_cast<int>(p.stage * ((b_count * columns + 15) / 16 * 2048));
  };
  const int64_t tile_wide = b_count * p.tile_columns;
  constexpr int kMostBlocks = 1 << 14;  // bytes of a tile's weights are 32 bits
  const bool has_place = tile_wide <= (wide + 15) / 16 * 16,
             whole = p.across == 1 || tile_wide % (words ? 16 : 8) ==
                                          0;  // in a stage; groups of columns, as they are packed
  if (!has_place || !whole || blocks > kMostBlocks ||
      p.across * (tile_wide / 8 * blocks * 1024) > INT32_MAX)
    return broken();
  p.rows_bytes = (p.stage * p.tile_rows * 128 + 1023) / 1024 * 1024;
  if (gemm.boxes) {
    const codegen::BoxMatrix& b = *gemm.boxes;
    const int64_t k = blocks * wide_block, batches = last.r1 / p.span,
                  a_blocks = gemm.block + (batches - 1) * gemm.block_step + blocks;
    if (b_count != 1 || a_blocks > gemm.pitch / wide_block ||
        !holds(b, batches, b.k_rows ? k : p.columns, b.k_rows ? p.columns : k) ||
        !has_matrix(program, work.operands[a], gemm.rows, gemm.pitch, wide_block * a_blocks,
                    size) ||
        !has_matrix(program, work.operands[gemm.b], b.rows, b.pitch, b.columns, size))
      return broken();
    const int columns_of_box = static_cast<int>(wide_block),
              boxes = (p.tile_columns + columns_of_box - 1) / columns_of_box;
    const bool deep = b.k_rows && words;  // a box has all k of a stage
    const int together = !b.k_rows ? (p.tile_columns + 15) / 16 * 16
                         : deep    ? p.stage * p.block_k
                                   : p.block_k;  // rows of a box
    p.k_rows = b.k_rows, p.boxes = b.k_rows ? boxes : 1;
    p.bytes = p.last_bytes = (deep ? 1 : p.stage) * p.boxes * together * 128;
    p.stage_bytes = p.rows_bytes + p.bytes;
    set(p.b_row, b.row), set(p.b_column, b.column), set(p.b_row_step, b.row_step),
        set(p.b_column_step, b.column_step);
    launch.boxes = {b.rows, b.columns, b.pitch, together, size, gemm.tf32};
  } else {
    p.tile_bytes = static_cast<int>(tile_wide / 8 * blocks * 1024);
    p.bytes = weights_of(p.tile_columns),
    p.last_bytes = weights_of(p.columns - int64_t{p.across - 1} * p.tile_columns);
    const int64_t panels = (wide + 15) / 16;
    if (words) set(p.panel, p.stage * 2048 + (gemm.tf32 ? 0 : 64));
    p.stage_bytes = p.rows_bytes + static_cast<int>(words ? round_up(panels * p.panel, 1024)
                                                          : panels * p.stage * 2048);
  }
  p.tile_stages = blocks / p.split_k / p.stage;
  const auto at_once = [&](int64_t share) {
    return std::min(launch.tasks / share,
                    machine::gangs_at_once(static_cast<int64_t>(program.lists.size()),
                                           p.split_k * share)) *
           share;
  };
  p.single = at_once(1) == launch.tasks;
  if (p.single && !gemm.boxes && !words && p.each % kSharers == 0 &&
      p.split_k * kSharers <= schedule::kMostOfGang && at_once(kSharers) == launch.tasks)
    p.share = kSharers;
  launch.ctas = static_cast<int>(at_once(p.share) * p.split_k);
  const int64_t wanted = p.tile_stages * ((launch.tasks + at_once(p.share) - 1) / at_once(p.share));
  // Of a tall tile the second warpgroup reads 64 rows, whether there are as many or not: behind the
  // last place, too, they lie in the CTA's memory.
  const int64_t beyond =
      p.tile_rows > kTileRows
          ? std::max<int64_t>((p.stage - 1) * p.tile_rows * 128 + kTallRows * 128 - p.stage_bytes,
                              0)
          : 0;
  const auto places = [&](int64_t scratch) {
    return std::min({wanted, (room - std::max(scratch, beyond) - kAlign) / p.stage_bytes,
                     int64_t{obk::kPipelinedGemmStages}});
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
  launch.pipelined_gemm = true, launch.streams = false, launch.ring_pages = 0;
  launch.shared = static_cast<int32_t>(p.stages * p.stage_bytes +
                                       std::max<int64_t>(p.scratch_bytes - p.overlaid, beyond));
  if (launch.shared > there)
    return Error{
        Code::kUnsupported, "runtime",
        fmt::format(
            "a product's kernel takes {} of shared memory, this GPU's multiprocessors have {}",
            to_string(Bytes{launch.shared}), to_string(Bytes{there})),
        work.label, "compile with --granularity mono"};
  launch.rows = {static_cast<int>(a), gemm.rows, gemm.pitch, p.stage, p.tile_rows, size, gemm.tf32};
  return ok_status();
}

std::string text_of(const PipelinedGemmNumbers& p, const std::string& name) {
  return fmt::format(
      "struct {} {{\n"
      "  static constexpr int split_k = {}, share = {}, tasks = {}, across = {}, each = {}, span = "
      "{}, tile_rows = {}, tile_columns = {}, columns = {};\n"
      "  static constexpr int tile_bytes = {}, bytes = {}, last_bytes = {}, rows_bytes = {}, "
      "stage_bytes = {}, panel = {}, stage = {}, tile_stages = {}, stages = {};\n"
      "  static constexpr int row = {}, block = {}, row_step = {}, block_step = {}, overlaid = {}, "
      "scratch_bytes = {};\n"
      "  static constexpr int64_t weights_step = {};\n"
      "  static constexpr int block_k = {}, boxes = {}, b_row = {}, b_column = {}, b_row_step = "
      "{}, "
      "b_column_step = {};\n"
      "  static constexpr bool k_rows = {}, single = {}, refills = {};\n}};\n",
      name, p.split_k, p.share, p.tasks, p.across, p.each, p.span, p.tile_rows, p.tile_columns,
      p.columns, p.tile_bytes, p.bytes, p.last_bytes, p.rows_bytes, p.stage_bytes, p.panel, p.stage,
      p.tile_stages, p.stages, p.row, p.block, p.row_step, p.block_step, p.overlaid,
      p.scratch_bytes, p.weights_step, p.block_k, p.boxes, p.b_row, p.b_column, p.b_row_step,
      p.b_column_step, p.k_rows, p.single, p.refills);
}

}  // namespace obelisk::runtime::cuda

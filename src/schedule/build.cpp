#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "schedule/cutting.h"
#include "schedule/flow.h"
#include "schedule/places.h"
#include "schedule/schedule.h"
#include "schedule/streamed.h"

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;
using stitch::Plan;
using stitch::StepKind;

constexpr int64_t kAlign = 64;  // bytes; a line of the cache and the widest vector

/// A work's wave is the longest chain of works before it: works of one wave are independent and
/// share a barrier (MonoNN §4.4).
void assign_waves(const Plan& plan, TaskGraph& tasks) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Work& work = tasks.works[g];
    for (int before : plan.groups[g].after)
      work.wave = std::max(work.wave, tasks.works[before].wave + 1);
    tasks.waves = std::max(tasks.waves, work.wave + 1);
  }
}

// ---- buffers ---------------------------------------------------------------------------------------------------------

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
      if (tile.pieces > 1) keep(tile.images * tile.heads * tile.exchange, work);
    }
  }
  place_arena(tasks);
}

// ---- tiles -----------------------------------------------------------------------------------------------------------

/// Whole output rows of one image by channels of one group. The part of the input that a tile reads
/// and its accumulators stay in fast memory; where weights are large a tile takes many rows, so
/// that each panel of 64 channels is read few times. Single pixels have small weights for what they
/// read and write: there a tile takes more channels, so that its epilogue walks along longer rows.
void cut_conv(const stitch::ConvTile& conv, const Cutting& cut, int64_t pieces, Work& work) {
  const int64_t channels = conv.depthwise ? conv.shape.outputs : conv.shape.group_outputs;
  const int64_t weights = channels * conv.shape.group_inputs * conv.kernel_h * conv.kernel_w * 4;
  const int64_t images = conv.shape.batch, height = conv.out_height;
  work.tile_columns = channels;
  const bool pixels =
      conv.kernel_h == 1 && conv.kernel_w == 1;  // with strides, a tile gathers those that it reads
  if ((conv.shape.groups == 1 || conv.depthwise) &&
      (weights > cut.machine.fast_memory.count || channels > 256))
    work.tile_columns = std::min<int64_t>(channels, conv.depthwise || pixels ? 256 : 64);
  const int64_t row_reads = std::max<int64_t>(
      (pixels ? conv.out_width : conv.width * conv.stride_h) * conv.shape.group_inputs * 4, 1);
  const int64_t row_tile = std::max<int64_t>(conv.out_width * work.tile_columns * 4, 1);
  int64_t rows = std::max<int64_t>(1, std::min(cut.machine.fast_memory.count / row_reads,
                                               cut.machine.fast_memory.count / 2 / row_tile));
  const int64_t columns = (conv.shape.outputs + work.tile_columns - 1) / work.tile_columns;
  const int64_t wanted = std::max<int64_t>(
      1, (pieces + images * columns - 1) / (images * columns));  // cuts of an image's rows
  rows = std::min(rows, (height + wanted - 1) / wanted);
  const int64_t cuts = (height + rows - 1) / rows;
  rows = (height + cuts - 1) / cuts;
  work.tile_rows = rows * conv.out_width;
}

/// A convolution as its tiles see it, without a place.
ObkConv geometry(const stitch::ConvTile& conv, const Cutting& cut) {
  ObkConv shape = {};
  shape.type = conv.tile_type(), shape.depthwise = conv.depthwise;
  shape.own_kernel = cut.strategy.own_kernels;
  shape.height = conv.height, shape.width = conv.width,
  shape.in_channels = conv.depthwise ? conv.shape.inputs : conv.shape.group_inputs;
  shape.kernel_h = conv.kernel_h, shape.kernel_w = conv.kernel_w, shape.stride_h = conv.stride_h,
  shape.stride_w = conv.stride_w;
  shape.dilation_h = conv.dilation_h, shape.dilation_w = conv.dilation_w,
  shape.pad_top = conv.pad_top, shape.pad_left = conv.pad_left;
  shape.out_width = conv.out_width,
  shape.out_channels = conv.depthwise ? conv.shape.outputs : conv.shape.group_outputs;
  shape.x_pixel = conv.shape.inputs, shape.x_row = conv.width * shape.x_pixel;
  return shape;
}

constexpr int64_t kBlockRoom =
    4096;  // bytes of fast memory beside a tile and its scratch: parameters, operands, staged rows

/// The tile of a convolution whose library knows what tiles cost: pixels in row order by channels.
/// False: it does not.
bool cut_conv_by_cost(const stitch::ConvTile& conv, const Cutting& cut, Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  if (!tiles.conv.pixels) return false;
  const int64_t pixels = conv.out_height * conv.out_width, wide = conv.out_width;
  const int64_t outputs = conv.depthwise ? conv.shape.outputs
                                         : conv.shape.group_outputs;  // a tile stays inside a group
  ObkConv shape = geometry(conv, cut);
  std::vector<int64_t> heights, widths;
  for (int64_t p : {8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 256, 512})
    heights.push_back(std::min(p, pixels));
  for (int64_t parts = 2; pixels / parts >= 8 && parts <= 16; ++parts)
    heights.push_back((pixels + parts - 1) / parts);
  for (int64_t rows = 1; rows * wide <= 256 && rows <= conv.out_height; ++rows)
    heights.push_back(rows * wide);
  for (int64_t parts = 2; wide / parts >= 8; ++parts)
    if (wide % parts == 0) heights.push_back(wide / parts);
  const bool whole =
      conv.shape.groups > 1 && !conv.depthwise;  // columns of a work run over its groups
  for (int64_t c = tiles.panel; c < outputs && c <= 256;
       c += c < 64 ? tiles.panel : 64)  // 1, 2, 3 and 4 panels, then fours
    if (outputs % c == 0 || (!whole && outputs % tiles.panel != 0))
      widths.push_back(c);  // equal tiles where that can be
  if (whole || outputs <= 256) widths.push_back(outputs);
  double best = 0;
  for (int64_t height : heights) {
    for (int64_t width : widths) {
      if (height * width * 4 > cut.machine.fast_memory.count / 4 && height > 16) continue;
      shape.pixels = height, shape.channels = width;
      const int64_t middle = pixels / 2 / height * height;  // neither the first nor the last rows
      int64_t scratch = 0;
      for (int64_t first : {int64_t{0}, middle}) {  // at the edge fewer rows are read
        shape.row = first / wide, shape.column = first % wide;
        scratch = std::max(scratch, tiles.conv.scratch_bytes(&shape));
      }
      if ((height > 8 || width > tiles.panel) &&
          scratch + height * (width + 8) * 4 + kBlockRoom > cut.machine.fast_memory.count)
        continue;  // rows are padded
      shape.pixels = std::min(height, pixels - middle);
      const int64_t count = conv.shape.batch * ((pixels + height - 1) / height) *
                            ((conv.shape.outputs + width - 1) / width);
      const double nanos = tiles.conv.pixels->nanos(&shape);
      const double rounds =
          static_cast<double>((count + cut.workers.count - 1) / cut.workers.count);
      if (best != 0 && rounds * nanos >= best) continue;
      best = rounds * nanos;
      work.tile_rows = height, work.tile_columns = width, work.task_nanos = nanos;
    }
  }
  return best != 0;
}

int64_t count_tasks(const Group& group, const Work& work) {
  if (group.kind == GroupKind::kCustom) return 1;
  const int64_t rows = work.nest.row_count(),
                columns = std::max<int64_t>(work.nest.column_count(), 1);
  const int64_t span = std::max<int64_t>(tile_span(group, work), 1);
  return (rows + span - 1) / span * ((span + work.tile_rows - 1) / work.tile_rows) *
         ((columns + work.tile_columns - 1) / work.tile_columns);
}

/// The same of a kernel of its own whose CTAs share multiprocessors (as cut_to_deal's do): tiles of
/// any images' pixels, taken where they promise less than the tile that `work` has. Their
/// beginnings hide behind one another, so that only the first counts. `tasks`: of that tile.
void deal_tiles(const Cutting& cut, ObkConv shape, int64_t outputs, int64_t tasks, Work& work) {
  constexpr double kFirst = 1700;  // nanoseconds until the first tile multiplies
  constexpr double kAlone =
      1.25;  // how much longer than predicted tasks take that have a multiprocessor each
  constexpr int64_t kMostWidth = 128;
  const kernels::TileLibrary& tiles = cut.tiles;
  const int64_t all = work.nest.row_count();
  if (!takes_wgmma(cut.machine, cut.strategy)) return;  // the machines that have wgmma
  if (cut.strategy.min_grid_bytes.count == 0 || all == 0 ||
      work.buffers.size() > size_t{kDealtOperands} || !tiles.conv.pixels)
    return;
  double best = static_cast<double>((tasks + cut.workers.count - 1) / cut.workers.count) *
                work.task_nanos * kAlone;
  for (const int64_t height : {64, 128}) {
    for (int64_t width = 32; width <= kMostWidth; width += 16) {
      if (outputs % width != 0) continue;
      const int64_t count = (all + height - 1) / height * (outputs / width);
      const int residents = count <= cut.workers.count ? 1 : 2;
      shape.ctas_per_sm = static_cast<int16_t>(residents), shape.pixels = height,
      shape.channels = width;
      const double nanos = tiles.conv.pixels->nanos(&shape);
      if (nanos <= 0) continue;
      // Whole rounds of all multiprocessors, or where other kernels fill the last one, parts of
      // them: between the two.
      const int64_t together = int64_t{cut.workers.count} * residents;
      const double whole = static_cast<double>((count + together - 1) / together * residents);
      const double part = std::max(1.0, static_cast<double>(count) / cut.workers.count);
      const double time = kFirst + (residents == 1 ? whole : (whole + part) / 2) * nanos;
      if (time >= best) continue;
      best = time;
      work.form = Grid{residents}, work.tile_rows = height, work.tile_columns = width,
      work.task_nanos = nanos;
    }
  }
}

void deal_conv(const stitch::Plan& plan, const stitch::ConvTile& conv, const Cutting& cut,
               int64_t tasks, Work& work) {
  const stitch::Layout& in = plan.layouts[conv.x];
  const int64_t pixels = conv.out_height * conv.out_width, size = byte_size(conv.type, 1);
  if (conv.depthwise || conv.shape.groups != 1 || in.strides.size() != 4 || in.strides[1] != 1 ||
      in.offset * size % 16 != 0)
    return;
  if (conv.shape.batch * in.strides[0] * size >= INT32_MAX ||
      work.nest.row_count() != conv.shape.batch * pixels)
    return;
  ObkConv shape = geometry(conv, cut);
  shape.rows = conv.out_height, shape.x_row = in.strides[2], shape.x_pixel = in.strides[3],
  shape.x_image = in.strides[0];
  deal_tiles(cut, shape, conv.shape.outputs, tasks, work);
}

/// A product of many rows by packed weights, as a convolution of single pixels.
void deal_product(const Group& group, const TaskGraph& graph, const Cutting& cut, int64_t tasks,
                  Work& work) {
  const stitch::Product& p = group.product;
  const int64_t rows = work.nest.row_count(), size = byte_size(p.a_type, 1);
  const Access* access = work.nest.of_product(group, 0);
  if (!access || work.nest.rows != 1 || rows < stitch::kMostStreamedRows || p.sides() != 1 ||
      !p.batch.empty() || p.k.size() != 1 || p.statistics.wanted)
    return;
  const int64_t row = access->strides[0];
  const bool packed =
      graph.buffers[work.buffers[static_cast<size_t>(work.operand_count(group)) + 1]].kind ==
          BufferKind::kWeight &&
      p.b_type == p.a_type;
  if (!packed || p.k[0].a != 1 || row <= 0 || access->offset * size % 16 != 0 ||
      rows * row * size >= INT32_MAX)
    return;
  ObkConv shape = {};
  shape.type = static_cast<int32_t>(p.a_type), shape.in_channels = p.k[0].extent, shape.height = 1,
  shape.width = rows, shape.kernel_h = shape.kernel_w = 1;
  shape.x_row = shape.x_image = rows * row, shape.x_pixel = row;
  deal_tiles(cut, shape, work.nest.column_count(), tasks, work);
}

/// The tile of a product whose library knows what tiles cost: the least time of all workers' rounds
/// together. False: it does not.
bool cut_by_cost(const Group& group, const Cutting& cut, Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  const int32_t type = group.product.tile_type();
  const int64_t inner = tile_span(group, work.nest), n = work.nest.column_count(),
                k = group.product.k[0].extent;
  if (inner == 0 || n == 0 || tiles.gemm.nanos(type, 1, 1, k) <= 0) return false;
  const int64_t batches = std::max<int64_t>(work.nest.row_count() / inner, 1);
  const auto has_room = [&](int64_t rows, int64_t wide) {
    ObkGemm shape = {};
    shape.a_type = shape.b_type = type;
    shape.m = rows, shape.n = wide, shape.k = k;
    int64_t most = 0;
    for (int packed : {0, 1})
      shape.packed = packed, most = std::max(most, tiles.gemm.scratch_bytes(&shape));
    return most + rows * (wide + 8) * 4 + kBlockRoom <= cut.machine.fast_memory.count;
  };
  double best = 0;
  for (int64_t rows = 8; rows == 8 || (rows < 2 * inner && rows <= 128); rows *= 2) {
    for (int64_t columns = tiles.panel; columns < n + tiles.panel && columns <= 256;
         columns += tiles.panel) {
      const int64_t wide = columns * group.product.sides();  // of the tile
      if (wide > 256 || rows * wide * 8 > cut.machine.fast_memory.count / 2) continue;
      if ((rows > 8 || columns > tiles.panel) && !has_room(std::min(rows, inner), wide)) continue;
      const int64_t count = batches * ((inner + rows - 1) / rows) * ((n + columns - 1) / columns);
      const int64_t rounds = (count + cut.workers.count - 1) / cut.workers.count;
      const double nanos = tiles.gemm.nanos(type, std::min(rows, inner),
                                            std::min(wide, n * group.product.sides()), k);
      if (best != 0 && rounds * nanos >= best) continue;
      best = rounds * nanos;
      work.tile_rows = std::min(rows, inner), work.tile_columns = std::min(columns, n);
      work.task_nanos = nanos;
    }
  }
  return true;
}

/// The tile of a product by the machine's rates: of all that fit, the one with the least time of
/// all workers' rounds. A task computes at the machine's rate and reads its columns of B from far,
/// its rows of A (which all tasks of those rows share) from nearer; so tiles are high where B is
/// large, and what B's columns meet is read once.
void cut_product(const Group& group, const Cutting& cut, int64_t pieces, Work& work) {
  constexpr double kTask = 300, kNearer = 4;  // ns of a task besides; how much quicker A comes
  const int64_t inner = tile_span(group, work.nest), columns = work.nest.column_count(),
                k = group.product.k[0].extent;
  const int64_t fit =
      std::max<int64_t>(cut.machine.fast_memory.count / 4 / 4, 64);  // accumulators in a quarter
  if (inner == 0 || columns == 0) return;
  const int64_t batches = std::max<int64_t>(work.nest.row_count() / inner, 1);
  const int64_t workers = pieces > 1 ? cut.workers.count : 1;
  double best = 0;
  for (const int64_t about : {inner, int64_t{512}, int64_t{256}, int64_t{192}, int64_t{128},
                              int64_t{96}, int64_t{64}, int64_t{48}, int64_t{32}, int64_t{16}}) {
    const int64_t parts = (inner + about - 1) / about;
    int64_t high = (inner + parts - 1) /
                   parts;  // of about equal sizes, blocks of 16 keep the vector units full
    if (parts > 1) high = std::min(inner, (high + 15) / 16 * 16);
    for (int64_t wide = 64; wide < columns + 64; wide += 64) {
      const int64_t sums = high * wide * group.product.sides();
      if (wide > 64 && sums > fit) break;
      if (wide == 64 && high > 16 && sums > 2 * fit) break;
      const int64_t count = batches * ((inner + high - 1) / high) * ((columns + wide - 1) / wide);
      const double m = static_cast<double>(high),
                   n = static_cast<double>(std::min(wide, columns) * group.product.sides()),
                   depth = static_cast<double>(k);
      const double task = kTask + 2 * m * n * depth / cut.machine.flops_per_sm +
                          4 * depth * (n + m / kNearer) / cut.machine.bytes_per_sm;
      const double all = static_cast<double>((count + workers - 1) / workers) * task;
      if (best != 0 && all >= best) continue;
      best = all, work.tile_rows = high, work.tile_columns = std::min(wide, columns);
    }
  }
}

/// One head by a block of its queries: as many blocks as give each worker some, but 16 queries at
/// least, and no more than let the scores of a block stay in fast memory.
void cut_attention(const stitch::AttentionTile& tile, const Cutting& cut, int64_t pieces,
                   Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  if (tile.pieces > 1) {
    // A piece of the keys is named by the columns that it would have: the last to come writes them
    // all.
    work.tile_rows = tile.queries, work.tile_columns = tile.value_size / tile.pieces;
    return;
  }
  constexpr int64_t kFewest = 16;
  const int64_t kMost = tiles.attention.nanos ? 128 : 64;
  const int64_t heads = std::max<int64_t>(tile.images * tile.heads, 1);
  const int64_t wanted =
      std::clamp<int64_t>((pieces + heads - 1) / heads, 1, (tile.queries + kFewest - 1) / kFewest);
  int64_t block =
      tiles.attention.nanos ? kMost : std::min(kMost, (tile.queries + wanted - 1) / wanted);
  ObkAttention shape = {};
  shape.type = tile.tile_type();
  shape.keys = tile.keys, shape.size = tile.size, shape.value_size = tile.value_size;
  const auto fits = [&] {
    shape.queries = block;
    return tiles.attention.scratch_bytes(&shape) + block * tile.value_size * 4 <=
           cut.machine.fast_memory.count;
  };
  while (block > kFewest && !fits()) block = std::max(kFewest, block / 2);
  // The block with the least time of all workers' rounds together: where blocks of the fewest
  // queries are a few more than workers, larger ones that need no second round.
  if (tiles.attention.nanos) {
    double best = 0;
    for (int64_t candidate = kFewest;
         candidate == kFewest || (candidate < 2 * tile.queries && candidate <= block);
         candidate *= 2) {
      const int64_t count = tile.images * tile.heads * ((tile.queries + candidate - 1) / candidate);
      const double nanos = tiles.attention.nanos(shape.type, std::min(candidate, tile.queries),
                                                 tile.keys, tile.size, tile.value_size);
      const double all =
          static_cast<double>((count + cut.workers.count - 1) / cut.workers.count) * nanos;
      if (best != 0 && all >= best) continue;
      best = all, work.tile_rows = std::min(candidate, tile.queries);
    }
    work.tile_columns = tile.value_size;
    return;
  }
  const int64_t blocks = (tile.queries + block - 1) / block;
  block = (tile.queries + blocks - 1) / blocks;  // of about equal sizes
  work.tile_rows =
      std::min(tile.queries, blocks > 1 ? (block + kFewest - 1) / kFewest * kFewest : block);
  work.tile_columns = tile.value_size;
}

/// Whether something is read along the rows, as in a transposition: whole squares are turned at
/// once.
bool turns(const Nest& nest) {
  if (nest.rows == 0 || nest.dims.size() != static_cast<size_t>(nest.rows) + 1 || !nest.cut_columns)
    return false;
  return std::any_of(nest.accesses.begin(), nest.accesses.end(), [&](const Access& access) {
    return access.affine && access.step < 0 && access.strides[nest.rows - 1] == 1 &&
           access.strides.back() > 1;
  });
}

/// Whether a worker should have one task of a wave: its threads wait for what a task's beginning
/// loads.
bool cuts_once(const Cutting& cut) { return cut.tiles.vectors; }

/// How much longer a work's tasks take than the roofs that predict them. On GPUs bodies wait for
/// their loads, reductions most: measured.
double slower_than_roof(const Group& group, const Cutting& cut) {
  if (!cuts_once(cut) || group.kind != GroupKind::kStitched) return 1;
  for (const stitch::Step& step : group.body.steps)
    if (step.kind == StepKind::kReduce) return 10;
  return 3;
}

/// Bytes that a work reads and writes: what its nodes do one by one; of one loop on a GPU, where
/// intermediate values stay in registers, each operand once, and of one that is larger than the
/// loop (a table of embeddings) as many elements as the loop has.
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

/// Rows that the threads of a GPU's task reduce at once where neighbouring threads take
/// neighbouring rows (a pooling's channels), 16 bytes each; 0: it is no such work. A part of a
/// batch takes as long as a whole one.
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

/// Such a batch's time; measured: a 3x3 pooling takes 3.5 us.
double batch_nanos(const Work& work) {
  return 700 + 330.0 * static_cast<double>(work.nest.column_count());
}

/// A long work whose tasks are dealt while it runs (a kernel of its own): small ones, several on a
/// multiprocessor at once, of about `kTask` bytes: a long row, a square of a transposition, two
/// packs of each thread. Multiprocessors are not equally quick: with equal shares dealt beforehand
/// the H200 moves 3.5 to 3.7 TB/s, so 4.0 to 4.3; a copy 4.15. False: it is short, or no such work.
bool cut_to_deal(const Group& group, const Cutting& cut, const TaskGraph& tasks, Work& work) {
  constexpr double kTask = 25e3;
  constexpr int64_t kSide = 64;
  const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
  work.form = TaskList{};
  if (cut.strategy.min_grid_bytes.count == 0 || group.kind != GroupKind::kStitched ||
      work.nest.lanes_in_rows || columns == 0)
    return false;
  const double bytes = moved_bytes(group, cut, tasks, work);
  if (bytes < static_cast<double>(cut.strategy.min_grid_bytes.count) ||
      work.buffers.size() > size_t{kDealtOperands})
    return false;
  for (const stitch::Step& step : group.body.steps)  // packed elements share bytes
    if (step.kind == StepKind::kStore &&
        bits(tasks.buffers[work.buffers[step.slot]].type.dtype) < 8)
      return false;
  const auto fit = static_cast<int64_t>(kTask * static_cast<double>(rows) *
                                        static_cast<double>(columns) / bytes);  // elements
  work.form = Grid{}, work.tile_rows = 1, work.tile_columns = columns;
  if (turns(work.nest)) {
    const int64_t tall = byte_size(tasks.buffers[work.buffers.back()].type.dtype, 1) == 2
                             ? 2 * kSide
                             : kSide;  // of 16 bits: as many bytes
    work.tile_rows = std::min(rows, tall),
    work.tile_columns = std::min(columns, std::max(fit / tall / kSide, int64_t{1}) * kSide);
  } else if (work.nest.cut_columns && fit < columns) {
    const int64_t cuts = (columns + fit - 1) / std::max<int64_t>(fit, 1);
    work.tile_columns =
        std::min(columns, ((columns + cuts - 1) / cuts + kSide - 1) / kSide * kSide);
  } else {
    // Few rows a task wait for their loads and their sums: more than one are two, more than two
    // four (H200, LayerNorm of f16, rows of 4096: one a task 86 us, two 69; of f32, of 1024: three
    // 141, four 132), but where rows are staged (softmax of f16, of 2048: three 79, four 85).
    int64_t most = fit / columns;
    if (most == 1 || (most < 4 && most > 1 && group.body.staged == 0))
      most = fit > 2 * columns ? 4 : fit > columns ? 2 : 1;
    work.tile_rows = std::clamp<int64_t>(most, 1, rows);
    if (work.tile_rows > kSide) work.tile_rows = work.tile_rows / kSide * kSide;
  }
  work.task_nanos = bytes / cut.machine.bytes_per_sm *
                    (static_cast<double>(work.tile_rows) / static_cast<double>(rows)) *
                    (static_cast<double>(work.tile_columns) / static_cast<double>(columns));
  return true;
}

/// One node that reads one value, which no group has made, at plain places, and stores it.
bool is_copy(const Group& group, const Work& work) {
  const bool one_store =
      group.body.steps.size() == 1 && group.body.steps[0].kind == StepKind::kStore;
  if (group.kind != GroupKind::kStitched || !group.after.empty() || group.nodes.size() != 1 ||
      !one_store)
    return false;
  return work.nest.accesses.size() == 2 && work.nest.accesses[0].affine &&
         work.nest.accesses[1].affine;
}

/// Rows and columns of a task, so that each worker has a few and none is too small to be worth a
/// record, `waits` times what its roof says. On GPUs one: a task's beginning and end cost more than
/// an uneven deal.
void cut_work(const Plan& plan, const Cutting& cut, const TaskGraph& tasks, Work& work,
              double waits = 1) {
  const Group& group = plan.groups[work.group];
  if (group.kind == GroupKind::kCustom) {
    work.tile_rows = work.tile_columns = 1;
    return;
  }
  if (group.kind == GroupKind::kBlock && group.block.team > 0) {  // an item a task
    work.tile_rows = work.tile_columns = 1;
    work.task_nanos = group.block.nanos;
    work.form = Cluster{static_cast<int>(group.block.team)};
    return;
  }
  const int64_t rows = work.nest.row_count(), columns = work.nest.column_count();
  const double bytes = moved_bytes(group, cut, tasks, work);
  // A block walks its elements one by one, with compares or divisions: about a vector's width
  // slower.
  const double slower = group.kind == GroupKind::kBlock ? 16 : 1;
  const double nanos = std::max(bytes / cut.machine.bytes_per_sm,
                                group.cost.flops.count * slower / cut.machine.flops_per_sm);
  int64_t pieces =
      std::clamp<int64_t>(static_cast<int64_t>(nanos * waits / cut.machine.smallest_task.count()),
                          1, int64_t{cuts_once(cut) ? 1 : 2} * cut.workers.count);
  if (pieces > cut.workers.count) pieces = pieces / cut.workers.count * cut.workers.count;
  work.tile_rows = std::max<int64_t>(rows, 1);
  work.tile_columns = std::max<int64_t>(columns, 1);
  for (const stitch::Step& step :
       group.body.steps)  // packed elements share bytes: one worker writes them all
    if (step.kind == StepKind::kStore &&
        bits(tasks.buffers[work.buffers[step.slot]].type.dtype) < 8)
      pieces = 1;
  work.form = TaskList{};
  if (group.kind == GroupKind::kProduct) work.tile_rows = tile_span(group, work.nest);
  if (group.kind == GroupKind::kProduct && cut_streamed(group, cut, tasks, work)) return;
  if (group.kind == GroupKind::kProduct && cut_by_cost(group, cut, work))
    return deal_product(group, tasks, cut, count_tasks(group, work), work);
  if (group.kind == GroupKind::kConv) {
    if (cut_conv_by_cost(group.conv, cut, work))
      return deal_conv(plan, group.conv, cut, count_tasks(group, work), work);
    cut_conv(group.conv, cut, pieces, work);
    work.task_nanos = nanos * (static_cast<double>(work.tile_rows) / rows) *
                      (static_cast<double>(work.tile_columns) / columns);
    return;
  }
  if (group.kind == GroupKind::kAttention) {
    cut_attention(group.attention, cut, pieces, work);
    const int64_t tasks_of_it = group.attention.images * group.attention.heads *
                                group.attention.pieces *
                                ((group.attention.queries + work.tile_rows - 1) / work.tile_rows);
    work.task_nanos = nanos / static_cast<double>(std::max<int64_t>(tasks_of_it, 1));
    // One task a multiprocessor needs no table, and begins sooner without.
    const stitch::AttentionTile& tile = group.attention;
    const bool even = rows == tile.queries ||
                      tile.queries % work.tile_rows ==
                          0;  // rectangles of one grid: none ends with a head's or an image's rows
    const bool alone = cut.strategy.min_grid_bytes.count != 0 && tile.pieces == 1 && even &&
                       tasks_of_it <= cut.workers.count &&
                       work.buffers.size() <= size_t{kDealtOperands};
    if (alone) work.form = SingleWave{};
    return;
  }
  if (pieces <= 1 && group.kind != GroupKind::kProduct) {
    work.task_nanos = nanos;
    return;
  }
  if (cut_to_deal(group, cut, tasks, work)) return;
  if (group.kind == GroupKind::kProduct) {
    cut_product(group, cut, pieces, work);
  } else if (work.nest.cut_columns && rows < pieces) {
    int64_t per_row = (pieces + rows - 1) / std::max<int64_t>(rows, 1);
    // A few tasks more than workers would take twice as long.
    if (cuts_once(cut) && is_copy(group, work) && rows * per_row > cut.workers.count)
      per_row = std::max<int64_t>(pieces / rows, 1);
    work.tile_rows = 1;
    work.tile_columns = std::max<int64_t>(((columns + per_row - 1) / per_row + 63) / 64 * 64, 64);
  } else {
    work.tile_rows = (rows + pieces - 1) / pieces;
    if (work.nest.lanes_in_rows || turns(work.nest))
      work.tile_rows = (work.tile_rows + 63) / 64 * 64;  // whole vectors
    if (const int64_t batch = rows_at_once(group, cut, tasks, work)) {
      if (work.tile_rows > batch) work.tile_rows = batch;
      work.task_nanos = batch_nanos(work);
      return;
    }
  }
  work.task_nanos =
      nanos * (static_cast<double>(work.tile_rows) / std::max<int64_t>(rows, 1)) *
      (static_cast<double>(std::min(work.tile_columns, columns)) / std::max<int64_t>(columns, 1));
}

/// Copies of what is there before anything is computed (a cache's past) may run in any wave before
/// their readers: each goes to the one of the last few that it lengthens least, and of those that
/// it does not lengthen to the idlest, the later of equals. True: some moved, and buffers live
/// otherwise.
bool place_copies(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  constexpr int kMostAhead = 12;  // waves that a copy waits in memory
  constexpr double kTaskNanos = 700;
  struct Wave {
    double longest = 0, all = 0,
           bytes = 0;  // a task's, all tasks' nanoseconds; what goes to and from far memory
    double nanos(const machine::Machine& of) const {
      return std::max({longest, all / of.sms, bytes / (of.bytes_per_sm * of.sms)});
    }
  };
  std::vector<Wave> waves(tasks.waves);
  std::vector<int> last(tasks.works.size(), -1);  // the wave before the first reader
  std::vector<std::pair<int, size_t>> copies;
  for (size_t w = 0; w < tasks.works.size(); ++w)
    for (int before : plan.groups[tasks.works[w].group].after)
      if (last[before] < 0 || tasks.works[w].wave - 1 < last[before])
        last[before] = tasks.works[w].wave - 1;
  const auto add = [&](Work& work, Wave& to) {
    const Group& group = plan.groups[work.group];
    cut_work(plan, cut, tasks, work);
    const double task = work.task_nanos + kTaskNanos;
    to.all += static_cast<double>(count_tasks(group, work)) * task;
    if (!is_copy(group, work))
      to.longest =
          std::max(to.longest, group.kind == GroupKind::kProduct ? work.task_nanos
                                                                 : task);  // streams all the while
    if (is_copy(group, work) || group.kind != GroupKind::kStitched)
      to.bytes += moved_bytes(group, cut, tasks, work);
  };
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    Work& work = tasks.works[w];
    if (last[w] > work.wave && is_copy(plan.groups[work.group], work))
      copies.push_back({last[w], w});
    else
      add(work, waves[work.wave]);
  }
  std::stable_sort(copies.begin(), copies.end());
  for (const auto& [until, w] : copies) {
    Work& work = tasks.works[w];
    int best = -1;
    double least = 0, idlest = 0;
    Wave filled;
    for (int wave = until; wave >= std::max(work.wave, until - kMostAhead); --wave) {
      Wave with = waves[wave];
      add(work, with);
      const double longer = std::max(
          with.nanos(cut.machine) - std::max(waves[wave].nanos(cut.machine), kTaskNanos), 0.0);
      const double share = std::max(with.all / cut.machine.sms,
                                    with.bytes / (cut.machine.bytes_per_sm * cut.machine.sms)) /
                           with.nanos(cut.machine);
      if (best >= 0 && (longer > least + 1 || (longer > least - 1 && share > idlest - 0.01)))
        continue;
      best = wave, least = longer, idlest = share, filled = with;
    }
    work.wave = best, waves[best] = filled;
  }
  return !copies.empty();
}

/// Works of a wave are cut again, each for its share of the workers, so that together they fill
/// them once.
void share_workers(const Plan& plan, const Cutting& cut, TaskGraph& tasks,
                   const std::vector<size_t>& wave) {
  constexpr double kTaskNanos = 700;  // of any task, whatever it holds
  if (wave.size() < 2) return;
  std::vector<double> nanos;
  for (size_t w : wave) {
    const Work& work = tasks.works[w];
    const Group& group = plan.groups[work.group];
    if (const int64_t batch = rows_at_once(group, cut, tasks, work)) {
      const double batches = static_cast<double>((work.nest.row_count() + batch - 1) / batch);
      nanos.push_back(batches * batch_nanos(work));
      continue;
    }
    nanos.push_back(static_cast<double>(count_tasks(group, work)) *
                    (slower_than_roof(group, cut) * work.task_nanos + kTaskNanos));
  }
  const double all = std::accumulate(nanos.begin(), nanos.end(), 0.0);
  for (size_t k = 0; k < wave.size(); ++k) {
    const WorkerBudget share{std::max(1, static_cast<int>(cut.workers.count * nanos[k] / all))};
    Work& work = tasks.works[wave[k]];
    cut_work(plan, cut.within(share), tasks, work, slower_than_roof(plan.groups[work.group], cut));
  }
}

/// Every work is cut for all workers; where a GPU's wave has several, each is then cut again for
/// its share of them, so that together they fill the workers once.
void cut_tiles(const Plan& plan, const Cutting& cut, TaskGraph& tasks) {
  for (Work& work : tasks.works) cut_work(plan, cut, tasks, work);
  if (!cuts_once(cut)) return;
  std::vector<std::vector<size_t>> by_wave(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w) by_wave[tasks.works[w].wave].push_back(w);
  for (std::vector<size_t>& wave : by_wave) {
    if (wave.size() < 2 || wave.size() > static_cast<size_t>(cut.workers.count)) continue;
    // Copies beside what is computed take the workers that it leaves.
    const auto first_copy = std::stable_partition(wave.begin(), wave.end(), [&](size_t w) {
      return !is_copy(plan.groups[tasks.works[w].group], tasks.works[w]);
    });
    std::vector<size_t> copies;
    if (first_copy != wave.begin())
      copies.assign(first_copy, wave.end()), wave.erase(first_copy, wave.end());
    share_workers(plan, cut, tasks, wave);
    if (copies.empty()) continue;
    int64_t busy = 0;
    for (size_t w : wave) busy += count_tasks(plan.groups[tasks.works[w].group], tasks.works[w]);
    WorkerBudget rest = cut.workers;
    if (busy < rest.count) rest.count -= static_cast<int>(busy);
    rest.count = std::max<int>(rest.count / static_cast<int>(copies.size()), 1);
    for (size_t w : copies)
      cut_work(plan, cut.within(rest), tasks, tasks.works[w],
               slower_than_roof(plan.groups[tasks.works[w].group], cut));
  }
}

/// Deals the tasks of each wave to workers: longest first, to whoever is free first; lists keep the
/// order of works. In pairs: a product's tiles with the same columns lie side by side, on workers
/// 2k and 2k + 1, neighbours on a GPU: what both ask for in one moment is brought once (H200,
/// BERT-base of ten layers as one kernel: 231.9 to 224.1 us).
void deal_tasks(const Plan& plan, int workers, bool in_pairs, TaskGraph& tasks) {
  tasks.lists.assign(workers, {});
  std::vector<std::vector<int>> by_wave(tasks.waves);
  for (size_t w = 0; w < tasks.works.size(); ++w)
    by_wave[tasks.works[w].wave].push_back(static_cast<int>(w));
  int turn = 0;  // who goes first in a wave, so that single tasks spread over the workers
  for (int wave = 0; wave < tasks.waves; ++wave) {
    struct Item {
      ObkTask task;
      double nanos;
    };
    std::vector<Item> items;
    for (int w : by_wave[wave]) {
      const Work& work = tasks.works[w];
      const Group& group = plan.groups[work.group];
      const int64_t rows = group.kind == GroupKind::kCustom ? 1 : work.nest.row_count();
      const int64_t columns = group.kind == GroupKind::kCustom ? 1 : work.nest.column_count();
      // A product's tile stays inside one of its matrices.
      const int64_t span = tile_span(group, work);
      if (rows == 0 || span == 0 || (columns == 0 && work.nest.cut_columns)) continue;
      const auto begin = static_cast<std::ptrdiff_t>(items.size());
      for (int64_t base = 0; base < rows; base += span) {
        for (int64_t r = base; r < base + span; r += work.tile_rows) {
          const int64_t r1 = std::min(base + span, r + work.tile_rows);
          for (int64_t c = 0; c < std::max<int64_t>(columns, 1); c += work.tile_columns) {
            ObkTask task{};
            task.work = static_cast<uint32_t>(w), task.wave = static_cast<uint32_t>(wave);
            task.nanos = static_cast<int64_t>(work.task_nanos);
            task.r0 = r, task.r1 = r1, task.c0 = c,
            task.c1 = std::min(columns, c + work.tile_columns);
            items.push_back({task, work.task_nanos});
          }
        }
      }
      if (in_pairs && group.kind == GroupKind::kProduct)
        std::stable_sort(items.begin() + begin, items.end(), [&](const Item& a, const Item& b) {
          return std::pair(a.task.r0 / span, a.task.c0) < std::pair(b.task.r0 / span, b.task.c0);
        });
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.nanos > b.nanos; });
    std::vector<double> busy(workers, 0);
    std::vector<std::vector<ObkTask>> dealt(workers);
    std::vector<std::pair<uint32_t, int64_t>> member_of(
        workers, {0, -1});  // the team, by work and number, that an SM last joined
    for (const Item& item : items) {
      const int team = plan.groups[tasks.works[item.task.work].group].block.team;
      const std::pair<uint32_t, int64_t> mine{item.task.work, team > 0 ? item.task.r0 / team : -1};
      int best = -1;
      for (int k = 0; k < workers; ++k) {
        const int sm = (turn + k) % workers;
        if (team > 0 && member_of[sm] == mine)
          continue;  // members wait for each other: each has an SM
        if (best < 0 || busy[sm] < busy[best] - 1e-9) best = sm;
      }
      if (team > 0) member_of[best] = mine;
      busy[best] += item.nanos;
      dealt[best].push_back(item.task);
    }
    turn = (turn + static_cast<int>(items.size())) % workers;
    if (in_pairs) turn = turn / 2 * 2;
    for (int sm = 0; sm < workers; ++sm) {
      std::stable_sort(dealt[sm].begin(), dealt[sm].end(), [](const ObkTask& a, const ObkTask& b) {
        return std::tie(a.work, a.r0, a.c0) < std::tie(b.work, b.r0, b.c0);
      });
      tasks.lists[sm].insert(tasks.lists[sm].end(), dealt[sm].begin(), dealt[sm].end());
    }
  }
}

}  // namespace

int64_t tile_span(const Group& group, const Nest& nest) {
  if (group.kind == GroupKind::kConv) return group.conv.out_height * group.conv.out_width;
  if (group.kind == GroupKind::kAttention) return group.attention.queries;
  if (group.kind != GroupKind::kProduct)
    return group.kind == GroupKind::kCustom ? 1 : nest.row_count();
  if (nest.rows == 0) return 1;
  const Access *a_access = nest.of_product(group, 0), *b_access = nest.of_product(group, 1);
  CHECK(a_access && b_access);
  const int inner = nest.rows - 1;
  return a_access->strides[inner] != 0 && b_access->strides[inner] == 0 ? nest.dims[inner].extent
                                                                        : 1;
}

int64_t tile_span(const Group& group, const Work& work) {
  return group.kind == GroupKind::kConv && work.grid() ? work.nest.row_count()
                                                       : tile_span(group, work.nest);
}

int64_t TaskGraph::task_count() const {
  int64_t count = 0;
  for (const auto& list : lists) count += static_cast<int64_t>(list.size());
  return count;
}

TaskGraph build(const Graph& graph, const Plan& plan, const machine::Machine& machine,
                const machine::Strategy& strategy) {
  const Cutting all{machine, strategy, kernels::tile_library(machine), {machine.sms}};
  TaskGraph tasks;
  tasks.fast_memory = machine.fast_memory;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Work work;
    work.group = static_cast<int>(g);
    if (plan.groups[g].kind != GroupKind::kCustom) work.nest = fold_domain(plan, plan.groups[g]);
    tasks.works.push_back(std::move(work));
  }
  assign_waves(plan, tasks);
  assign_buffers(graph, plan, tasks);
  if (place_copies(plan, all, tasks)) {
    tasks.buffers.clear(), tasks.weights.clear();
    for (Work& work : tasks.works) work.buffers.clear();
    assign_buffers(graph, plan, tasks);
  }
  cut_tiles(plan, all, tasks);
  if (strategy.dataflow()) {
    TaskGraph flowing = tasks;
    cut_to_flow(plan, machine, flowing);
    deal_tasks(plan, machine.sms, false, flowing);
    if (let_flow(plan, machine, strategy, flowing)) return flowing;
  }
  for (Work& work : tasks.works) {
    if (!strategy.one_kernel() || !work.list()) continue;
    work.form = TaskList{.waits_in_body = true,
                         .shares_rows = !strategy.batch_invariant,
                         .a_rows = asked_rows(plan.groups[work.group], all, tasks, work)};
  }
  deal_tasks(plan, machine.sms, strategy.one_kernel(), tasks);
  return tasks;
}

}  // namespace obelisk::schedule

#include "schedule/tile_conv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

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

/// Predicted nanoseconds of a convolution that is not depthwise, by the tiles that suit it best:
/// its input channels-last, its weights read from memory.
double conv_nanos(const stitch::ConvTile& conv, const Cutting& cut) {
  stitch::Group group;
  group.kind = stitch::GroupKind::kConv, group.conv = conv;
  Work work;
  work.nest.rows = 1;
  work.nest.dims = {{.extent = conv.shape.batch * conv.out_height * conv.out_width},
                    {.extent = conv.shape.outputs}};
  if (!cut_conv_by_cost({}, conv, cut, work)) return INFINITY;
  const int64_t tasks = count_tasks(group, work);
  double nanos = listed_nanos(cut, tasks, work);
  if (conv.shape.groups == 1) {
    ObkConv shape = geometry(conv, cut);
    shape.rows = conv.out_height, shape.x_image = conv.height * shape.x_row;
    nanos = cut_grid_tiles(cut, shape, conv.shape.outputs, tasks, work);
  }
  const int64_t weights =
      conv.shape.outputs * conv.shape.group_inputs * conv.kernel_h * conv.kernel_w;
  return nanos + static_cast<double>(byte_size(conv.type, weights)) /
                     (cut.machine.bytes_per_sm * cut.machine.sms);
}

}  // namespace

int64_t quickest_conv_groups(const stitch::ConvTile& conv, const machine::Machine& machine,
                             const machine::Strategy& strategy) {
  const kernels::TileLibrary& tiles = kernels::tile_library(machine);
  const int64_t groups = conv.shape.groups;
  if (conv.depthwise || !tiles.conv.pixels) return groups;
  const Cutting cut{machine, strategy, tiles, {machine.sms}};
  stitch::ConvTile tile = conv;
  double least = machine::thresholds::kWorthMergingGroups * conv_nanos(conv, cut);
  int64_t best = groups;
  for (int64_t merged = 2; merged <= groups; ++merged) {
    if (groups % merged != 0) continue;
    tile.shape.groups = groups / merged;
    tile.shape.group_inputs = conv.shape.group_inputs * merged;
    tile.shape.group_outputs = conv.shape.group_outputs * merged;
    const double nanos = conv_nanos(tile, cut);
    if (nanos < least) least = nanos, best = tile.shape.groups;
  }
  return best;
}

void cut_conv(const stitch::ConvTile& conv, const Cutting& cut, int64_t pieces, Work& work) {
  const int64_t channels = conv.depthwise ? conv.shape.outputs : conv.shape.group_outputs;
  const int64_t weights = channels * conv.shape.group_inputs * conv.kernel_h * conv.kernel_w * 4;
  const int64_t images = conv.shape.batch, height = conv.out_height;
  work.tile_columns = channels;
  const bool pixels =
      conv.kernel_h == 1 && conv.kernel_w == 1;  // with strides, a tile gathers those that it reads
  if ((conv.shape.groups == 1 || conv.depthwise) &&
      (weights > cut.machine.scratchpad.count || channels > kernels::kMostTileColumns))
    work.tile_columns =
        std::min<int64_t>(channels, conv.depthwise || pixels ? kernels::kMostTileColumns : 64);
  const int64_t row_reads = std::max<int64_t>(
      (pixels ? conv.out_width : conv.width * conv.stride_h) * conv.shape.group_inputs * 4, 1);
  const int64_t row_tile = std::max<int64_t>(conv.out_width * work.tile_columns * 4, 1);
  int64_t rows = std::max<int64_t>(1, std::min(cut.machine.scratchpad.count / row_reads,
                                               cut.machine.scratchpad.count / 2 / row_tile));
  const int64_t columns = (conv.shape.outputs + work.tile_columns - 1) / work.tile_columns;
  const int64_t wanted = std::max<int64_t>(
      1, (pieces + images * columns - 1) / (images * columns));  // cuts of an image's rows
  rows = std::min(rows, (height + wanted - 1) / wanted);
  const int64_t cuts = (height + rows - 1) / rows;
  rows = (height + cuts - 1) / cuts;
  work.tile_rows = rows * conv.out_width;
}

bool cut_conv_by_cost(const stitch::Plan& plan, const stitch::ConvTile& conv, const Cutting& cut,
                      Work& work) {
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
  // A depthwise tile of more rows reads fewer of them twice. The bound is chosen, not measured.
  constexpr int64_t kMostOfDepthwise = 2048;
  const int64_t most = conv.depthwise ? kMostOfDepthwise : kernels::conv_bounds::kMostPixelsOfRows;
  for (int64_t rows = 1; rows * wide <= most && rows <= conv.out_height; ++rows)
    heights.push_back(rows * wide);
  for (int64_t parts = 2; wide / parts >= 8; ++parts)
    if (wide % parts == 0) heights.push_back(wide / parts);
  const bool whole =
      conv.shape.groups > 1 && !conv.depthwise;  // columns of a work run over its groups
  for (int64_t c = tiles.panel; c < outputs && c <= kernels::kMostTileColumns;
       c += c < 64 ? tiles.panel : 64)  // 1, 2, 3 and 4 panels, then fours
    if (outputs % c == 0 || (!whole && outputs % tiles.panel != 0))
      widths.push_back(c);  // equal tiles where that can be
  if (whole || outputs <= kernels::kMostTileColumns) widths.push_back(outputs);
  double best = 0;
  for (int64_t height : heights) {
    for (int64_t width : widths) {
      if (height * width * 4 > cut.machine.scratchpad.count / 4 && height > 16) continue;
      shape.pixels = height, shape.channels = width;
      if (conv.depthwise)
        shape.pack = stitch::depthwise_pack(conv, plan.layouts[conv.x], width),
        shape.multiplier = conv.shape.group_outputs;
      const int64_t middle = pixels / 2 / height * height;  // neither the first nor the last rows
      int64_t scratch = 0;
      for (int64_t first : {int64_t{0}, middle}) {  // at the edge fewer rows are read
        shape.row = first / wide, shape.column = first % wide;
        scratch = std::max(scratch, tiles.conv.scratch_bytes(&shape));
      }
      if ((height > 8 || width > tiles.panel) &&
          scratch + height * (width + 8) * 4 + kBlockRoom > cut.machine.scratchpad.count)
        continue;  // rows are padded
      shape.pixels = std::min(height, pixels - middle);
      const int64_t count = conv.shape.batch * ((pixels + height - 1) / height) *
                            ((conv.shape.outputs + width - 1) / width);
      const int64_t tasks = (count + cut.workers.count - 1) / cut.workers.count;
      if (conv.depthwise) {  // tasks of kernels of their own share an SM
        const int64_t room =
            cut.machine.scratchpad.count / (scratch + height * (width + 8) * 4 + kBlockRoom);
        const int64_t at_most =
            cut.strategy.own_kernels ? kernels::conv_bounds::kMostDepthwiseCtas : 1;
        shape.tasks_per_worker =
            static_cast<int16_t>(std::clamp<int64_t>(std::min(room, tasks), 1, at_most));
      }
      const double nanos = tiles.conv.pixels->nanos(&shape);
      shape.tasks_per_worker = 0;
      const double rounds = static_cast<double>(tasks);
      if (best != 0 && rounds * nanos >= best) continue;
      best = rounds * nanos;
      work.tile_rows = height, work.tile_columns = width, work.task_nanos = nanos;
    }
  }
  return best != 0;
}

double listed_nanos(const Cutting& cut, int64_t tasks, const Work& work) {
  return static_cast<double>((tasks + cut.workers.count - 1) / cut.workers.count) *
         work.task_nanos * cut.machine.costs.alone_over_tile;
}

double cut_grid_tiles(const Cutting& cut, ObkConv shape, int64_t outputs, int64_t tasks,
                      Work& work) {
  const kernels::TileLibrary& tiles = cut.tiles;
  const int64_t all = work.nest.row_count();
  double best = listed_nanos(cut, tasks, work);
  if (!takes_async_mma(cut.machine, cut.strategy)) return best;
  if (cut.strategy.min_grid_bytes.count == 0 || all == 0 ||
      work.buffers.size() > size_t{kGridOperands} || !tiles.conv.pixels)
    return best;
  // Tiles alike where that can be; else the last one of a row of tiles has fewer columns, as has
  // the only one of few outputs.
  constexpr int64_t kNarrowest = 32;
  bool even = false;
  for (int64_t width = kNarrowest; width <= kernels::conv_bounds::kMostGridColumns; width += 16)
    even |= outputs % width == 0;
  shape.out_channels = outputs;
  for (const int64_t height : {64, 128}) {
    for (int64_t width = kNarrowest; width <= kernels::conv_bounds::kMostGridColumns; width += 16) {
      if (even ? outputs % width != 0 : width >= std::max(outputs, kNarrowest) + tiles.panel)
        continue;
      const int64_t count = (all + height - 1) / height * ((outputs + width - 1) / width);
      const int per_worker = count <= cut.workers.count ? 1 : 2;
      shape.tasks_per_worker = static_cast<int16_t>(per_worker), shape.pixels = height,
      shape.channels = width;
      const double nanos = tiles.conv.pixels->nanos(&shape);
      if (nanos <= 0) continue;
      // Whole rounds of all workers, or where other kernels fill the last one, parts of
      // them: between the two.
      const int64_t together = int64_t{cut.workers.count} * per_worker;
      const double whole = static_cast<double>((count + together - 1) / together * per_worker);
      const double part = std::max(1.0, static_cast<double>(count) / cut.workers.count);
      const double time =
          cut.machine.costs.grid_begin + (per_worker == 1 ? whole : (whole + part) / 2) * nanos;
      if (time >= best) continue;
      best = time;
      work.form = Grid{per_worker}, work.tile_rows = height, work.tile_columns = width,
      work.task_nanos = nanos;
    }
  }
  return best;
}

void cut_conv_grid(const stitch::Plan& plan, const stitch::ConvTile& conv, const Cutting& cut,
                   int64_t tasks, Work& work) {
  const stitch::Layout& in = plan.layouts[conv.x];
  const int64_t pixels = conv.out_height * conv.out_width, size = byte_size(conv.type, 1);
  // Copies are as wide as pixels are aligned; runs of few channels are read by 16 bytes.
  if (conv.depthwise || conv.shape.groups != 1 || in.strides[1] != 1) return;
  const auto [image, row, pixel] = stitch::pixel_strides(in);
  int64_t begins = conv.shape.inputs % 8 == 0 || conv.kernel_h * conv.kernel_w == 1
                       ? kernels::at_once(image | row | pixel)
                       : 8;
  if (begins == 1) begins = 8;
  if (in.offset % begins != 0) return;
  if (conv.shape.batch * image * size >= INT32_MAX ||
      work.nest.row_count() != conv.shape.batch * pixels)
    return;
  ObkConv shape = geometry(conv, cut);
  shape.rows = conv.out_height, shape.x_row = row, shape.x_pixel = pixel, shape.x_image = image;
  cut_grid_tiles(cut, shape, conv.shape.outputs, tasks, work);
}

}  // namespace obelisk::schedule

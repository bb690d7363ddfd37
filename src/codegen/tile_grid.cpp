#include "codegen/tile_grid.h"

#include <algorithm>

#include "codegen/scalars.h"
#include "kernels/kernels.h"

namespace obelisk::codegen {

GridText emit_grid(const stitch::Group& group, const schedule::Work& work,
                   const std::vector<stitch::Layout>& layouts, const kernels::TileLibrary& tiles,
                   int64_t pitch) {
  const int x = work.operand_count(group);
  ObkConv shape = {.tasks_per_worker = static_cast<int16_t>(work.tasks_per_worker()),
                   .kernel_h = 1,
                   .kernel_w = 1,
                   .pixels = work.tile_rows,
                   .channels = work.tile_columns};
  DType type = group.product.a_type;
  int64_t offset = 0;
  std::string geometry;
  if (group.kind == stitch::GroupKind::kConv) {
    const stitch::ConvTile& c = group.conv;
    const stitch::Layout& in = layouts[c.x];
    type = c.type, offset = in.offset, shape.in_channels = c.shape.inputs,
    shape.kernel_h = c.kernel_h, shape.kernel_w = c.kernel_w;
    shape.height = c.height, shape.width = c.width, shape.stride_h = c.stride_h,
    shape.stride_w = c.stride_w, shape.dilation_h = c.dilation_h;
    shape.dilation_w = c.dilation_w, shape.pad_top = c.pad_top, shape.pad_left = c.pad_left,
    shape.out_width = c.out_width;
    const auto [image, row, pixel] = stitch::pixel_strides(in);
    shape.x_image = image, shape.x_row = row, shape.x_pixel = pixel;
    geometry =
        fmt::format("{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}", c.height, c.width,
                    c.kernel_h, c.kernel_w, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w,
                    c.pad_top, c.pad_left, c.out_width, c.out_height, row, pixel, image);
  } else {
    const schedule::Access* a = work.nest.of_product(group, 0);
    const int64_t rows = work.nest.row_count(), row = a->strides[0];
    offset = a->offset, shape.in_channels = group.product.k[0].extent;
    shape.x_image = shape.x_row = rows * row, shape.x_pixel = row;
    geometry =
        fmt::format("1, {0}, 1, 1, 1, 1, 1, 1, 0, 0, {0}, 1, {1}, {2}, {1}", rows, rows * row, row);
  }
  shape.type = static_cast<int32_t>(type), shape.y_pixel = pitch;
  const int64_t outputs = work.nest.column_count();
  const std::string of =
      fmt::format("({}, g, {}, {}, {}, {}, {}, {}{});\n", tile_type(shape.type), shape.in_channels,
                  geometry, work.tile_rows, work.tile_columns, pitch, work.tasks_per_worker(),
                  outputs % work.tile_columns == 0 ? "" : fmt::format(", {}", outputs));
  GridText text;
  text.ahead = "  float* __restrict tile = (float*)w->scratch;\n  ObkConv g = {};\n";
  text.ahead +=
      "  g.row = t->r0, g.pixels = t->r1 - t->r0, g.channel = t->c0, g.channels = t->c1 - t->c0;\n";
  text.ahead += fmt::format(
      "  g.x = (const {}*)x[{}] + {}, g.weights = x[{}], g.y = tile, g.scratch = "
      "(char*)w->scratch;\n",
      storage_name(type), x, offset, x + 1);
  text.ahead += "  OBK_CONV_GRID_BEGIN" + of + "  OBK_WAIT_FOR_PREVIOUS();\n";
  text.tile = "  OBK_CONV_GRID_TILE" + of;
  text.scratch = (tiles.conv.scratch_bytes(&shape) + 63) / 64 * 64;  // sums lie where stages lay
  return text;
}

}  // namespace obelisk::codegen

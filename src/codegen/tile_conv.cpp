// The call of a convolution's tile: its geometry, where its sums go, which of the tiles it is.
#include <algorithm>

#include "codegen/body_emitter.h"
#include "codegen/scalars.h"
#include "kernels/kernels.h"

namespace obelisk::codegen {

/// Elements between neighbours along a coordinate of the body's domain; 0 along one that has a
/// single element.
static int64_t stride_along(const stitch::Body& body, const schedule::Nest& nest,
                            const schedule::Access& access, int coordinate) {
  for (size_t d = 0; d < nest.dims.size(); ++d) {
    const std::vector<int>& coords = nest.dims[d].coords;
    const auto at = std::find(coords.begin(), coords.end(), coordinate);
    if (at == coords.end()) continue;
    int64_t stride = access.strides[d];  // of the innermost
    for (auto inner = at + 1; inner != coords.end(); ++inner) stride *= body.domain[*inner];
    return stride;
  }
  return 0;
}

/// Where the pixels of a convolution are stored by a tile that stores them itself: elements from
/// the first pixel's first channel, from image to image, from row to row and from pixel to pixel.
/// The stored value may have the convolution's dimensions in another order.
struct ConvStore {
  int64_t offset = 0, image = 0, row = 0, pixel = 0;
};

/// `store`: the first step's access.
static ConvStore conv_store(const stitch::Group& group, const schedule::Nest& nest,
                            const schedule::Access& store) {
  const stitch::ConvTile& conv = group.conv;
  const bool flat = conv.shape.in.size() == 1;
  const int row = 1,
            pixel =
                flat
                    ? 1
                    : 2;  // coordinates of the domain: images, rows (unless flat), pixels, channels
  ConvStore to{.offset = store.offset, .image = stride_along(group.body, nest, store, 0)};
  if (conv.out_width > 1) to.pixel = stride_along(group.body, nest, store, pixel);
  if (!flat && conv.out_height > 1) to.row = stride_along(group.body, nest, store, row);
  // Strides that lead nowhere are those of dense pixels, which a tile may take as one row.
  if (conv.out_width <= 1) to.pixel = to.row ? to.row : conv.shape.outputs;
  if (flat || conv.out_height <= 1) to.row = conv.out_width * to.pixel;
  return to;
}

/// What the library is told of the convolution; `x_row`, `x_pixel`: elements of X from row to row
/// and from pixel to pixel.
static ObkConv conv_shape(const stitch::ConvTile& c, int64_t x_row, int64_t x_pixel) {
  ObkConv shape = {.type = c.tile_type(), .depthwise = c.depthwise};
  shape.height = c.height, shape.width = c.width,
  shape.in_channels = c.depthwise ? c.shape.inputs : c.shape.group_inputs;
  shape.kernel_h = c.kernel_h, shape.kernel_w = c.kernel_w, shape.stride_h = c.stride_h,
  shape.stride_w = c.stride_w;
  shape.dilation_h = c.dilation_h, shape.dilation_w = c.dilation_w, shape.pad_top = c.pad_top,
  shape.pad_left = c.pad_left;
  shape.out_width = c.out_width,
  shape.out_channels = c.depthwise ? c.shape.outputs : c.shape.group_outputs;
  shape.multiplier = c.depthwise ? c.shape.group_outputs : 1, shape.x_row = x_row,
  shape.x_pixel = x_pixel;
  return shape;
}

/// Scratch of the task that wants the most: a tile at the edge reads fewer rows than one inside.
static int64_t conv_scratch(ObkConv shape, int64_t out_height, const schedule::Work& work,
                            const kernels::TileLibrary& tiles) {
  const int64_t wide = std::max<int64_t>(shape.out_width, 1), pixels = out_height * wide;
  shape.channels = work.tile_columns;
  shape.y_row = shape.out_width * work.tile_columns, shape.y_pixel = work.tile_columns;
  int64_t most = 0;
  for (int64_t pixel = 0; pixel < pixels; pixel += std::max<int64_t>(work.tile_rows, 1)) {
    shape.row = pixel / wide, shape.column = pixel % wide;
    shape.pixels = std::min(work.tile_rows, pixels - pixel), shape.rows = shape.pixels / wide;
    most = std::max(most, tiles.conv.scratch_bytes(&shape));
    if (shape.depthwise && tiles.vectors) break;  // all tiles are of one kind, that of the largest
  }
  return most;
}

/// What such a tile requests and the compiler knows: whole blocks of channels, X where 16 bytes
/// begin, weights that are fetched ahead, and nothing padded below X where nothing is above or to
/// the left.
bool BodyEmitter::conv_is_static() const {
  const stitch::ConvTile& c = group_.conv;
  const stitch::Layout& in = (*layouts_)[c.x];
  const bool grouped = c.shape.groups > 1 && !c.depthwise;
  const int64_t pixels = c.out_height * std::max<int64_t>(c.out_width, 1);
  const bool inside = c.pad_top > 0 || c.pad_left > 0 ||
                      (c.out_height - 1) * c.stride_h + (c.kernel_h - 1) * c.dilation_h < c.height;
  const int64_t outputs = grouped ? c.shape.group_outputs : c.shape.outputs,
                size = byte_size(c.type, 1);
  const bool aligned = (in.offset | (nest_.row_count() == pixels ? 0 : in.strides[0]) |
                        (grouped ? c.shape.group_inputs : 0)) *
                           size % 16 ==
                       0;
  return !direct_ && aligned && inside && outputs % work_.tile_columns == 0 &&
         graph_.value(c.w).is_constant();
}

/// What a depthwise convolution that waits itself asks for before: its weights.
std::string BodyEmitter::conv_ahead() const {
  const stitch::ConvTile& c = group_.conv;
  if (group_.kind != GroupKind::kConv || how_it_begins() != Begin::kAlone ||
      !graph_.value(c.w).is_constant())
    return "";
  return fmt::format(
      "  OBK_PREFETCH_TAPS((const float*)x[{}] + t->c0, {}, {}, (int)(t->c1 - t->c0));\n",
      work_.operand_count(group_) + 1, c.kernel_h * c.kernel_w, c.shape.outputs);
}

void BodyEmitter::conv() {
  traits_.tiles |= group_.conv.depthwise ? kDepthwiseTile : kConvTile;
  const stitch::ConvTile& c = group_.conv;
  const int x = work_.operand_count(group_), weights = x + 1;
  const stitch::Layout& in = (*layouts_)[c.x];
  const bool flat = c.shape.in.size() == 1, grouped = c.shape.groups > 1 && !c.depthwise;
  const int64_t x_row = flat ? 0 : in.strides[2], x_pixel = in.strides.back();
  const std::string type = tile_type(c.tile_type());
  std::string text = "  {\n";
  const char* index =
      tiles_.vectors && nest_.row_count() < INT32_MAX && nest_.column_count() < INT32_MAX
          ? "int"
          : "int64_t";
  text += fmt::format(
      "    const {3} wide = {0}, pixels = {1};\n    const {3} image = ({3})t->r0 / pixels, group "
      "= ({3})t->c0 / ({3}){2};\n",
      param(c.out_width), param(c.out_width * c.out_height),
      param(grouped ? c.shape.group_outputs : c.shape.outputs), index);
  ObkConv shape = conv_shape(c, x_row, x_pixel);
  if (c.depthwise && tiles_.vectors) shape.pack = stitch::depthwise_pack(c, in, work_.tile_columns);
  const int64_t conv_bytes = conv_scratch(shape, c.out_height, work_, tiles_);
  const bool strips = c.depthwise && tiles_.vectors && conv_bytes > 0;  // inputs in shared memory
  text += fmt::format("    ObkConv g = {{}};\n    g.type = {};\n    g.depthwise = {};\n", type,
                      strips        ? 2
                      : c.depthwise ? 1
                                    : 0);
  auto set = [&](std::string_view field, int64_t value) {
    text += fmt::format("    g.{} = {};\n", field, param(value));
  };
  if (c.depthwise && tiles_.vectors) text += fmt::format("    g.pack = {};\n", shape.pack);
  set("height", c.height), set("width", c.width),
      set("in_channels", c.depthwise ? c.shape.inputs : c.shape.group_inputs);
  set("kernel_h", c.kernel_h), set("kernel_w", c.kernel_w), set("stride_h", c.stride_h),
      set("stride_w", c.stride_w);
  set("dilation_h", c.dilation_h), set("dilation_w", c.dilation_w), set("pad_top", c.pad_top),
      set("pad_left", c.pad_left);
  set("out_width", c.out_width),
      set("out_channels", c.depthwise ? c.shape.outputs : c.shape.group_outputs);
  set("multiplier", c.depthwise ? c.shape.group_outputs : 1), set("x_row", x_row),
      set("x_pixel", x_pixel);
  text += fmt::format(
      "    const {0} first = ({0})t->r0 - image * pixels, top = first / wide;\n    g.row = "
      "top;\n    g.column = first - top * wide;\n",
      index);
  text += fmt::format(
      "    g.pixels = t->r1 - t->r0;\n    g.rows = ({})g.pixels / wide;\n    g.channel = t->c0 - "
      "group * {};\n    g.channels = t->c1 - t->c0;\n",
      index, param(grouped ? c.shape.group_outputs : c.shape.outputs));
  text += fmt::format("    g.x = (const {}*)x[{}] + {} + image * {} + group * {};\n",
                      storage_name(c.type), x, param(in.offset), param(in.strides[0]),
                      param(c.shape.group_inputs));
  const int64_t packed =
      c.depthwise ? 0
                  : tiles_.conv.packed_bytes(static_cast<int32_t>(c.type), c.shape.group_outputs,
                                             c.shape.group_inputs, c.kernel_h, c.kernel_w);
  text += fmt::format("    g.weights = (const char*)x[{}] + group * {};\n", weights, param(packed));
  if (direct_) {
    const ConvStore to = conv_store(group_, nest_, *store_access_.at(0));
    text += fmt::format("    g.y = {} + {} + image * {} + g.row * {} + g.column * {} + t->c0;\n",
                        pointer(body_.steps.front().slot, true), param(to.offset), param(to.image),
                        param(to.row), param(to.pixel));
    set("y_row", to.row), set("y_pixel", to.pixel);
    text += "    g.scratch = (char*)w->scratch;\n";
  } else {
    const int64_t bytes = (work_.tile_rows * tile_pitch() * 4 + 63) / 64 * 64;
    top_ += "  float* __restrict tile = (float*)w->scratch;\n";
    text += fmt::format(
        "    g.y = tile;\n    g.y_pixel = {0};\n    g.y_row = wide * {0};\n    g.scratch = "
        "(char*)w->scratch + {1};\n",
        pitch_, param(bytes));
    scratch_ += bytes;
  }
  if (tiles_.vectors && !c.depthwise && x_row < INT32_MAX &&
      x_pixel < INT32_MAX)  // shapes as constants of device code
    text += fmt::format(
        "    OBK_CONV_TILE_OF({}, g, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, "
        "{}, {}, {});\n  }}\n",
        type, conv_is_static(), shape.in_channels, c.height, c.width, c.kernel_h, c.kernel_w,
        c.stride_h, c.stride_w, c.dilation_h, c.dilation_w, c.pad_top, c.pad_left, c.out_width,
        x_row, x_pixel, work_.tile_rows, work_.tile_columns,
        pitch_.front() == '(' ? work_.tile_columns : tile_pitch());
  else
    text += fmt::format("    {}({}, g);\n  }}\n",
                        c.depthwise ? "OBK_DEPTHWISE_TILE" : "OBK_CONV_TILE", type);
  out_ += text;
  scratch_ += (conv_bytes + 63) / 64 * 64;
}

}  // namespace obelisk::codegen

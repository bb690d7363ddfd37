#include "stitch/conv_tile.h"

namespace obelisk::stitch {

using ops::Op;

std::optional<ConvTile> match_conv(const Graph& graph, NodeId node,
                                   const kernels::TileLibrary* tiles, std::string& why) {
  if (!tiles) {
    why = "tiles are off";
    return std::nullopt;
  }
  if (graph.node(node).op != Op::Conv) {
    why = "not a convolution";
    return std::nullopt;
  }
  const ops::Call call = graph.call(node);
  auto shape = ops::conv_geometry(call);
  if (!shape.ok()) {
    why = shape.error().message;
    return std::nullopt;
  }
  const ops::ConvGeometry& window = *shape;
  const int rank = static_cast<int>(window.in.size());
  if (!tiles->conv.takes(static_cast<int32_t>(call.in(0).dtype))) {
    why = "there is no tile for the type";
    return std::nullopt;
  }
  if (rank > 2) {
    why = "tiles have at most two spatial dimensions";
    return std::nullopt;
  }
  if (!graph.value(graph.node(node).inputs[1]).is_constant()) {
    why = "weights are not constant";
    return std::nullopt;
  }
  if (graph.value(graph.node(node).inputs[0]).is_constant()) {
    why = "the input is constant";
    return std::nullopt;
  }
  if (call.out().count() == 0 || call.in(0).count() == 0) {
    why = "empty";
    return std::nullopt;
  }
  ConvTile tile;
  tile.type = call.in(0).dtype;
  tile.x = graph.node(node).inputs[0], tile.w = graph.node(node).inputs[1];
  tile.depthwise = shape->groups > 1 && shape->group_inputs == 1;
  const int w = rank - 1, h = w - 1;
  for (int axis = 0; axis < rank; ++axis)
    if (window.begin[axis] < 0) {
      why = "negative padding";
      return std::nullopt;
    }
  tile.width = window.in[w], tile.out_width = window.out[w], tile.kernel_w = window.kernel[w];
  tile.stride_w = window.strides[w], tile.dilation_w = window.dilations[w],
  tile.pad_left = window.begin[w];
  if (h >= 0) {
    tile.height = window.in[h], tile.out_height = window.out[h], tile.kernel_h = window.kernel[h];
    tile.stride_h = window.strides[h], tile.dilation_h = window.dilations[h],
    tile.pad_top = window.begin[h];
  }
  tile.shape = std::move(*shape);
  return tile;
}

int16_t depthwise_pack(const ConvTile& conv, const Layout& x, int64_t tile_channels) {
  if (conv.shape.group_outputs != 1) return 1;
  int64_t all = x.offset | conv.shape.outputs | tile_channels;
  for (size_t axis = conv.shape.batch == 1 ? 1 : 0; axis < x.strides.size(); ++axis)
    if (axis != 1) all |= x.strides[axis];  // channels lie one after another
  return static_cast<int16_t>(kernels::at_once(all));
}

}  // namespace obelisk::stitch

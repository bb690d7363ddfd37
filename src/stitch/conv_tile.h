/// stitch/conv_tile.h — which convolutions a tile of the library computes.
#pragma once

#include <optional>
#include <string>

#include "stitch/views.h"

namespace obelisk::stitch {

/// The tile of a convolution, when the library has one for it; else nothing, with the reason in
/// `why`.
std::optional<ConvTile> match_conv(const Graph& graph, NodeId node,
                                   const kernels::TileLibrary* tiles, std::string& why);

}  // namespace obelisk::stitch

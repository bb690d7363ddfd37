/// stitch/gemm_tile.h — which sums are matrix products, and whether a tile of the library computes
/// them.
///
///   in   a node's loop with its operands' layouts, or a convolution of single pixels
///   out  Product: extents and strides of rows, columns and the summed dimension
#pragma once

#include <optional>
#include <string>

#include "stitch/views.h"

namespace obelisk::stitch {

/// The product that a sum-of-products loop is, when both loads are affine; else nothing, with the
/// reason in `why`.
std::optional<Product> match_product(const Graph& graph, const Views& views, NodeId node,
                                     std::string& why);

/// Whether a machine has a tile for the product; else why not. Operands may have any strides; tiles
/// copy what they stream.
bool tile_fits(const kernels::TileLibrary& tiles, const Product& product, std::string& why);

/// The product that a convolution of single pixels without padding is: rows are pixels.
std::optional<Product> match_pixel_product(const Views& views, const ConvTile& conv);

}  // namespace obelisk::stitch

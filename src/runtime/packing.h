/// runtime/packing.h — weights in the order in which a tile library streams them, and back.
///
/// Packing moves elements, and may widen f16 and bf16 to f32, which is exact; so a packed weight
/// determines its source bit for bit, and a file need not hold both. Where elements go is found by
/// packing their numbers, so that there is no second description of any layout.
#pragma once

#include <optional>

#include "runtime/program.h"

namespace obelisk::runtime {

/// The tiles of the machine that a program is for; null when there is no such machine.
const kernels::TileLibrary* tiles_of(const std::string& target);

/// The packed bytes, u8.
Tensor pack(const kernels::TileLibrary& tiles, const PackRecipe& recipe, const Tensor& source);

/// Bytes of pack(); nothing when the recipe does not fit the source's type, as one out of a damaged
/// file.
std::optional<int64_t> packed_bytes(const kernels::TileLibrary& tiles, const PackRecipe& recipe,
                                    const Type& source);

/// Whether every element of the source is in the packed weight, so that unpack() finds it. A NaN's
/// payload may be lost where the packed elements are wider.
bool can_unpack(const kernels::TileLibrary& tiles, const PackRecipe& recipe, const Type& source);
/// Whether packed elements are the source's, bit for bit.
bool packs_bits(const kernels::TileLibrary& tiles, const PackRecipe& recipe, const Type& source);
Tensor unpack(const kernels::TileLibrary& tiles, const PackRecipe& recipe, const Type& source,
              const Tensor& packed);

}  // namespace obelisk::runtime

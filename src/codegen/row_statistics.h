/// codegen/row_statistics.h — what a body says of a norm's statistics: those of the rows of A that
/// a product's tile gives (stitch::Product::Statistics), and the partial ones that the body which
/// stores rows leaves (stitch::Group::partials).
#pragma once

#include <functional>
#include <string>

#include "schedule/schedule.h"

namespace obelisk::codegen {

/// Fields of `g`, that request them of the tile; empty where none are needed.
std::string statistics_fields(const stitch::Group& group, const schedule::Work& work);
/// The same before a tile that does not give them itself (those of a grid have no such rows:
/// schedule/tile_gemm.cpp).
std::string statistics_found(const stitch::Group& group, const schedule::Work& work,
                             const std::string& type);
/// Their place, `at` bytes into the scratch, is named in `top`. Returns its bytes.
int64_t keep_row_statistics(const stitch::Group& group, const schedule::Work& work, int64_t at,
                            std::string& top);
/// Partial statistics of what has been stored, by reading it back: where rows do not go in packs.
std::string leave_partials(const stitch::Group& group, const schedule::Work& work,
                           const std::function<std::string(int operand)>& pointer);

}  // namespace obelisk::codegen

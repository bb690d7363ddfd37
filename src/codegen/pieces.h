/// codegen/pieces.h — what a body says of one piece of a head's keys
/// (stitch::AttentionTile::pieces).
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace obelisk::codegen {

/// The call of the tile, the end of its scope, and how the body goes on: where all pieces share the
/// answer, with the piece's columns; else with all of it where this piece was the last. `type`: of
/// the tile.
std::string piece_of_keys(const stitch::Group& group, const schedule::Work& work,
                          const std::string& type);

}  // namespace obelisk::codegen

/// schedule/tile_gemm_streamed.h — which GEMMs of few rows stream B from memory to registers, and
/// how they are tiled.
#pragma once

#include "schedule/cost_model.h"

namespace obelisk::schedule {

/// Cuts such a GEMM: of up to eight rows, whose B is an activation and has rows of k whose columns
/// are neighbours, or in tf32 of up to 32 rows with packed weights. Tiles are narrow where they
/// would else be fewer than workers. A kernel of its own is a grid of rectangles, several on a
/// worker where there are more of them. False: it is none, and stays as it was.
bool cut_streamed(const stitch::Group& group, const TaskGraph& graph, const Cutting& cut,
                  Work& work);

}  // namespace obelisk::schedule

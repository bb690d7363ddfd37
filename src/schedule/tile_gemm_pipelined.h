/// schedule/tile_gemm_pipelined.h — which GEMMs run as pipelined GEMM kernels, and how they are
/// tiled.
#pragma once

#include "schedule/cost_model.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Where A's rows lie as a matrix of whole blocks of 64 columns; nothing where they do not.
std::optional<RowMatrix> row_matrix(const stitch::Group& group, const Nest& nest);

/// The same where one kernel runs all works and a tile loads all of A by such copies: GEMMs of
/// 16-bit numbers with packed B and tiles of 49 to 64 rows, A in the arena, without split-K, on a
/// machine with asynchronous block copies.
std::optional<RowMatrix> async_rows(const stitch::Group& group, const Cutting& cut,
                                    const TaskGraph& tasks, const Work& work);

/// Cuts such a GEMM into tiles of up to 64 rows, all alike: the columns with the least time of all
/// workers' rounds. With split-K a gang of workers computes a tile. False: it is none, and stays
/// uncut. Such are GEMMs of 16-bit numbers with constant B and 33 to 511 rows, A in the arena, on a
/// machine with asynchronous block copies.
bool cut_pipelined(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                   Work& work);

}  // namespace obelisk::schedule

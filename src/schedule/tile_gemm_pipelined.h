/// schedule/tile_gemm_pipelined.h — products with a kernel of their own that streams both operands:
/// which they are, and how they are cut.
#pragma once

#include "schedule/cost_model.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Where A's rows lie as a matrix of whole blocks of 64 columns; nothing where they do not.
std::optional<RowMatrix> row_matrix(const stitch::Group& group, const Nest& nest);

/// The same where one kernel runs all works and a tile takes all of A by such copies: products of
/// 16-bit numbers with packed B and tiles of 49 to 64 rows, A in the arena, not in parts, on a
/// machine that copies blocks.
std::optional<RowMatrix> asked_rows(const stitch::Group& group, const Cutting& cut,
                                    const TaskGraph& tasks, const Work& work);

/// Cuts such a product into tiles of up to 64 rows, all alike: the columns with the least time of
/// all workers' rounds. A cluster of CTAs computes a tile of one whose k is in parts. False: it is
/// none, and stays uncut. Such are products of 16-bit numbers with constant B and 33 to 511 rows, A
/// in the arena, on a machine that copies blocks.
bool cut_pipelined(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                   Work& work);

}  // namespace obelisk::schedule

/// schedule/packed_weights.h — which works' weights are packed ahead for the tile library, and
/// which of a work's matrices a row meets.
#pragma once

#include "kernels/kernels.h"
#include "schedule/task_graph.h"
#include "stitch/stitch.h"

namespace obelisk::schedule {

/// Whether the last operand (a product's B, a convolution's W) is a weight that is packed ahead for
/// the tile library: then its operand is the packed bytes.
bool work_packs_weights(const stitch::Group& group, const TaskGraph& tasks, const Work& work,
                        const kernels::TileLibrary& tiles);

/// A product whose B is several matrices, one after another when packed: the dimension of the
/// work's rows that numbers them, or -1; and the number of the matrix that a row meets.
int packed_matrix_dim(const stitch::Group& group, const Work& work);
int64_t matrix_of_row(const Work& work, int dim, int64_t row);

}  // namespace obelisk::schedule

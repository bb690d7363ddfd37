#include "schedule/packed_weights.h"

namespace obelisk::schedule {

bool work_packs_weights(const stitch::Group& group, const TaskGraph& tasks, const Work& work,
                        const kernels::TileLibrary& tiles) {
  if (group.kind == stitch::GroupKind::kConv) return true;
  if (group.kind != stitch::GroupKind::kProduct) return false;
  if (!group.product.batch.empty() &&
      (!tiles.gemm.packs_batches || packed_matrix_dim(group, work) < 0))
    return false;
  return tasks.buffers[work.buffers.back()].kind == BufferKind::kWeight;
}

int packed_matrix_dim(const stitch::Group& group, const Work& work) {
  const std::vector<stitch::Product::Dim>& batch = group.product.batch;
  if (batch.size() != 1 || batch[0].a == 0 || batch[0].b <= 0 ||
      (byte_size(group.product.b_type, 1) != 2 && !group.product.tf32))
    return -1;
  const Access* b = work.nest.of_product(group, 1);
  int found = -1;
  for (int d = 0; b && d < work.nest.rows; ++d) {
    if (b->strides[d] == 0) continue;
    if (found >= 0 || b->strides[d] != batch[0].b || work.nest.dims[d].extent != batch[0].extent)
      return -1;
    found = d;
  }
  return found;
}

int64_t matrix_of_row(const Work& work, int dim, int64_t row) {
  for (int d = work.nest.rows - 1; d > dim; --d) row /= work.nest.dims[d].extent;
  return row % work.nest.dims[dim].extent;
}

}  // namespace obelisk::schedule

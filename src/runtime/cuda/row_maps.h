/// runtime/cuda/row_maps.h — tensor maps of the matrices whose rows bodies of one kernel request:
/// where each lies behind the arena (make_maps of tables.h writes them there).
#pragma once

#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {

/// The matrix whose rows a product of one kernel requests, if it does: where its map lies, 0 of
/// others. Errors: kBuild, for a table of a damaged file.
Result<int64_t> async_rows(const Program& program, const WorkRecord& work, Tables& tables);

}  // namespace obelisk::runtime::cuda

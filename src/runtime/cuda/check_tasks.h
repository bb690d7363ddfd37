/// runtime/cuda/check_tasks.h — tasks of a program without barriers name bytes that are there: of
/// what a caller keeps, of packed weights.
#pragma once

#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {

/// Keys and values that a task takes from where the caller keeps them lie in inputs. Errors:
/// kBuild, for a table of a damaged file.
Status check_in_place_kv(const Program& program, const ObkTask& task);

/// The packed weights that a task of a dataflow program takes page by page lie in them. Errors:
/// kBuild, for a table of a damaged file.
Status check_weight_range(const Program& program, const ObkTask& task);

}  // namespace obelisk::runtime::cuda

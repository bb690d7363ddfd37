/// runtime/cuda/check_tasks.h — tasks of a program without barriers name bytes that are there: of
/// what a caller keeps, of packed weights.
#pragma once

#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {

/// Keys and values that a task takes from where the caller keeps them lie in inputs. Errors:
/// kBuild, for a table of a damaged file.
Status check_kept_keys(const Program& program, const ObkTask& task);

/// The packed weights that a task of a program that flows takes page by page lie in them. Errors:
/// kBuild, for a table of a damaged file.
Status check_streamed(const Program& program, const ObkTask& task);

}  // namespace obelisk::runtime::cuda

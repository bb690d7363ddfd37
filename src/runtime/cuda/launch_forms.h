/// runtime/cuda/launch_forms.h — kernels of a graph whose CTAs need no list of tasks: what these
/// follow from. No form changes a launch whose body has another one.
#pragma once

#include "runtime/cuda/layout.h"

namespace obelisk::runtime::cuda {

/// A kernel whose CTAs find their own rectangles: what these follow from. Errors:
/// kBuild, for a table (of a damaged file) whose tasks are not such rectangles.
Status lay_out_grid(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
                    Launch& launch);  // grid.cpp

/// A product that has a kernel of its own: what its CTAs' rectangles and copies follow from.
/// Errors: kBuild, for a table of a damaged file.
Status stream(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
              int64_t there, Launch& launch);  // pipelined_gemm.cpp

}  // namespace obelisk::runtime::cuda

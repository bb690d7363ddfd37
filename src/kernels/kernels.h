/// kernels/kernels.h — the door of `kernels`: hand-written blocks that the emitted program calls or
/// includes, and the binary interface between bodies and the runtimes.
#pragma once

#include "kernels/common/abi.h"
#include "kernels/common/blocks.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"
#include "kernels/cuda/exec/layout.h"
#include "kernels/tile_library.h"

static_assert(sizeof(ObkTask) == 64, "a task record is one cache line");

/// kernels/kernels.h — the door of `kernels`: hand-written blocks that the emitted program calls or
/// includes.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"

/// kernels/cpu/machine_code.h — the one place that speaks to libxsmm: machine code for exact
/// products, made on first use.
///
///   in   a Product's extents, strides, accumulate     out  a function (b, a, c), or null: use the
///   loops
///
/// Null when an extent does not fit an int, the rows of A overlap, code cannot be made here (no
/// executable memory, another architecture), or the build is thread-sanitised, which must see every
/// access. Found again by a hash lookup; safe from any thread.
#pragma once

#include "kernels/cpu/gemm.h"

namespace obelisk::kernels {

using MachineCode = void (*)(const float* b, const float* a, float* c, ...);

MachineCode machine_code(const Product& product);

/// The same for a sum of `*count` products: (addresses of the B, of the A, c, count).
using MachineCodeSum = void (*)(const float** b, const float** a, float* c,
                                const unsigned long long* count, ...);
MachineCodeSum machine_code_sum(const Product& product);

}  // namespace obelisk::kernels

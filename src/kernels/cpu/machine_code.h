/// kernels/cpu/machine_code.h — the one place that speaks to libxsmm: machine code for exact
/// products, made on first use.
///
///   in   m, n, k and row strides      out  a function (b, a, c), or null where we want the loops
///   instead
///
/// Null when an extent does not fit an int, the rows of A overlap, code cannot be made here (no
/// executable memory, another architecture), or the build is thread-sanitised, which must see every
/// access. Found again by a hash lookup; safe from any thread.
#pragma once

#include <cstdint>

namespace obelisk::kernels {

using MachineCode = void (*)(const float* b, const float* a, float* c, ...);

MachineCode machine_code_f32(int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t b_row,
                             int64_t c_row, bool accumulate);

}  // namespace obelisk::kernels

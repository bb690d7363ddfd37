/// kernels/cpu/loops.h — the inner loops that no library gives us, compiled once per instruction
/// set and chosen at run time.
///
/// loops.inl is the text; loops_base.cpp, loops_avx2.cpp and loops_avx512.cpp compile it (x86-64,
/// x86-64-v3, x86-64-v4). They include no standard C++ header, so that no inline function leaves
/// them with instructions that another machine lacks. The environment variable
/// OBELISK_ISA=base|avx2|avx512 lowers the choice (tests, reproduction of another machine's bits).
#pragma once

#include <stdint.h>

#include "kernels/cpu/table.h"

namespace obelisk::kernels {

/// The products below go over the columns in groups. `padded`: the rows of b may be read to the end
/// of the last group.
inline constexpr int64_t kGroup = 16;

struct Loops {
  const char* name;  // "base", "avx2", "avx512"

  // C[m,n] = or += A[m,k] B[k,n]; every sum runs over k in order with one fused multiply-add a step
  // (base: without fusing).
  void (*gemm_f32)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                   const float* b, int64_t b_row, float* c, int64_t c_row, bool accumulate,
                   bool padded);
  void (*gemm_f64)(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_row, int64_t a_col,
                   const double* b, int64_t b_row, double* c, int64_t c_row, bool accumulate,
                   bool padded);
  // k counts pairs: A is [m][k][2], B is [k][n][2]; the strides count pairs too. b is padded.
  void (*gemm_i16)(int64_t m, int64_t n, int64_t k, const int16_t* a, int64_t a_row,
                   const int16_t* b, int64_t b_row, int32_t* c, int64_t c_row, bool accumulate);

  // destination[i] = source[i * stride] as f32; `type` is an ObkType: f32, tf32
  // (which rounds), f16, bf16.
  void (*to_f32)(int32_t type, int64_t count, const void* source, int64_t stride,
                 float* destination);
  // destination[column][row] = source[row][column]
  void (*transpose)(int64_t rows, int64_t columns, const float* source, int64_t source_row,
                    float* destination, int64_t destination_row);
  // values[i] *= factor
  void (*scale)(int64_t count, float factor, float* values);

  // An output row of a depthwise convolution with multiplier 1: y[pixel][channel] = or += sum over
  // rows[i] (the `kernel_rows` input rows that exist, with their weights [kernel_w][channels]).
  void (*depthwise_row)(const ObkConv* conv, int64_t kernel_rows, const float* const* rows,
                        const float* const* weights, int64_t pixel_stride, float* y);

  // The softmax of attention over scores [keys][width], width the queries rounded up to 16:
  // softcap, mask and causal rule, then scores = exp(score - largest) and total[query] = their sum
  // over keys. tile: 16 * width floats of scratch.
  void (*softmax_keys)(const ObkAttention* attention, int64_t keys, int64_t width, float* scores,
                       float* tile, float* total);
};

/// The loops for this machine, chosen on the first call.
const Loops& loops();

extern const Loops kLoopsBase, kLoopsAvx2, kLoopsAvx512;

}  // namespace obelisk::kernels

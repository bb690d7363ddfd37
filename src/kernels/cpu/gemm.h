/// kernels/cpu/gemm.h — one tile of a matrix product, on one core.
///
///   in   A [m, k] with any strides, f32 | tf32 | f16 | bf16 | f64 | i8 | u8; B [k, n], packed
///   ahead (weights) or plain with any strides out  C [m, n], rows c_row apart: f32 for f32, tf32,
///   f16, bf16 (converted exactly, tf32 rounded to 10 bits of mantissa, summed in f32), f64 for
///   f64, i32 for i8, u8
///
///   packed B, n = 150:   | 64 columns of k rows | 64 columns | 32 columns (22 and zeros) | panels
///   of kObkPanel, the last one rounded up to 16 columns; a tile begins at a panel, so tiles of 64
///   x 384 and the like share one packing.
///
/// Numbers  Each element is the sum over k in order, one fused multiply-add a step, whatever m, n,
///          tile and panel: a row's bits depend on nothing but that row and B. Integers are exact
///          (products of i16 pairs) and wrap in i32.
/// Library  f32 wider than 16 columns runs code that libxsmm makes for the exact (m, n, k,
/// strides), found again by
///          its hash; all else, and thread-sanitised builds, run loops.inl.
/// Errors   none; what is out of range is the compiler's bug.    Cost  bench/micro/kernels.cpp
#pragma once

#include <cstdint>

#include "kernels/cpu/table.h"

namespace obelisk::kernels {

/// Columns of the padded width that the panel holding `column` has.
inline int64_t panel_width(int64_t n, int64_t column) {
  const int64_t left = n - column / kObkPanel * kObkPanel;
  return left >= int64_t{kObkPanel} ? int64_t{kObkPanel} : (left + 15) / 16 * 16;
}

/// Bytes of B [k, n] of element type `type` when packed; 64-byte alignment wanted.
inline int64_t gemm_packed_bytes(int32_t type, int64_t n, int64_t k) {
  return obk_gemm_packed_bytes(type, n, k);
}

/// Packs B [k, n]. `zero` (integers; may be null) is subtracted: one for all columns (zero_col 0)
/// or one each (1).
inline void gemm_pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row,
                      int64_t b_col, void* packed, const void* zero = nullptr,
                      int64_t zero_col = 0) {
  obk_gemm_pack(type, n, k, b, b_row, b_col, zero, zero_col, packed);
}

/// Scratch that a tile of these types, strides and extents needs; 0 for f32 tiles with packed B and
/// a_col == 1.
inline int64_t gemm_scratch_bytes(const ObkGemm& gemm) { return obk_gemm_scratch_bytes(&gemm); }

inline void gemm_tile(const ObkGemm& gemm) { obk_gemm_tile(&gemm); }

/// The dense core, for other tiles: C [m, n] = or += A [m, k] B [k, n] in f32. A has a_col == 1 or
/// a_row == 1; B and C have contiguous rows. `padded`: rows of b may be read up to a multiple
/// of 16.
struct Product {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t b_row;
  bool padded;
  float* c;
  int64_t c_row;
  bool accumulate;
};
void multiply(const Product& product);

/// C = or += the sum of `count` products A_i B_i, summed in the order of i, then k. At most
/// kObkPanel columns; product.a and product.b are not looked at.
void multiply_sum(const Product& product, int64_t count, const float* const* a,
                  const float* const* b);

}  // namespace obelisk::kernels

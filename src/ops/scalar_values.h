/// ops/scalar_values.h — what the scalar ops of a loop do to values, for constant folding,
/// evaluate() and the shadow run of task tables: the slow meaning that generated bodies must agree
/// with.
#pragma once

#include "ops/loop.h"

namespace obelisk::ops {

/// A value of either kind; its type says which one counts.
struct Scalars {
  double real = 0;
  int64_t integer = 0;
};

int64_t floor_div(int64_t x, int64_t y);
/// An integer in the width of a type; a real in a type's grid.
int64_t wrap(DType dtype, int64_t value);
double round_to(DType dtype, double value, bool saturate);

double unary_real(Scalar s, double x);
int64_t unary_int(Scalar s, int64_t x, DType dtype);
double binary_real(Scalar s, double x, double y);
int64_t binary_int(Scalar s, int64_t x, int64_t y, DType dtype);
bool compare(Scalar s, const Scalars& x, const Scalars& y, DType dtype);
Scalars convert(const Scalars& x, DType from, DType to, bool saturate);

}  // namespace obelisk::ops

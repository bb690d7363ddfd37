/// ops/gemm.h — products of matrices of doubles, quick enough to verify whole networks with.
///
/// The references of products, convolutions and attention convert their operands to doubles once
/// and come here. A sum runs over k in the same order whatever the number of threads, so that an
/// answer does not depend on them. `sums` other than kDouble: products and sums are rounded to f32
/// as they are made, in one chain over k, which rounds more than the tiles of a program do that add
/// up several; with kTf32 the operands are rounded first.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

/// c[m, n] = a[m, k] * b[k, n]; row-major, a stride is the distance of two rows in elements. On the
/// calling thread.
void gemm(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride, const double* b,
          int64_t b_stride, double* c, int64_t c_stride, Sums sums = Sums::kDouble);

/// The same, rows or columns spread over the machine's threads.
void gemm_on_threads(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride,
                     const double* b, int64_t b_stride, double* c, int64_t c_stride,
                     Sums sums = Sums::kDouble);

/// body(begin, end) for parts of [0, count) on the machine's threads; a part has at least `grain`
/// elements. What a body throws is rethrown here.
void parallel_for(int64_t count, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

/// to[n, m] = from[m, n] transposed.
std::vector<double> transposed(const double* from, int64_t m, int64_t n);

}  // namespace obelisk::ops

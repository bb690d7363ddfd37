/// ops/matmul.h — products of matrices: plain, scaled and biased, and quantised.
///
///   infer      MatMul and its integer kin broadcast leading dimensions and promote vectors; Gemm
///   takes matrices and transposes loop       a sum over k; quantised forms subtract zero points in
///   the body and scale, round and saturate in `finish` reference  doubles through ops/gemm.h;
///   integers wrap around at the width of the output
///
/// Zero points and scales are one element, a vector along the rows of A or the columns of B, or
/// broadcast against the operand.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

/// What a broadcast product multiplies: batch x [m, k] by [k, n].
struct Product {
  Shape batch;  // broadcast of the leading dimensions
  int64_t m = 1, n = 1, k = 1;
  Shape a, b;  // the operands' shapes, a vector promoted to a matrix
  bool a_vector = false, b_vector = false;
  Shape output() const;  // batch, m unless a_vector, n unless b_vector
};
Result<Product> product_of(const Call& call, int a, int b);

/// c[batch, m, n], of doubles.
std::vector<double> multiply(const Product& product, const std::vector<double>& a,
                             const std::vector<double>& b, Sums sums = Sums::kDouble);

Result<Types> infer_matmul(const Call& call);
Result<Types> infer_gemm(const Call& call);
Result<Types> infer_matmul_integer(const Call& call);
Result<Types> infer_qlinear_matmul(const Call& call);

Cost cost_matmul(const Call& call);
Cost cost_gemm(const Call& call);
Cost cost_qlinear_matmul(const Call& call);

std::optional<Loop> loop_matmul(const Call& call, int output);
std::optional<Loop> loop_gemm(const Call& call, int output);
std::optional<Loop> loop_matmul_integer(const Call& call, int output);
std::optional<Loop> loop_qlinear_matmul(const Call& call, int output);

Status reference_matmul(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_gemm(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);
Status reference_matmul_integer(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
Status reference_qlinear_matmul(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);

}  // namespace obelisk::ops

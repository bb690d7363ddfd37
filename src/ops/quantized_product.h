/// ops/quantized_product.h — what the quantised products and convolutions share: zero points,
/// scales, and the way back to integers.
///
/// A parameter is one element, a vector along one axis of its operand, or broadcast against it;
/// aligned_parameter() turns the first two into the third. The answer is  saturate(round(sum *
/// scale) + zero point),  halves to even; for the 8-bit floats saturate(sum * scale + zero point).
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

/// The parameter's shape seen with the operand's rank. Error kBadModel when it does not fit the
/// operand; `summed` are the axes over which the product sums and a parameter may not vary.
Result<Shape> aligned_parameter(const Call& call, int input, std::string_view what,
                                const Shape& operand, int axis, const std::vector<int>& summed);

/// The parameter at the operand's coordinates, whose first are of the axes it may vary along.
ExprId load_parameter(Exprs& exprs, const Call& call, int input, const Shape& aligned,
                      const std::vector<ExprId>& coords);

/// values[operand] -= the parameter, in doubles.
void subtract_parameter(std::vector<double>& values, const Shape& operand, const Tensor& parameter,
                        const Shape& aligned);

/// The type products are summed in: i32, or f32 for the 8-bit floats.
DType product_type(DType dtype);

/// The last step: `sum` in its product type, `scale` in f32, zero point loaded.
ExprId quantize(Exprs& exprs, ExprId sum, ExprId scale, ExprId zero_point, DType dtype);
double quantize(double scaled, double zero_point, DType dtype);

}  // namespace obelisk::ops

#include "ops/quantized_product.h"

#include <algorithm>
#include <cmath>

#include "ops/arrays.h"

namespace obelisk::ops {
namespace {

struct Limits {
  double low, high;
};
Limits limits(DType dtype) {
  const int width = bits(dtype);
  if (is_signed(dtype)) return {-std::ldexp(1.0, width - 1), std::ldexp(1.0, width - 1) - 1};
  return {0, std::ldexp(1.0, width) - 1};
}

}  // namespace

Result<Shape> aligned_parameter(const Call& call, int input, std::string_view what,
                                const Shape& operand, int axis, const std::vector<int>& summed) {
  const Shape& shape = call.in(input).shape;
  Shape aligned(operand.size(), 1);
  if (element_count(shape) == 1) return aligned;
  if (shape.size() == 1) {
    aligned[axis] = shape[0];
  } else if (shape.size() <= operand.size()) {
    std::copy(shape.begin(), shape.end(), aligned.end() - static_cast<int64_t>(shape.size()));
  }
  bool fits = shape.size() <= operand.size() || shape.size() == 1;
  for (size_t d = 0; d < operand.size(); ++d) fits &= aligned[d] == 1 || aligned[d] == operand[d];
  for (int d : summed) fits &= aligned[d] == 1;
  if (!fits) {
    return bad_call(call,
                    fmt::format("{} {} does not fit its operand {}", what, to_string(shape),
                                to_string(operand)),
                    "give one element, or a vector along the axis that is not summed");
  }
  return aligned;
}

ExprId load_parameter(Exprs& exprs, const Call& call, int input, const Shape& aligned,
                      const std::vector<ExprId>& coords) {
  const Type& type = call.in(input);
  std::vector<ExprId> at;
  if (type.rank() == 1 && type.count() != 1) {
    for (size_t d = 0; d < aligned.size(); ++d)
      if (aligned[d] != 1) at.push_back(coords[d]);
  } else {
    const int skip = static_cast<int>(aligned.size()) - type.rank();
    for (int d = 0; d < type.rank(); ++d)
      at.push_back(type.shape[d] == 1 ? exprs.integer(0) : coords[skip + d]);
  }
  return exprs.load(input, type.dtype, std::move(at));
}

void subtract_parameter(std::vector<double>& values, const Shape& operand, const Tensor& parameter,
                        const Shape& aligned) {
  const Tensor seen = parameter.reshaped(aligned);
  const std::vector<double> zero = read_reals(seen);
  const Tensor* inputs[] = {&seen};
  Broadcast(operand, inputs).each([&](int64_t element, const int64_t* offsets) {
    values[element] -= zero[offsets[0]];
  });
}

DType product_type(DType dtype) { return is_float(dtype) ? DType::f32 : DType::i32; }

ExprId quantize(Exprs& exprs, ExprId sum, ExprId scale, ExprId zero_point, DType dtype) {
  ExprId value = exprs.mul(exprs.cast(sum, DType::f32), scale);
  const ExprId zero = exprs.cast(zero_point, DType::f32);
  if (is_float(dtype)) return exprs.cast(exprs.add(value, zero), dtype, true);
  value = exprs.add(exprs.unary(Scalar::kRound, value), zero);
  const auto [low, high] = limits(dtype);
  value = exprs.binary(Scalar::kMax, value, exprs.constant(DType::f32, low));
  value = exprs.binary(Scalar::kMin, value, exprs.constant(DType::f32, high));
  return exprs.cast(value, dtype);
}

double quantize(double scaled, double zero_point, DType dtype) {
  if (is_float(dtype)) return scaled + zero_point;  // the caller stores with saturation
  const auto [low, high] = limits(dtype);
  const double value = std::nearbyint(scaled) + zero_point;
  return std::isnan(value) ? low : std::clamp(value, low, high);
}

}  // namespace obelisk::ops

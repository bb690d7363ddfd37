// Indices that 32 bits hold.
#include <algorithm>

#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

std::optional<VectorEmitter::Range> VectorEmitter::range(ExprId id) {
  if (auto it = ranges_.find(id); it != ranges_.end()) return it->second;
  const Expr& expr = exprs_[id];
  std::optional<Range> result, x, y;
  if (expr.dtype == DType::i64) {
    if (expr.scalar == Scalar::kConst) result = Range{expr.integer, expr.integer};
    if (expr.scalar == Scalar::kCoord)
      result =
          Range{0, dim_of_.count(expr.slot) ? nest_.dims[dim_of_.at(expr.slot)].extent - 1 : 0};
    if (expr.args[0] != kNoExpr && expr.args[1] != kNoExpr && expr.args[2] == kNoExpr)
      x = range(expr.args[0]), y = range(expr.args[1]);
  }
  if (x && y) {
    const int64_t corners[] = {x->first * y->first, x->first * y->second, x->second * y->first,
                               x->second * y->second};
    if (expr.scalar == Scalar::kAdd) result = Range{x->first + y->first, x->second + y->second};
    if (expr.scalar == Scalar::kSub) result = Range{x->first - y->second, x->second - y->first};
    if (expr.scalar == Scalar::kMul)
      result =
          Range{*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4)};
    if (expr.scalar == Scalar::kMin)
      result = Range{std::min(x->first, y->first), std::min(x->second, y->second)};
    if (expr.scalar == Scalar::kMax)
      result = Range{std::max(x->first, y->first), std::max(x->second, y->second)};
  }
  if (result && (result->first < -(int64_t{1} << 30) || result->second > int64_t{1} << 30))
    result.reset();
  return ranges_[id] = result;
}

/// Whether 32 bits hold it; of a comparison: both its sides.
bool VectorEmitter::few_bits(ExprId id) {
  const Expr& expr = exprs_[id];
  if (expr.scalar == Scalar::kLt || expr.scalar == Scalar::kLe || expr.scalar == Scalar::kEq)
    return range(expr.args[0]) && range(expr.args[1]);
  return range(id).has_value();
}

}  // namespace obelisk::codegen

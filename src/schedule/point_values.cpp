#include "schedule/point_values.h"

#include <algorithm>

namespace obelisk::schedule {

using ops::Expr;
using ops::ExprId;
using ops::kNoExpr;
using ops::Scalar;

namespace {

/// Arithmetic in other widths is left alone: no index expression needs it.
bool is_index_type(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::b1;
}

bool is_compare(Scalar scalar) {
  return scalar == Scalar::kLt || scalar == Scalar::kLe || scalar == Scalar::kEq;
}

bool is_binary(Scalar scalar) {
  switch (scalar) {
    case Scalar::kAdd:
    case Scalar::kSub:
    case Scalar::kMul:
    case Scalar::kDiv:
    case Scalar::kMod:
    case Scalar::kFmod:
    case Scalar::kMin:
    case Scalar::kMax:
    case Scalar::kAnd:
    case Scalar::kOr:
    case Scalar::kXor:
      return true;
    default:
      return is_compare(scalar);
  }
}

bool is_unary(Scalar scalar) {
  return scalar == Scalar::kNeg || scalar == Scalar::kAbs || scalar == Scalar::kSign ||
         scalar == Scalar::kNot || scalar == Scalar::kCast;
}

}  // namespace

void PointValues::begin(std::vector<std::vector<int64_t>> coords) {
  coords_ = std::move(coords);
  points_ = coords_.empty() ? 1 : coords_[0].size();
  values_.clear();
}

bool PointValues::known(ExprId id) {
  if (const auto it = known_.find(id); it != known_.end()) return it->second;
  const bool answer = is_known(exprs_[id]);
  return known_[id] = answer;
}

bool PointValues::is_known(const Expr& expr) {
  if (!is_index_type(expr.dtype)) return false;
  switch (expr.scalar) {
    case Scalar::kCoord:
    case Scalar::kConst:
      return true;
    case Scalar::kLoad: {
      const Tensor* tensor = constant_(expr.slot);
      if (tensor == nullptr || !is_index_type(tensor->dtype())) return false;
      break;
    }
    case Scalar::kSelect:
      break;
    default:
      if (!is_binary(expr.scalar) && !is_unary(expr.scalar)) return false;
  }
  for (const ExprId arg : expr.args)
    if (arg != kNoExpr && !known(arg)) return false;
  return std::all_of(expr.coords.begin(), expr.coords.end(), [&](ExprId at) { return known(at); });
}

const std::vector<int64_t>& PointValues::operator[](ExprId id) {
  if (const auto it = values_.find(id); it != values_.end()) return it->second;
  std::vector<int64_t> made = evaluate(exprs_[id]);
  return values_[id] = std::move(made);
}

std::vector<int64_t> PointValues::load(const Expr& expr) {
  const Tensor& tensor = *constant_(expr.slot);
  const Shape& shape = tensor.shape();
  std::vector<int64_t> out(points_, 0);
  for (size_t p = 0; p < points_; ++p) {
    if (expr.args[0] != kNoExpr && (*this)[expr.args[0]][p] == 0) {
      out[p] = (*this)[expr.args[1]][p];
      continue;
    }
    int64_t at = 0;
    bool inside = true;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t coordinate = (*this)[expr.coords[d]][p];
      inside = inside && coordinate >= 0 && coordinate < shape[d];
      at = at * shape[d] + coordinate;
    }
    if (inside) out[p] = tensor.get_int(at);
  }
  return out;
}

std::vector<int64_t> PointValues::evaluate(const Expr& expr) {
  if (expr.scalar == Scalar::kCoord) return coords_[static_cast<size_t>(expr.slot)];
  if (expr.scalar == Scalar::kConst) return std::vector<int64_t>(points_, expr.integer);
  if (expr.scalar == Scalar::kLoad) return load(expr);
  std::vector<int64_t> out(points_);
  const std::vector<int64_t>& x = (*this)[expr.args[0]];  // nodes of a map stay where they are
  const DType of = ops::compute_type(exprs_[expr.args[0]].dtype);
  if (expr.scalar == Scalar::kSelect) {
    const std::vector<int64_t>&yes = (*this)[expr.args[1]], &no = (*this)[expr.args[2]];
    for (size_t p = 0; p < points_; ++p) out[p] = x[p] ? yes[p] : no[p];
  } else if (is_unary(expr.scalar)) {
    for (size_t p = 0; p < points_; ++p)
      out[p] = expr.scalar == Scalar::kCast ? ops::convert({0, x[p]}, of, expr.dtype, false).integer
                                            : ops::unary_int(expr.scalar, x[p], of);
  } else {
    const std::vector<int64_t>& y = (*this)[expr.args[1]];
    for (size_t p = 0; p < points_; ++p)
      out[p] = is_compare(expr.scalar) ? ops::compare(expr.scalar, {0, x[p]}, {0, y[p]}, of)
                                       : ops::binary_int(expr.scalar, x[p], y[p], of);
  }
  return out;
}

}  // namespace obelisk::schedule

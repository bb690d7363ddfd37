#include "schedule/point_values.h"

#include <algorithm>

namespace obelisk::schedule {

using ops::Expr;
using ops::ExprId;
using ops::kNoExpr;
using ops::Scalar;

namespace {

/// Arithmetic that wraps in other widths than i64's own is left alone: no index expression needs
/// it.
bool is_index_type(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::b1;
}

/// The C++ meaning of a binary operator on indices, or nothing where the expression is none.
std::optional<int64_t> binary(Scalar scalar, int64_t x, int64_t y) {
  switch (scalar) {
    case Scalar::kAdd:
      return x + y;
    case Scalar::kSub:
      return x - y;
    case Scalar::kMul:
      return x * y;
    case Scalar::kDiv:
      return y == 0 ? 0 : x / y;
    case Scalar::kMod:
      return y == 0 ? 0 : ((x % y) + y) % y;
    case Scalar::kFmod:
      return y == 0 ? 0 : x % y;
    case Scalar::kMin:
      return std::min(x, y);
    case Scalar::kMax:
      return std::max(x, y);
    case Scalar::kLt:
      return x < y;
    case Scalar::kLe:
      return x <= y;
    case Scalar::kEq:
      return x == y;
    case Scalar::kAnd:
      return x != 0 && y != 0;
    case Scalar::kOr:
      return x != 0 || y != 0;
    case Scalar::kXor:
      return (x != 0) != (y != 0);
    default:
      return std::nullopt;
  }
}

bool is_binary(Scalar scalar) { return binary(scalar, 1, 1).has_value(); }

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
  if (expr.scalar == Scalar::kSelect) {
    const std::vector<int64_t>&yes = (*this)[expr.args[1]], &no = (*this)[expr.args[2]];
    for (size_t p = 0; p < points_; ++p) out[p] = x[p] ? yes[p] : no[p];
  } else if (is_unary(expr.scalar)) {
    for (size_t p = 0; p < points_; ++p) {
      switch (expr.scalar) {
        case Scalar::kNeg:
          out[p] = -x[p];
          break;
        case Scalar::kAbs:
          out[p] = x[p] < 0 ? -x[p] : x[p];
          break;
        case Scalar::kSign:
          out[p] = (x[p] > 0) - (x[p] < 0);
          break;
        case Scalar::kNot:
          out[p] = x[p] == 0;
          break;
        default:
          out[p] = expr.dtype == DType::b1 ? x[p] != 0 : x[p];  // a cast
      }
    }
  } else {
    const std::vector<int64_t>& y = (*this)[expr.args[1]];
    for (size_t p = 0; p < points_; ++p) out[p] = *binary(expr.scalar, x[p], y[p]);
  }
  return out;
}

}  // namespace obelisk::schedule

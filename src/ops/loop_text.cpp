#include <functional>

#include "ops/ops.h"

namespace obelisk::ops {

std::string to_string(const Loop& loop) {
  const Exprs& exprs = loop.exprs;
  std::function<std::string(ExprId)> show = [&](ExprId id) -> std::string {
    const Expr& expr = exprs[id];
    switch (expr.scalar) {
      case Scalar::kCoord:
        return fmt::format("c{}", expr.slot);
      case Scalar::kConst:
        return is_float(expr.dtype) ? fmt::format("{}", expr.real)
                                    : fmt::format("{}", expr.integer);
      case Scalar::kAcc:
        return "acc";
      case Scalar::kLoad: {
        std::string out = fmt::format("load{}(", expr.slot);
        for (size_t d = 0; d < expr.coords.size(); ++d)
          out += (d ? ", " : "") + show(expr.coords[d]);
        if (expr.args[0] != kNoExpr)
          out += fmt::format(" if {} else {}", show(expr.args[0]), show(expr.args[1]));
        return out + ")";
      }
      case Scalar::kCast:
        return fmt::format("{}({})", to_string(expr.dtype), show(expr.args[0]));
      case Scalar::kCastSat:
        return fmt::format("{}_sat({})", to_string(expr.dtype), show(expr.args[0]));
      default: {
        std::string out = fmt::format("{}(", to_string(expr.scalar));
        for (int a = 0; a < 3 && expr.args[a] != kNoExpr; ++a)
          out += (a ? ", " : "") + show(expr.args[a]);
        return out + ")";
      }
    }
  };
  constexpr std::string_view kCombines[] = {"", "sum", "prod", "max", "min", "any", "all"};
  std::string out;
  if (loop.combine != Combine::kNone) {
    out += kCombines[static_cast<size_t>(loop.combine)];
    for (size_t d = loop.parallel; d < loop.domain.size(); ++d)
      out += fmt::format(" c{} in {}", d, loop.domain[d]);
    out += ": ";
  }
  out += show(loop.body);
  if (loop.finish != kNoExpr) out += "; finish " + show(loop.finish);
  return out;
}

}  // namespace obelisk::ops

// Expressions as text: once a vector or once an element; where an access lies.
#include <algorithm>

#include "codegen/scalars.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

void VectorEmitter::begin() {
  for (auto& names : named_) names.clear();
  for (auto& lines : lines_) lines.clear();
  statements_.clear(), element_statements_.clear(), staged_here_.clear(), placed_.clear(),
      divisors_.clear();
}

/// Closes the loops that `loops` has opened: what is known once a vector, then what each element
/// has of its own.
void VectorEmitter::finish_loop(std::string& out, const std::string& indent,
                                const std::string& after) {
  for (const std::string& line : lines_[kOnce]) out += indent + "  " + line + "\n";
  for (const std::string& line : statements_) out += indent + "  " + line + "\n";
  if (!element_statements_.empty()) {
    out += indent + "  OBK_EACH(v, V) {\n";
    for (const std::string& line : lines_[kElement]) out += indent + "    " + line + "\n";
    for (const std::string& line : element_statements_) out += indent + "    " + line + "\n";
    out += indent + "  }\n";
  }
  out += after + indent + "}\n";
  begin();
}

std::string VectorEmitter::coordinate(int dim, bool element) const {
  if (dim < nest_.rows)
    return dim == lane_ && element ? fmt::format("(i{}[q] + v)", dim) : fmt::format("i{}[q]", dim);
  const std::string at = fmt::format("j{}{}", dim, flat_ ? "[q]" : "[u]");
  return dim == lane_ && element ? "(" + at + " + v)" : at;
}

std::string VectorEmitter::value(ExprId id) {
  const Expr& expr = exprs_[id];
  if (expr.scalar == Scalar::kConst) return constant(expr);
  if (expr.scalar == Scalar::kAcc) return acc_;
  if (expr.scalar == Scalar::kLoad && expr.slot >= stitch::kStageSlot &&
      expr.slot < stitch::kTileSlot)
    if (auto it = staged_here_.find(expr.slot - stitch::kStageSlot); it != staged_here_.end())
      return it->second;
  const bool by_element = varies(id) & kByElement;
  if (by_element && !of_first_ && v_ > 1 && expr.dtype == DType::b1 && same_in_vector(id, v_)) {
    of_first_ = true;
    std::string first = value(id);
    of_first_ = false;
    return first;
  }
  const Level level = !by_element ? kOnce : of_first_ ? kFirst : kElement;
  if (auto it = named_[level].find(id); it != named_[level].end()) return it->second;
  if (level == kElement)
    if (auto it = named_[kOnce].find(id); it != named_[kOnce].end()) return it->second;
  std::string text;
  if (expr.scalar == Scalar::kCoord) {
    if (!dim_of_.count(expr.slot)) return "((int)0)";
    text = coordinate(dim_of_.at(expr.slot), !of_first_);
  } else if (expr.scalar == Scalar::kLoad) {
    text = loaded(id, expr);
  } else if (text = approximate(id); text.empty()) {
    const bool few =
        few_bits(id);  // of an index: 32 are enough, and what computes with them is half as long
    std::string args[3];
    for (int a = 0; a < 3; ++a)
      if (expr.args[a] != kNoExpr) args[a] = few ? value(expr.args[a]) : wide_value(expr.args[a]);
    text = scalar_text(exprs_, expr, args, few);
  }
  const std::string name = fmt::format("e{}", names_++), type = arithmetic_name(expr.dtype);
  lines_[level == kElement ? kElement : kOnce].push_back(fmt::format(
      "const {} {} = {};", few_bits(id) && type == "int64_t" ? "int" : type, name, text));
  named_[level][id] = name;
  return name;
}

/// An index in 64 bits, where 32 do not hold what is made of it.
std::string VectorEmitter::wide_value(ExprId id) {
  const std::string text = value(id);
  return few_bits(id) && exprs_[id].dtype == DType::i64 ? "(int64_t)" + text : text;
}

std::string VectorEmitter::constant(const Expr& expr) {
  if (expr.dtype == DType::i64 && std::abs(expr.integer / 2) <= 1 << 29)
    return fmt::format("((int){})", expr.integer);
  return constant_text(expr);
}

std::string VectorEmitter::loaded(ExprId id, const Expr& expr) {
  if (expr.slot >= stitch::kStatisticSlot) return fmt::format("l{}[q]", id);
  if (expr.slot >= stitch::kTileSlot)
    return fmt::format("obk::at(l{}{}, v)", id, at(indices(varies(id))));
  if (expr.slot >= stitch::kStageSlot)
    return fmt::format("g{}[q][u][v]", expr.slot - stitch::kStageSlot);
  if (expr.slot >= stitch::kRowSlot)
    return fmt::format("w{}[q]{}", expr.slot - stitch::kRowSlot, across_ ? "[v]" : "");
  const Load& load =
      *std::find_if(loads_.begin(), loads_.end(), [&](const Load& l) { return l.expr == id; });
  const Indices i = indices(load.varies);
  if (held_.count(id)) {
    if (placed_.insert(id).second)
      lines_[kOnce].push_back(fmt::format("const auto l{} = obk::still_pack<V>({}, {});", id,
                                          job_.pointer(expr.slot, false),
                                          place(*load_access_.at(id), expr, false)));
    return fmt::format("obk::at(l{}, v)", id);
  }
  if (packs(load, v_)) {
    std::string text = fmt::format("obk::at(l{}{}, v)", id, at(i));
    if (expr.args[0] != kNoExpr)
      text = fmt::format("{} ? {} : {}", value(expr.args[0]), text, value(expr.args[1]));
    return text;
  }
  return fmt::format("l{}{}{}", id, at(i), i.element ? "[v]" : "");
}

/// The offset of an access; `element`: of the element `v`, else of the vector's first.
std::string VectorEmitter::place(const Access& access, const Expr& expr, bool element) {
  if (!access.affine)
    return offset_text(job_.layouts[body_.operands[expr.slot]], expr.coords, element);
  return affine_text(access, element);
}

std::string VectorEmitter::affine_text(const Access& access, bool element) const {
  int64_t reach = std::abs(access.offset);
  for (size_t d = 0; d < access.strides.size(); ++d)
    reach += std::abs(access.strides[d]) * nest_.dims[d].extent;
  const std::string wide = reach >= INT32_MAX ? "(int64_t)" : "";
  std::string sum = access.offset ? std::to_string(access.offset) : "";
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if (!access.strides[d]) continue;
    const std::string index = coordinate(static_cast<int>(d), element);
    sum += (sum.empty() ? "" : " + ") + wide +
           (access.strides[d] == 1 ? index : fmt::format("{} * {}", index, access.strides[d]));
  }
  return sum.empty() ? "0" : sum;
}

std::string VectorEmitter::offset_text(const stitch::Layout& layout,
                                       const std::vector<ExprId>& coords, bool element) {
  std::string sum = layout.offset ? std::to_string(layout.offset) : "";
  for (size_t d = 0; d < coords.size(); ++d) {
    const Expr& coord = exprs_[coords[d]];
    if (coord.scalar == Scalar::kConst && coord.integer == 0) continue;
    sum += (sum.empty() ? "" : " + ") +
           (!element && is_lane(coords[d]) ? coordinate(lane_, false) : wide_value(coords[d])) +
           (layout.strides[d] == 1 ? "" : fmt::format(" * {}", layout.strides[d]));
  }
  return sum.empty() ? "0" : sum;
}

}  // namespace obelisk::codegen

// Which values come from memory, which of them in packs, where their loads stand and what they say.
#include <algorithm>
#include <functional>

#include "codegen/scalars.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

bool VectorEmitter::packs(const Load& load, int64_t v) const {
  if (transposes_ && turns(load)) return false;
  if (!(load.varies & kByElement)) return false;
  if (load.guarded && (v == 1 || !same_in_vector(exprs_[load.expr].args[0], v))) return false;
  if (exprs_[load.expr].slot >= stitch::kTileSlot) return true;
  const Access& access = *load_access_.at(load.expr);
  return access.affine ? whole(access, lane_, v) : computed_whole(exprs_[load.expr], v);
}

/// A read at a computed place (a row that is looked up) whose last index is the column.
bool VectorEmitter::computed_whole(const Expr& expr, int64_t v) const {
  const stitch::Layout& layout = job_.layouts[body_.operands[expr.slot]];
  if (layout.offset % v) return false;
  int unit = 0;
  for (size_t d = 0; d < expr.coords.size(); ++d) {
    if (is_lane(expr.coords[d])) {
      if (layout.strides[d] != 1 || ++unit > 1) return false;
    } else if ((varies_.at(expr.coords[d]) & kByElement) || layout.strides[d] % v) {
      return false;
    }
  }
  return unit == 1;
}

void VectorEmitter::find_loads() {
  std::set<ExprId> seen;
  std::function<void(ExprId)> find = [&](ExprId id) {
    if (id == kNoExpr || !seen.insert(id).second) return;
    const Expr& expr = exprs_[id];
    for (ExprId arg : expr.args) find(arg);
    if (expr.scalar != Scalar::kLoad) return;
    if (expr.slot >= stitch::kTileSlot) {
      loads_.push_back({id, expr.dtype, varies(id), 1, false});
      return;
    }
    if (expr.slot >= stitch::kRowSlot) return;
    if (!load_access_.at(id)->affine)
      for (ExprId coord : expr.coords) find(coord);
    const bool guarded =
        expr.args[0] != kNoExpr && ((varies(expr.args[0]) | varies(expr.args[1])) & kByElement);
    loads_.push_back(
        {id, job_.graph.type(body_.operands[expr.slot]).dtype, varies(id), depth(id), guarded});
  };
  for (const Step& step : body_.steps) {
    find(step.expr);
    if (step.kind == StepKind::kReduce) find(step.finish);
    if (step.kind == StepKind::kStore &&
        !store_access_.at(static_cast<int>(&step - body_.steps.data()))->affine)
      for (ExprId at : step.at) find(at);
  }
  std::stable_sort(loads_.begin(), loads_.end(),
                   [](const Load& a, const Load& b) { return a.depth < b.depth; });
}

/// Loads from memory, those first that others need. `free`: the ones that are the same for all
/// rows.
void VectorEmitter::loads(std::string& out, const std::string& indent, bool free) {
  int deepest = 0;
  for (const Load& load : loads_) deepest = std::max(deepest, load.depth);
  for (int d = 1; d <= deepest; ++d) {
    std::map<std::pair<bool, bool>, std::vector<const Load*>> together;
    for (const Load& load : loads_) {
      if (load.depth != d || loaded_.count(load.expr) || (load.varies & kByTile)) continue;
      if (only_weights_ && (d > 1 || !is_weight(load))) continue;
      const Indices i = indices(load.varies);
      if (free && i.row) continue;
      if (held_.count(load.expr)) continue;
      if (across_ && (i.unit != in_walk_ || !needed_.count(load.expr))) continue;
      together[{i.row, i.unit}].push_back(&load);
    }
    for (const auto& [key, list] : together)
      load_loop({key.first, key.second, false}, list, out, indent, free);
  }
}

bool VectorEmitter::is_weight(const Load& load) const {
  const int32_t slot = exprs_[load.expr].slot;
  return slot < stitch::kRowSlot && job_.graph.value(body_.operands[slot]).is_constant();
}

void VectorEmitter::load_loop(const Indices& over, const std::vector<const Load*>& list,
                              std::string& out, const std::string& indent, bool free) {
  begin();
  std::vector<Member> fresh;
  for (const Load* load : list) {
    const Expr& expr = exprs_[load->expr];
    const Indices i = indices(load->varies);
    const std::string name = fmt::format("l{}", load->expr),
                      arithmetic = arithmetic_name(expr.dtype);
    const std::string pointer = job_.pointer(expr.slot, false);
    if (packs(*load, v_)) {
      fresh.push_back(
          {fmt::format("obk::Pack<{}, V>", storage_name(load->storage)), name, sizes(i)});
      std::string text = fmt::format("{}{} = obk::{}_pack<V>({}, {});", name, at(i),
                                     job_.grid && i.row && !is_weight(*load) ? "once" : "load",
                                     pointer, place(*load_access_.at(load->expr), expr, false));
      if (expr.args[0] != kNoExpr) text = fmt::format("if ({}) {}", value(expr.args[0]), text);
      statements_.push_back(text);
    } else if (i.element) {
      fresh.push_back({arithmetic, name, sizes(i) + "[V]"});
      std::string text = fmt::format("obk::load({}, {})", pointer,
                                     place(*load_access_.at(load->expr), expr, true));
      if (expr.args[0] != kNoExpr)
        text = fmt::format("{} ? {} : {}", value(expr.args[0]), text, value(expr.args[1]));
      element_statements_.push_back(fmt::format("{}{}[v] = {};", name, at(i), text));
    } else {
      fresh.push_back({arithmetic, name, sizes(i)});
      std::string text = fmt::format("obk::load({}, {})", pointer,
                                     place(*load_access_.at(load->expr), expr, false));
      if (expr.args[0] != kNoExpr)
        text = fmt::format("{} ? {} : {}", value(expr.args[0]), text, value(expr.args[1]));
      statements_.push_back(fmt::format("{}{} = {};", name, at(i), text));
    }
  }
  if (across_ || free)
    for (const Member& member : fresh)
      out += fmt::format("{}{} {}{};\n", indent, member.type, member.name, member.sizes);
  else
    members_.insert(members_.end(), fresh.begin(), fresh.end());
  out += loops(over, indent);
  finish_loop(out, indent);
  for (const Load* load : list) loaded_.insert(load->expr);
}

/// The tile's values, in packs.
void VectorEmitter::tile_loads(std::string& out, const std::string& indent) {
  for (const Load& load : loads_) {
    if (exprs_[load.expr].slot < stitch::kTileSlot) continue;
    const Indices i = indices(load.varies);
    if (const int slot = exprs_[load.expr].slot; slot >= stitch::kStatisticSlot) {
      out += fmt::format(
          "{0}float l{1}[R];\n{0}OBK_EACH(q, R) l{1}[q] = statistics[2 * (row[q] - (int)t->r0) + "
          "{2}];\n",
          indent, load.expr, slot - stitch::kStatisticSlot);
      loaded_.insert(load.expr);
      continue;
    }
    out += fmt::format("{}obk::Pack<{}, V> l{}{};\n", indent,
                       arithmetic_name(exprs_[load.expr].dtype), load.expr, sizes(i));
    // A dual GEMM's second half stands beside the first, which is narrower in the last tile of a
    // row that tiles do not divide.
    const std::string beside =
        columns_ % job_.tile_columns ? "(int)(t->c1 - t->c0)" : std::to_string(job_.tile_columns);
    const std::string side = exprs_[load.expr].slot > stitch::kTileSlot ? " + " + beside : "";
    out += loops(i, indent) + fmt::format(
                                  "{0}  l{1}{2} = obk::{7}(row[q] - (int)t->r0) * {3} + "
                                  "(col{4} - {5}){6});\n{0}}}\n",
                                  indent, load.expr, at(i), job_.tile_pitch, flat_ ? "[q]" : "[u]",
                                  flat_or_down() ? "(int)t->c0" : "0", side,
                                  job_.planes > 1
                                      ? fmt::format("load_sums<V, {}>(tile, other, ", job_.planes)
                                      : "load_pack<V>(tile, ");
    loaded_.insert(load.expr);
  }
}

/// What is the same for all rows serves few of them in a grid (a norm's scale): it is
/// loaded where it is used, so that it holds no registers before.
void VectorEmitter::hold_back() {
  if (flat_ || overlaps_) return;
  for (const Load& load : loads_) {
    if ((load.varies & kByRow) || !packs(load, v_) || exprs_[load.expr].args[0] != kNoExpr)
      continue;
    if (load_access_.at(load.expr)->affine) held_.insert(load.expr);
  }
}

bool VectorEmitter::flies_ahead() const {
  if (!flat_or_down() || !job_.anchored || batches_ != 1) return false;
  int64_t words = 0;  // of a point
  for (const Load& load : loads_)
    if (!(load.varies & kByTile) && (flat_ || (load.varies & kByRow)))
      words +=
          load.varies & kByElement ? std::max<int64_t>(v_ * byte_size(load.storage, 1) / 4, 1) : 1;
  return words * points_ + (flat_ ? 0 : column_registers()) <= job_.most_ahead;
}

}  // namespace obelisk::codegen

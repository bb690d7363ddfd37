/// codegen/vector_emitter.h — what writes the rows of one body in vectors; vectors.h says what that
/// is.
///
/// Here: the choice of V, R and U, loads, expressions, steps, and the ways *rows* and *flat*. In
/// vectors_across.cpp and vectors_turned.cpp: the other two.
#pragma once

#include "codegen/vectors.h"

#include <algorithm>
#include <map>
#include <set>

#include "codegen/reductions.h"
#include "codegen/scalars.h"

namespace obelisk::codegen {

using ops::Combine;
using ops::Expr;
using ops::ExprId;
using ops::kNoExpr;
using ops::Scalar;
using schedule::Access;
using stitch::Step;
using stitch::StepKind;

inline constexpr int64_t kMostRegisters = 96;  // of a batch, for loads and values that stay
inline constexpr int64_t kFewRegisters =
    48;  // of a batch where several tasks share a multiprocessor
inline constexpr int64_t kMostOfAWarp =
    128;  // vectors of a row: longer ones are shared by all warps
inline constexpr int64_t kMostOfOneRow = 144;  // above this a row is walked instead
inline constexpr int64_t kAllThreads = 256, kWarp = 32;

/// What a value varies with: bits. Of the innermost dimension, which vectors run along, its side as
/// well.
enum Varies {
  kByRow = 1,
  kByVector = 2,
  kByElement = 4,
  kByPass = 8 /* known only after a reduction */,
  kByTile = 16
};

class VectorEmitter {
 public:
  explicit VectorEmitter(const VectorJob& job)
      : job_(job), body_(job.body), exprs_(job.body.exprs), nest_(job.nest) {}

  std::optional<VectorText> run() {
    if (!plan()) return std::nullopt;
    if (across_) return across();
    if (turns_) return turned();
    if (slots_ > 0) return in_slots();
    VectorText text;
    std::string& ahead = text.ahead;
    ahead += fmt::format("  constexpr int R = {}, U = {}, V = {};\n", rows_text_, units_text_, v_);
    if (!flat_) ahead += fmt::format("  const int lane = OBK_LANE({});\n", lanes_);
    const bool one_batch = flies_ahead();
    columns_text(ahead);
    if (job_.dealt) hold_back();
    only_weights_ = !job_.begin.empty();
    loads(ahead, "  ", true);
    std::string body;
    if (only_weights_ && one_batch) {
      points(body);
      loads(body, "    ", false);
      ahead += declared("  ") + unindented(body);
      body.clear(), members_.clear();
    }
    if (only_weights_) {
      only_weights_ = false, text.begins = true;
      text.late =
          job_.may_begin_late && std::all_of(loads_.begin(), loads_.end(), [&](const Load& load) {
            return exprs_[load.expr].slot >= stitch::kTileSlot || is_weight(load);
          });
      if (!text.late) ahead += job_.begin;
      loads(ahead, "  ", true);
    }
    if (!text.begins || !one_batch) points(body);
    loads(body, "    ", false);
    if (one_batch) {  // the loads fly while the tile is computed
      ahead += declared("  ") + unindented(body);
    } else if (overlaps_) {
      text.rows += overlapped(body);
    } else {
      text.rows += loop_head("") + declared("    ") + body;
    }
    const std::string indent = "    ";
    if (one_batch) text.rows += "  {\n";
    tile_loads(text.rows, indent);
    int last = 0;
    for (const Step& step : body_.steps) last = std::max(last, step.pass);
    for (int pass = 0; pass <= last; ++pass) {
      row_stores(pass, text.rows, indent);
      segment(pass, text.rows, indent);
    }
    text.rows += "  }\n";
    text.gives_partials = gives_partials_;
    return text;
  }

  /// CTAs that share a multiprocessor where tasks are dealt, as registers let them.
  int residents() const;

 private:
  struct Load {
    ExprId expr = kNoExpr;
    DType storage = DType::f32;
    int varies = 0;
    int depth = 0;         // loads that its place needs
    bool guarded = false;  // by a condition of its own for each element
  };
  // ---- batch after batch ---------------------------------------------------------------------------------------------------------
  /// The arrays of a batch that loads fill, as declarations.
  std::string declared(const std::string& indent) const {
    std::string text;
    for (const Member& member : members_)
      text += fmt::format("{}{} {}{};\n", indent, member.type, member.name, member.sizes);
    return text;
  }
  std::string aliases(const std::string& indent, const std::string& of) const {
    std::string text;
    for (const Member& member : members_)
      text += fmt::format("{}auto& {} = {}.{};\n", indent, member.name, of, member.name);
    return text;
  }
  /// The loads of the next batch are asked for before this one is computed.
  std::string overlapped(const std::string& loads) const;
  std::string first_text() const {
    return flat_            ? "0"
           : lanes_ < kWarp ? "(int)t->r0"
                            : fmt::format("(int)t->r0 + OBK_GROUP({}) * R", lanes_);
  }
  std::string end_text() const {
    return flat_ ? fmt::format("OBK_COUNT_POINTS(t, {})", vectors_) : "(int)t->r1";
  }
  std::string step_text() const {
    return flat_ ? "R * OBK_ALL_THREADS" : fmt::format("OBK_GROUPS({}) * R", lanes_);
  }
  std::string loop_head(const std::string& indent) const {
    return fmt::format("{}  for (int base = {}; base < {}; base += {}) {{\n", indent, first_text(),
                       end_text(), step_text());
  }

  // ---- whether and how ---------------------------------------------------------------------------------------------------------
  bool plan() {
    const size_t dims = nest_.dims.size();
    if (static_cast<size_t>(nest_.rows) >= dims) return false;
    across_ = nest_.lanes_in_rows;
    if (across_ && job_.anchored) return false;
    lane_ = across_ ? nest_.rows - 1 : static_cast<int>(dims) - 1;
    columns_ = nest_.column_count();
    if (columns_ == 0 || nest_.row_count() == 0 || nest_.row_count() >= INT32_MAX ||
        columns_ >= INT32_MAX)
      return false;
    for (graph::ValueId v : body_.operands)
      if (bits(job_.graph.type(v).dtype) < 8) return false;
    for (size_t d = 0; d < dims; ++d)
      for (int coord : nest_.dims[d].coords) dim_of_[coord] = static_cast<int>(d);
    for (const Access& access : nest_.accesses) {
      if (access.load != kNoExpr)
        load_access_[access.load] = &access;
      else if (access.step >= 0)
        store_access_[access.step] = &access;
    }
    flat_ = !across_;
    for (const Step& step : body_.steps)
      if (step.kind != StepKind::kStore) flat_ = false;
    if (flat_ && dims - nest_.rows != 1) return false;
    if (!flat_ && !across_ && nest_.cut_columns) return false;
    find_loads();
    for (const Load& load :
         loads_)  // where a read depends on what is computed here, it is made when that is known
      if (exprs_[load.expr].slot < stitch::kTileSlot && (load.varies & (kByPass | kByTile)))
        return false;
    turns_ =
        flat_ && !job_.anchored && nest_.rows > 0 && nest_.dims[nest_.rows - 1].extent >= 32 &&
        columns_ >= 32 &&
        std::any_of(loads_.begin(), loads_.end(), [&](const Load& load) { return turns(load); });
    // The widest vector whose loads are whole ones, unless lanes would stand idle; of those that
    // cost the same in a kernel of one product, which waits for its slowest thread, the one that
    // leaves a thread the fewest elements.
    int64_t best = 0, fewest = 0;
    for (int64_t v : {8, 4, 2, 1}) {
      if (!divides(v)) continue;
      const int64_t vectors = across_ ? job_.tile_rows / v
                              : flat_ ? job_.tile_rows * (wide() / v)
                                      : columns_ / v;
      const int64_t lanes = across_ ? kAllThreads / slices()
                            : flat_ ? kAllThreads
                                    : lanes_of(vectors);
      // A row on few lanes leaves room for others beside it.
      const int64_t cost =
          (vectors + lanes - 1) / lanes * (4 + v) * (flat_ || across_ ? kWarp : lanes);
      const int64_t most = (vectors + lanes - 1) / lanes * v;  // elements of a thread
      if (best == 0 || cost < best || (cost == best && !job_.begin.empty() && most < fewest))
        best = cost, fewest = most, v_ = v;
    }
    if (across_) {
      // As many columns at once as fit: their loads are in flight together.
      const int64_t here = (columns_ + slices() - 1) / slices();
      const int64_t most = std::clamp<int64_t>(64 / std::max<int64_t>(registers(1), 1), 1, 32);
      rows_text_ = "1", units_text_ = fmt::format("{}", std::min(here, most));
      plan_slots_across(here);
      return registers(1) <= kMostOfOneRow;
    }
    if (turns_) return true;
    if (flat_) {
      vectors_ = wide() / v_;
      const int64_t points =
          std::max<int64_t>((job_.tile_rows * vectors_ + kAllThreads - 1) / kAllThreads, 1);
      const int64_t most = std::max<int64_t>(budget() / std::max<int64_t>(registers(1), 1), 1);
      if (plan_slots(points)) return true;
      overlaps_ = most < points && !job_.anchored && !job_.dealt;
      const int64_t batch = std::clamp<int64_t>(overlaps_ ? most / 2 : most, 1, points);
      batches_ = (points + batch - 1) / batch, points_ = points, words_ = batch * registers(1);
      const int64_t even = (points + batches_ - 1) / batches_;
      rows_text_ =
          fmt::format("OBK_POINTS({}, {})", even,
                      flies_ahead() ? std::max<int64_t>(job_.tile_rows * vectors_, 1) : batch);
      units_text_ = "1";
      return registers(1) <= kMostOfOneRow;
    }
    vectors_ = columns_ / v_;
    // A warp a row or a part of one, or all threads where it is long.
    lanes_ = lanes_of(vectors_);
    if (registers((vectors_ + kWarp - 1) / kWarp) > kMostRegisters || vectors_ > kMostOfAWarp)
      lanes_ = kAllThreads;
    const int64_t units = (vectors_ + lanes_ - 1) / lanes_;
    if ((lanes_ == kAllThreads ? held_at_once(units) : registers(units)) > kMostOfOneRow)
      return false;
    const int64_t groups = kAllThreads / lanes_,
                  all = std::max<int64_t>((job_.tile_rows + groups - 1) / groups, 1);  // of a group
    const int64_t most = std::clamp<int64_t>(budget() / std::max<int64_t>(registers(units), 1), 1,
                                             lanes_ == kAllThreads ? 4 : kMostRegisters);
    if (plan_slots(all)) return true;
    overlaps_ =
        most < all && 2 * registers(units) <= kMostOfOneRow && !job_.anchored && !job_.dealt;
    const int64_t rows = std::clamp<int64_t>(overlaps_ ? most / 2 : most, 1, all);
    rows_text_ = fmt::format("{}", rows),
    words_ = rows * (lanes_ == kAllThreads ? held_at_once(units) : registers(units));
    units_text_ = fmt::format("OBK_UNITS({}, OBK_LANES_OF({}))", vectors_, lanes_);
    return true;
  }
  /// Whether what an epilogue reads beside the tile is asked for before the tile is computed: one
  /// batch of few registers.
  bool flies_ahead() const;
  /// Lanes of a row; of a short one a power of two, so that parts join by exchanges.
  int64_t lanes_of(int64_t vectors) const {
    constexpr int64_t kLong = 512, kFew = 256;  // columns; rows, two an SM
    int64_t lanes =
        job_.shares_rows && columns_ > kLong && nest_.row_count() <= kFew && vectors > kWarp
            ? kAllThreads
            : 1;
    while (lanes < vectors && lanes < kWarp) lanes *= 2;
    return lanes;
  }
  /// Across: threads that share the columns of a row, by their number alone.
  int64_t slices() const { return columns_ >= 1024 ? 16 : columns_ >= 32 ? 8 : 1; }
  /// Columns that a task spans at most.
  int64_t wide() const { return std::min(job_.tile_columns, columns_); }

  bool divides(int64_t v) const {
    if (nest_.dims[lane_].extent % v != 0) return false;
    if (v > 1 && v * narrowest() > 16)
      return false;  // lanes that are neighbours read neighbouring bytes
    if (flat_ && wide() % v != 0) return false;
    if (across_ && job_.tile_rows % v != 0) return false;
    for (const Load& load : loads_)
      if ((load.varies & kByElement) && v * byte_size(load.storage, 1) > 64) return false;
    for (const auto& [s, access] : store_access_) {
      const DType dtype = job_.graph.type(body_.operands[body_.steps[s].slot]).dtype;
      if (v * byte_size(dtype, 1) > 32 ||
          (job_.gives_to_all(body_.steps[s]) &&
           (v * byte_size(dtype, 1) < 4 || !store_packs(*access, v))))
        return false;
    }
    if (turns_) {
      for (const auto& [s, access] : store_access_)
        if (!store_packs(*access, v)) return v == 1;
      return v <= 4;
    }
    // One vector is worth it only if most of what is touched comes in whole packs.
    if (v > 1) {
      int whole = 0, broken = 0;
      for (const Load& load : loads_)
        if (load.varies & kByElement) (packs(load, v) ? whole : broken) += 1;
      for (const auto& [s, access] : store_access_)
        if (!body_.steps[s].per_row || across_) (store_packs(*access, v) ? whole : broken) += 1;
      if (whole == 0) return false;
    }
    return true;
  }
  /// Bytes of an element of the narrowest operand that vectors run along.
  int64_t narrowest() const {
    int64_t bytes = 16;
    for (const Load& load : loads_)
      if ((load.varies & kByElement) && !(load.varies & kByTile))
        bytes = std::min(bytes, byte_size(load.storage, 1));
    for (const auto& [s, access] : store_access_)
      bytes =
          std::min(bytes, byte_size(job_.graph.type(body_.operands[body_.steps[s].slot]).dtype, 1));
    return bytes;
  }
  static bool whole(const Access& access, size_t lane, int64_t v) {
    if (!access.affine || access.strides[lane] != 1 || access.offset % v) return false;
    for (size_t d = 0; d < access.strides.size(); ++d)
      if (d != lane && access.strides[d] % v) return false;
    return true;
  }
  /// A read that jumps from column to column and not from row to row.
  bool turns(const Load& load) const {
    const Expr& expr = exprs_[load.expr];
    if (expr.slot >= stitch::kRowSlot || expr.args[0] != kNoExpr) return false;
    const Access& access = *load_access_.at(load.expr);
    return access.affine && access.strides[lane_] > 1 && access.strides[nest_.rows - 1] == 1 &&
           byte_size(load.storage, 1) <= 4;
  }
  bool store_packs(const Access& access, int64_t v) const { return whole(access, lane_, v); }

  /// Registers of a thread for one row (or one point) of `units` vectors: in all, and at most
  /// between two passes.
  int64_t registers(int64_t units) const;
  int64_t held_at_once(int64_t units) const;
  int64_t registers_of(const Load& load, int64_t units) const;
  int64_t registers_of(const Step& stage, int64_t units) const {
    return units * v_ * std::max<int64_t>(byte_size(body_.stage_types[stage.slot], 1), 4) / 4;
  }

  // ---- loads ---------------------------------------------------------------------------------------------------------------------
  bool packs(const Load& load, int64_t v) const {
    if (turns_ && turns(load)) return false;
    if (load.guarded || !(load.varies & kByElement)) return false;
    if (exprs_[load.expr].slot >= stitch::kTileSlot) return true;
    const Access& access = *load_access_.at(load.expr);
    return access.affine ? whole(access, lane_, v) : computed_whole(exprs_[load.expr], v);
  }
  /// A read at a computed place (a row that is looked up) whose last index is the column.
  bool computed_whole(const Expr& expr, int64_t v) const {
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
  /// Whether an expression is the innermost column itself.
  bool is_lane(ExprId id) const {
    const Expr& expr = exprs_[id];
    return expr.scalar == Scalar::kCoord && dim_of_.count(expr.slot) &&
           dim_of_.at(expr.slot) == lane_ && nest_.dims[lane_].coords.size() == 1;
  }

  int varies_by(int dim) const {
    const int outer = dim < nest_.rows ? kByRow : kByVector;
    return dim == lane_ ? outer | kByElement : outer;
  }
  int varies(ExprId id) {
    if (auto it = varies_.find(id); it != varies_.end()) return it->second;
    const Expr& expr = exprs_[id];
    int result = 0;
    switch (expr.scalar) {
      case Scalar::kCoord: {
        result = dim_of_.count(expr.slot) ? varies_by(dim_of_.at(expr.slot)) : 0;
        break;
      }
      case Scalar::kConst:
        break;
      case Scalar::kAcc:
        result = kByRow | kByPass | (across_ ? kByElement : 0);
        break;
      case Scalar::kLoad:
        if (expr.slot >= stitch::kStatisticSlot) {
          result = kByRow | kByTile;
          break;
        }
        if (expr.slot >= stitch::kTileSlot) {
          result = kByRow | kByVector | kByElement | kByTile;
          break;
        }
        if (expr.slot >= stitch::kStageSlot) {
          result = kByRow | kByVector | kByElement | kByPass;
          break;
        }
        if (expr.slot >= stitch::kRowSlot) {
          result = kByRow | kByPass | (across_ ? kByElement : 0);
          break;
        }
        if (const Access& access = *load_access_.at(id); access.affine) {
          for (size_t d = 0; d < access.strides.size(); ++d)
            if (access.strides[d]) result |= varies_by(static_cast<int>(d));
        } else {
          for (ExprId coord : expr.coords) result |= varies(coord);
        }
        [[fallthrough]];
      default:
        for (ExprId arg : expr.args)
          if (arg != kNoExpr) result |= varies(arg);
    }
    return varies_[id] = result;
  }
  int depth(ExprId id) {
    if (id == kNoExpr) return 0;
    const Expr& expr = exprs_[id];
    int below = 0;
    for (ExprId arg : expr.args) below = std::max(below, depth(arg));
    if (expr.scalar != Scalar::kLoad || expr.slot >= stitch::kRowSlot) return below;
    if (!load_access_.at(id)->affine)
      for (ExprId coord : expr.coords) below = std::max(below, depth(coord));
    return below + 1;
  }
  void find_loads() {
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

  struct Member {
    std::string type, name, sizes;
  };
  /// Which of the three indices an array of values that vary so has.
  struct Indices {
    bool row, unit, element;
  };
  Indices indices(int varies) const {
    if (flat_)
      return {(varies & (kByRow | kByVector | kByElement)) != 0, false, (varies & kByElement) != 0};
    return {(varies & kByRow) != 0, (varies & kByVector) != 0, (varies & kByElement) != 0};
  }
  static std::string at(const Indices& i) {
    return std::string(i.row ? "[q]" : "") + (i.unit ? "[u]" : "");
  }
  static std::string sizes(const Indices& i) {
    return std::string(i.row ? "[R]" : "") + (i.unit ? "[U]" : "");
  }
  static std::string loops(const Indices& i, const std::string& indent) {
    std::string text = indent;
    if (i.row) text += "OBK_EACH(q, R) ";
    if (i.unit) text += "OBK_EACH(u, U) ";
    return text + "{\n";
  }

  /// Loads from memory, those first that others need. `free`: the ones that are the same for all
  /// rows.
  void loads(std::string& out, const std::string& indent, bool free) {
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
  bool is_weight(const Load& load) const {
    const int32_t slot = exprs_[load.expr].slot;
    return slot < stitch::kRowSlot && job_.graph.value(body_.operands[slot]).is_constant();
  }
  void load_loop(const Indices& over, const std::vector<const Load*>& list, std::string& out,
                 const std::string& indent, bool free) {
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
                                       job_.dealt && i.row && !is_weight(*load) ? "once" : "load",
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
  void tile_loads(std::string& out, const std::string& indent) {
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
      // A twin's second half stands beside the first, which is narrower in the last tile of a row
      // that tiles do not divide.
      const std::string beside =
          columns_ % job_.tile_columns ? "(int)(t->c1 - t->c0)" : std::to_string(job_.tile_columns);
      const std::string side = exprs_[load.expr].slot > stitch::kTileSlot ? " + " + beside : "";
      out += loops(i, indent) + fmt::format(
                                    "{0}  l{1}{2} = obk::load_{7}(row[q] - (int)t->r0) * {3} + "
                                    "(col{4} - {5}){6});\n{0}}}\n",
                                    indent, load.expr, at(i), job_.tile_pitch,
                                    flat_ ? "[q]" : "[u]", flat_ ? "(int)t->c0" : "0", side,
                                    job_.planes > 1
                                        ? fmt::format("sums<V, {}>(tile, other, ", job_.planes)
                                        : "pack<V>(tile, ");
      loaded_.insert(load.expr);
    }
  }

  // ---- points --------------------------------------------------------------------------------------------------------------------
  void columns_text(std::string& out) const;
  void points(std::string& out) {
    const std::string indent = "    ";
    members_.push_back({"int", "row", "[R]"});
    members_.push_back({"bool", "there", "[R]"});
    if (flat_) members_.push_back({"int", "col", "[R]"});
    for (int d = 0; d < nest_.rows; ++d) members_.push_back({"int", fmt::format("i{}", d), "[R]"});
    if (flat_) members_.push_back({"int", fmt::format("j{}", lane_), "[R]"});
    out += indent + "OBK_EACH(q, R) {\n";
    if (flat_) {
      const bool one = flies_ahead();
      out += fmt::format(
          "      const int n = {}q * OBK_ALL_THREADS + OBK_THREAD, r = n / {}, c = (int)t->c0 + n "
          "% {} * V;\n",
          one ? "" : "base + ", vectors_, vectors_);
      out += "      there[q] = r < (int)(t->r1 - t->r0) && c < (int)t->c1;\n";
      out +=
          "      row[q] = there[q] ? (int)t->r0 + r : (int)t->r0, col[q] = there[q] ? c : "
          "(int)t->c0;\n";
      out += fmt::format("      j{}[q] = col[q];\n", lane_);
    } else {
      // Groups of one warp go round together: they exchange values.
      out += fmt::format("      const int r = base + {}q;\n",
                         lanes_ < kWarp ? fmt::format("OBK_GROUP({}) * R + ", lanes_) : "");
      out += "      there[q] = r < (int)t->r1;\n      row[q] = there[q] ? r : (int)t->r1 - 1;\n";
    }
    if (nest_.rows > 0) out += "      int r_ = row[q];\n";
    for (int d = nest_.rows - 1; d >= 0; --d) {
      if (d == 0)
        out += "      i0[q] = r_;\n";
      else
        out += fmt::format("      i{0}[q] = r_ % {1}, r_ /= {1};\n", d, nest_.dims[d].extent);
    }
    out += indent + "}\n";
  }
  static std::string unindented(const std::string& text);

  // ---- expressions ---------------------------------------------------------------------------------------------------------------
  enum Level { kOnce = 0, kElement = 1 };
  void begin() {
    for (auto& names : named_) names.clear();
    for (auto& lines : lines_) lines.clear();
    statements_.clear(), element_statements_.clear(), staged_here_.clear(), placed_.clear(),
        divisors_.clear();
  }
  /// Closes the loops that `loops` has opened: what is known once a vector, then what each element
  /// has of its own.
  void finish_loop(std::string& out, const std::string& indent, const std::string& after = "") {
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
  std::string coordinate(int dim, bool element) const {
    if (dim < nest_.rows)
      return dim == lane_ && element ? fmt::format("(i{}[q] + v)", dim)
                                     : fmt::format("i{}[q]", dim);
    const std::string at = fmt::format("j{}{}", dim, flat_ ? "[q]" : "[u]");
    return dim == lane_ && element ? "(" + at + " + v)" : at;
  }
  std::string value(ExprId id) {
    const Expr& expr = exprs_[id];
    if (expr.scalar == Scalar::kConst) return constant(expr);
    if (expr.scalar == Scalar::kAcc) return acc_;
    if (expr.scalar == Scalar::kLoad && expr.slot >= stitch::kStageSlot &&
        expr.slot < stitch::kTileSlot)
      if (auto it = staged_here_.find(expr.slot - stitch::kStageSlot); it != staged_here_.end())
        return it->second;
    const Level level = varies(id) & kByElement ? kElement : kOnce;
    if (auto it = named_[level].find(id); it != named_[level].end()) return it->second;
    if (level == kElement)
      if (auto it = named_[kOnce].find(id); it != named_[kOnce].end()) return it->second;
    std::string text;
    if (expr.scalar == Scalar::kCoord) {
      if (!dim_of_.count(expr.slot)) return "((int)0)";
      text = coordinate(dim_of_.at(expr.slot), true);
    } else if (expr.scalar == Scalar::kLoad) {
      text = loaded(id, expr);
    } else if (text = near(id); text.empty()) {
      const bool few =
          few_bits(id);  // of an index: 32 are enough, and what computes with them is half as long
      std::string args[3];
      for (int a = 0; a < 3; ++a)
        if (expr.args[a] != kNoExpr) args[a] = few ? value(expr.args[a]) : wide_value(expr.args[a]);
      text = scalar_text(exprs_, expr, args, few);
    }
    const std::string name = fmt::format("e{}", names_++), type = arithmetic_name(expr.dtype);
    lines_[level].push_back(fmt::format(
        "const {} {} = {};", few_bits(id) && type == "int64_t" ? "int" : type, name, text));
    named_[level][id] = name;
    return name;
  }
  ExprId one_plus_erf(const Expr& expr) const;
  std::vector<bool> made_from(ExprId id) const;
  bool rounding_hides(ExprId id) const;
  /// A function that is as good as the exact one for results of 16 bits, and shorter; empty: there
  /// is none.
  std::string near(ExprId id);
  /// An index in 64 bits, where 32 do not hold what is made of it.
  std::string wide_value(ExprId id) {
    const std::string text = value(id);
    return few_bits(id) && exprs_[id].dtype == DType::i64 ? "(int64_t)" + text : text;
  }
  /// The least and the largest value of an integer that coordinates and constants make; none: it
  /// depends on data, or is large.
  using Range = std::pair<int64_t, int64_t>;
  std::optional<Range> range(ExprId id) {
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
  bool few_bits(ExprId id) {
    const Expr& expr = exprs_[id];
    if (expr.scalar == Scalar::kLt || expr.scalar == Scalar::kLe || expr.scalar == Scalar::kEq)
      return range(expr.args[0]) && range(expr.args[1]);
    return range(id).has_value();
  }
  std::string constant(const Expr& expr) {
    if (expr.dtype == DType::i64 && std::abs(expr.integer / 2) <= 1 << 29)
      return fmt::format("((int){})", expr.integer);
    if (is_float(expr.dtype)) return real_literal(expr.dtype, expr.real);
    if (expr.dtype == DType::b1) return expr.integer ? "true" : "false";
    return fmt::format("(({}){})", arithmetic_name(expr.dtype),
                       expr.integer == INT64_MIN
                           ? "INT64_MIN"
                           : std::to_string(expr.integer) + (expr.dtype == DType::u64 ? "u" : ""));
  }
  std::string loaded(ExprId id, const Expr& expr) {
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
  std::string place(const Access& access, const Expr& expr, bool element) {
    if (!access.affine)
      return offset_text(job_.layouts[body_.operands[expr.slot]], expr.coords, element);
    return affine_text(access, element);
  }
  std::string affine_text(const Access& access, bool element) const {
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
  std::string offset_text(const stitch::Layout& layout, const std::vector<ExprId>& coords,
                          bool element = true) {
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

  // ---- steps ---------------------------------------------------------------------------------------------------------------------
  DType stored_type(const Step& step) const {
    return job_.graph.type(body_.operands[step.slot]).dtype;
  }

  void row_stores(int pass, std::string& out, const std::string& indent) {
    row_values(pass, out, indent);
    std::string arrays, after;
    for (size_t s = 0; s < body_.steps.size(); ++s) {
      const Step& step = body_.steps[s];
      if (step.kind != StepKind::kStore || !step.per_row || step.pass != pass) continue;
      if (across_) {
        store(s, "there[q] && slice == 0", indent, arrays, after);
        continue;
      }  // one warp of many is enough
      const Access& access = *store_access_.at(static_cast<int>(s));
      const std::string stored = value(step.expr);
      const std::string where = access.affine
                                    ? affine_text(access, false)
                                    : offset_text(job_.layouts[body_.operands[step.slot]], step.at);
      statements_.push_back(fmt::format(
          "if (there[q] && {}) obk::store({}, {}, ({}){});", flat_ ? "col[q] == 0" : "lane == 0",
          job_.pointer(step.slot, true), where, arithmetic_name(stored_type(step)), stored));
    }
    if (statements_.empty() && element_statements_.empty()) return;
    out += indent + "OBK_EACH(q, R) {\n" + arrays;
    finish_loop(out, indent, after);
  }
  /// Values that a row has one of, by no reduction.
  void row_values(int pass, std::string& out, const std::string& indent);
  /// A value of each element, as a pack where the place allows it: `arrays` before the elements,
  /// `after` behind them.
  void store(size_t s, const std::string& condition, const std::string& indent, std::string& arrays,
             std::string& after) {
    const Step& step = body_.steps[s];
    const Access& access = *store_access_.at(static_cast<int>(s));
    const DType dtype = stored_type(step);
    const std::string array = fmt::format("o{}", s), value_of = value(step.expr);
    std::string call;
    if (store_packs(access, v_)) {
      const std::string where = affine_text(access, false);
      call = fmt::format("if ({}) {}{}, {}, {});", condition,
                         job_.gives_to_all(step) ? "OBK_GIVE_PACK(V, " : "obk::store_pack<V>(",
                         job_.pointer(step.slot, true), where, array);
      if (flat_ && body_.operands[step.slot] == job_.partials && v_ <= stitch::kPartialColumns &&
          slots_ == 0) {
        call += fmt::format("\n{}  obk::give_partials<{}>(partials, ({}) / {}, {}, {});", indent,
                            storage_name(dtype), where, stitch::kPartialColumns, condition, array);
        gives_partials_ = true;
      }
    } else {
      const stitch::Layout& layout = job_.layouts[body_.operands[step.slot]];
      const std::string where =
          access.affine ? affine_text(access, true) : offset_text(layout, step.at);
      element_statements_.push_back(fmt::format("if ({}) obk::store({}, {}, ({}){});", condition,
                                                job_.pointer(step.slot, true), where,
                                                arithmetic_name(dtype), value_of));
      return;
    }
    arrays += fmt::format("{}  {} {}[V];\n", indent, arithmetic_name(dtype), array);
    element_statements_.push_back(
        fmt::format("{}[v] = ({}){};", array, arithmetic_name(dtype), value_of));
    after += indent + "  " + call + "\n";
  }

  /// One walk over the batch: every reduction, staged value and store of this pass.
  void segment(int pass, std::string& out, const std::string& indent, std::string* walk = nullptr) {
    std::vector<size_t> steps;
    for (size_t s = 0; s < body_.steps.size(); ++s)
      if (!body_.steps[s].per_row && body_.steps[s].pass == pass) steps.push_back(s);
    if (steps.empty()) return;
    begin();
    std::string declared, after, arrays, outside;
    std::vector<const Step*> reductions;
    for (size_t s : steps) {
      const Step& step = body_.steps[s];
      if (step.kind == StepKind::kStore) {
        store(s, across_ || !flat_ ? "there[q] && here[u]" : "there[q]", indent, arrays, after);
        continue;
      }
      const std::string value_of = value(step.expr);
      if (step.kind == StepKind::kStage) {
        declared += fmt::format("{}{} g{}[R][U][V];\n", indent,
                                arithmetic_name(body_.stage_types[step.slot]), step.slot);
        element_statements_.push_back(fmt::format("g{}[q][u][v] = {};", step.slot, value_of));
        staged_here_[step.slot] = value_of;
        continue;
      }
      const std::string accumulator = fmt::format("v{}[q]{}", step.slot, across_ ? "[v]" : "");
      (across_ ? outside : declared) +=
          fmt::format("{0}{1} v{2}[R]{3};\n{0}OBK_EACH(q, R) {4}v{2}[q]{5} = {6};\n",
                      across_ ? "    " : indent, accumulator_name(exprs_[step.expr].dtype),
                      step.slot, across_ ? "[V]" : "", across_ ? "OBK_EACH(v, V) " : "",
                      across_ ? "[v]" : "", identity_text(step.combine, exprs_[step.expr].dtype));
      element_statements_.push_back(
          fmt::format("if (here[u]) {}",
                      update_text(step.combine, accumulator, value_of, exprs_[step.expr].dtype)));
      reductions.push_back(&step);
    }
    for (ExprId load : unpacked_anew(pass))
      declared += fmt::format("{}OBK_EACH(q, R) OBK_EACH(u, U) obk::unpack_anew(l{}[q][u]);\n",
                              indent, load);
    std::string body = declared + indent + "OBK_EACH(q, R) OBK_EACH(u, U) {\n" + arrays;
    finish_loop(body, indent, after);
    if (walk)
      out += outside + *walk + body + "    }\n";
    else
      out += body;
    for (const Step* step : reductions) end_reduction(*step, out, walk ? "    " : indent);
  }

  void end_reduction(const Step& step, std::string& out, const std::string& indent) {
    begin();
    const std::string type = arithmetic_name(body_.row_types[step.slot]);
    if (across_) {
      out += fmt::format(
          "{0}{1} w{2}[R][V];\n{0}OBK_JOIN_SLICES({3}, {4}, v{2});\n{0}OBK_EACH(q, R) {{\n", indent,
          type, step.slot, slices(), join_name(step.combine));
      acc_ = fmt::format("v{}[q][v]", step.slot);
      const std::string result = value(step.finish);
      element_statements_.push_back(fmt::format("w{}[q][v] = ({}){};", step.slot, type, result));
      return finish_loop(out, indent);
    }
    out += fmt::format("{}{} w{}[R];\n", indent, type, step.slot);
    out += indent + "OBK_EACH(q, R) {\n";
    out += fmt::format("{}  v{}[q] = OBK_JOINED({}, {}, v{}[q]);\n", indent, step.slot, lanes_,
                       join_name(step.combine), step.slot);
    acc_ = fmt::format("v{}[q]", step.slot);
    const std::string result = value(step.finish);
    statements_.push_back(fmt::format("w{}[q] = ({}){};", step.slot, type, result));
    finish_loop(out, indent);
  }

  void hold_back();
  std::vector<ExprId> unpacked_anew(int pass) const;
  bool read_from(int pass, ExprId part) const;
  bool may_wait(const Load& load) const;
  bool take_slots(int64_t bytes, int64_t batches);
  bool plan_slots(int64_t all);
  void plan_slots_across(int64_t here);
  VectorText in_slots();
  std::string asked(const std::string& indent, const std::string& index, const std::string& each);
  std::string taken(const std::string& indent, const std::string& index, const std::string& each);
  VectorText across();
  VectorText turned();
  void need(ExprId id);

  const VectorJob& job_;
  const stitch::Body& body_;
  const ops::Exprs& exprs_;
  const schedule::Nest& nest_;
  bool flat_ = false, across_ = false, turns_ = false, in_walk_ = false, only_weights_ = false;
  std::set<ExprId> needed_, held_,
      placed_;  // of a walk; loads that are made where they are used; of this loop
  int lane_ = 0, names_ = 0;
  int64_t columns_ = 0, vectors_ = 0, v_ = 1, lanes_ = kWarp, batches_ = 1, points_ = 1;
  std::string rows_text_, units_text_, acc_;
  std::vector<Load> loads_;
  std::vector<Member> members_;  // of a batch: what its loads fill
  bool overlaps_ = false;        // batches follow each other
  bool gives_partials_ = false;
  int64_t budget() const { return job_.dealt ? kFewRegisters : kMostRegisters; }
  int64_t words_ = 0, slots_ = 0,
          slot_bytes_ =
              0;  // registers of a batch; batches in fast memory that are asked for ahead, 0: none
  std::set<ExprId> loaded_;
  std::map<ExprId, int> varies_;
  std::map<int, int> dim_of_;
  std::map<ExprId, const Access*> load_access_;
  std::map<int, const Access*> store_access_;
  std::map<ExprId, std::string> named_[2];
  std::map<ExprId, std::optional<Range>> ranges_;
  std::map<int, std::string> staged_here_;  // in this walk: not read back
  std::map<ExprId, std::string> divisors_;  // of a row
  std::vector<std::string> lines_[2], statements_, element_statements_;
};

}  // namespace obelisk::codegen

/// codegen/vectors/emitter.h — what writes the rows of one body in vectors; codegen/vectors.h says
/// what that is. Each of the files beside this one decides one thing and defines what stands here
/// under its name.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "codegen/vectors.h"

namespace obelisk::codegen {

using ops::Combine;
using ops::Expr;
using ops::ExprId;
using ops::kNoExpr;
using ops::Scalar;
using schedule::Access;
using stitch::Step;
using stitch::StepKind;

using namespace kernels::vector_bounds;

/// What a value varies with: bits. Of the innermost dimension, which vectors run along, its side as
/// well.
enum Varies {
  kByRow = 1,
  kByVector = 2,
  kByElement = 4,
  kByPass = 8 /* known only after a reduction */,
  kByTile = 16
};

/// Whether `part` is among what `id` is made of.
bool made_of(const ops::Exprs& exprs, ExprId id, const Expr& part);

class VectorEmitter {
 public:
  explicit VectorEmitter(const VectorJob& job)
      : job_(job), body_(job.body), exprs_(job.body.exprs), nest_(job.nest) {}

  std::optional<VectorText> run();
  /// CTAs that share an SM in a grid, as many as registers leave room for.
  int ctas_by_registers() const;

 private:
  struct Load {
    ExprId expr = kNoExpr;
    DType storage = DType::f32;
    int varies = 0;
    int depth = 0;         // loads that its place needs
    bool guarded = false;  // by a condition of its own for each element
  };
  struct Member {
    std::string type, name, sizes;
  };
  /// Which of the three indices an array of values that vary so has.
  struct Indices {
    bool row, unit, element;
  };
  /// Of a name: the same for a vector; an element's own; the first element's own.
  enum Level { kOnce = 0, kElement = 1, kFirst = 2 };
  /// The least and the largest value of an integer that coordinates and constants make; none: it
  /// depends on data, or is large.
  using Range = std::pair<int64_t, int64_t>;

  // ---- plan.cpp: whether and how
  bool plan();
  int64_t lanes_of(int64_t vectors) const;
  bool divides(int64_t v) const;
  int64_t narrowest() const;
  bool turns(const Load& load) const;
  /// Across: threads that share the columns of a row, by their number alone.
  int64_t slices() const { return threads_of_columns(columns_); }
  /// Columns that a task spans at most.
  int64_t wide() const { return std::min(job_.tile_columns, columns_); }
  static bool whole(const Access& access, size_t lane, int64_t v) {
    if (!access.affine || access.strides[lane] != 1 || access.offset % v) return false;
    for (size_t d = 0; d < access.strides.size(); ++d)
      if (d != lane && access.strides[d] % v) return false;
    return true;
  }
  bool store_packs(const Access& access, int64_t v) const { return whole(access, lane_, v); }
  int64_t budget() const { return job_.grid ? kFewRegisters : kMostRegisters; }
  bool keep_columns();
  /// Points of a tile, in whichever order threads take them.
  bool flat_or_down() const { return flat_ || keeps_columns_; }

  // ---- dependence.cpp: what a value varies with
  bool is_lane(ExprId id) const;
  int varies_by(int dim) const;
  struct VariesRules;
  int varies(ExprId id);
  int depth(ExprId id);
  /// Whether all elements of a vector of `v`, which begins at a multiple of `v`, have one value
  /// (which part of a concatenation a channel lies in, where parts begin at multiples of `v`).
  bool same_in_vector(ExprId id, int64_t v) const;
  std::optional<int64_t> behind_lane(ExprId id) const;

  // ---- registers.cpp
  /// Registers of a thread for one row (or one point) of `units` vectors: in all, and at most
  /// between two passes.
  int64_t registers(int64_t units) const;
  int64_t index_words() const;
  int64_t held_at_once(int64_t units) const;
  int64_t registers_of(const Load& load, int64_t units) const;
  int64_t column_registers() const;
  int64_t registers_of(const Step& stage, int64_t units) const {
    return units * v_ * std::max<int64_t>(byte_size(body_.stage_types[stage.slot], 1), 4) / 4;
  }
  std::vector<ExprId> unpacked_anew(int pass) const;
  bool read_from(int pass, ExprId part) const;

  // ---- loads.cpp
  bool packs(const Load& load, int64_t v) const;
  bool computed_whole(const Expr& expr, int64_t v) const;
  void find_loads();
  void loads(std::string& out, const std::string& indent, bool free);
  bool is_weight(const Load& load) const;
  void load_loop(const Indices& over, const std::vector<const Load*>& list, std::string& out,
                 const std::string& indent, bool free);
  void tile_loads(std::string& out, const std::string& indent);
  /// Whether what an epilogue reads beside the tile is requested before the tile is computed: one
  /// batch of few registers.
  bool flies_ahead() const;
  void hold_back();
  /// Whether what a thread loads once for all its rows has room beside the sums of the tile.
  bool columns_fit_ahead() const {
    return !keeps_columns_ || column_registers() <= job_.most_ahead;
  }
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

  // ---- expressions.cpp
  void begin();
  void finish_loop(std::string& out, const std::string& indent, const std::string& after = "");
  std::string coordinate(int dim, bool element) const;
  std::string value(ExprId id);
  std::string wide_value(ExprId id);
  std::string constant(const Expr& expr);
  std::string loaded(ExprId id, const Expr& expr);
  std::string place(const Access& access, const Expr& expr, bool element);
  std::string affine_text(const Access& access, bool element) const;
  std::string offset_text(const stitch::Layout& layout, const std::vector<ExprId>& coords,
                          bool element = true);

  // ---- narrow_indices.cpp
  std::optional<Range> range(ExprId id);
  bool few_bits(ExprId id);

  // ---- short_forms.cpp
  ExprId one_plus_erf(const Expr& expr) const;
  std::vector<bool> made_from(ExprId id) const;
  bool rounding_hides(ExprId id) const;
  /// A function that is as good as the exact one for results of 16 bits, and shorter; empty: there
  /// is none.
  std::string approximate(ExprId id);

  // ---- steps.cpp
  void row_stores(int pass, std::string& out, const std::string& indent);
  void store(size_t s, const std::string& condition, const std::string& indent, std::string& arrays,
             std::string& after);
  void segment(int pass, std::string& out, const std::string& indent, std::string* walk = nullptr);
  void end_reduction(const Step& step, std::string& out, const std::string& indent);
  /// Values that a row has one of, by no reduction.
  void row_values(int pass, std::string& out, const std::string& indent);
  DType stored_type(const Step& step) const {
    return job_.graph.type(body_.operands[step.slot]).dtype;
  }

  // ---- batches.cpp: the ways *rows* and *flat*
  VectorText in_batches();
  std::string declared(const std::string& indent) const;
  std::string aliases(const std::string& indent, const std::string& of) const;
  void points(std::string& out);
  void prefetches(std::string& out);
  void columns_text(std::string& out) const;
  /// The loads of the next batch are requested before this one is computed.
  std::string overlapped(const std::string& loads) const;
  static std::string unindented(const std::string& text);
  std::string first_text() const {
    return flat_or_down()   ? "0"
           : lanes_ < kWarp ? "(int)t->r0"
                            : fmt::format("(int)t->r0 + OBK_GROUP({}) * R", lanes_);
  }
  std::string end_text() const {
    return flat_            ? fmt::format("OBK_COUNT_POINTS(t, {})", vectors_)
           : keeps_columns_ ? "(int)(t->r1 - t->r0)"
                            : "(int)t->r1";
  }
  std::string step_text() const {
    return flat_ ? "R * OBK_ALL_THREADS" : fmt::format("OBK_GROUPS({}) * R", lanes_);
  }
  std::string loop_head(const std::string& indent) const {
    return fmt::format("{}  for (int base = {}; base < {}; base += {}) {{\n", indent, first_text(),
                       end_text(), step_text());
  }

  // ---- across.cpp, transposed.cpp: the other two
  VectorText across();
  VectorText transposed();
  void need(ExprId id);

  // ---- async_copies.cpp: rows that are requested some batches ahead
  bool may_wait(const Load& load) const;
  bool take_slots(int64_t bytes, int64_t batches);
  bool plan_slots(int64_t all);
  void plan_slots_across(int64_t here);
  VectorText in_slots();
  std::string async_loads(const std::string& indent, const std::string& index,
                          const std::string& each);
  std::string taken(const std::string& indent, const std::string& index, const std::string& each);

  const VectorJob& job_;
  const stitch::Body& body_;
  const ops::Exprs& exprs_;
  const schedule::Nest& nest_;
  bool flat_ = false, across_ = false, transposes_ = false, in_walk_ = false, only_weights_ = false;
  bool keeps_columns_ = false;  // flat, but each thread goes down its own columns
  std::set<ExprId> needed_, held_,
      placed_;  // of a walk; loads that are made where they are used; of this loop
  int lane_ = 0, names_ = 0;
  int64_t columns_ = 0, vectors_ = 0, v_ = 1, lanes_ = kWarp, batches_ = 1, points_ = 1;
  std::string rows_text_, units_text_, acc_;
  std::vector<Load> loads_;
  std::vector<Member> members_;  // of a batch: what its loads fill
  bool overlaps_ = false;        // batches follow each other
  bool gives_partials_ = false;
  int64_t
      words_ = 0,
      slots_ = 0,
      slot_bytes_ =
          0;  // registers of a batch; batches in scratchpad memory that are loaded ahead, 0: none
  std::set<ExprId> loaded_;
  std::map<ExprId, int> varies_;
  std::map<int, int> dim_of_;
  std::map<ExprId, const Access*> load_access_;
  std::map<int, const Access*> store_access_;
  bool of_first_ = false;  // value() is that of the vector's first element
  std::map<ExprId, std::string> named_[3];
  std::map<ExprId, std::optional<Range>> ranges_;
  std::map<int, std::string> staged_here_;  // in this walk: not read back
  std::map<ExprId, std::string> divisors_;  // of a row
  std::vector<std::string> lines_[2], statements_, element_statements_;
};

}  // namespace obelisk::codegen

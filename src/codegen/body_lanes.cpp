// The rows of a body lane by lane: loops over rows, passes, outer columns, lanes.
#include <algorithm>

#include "codegen/body_emitter.h"
#include "codegen/reductions.h"
#include "codegen/scalars.h"

namespace obelisk::codegen {

void BodyEmitter::rows() {
  using namespace kernels::vector_bounds;
  if (tiles_.vectors && !nest_.lanes_in_rows) {
    // A row of one element whose value no lanes join is a thread's.
    const bool joins =
        lane_ >= 0 && std::any_of(body_.steps.begin(), body_.steps.end(),
                                  [](const Step& step) { return step.kind == StepKind::kReduce; });
    const int64_t count = nest_.column_count();
    const bool alone = count == 1 && body_.staged == 0 && !joins;
    out_ += fmt::format("  OBK_SHARE_ROWS({});\n", alone                     ? 1
                                                   : count >= kLongRowByLane ? kThreads
                                                                             : kWarp);
  }
  if (nest_.lanes_in_rows) {
    out_ += fmt::format("  OBK_FOR_ROW_BLOCKS(r, n, {}) {{\n", extent(lane_));
    out_ += decode("r", "    ", false);
  } else {
    out_ += "  OBK_FOR_ROWS(r) {\n";
    out_ += decode("r", "    ", true);
  }
  int last = 0;
  for (const Step& step : body_.steps) last = std::max(last, step.pass);
  for (int pass = 0; pass <= last; ++pass) {
    row_stores(pass);
    segment(pass);
  }
  out_ += "  }\n";
}

/// What a row has one of: values that no reduction gives, then stores.
void BodyEmitter::row_stores(int pass) {
  begin_segment();
  std::vector<std::string> statements;
  for (size_t s = 0; s < body_.steps.size(); ++s) {
    const Step& step = body_.steps[s];
    if (!step.per_row || step.pass != pass) continue;
    if (step.kind != StepKind::kRow) {
      statements.push_back(store(s));
      continue;
    }
    const std::string given = value(step.expr);
    line(kRow, fmt::format("const {0} w{1} = ({0}){2};",
                           arithmetic_name(body_.row_types[step.slot]), step.slot, given));
  }
  CHECK(lines_[kColumn].empty(), "a row's store depends on a column");
  flush(kRow, "    ");
  if (statements.empty()) return;
  const std::string indent = nest_.lanes_in_rows ? "      " : "    ";
  if (nest_.lanes_in_rows)
    out_ +=
        fmt::format("    OBK_FOR_BLOCK(k, n) {{\n      const int64_t {0} = lane0 + k; (void){0};\n",
                    var(lane_));
  flush(kLane, indent);
  const char* first = group_.kind == GroupKind::kProduct
                          ? "if (t->c0 == 0) "
                          : "";  // of the tiles of a row one stores it
  for (const std::string& statement : statements)
    out_ += fmt::format("{}{}{{ {} }}\n", indent, first, statement);
  if (nest_.lanes_in_rows) out_ += "    }\n";
}

std::string BodyEmitter::store(size_t s) {
  const Step& step = body_.steps[s];
  const Access& access = *store_access_.at(static_cast<int>(s));
  const std::string stored = value(step.expr);
  const stitch::Layout& layout = (*layouts_)[body_.operands[step.slot]];
  const DType dtype = graph_.type(body_.operands[step.slot]).dtype;
  const std::string at = access.affine
                             ? affine_offset(access, fmt::format("s{}", s), deepest(access))
                             : offset_text(layout, step.at);
  return fmt::format("obk::store({}, {}, ({}){});", pointer(step.slot, true), at.empty() ? "0" : at,
                     arithmetic_name(dtype), stored);
}

BodyEmitter::Level BodyEmitter::deepest(const Access& access) const {
  int deep = kRow;
  for (size_t d = 0; d < access.strides.size(); ++d)
    if (access.strides[d]) deep = std::max<int>(deep, level_of_dim(static_cast<int>(d)));
  return static_cast<Level>(deep);
}

/// A row's value: a scalar, or one of a block of rows.
std::string BodyEmitter::held(std::string_view name, int slot) const {
  return nest_.lanes_in_rows ? fmt::format("OBK_AT({}{}, k)", name, slot)
                             : fmt::format("{}{}", name, slot);
}

void BodyEmitter::begin_segment() {
  for (int at : {kColumn, kLane}) named_[at].clear(), offsets_[at].clear();
  for (auto& lines : lines_) lines.clear();
}

void BodyEmitter::flush(Level at, const std::string& indent) {
  for (const std::string& text : lines_[at]) out_ += indent + text + "\n";
  lines_[at].clear();
}

/// One walk over the columns: every reduction, staged value and store of this pass.
void BodyEmitter::segment(int pass) {
  std::vector<size_t> steps;
  for (size_t s = 0; s < body_.steps.size(); ++s)
    if (!body_.steps[s].per_row && body_.steps[s].pass == pass) steps.push_back(s);
  if (steps.empty()) return;
  begin_segment();
  std::vector<std::string> statements;
  std::string clauses, before, after;
  std::vector<const Step*> reductions;
  for (size_t s : steps) {
    const Step& step = body_.steps[s];
    if (step.kind == StepKind::kStore) {
      statements.push_back(store(s));
      lane_statement(statements.back());
    } else if (step.kind == StepKind::kStage) {
      const std::string staged = value(step.expr);
      lane_statement(fmt::format("g{}[stage_at] = {};", step.slot, staged));
    } else {
      const std::string term = value(step.expr);
      lane_statement(update(step, term, clauses));
      reductions.push_back(&step);
    }
  }
  const std::string indent = "    ";
  flush(kRow, indent);
  for (const Step* step : reductions) begin_reduction(*step, indent);
  columns(indent, clauses);
  for (const Step* step : reductions) end_reduction(*step, indent);
}

std::string BodyEmitter::update(const Step& step, const std::string& term,
                                std::string& clauses) const {
  const std::string acc = held("v", step.slot);
  if (!nest_.lanes_in_rows && lane_ >= 0)
    if (const std::string_view op = clause_name(step.combine); !op.empty())
      clauses += fmt::format(" reduction({} : v{})", op, step.slot);
  return update_text(step.combine, acc, term, exprs_[step.expr].dtype);
}

void BodyEmitter::begin_reduction(const Step& step, const std::string& indent) {
  if (nest_.lanes_in_rows) {
    out_ += fmt::format("{0}OBK_BLOCK_VALUES({1}, v{2}); OBK_BLOCK_VALUES({3}, w{2});\n", indent,
                        accumulator_name(exprs_[step.expr].dtype), step.slot,
                        arithmetic_name(body_.row_types[step.slot]));
    out_ += fmt::format("{}OBK_FOR_BLOCK(k, n) {{ OBK_AT(v{}, k) = {}; }}\n", indent, step.slot,
                        identity_text(step.combine, exprs_[step.expr].dtype));
  } else {
    out_ += fmt::format("{}{} v{} = {};\n", indent, accumulator_name(exprs_[step.expr].dtype),
                        step.slot, identity_text(step.combine, exprs_[step.expr].dtype));
  }
}

void BodyEmitter::end_reduction(const Step& step, const std::string& indent) {
  begin_segment();
  shapes_ = true;
  const std::string type = arithmetic_name(body_.row_types[step.slot]);
  acc_ = held("v", step.slot);
  if (nest_.lanes_in_rows) {
    named_[kRow].swap(held_rows_);  // finish is evaluated per lane; nothing of it is a row's
    finish_levels(step.finish);
    const std::string result = value(step.finish);
    flush(kRow, indent);
    out_ += indent + "OBK_FOR_BLOCK(k, n) {\n";
    out_ += fmt::format("{}  const int64_t {} = lane0 + k; (void){};\n", indent, var(lane_),
                        var(lane_));
    flush(kLane, indent + "  ");
    out_ += fmt::format("{}  OBK_AT(w{}, k) = ({}){};\n{}}}\n", indent, step.slot, type, result,
                        indent);
    named_[kRow].swap(held_rows_);
  } else {
    if (lane_ >= 0)
      out_ += fmt::format("{}v{} = {}(v{});\n", indent, step.slot, combine_lanes(step.combine),
                          step.slot);
    const std::string result = value(step.finish);
    flush(kRow, indent);
    out_ += fmt::format("{}const {} w{} = ({}){};\n", indent, type, step.slot, type, result);
    // The accumulator's expression ids are this reduction's alone.
    named_[kRow].erase(step.finish);
  }
  forget(step.finish);
  shapes_ = false;
}

/// In lane mode everything that depends on the accumulator is computed per lane.
bool BodyEmitter::finish_levels(ExprId id) {
  const Expr& expr = exprs_[id];
  bool depends = expr.scalar == Scalar::kAcc;
  for (ExprId arg : expr.args)
    if (arg != kNoExpr) depends = finish_levels(arg) || depends;
  if (depends && expr.scalar != Scalar::kAcc) level_[id] = kLane;
  return depends;
}

/// Names over an accumulator must not be reused by the next reduction's finish, which may share
/// the expression.
void BodyEmitter::forget(ExprId id) {
  const Expr& expr = exprs_[id];
  for (auto& named : named_) named.erase(id);
  for (ExprId arg : expr.args)
    if (arg != kNoExpr) forget(arg);
}

void BodyEmitter::columns(const std::string& outer, const std::string& clauses) {
  std::string indent = outer + "  ";
  std::string closing = outer + "}\n";
  out_ += outer + "{\n";
  const int first = nest_.rows, last = static_cast<int>(nest_.dims.size());
  const bool stages = body_.staged > 0;
  const bool tile = group_.kind != GroupKind::kStitched;
  for (int d = first; d < last; ++d) {
    if (d == lane_) continue;
    out_ +=
        fmt::format("{0}for (int64_t {1} = 0; {1} < {2}; ++{1}) {{\n", indent, var(d), extent(d));
    closing = indent + "}\n" + closing;
    indent += "  ";
  }
  flush(kColumn, indent);
  if (nest_.lanes_in_rows) {
    out_ += indent + "OBK_FOR_BLOCK(k, n) {\n";
    out_ += fmt::format("{}  const int64_t {} = lane0 + k; (void){};\n", indent, var(lane_),
                        var(lane_));
    flush(kLane, indent + "  ");
    out_ += indent + "}\n";
  } else if (lane_ < 0) {
    out_ += indent + "{\n";
    if (stages) out_ += indent + "  const int64_t stage_at = 0;\n";
    if (tile)
      out_ += fmt::format("{}  const int64_t tile_at = (r - t->r0) * {};\n", indent, pitch_);
    flush(kLane, indent + "  ");
    out_ += indent + "}\n";
  } else {
    std::string stage_base = "0";
    for (int d = first; d < lane_; ++d)
      stage_base = fmt::format("({}) * {} + {}", stage_base, extent(d), var(d));
    if (stages)
      out_ +=
          fmt::format("{}const int64_t stage0 = ({}) * {};\n", indent, stage_base, extent(lane_));
    if (tile)
      out_ += fmt::format("{}const int64_t tile0 = (r - t->r0) * {} - t->c0;\n", indent, pitch_);
    const std::string low = nest_.cut_columns ? "t->c0" : "0",
                      high = nest_.cut_columns ? "t->c1" : extent(lane_);
    if (clauses.empty())
      out_ += fmt::format("{}OBK_FOR_LANES({}, {}, {}) {{\n", indent, var(lane_), low, high);
    else
      out_ += fmt::format("{0}OBK_LANES_REDUCE({1})\n{0}OBK_FOR_LANES_OF({2}, {3}, {4}) {{\n",
                          indent, clauses.substr(1), var(lane_), low, high);
    if (stages)
      out_ += fmt::format("{}  const int64_t stage_at = stage0 + {};\n", indent, var(lane_));
    if (tile) out_ += fmt::format("{}  const int64_t tile_at = tile0 + {};\n", indent, var(lane_));
    flush(kLane, indent + "  ");
    out_ += indent + "}\n";
  }
  out_ += closing;
}

}  // namespace obelisk::codegen

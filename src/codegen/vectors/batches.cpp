// Batch after batch of rows, or of points where nothing is reduced: the ways *rows* and *flat*.
#include <algorithm>

#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

VectorText VectorEmitter::in_batches() {
  VectorText text;
  std::string& ahead = text.ahead;
  ahead += fmt::format("  constexpr int R = {}, U = {}, V = {};\n", rows_text_, units_text_, v_);
  if (!flat_) ahead += fmt::format("  const int lane = OBK_LANE({});\n", lanes_);
  const bool one_batch = flies_ahead();
  columns_text(ahead);
  if (job_.grid) hold_back();
  only_weights_ = !job_.begin.empty();
  const bool at_once = columns_fit_ahead();  // else they are loaded behind the tile
  if (at_once) loads(ahead, "  ", true);
  if (only_weights_ && flat_or_down() && !one_batch) prefetches(ahead);
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
    loads(at_once ? ahead : text.rows, "  ", true);
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

/// The arrays of a batch that loads fill, as declarations.
std::string VectorEmitter::declared(const std::string& indent) const {
  std::string text;
  for (const Member& member : members_)
    text += fmt::format("{}{} {}{};\n", indent, member.type, member.name, member.sizes);
  return text;
}

std::string VectorEmitter::aliases(const std::string& indent, const std::string& of) const {
  std::string text;
  for (const Member& member : members_)
    text += fmt::format("{}auto& {} = {}.{};\n", indent, member.name, of, member.name);
  return text;
}

void VectorEmitter::points(std::string& out) {
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
  } else if (keeps_columns_) {
    out += fmt::format("      const int r = {0}q * OBK_GROUPS({1}) + OBK_GROUP({1});\n",
                       flies_ahead() ? "" : "base + ", lanes_);
    out += fmt::format(
        "      there[q] = r < (int)(t->r1 - t->r0) && OBK_GROUP({0}) < OBK_GROUPS({0});\n", lanes_);
    out += "      row[q] = there[q] ? (int)t->r0 + r : (int)t->r0;\n";
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

/// In row mode: the columns of this thread's vectors.
void VectorEmitter::columns_text(std::string& out) const {
  if (flat_) return;
  if (!keeps_columns_)
    out += fmt::format("  constexpr bool kFull = {} % OBK_LANES_OF({}) == 0;\n", vectors_, lanes_);
  out += "  int col[U];\n  bool here[U];\n";
  std::string decode;
  for (int d = nest_.rows; d <= lane_; ++d) out += fmt::format("  int j{}[U];\n", d);
  out += "  OBK_EACH(u, U) {\n";
  out += fmt::format("    const int n = u * OBK_LANES_OF({}) + lane;\n", lanes_);
  out += keeps_columns_
             ? fmt::format("    here[u] = {};\n    col[u] = (int)t->c0 + (here[u] ? n * V : 0);\n",
                           columns_ % wide() == 0 ? "true" : "n * V < (int)(t->c1 - t->c0)")
             : fmt::format("    here[u] = kFull || n < {};\n    col[u] = here[u] ? n * V : 0;\n",
                           vectors_);
  out += "    int c = col[u];\n";
  for (int d = lane_; d >= nest_.rows; --d) {
    if (d == nest_.rows)
      out += fmt::format("    j{}[u] = c;\n", d);
    else
      out += fmt::format("    j{0}[u] = c % {1}, c /= {1};\n", d, nest_.dims[d].extent);
  }
  out += "  }\n";
}

/// Requests the weights of the tile's columns that are loaded behind it: they come from HBM
/// meanwhile.
void VectorEmitter::prefetches(std::string& out) {
  std::set<std::string> asked;
  for (const Load& load : loads_) {
    if (!packs(load, v_) || (load.varies & kByRow) || !is_weight(load) || loaded_.count(load.expr))
      continue;
    const Access& access = *load_access_.at(load.expr);
    if (access.affine && exprs_[load.expr].args[0] == kNoExpr)
      asked.insert(fmt::format("OBK_PREFETCH({}, {});", job_.pointer(exprs_[load.expr].slot, false),
                               access.offset ? fmt::format("{} + c", access.offset) : "c"));
  }
  if (asked.empty()) return;
  out += "  if (const int c = (int)t->c0 + OBK_THREAD * V; c < (int)t->c1) {\n";
  for (const std::string& each : asked) out += "    " + each + "\n";
  out += "  }\n";
}

std::string VectorEmitter::overlapped(const std::string& loads) const {
  std::string text = "  struct Batch {\n" + declared("    ") +
                     "  } next;\n  const auto fetch = [&](int base) {\n" + aliases("    ", "next") +
                     loads + "  };\n";
  text += fmt::format("  fetch({});\n", first_text());
  text += loop_head("") + "    const Batch now = next;\n" +
          fmt::format("    if (base + {0} < {1}) fetch(base + {0});\n", step_text(), end_text());
  return text + aliases("    ", "now");
}

std::string VectorEmitter::unindented(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(at, end - at);
    out += (line.starts_with("  ") ? line.substr(2) : line) + "\n";
    at = end + 1;
  }
  return out;
}

}  // namespace obelisk::codegen

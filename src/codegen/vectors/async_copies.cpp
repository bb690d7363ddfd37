// Batches that are loaded ahead: several lie in scratchpad memory before the first is computed.
#include "codegen/scalars.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

/// Whether a load may be issued ahead, into a thread's own part of the scratchpad memory.
bool VectorEmitter::may_wait(const Load& load) const {
  const int64_t bytes = v_ * byte_size(load.storage, 1);
  return packs(load, v_) && load_access_.at(load.expr)->affine &&
         exprs_[load.expr].args[0] == kNoExpr && (bytes == 4 || bytes == 8 || bytes % 16 == 0);
}

/// As many slots as have room, where a batch of all threads takes `bytes` and there are `batches`;
/// none where it is not worth it.
bool VectorEmitter::take_slots(int64_t bytes, int64_t batches) {
  const int64_t room =
      (job_.ahead_bytes - (across_ ? kThreads * v_ * 8 : 0)) / std::max<int64_t>(bytes, 1);
  if (job_.grid) return false;  // others compute meanwhile
  if (bytes == 0 || std::min(batches, room) < kFewestSlots) return false;
  slots_ = std::min({kMostSlots, batches, room}), slot_bytes_ = bytes;
  return true;
}

/// Rows, or points of a flat body, in batches that are loaded ahead. `all`: of a group, or of a
/// thread.
bool VectorEmitter::plan_slots(int64_t all) {
  if (job_.anchored) return false;
  // Lanes that have no column of a row have a place for it.
  const int64_t units = flat_ ? 1 : (vectors_ + lanes_ - 1) / lanes_,
                wide = (flat_ ? kThreads : units * lanes_) * v_;
  int64_t bytes = 0;  // of one row, or of one point of all threads
  for (const Load& load : loads_) {
    if (!flat_ && !(load.varies & kByRow)) continue;
    if (!may_wait(load)) return false;
    bytes += wide * byte_size(load.storage, 1);
  }
  const int64_t together = flat_ ? 1 : kThreads / lanes_;
  if (bytes == 0) return false;
  const int64_t fits =
      std::max<int64_t>(kMostRegisters / std::max<int64_t>(registers(units), 1), 1);
  const int64_t batch = std::clamp<int64_t>(kMostSlotBytes / (bytes * together), 1, fits);
  if (!take_slots(batch * bytes * together, (all + batch - 1) / batch)) return false;
  rows_text_ = std::to_string(batch);
  units_text_ = flat_ ? "1" : fmt::format("OBK_UNITS({}, OBK_LANES_OF({}))", vectors_, lanes_);
  return true;
}

/// Across: columns in batches that are loaded ahead, where one walk sees them all. `here`:
/// columns of a slice.
void VectorEmitter::plan_slots_across(int64_t here) {
  std::set<int> walks;
  for (const Step& step : body_.steps)
    if (!step.per_row) walks.insert(step.pass);
  int64_t bytes = 0;  // of one column of all threads
  for (const Load& load : loads_) {
    if (!(load.varies & kByVector)) continue;
    if (!may_wait(load)) return;
    bytes += kThreads * v_ * byte_size(load.storage, 1);
  }
  if (walks.size() != 1 || bytes == 0) return;
  const int64_t batch = std::max<int64_t>(kMostSlotBytes / bytes, 1);
  if (take_slots(batch * bytes, (here + batch - 1) / batch)) units_text_ = std::to_string(batch);
}

/// Rows or points, batch after batch, each loaded some batches ahead of its use by asynchronous
/// copies into slots of scratchpad memory. A thread takes what it has loaded itself, so that
/// no thread waits for another. A slot is filled again after the batch behind it has been taken.
VectorText VectorEmitter::in_slots() {
  VectorText text;
  text.scratch = slots_ * slot_bytes_;
  text.ahead +=
      fmt::format("  constexpr int R = {}, U = {}, V = {};\n", rows_text_, units_text_, v_);
  if (!flat_) text.ahead += fmt::format("  const int lane = OBK_LANE({});\n", lanes_);
  columns_text(text.ahead);
  loads(text.ahead, "  ", true);
  std::string where;
  points(where);
  const std::string end = end_text(), step = step_text(), indent = "    ";
  std::string& out = text.rows;
  out += "  char* const own = (char*)w->scratch;\n";
  out += fmt::format("  const auto ask = [&](int base, int slot) {{\n  if (base < {}) {{\n", end) +
         declared(indent) + where;
  out += async_loads(indent, flat_ ? "q" : "q * U + u",
                     flat_ ? "OBK_EACH(q, R)" : "OBK_EACH(q, R) OBK_EACH(u, U)") +
         "  }\n  OBK_COMMIT_COPIES();\n  };\n";
  out += fmt::format("  int slot = 0;\n  OBK_EACH(k, {}) ask({} + k * {}, k);\n", slots_ - 1,
                     first_text(), step) +
         loop_head("");
  out +=
      fmt::format("    ask(base + {0} * {1}, slot == 0 ? {0} : slot - 1);\n    OBK_AWAIT({0});\n",
                  slots_ - 1, step) +
      declared(indent) + where;
  out += taken(indent, flat_ ? "q" : "q * U + u",
               flat_ ? "OBK_EACH(q, R)" : "OBK_EACH(q, R) OBK_EACH(u, U)");
  out += fmt::format("    slot = slot == {} ? 0 : slot + 1;\n", slots_ - 1);
  int last = 0;
  for (const Step& step_of : body_.steps) last = std::max(last, step_of.pass);
  for (int pass = 0; pass <= last; ++pass) {
    row_stores(pass, out, indent);
    segment(pass, out, indent);
  }
  out += "  }\n";
  return text;
}

/// Requests the packs of a batch into `slot` of `own`; `index` says which of the thread's it is.
std::string VectorEmitter::async_loads(const std::string& indent, const std::string& index,
                                       const std::string& each) {
  begin();
  std::string text = indent + each + " {\n", behind = "0";
  for (const Load& load : loads_) {
    if (loaded_.count(load.expr)) continue;
    const Expr& expr = exprs_[load.expr];
    const int64_t bytes = v_ * byte_size(load.storage, 1);
    text += fmt::format(
        "{}  obk::async_pack<V>(own + slot * {} + ({} + ({}) * {}) * OBK_ALL_THREADS, {}, {});\n",
        indent, slot_bytes_, behind, index, bytes, job_.pointer(expr.slot, false),
        place(*load_access_.at(load.expr), expr, false));
    behind += fmt::format(" + R * U * {}", bytes);
  }
  return text + indent +
         fmt::format(
             "}}\n{}static_assert(({}) * OBK_ALL_THREADS <= {}, \"a batch has its slot\");\n",
             indent, behind, slot_bytes_);
}

/// The packs of a batch from where they were requested to registers.
std::string VectorEmitter::taken(const std::string& indent, const std::string& index,
                                 const std::string& each) {
  std::string text, behind = "0";
  for (const Load& load : loads_) {
    if (loaded_.count(load.expr)) continue;
    const Indices i = indices(load.varies);
    const int64_t bytes = v_ * byte_size(load.storage, 1);
    const std::string type = storage_name(load.storage);
    text += fmt::format(
        "{0}obk::Pack<{1}, V> l{2}{3};\n{0}{4} l{2}{5} = obk::take_pack<V, {1}>(own + slot * {6} + "
        "({7} + ({8}) * {9}) * OBK_ALL_THREADS);\n",
        indent, type, load.expr, sizes(i), each, at(i), slot_bytes_, behind, index, bytes);
    behind += fmt::format(" + R * U * {}", bytes);
    loaded_.insert(load.expr);
  }
  return text;
}

}  // namespace obelisk::codegen

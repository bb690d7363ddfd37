// Registers that a row or a point takes, and what follows from them.
#include <algorithm>

#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

int64_t VectorEmitter::registers_of(const Load& load, int64_t units) const {
  if (!(load.varies & kByElement)) return load.varies & kByVector ? units : 1;
  if (!(load.varies & kByRow) && !flat_ && !across_) return 0;  // once for all rows
  const bool pack = load.expr == kNoExpr || packs(load, v_);
  const bool computed = !pack && load.expr != kNoExpr &&
                        exprs_[load.expr].slot < stitch::kRowSlot &&
                        !load_access_.at(load.expr)->affine;
  const int64_t bytes =
      pack ? byte_size(load.storage, 1)
           : byte_size(ops::compute_type(load.storage), 1) + (computed ? 4 : 0);  // its place
  return (units * v_ * bytes + 3) / 4;
}

/// Of what a thread loads once for all its rows.
int64_t VectorEmitter::column_registers() const {
  int64_t words = 0;
  for (const Load& load : loads_)
    if (packs(load, v_) && !(load.varies & kByRow))
      words += (v_ * byte_size(load.storage, 1) + 3) / 4;
  return words;
}

int64_t VectorEmitter::registers(int64_t units) const {
  int64_t words = 0;
  for (const Load& load : loads_) words += registers_of(load, units);
  for (const Step& step : body_.steps)
    if (step.kind == StepKind::kStage) words += registers_of(step, units);
  return std::max<int64_t>(words, units * v_ / 2);
}

/// What each point of a flat body holds of where it is, if its elements come one by one, from where
/// a condition or an index says: a coordinate of each axis, and whether it is there.
int64_t VectorEmitter::index_words() const {
  const auto alone = [&](const Load& load) {
    return (load.varies & kByElement) && load.expr != kNoExpr && !packs(load, v_) &&
           (load.guarded || !load_access_.at(load.expr)->affine);
  };
  return flat_ && std::any_of(loads_.begin(), loads_.end(), alone) ? nest_.rows + 2 : 0;
}

/// Whether a pass, or one behind it, reads `part`.
bool VectorEmitter::read_from(int pass, ExprId part) const {
  const auto reads = [&](ExprId id) { return id != kNoExpr && made_of(exprs_, id, exprs_[part]); };
  return std::any_of(body_.steps.begin(), body_.steps.end(), [&](const Step& step) {
    return step.pass >= pass && (reads(step.expr) || reads(step.finish) ||
                                 std::any_of(step.at.begin(), step.at.end(), reads));
  });
}

/// What a pass reads for the last time makes room, element by element, for what it stages (a
/// softmax's row).
int64_t VectorEmitter::held_at_once(int64_t units) const {
  int64_t most = units * v_ / 2;
  int last = 0;
  for (const Step& step : body_.steps) last = std::max(last, step.pass);
  for (int pass = 0; pass <= last; ++pass) {
    int64_t words = 0;
    for (const Load& load : loads_)
      if (load.expr == kNoExpr || read_from(pass, load.expr)) words += registers_of(load, units);
    for (const Step& stage : body_.steps) {
      if (stage.kind != StepKind::kStage || stage.pass >= pass) continue;
      bool read = false;
      for (ExprId e = 0; e < exprs_.size(); ++e)
        read = read || (exprs_[e].scalar == Scalar::kLoad &&
                        exprs_[e].slot == stitch::kStageSlot + stage.slot && read_from(pass, e));
      if (read) words += registers_of(stage, units);
    }
    most = std::max(most, words);
  }
  return most;
}

/// Of rows that all threads share as many CTAs as hold a row in registers.
int VectorEmitter::ctas_by_registers() const {
  const CtasByRegisters bounds = lanes_ != kThreads || flat_ ? kOfBatch
                                 : unpacked_anew(1).empty()  ? kOfSharedRow
                                                             : kOfUnpackedRow;
  return words_ <= bounds.four ? 4 : words_ <= bounds.three ? 3 : words_ <= bounds.two ? 2 : 1;
}

/// Packs of 16 bits that a pass before this one has unpacked, and this one unpacks anew: compilers
/// keep the wide copies from pass to pass, and these are more than a thread's registers hold.
std::vector<ExprId> VectorEmitter::unpacked_anew(int pass) const {
  std::vector<ExprId> anew;
  if (pass == 0 || !job_.grid || flat_ || across_ || words_ < 32) return anew;
  for (const Load& load : loads_)
    if (packs(load, v_) && (load.varies & kByRow) && byte_size(load.storage, 1) == 2 &&
        exprs_[load.expr].slot < stitch::kTileSlot && read_from(pass, load.expr))
      anew.push_back(load.expr);
  return anew;
}

}  // namespace obelisk::codegen

#include "codegen/vectors.h"

#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

/// What is the same for all rows serves few of them where tasks are dealt (a norm's scale): it is
/// loaded where it is used, so that it holds no registers before.
void VectorEmitter::hold_back() {
  if (flat_ || overlaps_) return;
  for (const Load& load : loads_) {
    if ((load.varies & kByRow) || !packs(load, v_) || exprs_[load.expr].args[0] != kNoExpr) continue;
    if (load_access_.at(load.expr)->affine) held_.insert(load.expr);
  }
}

std::optional<VectorText> emit_vectors(const VectorJob& job) {
  VectorEmitter emitter(job);
  std::optional<VectorText> text = emitter.run();
  if (text && job.dealt) text->ahead = fmt::format("  OBK_RESIDENT({})\n", job.residents ? job.residents : emitter.residents()) + text->ahead;
  return text;
}

}  // namespace obelisk::codegen

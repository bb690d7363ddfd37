#include "codegen/vectors.h"

#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

std::optional<VectorText> VectorEmitter::run() {
  if (!plan()) return std::nullopt;
  if (across_) return across();
  if (transposes_) return transposed();
  if (slots_ > 0) return in_slots();
  return in_batches();
}

std::optional<VectorText> emit_vectors(const VectorJob& job) {
  VectorEmitter emitter(job);
  std::optional<VectorText> text = emitter.run();
  if (text && !text->begins) text->ahead = job.begin + text->ahead;
  if (text && job.grid)
    text->ctas_per_sm = job.ctas_per_sm ? job.ctas_per_sm : emitter.ctas_by_registers();
  return text;
}

}  // namespace obelisk::codegen

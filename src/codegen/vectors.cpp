#include "codegen/vectors.h"

#include "codegen/vector_emitter.h"

namespace obelisk::codegen {

std::optional<VectorText> emit_vectors(const VectorJob& job) { return VectorEmitter(job).run(); }

}  // namespace obelisk::codegen

// The form of a body's kernel, and what it waits for itself before the first load of anything but
// weights.
#include "codegen/body_emitter.h"

namespace obelisk::codegen {

/// Whether the product has a kernel of its own; how many planes of sums that then leaves for the
/// epilogue to add: its warpgroups' or its parts'.
bool BodyEmitter::pipelined() const {
  return group_.kind == GroupKind::kProduct && work_.pipelined() && tiles_.gemm.pipelined &&
         (packed_b_ || work_.pipelined()->b) && !direct_;
}

BodyEmitter::Begin BodyEmitter::how_it_begins() const {
  if (pipelined()) return Begin::kPipelinedGemm;
  if (work_.rectangles() && tiles_.vectors) return Begin::kAlone;
  if (loads_rows()) return Begin::kRows;
  return waits_in_body() ? Begin::kWave : Begin::kAtOnce;
}

std::string BodyEmitter::begin() const {
  switch (how_it_begins()) {
    case Begin::kAtOnce:
      break;
    case Begin::kPipelinedGemm:
      return "  OBK_PIPELINED_GEMM_BEGIN()\n";
    case Begin::kAlone:
      return "  OBK_WAIT_FOR_PREVIOUS();\n";
    case Begin::kRows:
      return "  OBK_BEGIN_ROWS();\n";  // and requests its rows of A
    case Begin::kWave:
      return "  OBK_BEGIN_WAVE();\n";
  }
  return "";
}

/// The form of the body's kernel and what it waits for. `ctas_per_sm`: that share a
/// multiprocessor, where the vectors say so; else 0.
void BodyEmitter::set_form(int ctas_per_sm) {
  using Form = BodyTraits::Form;
  using Wait = BodyTraits::Wait;
  if (ctas_per_sm > 0) traits_.form = Form::kGrid, traits_.ctas_per_sm = ctas_per_sm;
  const Begin begins = how_it_begins();
  CHECK(ctas_per_sm == 0 || begins == Begin::kAtOnce || begins == Begin::kWave,
        "a body has two forms");
  switch (begins) {
    case Begin::kAtOnce:
      break;
    case Begin::kPipelinedGemm:
      traits_.form = Form::kPipelinedGemm, traits_.waits = Wait::kKernelBefore;
      break;
    case Begin::kAlone:
      traits_.waits = Wait::kKernelBefore;
      if (stage_params_.empty())  // else a table says where rows are staged
        traits_.form = Form::kGrid, traits_.ctas_per_sm = work_.rectangles()->tasks_per_worker;
      break;
    case Begin::kRows:
    case Begin::kWave:
      traits_.waits = Wait::kWaveBefore;
      break;
  }
}

bool BodyEmitter::loads_rows() const {
  return group_.kind == GroupKind::kProduct && waits_in_body() && work_.list()->a_rows &&
         tiles_.vectors && packed_b_ && !direct_;
}

}  // namespace obelisk::codegen

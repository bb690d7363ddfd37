// The ONNX reader and importer on any bytes: an Error or a graph that verifies, never a crash, a
// hang or runaway memory.
#include "frontends/onnx/test/fuzz_case.h"
#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"

FUZZ_TARGET(onnx) {
  obelisk::frontends::onnx::import_any({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

FUZZ_MUTATOR(mutate_onnx)

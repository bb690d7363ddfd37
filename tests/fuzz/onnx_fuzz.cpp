// The ONNX reader and importer on any bytes: an Error or a graph that verifies, never a crash, a hang or runaway memory.
#include "frontends/onnx/test/fuzz_case.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  obelisk::frontends::onnx::import_any(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}

// The reader of NumPy archives: zip, deflate, and the arrays inside.
#include "base/base.h"
#include "fuzz/fuzz.h"

using namespace obelisk;

FUZZ_TARGET(npz) {
  const Result<NamedTensors> tensors = parse_npz(bytes, {{"x", DType::bf16}});
  if (!tensors.ok()) return;
  for (const auto& [name, tensor] : *tensors) (void)to_ints(tensor);
}

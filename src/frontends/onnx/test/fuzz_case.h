/// frontends/onnx/test/fuzz_case.h — what the fuzzer and the replay of its finds do with some
/// bytes.
#pragma once

#include <cstring>
#include <memory>
#include <string_view>

#include "frontends/frontends.h"

namespace obelisk::frontends::onnx {

/// Reads, inspects, imports and verifies. Limits are small, so that what is slow shows as a hang.
inline void import_any(std::string_view bytes) {
  // An exact copy, so that a read past the end is seen.
  const std::shared_ptr<char[]> owner(new char[bytes.size()]);
  if (!bytes.empty()) std::memcpy(owner.get(), bytes.data(), bytes.size());
  const auto model =
      read_model_bytes({owner.get(), bytes.size()}, owner, "/nowhere/at/all", "fuzz");
  if (!model.ok()) return;
  const ModelDescription description = inspect(*model);
  ImportOptions options;
  options.max_nodes = 2000;
  options.max_iterations = 50;
  options.fold_flops = 1e7;
  options.fold_bytes = 1 << 24;
  for (const std::string& symbol : description.symbols) options.dimensions[symbol] = 2;
  (void)value_dependent_inputs(*model);
  const auto graph = import_onnx(*model, options);
  if (!graph.ok()) return;
  const Status status = graph::verify(*graph);
  CHECK(status.ok(), "an imported graph does not verify: {}", status.error().text());
  (void)graph::print(*graph);
}

}  // namespace obelisk::frontends::onnx

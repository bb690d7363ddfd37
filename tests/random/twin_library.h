/// tests/random/twin_library.h — the bodies of GPUs' programs as functions of this machine
/// (twin.h), compiled many at a time; and runs of such programs, task by task.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/temporary_folder.h"
#include "runtime/runtime.h"
#include "twin_task.h"

namespace obelisk::random_graphs {

class TwinLibrary {
 public:
  /// Writes the device headers, with host code for the few lines of assembly outside of ptx.cuh,
  /// and compiles what all batches share.
  static Result<std::unique_ptr<TwinLibrary>> create();
  ~TwinLibrary();
  Status add(std::span<const codegen::BodyText* const> bodies);
  TwinBody find(const Hash& hash) const;
  size_t count() const { return bodies_.size(); }

 private:
  explicit TwinLibrary(TemporaryFolder folder) : folder_(std::move(folder)) {}
  Status compile(const std::vector<std::string>& what, const std::string& log);
  TemporaryFolder folder_;
  std::string compiler_;
  std::map<Hash, TwinBody> bodies_;
  std::vector<void*> handles_;
};

/// Why the twin cannot run a program: a custom op, or a body that wants what only a kernel's own
/// frame has (clusters, copies by a map); empty: it can.
std::string beyond_twin(const runtime::Program& program);

/// One run after another in the same memory, one for each set of inputs; the outputs of the last.
/// Works run wave by wave, or one after another in `order`. What is wrong, or nothing.
std::string run_twin(const runtime::Program& program, const TwinLibrary& library,
                     std::span<const std::vector<Tensor>* const> runs, std::vector<Tensor>& outputs,
                     std::span<const int> order = {});

}  // namespace obelisk::random_graphs

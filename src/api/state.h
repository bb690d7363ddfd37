/// api/state.h — what a Model holds, and how errors leave through the door: as a Failure.
#pragma once

#include <new>
#include <optional>

#include "compile.h"
#include "obelisk/obelisk.h"

namespace obelisk {

struct Model::State {
  std::shared_ptr<const runtime::Executable> executable;
  std::optional<graph::Graph> graph;               // compiled here: what save() writes
  std::optional<runtime::Compiled> file;           // opened: its graph is parsed when it is needed
  std::shared_ptr<const compiler::HostTail> tail;  // what the host does with the program's outputs
  std::vector<Port> inputs, outputs;
  /// Which output of the program an output of the model is; -1: the tail makes it.
  int head_of(size_t output) const {
    return tail ? tail->outputs()[output].head : static_cast<int>(output);
  }
  std::vector<std::string> slow_ops;
  std::optional<Verification> verification;
  std::string unverified;  // why there is none
  int gpu = -1;
  void describe();  // ports and slow ops, from the program
  /// `verified`: that was wanted.
  static std::shared_ptr<State> of(compiler::Compilation made, int gpu, bool verified);
  static std::shared_ptr<State> of(runtime::Compiled file, const OpenOptions& wanted);
};

namespace api {

[[noreturn]] void raise(const Error& error);

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(*result);
}

/// Runs a function of the door: what is thrown inside leaves as a Failure.
template <typename Function>
auto guarded(Function&& function) {
  try {
    return function();
  } catch (const Failure&) {
    throw;
  } catch (const std::bad_alloc&) {
    raise({Code::kMemory, "api", "out of memory", "",
           "smaller shapes, or a machine with more memory"});
  } catch (const std::exception& bug) {
    raise({Code::kBuild, "api", bug.what(), "",
           "this is a defect of Obelisk; please report it with the model"});
  }
}

/// The place of a port by name. Raises kUsage, naming those that there are.
size_t find_port(std::span<const Port> ports, const std::string& name, const char* way);

}  // namespace api
}  // namespace obelisk

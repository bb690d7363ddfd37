/// runtime/runtime.h — the door of `runtime`: build bodies, load programs, run them.
///
///   Program (data) ── load ──▶ Executable (machine code, immutable, shared by threads) ── context ──▶ Context (one thread's memory)
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "runtime/obk.h"
#include "runtime/program.h"

namespace obelisk::runtime {

struct LoadOptions {
  std::string compiler;   // the host compiler's path; empty: $OBELISK_CXX, $CXX, then g++, clang++, c++ on the PATH
  std::string cache_dir;  // empty: $OBELISK_CACHE, $XDG_CACHE_HOME/obelisk, ~/.cache/obelisk; "off": no cache
  int jobs = 0;           // compilers at once; 0: one a core
  std::function<void(int done, int total)> progress;
  std::function<bool()> interrupted;  // asked between bodies; true ends with kInterrupted
};

/// What loading did.
struct LoadReport {
  int compiled = 0, cached = 0;
  double seconds = 0;
  std::string compiler;
  int carried = 0;           // bodies whose machine code the program brought along
  std::string not_carried;   // why that machine code was not used; empty when it was, or when there was none
};

class Context;

/// A program with its machine code. Immutable: any number of contexts may run it at once.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual const Program& program() const = 0;
  virtual const LoadReport& report() const = 0;
  /// The machine code by body, for a file.
  virtual std::vector<std::string> objects() const = 0;
  /// `threads`: workers that run the virtual SMs' lists; 0: as many as there are SMs, at most one a core.
  virtual Result<std::unique_ptr<Context>> context(int threads = 0) const = 0;
};

/// Memory and workers of one user. One thread at a time; after the first run nothing is allocated.
class Context {
 public:
  virtual ~Context() = default;
  /// Pointers to dense row-major bytes, in the order of the program's ports; they must hold the ports' types.
  virtual Status run(std::span<const void* const> inputs, std::span<void* const> outputs) = 0;
};

/// Compiles what the cache does not hold and loads it. Errors: kBuild with the compiler's first lines; kUsage when no compiler is found
/// (hint: what to install, or to run the reference with --target reference).
Result<std::shared_ptr<const Executable>> load_cpu(std::shared_ptr<const Program> program, const LoadOptions& options = {});

/// The instruction sets of this CPU that matter to machine code, as Program::objects_need tells them.
std::string cpu_features();

/// The host compiler that load would use, or the error that it would give.
Result<std::string> find_compiler(const std::string& wanted = "");
/// The folder of the object cache that load would use; empty when off.
std::string cache_folder(const std::string& wanted = "");

}  // namespace obelisk::runtime

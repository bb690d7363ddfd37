/// serve/engine_local.h — the engine in this process: loads and compiles models behind the
/// requests, decides by the scheduler, runs programs on lanes of the CPU's workers.
///
/// Threads  `workers` lanes that run programs, one that loads and compiles, one that waits for the
/// next deadline. A callback comes on
///          one of them, or from submit() itself where a request is refused; it should not wait for
///          long.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/engine.h"
#include "serve/policy.h"

namespace obelisk::serve {

struct EngineOptions {
  int workers = 0;  // of the CPU; 0: one a core
  Policy policy;
  std::string compiler,
      cache;  // as of runtime::LoadOptions; the times of programs are kept beside the machine code
  bool verify = true;          // answers are compared with the reference before a model is ready
  double verify_seconds = 10;  // that the reference may take, of each program
  int64_t memory_limit = 0;    // bytes of weights and workspaces of all models; 0: no limit
  /// Asked on the lane before a run, about each request of it; an error fails that request. Many
  /// lanes ask at once.
  std::function<Status(const Request&)> check;
  std::string record;  // a file for what happened and what was decided: `obelisk simulate --replay`
};

std::unique_ptr<Engine> make_engine(EngineOptions options = {});

}  // namespace obelisk::serve

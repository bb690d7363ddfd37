/// serve/engine_local.h — the engine in this process: loads and compiles models behind the
/// requests, decides by the scheduler, runs programs on lanes of a device: workers of the CPU, or
/// SMs of a GPU.
///
/// Threads  as many as runs may be in flight (device.h), one that loads and compiles, one that
///          moves weights, one that waits for the next deadline. A callback comes on one of them,
///          or from submit() itself, where a request is refused, or is so short that handing it to
///          another thread would take longer (Device::hand_over); it should not wait for long.
/// Memory   beyond `memory_limit` weights of idle models leave the device, and come back when a
///          request comes or is expected (residency.h). A model whose weights and workspace do not
///          fit beside the other models' workspaces is refused.
/// Failing  a run that fails fails its requests. After an error of a GPU nothing runs there any
///          more: what waits fails, what comes is refused with that error.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serve/device.h"
#include "serve/engine.h"
#include "serve/policy.h"

namespace obelisk::serve {

struct EngineOptions {
  std::shared_ptr<const Device> device;  // null: the CPU's workers
  int workers = 0;                       // of the CPU; 0: one a core
  Policy policy;
  std::string compiler,
      cache;  // as of runtime::LoadOptions; the times of programs are kept beside the machine code
  bool verify = true;            // answers are compared with the reference before a model is ready
  double verify_seconds = 10;    // that the reference may take, of each program
  bool batch_invariant = false;  // every model is, as of ModelConfig
  /// Runs that are shorter run on the thread that submits, not on a lane. None: as the device says
  /// (Device::hand_over). 0: every run has a lane.
  std::optional<std::chrono::microseconds> hand_over;
  int64_t memory_limit = 0;  // bytes of weights and workspaces of all models; 0: no limit
  /// Of vliw, on a GPU: runs with no more slack than this when they start have the highest, or a
  /// higher priority. Chosen: a kernel of another program may keep an SM for some tens of
  /// microseconds.
  std::chrono::nanoseconds urgent{100'000}, relaxed{400'000};
  /// While requests come, a device that has had nothing to do for so long gets some work, again and
  /// again (keep_warm.h). 0: it idles.
  std::chrono::microseconds keep_warm{0};
  /// Called before a run, on its thread, for each request of it; an error fails that request. Many
  /// threads call it at once.
  std::function<Status(const Request&)> check;
  /// Called once, when an error has ended everything on the device, before any request is answered
  /// with it; under the engine's lock, so it must not call the engine. It need not return: a
  /// process that ends here leaves its requests to the one that starts it again.
  std::function<void(const Error&)> lost;
  std::string record;  // a file for what happened and what was decided: `obelisk simulate --replay`
};

std::unique_ptr<Engine> make_engine(EngineOptions options = {});

}  // namespace obelisk::serve

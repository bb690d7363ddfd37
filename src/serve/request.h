/// serve/request.h — what travels between a door (HTTP, gRPC, the library) and the engine that
/// answers.
///
/// A door knows no scheduler and the engine knows no socket: a door fills a Request whose input
/// spans point into the buffers that it received, and gets exactly one Answer, by a callback on a
/// thread of the engine. `keep` owns the bytes until then. Terms  A *deadline* is a budget from
/// arrival; *slack* is what of it is left beyond the predicted run time; a *variant* is one
/// compiled
///        program of a model (batch, width in SMs or workers); a *lane* is the group of SMs or
///        workers that a program runs on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"

namespace obelisk::serve {

using Clock = std::chrono::steady_clock;

/// A tensor's elements, dense and row-major, where they lie: strings are no tensors here.
struct InputView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
  bool on_device =
      false;            // of a GPU that the engine runs on; a model that joins requests takes none
  bool pinned = false;  // the host's, page-locked (cuMemHostAlloc): a GPU copies from where it lies
};
struct OutputView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // valid as long as Answer::keep
};

struct Request {
  std::string model;
  std::string id;      // the caller's own, echoed
  std::string tenant;  // for quotas and fair shares; empty: the model's name
  std::vector<InputView> inputs;
  std::vector<std::string> outputs;  // wanted; empty: all, in the model's order
  std::optional<std::chrono::nanoseconds>
      deadline;        // from `arrival`; none: the model's own, or as soon as possible
  int priority = 0;    // smaller is more urgent; 0: the model's own
  double weight = 0;   // of its tenant's fair share, when it is first seen; 0: the model's own
  bool trace = false;  // fill Answer::trace
  Clock::time_point arrival = Clock::now();
  std::shared_ptr<void> keep;  // owns the bytes of the inputs
};

enum class Outcome {
  kOk,
  kBadRequest,  // names, types, shapes: `error` says got and wanted
  kNotFound,    // no such model, or no such version
  kNotReady,    // it is still loading, or failed to
  kRejected,  // admission: queue full, quota, or the deadline cannot be met; `retry_after` may say
              // when it could
  kLate,      // the deadline passed before it could run
  kCancelled,
  kFailed,  // the run failed
};

/// What happened to a request. Times are from arrival.
struct Trace {
  std::string variant;  // "batch 4, 66 SMs"
  int lane = -1;
  std::vector<std::string> partners;   // models, or ids, that ran in the same launch or beside it
  int batch_rows = 0;                  // of the launch that it was part of
  std::chrono::nanoseconds queued{0};  // until its program was started
  std::chrono::nanoseconds ran{0};     // until its answer was there
  std::optional<std::chrono::nanoseconds>
      slack;           // left when it was started, by the prediction of that moment
  std::string reason;  // why now, there, and with whom
};

struct Answer {
  Outcome outcome = Outcome::kOk;
  std::optional<Error> error;  // of all outcomes but kOk
  bool over_quota = false;     // of kRejected: its tenant's quota is why, not the load
  std::optional<std::chrono::nanoseconds> retry_after;
  std::vector<OutputView> outputs;
  std::shared_ptr<void> keep;  // owns the bytes of the outputs
  std::optional<Trace> trace;
};

using Done = std::function<void(Answer)>;

}  // namespace obelisk::serve

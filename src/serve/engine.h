/// serve/engine.h — answers requests of many models; what a door talks to.
///
/// Every function may be called from any thread and returns without waiting for a model to compile
/// or run.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "serve/request.h"

namespace obelisk::serve {

/// A model and how it is to be served; a door reads it from `model.toml`.
struct ModelConfig {
  std::string name;
  std::string path;  // a model's file, a graph as text (.ir) or a compiled file (.obk)
  std::map<std::string, int64_t>
      dimensions;  // symbolic dimensions that are bound; the batch is bound by the engine
  std::string batch_dimension;  // symbolic dimension along which requests are joined; empty: none
  int max_batch = 1;
  std::string target;  // "cpu" or "cuda", that the engine must have; empty: the engine's
  std::string precision = "keep";
  std::string granularity = "stitch";  // of a GPU: "mono", "stitch", "op", "auto"
  bool batch_invariant = false;  // of a GPU: all its programs, whatever their batch and width, give
                                 // a row the same bits; the granularity must not be "auto" then
  std::optional<std::chrono::nanoseconds> deadline;  // of requests that bring none
  int priority = 0;          // of requests that bring none; smaller is more urgent
  double weight = 1;         // of its tenant's fair share
  int queue_limit = 1024;    // requests that wait, at most
  int64_t memory_limit = 0;  // bytes of its weights and workspaces; 0: none of its own
};

struct PortInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;  // -1: the batch
};

enum class ModelState { kLoading, kReady, kUnloading, kFailed };

/// Counts since the model was added; times are sums.
struct ModelCounts {
  uint64_t ok = 0, failed = 0, rejected = 0, late = 0, cancelled = 0;
  uint64_t launches = 0, rows = 0;  // launches that answered, and the rows in them
  uint64_t in_time = 0, with_deadline = 0;
  std::chrono::nanoseconds queued{0}, ran{0};
  int64_t waiting = 0;  // now
};

struct ModelInfo {
  ModelConfig config;
  ModelState state = ModelState::kLoading;
  std::string reason;      // of kFailed; of kReady: why the newest one did not replace it
  bool replacing = false;  // kReady, and a new one of the name is loading
  std::vector<PortInfo> inputs, outputs;
  int programs = 0;          // by batch and width, that requests are answered by now
  int64_t memory_bytes = 0;  // workspaces, and weights when they are there
  bool weights_here = true;  // else they are in the host's memory, or a file
  ModelCounts counts;
  int to_come = 0;  // batches and widths of a ready model that are still to be compiled
};

using RequestKey = uint64_t;  // of one engine, never used again

class Engine {
 public:
  virtual ~Engine() = default;  // answers what waits with kCancelled, and returns when nothing runs

  /// Begins to load; `models()` tells the state. An equal name replaces the old model once the new
  /// one is ready.
  virtual void add(ModelConfig config) = 0;
  /// Answers what waits, refuses what comes, then frees the model.
  virtual void remove(const std::string& name) = 0;
  virtual std::vector<ModelInfo> models() const = 0;
  virtual std::optional<ModelInfo> model(const std::string& name) const = 0;

  /// `done` is called once, perhaps before submit returns.
  virtual RequestKey submit(Request request, Done done) = 0;
  /// The request is answered with kCancelled unless it already runs; then its answer may still
  /// come.
  virtual void cancel(RequestKey key) = 0;
  /// Refuses what comes from now on; what was accepted is answered.
  virtual void drain() = 0;
};

}  // namespace obelisk::serve

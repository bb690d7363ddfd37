/// obelisk/server.h — many models answer requests under deadlines, in this process and without
/// sockets.
///
///   obelisk::Server server;
///   server.add("scores", "scores.onnx", {.batch_dimension = "batch", .max_batch = 8});
///   server.wait("scores");
///   obelisk::Reply reply = server.submit("scores", {obelisk::input("x", pixels, {1, 64})},
///   {.deadline = std::chrono::milliseconds(5)}); obelisk::Response response = reply.get(); if
///   (response.ok()) use(response.output<float>("p")); else retry_in(response.retry_after());
///
/// What runs next, beside whom, in which batch and how wide is decided when a request is there:
/// least slack first, requests of one model joined, other models side by side, each as wide as
/// there is room and as narrow as its deadline allows. A request that cannot be in time is refused
/// at once.
///
/// Threads  Every function may be called from any thread; none but wait(), get() and the
///          destructors waits.
/// Numbers  On a CPU the bits of an answer do not depend on what else is served. On a GPU they are
///          those of the program that was chosen, by batch and width, within the tolerance that
///          programs are verified with; with `batch_invariant` all programs of a model give the
///          same.
/// Failing  After an error of a GPU nothing runs there any more: what waits fails, what comes is
///          refused with that error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "obelisk/error.h"
#include "obelisk/port.h"

namespace obelisk {

struct ServerOptions {
  std::string target = "cpu";  // or "cuda", "cuda:1": a GPU of this machine. kDevice without one
  std::vector<int> widths;  // of a GPU: SMs that programs are compiled for; empty: all, a half, a
                            // quarter and an eighth
  bool instances = false;   // of a GPU: requests of models of the same architecture, each with its
                            // own weights, share a launch where programs for a half of the SMs or
                            // fewer serve them
  int workers = 0;          // of a CPU: threads that run programs; 0: one a core
  std::string policy = "vliw";   // or fifo, time, streams, edf, batch: to compare with. Knobs of
                                 // its own may follow, "vliw:overlap=8:margin=1.2"
  bool verify = true;            // answers are compared with the reference before a model is ready
  double verify_seconds = 10;    // that the reference may take
  bool batch_invariant = false;  // of every model, whatever its ServeOptions say
  std::string compiler, cache;   // as of CompileOptions
  int64_t memory_limit = 0;      // bytes of weights and workspaces; 0: what there is. Beyond it
                                 // weights of idle models leave the device, and come back when they
                                 // are wanted
  std::string record;    // a file for what was decided, and why: `obelisk simulate --replay`
  int keep_warm_us = 0;  // of a GPU: while requests come, one that has been idle for so long gets
                         // some work again and again, so that it keeps its clocks; 0: it idles
  int64_t keep_warm_bytes = 4 << 20;  // that this work sets to zero
  bool pooled_streams = true;  // of a GPU: runs take streams of a pool, in place of one each of
                               // their own; several of those would share a hardware queue
  bool priorities = true;      // of a GPU and vliw: kernels of runs with less slack go first
};

/// How a model is served.
struct ServeOptions {
  std::map<std::string, int64_t> dimensions;  // symbolic dimensions that are bound
  std::string batch_dimension;  // along which requests are joined; empty: they are not
  int max_batch = 1;
  std::string precision = "keep";
  std::string granularity = "stitch";  // of a GPU, as of CompileOptions
  /// Of a GPU: a row's answer has the bits that it has alone, whichever requests share its batch or
  /// run beside it; slower, and not with the granularity "auto". On a CPU that is always so.
  bool batch_invariant = false;
  std::optional<std::chrono::nanoseconds> deadline;  // of requests that bring none
  int priority = 0;                                  // smaller is more urgent
  double weight = 1;                                 // of its fair share
  int queue_limit = 1024;                            // requests that wait, at most
};

struct Input {
  std::string name;
  Element element = Element::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;     // dense, row-major
  std::shared_ptr<const void> owner{};  // keeps them alive; without one they are copied by submit()
  /// The bytes are in the memory of the server's GPU, at a multiple of 64, and are used in place;
  /// whoever wrote them has waited for that. kBadRequest where requests of the model are joined.
  bool on_device = false;
  /// The bytes are in page-locked memory of the host (cuMemHostAlloc, cudaHostRegister), at a
  /// multiple of 64: a GPU copies them from there. Needs an owner.
  bool pinned = false;
};
template <typename Range>
Input input(std::string name, const Range& values, std::vector<int64_t> shape,
            std::shared_ptr<const void> owner = {}) {
  const std::span all(values);
  return {std::move(name), ElementOf<std::remove_cv_t<typename decltype(all)::element_type>>::value,
          std::move(shape), std::as_bytes(all), std::move(owner)};
}

struct SubmitOptions {
  std::optional<std::chrono::nanoseconds>
      deadline{};              // from now; none: the model's own, or as soon as possible
  std::string id{}, client{};  // of the caller's own; requests of a client have one fair share,
                               // whatever models they ask
  int priority = 0;            // 0: the model's own
  bool trace = false;
};

enum class Outcome {
  kOk,
  kBadRequest,  // names, types, shapes
  kNotFound,    // no such model
  kNotReady,    // it is still loading, or failed to
  kRejected,    // the queue is full, or the deadline cannot be met
  kLate,        // the deadline passed before it could run
  kCancelled,
  kFailed,  // the run failed
};

/// What happened to a request. Times are from its arrival.
struct RequestTrace {
  std::string variant;                // "batch 4, 2 of 8 workers", "batch 1, 66 of 132 SMs"
  int lane = -1;                      // the first of its workers or SMs
  std::vector<std::string> partners;  // what ran in the same launch, or beside it
  int batch_rows = 0;
  std::chrono::nanoseconds started{0}, answered{0};
  std::optional<std::chrono::nanoseconds> slack;  // that was left when it was started
  std::string reason;                             // why then, there and so wide
};

class Response {
 public:
  Outcome outcome() const noexcept;
  bool ok() const noexcept { return outcome() == Outcome::kOk; }
  const std::string& error() const noexcept;  // empty when ok
  std::optional<std::chrono::nanoseconds> retry_after() const noexcept;
  const std::optional<RequestTrace>& trace() const noexcept;

  /// The outputs, in the model's order. Their memory lives as long as a copy of the response.
  std::span<const Port> outputs() const noexcept;
  /// An output's elements. Failure where the response is not ok, and for an unknown name or another
  /// element type.
  template <typename T>
  std::span<const T> output(const std::string& name) const {
    const std::span<const std::byte> bytes = memory(name, ElementOf<T>::value);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  std::span<const std::byte> output_bytes(const std::string& name) const;

 private:
  friend class Server;
  friend class Reply;
  struct State;
  std::span<const std::byte> memory(const std::string& name, Element element) const;
  std::shared_ptr<const State> state_;
};

/// An answer that is on its way.
class Reply {
 public:
  bool ready() const;
  bool wait_for(std::chrono::nanoseconds time) const;  // whether it is there
  Response get() const;                                // waits for it
  /// The answer is kCancelled unless the request runs already. Harmless afterwards, and when the
  /// server is gone.
  void cancel() const;

 private:
  friend class Server;
  struct State;
  std::shared_ptr<State> state_;
};

struct ServedModel {
  std::string name;
  bool ready = false;
  std::string reason;                 // why it is not, where it failed
  std::vector<Port> inputs, outputs;  // an extent of -1: rows that requests choose (bytes 0 then)
  int programs = 0;                   // by batch and width, that answer by now
  int64_t memory_bytes = 0;           // workspaces, and weights when they are there
  bool weights_here = true;           // on the device; else they come back when they are wanted
  uint64_t answered = 0, failed = 0, rejected = 0, late = 0, cancelled = 0;
  uint64_t launches = 0, rows = 0;  // of what was answered
  uint64_t in_time = 0, with_deadline = 0;
  int64_t waiting = 0;
  int to_come = 0;  // batches and widths that are still to be compiled, once it is ready
};

class Server {
 public:
  explicit Server(const ServerOptions& options = {});
  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  ~Server();  // answers what waits with kCancelled

  /// Begins to load a model's file (.onnx), a graph (.ir) or a compiled file (.obk). An equal name
  /// is replaced once the new one is ready.
  void add(const std::string& name, const std::string& path, const ServeOptions& options = {});
  /// Waits until it is loaded. Failure with the reason where it cannot be, and for a name that was
  /// not added.
  void wait(const std::string& name) const;
  /// Answers what waits, refuses what comes, then frees the model.
  void remove(const std::string& name);
  std::vector<ServedModel> models() const;

  Reply submit(const std::string& model, std::vector<Input> inputs,
               const SubmitOptions& options = {});
  /// The same with a function that is called once with the response, on a thread of the server or
  /// before submit() returns.
  Reply submit(const std::string& model, std::vector<Input> inputs, const SubmitOptions& options,
               std::function<void(Response)> done);

  /// Takes no more requests; what was taken is answered.
  void drain();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace obelisk

#include "obelisk/server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "api/state.h"
#include "base/parallel.h"
#include "serve/serve.h"

namespace obelisk {

using api::guarded;
using api::raise;
using api::value_or_raise;

#define SAME(name) \
  static_assert(static_cast<int>(Outcome::name) == static_cast<int>(serve::Outcome::name))
SAME(kOk);
SAME(kBadRequest);
SAME(kNotFound);
SAME(kNotReady);
SAME(kRejected);
SAME(kLate);
SAME(kCancelled);
SAME(kFailed);
#undef SAME

struct Response::State {
  serve::Answer answer;
  std::string error;
  std::optional<RequestTrace> trace;
  std::vector<Port> outputs;
};

struct Reply::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Response> response;
  std::function<void(Response)> done;
  std::weak_ptr<serve::Engine> engine;
  serve::RequestKey key = 0;
  std::chrono::microseconds spin{0};  // before a thread that waits for it sleeps
  std::atomic<bool> came{false};
  void poll() const {
    const auto until = std::chrono::steady_clock::now() + spin;
    constexpr int kPolls = 64;  // between looks at the clock
    while (!came.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until)
      for (int k = 0; k < kPolls && !came.load(std::memory_order_relaxed); ++k) spin_pause();
  }
};

/// Files of models may be cut while they load and are served.
struct Copies {
  Copies() { MappedFile::open_copies(); }
  ~Copies() { MappedFile::open_copies(false); }
  Copies(const Copies&) = delete;
};

struct Server::State {
  Copies copies;  // as long as the engine reads
  std::chrono::microseconds spin{0};
  std::shared_ptr<serve::Engine> engine;
};

namespace {

/// `count` and `bytes` are 0 where requests choose an extent.
Port port_of(const std::string& name, DType dtype, const Shape& shape) {
  Port port{name, static_cast<Element>(dtype), shape, 0, 0};
  const bool chosen = std::any_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; });
  if (chosen) return port;
  port.count = checked_element_count(shape).value_or(0);
  if (port.count > 0) port.bytes = static_cast<size_t>(Type{dtype, shape}.bytes());
  return port;
}

}  // namespace

// ---- Response ----

Outcome Response::outcome() const noexcept { return static_cast<Outcome>(state_->answer.outcome); }
const std::string& Response::error() const noexcept { return state_->error; }
std::optional<std::chrono::nanoseconds> Response::retry_after() const noexcept {
  return state_->answer.retry_after;
}
const std::optional<RequestTrace>& Response::trace() const noexcept { return state_->trace; }
std::span<const Port> Response::outputs() const noexcept { return state_->outputs; }

std::span<const std::byte> Response::output_bytes(const std::string& name) const {
  return guarded([&]() -> std::span<const std::byte> {
    if (!ok()) raise({Code::kUsage, "api", "there is no answer: " + state_->error});
    return state_->answer.outputs[api::find_port(state_->outputs, name, "output")].bytes;
  });
}

std::span<const std::byte> Response::memory(const std::string& name, Element element) const {
  const std::span<const std::byte> bytes = output_bytes(name);
  const Port& port = state_->outputs[api::find_port(state_->outputs, name, "output")];
  if (port.element != element)
    raise({Code::kUsage, "api",
           fmt::format("output '{}' is {}, not {}", name, element_name(port.element),
                       element_name(element))});
  return bytes;
}

// ---- Reply ----

bool Reply::ready() const { return state_->came.load(std::memory_order_acquire); }

bool Reply::wait_for(std::chrono::nanoseconds time) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, time, [&] { return state_->response.has_value(); });
}

Response Reply::get() const {
  state_->poll();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->response.has_value(); });
  return *state_->response;
}

void Reply::cancel() const {
  if (const auto engine = state_->engine.lock()) engine->cancel(state_->key);
}

// ---- Server ----

Server::Server(const ServerOptions& options) {
  guarded([&] {
    serve::EngineOptions wanted;
    if (options.target != "cpu") runtime::want_hardware_queues();
    const compiler::FoundMachine machine =
        value_or_raise(compiler::find_machine(options.target, 0, options.workers));
    if (machine.target != "cpu" && machine.name.empty())
      raise({Code::kUsage, "api",
             fmt::format("'{}' is no device that a server runs on", options.target), "",
             "cpu, cuda, or cuda:N"});
    if (machine.target != "cpu")
      wanted.device =
          value_or_raise(serve::gpu_device({.index = machine.gpu,
                                            .instances = options.instances,
                                            .widths = options.widths,
                                            .pooled_streams = options.pooled_streams,
                                            .priorities = options.priorities,
                                            .keep_warm_bytes = options.keep_warm_bytes}));
    wanted.keep_warm = std::chrono::microseconds(options.keep_warm_us);
    wanted.workers = options.workers, wanted.verify = options.verify,
    wanted.verify_seconds = options.verify_seconds;
    wanted.batch_invariant = options.batch_invariant;
    wanted.compiler = options.compiler, wanted.cache = options.cache;
    wanted.memory_limit = options.memory_limit, wanted.record = options.record;
    wanted.policy = value_or_raise(serve::policy_named(options.policy));
    state_ = std::make_unique<State>();
    if (wanted.device) state_->spin = wanted.device->spin().all;
    state_->engine = serve::make_engine(std::move(wanted));
  });
}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

void Server::add(const std::string& name, const std::string& path, const ServeOptions& options) {
  guarded([&] {
    serve::ModelConfig config{.name = name,
                              .path = path,
                              .dimensions = options.dimensions,
                              .batch_dimension = options.batch_dimension,
                              .max_batch = options.max_batch,
                              .precision = options.precision,
                              .granularity = options.granularity,
                              .batch_invariant = options.batch_invariant,
                              .deadline = options.deadline,
                              .priority = options.priority,
                              .weight = options.weight,
                              .queue_limit = options.queue_limit};
    state_->engine->add(std::move(config));
  });
}

void Server::wait(const std::string& name) const {
  guarded([&] {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
      const auto info = state_->engine->model(name);
      if (!info) raise({Code::kUsage, "api", fmt::format("there is no model '{}'", name)});
      if (info->state == serve::ModelState::kReady) return;
      if (info->state == serve::ModelState::kFailed)
        raise({Code::kBadModel, "api",
               fmt::format("the model '{}' could not be loaded: {}", name, info->reason)});
      if (info->state == serve::ModelState::kUnloading)
        raise({Code::kUsage, "api", fmt::format("the model '{}' is being removed", name)});
    }
  });
}

void Server::remove(const std::string& name) {
  guarded([&] { state_->engine->remove(name); });
}

std::vector<ServedModel> Server::models() const {
  return guarded([&] {
    std::vector<ServedModel> all;
    for (const serve::ModelInfo& info : state_->engine->models()) {
      ServedModel model{.name = info.config.name,
                        .ready = info.state == serve::ModelState::kReady,
                        .reason = info.reason,
                        .programs = info.programs,
                        .memory_bytes = info.memory_bytes,
                        .weights_here = info.weights_here};
      for (const serve::PortInfo& port : info.inputs)
        model.inputs.push_back(port_of(port.name, port.dtype, port.shape));
      for (const serve::PortInfo& port : info.outputs)
        model.outputs.push_back(port_of(port.name, port.dtype, port.shape));
      const serve::ModelCounts& counts = info.counts;
      model.answered = counts.ok, model.failed = counts.failed, model.rejected = counts.rejected,
      model.late = counts.late, model.cancelled = counts.cancelled;
      model.launches = counts.launches, model.rows = counts.rows, model.in_time = counts.in_time,
      model.with_deadline = counts.with_deadline;
      model.waiting = counts.waiting, model.to_come = info.to_come;
      all.push_back(std::move(model));
    }
    return all;
  });
}

Reply Server::submit(const std::string& model, std::vector<Input> inputs,
                     const SubmitOptions& options) {
  return submit(model, std::move(inputs), options, {});
}

Reply Server::submit(const std::string& model, std::vector<Input> inputs,
                     const SubmitOptions& options, std::function<void(Response)> done) {
  return guarded([&] {
    Reply reply;
    reply.state_ = std::make_shared<Reply::State>();
    reply.state_->done = std::move(done), reply.state_->engine = state_->engine;
    reply.state_->spin = state_->spin;
    serve::Request request{.model = model,
                           .id = options.id,
                           .tenant = options.client,
                           .deadline = options.deadline,
                           .priority = options.priority,
                           .trace = options.trace};
    struct Kept {
      std::vector<Tensor> copies;
      std::vector<std::shared_ptr<const void>> owners;
    };
    auto kept = std::make_shared<Kept>();
    for (Input& input : inputs) {
      std::span<const std::byte> bytes = input.bytes;
      const bool pinned = input.pinned && input.owner;
      if (input.owner || input.on_device) {
        kept->owners.push_back(std::move(input.owner));
      } else {
        kept->copies.push_back(Tensor::allocate({DType::u8, {static_cast<int64_t>(bytes.size())}}));
        if (!bytes.empty())
          std::memcpy(kept->copies.back().mutable_data(), bytes.data(), bytes.size());
        bytes = {static_cast<const std::byte*>(kept->copies.back().data()), bytes.size()};
      }
      request.inputs.push_back({std::move(input.name), static_cast<DType>(input.element),
                                std::move(input.shape), bytes, input.on_device, pinned});
    }
    request.keep = std::move(kept);
    auto came = [state = reply.state_](serve::Answer answer) {
      auto made = std::make_shared<Response::State>();
      if (answer.error) made->error = answer.error->text();
      for (const serve::OutputView& output : answer.outputs)
        made->outputs.push_back(port_of(output.name, output.dtype, output.shape));
      if (answer.trace) {
        serve::Trace& trace = *answer.trace;
        made->trace = RequestTrace{std::move(trace.variant),
                                   trace.lane,
                                   std::move(trace.partners),
                                   trace.batch_rows,
                                   trace.queued,
                                   trace.ran,
                                   trace.slack,
                                   std::move(trace.reason)};
      }
      made->answer = std::move(answer);
      Response response;
      response.state_ = std::move(made);
      const std::function<void(Response)> done = std::move(state->done);
      {
        std::lock_guard lock(state->mutex);
        state->response = response;
        state->came.store(true, std::memory_order_release);
      }
      state->changed.notify_all();
      if (done) done(std::move(response));
    };
    const serve::RequestKey key = state_->engine->submit(std::move(request), std::move(came));
    reply.state_->key = key;
    return reply;
  });
}

void Server::drain() { state_->engine->drain(); }

}  // namespace obelisk

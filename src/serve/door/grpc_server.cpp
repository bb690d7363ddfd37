#include "serve/door/grpc_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "serve/door/adaptive_spin.h"
#include "serve/door/messages.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace obelisk::serve::door {
namespace {

/// The library orders the start of an operation before its end, by means that ThreadSanitizer does
/// not see.
void operation_begins([[maybe_unused]] void* operation) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(operation);
#endif
}
void operation_ended([[maybe_unused]] void* operation) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(operation);
#endif
}

constexpr std::string_view kService = "/inference.GRPCInferenceService/";
constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
constexpr int kInStream = 64;  // calls of one stream that are under way at once

grpc::Status status_of(const Fault& fault) {
  return {static_cast<grpc::StatusCode>(grpc_status(fault.cause)), fault.message};
}

/// A message in one block, with its first tensor on a boundary.
Maybe<std::shared_ptr<Received>> received_from(const grpc::ByteBuffer& buffer,
                                               const std::shared_ptr<BodyMemory>& bodies) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return bad_request("the message cannot be read");
  const size_t offset = slices.empty()
                            ? 0
                            : first_tensor_offset({reinterpret_cast<const char*>(slices[0].begin()),
                                                   slices[0].size()});
  auto received = std::make_shared<Received>();
  if (!received->share.hold(bodies, buffer.Length()))
    return no_room(buffer.Length(), bodies->limit());
  received->body = Block(buffer.Length(), offset);
  size_t at = 0;
  for (const grpc::Slice& slice : slices) {
    memcpy(received->body.data() + at, slice.begin(), slice.size());
    at += slice.size();
  }
  return received;
}

std::string text_from(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

grpc::ByteBuffer buffer_from(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

/// Tensors travel where they lie: `keep` lives as long as their slices.
grpc::ByteBuffer buffer_from(Pieces pieces, const std::shared_ptr<void>& keep) {
  std::vector<grpc::Slice> slices;
  for (size_t k = 0; k < pieces.texts.size(); ++k) {
    if (!pieces.texts[k].empty()) slices.emplace_back(pieces.texts[k]);
    if (k < pieces.tensors.size()) {
      auto* owner = new std::shared_ptr<void>(keep);
      slices.emplace_back(
          const_cast<std::byte*>(pieces.tensors[k].data()), pieces.tensors[k].size(),
          [](void* owner) { delete static_cast<std::shared_ptr<void>*>(owner); }, owner);
    }
  }
  return {slices.data(), slices.size()};
}

std::string metadata(const grpc::GenericServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

/// What is done in one call. All but what `infer` is told comes on the thread of the call's queue.
class Method {
 public:
  virtual ~Method() = default;
  virtual void begin() = 0;
  virtual void read(bool ok) = 0;  // a message, or that none comes any more
  virtual void written(bool) {}
  virtual void cancelled() {}
};

struct Calls;

/// One call, from before it comes until its last operation has ended: each operation keeps it.
class Conversation final : public std::enable_shared_from_this<Conversation> {
 public:
  Conversation(Calls& calls, grpc::ServerCompletionQueue& queue) : calls_(calls), queue_(queue) {}
  ~Conversation();

  /// Waits for a call.
  void wait();
  grpc::GenericServerContext& context() { return context_; }
  grpc::ByteBuffer& message() { return message_; }  // the last that was read

  void read() { stream_.Read(&message_, begin(read_)); }
  void write(const grpc::ByteBuffer& message) { stream_.Write(message, begin(written_)); }
  /// Only the first end of a call counts.
  void finish(const grpc::Status& status) {
    if (!finished_.exchange(true)) stream_.Finish(status, begin(ended_));
  }
  void write_and_finish(const grpc::ByteBuffer& message) {
    if (!finished_.exchange(true))
      stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, begin(ended_));
  }

  /// An operation has ended. `tag` is what its queue told.
  static void over(void* tag, bool ok) {
    operation_ended(tag);
    auto* event = static_cast<Event*>(tag);
    const std::shared_ptr<Conversation> keep = std::move(event->keep);
    ((*keep).*(event->then))(ok);
  }

 private:
  struct Event {
    void (Conversation::*then)(bool ok);
    std::shared_ptr<Conversation> keep;
  };
  void* begin(Event& event) {
    event.keep = shared_from_this();
    operation_begins(&event);
    return &event;
  }
  void on_call(bool ok);
  void on_read(bool ok) {
    guarded([&] { method_->read(ok); });
  }
  void on_written(bool ok) {
    guarded([&] { method_->written(ok); });
  }
  void on_ended(bool) {}
  void on_gone(bool) {
    if (context_.IsCancelled() && method_) method_->cancelled();
  }
  template <typename Function>
  void guarded(const Function& function) {
    try {
      function();
    } catch (const std::exception& bug) {
      finish({grpc::StatusCode::INTERNAL, bug.what()});
    }
  }

  Calls& calls_;
  grpc::ServerCompletionQueue& queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer message_;
  std::unique_ptr<Method> method_;
  std::atomic<bool> finished_{false};
  Event called_{&Conversation::on_call, {}}, read_{&Conversation::on_read, {}},
      written_{&Conversation::on_written, {}}, ended_{&Conversation::on_ended, {}},
      gone_{&Conversation::on_gone, {}};
};

/// The parts that single calls and calls of a stream share.
class Caller {
 public:
  Caller(Service& service, grpc::GenericServerContext& context, std::string tenant)
      : service_(service),
        tenant_(std::move(tenant)),
        header_tenant_(metadata(context, "x-tenant").substr(0, 256)),
        deadline_(context.deadline()) {}

  /// `done` gets the call (null where there is none) and its answer or fault, once.
  template <typename Done>
  RequestKey infer(grpc::ByteBuffer& message, bool stream, Done done) {
    const auto arrival = Clock::now();
    auto received = received_from(message, service_.bodies);
    message.Clear();
    if (!received.ok()) return done(nullptr, nullptr, &received.fault()), 0;
    auto parsed = read_infer(*received, service_.memory);
    if (!parsed.ok()) return done(nullptr, nullptr, &parsed.fault()), 0;
    const auto call = std::make_shared<Call>(std::move(*parsed));
    call->request.arrival = arrival;
    if (!tenant_.empty())
      call->request.tenant = tenant_;
    else if (call->request.tenant.empty())
      call->request.tenant = header_tenant_;
    // A stream's deadline is that of all its calls together.
    if (!stream && deadline_ < std::chrono::system_clock::now() + std::chrono::hours(24 * 365))
      apply_transport_deadline(
          *call, std::max(std::chrono::nanoseconds(deadline_ - std::chrono::system_clock::now()),
                          std::chrono::nanoseconds(1)));
    return service_.infer(call, [this, call, done = std::move(done)](Answer answer) {
      DeliveryTime& delivery = service_.delivery;  // this may be gone behind `done`
      const auto ended = Clock::now();
      done(call, &answer, nullptr);
      delivery.note(Clock::now() - ended);
    });
  }

 private:
  Service& service_;
  std::string tenant_, header_tenant_;
  std::chrono::system_clock::time_point deadline_;
};

class Single final : public Method {
 public:
  Single(Service& service, Conversation& call, std::string method, std::string tenant)
      : service_(service),
        call_(call),
        caller_(service, call.context(), std::move(tenant)),
        method_(std::move(method)) {}

  void begin() override { call_.read(); }
  void read(bool ok) override {
    if (!ok) return call_.finish({grpc::StatusCode::INTERNAL, "the request did not arrive"});
    if (method_ == "ModelInfer")
      infer();
    else
      answer();
  }
  void cancelled() override {
    cancelled_ = true;
    if (key_) service_.engine.cancel(key_);
  }

 private:
  void infer() {
    key_ = caller_.infer(
        call_.message(), false,
        [this, keep = call_.shared_from_this()](const std::shared_ptr<Call>& call,
                                                const Answer* answer, const Fault* fault) {
          if (fault) return call_.finish(status_of(*fault));
          auto pieces = write_infer(*call, *answer, service_.memory);
          if (!pieces.ok()) return call_.finish(status_of(pieces.fault()));
          call_.write_and_finish(buffer_from(std::move(*pieces), answer->keep));
        });
    if (cancelled_) service_.engine.cancel(key_);
  }

  void end(const grpc::Status& status) { call_.finish(status); }
  void send(const std::string& text) { call_.write_and_finish(buffer_from(text)); }
  void settle(const Checked& wrong) {
    if (wrong)
      end(status_of(*wrong));
    else
      send("");
  }

  void answer() {
    const std::string text = text_from(call_.message());
    if (method_ == "ServerLive") return send(write_bool(true));
    if (method_ == "ServerReady") return send(write_bool(service_.ready()));
    if (method_ == "ServerMetadata") return send(write_server_metadata(service_.options.version));
    if (method_ == "ModelReady" || method_ == "ModelMetadata" || method_ == "ModelConfig" ||
        method_ == "ModelStatistics") {
      auto named = read_named(text);
      if (!named.ok()) return end(status_of(named.fault()));
      if (method_ == "ModelReady")
        return send(write_bool(service_.model_ready(named->name, named->version)));
      if (method_ == "ModelStatistics" && named->name.empty())
        return send(write_statistics(service_.engine.models()));
      auto info = service_.model(named->name, named->version);
      if (!info.ok()) return end(status_of(info.fault()));
      if (method_ == "ModelStatistics") return send(write_statistics({std::move(*info)}));
      if (info->inputs.empty() && info->outputs.empty() && info->state != ModelState::kReady)
        return end({grpc::StatusCode::UNAVAILABLE,
                    fmt::format("model '{}' is not ready: {}", named->name, info->reason)});
      return send(method_ == "ModelConfig" ? write_config(*info) : write_metadata(*info));
    }
    if (method_ == "RepositoryIndex") {
      auto ready = read_index_ready(text);
      if (!ready.ok()) return end(status_of(ready.fault()));
      return send(write_index(service_.index(*ready)));
    }
    if (method_ == "RepositoryModelLoad" || method_ == "RepositoryModelUnload") {
      auto load = read_load(text);
      if (!load.ok()) return end(status_of(load.fault()));
      if (load->has_config)
        return end({grpc::StatusCode::UNIMPLEMENTED,
                    "models are loaded as the repository has them; configurations and files are "
                    "not taken from clients"});
      const auto done = [this, keep = call_.shared_from_this()](const Checked& wrong) {
        settle(wrong);
      };
      return method_ == "RepositoryModelLoad" ? service_.load(load->model, done)
                                              : service_.unload(load->model, done);
    }
    if (method_ == "SystemSharedMemoryStatus") {
      auto named = read_named(text);
      if (!named.ok()) return end(status_of(named.fault()));
      auto regions = service_.memory.status(named->name);
      if (!regions.ok()) return end(status_of(regions.fault()));
      return send(write_regions(*regions));
    }
    if (method_ == "SystemSharedMemoryRegister") {
      auto region = read_region(text);
      if (!region.ok()) return end(status_of(region.fault()));
      return settle(service_.memory.register_region(*region));
    }
    if (method_ == "SystemSharedMemoryUnregister") {
      auto named = read_named(text);
      if (!named.ok()) return end(status_of(named.fault()));
      return settle(service_.memory.unregister(named->name));
    }
    if (method_ == "CudaSharedMemoryStatus" || method_ == "CudaSharedMemoryUnregister")
      return send("");
    if (method_ == "CudaSharedMemoryRegister")
      return end({grpc::StatusCode::UNIMPLEMENTED, "CUDA shared memory is not served"});
    if (method_ == "LogSettings") {
      auto settings = read_log_settings(text, service_.log.settings());
      if (!settings.ok()) return end(status_of(settings.fault()));
      service_.log.set(*settings);
      return send(write_log_settings(*settings));
    }
    if (method_ == "TraceSetting") {
      auto changes = read_changes_trace(text);
      if (!changes.ok()) return end(status_of(changes.fault()));
      if (*changes)
        return end({grpc::StatusCode::UNIMPLEMENTED,
                    "trace settings cannot be changed; the parameter 'trace' of a request brings "
                    "its trace with the answer"});
      return send(write_trace_settings());
    }
    end({grpc::StatusCode::UNIMPLEMENTED,
         fmt::format("there is no method '{}'", method_.substr(0, 100))});
  }

  Service& service_;
  Conversation& call_;
  Caller caller_;
  const std::string method_;
  RequestKey key_ = 0;  // of the queue's thread, as `cancelled_`
  bool cancelled_ = false;
};

/// ModelStreamInfer: calls one after the other on one stream, answers as they come.
class Stream final : public Method {
 public:
  Stream(Service& service, Conversation& call, std::string tenant)
      : service_(service), call_(call), caller_(service, call.context(), std::move(tenant)) {}

  void begin() override { call_.read(); }
  void read(bool ok) override {
    if (!ok) {
      const std::lock_guard lock(mutex_);
      reading_ = false, ended_ = true;
      return finish_if_over();
    }
    grpc::ByteBuffer message;
    message.Swap(&call_.message());
    uint64_t turn;
    {
      const std::lock_guard lock(mutex_);
      turn = ++turns_;
      keys_[turn] = 0;
    }
    const RequestKey key = caller_.infer(
        message, true,
        [this, turn, keep = call_.shared_from_this()](const std::shared_ptr<Call>& call,
                                                      const Answer* answer, const Fault* fault) {
          auto pieces =
              fault ? Maybe<Pieces>(*fault) : write_infer(*call, *answer, service_.memory);
          if (!pieces.ok())
            return push(turn, buffer_from(stream_error(pieces.fault().message), nullptr));
          push(turn, buffer_from(in_stream(std::move(*pieces)), answer->keep));
        });
    bool cancel = false;
    {
      const std::lock_guard lock(mutex_);
      if (const auto mine = keys_.find(turn); mine != keys_.end())
        mine->second = key, cancel = cancelled_;
      reading_ = static_cast<int>(keys_.size()) < kInStream;
      if (reading_) call_.read();
    }
    if (cancel) service_.engine.cancel(key);
  }
  void written(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) waiting_.clear();
    write_next();
    finish_if_over();
  }
  void cancelled() override {
    std::vector<RequestKey> keys;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      for (const auto& [turn, key] : keys_) keys.push_back(key);
    }
    for (RequestKey key : keys)
      if (key) service_.engine.cancel(key);
  }

 private:
  void push(uint64_t turn, grpc::ByteBuffer message) {
    const std::lock_guard lock(mutex_);
    keys_.erase(turn);
    waiting_.push_back(std::move(message));
    write_next();
    // The reader that is not back yet reads on itself.
    if (!reading_ && !ended_) reading_ = true, call_.read();
    finish_if_over();
  }
  void write_next() {
    if (writing_ || waiting_.empty()) return;
    writing_ = true;
    call_.write(waiting_.front());
    waiting_.pop_front();
  }
  void finish_if_over() {
    if (ended_ && !writing_ && waiting_.empty() && keys_.empty()) call_.finish(grpc::Status::OK);
  }

  Service& service_;
  Conversation& call_;
  Caller caller_;
  std::mutex mutex_;  // answers come on other threads
  std::deque<grpc::ByteBuffer> waiting_;
  std::map<uint64_t, RequestKey> keys_;  // calls under way
  uint64_t turns_ = 0;
  bool reading_ = true, ended_ = false, writing_ = false, cancelled_ = false;
};

class Refused final : public Method {
 public:
  Refused(Conversation& call, grpc::Status status) : call_(call), status_(std::move(status)) {}
  void begin() override { call_.finish(status_); }
  void read(bool) override {}

 private:
  Conversation& call_;
  const grpc::Status status_;
};

class Watch;

/// grpc.health.v1: of the server as a whole, and of the one service that it has.
class Health {
 public:
  bool ready() const { return ready_; }
  static bool knows(const std::string& service) {
    return service.empty() || service == kService.substr(1, kService.size() - 2);
  }
  void set(bool ready);
  /// Ends the watchers' calls.
  void stop();
  void add(const std::shared_ptr<Conversation>& call, Watch& watch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(watchers_, [](const Watching& each) { return each.call.expired(); });
    watchers_.push_back({call, &watch});
  }

 private:
  struct Watching {
    std::weak_ptr<Conversation> call;  // owns `watch`
    Watch* watch;
  };
  template <typename Function>
  void each(const Function& function) {
    std::vector<Watching> all;
    {
      const std::lock_guard lock(mutex_);
      all = watchers_;
    }
    for (const Watching& watching : all)
      if (const auto keep = watching.call.lock()) function(*watching.watch);
  }
  std::atomic<bool> ready_{false};
  std::mutex mutex_;
  std::vector<Watching> watchers_;
};

/// Health/Check: one question, one answer.
class Check final : public Method {
 public:
  Check(const Health& health, Conversation& call) : health_(health), call_(call) {}
  void begin() override { call_.read(); }
  void read(bool ok) override {
    if (!ok) return call_.finish({grpc::StatusCode::INTERNAL, "the request did not arrive"});
    auto named = read_named(text_from(call_.message()));
    if (!named.ok()) return call_.finish(status_of(named.fault()));
    if (!Health::knows(named->name))
      return call_.finish({grpc::StatusCode::NOT_FOUND, "there is no such service"});
    call_.write_and_finish(buffer_from(
        write_health(health_.ready() ? HealthStatus::kServing : HealthStatus::kNotServing)));
  }

 private:
  const Health& health_;
  Conversation& call_;
};

/// Health/Watch: a message now, and one for each change.
class Watch final : public Method {
 public:
  Watch(Health& health, Conversation& call) : health_(health), call_(call) {}
  void begin() override { call_.read(); }
  void read(bool ok) override {
    if (!ok) return call_.finish({grpc::StatusCode::INTERNAL, "the request did not arrive"});
    auto named = read_named(text_from(call_.message()));
    if (!named.ok()) return call_.finish(status_of(named.fault()));
    known_ = Health::knows(named->name);
    health_.add(call_.shared_from_this(), *this);
    tell();
  }
  void written(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false, stops_ |= !ok;
    next();
  }
  void cancelled() override { stop(); }
  void tell() {
    const std::lock_guard lock(mutex_);
    next();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    next();
  }

 private:
  void next() {
    if (writing_) return;
    if (stops_) return call_.finish({grpc::StatusCode::CANCELLED, "the server is shutting down"});
    const HealthStatus status = !known_           ? HealthStatus::kUnknown
                                : health_.ready() ? HealthStatus::kServing
                                                  : HealthStatus::kNotServing;
    if (told_ == status) return;
    writing_ = true, told_ = status;
    call_.write(buffer_from(write_health(status)));
  }

  Health& health_;
  Conversation& call_;
  std::mutex mutex_;
  std::optional<HealthStatus> told_;
  bool known_ = false, writing_ = false, stops_ = false;
};

void Health::set(bool ready) {
  ready_ = ready;
  each([](Watch& watch) { watch.tell(); });
}
void Health::stop() {
  each([](Watch& watch) { watch.stop(); });
}

/// What all calls share.
struct Calls {
  Service& service;
  grpc::AsyncGenericService generic;
  Health health;
  std::mutex mutex;
  std::condition_variable fewer;
  int live = 0;  // conversations

  std::unique_ptr<Method> method(Conversation& call) {
    const std::string& path = call.context().method();
    if (path == std::string(kHealth) + "Check") return std::make_unique<Check>(health, call);
    if (path == std::string(kHealth) + "Watch") return std::make_unique<Watch>(health, call);
    if (!path.starts_with(kService))
      return std::make_unique<Refused>(
          call,
          grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                       fmt::format("there is no service of the method '{}'", path.substr(0, 100))));
    const std::string name = path.substr(kService.size());
    std::string tenant;
    if (name != "ServerLive" && name != "ServerReady") {
      auto known = service.tenant_of(metadata(call.context(), "authorization"));
      if (!known.ok()) return std::make_unique<Refused>(call, status_of(known.fault()));
      tenant = std::move(*known);
    }
    if (name == "ModelStreamInfer")
      return std::make_unique<Stream>(service, call, std::move(tenant));
    return std::make_unique<Single>(service, call, name, std::move(tenant));
  }
};

void Conversation::wait() {
  {
    const std::lock_guard lock(calls_.mutex);
    ++calls_.live;
  }
  context_.AsyncNotifyWhenDone(begin(gone_));
  calls_.generic.RequestCall(&context_, &stream_, &queue_, &queue_, begin(called_));
}
Conversation::~Conversation() {
  method_.reset();
  const std::lock_guard lock(calls_.mutex);
  --calls_.live;
  calls_.fewer.notify_all();
}
void Conversation::on_call(bool ok) {
  if (!ok) {
    gone_.keep.reset();  // of a call that never came nothing more is told
    return;
  }
  std::make_shared<Conversation>(calls_, queue_)->wait();
  guarded([&] {
    method_ = calls_.method(*this);
    method_->begin();
  });
}

/// Completion queues with a thread each, which polls the sockets itself: a callback service would
/// wake two more threads for each call.
class Server final : public GrpcServer {
 public:
  explicit Server(Service& service) : calls_{service, {}, {}, {}, {}} {}
  ~Server() override { stop(std::chrono::milliseconds(0)); }

  Status listen(const GrpcOptions& options) {
    grpc::ServerBuilder builder;
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (!options.certificate.empty()) {
      TRY(const std::string certificate, read_file(options.certificate));
      TRY(const std::string key, read_file(options.key));
      grpc::SslServerCredentialsOptions tls;
      tls.pem_key_cert_pairs.push_back({key, certificate});
      credentials = grpc::SslServerCredentials(tls);
    }
    const bool v6 = options.host.find(':') != std::string::npos;
    builder.AddListeningPort(
        fmt::format("{}:{}", v6 ? "[" + options.host + "]" : options.host, options.port),
        credentials, &port_);
    builder.SetMaxReceiveMessageSize(
        static_cast<int>(std::min<size_t>(options.most_message, INT32_MAX)));
    builder.SetMaxSendMessageSize(-1);
    // What is arriving: the library slows its senders down, and cancels calls beyond that.
    grpc::ResourceQuota quota("requests");
    quota.Resize(std::max<size_t>(calls_.service.bodies->limit(), 64 << 20));
    builder.SetResourceQuota(quota);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 7'200'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 300'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
    builder.RegisterAsyncGenericService(&calls_.generic);
    for (int k = 0; k < std::max(options.threads, 1); ++k)
      queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (!server_ || port_ == 0) {
      end_queues();
      return Error{Code::kUsage, "serve",
                   fmt::format("cannot listen on {}:{} for gRPC", options.host, options.port), "",
                   "another --host or --grpc"};
    }
    for (auto& queue : queues_) {
      std::make_shared<Conversation>(calls_, *queue)->wait();
      threads_.emplace_back([&queue = *queue, spin = options.spin] { poll(queue, spin); });
    }
    return ok_status();
  }

  int port() const override { return port_; }
  void set_ready(bool ready) override { calls_.health.set(ready); }
  void stop(std::chrono::milliseconds patience) override {
    if (!server_) return;
    calls_.health.stop();
    server_->Shutdown(std::chrono::system_clock::now() + patience);
    {
      // Answers that are still to come find their queues.
      std::unique_lock lock(calls_.mutex);
      calls_.fewer.wait(lock, [this] { return calls_.live == 0; });
    }
    for (auto& queue : queues_) queue->Shutdown();
    for (std::thread& thread : threads_) thread.join();
    server_.reset();
  }

 private:
  static void poll(grpc::ServerCompletionQueue& queue, std::chrono::microseconds limit) {
    AdaptiveSpin spin(limit);
    void* tag = nullptr;
    bool ok = false;
    while (true) {
      const auto idle = Clock::now();
      const auto until = idle + spin.limit();
      auto got = grpc::CompletionQueue::TIMEOUT;
      while (got == grpc::CompletionQueue::TIMEOUT && Clock::now() < until)
        got = queue.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
      if (got == grpc::CompletionQueue::TIMEOUT)
        got = queue.Next(&tag, &ok) ? grpc::CompletionQueue::GOT_EVENT
                                    : grpc::CompletionQueue::SHUTDOWN;
      if (got == grpc::CompletionQueue::SHUTDOWN) return;
      spin.waited(Clock::now() - idle);
      Conversation::over(tag, ok);
    }
  }
  void end_queues() {
    void* tag = nullptr;
    bool ok = false;
    for (auto& queue : queues_) {
      queue->Shutdown();
      while (queue->Next(&tag, &ok)) {
      }
    }
  }

  Calls calls_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;  // go after the server
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(GrpcOptions options, Service& service) {
  auto server = std::make_unique<Server>(service);
  TRY_STATUS(server->listen(options));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace obelisk::serve::door

#include "serve/door/grpc_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstring>
#include <deque>

#include "serve/door/messages.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace obelisk::serve::door {
namespace {

/// The library orders what happens to a call: its reactor is made, its callbacks, what they and
/// others start, and its end. It does so by operations that ThreadSanitizer does not see.
void before_others([[maybe_unused]] void* call) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(call);
#endif
}
void after_others([[maybe_unused]] void* call) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(call);
#endif
}
/// Starts something of a call, which others go on with: it may be gone when this returns.
template <typename Start>
void handing_over(void* call, const Start& start) {
  before_others(call);
  start();
  before_others(call);  // what the library read of it on the way; an address, nothing is touched
}
struct Callback {
  explicit Callback(void* call) : call(call) { after_others(call); }
  ~Callback() { before_others(call); }
  void* call;
};

constexpr std::string_view kService = "/inference.GRPCInferenceService/";
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

std::string metadata(const grpc::GenericCallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

/// The parts that single calls and calls of a stream share.
class Caller {
 public:
  Caller(Service& service, grpc::GenericCallbackServerContext& context, std::string tenant)
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
    return service_.infer(
        call, [call, done = std::move(done)](Answer answer) { done(call, &answer, nullptr); });
  }

 private:
  Service& service_;
  std::string tenant_, header_tenant_;
  std::chrono::system_clock::time_point deadline_;
};

class Single final : public grpc::ServerGenericBidiReactor {
 public:
  Single(Service& service, grpc::GenericCallbackServerContext& context, std::string method,
         std::string tenant)
      : service_(service),
        caller_(service, context, std::move(tenant)),
        method_(std::move(method)) {
    handing_over(this, [&] { StartRead(&request_); });
  }

  void OnReadDone(bool ok) override {
    const Callback callback(this);
    if (!ok) return Finish({grpc::StatusCode::INTERNAL, "the request did not arrive"});
    try {
      if (method_ == "ModelInfer")
        infer();
      else
        answer();
    } catch (const std::exception& bug) {
      end({grpc::StatusCode::INTERNAL, bug.what()});
    }
  }
  void OnCancel() override {
    const Callback callback(this);
    cancelled_ = true;
    if (const RequestKey key = key_.load()) service_.engine.cancel(key);
  }
  void OnDone() override {
    after_others(this);
    delete this;
  }

 private:
  void infer() {
    const RequestKey key = caller_.infer(
        request_, false,
        [this](const std::shared_ptr<Call>& call, const Answer* answer, const Fault* fault) {
          if (fault) return end(status_of(*fault));
          auto pieces = write_infer(*call, *answer, service_.memory);
          if (!pieces.ok()) return end(status_of(pieces.fault()));
          response_ = buffer_from(std::move(*pieces), answer->keep);
          finish_with_response();
        });
    // This object lives until here in any case: OnDone waits for callbacks to return.
    key_ = key;
    if (cancelled_) service_.engine.cancel(key);
  }

  void end(const grpc::Status& status) {
    if (finished_.exchange(true)) return;
    handing_over(this, [&] { Finish(status); });
  }
  void send(const std::string& text) {
    response_ = buffer_from(text);
    finish_with_response();
  }
  void finish_with_response() {
    if (finished_.exchange(true)) return;
    handing_over(this,
                 [&] { StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK); });
  }
  void settle(const Checked& wrong) {
    if (wrong)
      end(status_of(*wrong));
    else
      send("");
  }

  void answer() {
    const std::string text = text_from(request_);
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
      const auto done = [this](const Checked& wrong) { settle(wrong); };
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
  Caller caller_;
  std::string method_;
  grpc::ByteBuffer request_, response_;
  std::atomic<RequestKey> key_{0};
  std::atomic<bool> cancelled_{false}, finished_{false};
};

/// ModelStreamInfer: calls one after the other on one stream, answers as they come.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  Stream(Service& service, grpc::GenericCallbackServerContext& context, std::string tenant)
      : service_(service), caller_(service, context, std::move(tenant)) {
    read();
  }

  void OnReadDone(bool ok) override {
    const Callback callback(this);
    if (!ok) {
      const Locked lock(mutex_);
      reading_ = false, ended_ = true;
      return finish_if_over();
    }
    grpc::ByteBuffer message;
    message.Swap(&request_);
    uint64_t turn;
    {
      const Locked lock(mutex_);
      turn = ++turns_;
      keys_[turn] = 0;
    }
    const RequestKey key = caller_.infer(
        message, true,
        [this, turn](const std::shared_ptr<Call>& call, const Answer* answer, const Fault* fault) {
          auto pieces =
              fault ? Maybe<Pieces>(*fault) : write_infer(*call, *answer, service_.memory);
          if (!pieces.ok())
            return push(turn, buffer_from(stream_error(pieces.fault().message), nullptr));
          push(turn, buffer_from(in_stream(std::move(*pieces)), answer->keep));
        });
    const Locked lock(mutex_);
    if (const auto mine = keys_.find(turn); mine != keys_.end()) {
      mine->second = key;
      if (cancelled_) service_.engine.cancel(key);
    }
    reading_ = static_cast<int>(keys_.size()) < kInStream;
    if (reading_) read();
  }
  void OnWriteDone(bool ok) override {
    const Callback callback(this);
    const Locked lock(mutex_);
    writing_ = false;
    if (!ok) waiting_.clear();
    write_next();
    finish_if_over();
  }
  void OnCancel() override {
    const Callback callback(this);
    std::vector<RequestKey> keys;
    {
      const Locked lock(mutex_);
      cancelled_ = true;
      for (const auto& [turn, key] : keys_) keys.push_back(key);
    }
    for (RequestKey key : keys)
      if (key) service_.engine.cancel(key);
  }
  void OnDone() override {
    after_others(this);
    delete this;
  }

 private:
  void push(uint64_t turn, grpc::ByteBuffer message) {
    const Locked lock(mutex_);
    keys_.erase(turn);
    waiting_.push_back(std::move(message));
    write_next();
    // The reader that is not back yet reads on itself.
    if (!reading_ && !ended_) reading_ = true, read();
    finish_if_over();
  }
  void read() {
    handing_over(this, [&] { StartRead(&request_); });
  }
  void write_next() {
    if (writing_ || waiting_.empty() || finished_) return;
    writing_ = true;
    response_ = std::move(waiting_.front());
    waiting_.pop_front();
    handing_over(this, [&] { StartWrite(&response_); });
  }
  void finish_if_over() {
    if (finished_ || !ended_ || writing_ || !waiting_.empty() || !keys_.empty()) return;
    finished_ = true;
    handing_over(this, [&] { Finish(grpc::Status::OK); });
  }

  Service& service_;
  Caller caller_;
  /// The last answer may end this object while its thread still holds the lock, so that the mutex
  /// lives on.
  struct Locked {
    explicit Locked(std::shared_ptr<std::recursive_mutex> given)
        : mutex(std::move(given)), lock(*mutex) {}
    std::shared_ptr<std::recursive_mutex> mutex;
    std::lock_guard<std::recursive_mutex> lock;
  };
  std::shared_ptr<std::recursive_mutex> mutex_ = std::make_shared<std::recursive_mutex>();
  grpc::ByteBuffer request_, response_;
  std::deque<grpc::ByteBuffer> waiting_;
  std::map<uint64_t, RequestKey> keys_;  // calls under way
  uint64_t turns_ = 0;
  bool reading_ = true, ended_ = false, writing_ = false, finished_ = false, cancelled_ = false;
};

class Refused final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refused(const grpc::Status& status) {
    handing_over(this, [&] { Finish(status); });
  }
  void OnDone() override {
    after_others(this);
    delete this;
  }
};

class Methods final : public grpc::CallbackGenericService {
 public:
  explicit Methods(Service& service) : service_(service) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const std::string& method = context->method();
    if (!method.starts_with(kService))
      return new Refused(
          {grpc::StatusCode::UNIMPLEMENTED,
           fmt::format("there is no service of the method '{}'", method.substr(0, 100))});
    const std::string name = method.substr(kService.size());
    std::string tenant;
    if (name != "ServerLive" && name != "ServerReady") {
      auto known = service_.tenant_of(metadata(*context, "authorization"));
      if (!known.ok()) return new Refused(status_of(known.fault()));
      tenant = std::move(*known);
    }
    if (name == "ModelStreamInfer") return new Stream(service_, *context, std::move(tenant));
    return new Single(service_, *context, name, std::move(tenant));
  }

 private:
  Service& service_;
};

class Server final : public GrpcServer {
 public:
  explicit Server(Service& service) : methods_(service) {}
  ~Server() override { stop(std::chrono::milliseconds(0)); }

  Status listen(const GrpcOptions& options, const BodyMemory& bodies) {
    grpc::EnableDefaultHealthCheckService(true);
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
    quota.Resize(std::max<size_t>(bodies.limit(), 64 << 20));
    builder.SetResourceQuota(quota);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 7'200'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 300'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
    builder.RegisterCallbackGenericService(&methods_);
    server_ = builder.BuildAndStart();
    if (!server_ || port_ == 0)
      return Error{Code::kUsage, "serve",
                   fmt::format("cannot listen on {}:{} for gRPC", options.host, options.port), "",
                   "another --host or --grpc"};
    set_ready(false);
    return ok_status();
  }

  int port() const override { return port_; }
  void set_ready(bool ready) override {
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(ready);
  }
  void stop(std::chrono::milliseconds patience) override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now() + patience);
    server_->Wait();
    server_.reset();
  }

 private:
  Methods methods_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(GrpcOptions options, Service& service) {
  auto server = std::make_unique<Server>(service);
  TRY_STATUS(server->listen(options, *service.bodies));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace obelisk::serve::door

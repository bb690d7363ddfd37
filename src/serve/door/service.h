/// serve/door/service.h — what a door does, whatever the protocol: calls to the engine, models that
/// come and go, health.
///
///   HTTP routes ┐
///               ├── Service ──▶ Engine
///   gRPC calls  ┘
#pragma once

#include <condition_variable>
#include <functional>
#include <set>
#include <thread>

#include "serve/door/delivery.h"
#include "serve/door/infer.h"
#include "serve/door/ledger.h"
#include "serve/door/log.h"
#include "serve/door/shared_memory.h"
#include "serve/door/tenants.h"
#include "serve/engine.h"
#include "serve/lanes.h"

namespace obelisk::serve::door {

/// Where models come from, by name: a folder, mostly.
class Repository {
 public:
  virtual ~Repository() = default;
  virtual std::vector<std::string> names() const = 0;
  /// Errors: kUsage, kBadModel for what is there but cannot be served; nothing for a name that is
  /// not there.
  virtual std::optional<Result<ModelConfig>> find(const std::string& name) const = 0;
};

struct ServiceOptions {
  std::string version;        // of the program
  bool model_control = true;  // clients may load and unload
  bool shared_memory = false;
  size_t body_memory = 0;  // of all requests together; 0: a quarter of the machine's
  std::map<std::string, std::string>
      tokens;  // bearer token to tenant (empty: none of its own); no tokens: everybody may call
  std::map<std::string, TenantClass> tenants;
  std::shared_ptr<Log> log;
};

class Service {
 public:
  Service(Engine& engine, const Repository& repository, ServiceOptions options);
  ~Service();

  Engine& engine;
  const Repository& repository;
  const ServiceOptions options;
  SharedMemory memory;
  const std::shared_ptr<BodyMemory> bodies;
  Tenants tenants;
  Ledger ledger;
  DeliveryTime delivery;  // that transports note, and deadlines handed to the engine are less
  Log& log;
  /// What takes milliseconds (long JSON) runs here and holds up no connection.
  Lanes aside{1};
  Lanes files{1, Lanes::Spin(), 10};  // where models are looked at before they are loaded
  const Clock::time_point started = Clock::now();

  /// Adds every model of the repository; ready when none of them loads any more, and one answers
  /// (if there is one).
  void load_all();
  bool ready() const;
  /// Called once, when the models of load_all are settled.
  void on_ready(std::function<void(bool)> ready) { ready_ = std::move(ready); }
  bool draining() const { return draining_; }
  /// Not ready from now on; calls are answered still, until refuse().
  void drain() { draining_ = true; }
  void refuse() { refusing_ = true; }
  /// Nothing watches the engine from now on.
  void stop();

  /// The tenant that a bearer token stands for, or that the caller may not call.
  Maybe<std::string> tenant_of(std::string_view authorization) const;

  /// Hands the call to the engine. `done` is called once, on any thread; afterwards `call->request`
  /// has its small fields still.
  RequestKey infer(const std::shared_ptr<Call>& call, std::function<void(Answer)> done);

  /// kNotFound where there is no such model or version.
  Maybe<ModelInfo> model(const std::string& name, const std::string& version) const;
  bool model_ready(const std::string& name, const std::string& version) const;

  /// What the last second was like, for load balancers.
  struct Load {
    double requests = 0;     // a second
    double utilization = 0;  // seconds in which a request ran, a second; above 1 where several did
  };
  Load load() const;

  struct IndexEntry {
    std::string name, version, state, reason;
  };
  std::vector<IndexEntry> index(bool only_ready) const;
  /// Models of the repository that cannot even be handed to the engine, and why.
  std::map<std::string, std::string> unreadable() const;

  /// `done` when the model is ready, failed, or gone.
  using Loaded = std::function<void(Checked)>;
  void load(std::string name, Loaded done);
  void unload(const std::string& name, Loaded done);

 private:
  struct Wait {
    std::string model;
    bool gone = false;  // wait for it to go, not to come
    Clock::time_point until;
    Loaded done;
  };
  void watch();
  void settle(const Request& request, const Answer& answer);
  void load_found(const std::string& name, Loaded done);
  void notice_states();
  void notice_load();

  std::atomic<bool> draining_{false}, refusing_{false};
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  bool stopping_ = false, loaded_ = false, told_ = false, answers_ = false;
  std::function<void(bool)> ready_;
  std::set<std::string> starting_;
  std::map<std::string, std::string>
      unreadable_;  // what is there but never came to the engine: why
  std::vector<Wait> waits_;
  std::map<std::string, ModelState> states_;  // of the watching thread
  Load load_;
  uint64_t answered_ = 0;  // of the watching thread, as the next two
  std::chrono::nanoseconds ran_{0};
  Clock::time_point load_at_ = Clock::now();
  std::thread watcher_;
};

constexpr std::string_view kVersion = "1";  // of every model
std::string_view state_name(ModelState state);

}  // namespace obelisk::serve::door

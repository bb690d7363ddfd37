#include "serve/door/service.h"

#include <unistd.h>

#include <fstream>

namespace obelisk::serve::door {
namespace {

constexpr auto kLongestLoad = std::chrono::minutes(30), kLongestUnload = std::chrono::minutes(5);

/// Takes as long for any two texts of one length.
bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differs = 0;
  for (size_t k = 0; k < a.size(); ++k) differs |= static_cast<unsigned char>(a[k] ^ b[k]);
  return differs == 0;
}

/// Bytes that this process may have: the machine's, or those of its control group.
size_t memory_of_machine() {
  auto bytes =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    size_t limit = 0;
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace

std::string_view state_name(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kReady:
      return "READY";
    case ModelState::kUnloading:
      return "UNLOADING";
    case ModelState::kFailed:
      return "UNAVAILABLE";
  }
  return "UNAVAILABLE";
}

Service::Service(Engine& engine, const Repository& repository, ServiceOptions given)
    : engine(engine),
      repository(repository),
      options(std::move(given)),
      memory(options.shared_memory),
      bodies(std::make_shared<BodyMemory>(options.body_memory > 0 ? options.body_memory
                                                                  : memory_of_machine() / 4)),
      tenants(options.tenants),
      log(*options.log),
      watcher_([this] { watch(); }) {}

Service::~Service() { stop(); }

void Service::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  files.stop();
  aside.stop();
}

void Service::load_all() {
  for (const std::string& name : repository.names()) {
    const auto found = repository.find(name);
    if (!found) continue;
    if (!found->ok()) {
      log.error("model")
          .field("model", name)
          .field("state", "failed")
          .field("reason", found->error().text());
      const std::lock_guard lock(mutex_);
      unreadable_[name] = found->error().text();
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      starting_.insert(name);
    }
    engine.add(**found);
  }
  const std::lock_guard lock(mutex_);
  loaded_ = true;
  woken_.notify_all();
}

bool Service::ready() const {
  if (draining_) return false;
  const std::lock_guard lock(mutex_);
  return loaded_ && starting_.empty() && answers_;
}

Maybe<std::string> Service::tenant_of(std::string_view authorization) const {
  if (options.tokens.empty()) return std::string();
  constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer))
    return Fault{Cause::kUnauthorized, "this server asks for a bearer token"};
  authorization.remove_prefix(kBearer.size());
  const std::string* tenant = nullptr;
  for (const auto& [token, its] : options.tokens)
    if (same_secret(token, authorization)) tenant = &its;
  if (!tenant) return Fault{Cause::kUnauthorized, "the bearer token is not known here"};
  return *tenant;
}

/// Counts and logs what became of a request.
void Service::settle(const Request& request, const Answer& answer) {
  ledger.end({request.model, request.tenant, request.arrival, request.deadline}, answer);
  if (answer.outcome == Outcome::kOk && !log.wants(Severity::kVerbose)) return;
  const auto taken =
      std::chrono::duration<double, std::milli>(Clock::now() - request.arrival).count();
  auto line = answer.outcome == Outcome::kFailed ? log.error("request")
              : answer.outcome == Outcome::kOk   ? log.verbose("request")
                                                 : log.info("request");
  auto&& written = std::move(line)
                       .field("model", request.model)
                       .field("tenant", request.tenant)
                       .field("id", request.id)
                       .field("outcome", outcome_name(answer.outcome))
                       .field("ms", taken);
  if (answer.error) std::move(written).field("reason", answer.error->message);
}

RequestKey Service::infer(const std::shared_ptr<Call>& call, std::function<void(Answer)> done) {
  Request& mine = call->request;
  ledger.begin();
  const auto refuse = [&](Answer no) -> RequestKey {
    settle(mine, no);
    done(std::move(no));
    return 0;
  };
  const bool refusing = refusing_;
  if (refusing || (!call->version.empty() && call->version != kVersion)) {
    Answer no;
    no.outcome = refusing ? Outcome::kNotReady : Outcome::kNotFound;
    no.error = Error{Code::kUsage, "serve",
                     refusing ? "the server is shutting down"
                              : fmt::format("model '{}' has version {}, not '{}'", mine.model,
                                            kVersion, call->version.substr(0, 64)),
                     "", ""};
    return refuse(std::move(no));
  }
  if (tenants.any()) {
    const std::string& tenant = mine.tenant.empty() ? mine.model : mine.tenant;
    if (std::optional<Answer> no = tenants.begin(tenant, mine, Clock::now()))
      return refuse(std::move(*no));
  }
  Request sent = std::move(mine);
  mine = Request();
  mine.model = sent.model, mine.id = sent.id, mine.tenant = sent.tenant, mine.trace = sent.trace;
  mine.arrival = sent.arrival, mine.deadline = sent.deadline;
  if (sent.deadline) sent.deadline = delivery.before(*sent.deadline);
  if (!sent.trace) sent.trace = ledger.sample(sent.model);
  return engine.submit(std::move(sent), [this, call, done = std::move(done)](Answer answer) {
    const Request& request = call->request;
    if (tenants.any()) tenants.ended(request.tenant.empty() ? request.model : request.tenant);
    settle(request, answer);
    done(std::move(answer));
  });
}

Maybe<ModelInfo> Service::model(const std::string& name, const std::string& version) const {
  auto found = engine.model(name);
  if (!found)
    return Fault{Cause::kNotFound,
                 fmt::format("Request for unknown model: '{}' is not found", name)};
  if (!version.empty() && version != kVersion)
    return Fault{Cause::kNotFound,
                 fmt::format("Request for unknown model: '{}' has version {}, not '{}'", name,
                             kVersion, version.substr(0, 64))};
  return std::move(*found);
}

bool Service::model_ready(const std::string& name, const std::string& version) const {
  auto found = model(name, version);
  return found.ok() && found->state == ModelState::kReady && !draining_;
}

std::vector<Service::IndexEntry> Service::index(bool only_ready) const {
  std::map<std::string, IndexEntry> out;
  for (const std::string& name : repository.names()) out[name] = {name, "", "", ""};
  for (const auto& [name, reason] : unreadable())
    if (out.contains(name)) out[name] = {name, "", "UNAVAILABLE", reason};
  for (const ModelInfo& info : engine.models())
    out[info.config.name] = {info.config.name, std::string(kVersion),
                             std::string(state_name(info.state)), info.reason};
  std::vector<IndexEntry> listed;
  for (auto& [name, entry] : out)
    if (!only_ready || entry.state == "READY") listed.push_back(std::move(entry));
  return listed;
}

std::map<std::string, std::string> Service::unreadable() const {
  const std::lock_guard lock(mutex_);
  return unreadable_;
}

void Service::load(std::string name, Loaded done) {
  if (!options.model_control)
    return done(Fault{Cause::kForbidden, "loading and unloading is switched off here"});
  if (draining_) return done(Fault{Cause::kUnavailable, "the server is shutting down"});
  files.run([this, name = std::move(name), done = std::move(done)]() mutable {
    load_found(name, std::move(done));
  });
}

void Service::load_found(const std::string& name, Loaded done) {
  const auto found = repository.find(name);
  if (!found)
    return done(
        Fault{Cause::kNotFound,
              fmt::format("failed to load '{}': there is no such model in the repository", name)});
  if (!found->ok()) {
    {
      const std::lock_guard lock(mutex_);
      unreadable_[name] = found->error().text();
    }
    return done(bad_request(fmt::format("failed to load '{}': {}", name, found->error().text())));
  }
  engine.add(**found);
  const std::lock_guard lock(mutex_);
  unreadable_.erase(name);
  waits_.push_back({name, false, Clock::now() + kLongestLoad, std::move(done)});
  woken_.notify_all();
}

void Service::unload(const std::string& name, Loaded done) {
  if (!options.model_control)
    return done(Fault{Cause::kForbidden, "loading and unloading is switched off here"});
  if (!engine.model(name))
    return done(
        Fault{Cause::kNotFound, fmt::format("Request for unknown model: '{}' is not found", name)});
  engine.remove(name);
  const std::lock_guard lock(mutex_);
  waits_.push_back({name, true, Clock::now() + kLongestUnload, std::move(done)});
  woken_.notify_all();
}

void Service::notice_states() {
  std::map<std::string, ModelState> now;
  for (const ModelInfo& info : engine.models()) {
    now[info.config.name] = info.state;
    const auto before = states_.find(info.config.name);
    if (before != states_.end() && before->second == info.state) continue;
    auto line = info.state == ModelState::kFailed ? log.error("model") : log.info("model");
    auto&& written =
        std::move(line).field("model", info.config.name).field("state", state_name(info.state));
    if (!info.reason.empty()) std::move(written).field("reason", info.reason);
  }
  for (const auto& [name, state] : states_)
    if (!now.contains(name)) log.info("model").field("model", name).field("state", "unloaded");
  states_ = std::move(now);
}

Service::Load Service::load() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

void Service::notice_load() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - load_at_).count();
  if (seconds < 0.5) return;
  uint64_t answered = 0;
  std::chrono::nanoseconds ran{0};
  for (const ModelInfo& info : engine.models()) answered += info.counts.ok, ran += info.counts.ran;
  Load load;
  // Counts go with a model that is unloaded.
  if (answered >= answered_ && ran >= ran_)
    load = {static_cast<double>(answered - answered_) / seconds,
            std::chrono::duration<double>(ran - ran_).count() / seconds};
  answered_ = answered, ran_ = ran, load_at_ = now;
  const std::lock_guard lock(mutex_);
  load_ = load;
}

void Service::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    woken_.wait_for(lock, waits_.empty() && starting_.empty() ? std::chrono::milliseconds(200)
                                                              : std::chrono::milliseconds(5));
    if (stopping_) break;
    std::vector<Wait> waits = std::exchange(waits_, {});
    std::vector<std::string> starting(starting_.begin(), starting_.end());
    lock.unlock();
    std::vector<Wait> left;
    for (Wait& wait : waits) {
      const auto found = engine.model(wait.model);
      Checked fault;
      bool over = true;
      if (wait.gone)
        over = !found;
      else if (!found)
        fault = Fault{Cause::kUnavailable,
                      fmt::format("model '{}' was unloaded while it was loading", wait.model)};
      else if (found->state == ModelState::kFailed)
        fault = bad_request(fmt::format("failed to load '{}': {}", wait.model, found->reason));
      else if (found->state == ModelState::kReady && !found->replacing && !found->reason.empty())
        fault = bad_request(fmt::format("failed to load '{}': {}", wait.model, found->reason));
      else
        over = found->state == ModelState::kReady && !found->replacing;
      if (!over && Clock::now() > wait.until)
        over = true,
        fault = Fault{Cause::kUnavailable, fmt::format("model '{}' takes too long", wait.model)};
      if (over)
        wait.done(std::move(fault));
      else
        left.push_back(std::move(wait));
    }
    notice_states();
    notice_load();
    std::vector<std::string> settled;
    for (const std::string& name : starting) {
      const auto found = engine.model(name);
      if (!found || found->state != ModelState::kLoading) settled.push_back(name);
    }
    lock.lock();
    for (Wait& wait : left) waits_.push_back(std::move(wait));
    for (const std::string& name : settled) starting_.erase(name);
    answers_ = states_.empty();
    for (const auto& [name, state] : states_) answers_ |= state == ModelState::kReady;
    if (loaded_ && starting_.empty() && answers_ && !draining_ && !std::exchange(told_, true)) {
      log.info("server").field("state", "ready");
      if (ready_) ready_(true);
    }
  }
  for (Wait& wait : waits_) wait.done(Fault{Cause::kUnavailable, "the server is shutting down"});
  waits_.clear();
}

}  // namespace obelisk::serve::door

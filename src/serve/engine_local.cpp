#include "serve/engine_local.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <unordered_map>

#include "serve/lanes.h"
#include "serve/record.h"
#include "serve/scheduler.h"
#include "serve/times_store.h"
#include "serve/variants.h"

namespace obelisk::serve {
namespace {

Error refusal(Code code, std::string message, std::string hint = "") {
  return {code, "serve", std::move(message), "", std::move(hint)};
}

int cores_we_may_use() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

/// Errors as they are; what is thrown becomes one.
template <typename Function>
auto caught(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{Code::kMemory, "serve", "out of memory", "",
                 "fewer models, smaller batches, or a machine with more memory"};
  } catch (const std::exception& bug) {
    return Error{Code::kBuild, "serve", bug.what(), "",
                 "this is a defect of Obelisk; please report it with the model"};
  }
}

/// In a thread of low priority, as are those that it starts: requests go first. The caller waits.
template <typename Function>
auto behind_requests(const Function& function) -> decltype(function()) {
  std::optional<decltype(function())> made;
  std::thread([&] {
    constexpr int kLow = 10;
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLow);
    made.emplace(caught(function));
  }).join();
  return std::move(*made);
}

/// A model as it is served: from add() until nothing of it runs.
struct Served {
  int number = -1;  // in Times and the window; -1 while it loads
  ModelConfig config;
  ModelState state = ModelState::kLoading;
  std::string reason;
  std::unique_ptr<const Programs> programs;
  std::vector<std::shared_ptr<Variant>> variants;  // as in Times
  std::vector<PortInfo> inputs, outputs;
  int64_t memory_bytes = 0;
  std::set<const void*> weights;  // that are counted in it
  ModelCounts counts;
  std::atomic<bool> gone{false};  // removed, or replaced: what loads it stops
};

/// A request that was accepted.
struct Pending {
  Request request;
  Done done;
  std::shared_ptr<Served> model;
  std::vector<int> from;    // by the model's input: which of the request's
  std::vector<int> wanted;  // outputs, by number
  Time arrival{0};
};

/// A program that was started, with what it answers.
struct Launch {
  uint64_t run = 0;
  Start start;
  int lane = 0;
  std::vector<int> lanes;
  Time started{0};
  std::shared_ptr<Served> model;
  std::shared_ptr<Variant> variant;
  std::vector<std::unique_ptr<Pending>> requests;
  std::vector<std::string> partners;  // models that ran beside it when it was started
};

class LocalEngine : public Engine {
 public:
  explicit LocalEngine(EngineOptions options)
      : options_(std::move(options)),
        workers_(options_.workers > 0 ? options_.workers : cores_we_may_use()),
        window_(1, workers_),
        store_(runtime::cache_folder(options_.cache)),
        record_(options_.record.empty() ? std::ofstream() : std::ofstream(options_.record)),
        busy_(static_cast<size_t>(workers_), false),
        lanes_(options_.policy.kind == PolicyKind::kStreams ? options_.policy.streams : workers_),
        alarm_([this] { act([] {}); }),
        loader_([this] { load_models(); }) {
    if (record_.is_open()) recorder_.emplace(record_, 1, workers_, options_.policy);
  }
  ~LocalEngine() override;

  void add(ModelConfig config) override;
  void remove(const std::string& name) override;
  std::vector<ModelInfo> models() const override;
  std::optional<ModelInfo> model(const std::string& name) const override;
  RequestKey submit(Request request, Done done) override;
  void cancel(RequestKey key) override;
  void drain() override;

 private:
  using Answers = std::vector<std::pair<Done, Answer>>;

  Time now() const { return Clock::now() - epoch_; }
  /// Does something to the state, then what the scheduler decides; answers are given when the lock
  /// is free again.
  template <typename Function>
  void act(Function function);
  void follow(Answers& answers);  // what the scheduler decides, under the lock
  void launch(Start start, uint64_t run, Time now);
  void run(Launch& launch);
  void run_each(Launch& launch, Answers& answers);
  void learn(const Launch& launch, Time took);
  void answer(Launch& launch, Pending& request, const std::shared_ptr<std::vector<Tensor>>& outputs,
              int row, int rows, Time ended, Answers& answers) const;
  Status run_once(const Launch& launch, std::vector<Tensor>& outputs) const;
  void gather(const Launch& launch, Seat& seat, int first, std::vector<const void*>& in) const;
  Trace trace_of(const Launch& launch, const Pending& request, Time ended) const;
  Answer refused(Outcome outcome, Error error, std::optional<Time> retry_after = {}) const;

  std::optional<Answer> check(const Request& request, const Served& model, Pending& pending,
                              int& rows) const;
  int tenant(const std::string& name, double weight);
  int free_number();
  void retire(Served& model);
  ModelInfo info(const Served& model) const;

  void load_models();
  void load(const std::shared_ptr<Served>& model);
  void load_batch(const std::shared_ptr<Served>& model, int batch);
  /// A program on several numbers of workers, with how long it takes.
  using Timed = std::vector<std::pair<std::shared_ptr<Variant>, VariantTime>>;
  Result<Timed> time_variants(Program program, const std::string& name);
  Status serve_variants(Served& model, Timed made);
  void keep_times(const Served& model);
  void fail(Served& model, const Error& error);

  const EngineOptions options_;
  const int workers_;
  const Clock::time_point epoch_ = Clock::now();

  mutable std::mutex mutex_;  // all below, down to the threads
  Window window_;
  Times times_;
  TimesStore store_;  // has a lock of its own
  std::ofstream record_;
  std::optional<Recorder> recorder_;                       // where the engine's are told to
  std::vector<bool> busy_;                                 // workers
  std::map<std::string, std::shared_ptr<Served>> models_;  // by name: ready, or the only one
  std::map<std::string, std::shared_ptr<Served>>
      coming_;  // by name: loading, to replace one that is ready
  std::vector<std::shared_ptr<Served>> by_number_;  // null: free
  std::unordered_map<uint64_t, std::unique_ptr<Pending>> waiting_;
  std::unordered_map<std::string, int> tenants_;
  RequestKey next_key_ = 1;
  bool draining_ = false, ends_ = false;
  struct Load {
    std::shared_ptr<Served> model;
    int batch;
  };
  std::deque<Load> loads_;  // batch 0: from the start
  std::condition_variable more_loads_, idle_;
  std::atomic<bool> stop_loading_{false};

  Lanes lanes_;
  Alarm alarm_;
  std::thread loader_;
};

LocalEngine::~LocalEngine() {
  Answers answers;
  {
    std::unique_lock lock(mutex_);
    ends_ = draining_ = true, stop_loading_ = true;
    for (auto& [key, pending] : waiting_) {
      window_.cancel(key);
      answers.emplace_back(
          std::move(pending->done),
          refused(Outcome::kCancelled, refusal(Code::kInterrupted, "the engine ends")));
    }
    waiting_.clear();
  }
  more_loads_.notify_all();
  for (auto& [done, answer] : answers) done(std::move(answer));
  loader_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return window_.running().empty(); });
  for (const std::shared_ptr<Served>& model : by_number_)
    if (model) keep_times(*model);
}

template <typename Function>
void LocalEngine::act(Function function) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    function();
    follow(answers);
  }
  for (auto& [done, answer] : answers) done(std::move(answer));
}

void LocalEngine::follow(Answers& answers) {
  const Time at = now();
  Decisions decisions = decide(window_, times_, at, options_.policy);
  if (recorder_) recorder_->decide(at, decisions);
  const uint64_t first = window_.apply(decisions, options_.policy, at);
  for (const GiveUp& given : decisions.given_up) {
    const auto found = waiting_.find(given.job.key);
    CHECK(found != waiting_.end(), "request {} waits for the scheduler only", given.job.key);
    Pending& pending = *found->second;
    ++pending.model->counts.late;
    if (pending.request.deadline || pending.model->config.deadline)
      ++pending.model->counts.with_deadline;
    Answer answer = refused(Outcome::kLate, refusal(Code::kInterrupted, to_string(given.why)));
    if (pending.request.trace) {
      answer.trace.emplace();
      answer.trace->queued = at - pending.arrival, answer.trace->reason = to_string(given.why);
    }
    answers.emplace_back(std::move(pending.done), std::move(answer));
    waiting_.erase(found);
  }
  for (size_t k = 0; k < decisions.starts.size(); ++k)
    launch(std::move(decisions.starts[k]), first + k, at);
  if (decisions.wake != kNever) alarm_.wake_at(epoch_ + decisions.wake);
  for (size_t k = 0; k < by_number_.size(); ++k) {
    const std::shared_ptr<Served> model = by_number_[k];
    if (model && model->state == ModelState::kUnloading && window_.waiting_of(model->number) == 0 &&
        window_.running_of(model->number) == 0)
      retire(*model);
  }
  if (window_.running().empty()) idle_.notify_all();
}

void LocalEngine::launch(Start start, uint64_t run, Time at) {
  auto made = std::make_shared<Launch>();
  made->run = run, made->started = at;
  made->model = by_number_[static_cast<size_t>(start.model)];
  made->variant = made->model->variants[static_cast<size_t>(start.variant)];
  for (size_t slot = 0; slot < busy_.size() && static_cast<int>(made->lanes.size()) < start.slots;
       ++slot)
    if (!busy_[slot]) busy_[slot] = true, made->lanes.push_back(static_cast<int>(slot));
  CHECK(static_cast<int>(made->lanes.size()) == start.slots, "a lane is given twice");
  made->lane = made->lanes.empty() ? 0 : made->lanes.front();
  for (const Running& other : window_.running())
    if (other.id != run)
      made->partners.push_back(by_number_[static_cast<size_t>(other.model)]->config.name);
  for (const Job& job : start.jobs) {
    const auto found = waiting_.find(job.key);
    CHECK(found != waiting_.end(), "request {} waits for the scheduler only", job.key);
    made->requests.push_back(std::move(found->second));
    waiting_.erase(found);
  }
  made->start = std::move(start);
  lanes_.run([this, made] { this->run(*made); });
}

/// The inputs of a run: rows from `first` on, as many as the batch has.
void LocalEngine::gather(const Launch& launch, Seat& seat, int first,
                         std::vector<const void*>& in) const {
  const runtime::Program& program = launch.variant->program().executable->program();
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const int64_t size = program.inputs[k].type.bytes();
    int64_t skip = size / launch.variant->batch() * first, filled = 0;
    const auto given = [&](const Pending& pending) {
      const std::span<const std::byte> bytes =
          pending.request.inputs[static_cast<size_t>(pending.from[k])].bytes;
      return bytes.subspan(
          static_cast<size_t>(std::min<int64_t>(skip, static_cast<int64_t>(bytes.size()))));
    };
    constexpr uintptr_t kAligned = 64;
    const std::span<const std::byte> only = given(*launch.requests[0]);
    if (static_cast<int64_t>(only.size()) >= size &&
        reinterpret_cast<uintptr_t>(only.data()) % kAligned == 0) {
      in.push_back(only.data());
      continue;
    }
    auto* to = static_cast<std::byte*>(seat.inputs[k].mutable_data());
    for (const auto& pending : launch.requests) {
      const std::span<const std::byte> bytes = given(*pending);
      const int64_t count = std::min(static_cast<int64_t>(bytes.size()), size - filled);
      std::memcpy(to + filled, bytes.data(), static_cast<size_t>(count));
      filled += count;
    }
    std::memset(to + filled, 0, static_cast<size_t>(size - filled));  // rows that nobody asked for
    in.push_back(to);
  }
}

Status LocalEngine::run_once(const Launch& launch, std::vector<Tensor>& outputs) const {
  if (options_.check)
    for (const auto& pending : launch.requests) TRY_STATUS(options_.check(pending->request));
  TRY(std::unique_ptr<Seat> seat, launch.variant->take());
  std::vector<const void*> in;
  std::vector<void*> out;
  // Whole batches, the last of which may have rows that nobody asked for.
  const int batch = launch.variant->batch(),
            passes = launch.model->programs->joins() ? (launch.start.rows + batch - 1) / batch : 1;
  for (const runtime::Port& port : launch.variant->program().executable->program().outputs) {
    Type type = port.type;
    if (passes > 1) type.shape[0] *= passes;
    outputs.push_back(Tensor::allocate(type));
  }
  Status status = ok_status();
  for (int pass = 0; pass < passes && status.ok(); ++pass) {
    in.clear(), out.clear();
    gather(launch, *seat, pass * batch, in);
    for (Tensor& output : outputs)
      out.push_back(static_cast<std::byte*>(output.mutable_data()) +
                    output.bytes() / passes * pass);
    status = seat->context->run(in, out);
  }
  launch.variant->give_back(std::move(seat));
  return status;
}

/// One run for all requests of a launch.
void LocalEngine::run(Launch& launch) {
  Answers answers;
  const auto begun = Clock::now();
  auto outputs = std::make_shared<std::vector<Tensor>>();
  const Status ran = caught([&] { return run_once(launch, *outputs); });
  const auto end = Clock::now();
  const Time ended = end - epoch_;
  uint64_t failed = 0;
  if (ran.ok()) {
    int row = 0;
    for (size_t k = 0; k < launch.requests.size(); ++k) {
      const int rows = launch.start.jobs[k].rows;
      answer(launch, *launch.requests[k], outputs, row, rows, ended, answers);
      row += rows;
    }
  } else if (launch.requests.size() > 1) {
    run_each(launch, answers);
    for (const auto& [done, answer] : answers) failed += answer.outcome != Outcome::kOk;
  } else {
    failed = 1;
    Answer failure = refused(Outcome::kFailed, ran.error());
    if (launch.requests[0]->request.trace)
      failure.trace = trace_of(launch, *launch.requests[0], ended);
    answers.emplace_back(std::move(launch.requests[0]->done), std::move(failure));
  }
  Answers late;
  {
    std::lock_guard lock(mutex_);
    ModelCounts& counts = launch.model->counts;
    counts.ok += launch.requests.size() - failed, counts.failed += failed;
    ++counts.launches, counts.rows += static_cast<uint64_t>(launch.start.rows);
    for (size_t k = 0; k < launch.requests.size(); ++k) {
      const Job& job = launch.start.jobs[k];
      counts.queued += launch.started - launch.requests[k]->arrival,
          counts.ran += ended - launch.started;
      if (job.deadline == kNever) continue;
      ++counts.with_deadline, counts.in_time += ended <= job.deadline;
    }
    for (const int lane : launch.lanes) busy_[static_cast<size_t>(lane)] = false;
    learn(launch, end - begun);
    window_.finish(launch.run, end - begun, options_.policy);
    if (recorder_) recorder_->finish(launch.run, end - begun);
    follow(late);
  }
  for (Answers* each : {&answers, &late})
    for (auto& [done, answer] : *each) done(std::move(answer));
}

/// Runs beside others tell how much longer they take than alone.
void LocalEngine::learn(const Launch& launch, Time took) {
  constexpr int kNew = 8;  // one part in so many is new
  const int number = launch.model->number;
  if (launch.partners.empty() || number < 0 || launch.start.slots == workers_ ||
      launch.start.rows > launch.variant->batch())
    return;
  ModelTimes& times = times_.models[static_cast<size_t>(number)];
  VariantTime& time = times.variants[static_cast<size_t>(launch.start.variant)];
  time.beside =
      std::max(time.beside + (std::min(took, time.alone * 4) - time.beside) / kNew, time.alone);
  if (recorder_) recorder_->times(number, times);
}

/// Each of a launch's requests by itself, after a run of all has failed: only who is to blame
/// fails.
void LocalEngine::run_each(Launch& launch, Answers& answers) {
  std::vector<std::unique_ptr<Pending>> requests = std::move(launch.requests);
  const std::vector<Job> jobs = launch.start.jobs;
  const std::shared_ptr<Variant> joined = launch.variant;
  std::vector<std::shared_ptr<Variant>> variants;
  {
    std::lock_guard lock(mutex_);
    variants = launch.model->variants;
  }
  for (size_t k = 0; k < requests.size(); ++k) {
    launch.variant = joined;
    for (const auto& variant : variants)
      if (variant->width() <= joined->width() && variant->batch() < launch.variant->batch() &&
          (variant->batch() >= jobs[k].rows || variant->batch() == 1))
        launch.variant = variant;
    launch.requests.clear();
    launch.requests.push_back(std::move(requests[k]));
    launch.start.rows = jobs[k].rows;
    auto outputs = std::make_shared<std::vector<Tensor>>();
    const Status ran = caught([&] { return run_once(launch, *outputs); });
    const Time ended = now();
    if (ran.ok()) {
      answer(launch, *launch.requests[0], outputs, 0, jobs[k].rows, ended, answers);
    } else {
      Answer failure = refused(Outcome::kFailed, ran.error());
      if (launch.requests[0]->request.trace)
        failure.trace = trace_of(launch, *launch.requests[0], ended);
      answers.emplace_back(std::move(launch.requests[0]->done), std::move(failure));
    }
    requests[k] = std::move(launch.requests[0]);
  }
  launch.requests = std::move(requests);
  launch.variant = joined;
  launch.start.rows = 0;
  for (const Job& job : jobs) launch.start.rows += job.rows;
}

Trace LocalEngine::trace_of(const Launch& launch, const Pending& request, Time ended) const {
  Trace trace;
  trace.variant = fmt::format("batch {}, {} of {} workers", launch.variant->batch(),
                              launch.variant->width(), workers_);
  trace.lane = launch.lane, trace.batch_rows = launch.start.rows;
  trace.partners = launch.partners;
  for (const auto& other : launch.requests)
    if (other && other.get() != &request)
      trace.partners.push_back(other->request.id.empty() ? launch.model->config.name
                                                         : other->request.id);
  trace.queued = launch.started - request.arrival, trace.ran = ended - request.arrival;
  if (launch.start.slack != kNever) trace.slack = launch.start.slack;
  trace.reason = to_string(launch.start.why);
  if (launch.start.held) trace.reason += "; it had waited for partners";
  return trace;
}

void LocalEngine::answer(Launch& launch, Pending& request,
                         const std::shared_ptr<std::vector<Tensor>>& outputs, int row, int rows,
                         Time ended, Answers& answers) const {
  Answer answer;
  const bool joins = launch.model->programs->joins();
  for (const int k : request.wanted) {
    const Tensor& output = (*outputs)[static_cast<size_t>(k)];
    OutputView view{
        launch.model->outputs[static_cast<size_t>(k)].name, output.dtype(), output.shape(), {}};
    auto* bytes = static_cast<const std::byte*>(output.data());
    auto size = static_cast<size_t>(output.bytes());
    if (joins) {
      const size_t of_row = size / static_cast<size_t>(output.shape()[0]);
      view.shape[0] = rows;
      bytes += of_row * static_cast<size_t>(row), size = of_row * static_cast<size_t>(rows);
    }
    view.bytes = {bytes, size};
    answer.outputs.push_back(std::move(view));
  }
  answer.keep = outputs;
  if (request.request.trace) answer.trace = trace_of(launch, request, ended);
  answers.emplace_back(std::move(request.done), std::move(answer));
}

Answer LocalEngine::refused(Outcome outcome, Error error, std::optional<Time> retry_after) const {
  Answer answer;
  answer.outcome = outcome, answer.error = std::move(error), answer.retry_after = retry_after;
  return answer;
}

// ---- requests ----

std::optional<Answer> LocalEngine::check(const Request& request, const Served& model,
                                         Pending& pending, int& rows) const {
  const auto bad = [&](std::string message, std::string hint = "") {
    return refused(Outcome::kBadRequest,
                   refusal(Code::kUsage, std::move(message), std::move(hint)));
  };
  rows = 0;
  for (const PortInfo& port : model.inputs) {
    int found = -1;
    for (size_t k = 0; k < request.inputs.size(); ++k) {
      if (request.inputs[k].name != port.name) continue;
      if (found >= 0) return bad(fmt::format("input '{}' is given twice", port.name));
      found = static_cast<int>(k);
    }
    const auto wanted = [&] {
      return fmt::format("{}{}", to_string(port.dtype), to_string(port.shape));
    };
    if (found < 0) return bad(fmt::format("input '{}' ({}) is not given", port.name, wanted()));
    const InputView& given = request.inputs[static_cast<size_t>(found)];
    bool same = given.dtype == port.dtype && given.shape.size() == port.shape.size();
    for (size_t d = 0; same && d < port.shape.size(); ++d) {
      if (port.shape[d] >= 0)
        same = given.shape[d] == port.shape[d];
      else if (given.shape[d] < 1 || given.shape[d] > model.config.max_batch)
        return bad(fmt::format("input '{}' has {} rows, from 1 to {} are taken", port.name,
                               given.shape[d], model.config.max_batch));
      else if (rows != 0 && given.shape[d] != rows)
        return bad(fmt::format("input '{}' has {} rows, the input before it {}", port.name,
                               given.shape[d], rows));
      else
        rows = static_cast<int>(given.shape[d]);
    }
    if (!same)
      return bad(fmt::format("input '{}' is {}, but {}{} was given", port.name, wanted(),
                             to_string(given.dtype), to_string(given.shape)));
    const int64_t bytes = Type{given.dtype, given.shape}.bytes();
    if (static_cast<int64_t>(given.bytes.size()) != bytes)
      return bad(fmt::format("input '{}' takes {} bytes, but {} came", port.name, bytes,
                             given.bytes.size()));
    pending.from.push_back(found);
  }
  rows = std::max(rows, 1);
  if (request.inputs.size() > model.inputs.size())
    for (const InputView& given : request.inputs)
      if (std::none_of(model.inputs.begin(), model.inputs.end(),
                       [&](const PortInfo& port) { return port.name == given.name; }))
        return bad(fmt::format("the model has no input '{}'", given.name));
  for (const std::string& name : request.outputs) {
    const auto at = std::find_if(model.outputs.begin(), model.outputs.end(),
                                 [&](const PortInfo& port) { return port.name == name; });
    if (at == model.outputs.end()) return bad(fmt::format("the model has no output '{}'", name));
    pending.wanted.push_back(static_cast<int>(at - model.outputs.begin()));
  }
  if (request.outputs.empty())
    for (size_t k = 0; k < model.outputs.size(); ++k) pending.wanted.push_back(static_cast<int>(k));
  return std::nullopt;
}

int LocalEngine::tenant(const std::string& name, double weight) {
  const auto [at, fresh] = tenants_.try_emplace(name, 0);
  if (fresh) {
    at->second = window_.add_tenant(weight);
    if (recorder_) recorder_->tenant(weight);
  }
  return at->second;
}

RequestKey LocalEngine::submit(Request request, Done done) {
  Answers answers;
  RequestKey key = 0;
  {
    std::lock_guard lock(mutex_);
    key = next_key_++;
    const auto refuse = [&](Answer answer) {
      answers.emplace_back(std::move(done), std::move(answer));
    };
    const auto found = models_.find(request.model);
    const std::shared_ptr<Served> model = found == models_.end() ? nullptr : found->second;
    auto pending = std::make_unique<Pending>();
    int rows = 1;
    if (draining_) {
      refuse(refused(Outcome::kRejected,
                     refusal(Code::kInterrupted, "the engine takes no more requests")));
    } else if (!model) {
      refuse(refused(Outcome::kNotFound,
                     refusal(Code::kUsage, fmt::format("there is no model '{}'", request.model))));
    } else if (model->state != ModelState::kReady) {
      const std::string why = model->state == ModelState::kFailed
                                  ? "could not be loaded: " + model->reason
                              : model->state == ModelState::kUnloading ? "is being removed"
                                                                       : "is still loading";
      refuse(refused(Outcome::kNotReady,
                     refusal(Code::kUsage, fmt::format("the model '{}' {}", request.model, why))));
    } else if (std::optional<Answer> bad = check(request, *model, *pending, rows)) {
      refuse(std::move(*bad));
    } else {
      const std::optional<Time> budget =
          request.deadline ? request.deadline : model->config.deadline;
      const Time at = now();
      const Time arrival = std::min<Time>(request.arrival - epoch_, at);
      const Job job{.key = key,
                    .model = model->number,
                    .tenant = tenant(request.tenant.empty() ? model->config.name : request.tenant,
                                     model->config.weight),
                    .priority = request.priority != 0 ? request.priority : model->config.priority,
                    .rows = rows,
                    .arrival = arrival,
                    .deadline = budget ? arrival + *budget : kNever};
      const Admission admission =
          admit(window_, times_, at, options_.policy, job, model->config.queue_limit);
      if (recorder_) recorder_->ask(at, model->config.queue_limit, job, admission);
      if (admission.taken) {
        pending->request = std::move(request), pending->done = std::move(done);
        pending->model = model, pending->arrival = arrival;
        waiting_[key] = std::move(pending);
        window_.arrive(job, options_.policy);
        follow(answers);
      } else {
        ++model->counts.rejected;
        Answer answer =
            refused(Outcome::kRejected, refusal(Code::kDevice, to_string(admission.why)),
                    admission.retry_after);
        if (request.trace) answer.trace.emplace().reason = to_string(admission.why);
        refuse(std::move(answer));
      }
    }
  }
  for (auto& [each, answer] : answers) each(std::move(answer));
  return key;
}

void LocalEngine::cancel(RequestKey key) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    if (!window_.cancel(key)) return;
    if (recorder_) recorder_->cancel(key);
    const auto found = waiting_.find(key);
    ++found->second->model->counts.cancelled;
    answers.emplace_back(
        std::move(found->second->done),
        refused(Outcome::kCancelled, refusal(Code::kInterrupted, "cancelled by the caller")));
    waiting_.erase(found);
    follow(answers);
  }
  for (auto& [done, answer] : answers) done(std::move(answer));
}

void LocalEngine::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

// ---- models ----

void LocalEngine::add(ModelConfig config) {
  auto model = std::make_shared<Served>();
  model->config = std::move(config);
  model->config.max_batch = std::max(model->config.max_batch, 1);
  {
    std::lock_guard lock(mutex_);
    const std::string& name = model->config.name;
    const auto found = models_.find(name);
    if (found != models_.end() && found->second->state == ModelState::kReady) {
      if (auto& before = coming_[name]) before->gone = true;
      coming_[name] = model;
    } else {
      if (found != models_.end() && found->second->state != ModelState::kUnloading)
        found->second->gone = true;
      models_[name] = model;
    }
    loads_.push_front({model, 0});
  }
  more_loads_.notify_all();
}

void LocalEngine::remove(const std::string& name) {
  act([&] {
    if (const auto coming = coming_.find(name); coming != coming_.end()) {
      coming->second->gone = true;
      coming_.erase(coming);
    }
    const auto found = models_.find(name);
    if (found == models_.end()) return;
    Served& model = *found->second;
    model.gone = true;
    if (model.number >= 0)
      model.state = ModelState::kUnloading;  // retired when nothing of it waits or runs
    else
      models_.erase(found);
  });
}

int LocalEngine::free_number() {
  for (size_t k = 0; k < by_number_.size(); ++k)
    if (!by_number_[k]) return static_cast<int>(k);
  by_number_.push_back(nullptr);
  times_.models.emplace_back();
  return static_cast<int>(by_number_.size()) - 1;
}

void LocalEngine::retire(Served& model) {
  const auto number = static_cast<size_t>(model.number);
  keep_times(model);
  times_.models[number] = {};
  if (recorder_) recorder_->times(model.number, {});
  model.variants.clear(), model.weights.clear(), model.number = -1, model.memory_bytes = 0;
  const std::shared_ptr<Served> keep = std::move(by_number_[number]);  // `model` lives in it
  by_number_[number] = nullptr;
  const auto found = models_.find(keep->config.name);
  if (found != models_.end() && found->second == keep && keep->gone) models_.erase(found);
}

ModelInfo LocalEngine::info(const Served& model) const {
  ModelInfo info{model.config,  model.state,        model.reason, model.inputs,
                 model.outputs, model.memory_bytes, model.counts};
  if (model.number >= 0) info.counts.waiting = window_.waiting_of(model.number);
  return info;
}

std::vector<ModelInfo> LocalEngine::models() const {
  std::lock_guard lock(mutex_);
  std::vector<ModelInfo> all;
  for (const auto& [name, model] : models_) all.push_back(info(*model));
  return all;
}

std::optional<ModelInfo> LocalEngine::model(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) return std::nullopt;
  return info(*found->second);
}

// ---- loading ----

void LocalEngine::load_models() {
  while (true) {
    Load next;
    {
      std::unique_lock lock(mutex_);
      more_loads_.wait(lock, [this] { return stop_loading_ || !loads_.empty(); });
      if (stop_loading_) return;
      next = std::move(loads_.front());
      loads_.pop_front();
      if (next.model->gone) continue;
    }
    if (next.batch == 0)
      load(next.model);
    else
      load_batch(next.model, next.batch);
  }
}

Result<LocalEngine::Timed> LocalEngine::time_variants(Program program, const std::string& name) {
  constexpr Time kBudget{30'000'000};  // of measuring one
  constexpr double kWorth = 0.95;      // a wider program must take less of the narrower one's time
  Timed made;
  std::vector<int> widths = {1};
  while (widths.back() * 2 <= workers_) widths.push_back(widths.back() * 2);
  if (widths.back() != workers_) widths.push_back(workers_);
  Time narrower = kNever;
  const Hash fingerprint = store_.open() ? runtime::fingerprint(*program.executable) : Hash();
  for (const int width : widths) {
    const std::string key = TimesStore::key_of(fingerprint, width, workers_);
    auto variant = std::make_shared<Variant>(program, width, key);
    const auto known = store_.find(key);
    // A program that was measured before is run nevertheless, so that its memory is there when it
    // is asked for.
    TRY(const Time took, variant->measure(known ? Time(0) : kBudget));
    const MeasuredTimes times = known ? *known : MeasuredTimes{took, took};
    if (!known) store_.keep(key, name, program.batch, width, times);
    const bool whole = width == workers_;  // policies that know no narrow programs ask for it
    if (narrower != kNever && !whole &&
        static_cast<double>(times.alone.count()) > kWorth * static_cast<double>(narrower.count()))
      continue;
    narrower = std::min(narrower, times.alone);
    made.emplace_back(variant, VariantTime{program.batch, width, times.alone, times.beside});
  }
  return made;
}

/// Under the lock: the scheduler may start them from now on. Errors: kMemory beyond the limit.
Status LocalEngine::serve_variants(Served& model, Timed made) {
  ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  int64_t more = 0, all = 0;
  std::set<const void*> weights;
  for (const auto& [variant, time] : made) {
    const runtime::Program& program = variant->program().executable->program();
    more += program.arena.count;
    for (const Tensor& weight : program.weights)
      if (!weight.empty() && !model.weights.contains(weight.data()) &&
          weights.insert(weight.data()).second)
        more += weight.bytes();
  }
  for (const std::shared_ptr<Served>& each : by_number_) all += each ? each->memory_bytes : 0;
  if (options_.memory_limit > 0 && all + more > options_.memory_limit)
    return refusal(Code::kMemory,
                   fmt::format("it takes {} more, {} of {} are taken", to_string(Bytes{more}),
                               to_string(Bytes{all}), to_string(Bytes{options_.memory_limit})),
                   "remove a model, or give more memory");
  model.memory_bytes += more, model.weights.merge(weights);
  for (auto& [variant, time] : made) {
    times.bound = variant->program().bound;
    model.variants.push_back(std::move(variant));
    times.variants.push_back(time);
  }
  if (recorder_) recorder_->times(model.number, times);
  return ok_status();
}

/// What runs beside others took goes to those that come after this process.
void LocalEngine::keep_times(const Served& model) {
  if (!store_.open() || model.number < 0) return;
  const ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  for (size_t v = 0; v < model.variants.size(); ++v) {
    const VariantTime& time = times.variants[v];
    if (time.beside == time.alone) continue;
    store_.keep(model.variants[v]->key(), model.config.name, time.batch, time.width,
                {time.alone, time.beside});
  }
}

void LocalEngine::fail(Served& model, const Error& error) {
  std::lock_guard lock(mutex_);
  model.state = ModelState::kFailed, model.reason = error.text();
  const auto coming = coming_.find(model.config.name);
  if (coming == coming_.end() || coming->second.get() != &model) return;
  // The one before goes on; it tells what became of this one.
  if (const auto found = models_.find(model.config.name); found != models_.end())
    found->second->reason = "not replaced: " + model.reason;
  coming_.erase(coming);
}

void LocalEngine::load(const std::shared_ptr<Served>& model) {
  const auto interrupted = [this, model] { return stop_loading_.load() || model->gone; };
  const ProgramOptions how{workers_, options_.compiler, options_.cache, options_.verify,
                           options_.verify_seconds};
  auto opened = behind_requests([&] { return Programs::open(model->config, how); });
  if (!opened.ok()) return fail(*model, opened.error());
  auto program = behind_requests([&] { return (*opened)->compile(1, interrupted); });
  if (!program.ok()) return fail(*model, program.error());
  auto made = caught([&] { return time_variants(std::move(*program), model->config.name); });
  if (!made.ok()) return fail(*model, made.error());
  Status fits = ok_status();
  act([&] {
    if (model->gone) return;
    model->inputs = (*opened)->inputs(), model->outputs = (*opened)->outputs();
    const std::vector<int> batches = (*opened)->batches();
    model->programs = std::move(*opened);
    model->number = free_number();
    by_number_[static_cast<size_t>(model->number)] = model;
    fits = serve_variants(*model, std::move(*made));
    if (!fits.ok()) return retire(*model);
    model->state = ModelState::kReady;
    const std::string& name = model->config.name;
    if (const auto coming = coming_.find(name);
        coming != coming_.end() && coming->second == model) {
      if (const auto before = models_.find(name);
          before != models_.end() && before->second->number >= 0)
        before->second->state = ModelState::kUnloading, before->second->gone = true;
      coming_.erase(coming);
    }
    models_[name] = model;
    for (const int batch : batches)
      if (batch > 1) loads_.push_back({model, batch});
  });
  if (!fits.ok()) fail(*model, fits.error());
}

void LocalEngine::load_batch(const std::shared_ptr<Served>& model, int batch) {
  const auto interrupted = [this, model] { return stop_loading_.load() || model->gone; };
  auto made = caught([&]() -> Result<Timed> {
    TRY(Program program,
        behind_requests([&] { return model->programs->compile(batch, interrupted); }));
    return time_variants(std::move(program), model->config.name);
  });
  act([&] {
    if (model->gone) return;
    const Status served =
        made.ok() ? serve_variants(*model, std::move(*made)) : Status(made.error());
    if (!served.ok())
      model->reason = fmt::format("no batch of {}: {}", batch, served.error().text());
  });
}

}  // namespace

std::unique_ptr<Engine> make_engine(EngineOptions options) {
  return std::make_unique<LocalEngine>(std::move(options));
}

}  // namespace obelisk::serve

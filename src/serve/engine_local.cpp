#include "serve/engine_local.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/parallel.h"
#include "serve/background.h"
#include "serve/keep_warm.h"
#include "serve/lanes.h"
#include "serve/record.h"
#include "serve/residency.h"
#include "serve/scheduler.h"
#include "serve/times_store.h"
#include "serve/variants.h"

namespace obelisk::serve {
namespace {

constexpr uintptr_t kAligned = 64;  // of inputs that are used where they lie

Error refusal(Code code, std::string message, std::string hint = "") {
  return {code, "serve", std::move(message), "", std::move(hint)};
}

/// A model as it is served: from add() until nothing of it runs.
struct Served {
  int number = -1;  // in Times and the window; -1 while it loads
  ModelConfig config;
  ModelState state = ModelState::kLoading;
  std::string reason;
  std::unique_ptr<Programs> programs;
  std::vector<std::shared_ptr<Variant>> variants;  // as in Times
  size_t to_compile = 0;                           // other batches and widths; the loading thread's
  int to_come = 0;                                 // the same, as those who ask see it
  std::vector<PortInfo> inputs, outputs;
  int64_t workspace_bytes = 0, weight_bytes = 0;
  Resident::State weights = Resident::State::kHere;
  bool stopped = false;    // its weights leave when its runs have ended
  bool fresh = false;      // nothing of it ran since its weights came
  bool leaving = false;    // its programs are being freed
  int measuring = 0;       // programs that are being compiled and measured
  Time last{0}, since{0};  // when the last request came; who waits for its weights first
  Time not_before{0};      // when its weights are tried to be brought back again
  Time back{1'000'000};    // what bringing its weights back took
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
  bool beside = false;                // others ran when it was started
  std::vector<std::string> partners;  // their models, where a request wants to know
  size_t instances = 1;               // that share its launch, it among them
  // What runs within it. Under the engine's lock: who is handed over, until it begins. Its `wanted`
  // is written under the lock, too, and read by the run.
  runtime::GiveWay way;
  std::shared_ptr<Launch> guest;
  // Of the thread that runs it.
  Time waited{0};  // for a run to give way to it
  Time paused{0};  // for so long guests had it
  int guests = 0;
};

std::unique_ptr<runtime::GpuPulse> pulse_of(const EngineOptions& options, const Device& device) {
  if (options.keep_warm.count() <= 0) return nullptr;
  auto made = device.pulse();
  if (made.ok()) return std::move(*made);
  LOG(kWarning, "serve", "the device idles between requests: {}", made.error().text());
  return nullptr;
}

/// Of the priorities that runs have on a GPU: by the time that is left beyond the prediction.
int urgency_of(const Start& start, const EngineOptions& options) {
  if (options.policy.kind != PolicyKind::kVliw || start.slack > options.relaxed) return 0;
  return start.slack > options.urgent ? 1 : runtime::kMostUrgent;
}

EngineOptions settled(EngineOptions options) {
  if (!options.device || !options.device->overlaps()) options.policy.overlap = 0;
  if (options.device && !options.device->gives_way()) options.policy.segments = false;
  // On a GPU it is the host that makes short runs longer, which says nothing of long ones.
  if (!options.device || options.device->overlaps()) options.policy.pace = false;
  return options;
}

class LocalEngine : public Engine {
 public:
  explicit LocalEngine(EngineOptions options)
      : options_(settled(std::move(options))),
        device_(options_.device
                    ? options_.device
                    : cpu_device(options_.workers, runtime::cache_folder(options_.cache))),
        slots_(device_->slots()),
        hand_over_(options_.hand_over.value_or(device_->hand_over())),
        memory_limit_(options_.memory_limit > 0 ? options_.memory_limit : device_->memory()),
        window_(1, slots_),
        store_(runtime::cache_folder(options_.cache)),
        record_(options_.record.empty() ? std::ofstream() : std::ofstream(options_.record)),
        busy_(static_cast<size_t>(slots_), false),
        lanes_(device_->threads(options_.policy), device_->spin()),
        mover_(1),
        pulse_(pulse_of(options_, *device_)),
        warm_(pulse_ ? options_.keep_warm : std::chrono::microseconds(0),
              [this] { return pulse_->beat().ok(); }),
        alarm_([this] { act([](auto&) {}); }, device_->spin().all),
        loader_([this] { load_models(); }) {
    if (record_.is_open()) recorder_.emplace(record_, 1, slots_, options_.policy);
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
  /// What the scheduler decides, under the lock. `here`: where one short run may go that the caller
  /// runs itself when the lock is free again.
  void follow(Answers& answers, std::shared_ptr<Launch>* here = nullptr);
  std::shared_ptr<Launch> prepare(Start start, uint64_t run, Time now);
  void hand_over(std::shared_ptr<Launch> guest);
  bool is_short(const Start& start) const;
  void run(std::shared_ptr<Launch> launch);
  void let_in(Launch& host);
  void run_together(std::vector<std::shared_ptr<Launch>> launches);
  /// A launch that has ended: what its requests are answered, and what was learnt.
  struct Ended {
    Launch* launch = nullptr;
    Status ran = ok_status();
    std::shared_ptr<std::vector<Tensor>> outputs;
  };
  /// Returns who was handed to a run that has ended before it could give way, and has slots now.
  std::shared_ptr<Launch> finish(std::span<Ended> all, Clock::time_point begun,
                                 Clock::time_point end);
  void run_each(Launch& launch, Answers& answers);
  void learn(const Launch& launch, Time took);
  void forget(const Served& model);
  void answer(Launch& launch, Pending& request, const std::shared_ptr<std::vector<Tensor>>& outputs,
              int row, int rows, Time ended, Answers& answers) const;
  Status check_requests(const Launch& launch) const;
  static void make_outputs(const Launch& launch, int passes, std::vector<Tensor>& outputs);
  static void place_outputs(const Seat& seat, std::vector<Tensor>& outputs, int passes, int pass,
                            std::vector<void*>& out);
  static void fetch_outputs(const Seat& seat, std::vector<Tensor>& outputs, int passes, int pass);
  Status run_once(Launch& launch, std::vector<Tensor>& outputs) const;
  void gather(const Launch& launch, Seat& seat, int first, std::vector<const void*>& in) const;
  Trace trace_of(const Launch& launch, const Pending& request, Time ended) const;
  Answer refused(Outcome outcome, Error error, std::optional<Time> retry_after = {}) const;

  std::optional<Answer> check(const Request& request, const Served& model, Pending& pending,
                              int& rows) const;
  int tenant(const std::string& name, double weight);
  int free_number();
  void unload(const std::shared_ptr<Served>& model);
  void leave(const std::shared_ptr<Served>& model);
  void retire(Served& model);
  ModelInfo info(const Served& model) const;

  void load_models();
  void load(const std::shared_ptr<Served>& model);
  void load_more(const std::shared_ptr<Served>& model, int batch, int width);
  /// A program on several numbers of workers, with how long it takes.
  using Timed = std::vector<std::pair<std::shared_ptr<Variant>, VariantTime>>;
  Result<Timed> time_variants(Program program, const std::string& name);
  int number_of_code(const std::string& code, int width);
  Status could_fit(const Served& model, const runtime::Program& program, int width) const;
  Status serve_variants(std::unique_lock<std::mutex>& lock, Served& model, const Programs& programs,
                        Timed made);

  int64_t room() const;  // for weights, beside all workspaces
  std::shared_ptr<Served> idle_model(const Served& asks) const;
  bool make_room(const Served& asks);
  bool lower_limit(Served& asks);
  Moves moves(Time now) const;
  void move_weights(Time now);
  void release(const std::shared_ptr<Served>& model);
  void restore(const std::shared_ptr<Served>& model);
  void tell_times(Served& model, Time away);
  void fail_waiting(const std::function<bool(const Served&)>& whose, const Error& error,
                    Answers& answers);
  void lose(const Error& error);
  std::vector<KeptTimes> times_to_keep(const Served& model) const;
  void fail(Served& model, const Error& error);

  const EngineOptions options_;
  const std::shared_ptr<const Device> device_;
  const int slots_;
  const Time hand_over_;  // shorter runs stay with the thread that submits
  int64_t memory_limit_;  // 0: none; under the lock, for it falls where the device has less
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
  std::vector<std::shared_ptr<Served>> unloading_;  // of those
  bool settled_ = true;                             // all weights are where they belong
  std::unordered_map<uint64_t, std::unique_ptr<Pending>> waiting_;
  std::unordered_map<uint64_t, Launch*> running_;  // by run, those that share no launch
  std::unordered_map<std::string, int> tenants_;
  RequestKey next_key_ = 1;
  bool draining_ = false, ends_ = false;
  std::optional<Error> lost_;  // why nothing runs on the device any more
  struct Load {
    std::shared_ptr<Served> model;
    int batch, width;
  };
  std::deque<Load> loads_;                            // batch 0: from the start
  std::map<std::pair<std::string, int>, int> codes_;  // of programs: by code and width
  std::condition_variable more_loads_, idle_, moved_;
  std::atomic<bool> stop_loading_{false};

  Lanes lanes_, mover_;
  const std::unique_ptr<runtime::GpuPulse> pulse_;
  KeepWarm warm_;
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
  more_loads_.notify_all(), moved_.notify_all();
  for (auto& [done, answer] : answers) done(std::move(answer));
  loader_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] {
    const auto moves = [](const std::shared_ptr<Served>& model) {
      return model && (model->leaving || model->weights == Resident::State::kLeaving ||
                       model->weights == Resident::State::kComing);
    };
    return window_.running().empty() && std::none_of(by_number_.begin(), by_number_.end(), moves);
  });
  for (const std::shared_ptr<Served>& model : by_number_)
    if (model)
      for (const KeptTimes& each : times_to_keep(*model)) store_.keep(each);
}

template <typename Function>
void LocalEngine::act(Function function) {
  Answers answers;
  {
    std::unique_lock lock = soon(mutex_, device_->spin().all);
    function(lock);
    follow(answers);
  }
  for (auto& [done, answer] : answers) done(std::move(answer));
}

void LocalEngine::follow(Answers& answers, std::shared_ptr<Launch>* here) {
  const Time at = now();
  if (memory_limit_ > 0 && !settled_ && !ends_ && !lost_) move_weights(at);
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
    if (given.why == Why::kHopeless) forget(*pending.model);
    waiting_.erase(found);
  }
  std::map<int, std::vector<std::shared_ptr<Launch>>> together;
  for (size_t k = 0; k < decisions.starts.size(); ++k) {
    Start& start = decisions.starts[k];
    const int shared = start.launch;
    const bool runs_here = here && !*here && shared == 0 && is_short(start);
    std::shared_ptr<Launch> made = prepare(std::move(start), first + k, at);
    if (shared > 0) {
      together[shared].push_back(std::move(made));
      continue;
    }
    running_[made->run] = made.get();
    if (made->start.within > 0)
      hand_over(std::move(made));
    else if (runs_here)
      *here = std::move(made);
    else
      lanes_.run([this, made] { run(made); });
  }
  for (auto& [number, launches] : together) {
    for (const auto& each : launches) each->instances = launches.size();
    lanes_.run([this, launches = std::move(launches)] { run_together(launches); });
  }
  if (decisions.wake != kNever) alarm_.wake_at(epoch_ + decisions.wake);
  for (const std::shared_ptr<Served>& model : unloading_)
    if (window_.waiting_of(model->number) == 0 && window_.running_of(model->number) == 0 &&
        model->measuring == 0 && model->weights != Resident::State::kComing &&
        model->weights != Resident::State::kLeaving)
      leave(model);
  if (window_.running().empty()) idle_.notify_all();
}

/// One pass on one slot, over before another thread would have begun it.
bool LocalEngine::is_short(const Start& start) const {
  const VariantTime& time =
      times_.models[static_cast<size_t>(start.model)].variants[static_cast<size_t>(start.variant)];
  return start.slots == 1 && start.rows <= time.batch && time.alone < hand_over_;
}

/// To a run that gives way: its thread finds it before its next task, or at its end.
void LocalEngine::hand_over(std::shared_ptr<Launch> guest) {
  Launch& host = *running_.at(guest->start.within);
  CHECK(!host.guest, "run {} is to give way twice", host.run);
  const auto borrowed = host.lanes.begin() + guest->start.borrows;
  guest->lane = host.lane, guest->lanes.assign(host.lanes.begin(), borrowed);
  host.way.wanted.store(guest->start.borrows, std::memory_order_release);
  host.guest = std::move(guest);
}

std::shared_ptr<Launch> LocalEngine::prepare(Start start, uint64_t run, Time at) {
  auto made = std::make_shared<Launch>();
  made->run = run, made->started = at;
  made->model = by_number_[static_cast<size_t>(start.model)];
  made->variant = made->model->variants[static_cast<size_t>(start.variant)];
  made->model->fresh = false;
  for (size_t slot = 0; slot < busy_.size() && static_cast<int>(made->lanes.size()) < start.slots;
       ++slot)
    if (!busy_[slot]) busy_[slot] = true, made->lanes.push_back(static_cast<int>(slot));
  CHECK(static_cast<int>(made->lanes.size()) == start.slots, "a lane is given twice");
  made->lane = made->lanes.empty() ? 0 : made->lanes.front();
  bool traced = false;
  for (const Job& job : start.jobs) {
    const auto found = waiting_.find(job.key);
    CHECK(found != waiting_.end(), "request {} waits for the scheduler only", job.key);
    traced |= found->second->request.trace;
    made->requests.push_back(std::move(found->second));
    waiting_.erase(found);
  }
  for (const Running& other : window_.running()) {
    if (other.id == run) continue;
    made->beside = true;
    if (!traced) break;
    made->partners.push_back(by_number_[static_cast<size_t>(other.model)]->config.name);
  }
  made->start = std::move(start);
  return made;
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
    const Pending& one = *launch.requests[0];
    const std::span<const std::byte> only = given(one);
    // A GPU takes what the host has from pinned memory, its own or the caller's.
    const InputView& view = one.request.inputs[static_cast<size_t>(one.from[k])];
    const bool where_it_lies = !seat.memory.empty() || view.on_device || view.pinned;
    if (where_it_lies && static_cast<int64_t>(only.size()) >= size &&
        reinterpret_cast<uintptr_t>(only.data()) % kAligned == 0) {
      in.push_back(only.data());
      continue;
    }
    std::byte* const to = seat.inputs[k];
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

Status LocalEngine::check_requests(const Launch& launch) const {
  if (options_.check)
    for (const auto& pending : launch.requests) TRY_STATUS(options_.check(pending->request));
  return ok_status();
}

void LocalEngine::make_outputs(const Launch& launch, int passes, std::vector<Tensor>& outputs) {
  for (const runtime::Port& port : launch.variant->program().executable->program().outputs) {
    Type type = port.type;
    if (passes > 1) type.shape[0] *= passes;
    outputs.push_back(Tensor::allocate(type));
  }
}

/// Where a pass's part of the outputs is computed: in the seat's memory, where it has such.
void LocalEngine::place_outputs(const Seat& seat, std::vector<Tensor>& outputs, int passes,
                                int pass, std::vector<void*>& out) {
  for (size_t k = 0; k < outputs.size(); ++k)
    out.push_back(seat.outputs.empty() ? static_cast<std::byte*>(outputs[k].mutable_data()) +
                                             outputs[k].bytes() / passes * pass
                                       : seat.outputs[k]);
}

/// The seat serves the next run then.
void LocalEngine::fetch_outputs(const Seat& seat, std::vector<Tensor>& outputs, int passes,
                                int pass) {
  if (seat.outputs.empty()) return;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const int64_t bytes = outputs[k].bytes() / passes;
    std::memcpy(static_cast<std::byte*>(outputs[k].mutable_data()) + bytes * pass, seat.outputs[k],
                static_cast<size_t>(bytes));
  }
}

Status LocalEngine::run_once(Launch& launch, std::vector<Tensor>& outputs) const {
  TRY_STATUS(check_requests(launch));
  TRY(std::unique_ptr<Seat> seat, launch.variant->take());
  seat->context->set_urgency(urgency_of(launch.start, options_));
  seat->context->give_way(&launch.way);
  std::vector<const void*> in;
  std::vector<void*> out;
  // Whole batches, the last of which may have rows that nobody asked for.
  const int batch = launch.variant->batch(),
            passes = launch.model->programs->joins() ? (launch.start.rows + batch - 1) / batch : 1;
  make_outputs(launch, passes, outputs);
  Status status = ok_status();
  for (int pass = 0; pass < passes && status.ok(); ++pass) {
    in.clear(), out.clear();
    gather(launch, *seat, pass * batch, in);
    place_outputs(*seat, outputs, passes, pass, out);
    status = seat->context->run(in, out);
    if (status.ok()) fetch_outputs(*seat, outputs, passes, pass);
  }
  seat->context->give_way(nullptr);
  launch.variant->give_back(std::move(seat));
  return status;
}

/// One run for all requests of a launch; then those of who was to be within it and is not.
void LocalEngine::run(std::shared_ptr<Launch> launch) {
  while (launch) {
    const auto begun = Clock::now();
    if (launch->start.why == Why::kWithin) launch->waited = begun - epoch_ - launch->started;
    warm_.begins();
    launch->way.work = [this, host = launch.get()] { let_in(*host); };
    Ended ended{.launch = launch.get(), .outputs = std::make_shared<std::vector<Tensor>>()};
    ended.ran = caught([&] { return run_once(*launch, *ended.outputs); });
    warm_.ends();
    launch = finish({&ended, 1}, begun, Clock::now());
  }
}

/// On the thread of a run, between two of its tasks: who was handed to it runs and is answered.
void LocalEngine::let_in(Launch& host) {
  const auto begun = Clock::now();
  std::shared_ptr<Launch> guest;
  {
    const std::unique_lock lock = soon(mutex_, device_->spin().all);
    host.way.wanted.store(0, std::memory_order_release);
    guest = std::move(host.guest);
  }
  run(std::move(guest));
  ++host.guests, host.paused += Clock::now() - begun;
}

/// One launch for the runs of several models. Where that fails, each by itself: only who is to
/// blame fails.
void LocalEngine::run_together(std::vector<std::shared_ptr<Launch>> launches) {
  const auto begun = Clock::now();
  warm_.begins();
  // In an order of their own, so that the same models make the same launch again.
  std::sort(launches.begin(), launches.end(), [](const auto& a, const auto& b) {
    return std::pair(a->start.model, a->run) < std::pair(b->start.model, b->run);
  });
  struct Instance {
    std::unique_ptr<Seat> seat;
    std::vector<const void*> in;
    std::vector<void*> out;
  };
  std::vector<Instance> instances(launches.size());
  std::vector<Ended> ended;
  for (const auto& each : launches)
    ended.push_back({.launch = each.get(), .outputs = std::make_shared<std::vector<Tensor>>()});
  const auto all = [&]() -> Status {
    std::vector<runtime::SharedRun> runs;
    for (size_t k = 0; k < launches.size(); ++k) {
      const Launch& launch = *launches[k];
      Instance& instance = instances[k];
      TRY_STATUS(check_requests(launch));
      TRY(instance.seat, launch.variant->take());
      instance.seat->context->set_urgency(urgency_of(launch.start, options_));
      make_outputs(launch, 1, *ended[k].outputs);
      gather(launch, *instance.seat, 0, instance.in);
      place_outputs(*instance.seat, *ended[k].outputs, 1, 0, instance.out);
      runs.push_back({instance.seat->context.get(), instance.in, instance.out});
    }
    TRY_STATUS(runs[0].context->run_together(runs));
    for (size_t k = 0; k < launches.size(); ++k)
      fetch_outputs(*instances[k].seat, *ended[k].outputs, 1, 0);
    return ok_status();
  };
  const Status ran = caught(all);
  for (size_t k = 0; k < launches.size(); ++k)
    if (instances[k].seat) launches[k]->variant->give_back(std::move(instances[k].seat));
  if (ran.ok() || device_->ends_with(ran.error())) {
    for (Ended& each : ended) each.ran = ran;
  } else {
    for (Ended& each : ended) {
      each.outputs->clear();
      each.ran = caught([&] { return run_once(*each.launch, *each.outputs); });
    }
  }
  warm_.ends();
  finish(ended, begun, Clock::now());
}

std::shared_ptr<Launch> LocalEngine::finish(std::span<Ended> all, Clock::time_point begun,
                                            Clock::time_point end) {
  Answers answers;
  std::shared_ptr<Launch> next;
  const Time ended = end - epoch_;
  std::vector<uint64_t> failed;  // requests, by launch
  const Error* lost = nullptr;
  for (Ended& each : all) {
    Launch& launch = *each.launch;
    if (!each.ran.ok() && device_->ends_with(each.ran.error())) lost = &each.ran.error();
    const size_t before = answers.size();
    if (each.ran.ok()) {
      int row = 0;
      for (size_t k = 0; k < launch.requests.size(); ++k) {
        const int rows = launch.start.jobs[k].rows;
        answer(launch, *launch.requests[k], each.outputs, row, rows, ended, answers);
        row += rows;
      }
    } else if (launch.requests.size() > 1 && !lost) {
      run_each(launch, answers);
    } else {
      for (const auto& pending : launch.requests) {
        Answer failure = refused(Outcome::kFailed, each.ran.error());
        if (pending->request.trace) failure.trace = trace_of(launch, *pending, ended);
        answers.emplace_back(std::move(pending->done), std::move(failure));
      }
    }
    failed.push_back(static_cast<uint64_t>(
        std::count_if(answers.begin() + static_cast<std::ptrdiff_t>(before), answers.end(),
                      [](const auto& one) { return one.second.outcome != Outcome::kOk; })));
  }
  Answers late;
  {
    const std::unique_lock lock = soon(mutex_, device_->spin().all);
    if (lost) {
      lose(*lost);
      fail_waiting([](const Served&) { return true; }, *lost, late);
    }
    for (size_t each = 0; each < all.size(); ++each) {
      Launch& launch = *all[each].launch;
      ModelCounts& counts = launch.model->counts;
      counts.ok += launch.requests.size() - failed[each], counts.failed += failed[each];
      ++counts.launches, counts.rows += static_cast<uint64_t>(launch.start.rows);
      for (size_t k = 0; k < launch.requests.size(); ++k) {
        const Job& job = launch.start.jobs[k];
        const Time started = launch.started + launch.waited;
        counts.queued += started - launch.requests[k]->arrival, counts.ran += ended - started;
        if (job.deadline == kNever) continue;
        ++counts.with_deadline, counts.in_time += ended <= job.deadline;
      }
      // The lanes of who is within a run are that one's.
      if (launch.start.within == 0)
        for (const int lane : launch.lanes) busy_[static_cast<size_t>(lane)] = false;
      if (launch.guest) {
        next = std::move(launch.guest);
        next->start.within = 0;
        for (const int lane : next->lanes) busy_[static_cast<size_t>(lane)] = true;
      }
      running_.erase(launch.run);
      const Time took = end - begun;
      learn(launch, took - launch.paused);
      window_.finish(launch.run, took, options_.policy, launch.waited);
      if (recorder_) recorder_->finish(launch.run, took, launch.waited);
    }
    follow(late);
  }
  for (Answers* each : {&answers, &late})
    for (auto& [done, answer] : *each) done(std::move(answer));
  return next;
}

/// Runs beside others tell how much longer they take than alone; runs on all slots, what they take
/// while the machine does other things too. A run that is quicker than alone tells that the machine
/// was busy when that was measured.
void LocalEngine::learn(const Launch& launch, Time took) {
  constexpr int kNew = 8;  // one part in so many is new
  const int number = launch.model->number;
  if (number < 0 || launch.start.rows > launch.variant->batch() || launch.start.beside > 0 ||
      launch.start.why == Why::kWithin)
    return;
  ModelTimes& times = times_.models[static_cast<size_t>(number)];
  VariantTime& time = times.variants[static_cast<size_t>(launch.start.variant)];
  const VariantTime before = time;
  if (took < time.alone) time.alone -= (time.alone - took) / kNew;
  const bool whole = launch.variant->width() == slots_;
  if (whole || (launch.beside && launch.start.slots != slots_)) {
    const Time most = (whole ? std::max(time.alone, time.beside) : time.alone) * 4;
    time.beside = std::max(time.beside + (std::min(took, most) - time.beside) / kNew, time.alone);
  }
  if (recorder_ && (time.alone != before.alone || time.beside != before.beside))
    recorder_->times(number, times);
}

/// What runs took beside others fades where it may be why nothing is tried any more.
void LocalEngine::forget(const Served& model) {
  constexpr int kNew = 8;
  if (model.number < 0 || window_.running_of(model.number) > 0) return;
  ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  bool any = false;
  for (VariantTime& each : times.variants) {
    const Time less = (each.beside - each.alone) / kNew;
    any |= less > Time(0), each.beside -= std::max(less, Time(0));
  }
  if (any && recorder_) recorder_->times(model.number, times);
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
  trace.variant = fmt::format("batch {}, {} of {} {}", launch.variant->batch(),
                              launch.variant->width(), slots_, device_->unit());
  trace.lane = launch.lane, trace.batch_rows = launch.start.rows;
  trace.partners = launch.partners;
  for (const auto& other : launch.requests)
    if (other && other.get() != &request)
      trace.partners.push_back(other->request.id.empty() ? launch.model->config.name
                                                         : other->request.id);
  trace.queued = launch.started + launch.waited - request.arrival,
  trace.ran = ended - request.arrival;
  if (launch.start.slack != kNever) trace.slack = launch.start.slack;
  trace.reason = to_string(launch.start.why);
  if (launch.start.held) trace.reason += "; it had waited for partners";
  if (launch.start.why == Why::kWithin && launch.start.within == 0)
    trace.reason += "; that run ended first";
  if (launch.guests > 0)
    trace.reason +=
        fmt::format("; it gave way {} times, {} us in all", launch.guests,
                    std::chrono::duration_cast<std::chrono::microseconds>(launch.paused).count());
  if (launch.instances > 1)
    trace.reason += fmt::format("; in one launch with {} of other models", launch.instances - 1);
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
    if (given.on_device) {
      const bool aligned = reinterpret_cast<uintptr_t>(given.bytes.data()) % kAligned == 0;
      if (device_->target() == "cpu" || model.programs->joins() || !aligned)
        return bad(fmt::format("input '{}' is in a GPU's memory, {}", port.name,
                               !aligned ? "but at no multiple of 64"
                                        : "where requests are joined or run on a CPU"),
                   "give it in the host's memory");
    }
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
  std::shared_ptr<Launch> here;
  RequestKey key = 0;
  auto pending = std::make_unique<Pending>();
  warm_.asked();
  {
    const std::unique_lock lock = soon(mutex_, device_->spin().all);
    key = next_key_++;
    const auto refuse = [&](Answer answer) {
      answers.emplace_back(std::move(done), std::move(answer));
    };
    const auto found = models_.find(request.model);
    const std::shared_ptr<Served> model = found == models_.end() ? nullptr : found->second;
    int rows = 1;
    if (draining_) {
      refuse(refused(Outcome::kRejected,
                     refusal(Code::kInterrupted, "the engine takes no more requests")));
    } else if (lost_) {
      refuse(refused(Outcome::kRejected, *lost_));
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
                                     request.weight > 0 ? request.weight : model->config.weight),
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
        if (window_.waiting_of(model->number) == 0) model->since = at;
        model->last = at;
        window_.arrive(job, options_.policy);
        follow(answers, &here);
      } else {
        if (admission.why == Why::kLoad) window_.refuse(job, options_.policy);
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
  if (here) run(std::move(here));
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
  model->config.batch_invariant |= options_.batch_invariant;
  {
    std::lock_guard lock(mutex_);
    const std::string& name = model->config.name;
    const auto found = models_.find(name);
    if (found != models_.end() && found->second->state == ModelState::kReady) {
      found->second->reason.clear();
      if (auto& before = coming_[name]) before->gone = true;
      coming_[name] = model;
    } else {
      if (found != models_.end() && found->second->state != ModelState::kUnloading)
        found->second->gone = true;
      models_[name] = model;
    }
    loads_.push_front({model, 0, 0});
  }
  more_loads_.notify_all();
}

void LocalEngine::remove(const std::string& name) {
  act([&](auto&) {
    if (const auto coming = coming_.find(name); coming != coming_.end()) {
      coming->second->gone = true;
      coming_.erase(coming);
    }
    const auto found = models_.find(name);
    if (found == models_.end()) return;
    if (found->second->number >= 0) return unload(found->second);
    found->second->gone = true;
    models_.erase(found);
  });
}

/// It is retired when nothing of it waits or runs.
void LocalEngine::unload(const std::shared_ptr<Served>& model) {
  model->gone = true;
  if (std::exchange(model->state, ModelState::kUnloading) != ModelState::kUnloading)
    unloading_.push_back(model);
}

int LocalEngine::free_number() {
  for (size_t k = 0; k < by_number_.size(); ++k)
    if (!by_number_[k]) return static_cast<int>(k);
  by_number_.push_back(nullptr);
  times_.models.emplace_back();
  return static_cast<int>(by_number_.size()) - 1;
}

/// Nothing of it waits or runs: its programs are freed where nobody waits for that, then it is
/// retired.
void LocalEngine::leave(const std::shared_ptr<Served>& model) {
  if (std::exchange(model->leaving, true)) return;
  struct Gone {
    std::vector<KeptTimes> times;
    std::vector<std::shared_ptr<Variant>> variants;
    std::unique_ptr<Programs> programs;
  };
  const auto gone =
      std::make_shared<Gone>(Gone{times_to_keep(*model), std::exchange(model->variants, {}),
                                  std::exchange(model->programs, nullptr)});
  mover_.run([this, model, gone] {
    in_background([&] {
      for (const KeptTimes& each : gone->times) store_.keep(each);
      gone->variants.clear(), gone->programs.reset();
    });
    malloc_trim(0);  // what was freed in between stays with the process else
    act([&](auto&) { retire(*model); });
  });
}

void LocalEngine::retire(Served& model) {
  const auto number = static_cast<size_t>(model.number);
  times_.models[number] = {};
  if (recorder_) recorder_->times(model.number, {});
  model.variants.clear(), model.number = -1;
  model.workspace_bytes = model.weight_bytes = 0;
  moved_.notify_all();
  const std::shared_ptr<Served> keep = std::move(by_number_[number]);  // `model` lives in it
  std::erase(unloading_, keep);
  window_.forget(static_cast<int>(number));
  if (recorder_) recorder_->forget(static_cast<int>(number));
  by_number_[number] = nullptr;
  const auto found = models_.find(keep->config.name);
  if (found != models_.end() && found->second == keep && keep->gone) models_.erase(found);
}

ModelInfo LocalEngine::info(const Served& model) const {
  ModelInfo info{.config = model.config,
                 .state = model.state,
                 .reason = model.reason,
                 .inputs = model.inputs,
                 .outputs = model.outputs,
                 .counts = model.counts};
  info.programs = static_cast<int>(model.variants.size());
  info.to_come = model.to_come;
  const bool away = model.weights == Resident::State::kAway;
  info.memory_bytes = model.workspace_bytes + (away ? 0 : model.weight_bytes);
  info.weights_here = !away;
  info.replacing = model.state == ModelState::kReady && coming_.contains(model.config.name);
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
      load_more(next.model, next.batch, next.width);
  }
}

int LocalEngine::number_of_code(const std::string& code, int width) {
  std::lock_guard lock(mutex_);
  return codes_.try_emplace({code, width}, static_cast<int>(codes_.size())).first->second;
}

Result<LocalEngine::Timed> LocalEngine::time_variants(Program program, const std::string& name) {
  constexpr Time kBudget{30'000'000};  // of measuring one
  constexpr double kWorth = 0.95;      // a wider program must take less of the narrower one's time
  Timed made;
  const std::vector<int> widths =
      device_->any_width() ? device_->widths() : std::vector<int>{program.width};
  Time narrower = kNever;
  Hash fingerprint;
  if (store_.open())
    in_background([&] { fingerprint = runtime::fingerprint(*program.executable); });
  for (const int width : widths) {
    const std::string key = TimesStore::key_of(fingerprint, width, slots_, device_->name());
    auto variant = std::make_shared<Variant>(program, width, key, device_);
    const auto known = store_.find(key);
    // A program that was measured before is run nevertheless, so that its memory is there when it
    // is asked for.
    TRY(const Measured took, variant->measure(known ? Time(0) : kBudget));
    TRY_STATUS(variant->prepare(device_->seats(width, options_.policy)));
    const MeasuredTimes times =
        known ? *known : MeasuredTimes{took.usual, std::max(took.usual, took.mean), took.segment};
    if (!known) store_.keep({key, name, program.batch, width, times});
    const bool whole = width == slots_;  // policies that know no narrow programs ask for it
    if (narrower != kNever && !whole &&
        static_cast<double>(times.beside.count()) > kWorth * static_cast<double>(narrower.count()))
      continue;
    narrower = std::min(narrower, times.beside);
    const std::string code = program.executable->code();
    made.emplace_back(variant,
                      VariantTime{program.batch, width, times.alone, times.beside,
                                  code.empty() ? -1 : number_of_code(code, width), times.segment});
  }
  return made;
}

/// Before it is compiled: refused where the memory that it takes at least is beyond what there will
/// ever be for it.
Status LocalEngine::could_fit(const Served& model, const runtime::Program& program,
                              int width) const {
  int64_t least = program.arena.count * device_->seats(width, options_.policy);
  std::set<const void*> seen;
  for (const Tensor& weight : program.weights)
    if (seen.insert(weight.data()).second) least += weight.bytes();
  const std::unique_lock lock(mutex_);
  for (const auto& [limit, whose] : {std::pair(model.config.memory_limit, "its own limit"),
                                     std::pair(memory_limit_, "the limit of all models")})
    if (const int64_t all = model.workspace_bytes + least; limit > 0 && all > limit)
      return refusal(Code::kMemory,
                     fmt::format("it takes {} at least, {} is {}", to_string(Bytes{all}), whose,
                                 to_string(Bytes{limit})),
                     "smaller batches, or a higher limit");
  return ok_status();
}

/// Under the lock, which it gives back while it waits for memory: the scheduler may start them from
/// now on. Errors: kMemory beyond the limit.
Status LocalEngine::serve_variants(std::unique_lock<std::mutex>& lock, Served& model,
                                   const Programs& programs, Timed made) {
  int64_t workspace = 0;
  for (const auto& [variant, time] : made) {
    workspace += variant->program().executable->program().arena.count *
                 device_->seats(variant->width(), options_.policy);
    TRY_STATUS(programs.device_weights().keep(*variant->program().executable));
  }
  const int64_t weights = programs.device_weights().bytes(),
                more = workspace + weights - model.weight_bytes;
  if (const int64_t limit = model.config.memory_limit,
      all = model.workspace_bytes + workspace + weights;
      limit > 0 && all > limit)
    return refusal(Code::kMemory,
                   fmt::format("it takes {}, its own limit is {}", to_string(Bytes{all}),
                               to_string(Bytes{limit})),
                   "smaller batches, or a higher limit");
  // Weights of others make room, where they may.
  while (memory_limit_ > 0) {
    if (stop_loading_ || model.gone)
      return refusal(Code::kInterrupted, "it is not wanted any more");
    int64_t fixed = 0, all = 0, largest = weights;
    const std::shared_ptr<Served> idle = idle_model(model);
    bool moving = false;
    for (const std::shared_ptr<Served>& each : by_number_) {
      if (!each) continue;
      const bool away = each->weights == Resident::State::kAway;
      fixed += each->workspace_bytes, all += away ? 0 : each->weight_bytes;
      largest = std::max(largest, each->weight_bytes);
      moving |= each->leaving || each->weights == Resident::State::kLeaving ||
                each->weights == Resident::State::kComing;
    }
    if (fixed + all + more <= memory_limit_) break;
    const bool never = fixed + workspace + largest > memory_limit_;
    if (never || (!idle && !moving))
      return refusal(Code::kMemory,
                     fmt::format("it takes {} more, {} of {} are taken", to_string(Bytes{more}),
                                 to_string(Bytes{fixed + all}), to_string(Bytes{memory_limit_})),
                     "remove a model, or give more memory");
    if (!moving) release(idle);
    moved_.wait(lock);
  }
  model.workspace_bytes += workspace, model.weight_bytes = weights;
  ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  for (auto& [variant, time] : made) {
    times.bound = variant->program().bound;
    model.variants.push_back(std::move(variant));
    times.variants.push_back(time);
  }
  if (recorder_) recorder_->times(model.number, times);
  return ok_status();
}

/// What was learnt of its programs, for the next process.
std::vector<KeptTimes> LocalEngine::times_to_keep(const Served& model) const {
  std::vector<KeptTimes> kept;
  if (model.number < 0) return kept;
  const ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  for (size_t v = 0; v < model.variants.size(); ++v) {
    const VariantTime& time = times.variants[v];
    // What runs on all slots took of late says how busy the machine was, and nothing of the
    // program.
    kept.push_back({model.variants[v]->key(),
                    model.config.name,
                    time.batch,
                    time.width,
                    {time.alone, time.width == slots_ ? time.alone : time.beside, time.segment}});
  }
  return kept;
}

void LocalEngine::fail(Served& model, const Error& error) {
  std::lock_guard lock(mutex_);
  if (device_->ends_with(error) && !device_->works()) lose(error);
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
  const ProgramOptions how{options_.compiler, options_.cache, options_.verify,
                           options_.verify_seconds};
  auto opened = behind_requests([&] { return Programs::open(model->config, device_, how); });
  if (!opened.ok()) return fail(*model, opened.error());
  const std::vector<int> widths = (*opened)->widths();
  bool never = false;  // whatever makes room
  const auto admits = [&](const runtime::Program& program) {
    const Status status = could_fit(*model, program, widths.front());
    never = !status.ok();
    return status;
  };
  const auto first = [&]() -> Result<Timed> {
    TRY(Program program, behind_requests([&] {
          return (*opened)->compile(1, widths.front(), interrupted, admits);
        }));
    return time_variants(std::move(program), model->config.name);
  };
  auto made = caught(first);
  while (!made.ok() && !never && made.error().code == Code::kMemory && make_room(*model))
    made = caught(first);
  if (!made.ok()) return fail(*model, made.error());
  model->to_compile = (*opened)->batches().size() * widths.size() - 1;
  if (model->to_compile == 0) in_background([&] { (*opened)->close(); });
  Status fits = ok_status();
  act([&](std::unique_lock<std::mutex>& lock) {
    if (model->gone) return;
    model->inputs = (*opened)->inputs(), model->outputs = (*opened)->outputs();
    const std::vector<int> batches = (*opened)->batches();
    model->programs = std::move(*opened);
    model->number = free_number();
    by_number_[static_cast<size_t>(model->number)] = model;
    ++model->measuring;
    fits = serve_variants(lock, *model, *model->programs, std::move(*made));
    --model->measuring;
    if (!fits.ok() || model->gone) return retire(*model);
    model->state = ModelState::kReady;
    model->to_come = static_cast<int>(model->to_compile);
    const std::string& name = model->config.name;
    if (const auto coming = coming_.find(name);
        coming != coming_.end() && coming->second == model) {
      if (const auto before = models_.find(name);
          before != models_.end() && before->second->number >= 0)
        unload(before->second);
      coming_.erase(coming);
    }
    models_[name] = model;
    for (const int batch : batches)
      for (const int width : widths)
        if (batch > 1 || width != widths.front()) loads_.push_back({model, batch, width});
  });
  if (!fits.ok()) fail(*model, fits.error());
}

/// Another program of a model that is served. Its weights are on the device all the while.
void LocalEngine::load_more(const std::shared_ptr<Served>& model, int batch, int width) {
  const auto interrupted = [this, model] { return stop_loading_.load() || model->gone; };
  {
    std::unique_lock lock(mutex_);
    if (lost_ || model->gone) return;
    if (model->weights != Resident::State::kHere || model->stopped) {
      loads_.push_back({model, batch, width});
      moved_.wait_for(lock, std::chrono::milliseconds(20));
      return;
    }
    ++model->measuring;
  }
  const auto admits = [&](const runtime::Program& program) {
    return could_fit(*model, program, width);
  };
  auto made = caught([&]() -> Result<Timed> {
    TRY(Program program, behind_requests([&] {
          return model->programs->compile(batch, width, interrupted, admits);
        }));
    return time_variants(std::move(program), model->config.name);
  });
  if (--model->to_compile == 0) in_background([&] { model->programs->close(); });
  act([&](std::unique_lock<std::mutex>& lock) {
    Status served = ok_status();
    if (!model->gone)
      served = made.ok() ? serve_variants(lock, *model, *model->programs, std::move(*made))
                         : Status(made.error());
    --model->measuring, --model->to_come;
    if (!served.ok())
      model->reason = fmt::format("no batch of {}: {}", batch, served.error().text());
  });
}

// ---- weights that leave the device and come back ----

int64_t LocalEngine::room() const {
  int64_t room = memory_limit_;
  for (const std::shared_ptr<Served>& model : by_number_)
    room -= model ? model->workspace_bytes : 0;
  return room;
}

/// Whose weights may leave for another's: the one whose last request is longest ago.
std::shared_ptr<Served> LocalEngine::idle_model(const Served& asks) const {
  std::shared_ptr<Served> idle;
  for (const std::shared_ptr<Served>& each : by_number_) {
    if (!each || each.get() == &asks || each->weights != Resident::State::kHere ||
        each->weight_bytes == 0 || each->leaving || each->measuring > 0 ||
        window_.waiting_of(each->number) > 0 || window_.running_of(each->number) > 0)
      continue;
    if (!idle || each->last < idle->last) idle = each;
  }
  return idle;
}

/// The device has less memory than was thought: releases one model's weights. Whether it did.
bool LocalEngine::make_room(const Served& asks) {
  std::unique_lock lock(mutex_);
  const auto leaves = [](const std::shared_ptr<Served>& each) { return each && each->leaving; };
  if (std::any_of(by_number_.begin(), by_number_.end(), leaves)) {
    moved_.wait(lock);
    return true;
  }
  if (memory_limit_ == 0) return false;
  const std::shared_ptr<Served> idle = idle_model(asks);
  if (!idle) return false;
  release(idle);
  moved_.wait(lock, [&] { return idle->weights != Resident::State::kLeaving; });
  return idle->weights == Resident::State::kAway;
}

/// Weights did not come back for want of memory: the limit is what others have, so that some leave
/// before it is tried again. False where nobody has any.
bool LocalEngine::lower_limit(Served& asks) {
  constexpr Time kPause{2'000'000};
  int64_t fixed = 0, all = 0, largest = asks.weight_bytes;
  for (const std::shared_ptr<Served>& each : by_number_) {
    if (!each) continue;
    fixed += each->workspace_bytes, largest = std::max(largest, each->weight_bytes);
    if (each.get() != &asks && each->weights != Resident::State::kAway) all += each->weight_bytes;
  }
  if (all == 0 || memory_limit_ == 0) return false;
  memory_limit_ = std::min(memory_limit_, fixed + std::max(all, largest));
  asks.not_before = now() + kPause;
  return true;
}

Moves LocalEngine::moves(Time now) const {
  std::vector<Resident> all;
  for (const std::shared_ptr<Served>& model : by_number_)
    if (model && model->weight_bytes > 0 && model->not_before <= now &&
        (!model->leaving || model->weights != Resident::State::kAway))
      all.push_back({.model = model->number,
                     .bytes = model->weight_bytes,
                     .state = model->leaving ? Resident::State::kLeaving : model->weights,
                     .busy = window_.running_of(model->number) > 0 || model->measuring > 0,
                     .stopped = model->stopped,
                     .fresh = model->fresh,
                     .waiting = window_.waiting_of(model->number),
                     .since = model->since,
                     .last = model->last,
                     .gap = window_.gap(model->number),
                     .back = model->back});
  return plan_moves(all, room(), now, options_.policy.patience);
}

void LocalEngine::move_weights(Time now) {
  const Moves plan = moves(now);
  for (const int number : plan.stop) {
    Served& model = *by_number_[static_cast<size_t>(number)];
    model.stopped = true;
    tell_times(model, model.back);
  }
  for (const int number : plan.release) release(by_number_[static_cast<size_t>(number)]);
  for (const int number : plan.restore) restore(by_number_[static_cast<size_t>(number)]);
  if (plan.wake != kNever) alarm_.wake_at(epoch_ + plan.wake);
  settled_ = true;
  for (const std::shared_ptr<Served>& model : by_number_) {
    if (!model) continue;
    if (model->not_before > now) alarm_.wake_at(epoch_ + model->not_before);
    settled_ &= model->weights == Resident::State::kHere && !model->stopped;
  }
}

/// The scheduler starts nothing of a model whose weights are away.
void LocalEngine::tell_times(Served& model, Time away) {
  ModelTimes& times = times_.models[static_cast<size_t>(model.number)];
  if (times.away == away) return;
  times.away = away;
  if (recorder_) recorder_->times(model.number, times);
}

void LocalEngine::release(const std::shared_ptr<Served>& model) {
  model->weights = Resident::State::kLeaving, model->stopped = settled_ = false;
  tell_times(*model, model->back);
  mover_.run([this, model] {
    const Status left = caught([&] { return model->programs->device_weights().release(); });
    act([&](auto&) {
      model->weights = left.ok() ? Resident::State::kAway : Resident::State::kHere;
      model->since = now();
      if (left.ok()) return;
      LOG(kWarning, "serve", "weights of '{}' stay: {}", model->config.name, left.error().text());
      tell_times(*model, Time(0));
    });
    moved_.notify_all();
  });
}

void LocalEngine::restore(const std::shared_ptr<Served>& model) {
  model->weights = Resident::State::kComing;
  mover_.run([this, model] {
    const Time begun = now();
    const Status came = caught([&] { return model->programs->device_weights().restore(); });
    Answers failed;
    act([&](auto&) {
      model->weights = came.ok() ? Resident::State::kHere : Resident::State::kAway;
      if (came.ok()) {
        model->back = std::max(now() - begun, Time(1)), model->fresh = true;
        tell_times(*model, Time(0));
        return;
      }
      if (came.error().code == Code::kMemory && lower_limit(*model)) return;
      if (device_->ends_with(came.error())) lose(came.error());
      fail_waiting([&](const Served& whose) { return &whose == model.get() || lost_; },
                   came.error(), failed);
    });
    for (auto& [done, answer] : failed) done(std::move(answer));
    moved_.notify_all();
  });
}

/// Nothing runs on the device any more.
void LocalEngine::lose(const Error& error) {
  if (lost_) return;
  lost_ = error;
  if (options_.lost) options_.lost(error);
  for (const std::shared_ptr<Served>& model : by_number_)
    if (model) model->reason = error.text();
}

/// Requests that wait, of some models.
void LocalEngine::fail_waiting(const std::function<bool(const Served&)>& whose, const Error& error,
                               Answers& answers) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Pending& pending = *at->second;
    if (!whose(*pending.model)) {
      ++at;
      continue;
    }
    window_.cancel(at->first);
    if (recorder_) recorder_->cancel(at->first);
    ++pending.model->counts.failed;
    answers.emplace_back(std::move(pending.done), refused(Outcome::kFailed, error));
    at = waiting_.erase(at);
  }
}

}  // namespace

std::unique_ptr<Engine> make_engine(EngineOptions options) {
  return std::make_unique<LocalEngine>(std::move(options));
}

}  // namespace obelisk::serve

#include "serve/door/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "serve/door/frames.h"

namespace obelisk::serve::door {
namespace {

// A worker that somebody killed from outside says little of the request that ran.
constexpr int kMostFaults = 2, kMostKills = 4;

struct Socket {
  explicit Socket(int file) : file(file) {}
  ~Socket() { ::close(file); }
  const int file;
  std::mutex sending;
};

Answer refusal(Outcome outcome, std::string why) {
  Answer answer;
  answer.outcome = outcome;
  answer.error = Error{Code::kUsage, "serve", std::move(why), "", ""};
  return answer;
}

class WorkerEngine final : public Engine {
 public:
  explicit WorkerEngine(WorkerOptions options)
      : options_(std::move(options)),
        keeper_([this] { keep(); }),
        pump_thread_([this] { pump(); }) {}

  ~WorkerEngine() override {
    std::shared_ptr<Socket> socket;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      socket = socket_;
    }
    woken_.notify_all();
    if (socket) send(socket, FrameWriter(), FrameKind::kStop);
    keeper_.join();
    pump_thread_.join();
    std::vector<std::shared_ptr<Pending>> left;
    for (auto& [key, one] : pending_) left.push_back(one);
    pending_.clear();
    for (auto& one : left) one->done(refusal(Outcome::kCancelled, "the server stops"));
  }

  void add(ModelConfig config) override {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[config.name];
    entry.quarantined = entry.removing = false, entry.load_faults = 0;
    if (!entry.live)
      entry.info.config = config, entry.info.state = ModelState::kLoading,
      entry.info.reason.clear();
    entry.info.replacing = entry.live;
    entry.config = std::move(config);
    queue_load(entry.config.name);
    advance(lock);
  }
  void remove(const std::string& name) override {
    std::unique_lock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    std::erase(to_load_, name);
    if (!socket_ || !found->second.sent) {
      forget(lock, name);
      return;
    }
    found->second.removing = true, found->second.live = false;
    found->second.info.state = ModelState::kUnloading;
    ++commands_;
    const auto socket = socket_;
    lock.unlock();
    send(socket, FrameWriter().text(name), FrameKind::kRemove);
  }
  std::vector<ModelInfo> models() const override {
    const std::lock_guard lock(mutex_);
    std::vector<ModelInfo> out;
    for (const auto& [name, entry] : entries_) out.push_back(entry.info);
    return out;
  }
  std::optional<ModelInfo> model(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return std::nullopt;
    return found->second.info;
  }

  RequestKey submit(Request request, Done done) override {
    std::unique_lock lock(mutex_);
    const auto refuse = [&](Outcome outcome, std::string why) -> RequestKey {
      lock.unlock();
      done(refusal(outcome, std::move(why)));
      return 0;
    };
    if (draining_) return refuse(Outcome::kNotReady, "the server is shutting down");
    const auto found = entries_.find(request.model);
    if (found == entries_.end())
      return refuse(Outcome::kNotFound, fmt::format("there is no model '{}'", request.model));
    const Entry& entry = found->second;
    if (!entry.live && !entry.waits()) return refuse(Outcome::kNotReady, entry.info.reason);
    if (!socket_ && static_cast<int>(held_.size()) >= entry.config.queue_limit)
      return refuse(Outcome::kRejected, "Exceeds maximum queue size: the worker is starting again");
    auto pending = std::make_shared<Pending>();
    pending->key = ++last_, pending->request = std::move(request), pending->done = std::move(done);
    const auto& own = pending->request.deadline ? pending->request.deadline : entry.config.deadline;
    if (own) pending->until = pending->request.arrival + *own;
    pending_[pending->key] = pending;
    held_.push_back(pending);
    const RequestKey key = pending->key;
    advance(lock);
    return key;
  }
  void cancel(RequestKey key) override {
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(key);
    if (found == pending_.end()) return;
    const auto one = found->second;
    one->cancelled = true;
    if (one->sent) {
      const auto socket = socket_;
      lock.unlock();
      if (socket && one->written) send(socket, FrameWriter().put(key), FrameKind::kCancel);
      return;
    }
    pending_.erase(found);
    std::erase(held_, one);
    lock.unlock();
    one->done(refusal(Outcome::kCancelled, "cancelled by the caller"));
  }
  void drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }

 private:
  struct Pending {
    RequestKey key = 0;
    Request request;
    Done done;
    std::optional<Clock::time_point> until;
    bool sent = false;
    std::atomic<bool> written{false}, cancelled{false};
    int faults = 0,
        kills = 0;  // ends of the worker while it was there, of their own and from outside
    bool suspect() const { return faults + kills > 0; }
  };
  struct Entry {
    ModelConfig config;
    ModelInfo info;
    ModelCounts before;  // of workers that ended
    bool live = false;   // the worker answers for it
    bool sent = false;   // this worker knows it
    bool was_ready = false;
    bool removing = false, quarantined = false;
    int load_faults = 0;
    /// Requests for it wait: it answered before the worker ended, and will again.
    bool waits() const { return was_ready && !quarantined && !removing; }
  };

  static bool send(const std::shared_ptr<Socket>& socket, const FrameWriter& frame,
                   FrameKind kind) {
    const std::lock_guard lock(socket->sending);
    const bool sent = frame.send(socket->file, kind);
    // A worker that takes nothing is as good as dead: its end of the socket says so to the keeper.
    if (!sent) ::shutdown(socket->file, SHUT_RDWR);
    return sent;
  }

  void queue_load(const std::string& name) {
    std::erase(to_load_, name);
    to_load_.push_back(name);
  }
  void forget(std::unique_lock<std::mutex>& lock, const std::string& name) {
    entries_.erase(name);
    answer_held_of(lock, name, Outcome::kNotFound,
                   fmt::format("the model '{}' was unloaded", name));
  }
  /// Unlocks while it answers.
  void answer_held_of(std::unique_lock<std::mutex>& lock, const std::string& name, Outcome outcome,
                      const std::string& why) {
    std::vector<std::shared_ptr<Pending>> out;
    std::erase_if(held_, [&](const auto& one) {
      if (one->request.model != name) return false;
      out.push_back(one);
      pending_.erase(one->key);
      return true;
    });
    lock.unlock();
    for (const auto& one : out) one->done(refusal(outcome, why));
    lock.lock();
  }

  /// Sends what may be sent now; unlocks to do so.
  void advance(std::unique_lock<std::mutex>& lock) {
    while (socket_ && !stopping_) {
      const bool suspects =
          std::any_of(held_.begin(), held_.end(), [](const auto& one) { return one->suspect(); });
      if (!loading_ && !to_load_.empty()) {
        Entry& entry = entries_.at(to_load_.front());
        // What may end the worker is loaded when that harms nobody.
        if (entry.load_faults == 0 || (there_ == 0 && !suspects)) {
          loading_ = to_load_.front();
          to_load_.pop_front();
          entry.sent = true;
          ++commands_;
          FrameWriter frame;
          write_config(frame, entry.config);
          const auto socket = socket_;
          lock.unlock();
          send(socket, frame, FrameKind::kAdd);
          lock.lock();
          continue;
        }
      }
      if (solo_ ||
          (loading_ && entries_.contains(*loading_) && entries_.at(*loading_).load_faults > 0))
        return;
      if (suspects && there_ > 0) return;
      const auto next = std::find_if(held_.begin(), held_.end(), [&](const auto& one) {
        const auto entry = entries_.find(one->request.model);
        return entry != entries_.end() && entry->second.live && (!suspects || one->suspect());
      });
      if (next == held_.end()) return;
      const auto one = *next;
      held_.erase(next);
      one->sent = true;
      ++there_;
      if (suspects) solo_ = one->key;
      const auto socket = socket_;
      lock.unlock();
      FrameWriter frame;
      write_request(frame, one->key, one->request);
      send(socket, frame, FrameKind::kSubmit);
      one->written = true;
      if (one->cancelled) send(socket, FrameWriter().put(one->key), FrameKind::kCancel);
      lock.lock();
    }
  }

  // ---- the keeper's thread ----

  void keep() {
    std::deque<Clock::time_point> ends;
    while (true) {
      pid_t worker = -1;
      const auto socket = start(worker);
      {
        std::unique_lock lock(mutex_);
        if (stopping_) {
          if (worker > 0) finish(worker, socket);
          return;
        }
        if (socket) {
          socket_ = socket, commands_ = 0;
          begin_worker();
          pump_later();
        }
      }
      if (socket) {
        while (auto frame = receive(socket->file))
          if (!take(std::make_shared<Frame>(std::move(*frame)))) break;
        const int status = finish(worker, socket);
        std::unique_lock lock(mutex_);
        if (stopping_) return;
        ended(lock, status);
      }
      ends.push_back(Clock::now());
      while (!ends.empty() && Clock::now() - ends.front() > std::chrono::seconds(10))
        ends.pop_front();
      if (!socket || ends.size() > 8) {
        std::unique_lock lock(mutex_);
        woken_.wait_for(lock, std::chrono::milliseconds(200), [this] { return stopping_; });
      }
    }
  }

  std::shared_ptr<Socket> start(pid_t& worker) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
    auto mine = std::make_shared<Socket>(ends[0]);
    const int space = 4 << 20;
    for (int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &space, sizeof space);
    const timeval patience{10, 0};
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    std::vector<char*> words;
    for (std::string& word : options_.command) words.push_back(word.data());
    words.push_back(nullptr);
    const pid_t parent = getpid();
    worker = ::fork();
    if (worker == 0) {
      // Between fork and exec: system calls only.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      if (ends[1] == kWorkerSocket)
        fcntl(kWorkerSocket, F_SETFD, 0);
      else
        dup2(ends[1], kWorkerSocket);
      execv(words[0], words.data());
      _exit(127);
    }
    ::close(ends[1]);
    if (worker < 0) return nullptr;
    if (options_.notice) options_.notice("started", std::to_string(worker));
    return mine;
  }

  int finish(pid_t worker, const std::shared_ptr<Socket>& socket) {
    // It has ended, or is about to; one that hangs is ended here.
    int status = 0;
    for (int k = 0; k < 500; ++k) {
      if (waitpid(worker, &status, WNOHANG) == worker) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(k < 50 ? 1 : 10));
      if (k == 60) ::shutdown(socket->file, SHUT_RDWR);
    }
    kill(worker, SIGKILL);
    waitpid(worker, &status, 0);
    return status;
  }

  void begin_worker() {
    there_ = 0, solo_.reset(), loading_.reset(), to_load_.clear();
    // Those that answered before come first: requests wait for them. What may have ended the worker
    // comes last.
    for (int turn = 0; turn < 3; ++turn)
      for (auto& [name, entry] : entries_) {
        const int mine = entry.load_faults > 0 ? 2 : entry.was_ready ? 0 : 1;
        if (mine == turn && !entry.quarantined) to_load_.push_back(name);
      }
  }

  void quarantine(std::unique_lock<std::mutex>& lock, Entry& entry, std::string why) {
    entry.quarantined = true, entry.live = false;
    entry.info.state = ModelState::kFailed;
    entry.info.reason = "quarantined: " + why + "; loading it again lifts this";
    if (options_.notice) options_.notice("quarantined", entry.config.name + ": " + why);
    const std::string name = entry.config.name, reason = entry.info.reason;
    answer_held_of(lock, name, Outcome::kNotReady, reason);
  }

  void ended(std::unique_lock<std::mutex>& lock, int status) {
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const std::string how = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                            : WEXITSTATUS(status) == kDeviceLost
                                ? std::string("an error of the GPU")
                                : fmt::format("exit {}", WEXITSTATUS(status));
    if (options_.notice) options_.notice("ended", how);
    socket_.reset();
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      Entry& one = entry->second;
      if (one.removing) {
        entry = entries_.erase(entry);
        continue;
      }
      one.before = one.info.counts, one.before.waiting = 0;
      one.live = one.sent = false;
      if (one.info.state != ModelState::kFailed) one.info.state = ModelState::kLoading;
      ++entry;
    }
    std::vector<std::shared_ptr<Pending>> again;
    std::shared_ptr<Pending> culprit;
    for (auto& [key, one] : pending_) {
      if (!one->sent) continue;
      ++(killed ? one->kills : one->faults);
      one->sent = false, one->written = false;
      if (solo_ == key && (one->faults >= kMostFaults || one->kills >= kMostKills))
        culprit = one;
      else
        again.push_back(one);
    }
    held_.insert(held_.begin(), again.begin(), again.end());
    if (!solo_ && loading_ && entries_.contains(*loading_) && !killed) {
      Entry& entry = entries_.at(*loading_);
      if (++entry.load_faults >= kMostFaults)
        quarantine(lock, entry, fmt::format("loading it ended the worker twice ({})", how));
    }
    solo_.reset(), loading_.reset();
    if (!culprit) return;
    pending_.erase(culprit->key);
    if (const auto found = entries_.find(culprit->request.model); found != entries_.end())
      quarantine(lock, found->second, fmt::format("a request ended the worker twice ({})", how));
    lock.unlock();
    culprit->done(refusal(
        Outcome::kFailed,
        fmt::format("this request ended the worker twice ({}), and is not tried again", how)));
    lock.lock();
  }

  bool take(const std::shared_ptr<Frame>& frame) {
    FrameReader reader(frame->bytes);
    if (frame->kind == FrameKind::kModels) {
      take_models(reader);
      return reader.ok();
    }
    if (frame->kind != FrameKind::kAnswer) return false;
    auto [key, answer] = read_answer(reader);
    if (!reader.ok()) return false;
    answer.keep = frame;
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(key);
    if (found == pending_.end()) return true;
    const auto one = found->second;
    pending_.erase(found);
    --there_;
    if (solo_ == key) solo_.reset();
    pump_later();
    lock.unlock();
    one->done(std::move(answer));
    return true;
  }

  void take_models(FrameReader& reader) {
    const auto applied = reader.get<uint64_t>();
    const auto count = reader.get<uint64_t>();
    std::map<std::string, ModelInfo> now;
    for (uint64_t k = 0; reader.ok() && k < count; ++k) {
      ModelInfo info = read_info(reader);
      std::string name = info.config.name;
      now[std::move(name)] = std::move(info);
    }
    std::unique_lock lock(mutex_);
    if (!reader.ok() || applied != commands_) return;  // older than what was asked for since
    std::vector<std::string> gone;
    for (auto& [name, entry] : entries_) {
      const auto found = now.find(name);
      if (found == now.end()) {
        if (entry.removing) gone.push_back(name);
        continue;
      }
      if (entry.removing || entry.quarantined) continue;
      entry.info = std::move(found->second);
      entry.live = entry.info.state == ModelState::kReady;
      entry.info.replacing |=
          entry.live && std::find(to_load_.begin(), to_load_.end(), name) != to_load_.end();
      entry.was_ready |= entry.live;
      ModelCounts& counts = entry.info.counts;
      const ModelCounts& before = entry.before;
      counts.ok += before.ok, counts.failed += before.failed, counts.rejected += before.rejected,
          counts.late += before.late;
      counts.cancelled += before.cancelled, counts.launches += before.launches,
          counts.rows += before.rows;
      counts.in_time += before.in_time, counts.with_deadline += before.with_deadline,
          counts.queued += before.queued, counts.ran += before.ran;
      if (loading_ == name && entry.info.state != ModelState::kLoading) {
        loading_.reset();
        if (entry.live)
          entry.load_faults = 0;
        else
          entry.was_ready = false;
      }
    }
    if (loading_ && !now.contains(*loading_)) loading_.reset();
    for (const std::string& name : gone) forget(lock, name);
    // Requests that waited for a model that cannot be loaded any more.
    std::vector<std::pair<std::string, std::string>> failed;
    for (const auto& [name, entry] : entries_)
      if (entry.info.state == ModelState::kFailed) failed.emplace_back(name, entry.info.reason);
    for (const auto& [name, reason] : failed)
      answer_held_of(lock, name, Outcome::kNotReady, reason);
    pump_later();
  }

  // ---- the pump's thread: sends what waits here, not in the worker, or says that it is late ----

  /// The keeper itself must not send: a worker that waits for it to read would wait for ever.
  void pump_later() {
    if (held_.empty() && to_load_.empty()) return;
    work_ = true;
    woken_.notify_all();
  }

  void pump() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      woken_.wait_for(lock, std::chrono::milliseconds(held_.empty() ? 50 : 1),
                      [this] { return stopping_ || work_; });
      work_ = false;
      advance(lock);
      const auto now = Clock::now();
      std::vector<std::shared_ptr<Pending>> late;
      std::erase_if(held_, [&](const auto& one) {
        if (!one->until || now < *one->until) return false;
        late.push_back(one);
        pending_.erase(one->key);
        return true;
      });
      if (late.empty()) continue;
      for (const auto& one : late)
        if (const auto entry = entries_.find(one->request.model); entry != entries_.end())
          ++entry->second.before.late;
      lock.unlock();
      for (const auto& one : late)
        one->done(refusal(Outcome::kLate, "the worker was starting again"));
      lock.lock();
    }
  }

  WorkerOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::shared_ptr<Socket> socket_;  // null: no worker
  std::map<std::string, Entry> entries_;
  std::deque<std::string> to_load_;
  std::optional<std::string> loading_;
  std::map<RequestKey, std::shared_ptr<Pending>> pending_;  // without an answer
  std::deque<std::shared_ptr<Pending>> held_;  // of them, those that the worker does not have
  std::optional<RequestKey> solo_;             // the suspect that runs alone
  int there_ = 0;                              // requests that the worker has
  uint64_t commands_ = 0;
  RequestKey last_ = 0;
  bool stopping_ = false, draining_ = false, work_ = false;
  std::thread keeper_, pump_thread_;
};

/// For tests of what happens then: OBELISK_SERVE_FAULT=request:ID or load:MODEL ends the worker
/// there.
void inject_fault(std::string_view place, std::string_view name) {
  static const char* const wanted = getenv("OBELISK_SERVE_FAULT");
  if (wanted && std::string(place) + ":" + std::string(name) == wanted) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
}

}  // namespace

std::unique_ptr<Engine> make_worker_engine(WorkerOptions options) {
  return std::make_unique<WorkerEngine>(std::move(options));
}

void run_worker(int file, std::unique_ptr<Engine> engine) {
  const auto socket = std::make_shared<Socket>(file);
  std::mutex mutex;
  std::condition_variable woken;
  bool stopping = false;
  uint64_t applied = 0;
  std::map<RequestKey, RequestKey> keys;  // the other side's to the engine's
  const auto send = [&](const FrameWriter& frame, FrameKind kind) {
    const std::lock_guard lock(socket->sending);
    frame.send(socket->file, kind);
  };
  std::thread teller([&] {
    std::string told;
    std::unique_lock lock(mutex);
    while (!stopping) {
      const uint64_t as_of = applied;
      lock.unlock();
      const std::vector<ModelInfo> models = engine->models();
      bool loading = false;
      FrameWriter frame;
      frame.put(as_of).put<uint64_t>(models.size());
      for (const ModelInfo& info : models) {
        loading |= info.state == ModelState::kLoading || info.state == ModelState::kUnloading;
        write_info(frame, info);
      }
      send(frame, FrameKind::kModels);
      lock.lock();
      woken.wait_for(lock, std::chrono::milliseconds(loading ? 5 : 100),
                     [&] { return stopping || applied != as_of; });
    }
  });
  while (auto received = receive(socket->file)) {
    const auto frame = std::make_shared<Frame>(std::move(*received));
    FrameReader reader(frame->bytes);
    if (frame->kind == FrameKind::kStop) break;
    if (frame->kind == FrameKind::kAdd || frame->kind == FrameKind::kRemove) {
      if (frame->kind == FrameKind::kAdd) {
        ModelConfig config = read_config(reader);
        inject_fault("load", config.name);
        engine->add(std::move(config));
      } else {
        engine->remove(reader.text());
      }
      const std::lock_guard lock(mutex);
      ++applied;
      woken.notify_all();
    } else if (frame->kind == FrameKind::kSubmit) {
      auto [key, request] = read_request(reader);
      inject_fault("request", request.id);
      request.keep = frame;
      const auto over = std::make_shared<bool>(false);
      const RequestKey inside =
          engine->submit(std::move(request), [&, key = key, over](Answer answer) {
            FrameWriter out;
            write_answer(out, key, answer);
            send(out, FrameKind::kAnswer);
            const std::lock_guard lock(mutex);
            *over = true;
            keys.erase(key);
          });
      const std::lock_guard lock(mutex);
      if (!*over) keys[key] = inside;
    } else if (frame->kind == FrameKind::kCancel) {
      const auto key = reader.get<RequestKey>();
      std::unique_lock lock(mutex);
      const auto found = keys.find(key);
      if (found == keys.end()) continue;
      const RequestKey inside = found->second;
      lock.unlock();
      engine->cancel(inside);
    }
  }
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  woken.notify_all();
  teller.join();
  engine.reset();
}

}  // namespace obelisk::serve::door

/// serve/door/aside.h — a thread beside those that serve connections: what takes milliseconds (long
/// JSON, files of models) holds up nobody there.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace obelisk::serve::door {

class Aside {
 public:
  /// `niceness`: 19 stands behind everything else.
  explicit Aside(int niceness = 0)
      : thread_([this, niceness] {
          if (niceness != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);
          run();
        }) {}
  ~Aside() { stop(); }

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    woken_.notify_one();
  }
  /// Returns when all that was posted has run.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    woken_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      woken_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace obelisk::serve::door

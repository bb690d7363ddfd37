/// serve/lanes.h — the threads that run programs, one for each that may run at once, and one that
/// wakes at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace obelisk::serve {

/// The lock of what is held for a few microseconds each: polled for about as long before the thread
/// sleeps, or for `longer`, where a thread that is woken comes late and there are cores to poll on.
std::unique_lock<std::mutex> soon(std::mutex& mutex, std::chrono::microseconds longer = {});

/// Runs what it is given, first come first served.
class Lanes {
 public:
  /// How long idle threads look for work before they sleep, counted from when work last began or
  /// ended on any of them: all of them for `all`, and `some` of them for `longer`, so that the
  /// first work after a pause wakes nobody. When one of these has found work, another one that
  /// looks wakes a sleeping thread to take its place: what comes next, beside the first, waits for
  /// no thread either.
  struct Spin {
    std::chrono::microseconds all{0}, longer{0};
    int some = 0;
  };
  /// `niceness`: of its threads; 19 stands behind everything else.
  explicit Lanes(int count, Spin spin, int niceness = 0);
  explicit Lanes(int count) : Lanes(count, Spin()) {}
  ~Lanes() { stop(); }
  void run(std::function<void()> work);
  /// Runs what is left and waits for the end of all. Nothing may be given any more.
  void stop();
  /// Idle threads that look for work.
  int looking() const { return looking_; }

 private:
  using Clock = std::chrono::steady_clock;
  void loop();
  void look(std::unique_lock<std::mutex>& lock);
  void poll(std::unique_lock<std::mutex>& lock, Clock::time_point until);
  void call_a_looker();
  bool lacks_a_looker() const { return looking_ + called_ < spin_.some && asleep_ > called_; }
  const Spin spin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  // Written under the lock: how much of it waits; idle threads that look for work; that sleep; of
  // those, that are woken to look.
  std::atomic<int> waiting_ = 0, looking_ = 0, asleep_ = 0, called_ = 0;
  int longer_ = 0;  // of those that look, so many do so for longer
  // When work was last begun or ended. One time for all: a thread that is woken to look does so no
  // longer than the one whose place it takes, or two of them would wake each other for ever.
  Clock::time_point busy_ = Clock::now();
  std::atomic<bool> ends_ = false;
  std::vector<std::thread> threads_;  // last: begins after what it uses
};

/// Calls a function at the earliest time that was asked for since it was called last.
class Alarm {
 public:
  using Clock = std::chrono::steady_clock;
  /// `spin`: so long before a time, and behind one, the thread polls instead of sleeping.
  explicit Alarm(std::function<void()> rings, std::chrono::microseconds spin = {});
  ~Alarm();
  void wake_at(Clock::time_point at);

 private:
  static constexpr Clock::rep kNone = std::numeric_limits<Clock::rep>::max();
  void loop();
  void poll(std::unique_lock<std::mutex>& lock, Clock::time_point until);
  std::function<void()> rings_;
  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Clock::rep> at_ = kNone;  // written under the lock
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // last
};

}  // namespace obelisk::serve

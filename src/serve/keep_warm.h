/// serve/keep_warm.h — a thread that gives a device a little work whenever it would be idle while
/// requests come.
///
/// A GPU that has nothing to do lowers its clocks and its power after some hundred microseconds;
/// the run after a pause takes longer then. As long as a request has come within the last `lately`,
/// and nothing runs for longer than `idle`, the device has a beat each `idle`. While anything runs
/// there is none, so that no run waits for one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace obelisk::serve {

class KeepWarm {
 public:
  using Clock = std::chrono::steady_clock;
  /// `beat`: false ends it, after an error of the device. `idle` 0: never, and no thread.
  KeepWarm(std::chrono::microseconds idle, std::function<bool()> beat,
           std::chrono::microseconds lately = std::chrono::seconds(1));
  ~KeepWarm();
  void asked();  // a request came
  void begins() { running_.fetch_add(1, std::memory_order_relaxed); }
  void ends();  // a run

 private:
  void loop();
  static Clock::rep now() { return Clock::now().time_since_epoch().count(); }
  const Clock::duration idle_, lately_;
  const std::function<bool()> beat_;
  std::atomic<int> running_{0};
  std::atomic<Clock::rep> asked_{0}, ended_{0};  // when last
  std::atomic<bool> sleeps_{false};              // until somebody asks
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;  // last
};

}  // namespace obelisk::serve

#include "serve/keep_warm.h"

#include <sys/prctl.h>

#include <algorithm>

namespace obelisk::serve {

KeepWarm::KeepWarm(std::chrono::microseconds idle, std::function<bool()> beat,
                   std::chrono::microseconds lately)
    : idle_(idle), lately_(lately), beat_(std::move(beat)) {
  if (idle.count() > 0) thread_ = std::thread([this] { loop(); });
}

KeepWarm::~KeepWarm() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KeepWarm::asked() {
  if (!thread_.joinable()) return;
  asked_ = now();
  if (!sleeps_) return;
  const std::lock_guard lock(mutex_);  // it is about to sleep, or does
  changed_.notify_all();
}

void KeepWarm::ends() {
  ended_.store(now(), std::memory_order_relaxed);
  running_.fetch_sub(1, std::memory_order_relaxed);
}

void KeepWarm::loop() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // else a sleep lasts up to 50 us longer
  std::unique_lock lock(mutex_);
  Clock::rep beaten = 0;
  const auto lately = [this] {
    const Clock::rep last = asked_;
    return last != 0 && now() - last < lately_.count();
  };
  while (!ends_) {
    if (!lately()) {
      sleeps_ = true;
      changed_.wait(lock, [&] { return ends_ || lately(); });
      sleeps_ = false;
      continue;
    }
    const Clock::rep due =
        running_ > 0 ? now() + idle_.count()
                     : std::max(ended_.load(std::memory_order_relaxed), beaten) + idle_.count();
    if (const Clock::rep at = now(); at < due) {
      changed_.wait_until(lock, Clock::time_point(Clock::duration(due)), [this] { return ends_; });
      continue;
    }
    lock.unlock();
    const bool goes_on = beat_();
    lock.lock();
    if (!goes_on) return;
    beaten = now();
  }
}

}  // namespace obelisk::serve

#include "serve/lanes.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/parallel.h"

namespace obelisk::serve {

/// Chosen, not measured.
std::unique_lock<std::mutex> soon(std::mutex& mutex, std::chrono::microseconds longer) {
  constexpr int kTries = 32, kPauses = 4;
  const auto tries = [&] {
    for (int k = 0; k < kTries; ++k) {
      std::unique_lock lock(mutex, std::try_to_lock);
      if (lock) return lock;
      for (int pause = 0; pause < kPauses; ++pause) spin_pause();
    }
    return std::unique_lock<std::mutex>();
  };
  if (auto lock = tries()) return lock;
  if (longer.count() > 0) {
    const auto until = std::chrono::steady_clock::now() + longer;
    while (std::chrono::steady_clock::now() < until)
      if (auto lock = tries()) return lock;
  }
  return std::unique_lock(mutex);
}

Lanes::Lanes(int count, Spin spin, int niceness) : spin_(spin) {
  for (int k = 0; k < count; ++k)
    threads_.emplace_back([this, niceness] {
      if (niceness != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);
      loop();
    });
}

void Lanes::stop() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Lanes::run(std::function<void()> work) {
  bool wake = false;
  {
    const std::unique_lock lock = soon(mutex_, spin_.all);
    work_.push_back(std::move(work));
    waiting_ = static_cast<int>(work_.size());
    wake = waiting_ > looking_;
  }
  if (wake) changed_.notify_one();
}

/// Until there is work, or too few look for it, or a time. Without the lock; what was seen may be
/// gone when it comes.
void Lanes::poll(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  lock.unlock();
  constexpr int kLooks = 64;  // between looks at the clock
  const auto sees = [&] { return waiting_ > 0 || lacks_a_looker(); };
  do {
    for (int k = 0; k < kLooks && !sees(); ++k) spin_pause();
  } while (!sees() && !ends_ && Clock::now() < until);
  lock = soon(mutex_, spin_.all);
}

void Lanes::call_a_looker() {
  if (!work_.empty() || !lacks_a_looker() || Clock::now() >= busy_ + spin_.longer) return;
  ++called_;
  changed_.notify_one();
}

void Lanes::look(std::unique_lock<std::mutex>& lock) {
  ++looking_;
  const auto look_for = [&](std::chrono::microseconds span) {
    do {  // another may have been quicker to take what was seen: then this one looks on
      poll(lock, busy_ + span);
      call_a_looker();
    } while (work_.empty() && !ends_ && Clock::now() < busy_ + span);
  };
  look_for(spin_.all);
  if (work_.empty() && !ends_ && longer_ < spin_.some) {
    ++longer_;
    look_for(spin_.longer);
    --longer_;
  }
  --looking_;
}

void Lanes::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (spin_.all.count() > 0 && !ends_ && work_.empty()) look(lock);
    ++asleep_;
    changed_.wait(lock, [this] { return ends_ || !work_.empty() || called_ > 0; });
    --asleep_;
    if (called_ > 0) --called_;
    if (work_.empty() && !ends_) continue;
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    waiting_ = static_cast<int>(work_.size());
    busy_ = Clock::now();
    lock.unlock();
    work();
    work = nullptr;  // what it holds goes before the lock comes
    lock = soon(mutex_, spin_.all);
    busy_ = Clock::now();
  }
}

Alarm::Alarm(std::function<void()> rings, std::chrono::microseconds spin)
    : rings_(std::move(rings)), spin_(spin), thread_([this] { loop(); }) {}

Alarm::~Alarm() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Alarm::wake_at(Clock::time_point at) {
  const Clock::rep time = at.time_since_epoch().count();
  if (at_ <= time) return;  // not later than one that is asked for already
  {
    std::lock_guard lock(mutex_);
    if (at_ <= time) return;
    at_ = time;
  }
  changed_.notify_all();
}

/// Until a time, or until an earlier one is asked for. Without the lock.
void Alarm::poll(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  lock.unlock();
  const Clock::rep was = at_;
  while (at_ == was && !ends_ && Clock::now() < until) spin_pause();
  lock.lock();
}

void Alarm::loop() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const Clock::time_point until{Clock::duration(at_.load())};
    if (at_ == kNone) {
      changed_.wait(lock);
    } else if (const auto now = Clock::now(); now < until) {
      if (until - now > spin_)
        changed_.wait_until(lock, until - spin_);
      else
        poll(lock, until);
    } else {
      at_ = kNone;
      lock.unlock();
      rings_();
      lock.lock();
      if (at_ == kNone && spin_.count() > 0) poll(lock, Clock::now() + spin_);
    }
  }
}

}  // namespace obelisk::serve

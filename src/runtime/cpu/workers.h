/// runtime/cpu/workers.h — the threads that run a context's lists: they spin for a while, then
/// sleep.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace obelisk::runtime::cpu {

/// How often one of so many threads looks whether it may go on, before it sleeps.
int spins_while_waiting(int threads);

/// A reusable barrier of `count` threads. Arriving releases what a thread wrote; leaving acquires
/// what the others wrote.
class SpinBarrier {
 public:
  explicit SpinBarrier(int count);
  /// `look` is called again and again until all are there, as long as the thread does not sleep.
  template <typename Look>
  void wait(const Look& look) {
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrive(phase)) return;
    for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) {
      look();
      if (spin < spins_)
        spin_pause();
      else
        phase_.wait(phase, std::memory_order_acquire);
    }
  }

 private:
  bool arrive(uint32_t phase);  // whether it is the last
  const int count_, spins_;
  // written by every arriving thread (acq_rel), reset by the last
  alignas(64) std::atomic<int> arrived_{0};
  // written by the last to arrive (release), read by the others (acquire)
  alignas(64) std::atomic<uint32_t> phase_{0};
};

/// `count` workers, of which the caller is number 0. run() hands one function to all and returns
/// when all have returned; what one of them throws it throws then. A thread that waits at a barrier
/// for one that threw waits for ever: a function with barriers catches by itself.
class Workers {
 public:
  explicit Workers(int count);
  ~Workers();
  int count() const { return count_; }
  void run(const std::function<void(int worker)>& function);

 private:
  void loop(int worker);
  void call(int worker);

  const int count_;
  // written by run() before generation_ (release)
  const std::function<void(int)>* function_ = nullptr;
  // written by run(), read by workers (acquire); UINT32_MAX ends
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};  // workers that have not returned yet
  std::atomic<bool> stop_{false};
  std::mutex throwing_;        // guards thrown_ while workers run
  std::exception_ptr thrown_;  // the first
  std::vector<std::thread> threads_;
};

}  // namespace obelisk::runtime::cpu

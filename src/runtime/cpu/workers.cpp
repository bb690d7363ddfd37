#include "runtime/cpu/workers.h"

#include <utility>

#include "base/parallel.h"

namespace obelisk::runtime::cpu {
namespace {

// about 0.5 ms of pauses: longer than any wave that is worth splitting
constexpr int kSpins = 20000;
// About 2 ms at a barrier: who sleeps is woken where its waker runs, and waits there for its turn,
// which costs more.
constexpr int kBarrierSpins = 40000;
constexpr int kCrowdedSpins = 1000;  // more workers than cores: a spinning one holds up another

}  // namespace

int spins_while_waiting(int threads) {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 || static_cast<unsigned>(threads) <= cores ? kBarrierSpins : kCrowdedSpins;
}

SpinBarrier::SpinBarrier(int count) : count_(count), spins_(spins_while_waiting(count)) {}

bool SpinBarrier::arrive(uint32_t phase) {
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < count_) return false;
  arrived_.store(0, std::memory_order_relaxed);
  phase_.store(phase + 1, std::memory_order_release);
  phase_.notify_all();
  return true;
}

Workers::Workers(int count) : count_(count) {
  for (int worker = 1; worker < count; ++worker)
    threads_.emplace_back([this, worker] { loop(worker); });
}

Workers::~Workers() {
  stop_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(const std::function<void(int)>& function) {
  if (count_ == 1) return function(0);
  function_ = &function;
  thrown_ = nullptr;
  running_.store(count_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  call(0);
  for (int spin = 0, left; (left = running_.load(std::memory_order_acquire)) != 0; ++spin) {
    if (spin < kSpins)
      spin_pause();
    else
      running_.wait(left, std::memory_order_acquire);
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void Workers::call(int worker) {
  try {
    (*function_)(worker);
  } catch (...) {
    std::lock_guard lock(throwing_);
    if (!thrown_) thrown_ = std::current_exception();
  }
}

void Workers::loop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now;
    for (int spin = 0; (now = generation_.load(std::memory_order_acquire)) == seen; ++spin) {
      if (spin < kSpins)
        spin_pause();
      else
        generation_.wait(seen, std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_acquire)) return;
    call(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace obelisk::runtime::cpu

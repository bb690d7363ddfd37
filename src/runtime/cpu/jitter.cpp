#include "runtime/cpu/jitter.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace obelisk::runtime::cpu {

std::unique_ptr<Jitter> Jitter::if_wished(int workers) {
  const char* wish = getenv("OBELISK_JITTER");
  const uint64_t seed = wish ? strtoull(wish, nullptr, 10) : 0;
  if (seed == 0) return nullptr;
  auto jitter = std::make_unique<Jitter>();
  jitter->workers_.resize(workers);
  for (int worker = 0; worker < workers; ++worker)
    jitter->workers_[worker].value =
        (seed + static_cast<uint64_t>(worker)) * 0x9e3779b97f4a7c15u | 1u;
  return jitter;
}

void Jitter::delay(int worker) {
  uint64_t& x = workers_[worker].value;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  const uint64_t amount = x >> 32;
  switch (x % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
      std::this_thread::yield();
      return;
    case 4:
    case 5:
      for (uint64_t spin = 0; spin < amount % 4096; ++spin)
        std::atomic_signal_fence(std::memory_order_seq_cst);
      return;
    case 6:
      std::this_thread::sleep_for(std::chrono::microseconds(amount % 64));
      return;
    default:
      return;
  }
}

}  // namespace obelisk::runtime::cpu

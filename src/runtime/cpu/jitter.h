/// runtime/cpu/jitter.h — random delays where workers meet, so that tests see orders that a quiet
/// machine never shows: OBELISK_JITTER=SEED, read when a context is made.
///
/// Before each task and on both sides of each barrier a worker goes on, gives its core away, spins
/// or sleeps, by its own random numbers. Answers must not change: same_answers_test.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace obelisk::runtime::cpu {

class Jitter {
 public:
  /// Nothing unless $OBELISK_JITTER is set to a number other than 0.
  static std::unique_ptr<Jitter> if_wished(int workers);
  void delay(int worker);

 private:
  struct alignas(64) State {
    uint64_t value = 1;  // never 0: xorshift stays there
  };
  std::vector<State> workers_;
};

}  // namespace obelisk::runtime::cpu

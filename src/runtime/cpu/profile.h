/// runtime/cpu/profile.h — where a context's time goes: OBELISK_PROFILE=1 prints it to stderr when
/// the context ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/program.h"

namespace obelisk::runtime::cpu {

/// Sums by worker, so that workers do not share lines; one object belongs to one context.
class Profile {
 public:
  using Clock = std::chrono::steady_clock;
  /// Nothing unless $OBELISK_PROFILE is set to something other than 0.
  static std::unique_ptr<Profile> if_wished(const Program& program, int workers);

  void worked(int worker, uint32_t work, Clock::duration time) {
    workers_[worker].by_work[work] += Nanos(time).count();
  }
  void waited(int worker, Clock::duration time) { workers_[worker].waiting += Nanos(time).count(); }
  void ran() { ++runs_; }
  /// The bodies by time, with the part that each has of all workers' time, and their slowest work.
  void print(const Program& program) const;

 private:
  struct alignas(64) Sums {
    std::vector<double> by_work;  // ns
    double waiting = 0;           // ns at barriers
  };
  std::vector<Sums> workers_;
  int64_t runs_ = 0;
};

}  // namespace obelisk::runtime::cpu

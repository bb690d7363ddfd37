/// serve/door/delivery.h — what an answer takes from the engine to the transport: the thread of its
/// connection has to wake, and to write numbers as text perhaps. Where the cores are busy that
/// takes milliseconds, and the engine, which lets in as many as finish just in time, is to finish
/// earlier.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace obelisk::serve::door {

/// Threads: any. Of notes at the same moment one may be lost.
class DeliveryTime {
 public:
  void note(std::chrono::nanoseconds took) {
    const auto now = std::max<int64_t>(took.count(), 0), mean = mean_.load();
    const int64_t gap = now - mean;
    mean_ = mean + gap / kWeight;
    deviation_ = deviation_.load() + (std::abs(gap) - deviation_.load()) / kWeight;
  }
  /// What nearly all take, of late: the mean and twice the mean deviation.
  std::chrono::nanoseconds expected() const {
    return std::chrono::nanoseconds(mean_.load() + 2 * deviation_.load());
  }
  /// What is left of a deadline for the engine: at least seven eighths.
  std::chrono::nanoseconds before(std::chrono::nanoseconds deadline) const {
    return deadline - std::min(expected(), deadline / 8);
  }

 private:
  static constexpr int64_t kWeight = 16;  // chosen: a burst is noticed within its first answers
  std::atomic<int64_t> mean_{0}, deviation_{0};
};

}  // namespace obelisk::serve::door

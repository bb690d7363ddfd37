/// serve/door/adaptive_spin.h — whether a thread that has nothing to do polls for a moment before
/// it sleeps.
#pragma once

#include <algorithm>
#include <chrono>

namespace obelisk::serve::door {

/// Polls where the last waits were short: a client that asks again at once finds a thread awake,
/// and a quiet server uses no processor time.
class AdaptiveSpin {
 public:
  using Duration = std::chrono::steady_clock::duration;
  explicit AdaptiveSpin(Duration limit) : limit_(limit) {}
  /// How long to poll now.
  Duration limit() const { return usual_ <= limit_ ? limit_ : Duration(0); }
  /// How long it took until there was something to do.
  void waited(Duration time) {
    constexpr int kOld = 7;  // parts of eight
    // One long wait is forgotten after a few short ones.
    usual_ = (usual_ * kOld + std::min(time, 4 * limit_)) / (kOld + 1);
  }

 private:
  const Duration limit_;
  Duration usual_{0};
};

}  // namespace obelisk::serve::door

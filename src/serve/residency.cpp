#include "serve/residency.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace obelisk::serve {
namespace {

using State = Resident::State;

/// When the next request is expected; kNever: nobody knows.
Time next_use(const Resident& model) {
  return model.waiting > 0 ? model.since : model.gap == kNever ? kNever : model.last + model.gap;
}

class Planning {
 public:
  Planning(std::span<const Resident> models, int64_t room, Time now, Time patience)
      : models_(models), room_(room), now_(now), patience_(patience) {
    for (const Resident& model : models)
      if (model.state != State::kAway) taken_ += model.bytes;
    for (const Resident& model : models)
      if (model.state == State::kLeaving || (model.stopped && model.state == State::kHere))
        leaving_ += model.bytes;
    chosen_.assign(models.size(), false);
  }

  Moves plan() {
    for (size_t k = 0; k < models_.size(); ++k)  // stopped by an earlier plan, and idle by now
      if (models_[k].stopped && models_[k].state == State::kHere && !models_[k].busy)
        release(k, true);
    std::vector<size_t> wanted, expected;
    for (size_t k = 0; k < models_.size(); ++k) {
      const Resident& model = models_[k];
      if (model.state != State::kAway) continue;
      if (model.waiting > 0) wanted.push_back(k);
      if (model.waiting > 0 || model.gap == kNever) continue;
      const Time begin = next_use(model) - 2 * model.back;
      if (begin > now_)
        moves_.wake = std::min(moves_.wake, begin);
      else if (next_use(model) + model.gap > now_)  // else it does not come regularly any more
        expected.push_back(k);
    }
    const auto sooner = [&](size_t a, size_t b) {
      return std::pair(next_use(models_[a]), a) < std::pair(next_use(models_[b]), b);
    };
    std::sort(wanted.begin(), wanted.end(), sooner);
    std::sort(expected.begin(), expected.end(), sooner);
    for (const size_t k : wanted)
      if (!bring(k, now_ - models_[k].since > patience_)) return moves_;  // nobody overtakes it
    for (const size_t k : expected) bring(k, false);
    for (const size_t k : wanted)
      if (const Time late = models_[k].since + patience_ + Time(1); late > now_)
        moves_.wake = std::min(moves_.wake, late);
    return moves_;
  }

 private:
  /// Restores one where there is room, else releases others. Whether it comes.
  bool bring(size_t wanted, bool impatient) {
    const Resident& model = models_[wanted];
    if (model.bytes > room_) return true;  // never fits; who waits is told by the engine
    std::vector<size_t> victims;
    for (size_t k = 0; k < models_.size(); ++k) {
      const Resident& other = models_[k];
      if (other.state != State::kHere || chosen_[k] || other.stopped || other.bytes == 0) continue;
      if ((other.busy || other.waiting > 0) && (!impatient || other.fresh)) continue;
      if (model.waiting == 0 && next_use(other) <= next_use(model) + model.back) continue;
      victims.push_back(k);
    }
    std::sort(victims.begin(), victims.end(), [&](size_t a, size_t b) {
      const auto order = [&](size_t k) {
        const Resident& other = models_[k];
        return std::tuple(other.busy, other.waiting > 0, -next_use(other), other.last, k);
      };
      return order(a) < order(b);
    });
    for (const size_t victim : victims) {
      if (taken_ - leaving_ + model.bytes <= room_) break;
      if (models_[victim].busy)
        moves_.stop.push_back(models_[victim].model), leaving_ += models_[victim].bytes,
            chosen_[victim] = true;
      else
        release(victim, false);
    }
    if (taken_ + model.bytes > room_) {
      if (model.waiting > 0 && !impatient)
        moves_.wake = std::min(moves_.wake, model.since + patience_ + Time(1));
      return false;
    }
    moves_.restore.push_back(model.model);
    taken_ += model.bytes, chosen_[wanted] = true;
    return true;
  }
  void release(size_t k, bool counted) {
    moves_.release.push_back(models_[k].model);
    chosen_[k] = true;
    if (!counted) leaving_ += models_[k].bytes;
  }

  const std::span<const Resident> models_;
  const int64_t room_;
  const Time now_, patience_;
  int64_t taken_ = 0, leaving_ = 0;  // bytes; leaving_: a part of them
  std::vector<bool> chosen_;
  Moves moves_;
};

}  // namespace

Moves plan_moves(std::span<const Resident> models, int64_t room, Time now, Time patience) {
  return Planning(models, room, now, patience).plan();
}

}  // namespace obelisk::serve

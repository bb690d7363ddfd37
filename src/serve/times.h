/// serve/times.h — how long programs take, as the scheduler knows it: numbers, and no programs.
///
/// Slots are what a machine runs programs on: SMs of a GPU, workers of a CPU. A variant occupies
/// `width` of them from its start to its end.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace obelisk::serve {

using Time =
    std::chrono::nanoseconds;  // durations, and points since the engine, or the trace, began
inline constexpr Time kNever = Time(int64_t{1} << 62);

struct VariantTime {
  int batch = 1, width = 1;
  Time alone{0};   // of a run while the rest of the machine is empty
  Time beside{0};  // while all other slots are busy; of one with all slots: what runs took of late
  int code = -1;   // of programs with the same number runs may share a launch; -1: of none
  Time segment = kNever;  // of a run alone, the longest until it can give way; kNever: it cannot
};

/// What a program waits for most of its time.
enum class Bound { kMemory, kCompute };

struct ModelTimes {
  std::vector<VariantTime> variants;  // any order; only those that may be started
  /// Whole programs at once, each on a stream of its own: [k] is a run of this one while k+1 run.
  /// Empty: not known, no gain assumed.
  std::vector<Time> streams;
  Bound bound = Bound::kCompute;
  /// Its weights are not on the device: nothing of it starts, until so much later at least.
  Time away{0};
};

struct Times {
  std::vector<ModelTimes> models;  // by the model's number
};

}  // namespace obelisk::serve

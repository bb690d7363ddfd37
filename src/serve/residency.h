/// serve/residency.h — whose weights are in the device's memory, where not all fit: a pure
/// function, as the scheduler is.
///
/// Weights of a model that somebody waits for come back at once. Those of a model whose requests
/// come regularly come back ahead of the next one. Those leave that are wanted latest: by how often
/// requests came of late, else by how long ago the last came. What runs stays, and so does what
/// others wait for, unless who wants the memory has waited for longer than the patience: then the
/// model is stopped, and leaves when its runs have ended. Who came back has a turn before it leaves
/// again.
#pragma once

#include <span>
#include <vector>

#include "serve/times.h"

namespace obelisk::serve {

struct Resident {
  int model = 0;
  int64_t bytes = 0;  // of its weights
  enum class State { kHere, kAway, kComing, kLeaving } state = State::kHere;
  bool busy = false;     // it runs, or is being measured
  bool stopped = false;  // by an earlier plan
  bool fresh = false;    // nothing of it has run since its weights came
  int waiting = 0;
  Time since{0};      // waiting > 0: when the first of those who wait came
  Time last{0};       // when the last request came
  Time gap = kNever;  // between two; kNever: not known
  Time back{0};       // what bringing the weights back takes
};

struct Moves {
  std::vector<int> release, restore, stop;  // models
  Time wake = kNever;                       // plan again then, if nothing happens before
};

/// `room`: bytes for the weights of all.
Moves plan_moves(std::span<const Resident> models, int64_t room, Time now, Time patience);

}  // namespace obelisk::serve

/// obelisk/simulate.h — the flags of `simulate`, which works on no model's file.
#pragma once

#include <string>
#include <vector>

#include "flags.h"

namespace obelisk::cli {

struct SimulateFlags {
  std::string trace, times, generate, output, replay;
  std::vector<std::string> policies = {"vliw"}, models, without;
  int gpus = 1;
  double rate = 5000, sigma = 1.5, deadline = 0, noise = 0, drift = 0, goodput = 0;
  int64_t requests = 100'000;
  uint64_t seed = 0;
};
void add_simulate(CLI::App& verb, SimulateFlags& flags);
int simulate(const Flags& flags, const SimulateFlags& wanted);

}  // namespace obelisk::cli

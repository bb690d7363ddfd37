/// serve/simulate.h — the scheduler under a virtual clock: the same functions as the engine's, on
/// machines that are numbers.
///
///   in   what arrives and when, how long programs take, a policy
///   out  who was in time, how long answers took, what the machine did
///
/// The machine. A program on part of the slots takes `alone` when the rest is empty, `beside` when
/// all of it is busy, and in between by a straight line, from moment to moment: a run's rate
/// changes when others start and end. Whole programs on streams take what ModelTimes::streams says
/// for as many as run. Nothing else disturbs: launches cost nothing, but for what the times
/// contain. A run that gives way does so at the next multiple of its variant's segment.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/record.h"
#include "serve/scheduler.h"

namespace obelisk::serve {

struct SimulatedModel {
  std::string name;
  ModelTimes times;
  double weight = 1;
};

struct SimulatedMachine {
  std::string device;
  int slots = 1;
  std::vector<SimulatedModel> models;
};

struct Arrival {
  Time at{0};
  int model = 0;
  int tenant = -1;  // -1: the model's own
  int rows = 1, priority = 0;
  Time budget = kNever;  // the deadline, from arrival; kNever: none
};

struct SimulationOptions {
  int machines = 1, queue_limit = 1024;
  Policy policy;
  std::vector<double> tenants;  // weights; empty: a tenant each model
  /// True durations are predictions times this, by tenant (empty: 1): stragglers.
  std::vector<double> slower;
  double noise = 0;  // of durations: the sigma of their logarithm
  /// The sigma of the logarithm of how much longer than usual all runs of a machine take together,
  /// as where its cores are shared with others: it changes within half a second.
  double drift = 0;
  uint64_t seed = 0;
  std::ostream* record = nullptr;
  std::function<void(const Window&, const Decisions&, Time)>
      decided;  // sees all, for tests; the window before they are applied
  std::function<void(uint64_t key, Time at, bool answered, Why why)> ended;  // each request, once
  /// A request that follows the end of another, as of a client that asks again; nothing: none does.
  /// It comes no earlier than that end.
  std::function<std::optional<Arrival>(const Job& job, Time at)> follows;
};

/// Of a tenant, or of all.
struct Attainment {
  std::string name;
  int64_t asked = 0, refused = 0, given_up = 0, answered = 0;
  int64_t in_time = 0;            // answered by the deadline, or without one
  double p50_us = 0, p99_us = 0;  // of answers, from arrival
  double slot_share = 0;          // of what all had of the machines
  /// Of what was asked, and of what was taken.
  double share() const {
    return asked == 0 ? 1 : static_cast<double>(in_time) / static_cast<double>(asked);
  }
  double share_of_taken() const {
    return asked == refused ? 1
                            : static_cast<double>(in_time) / static_cast<double>(asked - refused);
  }
};

struct SimulationReport {
  Attainment all;
  std::vector<Attainment> tenants;
  Time ended{0};
  double asked_per_s = 0, goodput_per_s = 0;  // goodput: answers in time
  double busy = 0;                            // slots that ran programs, of all, over the time
  int64_t launches = 0, wide_launches = 0, joined = 0;  // joined: requests that shared a run
  int64_t within = 0;                                   // launches within others
  /// Of launches that one or more runs share, by how many do: [1] are alone.
  std::vector<int64_t> groups;
  double seconds = 0;  // that simulating took
};

SimulationReport simulate(const SimulatedMachine& machine, const std::vector<Arrival>& arrivals,
                          const SimulationOptions& options);

/// How requests arrive. The same seed gives the same arrivals on every machine.
struct Workload {
  enum class Kind { kPoisson, kBurst, kAzure };
  Kind kind = Kind::kPoisson;
  double rate = 1000;  // of all models together, per second
  int64_t requests = 100'000;
  double sigma = 1.5;  // burst: of the logarithm of gaps
  double slack_factor =
      0;  // deadline over the time alone; 0: one of 2, 3, 5, 10, drawn anew for each request
  uint64_t seed = 0;
  /// Of the rate, by model, in any unit; of azure the power law comes on top. Empty: equal.
  std::vector<double> shares{};
};
std::vector<Arrival> generate(const SimulatedMachine& machine, const Workload& workload);

}  // namespace obelisk::serve

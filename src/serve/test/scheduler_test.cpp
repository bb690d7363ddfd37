// The scheduler over random histories: what has to hold for every one of them, and what single
// parts promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "serve/plan.h"
#include "serve/program_times.h"
#include "serve/record.h"
#include "serve/simulate.h"

namespace obelisk::serve {
namespace {

using namespace std::chrono_literals;

constexpr int kHistories = 10'000;

/// A machine, arrivals and a policy that follow from a seed.
struct History {
  SimulatedMachine machine;
  std::vector<Arrival> arrivals;
  SimulationOptions options;
};

int pick(std::mt19937& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<uint32_t>(to - from + 1));
}

ModelTimes random_times(std::mt19937& random, int slots, bool every_width = false) {
  ModelTimes times;
  times.bound = random() % 2 ? Bound::kMemory : Bound::kCompute;
  const int64_t whole = pick(random, 20, 2000) * 1000;
  const int largest = random() % 2 ? 1 << pick(random, 1, 3) : 1;
  for (int batch = 1; batch <= largest; batch *= 2) {
    const double longer = 1 + (batch - 1) * 0.4;
    for (int width = slots; width >= 1; width /= 2) {
      if (width != slots && !every_width && random() % 4 == 0) continue;
      const double alone =
          static_cast<double>(whole) * longer * std::pow(static_cast<double>(slots) / width, 0.4);
      times.variants.push_back({batch, width, Time(static_cast<int64_t>(alone)),
                                Time(static_cast<int64_t>(width == slots ? alone : alone * 1.3))});
    }
  }
  return times;
}

History history(uint32_t seed) {
  std::mt19937 random(seed);
  History made;
  made.machine.slots = 1 << pick(random, 0, 4);
  const int models = pick(random, 1, 5);
  for (int m = 0; m < models; ++m)
    made.machine.models.push_back({"m" + std::to_string(m),
                                   random_times(random, made.machine.slots),
                                   static_cast<double>(pick(random, 1, 4))});
  if (random() % 2)  // some are of one architecture
    for (auto& model : made.machine.models)
      if (random() % 4)
        for (VariantTime& variant : model.times.variants)
          variant.code = 100 * variant.batch + variant.width;
  const std::vector<std::string> names = policy_names();
  const int drawn = pick(random, 0, 9);  // half of them the one that has most to go wrong
  made.options.policy = policy_named(names[drawn < 5 ? static_cast<size_t>(drawn) : 5]).value();
  Policy& policy = made.options.policy;
  policy.streams = pick(random, 1, 4);
  for (bool* part : {&policy.batches, &policy.narrow, &policy.hold, &policy.shares, &policy.foresee,
                     &policy.admit_by_load, &policy.instances})
    *part = random() % 4 != 0;
  policy.reserve = random() % 2 == 0;
  if (random() % 2) policy.gather = Time(pick(random, 0, 100'000));
  if (random() % 4 == 0) policy.overlap = pick(random, 0, 2);
  if (random() % 4 == 0) policy.promise = random() % 2 ? 0 : 0.8;
  made.options.machines = pick(random, 1, 3);
  made.options.queue_limit = random() % 4 ? 1024 : pick(random, 1, 8);
  made.options.noise = random() % 2 ? 0.2 : 0;
  made.options.seed = seed;
  const int tenants = pick(random, 1, 4);
  const bool own = random() % 2;
  if (own)
    for (int t = 0; t < tenants; ++t) made.options.tenants.push_back(pick(random, 1, 4));
  int64_t at = 0;
  const int gap = pick(random, 1, 600) * 1000, requests = pick(random, 1, 60);
  for (int k = 0; k < requests; ++k) {
    if (random() % 3) at += pick(random, 0, gap);
    Arrival arrival{.at = Time(at),
                    .model = pick(random, 0, models - 1),
                    .rows = random() % 4 ? 1 : pick(random, 1, 10),
                    .priority = random() % 4 ? 0 : pick(random, -1, 1)};
    arrival.tenant = own ? pick(random, 0, tenants - 1) : arrival.model;
    const Time alone =
        quickest(made.machine.models[static_cast<size_t>(arrival.model)].times, arrival.rows);
    if (random() % 4) arrival.budget = alone * pick(random, 1, 12);
    made.arrivals.push_back(arrival);
  }
  policy.segments = random() % 4 != 0;
  if (random() % 2)  // some give way
    for (auto& model : made.machine.models)
      if (const int parts = pick(random, 0, 12); parts > 0)
        for (VariantTime& variant : model.times.variants) variant.segment = variant.alone / parts;
  return made;
}

std::string name_of(const History& history, uint32_t seed) {
  return "history " + std::to_string(seed) + ", " + to_string(history.options.policy.kind);
}

// Knobs stand behind a policy's name; what is none is refused.
TEST(Policies, AreNamedWithTheirKnobs) {
  const Policy made = policy_named("vliw:overlap=7:margin=1.25:hold=0:patience=2000").value();
  EXPECT_EQ(made.kind, PolicyKind::kVliw);
  EXPECT_EQ(made.overlap, 7);
  EXPECT_EQ(made.margin, 1.25);
  EXPECT_FALSE(made.hold);
  EXPECT_EQ(made.patience, Time(2'000'000));
  EXPECT_TRUE(made.batches);
  EXPECT_EQ(policy_named("streams:streams=3").value().streams, 3);
  for (const char* wrong : {"", "vliv", "vliw:overlap", "vliw:overlap=", "vliw:overlap=x",
                            "vliw:overlap=1x", "vliw:wide=1", "vliw:overlap=-1"})
    EXPECT_FALSE(policy_named(wrong).ok()) << wrong;
}

TEST(Scheduler, HoldsItsPromisesOverRandomHistories) {
  int64_t within = 0;
  for (uint32_t seed = 0; seed < kHistories; ++seed) {
    History h = history(seed);
    SCOPED_TRACE(name_of(h, seed));
    const Policy& policy = h.options.policy;
    Times times;
    for (const auto& model : h.machine.models) times.models.push_back(model.times);
    std::map<uint64_t, int> ends;
    h.options.ended = [&](uint64_t key, Time, bool, Why) { ++ends[key]; };
    h.options.decided = [&](const Window& window, const Decisions& decisions, Time now) {
      std::set<uint64_t> waiting, taken;
      for (const Flow& flow : window.flows())
        for (const auto& one : flow.waiting) waiting.insert(one.job.key);
      std::vector<int> free, programs(static_cast<size_t>(window.machines()), 0);
      std::vector<int> overlapping(static_cast<size_t>(window.machines()), 0);
      std::map<uint64_t, int> guests;
      for (const Running& run : window.running())
        if (run.within > 0) {
          ASSERT_EQ(++guests[run.within], 1) << "two within one";
        }
      for (int m = 0; m < window.machines(); ++m) free.push_back(window.left(m));
      for (const Running& run : window.running()) {
        ++programs[static_cast<size_t>(run.machine)];
        overlapping[static_cast<size_t>(run.machine)] += run.beside > 0;
      }
      for (const GiveUp& given : decisions.given_up) {
        ASSERT_TRUE(waiting.count(given.job.key) && taken.insert(given.job.key).second);
        ASSERT_NE(given.job.deadline, kNever) << "given up without a deadline";
        const Time quick =
            policy.drop == Drop::kHopeless
                ? quickest(times.models[static_cast<size_t>(given.job.model)], given.job.rows)
                : Time(0);
        ASSERT_GT(now + quick, given.job.deadline) << "given up too early";
      }
      std::map<int, const Start*> launches;
      std::map<int, int> runs, slots_of;  // by launch
      for (const Start& start : decisions.starts) {
        const VariantTime& variant = times.models[static_cast<size_t>(start.model)]
                                         .variants[static_cast<size_t>(start.variant)];
        if (start.launch > 0) {
          ASSERT_TRUE(policy.instances && policy.kind == PolicyKind::kVliw);
          ASSERT_GE(variant.code, 0);
          ASSERT_LE(start.rows, variant.batch) << "one run each";
          const Start& first = *launches.try_emplace(start.launch, &start).first->second;
          ASSERT_LE(slots_of[start.launch] += start.slots, window.slots());
          ++runs[start.launch];
          ASSERT_EQ(start.machine, first.machine);
          ASSERT_EQ(variant.code, times.models[static_cast<size_t>(first.model)]
                                      .variants[static_cast<size_t>(first.variant)]
                                      .code);
        }
        free[static_cast<size_t>(start.machine)] -= start.slots + start.beside;
        if (start.slots > 0) {
          ASSERT_GE(free[static_cast<size_t>(start.machine)], 0) << "slots are given twice";
        }
        ++programs[static_cast<size_t>(start.machine)];
        int rows = 0;
        for (const Job& job : start.jobs) {
          ASSERT_TRUE(waiting.count(job.key) && taken.insert(job.key).second)
              << "started twice, or never came";
          ASSERT_EQ(job.model, start.model);
          rows += job.rows;
          if (policy.kind == PolicyKind::kVliw && job.deadline != kNever) {
            ASSERT_LE(now + start.predicted, job.deadline) << "started though it would be late";
          }
        }
        ASSERT_EQ(rows, start.rows);
        if (start.jobs.size() > 1) {
          ASSERT_LE(rows, variant.batch);
        }
        if (policy.kind == PolicyKind::kStreams) {
          ASSERT_LE(programs[static_cast<size_t>(start.machine)], policy.streams);
        } else {
          const bool overlaps = start.why == Why::kOverlaps, inside = start.why == Why::kWithin;
          ASSERT_EQ(start.within > 0, inside);
          if (inside) {
            const auto host =
                std::find_if(window.running().begin(), window.running().end(),
                             [&](const Running& run) { return run.id == start.within; });
            ASSERT_TRUE(policy.kind == PolicyKind::kVliw && policy.segments);
            ASSERT_NE(host, window.running().end()) << "within nothing that runs";
            ASSERT_EQ(host->machine, start.machine);
            ASSERT_EQ(host->within, 0u) << "within one that is within another";
            ASSERT_FALSE(host->shares);
            ASSERT_EQ(++guests[host->id], 1) << "two within one";
            const Time segment = times.models[static_cast<size_t>(host->model)]
                                     .variants[static_cast<size_t>(host->variant)]
                                     .segment;
            ASSERT_NE(segment, kNever) << "it gives way to nobody";
            ASSERT_GE(start.wait, segment);
            ASSERT_EQ(start.borrows, variant.width);
            ASSERT_LE(start.borrows, host->slots);
            ASSERT_EQ(start.jobs.size(), 1u);
            ASSERT_GE(host->priority, start.jobs[0].priority);
            ASSERT_LE(now + start.wait + start.predicted, start.jobs[0].deadline);
            ASSERT_LE(host->paused + start.delay,
                      std::max(host->predicted - host->paused, policy.patience));
            const Time end = std::max(host->started + host->predicted, now);
            for (const Time deadline : host->deadlines)
              if (end <= deadline) {
                ASSERT_LE(end + start.delay, deadline) << "who gives way is late for it";
              }
            const Job& guest = start.jobs[0];
            const Time guest_runs =
                quickest(times.models[static_cast<size_t>(guest.model)], guest.rows);
            if (host->slots == window.slots() && window.machines() == 1 &&
                window.running().size() == 1 && decisions.starts.size() == 1 &&
                end + guest_runs > guest.deadline) {
              // Who is next on its slots, for this one cannot wait for them.
              const Job* next = nullptr;
              for (const Flow& flow : window.flows())
                for (const auto& other : flow.waiting)
                  if (!taken.count(other.job.key) && other.job.key != guest.key &&
                      (!next || std::pair(other.job.priority, due_of(other.job, policy)) <
                                    std::pair(next->priority, due_of(*next, policy))))
                    next = &other.job;
              if (next && next->deadline != kNever && next->priority <= guest.priority) {
                const ModelTimes& model = times.models[static_cast<size_t>(next->model)];
                const Time runs = quickest(model, next->rows);
                const double slower = 1.2 * window.slower(next->tenant, policy);
                if (scaled(end - now, 1.2) + scaled(runs, slower) <= next->deadline - now) {
                  ASSERT_LE(end + start.delay + runs, next->deadline) << "who waits is";
                }
              }
            }
          }
          ASSERT_EQ(start.slots, overlaps || inside                 ? 0
                                 : policy.kind == PolicyKind::kVliw ? variant.width
                                                                    : window.slots());
          ASSERT_EQ(start.beside, overlaps ? variant.width : 0);
          if (overlaps) {
            ASSERT_EQ(policy.kind, PolicyKind::kVliw);
            ASSERT_LE(++overlapping[static_cast<size_t>(start.machine)], policy.overlap);
            ASSERT_EQ(start.jobs.size(), 1u);
            for (const Running& run : window.running())  // that was to be in time still is
              for (const Time deadline : run.deadlines)
                if (const Time end = std::max(run.started + run.predicted, now);
                    run.machine == start.machine && end <= deadline) {
                  ASSERT_LE(end + start.delay, deadline);
                }
          }
        }
        if (policy.kind != PolicyKind::kBatch &&
            !(policy.kind == PolicyKind::kVliw && policy.batches)) {
          ASSERT_EQ(start.jobs.size(), 1u);
        }
      }
      for (const auto& [launch, count] : runs) ASSERT_GE(count, 2) << "it shares with nobody";
      // Work conserving: what stays could not run on what is left, or somebody has it reserved.
      if (policy.kind != PolicyKind::kVliw) {
        for (const int count : programs)
          if (count < (policy.kind == PolicyKind::kStreams ? policy.streams : 1)) {
            ASSERT_EQ(waiting.size(), taken.size()) << "a machine is idle, and requests wait";
          }
        return;
      }
      if (policy.reserve || !policy.narrow) return;
      double least = 1e30, most = 0;
      for (const Flow& flow : window.flows()) {
        if (flow.waiting.empty()) continue;
        if (now - flow.served > policy.patience) return;  // neglected: it may have slots reserved
        const Job& first = flow.waiting.begin()->job;  // so may who was admitted, for half its time
        if (first.deadline != kNever && 2 * (now - first.arrival) > first.deadline - first.arrival)
          return;
        const double used = window.tenants()[static_cast<size_t>(flow.tenant)].used;
        least = std::min(least, used), most = std::max(most, used);
      }
      if (policy.shares && most - least > 0.5 * static_cast<double>(policy.share_slack.count()) *
                                              window.slots() * window.machines())
        return;  // behind: likewise
      const auto of_code = [&](int model) {
        const auto& variants = times.models[static_cast<size_t>(model)].variants;
        return std::any_of(variants.begin(), variants.end(),
                           [](const VariantTime& each) { return each.code >= 0; });
      };
      // For Policy::gather, where nobody else of any code waited; else for the time of its program.
      const auto gathers = [&](const Job& job, int model, double slower) {
        Time most = policy.gather;
        for (const Flow& other : window.flows())
          if (!other.waiting.empty() && other.model != model && of_code(other.model))
            for (const VariantTime& each : times.models[static_cast<size_t>(model)].variants)
              most = std::max(
                  most,
                  Time(static_cast<int64_t>(
                      slower * static_cast<double>(std::max(each.alone, each.beside).count()))));
        if (!policy.instances || !of_code(model)) return false;
        const Time until = job.arrival + most;
        if (now < until && decisions.wake <= until) return true;
        // Or for a run that is about to end.
        return std::any_of(window.running().begin(), window.running().end(),
                           [&](const Running& run) {
                             const Time late = window.ended(run.machine) + policy.gather,
                                        end = run.started + run.predicted;
                             return of_code(run.model) && now < late && decisions.wake <= late &&
                                    end <= late && end + policy.gather > now;
                           });
      };
      for (const Flow& flow : window.flows())
        for (const auto& one : flow.waiting) {
          if (taken.count(one.job.key)) continue;
          const double slower = window.slower(flow.tenant, policy);
          const ModelTimes& model = times.models[static_cast<size_t>(flow.model)];
          const auto of_model = [&](const auto& each) {
            return each.model == flow.model && each.slots > 0;
          };
          int largest = 0;
          for (const VariantTime& variant : model.variants)
            largest = std::max(largest, variant.batch);
          for (const VariantTime& variant : model.variants) {
            if (variant.batch < std::min(one.job.rows, largest) ||
                (!policy.batches && variant.batch / 2 >= one.job.rows))
              continue;
            const double nanos =
                static_cast<double>(
                    (variant.width == window.slots() ? variant.alone : variant.beside).count()) *
                ((one.job.rows + variant.batch - 1) / variant.batch) * slower;
            if (one.job.deadline != kNever &&
                static_cast<double>((one.job.deadline - now).count()) < nanos + 1)
              continue;
            if (std::all_of(free.begin(), free.end(),
                            [&](int slots) { return slots < variant.width; }))
              continue;
            // It follows a run of its model, in time,
            if (follows(model, policy, window.slots()) &&
                (one.job.deadline == kNever || decisions.wake < one.job.deadline) &&
                (std::ranges::any_of(window.running(), of_model) ||
                 std::ranges::any_of(decisions.starts, of_model)))
              continue;
            // or gathers: for no longer than it may, and nobody else wants the slots.
            ASSERT_TRUE(gathers(one.job, flow.model, slower))
                << "request " << one.job.key << " waits, and there is room for it";
            for (const Flow& other : window.flows())
              for (const auto& rest : other.waiting) {
                if (taken.count(rest.job.key)) continue;
                ASSERT_TRUE(of_code(other.model)) << "request " << rest.job.key << " wants slots";
                break;
              }
          }
          break;  // of a flow the first is enough: who is behind it is not more urgent
        }
    };
    const SimulationReport report = simulate(h.machine, h.arrivals, h.options);
    if (testing::Test::HasFatalFailure()) return;
    within += report.within;
    ASSERT_EQ(report.all.asked, static_cast<int64_t>(h.arrivals.size()));
    ASSERT_EQ(report.all.asked, report.all.answered + report.all.refused + report.all.given_up)
        << "a request is lost";
    ASSERT_EQ(ends.size(), h.arrivals.size());
    for (const auto& [key, count] : ends)
      ASSERT_EQ(count, 1) << "request " << key << " has ended more than once";
  }
  EXPECT_GT(within, kHistories / 10) << "runs within others are among what is looked at";
}

TEST(Scheduler, RecordsReplayToTheSameDecisions) {
  for (uint32_t seed = 0; seed < kHistories; ++seed) {
    History h = history(seed + 50'000);
    SCOPED_TRACE(name_of(h, seed));
    std::stringstream record;
    h.options.record = &record;
    const SimulationReport report = simulate(h.machine, h.arrivals, h.options);
    const auto again = replay(record);
    ASSERT_TRUE(again.ok()) << again.error().text();
    ASSERT_EQ(again->difference, "");
    ASSERT_EQ(again->asked, report.all.asked);
    ASSERT_GT(again->decisions, 0);
  }
}

TEST(Scheduler, ReplayTellsTheFirstDifference) {
  History h = history(7);
  h.options.policy = policy_named("vliw").value();
  std::stringstream record;
  h.options.record = &record;
  simulate(h.machine, h.arrivals, h.options);
  std::string text = record.str();
  const size_t at = text.find("= start");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + 7, " 9");
  std::istringstream changed(text);
  const auto again = replay(changed);
  ASSERT_TRUE(again.ok());
  EXPECT_NE(again->difference.find("recorded 'start 9"), std::string::npos) << again->difference;
  std::istringstream nonsense("machine 1 1\nrun 3\n");
  EXPECT_NE(replay(nonsense).error().text().find("line 2 of the record"), std::string::npos);
}

/// Whether some order of jobs that are all there at once, one after the other, has all in time.
bool feasible(std::vector<std::pair<Time, Time>> jobs) {  // deadline, duration
  std::sort(jobs.begin(), jobs.end());
  do {
    Time end{0};
    bool all = true;
    for (const auto& [deadline, duration] : jobs) end += duration, all = all && end <= deadline;
    if (all) return true;
  } while (std::next_permutation(jobs.begin(), jobs.end()));
  return false;
}

TEST(Scheduler, EarliestDeadlineFirstIsLateOnlyWhereEveryOrderIs) {
  int could = 0, could_not = 0;
  for (uint32_t seed = 0; seed < kHistories; ++seed) {
    std::mt19937 random(seed);
    SimulatedMachine machine{"", 4, {}};
    std::vector<Arrival> arrivals;
    std::vector<std::pair<Time, Time>> jobs;
    Time sum{0};
    for (int k = 0; k < pick(random, 2, 5); ++k) {
      const Time duration(pick(random, 10, 100) * 1000);
      sum += duration;
      machine.models.push_back({"m", {.variants = {{1, 4, duration, duration}}}});
      const Time deadline = Time(
          static_cast<int64_t>(static_cast<double>(sum.count()) * pick(random, 60, 130) / 100));
      arrivals.push_back({.at = Time(0), .model = k, .budget = std::max(deadline, duration)});
      jobs.emplace_back(arrivals.back().budget, duration);
    }
    std::shuffle(arrivals.begin(), arrivals.end(), random);
    SimulationOptions options{.policy = policy_named("edf").value()};
    options.policy.admit_by_load = false;
    const SimulationReport report = simulate(machine, arrivals, options);
    const bool all = report.all.in_time == report.all.asked;
    ASSERT_EQ(all, feasible(jobs)) << "history " << seed;
    (all ? could : could_not)++;
  }
  EXPECT_GT(could, 1000);
  EXPECT_GT(could_not, 1000);
}

/// 20,000 requests of random models with one budget; gaps are Gamma with a coefficient of
/// variation.
std::vector<Arrival> bursts(uint32_t seed, double variation, Time gap, int models, Time budget) {
  std::mt19937 random(seed);
  const double squared = variation * variation;
  std::gamma_distribution<double> part(1 / squared, squared);
  std::vector<Arrival> arrivals;
  double at = 0;
  for (int k = 0; k < 20'000; ++k) {
    at += part(random) * static_cast<double>(gap.count());
    arrivals.push_back({.at = Time(static_cast<int64_t>(at)),
                        .model = pick(random, 0, models - 1),
                        .budget = budget});
  }
  return arrivals;
}

TEST(Scheduler, WhatIsAdmittedIsAnsweredInTimeThoughTheMachineIsSlowerThanItWas) {
  // Half as many requests again as can be answered, in bursts, and runs of other lengths than
  // predicted.
  SimulatedMachine machine{"", 8, {}};
  for (int m = 0; m < 4; ++m)
    machine.models.push_back({"m", {.variants = {{1, 8, 1ms, 1ms}, {1, 1, 4ms, 5ms}}}});
  const std::vector<Arrival> arrivals = bursts(5, 4, 400us, 4, 20ms);
  const auto kept = [&](double promise) {
    SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0.3};
    options.policy.promise = promise;
    const SimulationReport report = simulate(machine, arrivals, options);
    EXPECT_GT(report.all.in_time, 5000u);
    return static_cast<double>(report.all.in_time) /
           static_cast<double>(report.all.asked - report.all.refused);
  };
  const double without = kept(0), with = kept(0.99);
  EXPECT_LT(without, 0.95);
  EXPECT_GT(with, 0.985);
}

// Runs of one model tell how quickly the machine runs now, also those of the others.
TEST(Scheduler, PredictionsFollowWhatRunsTookOfLate) {
  const Times times{{{.variants = {{1, 4, 100us, 100us}}}, {.variants = {{1, 4, 100us, 100us}}}}};
  for (const bool pace : {false, true}) {
    Policy policy;
    policy.pace = pace;
    Window window(1, 4);
    window.add_tenant(1), window.add_tenant(1);
    Time now{0};
    const auto runs = [&](Time took, uint64_t from) {
      for (uint64_t k = from; k < from + 12; ++k) {
        now += 10ms;
        window.arrive({.key = k, .arrival = now, .deadline = now + 5ms}, policy);
        const uint64_t run = window.apply(decide(window, times, now, policy), policy, now);
        window.finish(run, took, policy);
      }
    };
    const auto takes = [&](Time budget) {
      return admit(window, times, now, policy,
                   {.key = 100, .model = 1, .tenant = 1, .arrival = now, .deadline = now + budget},
                   8)
          .taken;
    };
    EXPECT_TRUE(takes(120us));
    runs(140us, 1);
    EXPECT_EQ(takes(130us), !pace);
    EXPECT_TRUE(takes(200us));
    runs(100us, 20);
    EXPECT_TRUE(takes(120us)) << "and again quickly";
  }
}

// Where all runs of a machine are slow and quick together, more is answered in time, and more of
// what is admitted, though each model is asked too rarely to notice by itself.
TEST(Scheduler, MoreIsInTimeOnASharedMachineWherePredictionsFollowIt) {
  constexpr int kModels = 32;
  SimulatedMachine machine{"", 2, {}};
  for (int m = 0; m < kModels; ++m)
    machine.models.push_back({"m", {.variants = {{1, 2, 20ms, 20ms}, {1, 1, 38ms, 40ms}}}});
  const std::vector<Arrival> arrivals = bursts(7, 2, 17ms, kModels, 190ms);
  double kept[2] = {};
  int64_t answered[2] = {};
  for (const bool pace : {false, true}) {
    SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0.05, .drift = 0.15};
    options.policy.pace = pace;
    const SimulationReport report = simulate(machine, arrivals, options);
    kept[pace] = report.all.share_of_taken(), answered[pace] = report.all.in_time;
  }
  EXPECT_GT(kept[true], 0.985);
  EXPECT_GT(kept[true], kept[false]);
  EXPECT_GT(answered[true], answered[false]);
}

TEST(Scheduler, NobodyStarvesAndNeglectedModelsGetTheWholeMachine) {
  // Narrow programs of urgent tenants fill the machine for ever; one model can only use all of it
  // and has neither deadline nor priority.
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    SimulatedMachine machine{"", 8, {}};
    const int narrow = pick(random, 1, 4);
    Time longest{0};
    for (int m = 0; m < narrow; ++m) {
      const Time time(pick(random, 200, 2000) * 1000);
      longest = std::max(longest, time);
      machine.models.push_back({"n", {.variants = {{1, 1 << pick(random, 0, 2), time, time}}}});
    }
    machine.models.push_back({"wide", {.variants = {{1, 8, 1ms, 1ms}}}});
    std::vector<Arrival> arrivals;
    for (int k = 0; k < 20'000; ++k) {
      const int m = pick(random, 0, narrow - 1);
      arrivals.push_back(
          {.at = Time(k * int64_t{20'000}),
           .model = m,
           .priority = -3,
           .budget = machine.models[static_cast<size_t>(m)].times.variants[0].alone * 20});
      if (k % 1000 == 0) arrivals.push_back({.at = Time(k * int64_t{20'000}), .model = narrow});
    }
    SimulationOptions options;
    options.policy = policy_named("vliw").value();
    options.policy.promise = 0;  // as many as may be are admitted
    // What runs when its patience ends may have been made longer by programs beside it.
    const Time bound = options.policy.patience + 3 * longest + 2ms;
    options.decided = [&](const Window& window, const Decisions&, Time now) {
      for (const Flow& flow : window.flows())
        if (flow.model == narrow && !flow.waiting.empty()) {
          ASSERT_LE(now - flow.served, bound) << "history " << seed;
        }
    };
    const SimulationReport report = simulate(machine, arrivals, options);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(report.tenants.back().answered, 20);
    EXPECT_GT(report.tenants[0].in_time, 20);
  }
}

TEST(Scheduler, TenantsGetTheirSharesByWeight) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    SimulatedMachine machine{"", 4, {}};
    SimulationOptions options;
    const int tenants = pick(random, 2, 4);
    std::vector<Arrival> arrivals;
    double weights = 0;
    for (int t = 0; t < tenants; ++t) {
      machine.models.push_back(
          {"m", random_times(random, 4, true)});  // so that every slot is of use to all
      options.tenants.push_back(pick(random, 1, 4)), weights += options.tenants.back();
      for (int k = 0; k < 1000; ++k) arrivals.push_back({.at = Time(0), .model = t, .tenant = t});
    }
    options.policy = policy_named("vliw").value();
    options.policy.share_slack = 2ms, options.policy.patience = 1s;
    options.queue_limit = 10'000;
    // While all have work, what each had stays near its share.
    double most = 0;
    options.decided = [&](const Window& window, const Decisions&, Time) {
      double least = 1e18, top = 0;
      for (const Tenant& tenant : window.tenants()) {
        if (tenant.waiting == 0) return;
        least = std::min(least, tenant.used), top = std::max(top, tenant.used);
      }
      most = std::max(most, top - least);
    };
    const SimulationReport report = simulate(machine, arrivals, options);
    double longest = 0;  // slot-nanoseconds of a launch
    for (const auto& model : machine.models)
      for (const VariantTime& variant : model.times.variants)
        longest = std::max(longest, static_cast<double>(variant.beside.count()) * variant.width);
    EXPECT_LE(most, 2e6 * 4 + 3 * longest) << "history " << seed;
    EXPECT_EQ(report.all.answered, tenants * 1000);
  }
}

// A program that can only use all slots, while those of another model fill them one by one: slots
// are kept for it behind half of its time, for it was admitted.
TEST(Scheduler, WhoNeedsAllSlotsGetsThemByItsDeadline) {
  SimulatedMachine machine{"", 8, {}};
  machine.models.push_back({"narrow", {.variants = {{1, 1, 1ms, 1ms}}}});
  machine.models.push_back({"wide", {.variants = {{1, 8, 1ms, 1ms}}}});
  for (const Time budget : {Time(10ms), Time(50ms), Time(200ms)}) {
    std::mt19937 random(3);
    const double rates[] = {6400, 50};  // a second; the slots answer 8,000 narrow ones
    std::vector<Arrival> arrivals;
    for (int m = 0; m < 2; ++m) {
      std::exponential_distribution<double> gap(rates[m]);
      for (double at = gap(random); at < 2; at += gap(random))
        arrivals.push_back({.at = Time(static_cast<int64_t>(at * 1e9)),
                            .model = m,
                            .budget = m == 0 ? Time(20ms) : budget});
    }
    std::ranges::stable_sort(arrivals, {}, &Arrival::at);
    SimulationOptions options{.policy = policy_named("vliw:overlap=0").value(), .noise = 0.1};
    const SimulationReport report = simulate(machine, arrivals, options);
    for (const Attainment& tenant : report.tenants) EXPECT_GT(tenant.share(), 0.99);
  }
}

// One tenant sends five times as many requests as the machine can answer, the other a third of
// that.
TEST(Scheduler, WhoHasHadLessThanOthersIsAdmitted) {
  SimulatedMachine machine{"", 2, {}};
  for (int m = 0; m < 2; ++m) machine.models.push_back({"m", {.variants = {{1, 1, 1ms, 1ms}}}});
  const double rates[] = {10'000, 667};  // a second; two slots answer 2,000
  std::mt19937 random(7);
  std::vector<Arrival> arrivals;
  for (int m = 0; m < 2; ++m) {
    std::exponential_distribution<double> gap(rates[m]);
    for (double at = gap(random); at < 5; at += gap(random))
      arrivals.push_back(
          {.at = Time(static_cast<int64_t>(at * 1e9)), .model = m, .budget = Time(8ms)});
  }
  std::ranges::stable_sort(arrivals, {}, &Arrival::at);
  const auto run = [&](bool shares) {
    SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0.05};
    options.policy.shares = shares, options.policy.overlap = 0;
    options.policy.share_slack = 4ms;
    return simulate(machine, arrivals, options);
  };
  const SimulationReport fair = run(true), first_come = run(false);
  EXPECT_GT(fair.tenants[1].share(), 0.9);
  EXPECT_LT(first_come.tenants[1].share(), 0.5);
  EXPECT_GT(fair.all.in_time, first_come.all.in_time * 9 / 10) << "nobody else's time is wasted";
  EXPECT_GT(fair.all.share_of_taken(), 0.99);
}

TEST(Scheduler, StragglersAreFoundAndStandBehind) {
  SimulatedMachine machine{"", 4, {}};
  for (int m = 0; m < 4; ++m)
    machine.models.push_back(
        {"m" + std::to_string(m),
         {.variants = {{1, 4, 400us, 400us}, {1, 2, 600us, 700us}, {1, 1, 900us, 1200us}}}});
  const std::vector<Arrival> arrivals =
      generate(machine, {.rate = 2500, .requests = 4000, .slack_factor = 10, .seed = 3});
  SimulationOptions options;
  options.policy = policy_named("vliw").value();
  const SimulationReport usual = simulate(machine, arrivals, options);
  options.slower = {1, 1, 1, 3};
  Time first = kNever, found = kNever;
  options.decided = [&](const Window& window, const Decisions&, Time now) {
    for (const Running& run : window.running())
      if (run.tenant == 3) first = std::min(first, run.started);
    if (window.tenants()[3].demoted) found = std::min(found, now);
    for (int t = 0; t < 3; ++t) ASSERT_FALSE(window.tenants()[static_cast<size_t>(t)].demoted);
  };
  const SimulationReport report = simulate(machine, arrivals, options);
  EXPECT_LE(found - first, 10ms);
  for (size_t t = 0; t < 3; ++t)
    EXPECT_LE(report.tenants[t].p99_us, usual.tenants[t].p99_us * 1.5) << t;
  for (size_t t = 0; t < 3; ++t) EXPECT_GE(report.tenants[t].share(), 0.97) << t;
}

// ---- the word of the scheduler: width, batch, hold ----

Decisions decide_for(const std::vector<ModelTimes>& models, const std::vector<Job>& jobs,
                     Policy policy, int slots = 132) {
  Window window(1, slots);
  Times times{models};
  for (size_t t = 0; t < models.size(); ++t) window.add_tenant(1);
  for (const Job& job : jobs) window.arrive(job, policy);
  return decide(window, times, 0ns, policy);
}
const ModelTimes kWide{.variants = {{1, 132, 182us, 182us},
                                    {1, 66, 188us, 237us},
                                    {1, 33, 227us, 334us},
                                    {1, 16, 287us, 500us}}};

TEST(Scheduler, AsWideAsTheEmptinessAllowsAsNarrowAsTheDeadlineAllows) {
  Policy policy;
  const Decisions alone = decide_for({kWide}, {{.key = 1}}, policy);
  ASSERT_EQ(alone.starts.size(), 1u);
  EXPECT_EQ(alone.starts[0].slots, 132);
  EXPECT_EQ(alone.starts[0].why, Why::kWidest);
  const std::vector<ModelTimes> four(4, kWide);
  std::vector<Job> jobs;
  for (int k = 0; k < 4; ++k)
    jobs.push_back({.key = static_cast<uint64_t>(k + 1), .model = k, .tenant = k});
  const Decisions shared = decide_for(four, jobs, policy);
  ASSERT_EQ(shared.starts.size(), 4u);
  for (const Start& start : shared.starts) EXPECT_EQ(start.slots, 33);
  jobs[2].deadline = 270us;  // 33 slots are too few for it
  const Decisions widened = decide_for(four, jobs, policy);
  ASSERT_GE(widened.starts.size(), 2u);
  EXPECT_EQ(widened.starts[0].jobs[0].key, 3u) << "least slack first";
  EXPECT_EQ(widened.starts[0].slots, 66);
  EXPECT_EQ(widened.starts[0].why, Why::kWidened);
}

// Programs beside others took longer of late, so that the wider one of batch 1 is no quicker than
// the narrower one; the wider one of batch 2 is no better choice for a single row.
TEST(Scheduler, NoLargerBatchThanWhatWaits) {
  const ModelTimes pairs{.variants = {{1, 66, 210us, 240us},
                                      {1, 33, 222us, 238us},
                                      {2, 66, 330us, 333us},
                                      {2, 33, 400us, 410us}}};
  const Job first{.key = 1, .deadline = 900us}, second{.key = 2, .model = 1, .deadline = 900us};
  const Decisions made = decide_for({pairs, pairs}, {first, second}, Policy());
  ASSERT_EQ(made.starts.size(), 2u);
  for (const Start& start : made.starts) EXPECT_EQ(start.variant, 1);
  Job third = first;
  third.key = 3;
  const Decisions joined = decide_for({pairs, pairs}, {first, second, third}, Policy());
  ASSERT_EQ(joined.starts.size(), 2u);
  EXPECT_EQ(joined.starts[0].rows, 2);
  EXPECT_EQ(pairs.variants[static_cast<size_t>(joined.starts[0].variant)].batch, 2);
  // Where no smaller batch has room, it starts all the same.
  const ModelTimes wide{.variants = {{1, 132, 100us, 100us}, {2, 66, 150us, 150us}}};
  const Decisions only = decide_for({wide, pairs}, {first, second}, Policy());
  ASSERT_EQ(only.starts.size(), 2u);
}

TEST(Scheduler, NoMoreSlotsThanMakeItFaster) {
  // A small program on two workers of a busy machine: quick at best, slow as its runs tell.
  ModelTimes small{.variants = {{1, 1, 13us, 14us}, {1, 2, 10us, 590us}}};
  for (const std::string& name : policy_names()) {
    const Decisions made = decide_for({small}, {{.key = 1}}, policy_named(name).value(), 2);
    ASSERT_EQ(made.starts.size(), 1u) << name;
    EXPECT_EQ(made.starts[0].variant, 0) << name;
  }
  EXPECT_EQ(decide_for({small}, {{.key = 1}}, Policy(), 2).starts[0].slots, 1);
  small.variants[1].beside = 14us;  // no faster
  EXPECT_EQ(decide_for({small}, {{.key = 1}}, Policy(), 2).starts[0].slots, 1);
  small.variants[1].beside = 11us;
  EXPECT_EQ(decide_for({small}, {{.key = 1}}, Policy(), 2).starts[0].slots, 2);
  // A deadline that only the wide one meets is no reason to take one that does not meet it.
  small.variants = {{1, 1, 100us, 120us}, {1, 2, 60us, 60us}};
  const Decisions due = decide_for({small}, {{.key = 1, .deadline = 70us}}, Policy(), 2);
  ASSERT_EQ(due.starts.size(), 1u);
  EXPECT_EQ(due.starts[0].slots, 2);
}

TEST(Scheduler, NothingStartsWhoseWeightsAreAway) {
  ModelTimes away = kWide;
  away.away = 2ms;
  for (const std::string& name : policy_names()) {
    const Policy policy = policy_named(name).value();
    const std::vector<Job> jobs = {{.key = 1, .model = 0, .tenant = 0},
                                   {.key = 2, .model = 1, .tenant = 1}};
    const Decisions made = decide_for({away, kWide}, jobs, policy);
    ASSERT_EQ(made.starts.size(), 1u) << name;
    EXPECT_EQ(made.starts[0].model, 1) << name;
    EXPECT_EQ(made.starts[0].variant, 0) << name << ": who is away asks for no slots";
  }
  Window window(1, 132);
  window.add_tenant(1);
  const Times times{{away}};
  const auto ask = [&](Time deadline) {
    return admit(window, times, 0ns, Policy(), {.key = 1, .deadline = deadline}, 8);
  };
  EXPECT_EQ(ask(1ms).why, Why::kTooShort);
  EXPECT_TRUE(ask(3ms).taken);
  std::stringstream record;
  Recorder(record, 1, 132, Policy()).times(0, away);
  std::string line;
  while (std::getline(record, line) && !line.starts_with("times")) {
  }
  EXPECT_NE(line.find(" away:2000000 |"), std::string::npos) << line;
}

TEST(Scheduler, EqualWeightsAreOneBatchWithinDeadlines) {
  const ModelTimes batches{
      .variants = {{1, 4, 100us, 100us}, {2, 4, 120us, 120us}, {4, 4, 160us, 160us}}};
  std::vector<Job> jobs;
  for (uint64_t k = 1; k <= 5; ++k) jobs.push_back({.key = k, .deadline = Time(1ms)});
  const Decisions four = decide_for({batches}, jobs, Policy(), 4);
  ASSERT_EQ(four.starts.size(), 1u);
  EXPECT_EQ(four.starts[0].jobs.size(), 4u);
  for (Job& job : jobs) job.deadline = kNever, job.arrival = -Time(1s);
  const Decisions old = decide_for({batches}, jobs, Policy(), 4);
  ASSERT_EQ(old.starts.size(), 1u);
  EXPECT_EQ(old.starts[0].jobs.size(), 4u) << "who waits for long is joined as well";
  for (Job& job : jobs) job.deadline = Time(1ms), job.arrival = Time(0);
  jobs[3].deadline = 140us;  // a batch of four would be late for it
  const Decisions two = decide_for({batches}, jobs, Policy(), 4);
  ASSERT_EQ(two.starts.size(), 1u);
  EXPECT_EQ(two.starts[0].jobs[0].key, 4u);
  EXPECT_EQ(two.starts[0].rows, 2);
  Policy apart;
  apart.batches = false;
  EXPECT_EQ(decide_for({batches}, jobs, apart, 4).starts[0].rows, 1);
}

TEST(Scheduler, HoldsForAPartnerOnlyWhileOthersHaveWork) {
  const ModelTimes batches{.variants = {{1, 4, 100us, 100us}, {2, 4, 120us, 120us}}},
      single{.variants = {{1, 4, 90us, 90us}}};
  Policy policy;
  policy.foresee = false;
  const auto decide_with = [&](bool other, Time deadline) {
    Window window(1, 4);
    Times times{{batches, single}};
    window.add_tenant(1), window.add_tenant(1);
    // It comes every 50 us, so the next is soon here.
    for (uint64_t k = 1; k <= 3; ++k) {
      window.arrive({.key = k, .arrival = Time(50us) * static_cast<int>(k), .deadline = deadline},
                    policy);
      if (k < 3) window.cancel(k);
    }
    if (other)
      window.arrive({.key = 9, .model = 1, .tenant = 1, .arrival = 150us, .deadline = 5ms}, policy);
    return decide(window, times, 150us, policy);
  };
  const auto first = [](const Decisions& decisions) {
    return decisions.starts.empty() ? 0 : decisions.starts[0].jobs[0].key;
  };
  EXPECT_EQ(first(decide_with(true, 4ms)), 9u) << "it can wait for a partner, the other has work";
  EXPECT_EQ(first(decide_with(false, 4ms)), 3u) << "nobody else wants the slots";
  EXPECT_EQ(first(decide_with(true, 310us)), 3u) << "its slack does not allow to wait";
}

/// Three models of one code and one of another, eight slots each, on 32.
Times of_one_code() {
  Times times;
  for (const int code : {7, 7, 7, 8}) times.models.push_back({{{1, 8, 1ms, 1ms, code}}});
  return times;
}

TEST(Scheduler, ModelsOfOneCodeShareALaunch) {
  Policy policy = policy_named("vliw").value();
  policy.gather = 0ms;
  const Times times = of_one_code();
  for (const bool instances : {true, false}) {
    policy.instances = instances;
    Window window(1, 32);
    window.add_tenant(1);
    for (int model = 0; model < 4; ++model)
      window.arrive({.key = static_cast<uint64_t>(model), .model = model}, policy);
    const Decisions made = decide(window, times, 0ms, policy);
    ASSERT_EQ(made.starts.size(), 4u);
    for (const Start& start : made.starts)
      EXPECT_EQ(start.launch, instances && start.model < 3 ? 1 : 0) << "model " << start.model;
  }
}

// Models 0, 1 and 2 ask every 4 ms. Who comes first waits for the others, but no longer than the
// policy says from one to the next, and not for those that have stopped to ask.
TEST(Scheduler, ARequestWaitsForThoseThatShareItsLaunch) {
  Policy policy = policy_named("vliw").value();
  policy.gather = 50us;
  Times times = of_one_code();
  Window window(1, 32);
  window.add_tenant(1);
  uint64_t key = 0;
  const auto run_all = [&](Time now) {
    const Decisions made = decide(window, times, now, policy);
    const uint64_t first = window.apply(made, policy, now);
    for (size_t k = 0; k < made.starts.size(); ++k) window.finish(first + k, 1ms, policy);
    return made;
  };
  const auto arrives = [&](int model, Time at, Time deadline = kNever) {
    window.arrive({.key = key++, .model = model, .arrival = at, .deadline = deadline}, policy);
  };
  for (const Time at : {0ms, 4ms, 8ms})
    for (int model = 0; model < 3; ++model) {
      arrives(model, at + 40us * model);
      if (model == 2) run_all(at + 80us);
    }
  arrives(0, 12ms);
  Decisions made = run_all(12ms);
  EXPECT_TRUE(made.starts.empty());
  EXPECT_EQ(made.wake, 12ms + 50us);
  arrives(1, 12ms + 40us);  // from one to the next
  made = run_all(12ms + 40us);
  EXPECT_TRUE(made.starts.empty());
  EXPECT_EQ(made.wake, 12ms + 90us);
  arrives(2, 12ms + 80us);
  made = run_all(12ms + 80us);
  ASSERT_EQ(made.starts.size(), 3u) << "all have come";
  for (const Start& start : made.starts) EXPECT_EQ(start.launch, 1);
  // What has another code starts at once beside those that gather, and is no reason to stop.
  arrives(0, 14ms), arrives(3, 14ms);
  made = run_all(14ms);
  ASSERT_EQ(made.starts.size(), 1u);
  EXPECT_EQ(made.starts[0].model, 3);
  // Nobody else comes: it goes alone when the time is over.
  made = run_all(14ms + 50us);
  ASSERT_EQ(made.starts.size(), 1u);
  EXPECT_EQ(made.starts[0].launch, 0);
  // Its slack does not allow to wait.
  arrives(0, 16ms, 16ms + 1080us);
  EXPECT_EQ(run_all(16ms).starts.size(), 1u);
  // One that has to start takes along who gathers.
  arrives(0, 20ms);
  EXPECT_TRUE(run_all(20ms).starts.empty());
  arrives(1, 20ms + 10us, 20ms + 1080us);
  made = run_all(20ms + 10us);
  ASSERT_EQ(made.starts.size(), 2u);
  EXPECT_EQ(made.starts[0].launch, 1);
  // Who gathers keeps no slots from others: where one finds none, all start.
  arrives(0, 24ms);
  EXPECT_TRUE(run_all(24ms).starts.empty());
  times.models[3].variants[0].width = 32;
  arrives(3, 24ms + 10us);
  made = run_all(24ms + 10us);
  ASSERT_GE(made.starts.size(), 1u);
  // The others do not come any more: it learns not to wait.
  int waited = 0;
  for (Time at = 28ms; at < 68ms; at += 4ms) {
    arrives(0, at);
    waited += run_all(at).starts.empty();
    run_all(at + 50us);
  }
  EXPECT_LE(waited, 8);
  arrives(0, 68ms);
  EXPECT_EQ(run_all(68ms).starts.size(), 1u);
}

/// Tenants of one code, each on an eighth of the machine.
SimulatedMachine eight_tenants(Time alone, Time beside) {
  SimulatedMachine machine{"", 128, {}};
  for (int m = 0; m < 8; ++m)
    machine.models.push_back({"m", {.variants = {{1, 16, alone, beside, 1}}}});
  return machine;
}
double runs_of_a_launch(const SimulationReport& report) {
  double runs = 0, launches = 0;
  for (size_t size = 1; size < report.groups.size(); ++size)
    runs += static_cast<double>(size) * static_cast<double>(report.groups[size]),
        launches += static_cast<double>(report.groups[size]);
  return runs / launches;
}

// Two tenants' requests of one model that gather are one launch of it, and no less than none wants
// slots beside another model's.
TEST(Scheduler, TwoFlowsOfOneModelGather) {
  Policy policy = policy_named("vliw").value();
  policy.gather = 50us, policy.foresee = false;
  Times times = of_one_code();
  for (int model = 0; model < 3; ++model)
    times.models[model].variants.push_back({2, times.models[model].variants[0].width, 2ms, 2ms});
  Window window(1, 32);
  window.add_tenant(1), window.add_tenant(1);
  uint64_t key = 0;
  const auto arrives = [&](int tenant, int model, Time at) {
    window.arrive({.key = key++, .model = model, .tenant = tenant, .arrival = at}, policy);
  };
  const auto run_all = [&](Time now) {
    const Decisions made = decide(window, times, now, policy);
    const uint64_t first = window.apply(made, policy, now);
    for (size_t k = 0; k < made.starts.size(); ++k) window.finish(first + k, 1ms, policy);
    return made;
  };
  for (const Time at : {0ms, 4ms, 8ms})
    for (int model = 0; model < 3; ++model) {
      arrives(0, model, at + 40us * model);
      if (model == 2) run_all(at + 80us);
    }
  arrives(0, 0, 12ms), arrives(1, 0, 12ms);
  EXPECT_TRUE(run_all(12ms).starts.empty()) << "both gather";
  arrives(0, 3, 12ms + 1us);
  size_t started = run_all(12ms + 1us).starts.size();
  EXPECT_GE(started, 1u);
  for (Time now = 12ms + 10us; window.waiting() > 0 && now < 13ms; now += 10us)
    started += run_all(now).starts.size();
  EXPECT_EQ(window.waiting(), 0);
}

// Eight clients ask again a few microseconds after their answer, and their requests reach the
// server one after the other: their runs become launches of seven or eight.
TEST(Scheduler, ClosedLoopsOfOneCodeRunInStep) {
  for (const bool instances : {true, false})
    for (const Time gather : {10us, 0us}) {
      const SimulatedMachine machine = eight_tenants(200us, 300us);
      SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0};
      options.policy.instances = instances, options.policy.gather = gather;
      std::vector<Arrival> first;
      for (int m = 0; m < 8; ++m) first.push_back({.at = 4us * m, .model = m});
      std::mt19937 random(1);
      uint64_t asked = 8;
      Time last{0};
      options.follows = [&](const Job& job, Time at) -> std::optional<Arrival> {
        if (asked == 8000) return std::nullopt;
        ++asked;
        // A client wakes, and what submits takes one request after the other.
        last = std::max(at + Time(pick(random, 2'000, 8'000)), last + 3us);
        return Arrival{.at = last, .model = job.model};
      };
      const SimulationReport report = simulate(machine, first, options);
      EXPECT_EQ(report.all.answered, 8000);
      RecordProperty(fmt::format("runs_of_a_launch_{}_gather_{}", instances, gather.count()),
                     fmt::format("{:.2f}", runs_of_a_launch(report)));
      if (instances && gather > 0us) {
        EXPECT_GE(runs_of_a_launch(report), 7);
      }
      if (!instances) {
        EXPECT_EQ(runs_of_a_launch(report), 1);
      }
    }
}

// Requests at random: the more come, the more of them share a launch; where few come nobody waits.
TEST(Scheduler, GroupsGrowWithTheLoad) {
  const SimulatedMachine machine = eight_tenants(30us, 40us);
  double before = 0;
  for (const double load : {0.05, 0.4, 0.8, 1.2}) {
    const double rate = load * 8 / 40e-6;
    SimulationOptions options{.policy = policy_named("vliw").value()};
    options.policy.admit_by_load = false, options.policy.drop = Drop::kPassed;
    std::vector<Arrival> arrivals =
        generate(machine, {.rate = rate, .requests = 20'000, .slack_factor = 50, .seed = 4});
    const SimulationReport report = simulate(machine, arrivals, options);
    const double now = runs_of_a_launch(report);
    RecordProperty(fmt::format("runs_of_a_launch_at_load_{}", load), fmt::format("{:.2f}", now));
    if (load < 0.1) {
      EXPECT_LT(now, 1.2);
      EXPECT_LT(report.all.p50_us, 36) << "few wait for others";
    }
    EXPECT_GT(now, before) << "at a load of " << load;
    before = now;
  }
  EXPECT_GT(before, 3);
}

// What was learnt of a model is not of the next one that gets its number: neither how often it
// asks nor how late its answers came.
TEST(Scheduler, WhatWasLearntOfAModelGoesWithIt) {
  const Policy policy;
  const Times times{{{.variants = {{1, 4, 100us, 100us}}}}};
  Window window(1, 4);
  window.add_tenant(1);
  for (uint64_t k = 1; k <= 20; ++k) {
    const Time now = Time(1ms) * static_cast<int>(k);
    window.arrive({.key = k, .arrival = now, .deadline = now + 200us}, policy);
    const uint64_t run = window.apply(decide(window, times, now, policy), policy, now);
    window.finish(run, 300us, policy);
  }
  EXPECT_GT(window.caution(0, policy), Window::kFirstCaution);
  EXPECT_EQ(window.gap(0), 1ms);
  EXPECT_FALSE(window.arrived().empty());
  window.forget(0);
  EXPECT_EQ(window.caution(0, policy), Window::kFirstCaution);
  EXPECT_EQ(window.gap(0), kNever);
  EXPECT_TRUE(window.arrived().empty());
  window.arrive({.key = 21, .arrival = 60ms}, policy);
  EXPECT_EQ(window.gap(0), kNever) << "its first request";
}

TEST(Scheduler, WhatWouldBeLateOnSlotsThatBecomeFreeOverlaps) {
  const Times times{{{.variants = {{1, 8, 1000us, 1000us}, {1, 4, 1500us, 1500us}}},
                     {.variants = {{1, 8, 100us, 100us}, {1, 2, 200us, 220us}}}}};
  Policy policy;
  policy.foresee = policy.hold = false;
  Window window(1, 8);
  window.add_tenant(1);
  const auto arrives = [&](uint64_t key, int model, Time now, Time deadline) {
    window.arrive({.key = key, .model = model, .arrival = now, .deadline = deadline}, policy);
  };
  const auto step = [&](Time now) {
    Decisions decisions = decide(window, times, now, policy);
    window.apply(decisions, policy, now);
    return decisions.starts;
  };
  arrives(1, 0, 0us, 3000us);
  ASSERT_EQ(step(0us).size(), 1u);  // all eight slots for 1000 us
  // 1000 us are left, this one has 500: a program of two slots makes ten of eight.
  const auto ask = [&](Time now, Time deadline) {
    return admit(window, times, now, policy,
                 {.key = 99, .model = 1, .arrival = now, .deadline = deadline}, 8);
  };
  EXPECT_TRUE(ask(0us, 500us).taken);
  arrives(2, 1, 0us, 500us);
  const std::vector<Start> beside = step(0us);
  ASSERT_EQ(beside.size(), 1u);
  EXPECT_EQ(beside[0].why, Why::kOverlaps);
  EXPECT_EQ(beside[0].slots, 0);
  EXPECT_EQ(beside[0].beside, 8) << "100 us with all, 16 of 8: 200 us; with two 275 us";
  EXPECT_EQ(beside[0].predicted, Time(200us));
  EXPECT_EQ(beside[0].delay, Time(100us));
  EXPECT_EQ(window.running()[0].predicted, Time(1100us)) << "it is disturbed for as long";
  EXPECT_EQ(window.left(0), -8) << "it has the slots that become free";
  // Who has time waits.
  arrives(3, 1, 0us, 2000us);
  EXPECT_TRUE(step(0us).empty());
  // No running program is made late: 1100 us and another 100 are beyond its deadline.
  Window other(1, 8);
  other.add_tenant(1);
  other.arrive({.key = 1, .model = 0, .deadline = Time(1050us)}, policy);
  other.apply(decide(other, times, 0us, policy), policy, 0us);
  other.arrive({.key = 2, .model = 1, .deadline = Time(500us)}, policy);
  EXPECT_TRUE(decide(other, times, 0us, policy).starts.empty());
  // And it is a part with a switch.
  policy.overlap = 0;
  Window without(1, 8);
  without.add_tenant(1);
  without.arrive({.key = 1, .model = 0, .deadline = Time(3000us)}, policy);
  without.apply(decide(without, times, 0us, policy), policy, 0us);
  without.arrive({.key = 2, .model = 1, .deadline = Time(500us)}, policy);
  EXPECT_TRUE(decide(without, times, 0us, policy).starts.empty());
  EXPECT_EQ(admit(without, times, 0us, policy,
                  {.key = 9, .model = 1, .arrival = 0us, .deadline = Time(500us)}, 8)
                .why,
            Why::kLoad);
}

/// One long model of all eight slots that gives way every 100 us, and a short one.
Times long_and_short() {
  return {{{.variants = {{1, 8, 10ms, 10ms, -1, 100us}, {1, 4, 18ms, 18ms, -1, 100us}}},
           {.variants = {{1, 8, 200us, 200us}, {1, 2, 400us, 400us}, {1, 1, 700us, 700us}}}}};
}

/// A window on a machine of eight slots, and what happens to it.
struct Happens {
  Times times = long_and_short();
  Policy policy = [] {
    Policy made;
    made.foresee = made.hold = false;
    made.overlap = 0;  // as on a CPU
    made.promise = 0;  // predictions hold
    made.margin = 1.1;
    return made;
  }();
  Window window = [] {
    Window made(1, 8);
    made.add_tenant(1), made.add_tenant(1);
    return made;
  }();
  Decisions last{};
  Admission ask(int model, Time now, Time deadline) const {
    return admit(window, times, now, policy,
                 {.key = 99, .model = model, .tenant = model, .arrival = now, .deadline = deadline},
                 8);
  }
  std::vector<Start> arrives(uint64_t key, int model, Time now, Time deadline, int priority = 0) {
    window.arrive({.key = key,
                   .model = model,
                   .tenant = model,
                   .priority = priority,
                   .arrival = now,
                   .deadline = deadline},
                  policy);
    return step(now);
  }
  std::vector<Start> step(Time now) {
    last = decide(window, times, now, policy);
    window.apply(last, policy, now);
    return last.starts;
  }
};

TEST(Scheduler, WhatWouldBeLateOnSlotsThatBecomeFreeRunsWithin) {
  Happens one;
  ASSERT_EQ(one.arrives(1, 0, 0us, kNever).size(), 1u);  // all eight slots for 10 ms
  EXPECT_TRUE(one.ask(1, 1ms, 2ms).taken);
  const std::vector<Start> made = one.arrives(2, 1, 1ms, 2ms);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].why, Why::kWithin);
  EXPECT_EQ(made[0].within, 1u);
  EXPECT_EQ(made[0].wait, 100us);
  EXPECT_EQ(made[0].slots, 0);
  EXPECT_EQ(made[0].borrows, 8) << "the quickest: the run stands still meanwhile";
  EXPECT_EQ(made[0].predicted, 200us);
  EXPECT_EQ(made[0].slack, 700us);
  EXPECT_EQ(one.window.running()[0].predicted, 10'200us) << "it stands still for as long";
  EXPECT_EQ(one.window.free(0), 0);
  // One at a time: the next is taken, where it is in time behind that one, and starts then.
  EXPECT_EQ(one.ask(1, 1ms, 1600us).why, Why::kLoad);
  EXPECT_TRUE(one.ask(1, 1ms, 1700us).taken);
  EXPECT_TRUE(one.arrives(3, 1, 1ms, 1700us).empty());
  one.window.finish(2, 200us, one.policy, 50us);
  const std::vector<Start> next = one.step(1250us);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].within, 1u);
  EXPECT_EQ(one.arrives(4, 1, 1250us, 1500us).size(), 0u) << "no program is that quick";
  // Of those that end about then it is the narrowest.
  Happens other;
  other.times.models[1].variants[1].alone = other.times.models[1].variants[1].beside = 210us;
  other.arrives(1, 0, 0us, kNever);
  const std::vector<Start> narrow = other.arrives(2, 1, 1ms, 2ms);
  ASSERT_EQ(narrow.size(), 1u);
  EXPECT_EQ(narrow[0].borrows, 2);
}

TEST(Scheduler, NobodyIsMadeLateByWhoRunsWithin) {
  for (const Time due : {Time(11'200us), Time(11'300us)}) {
    Happens one;
    one.arrives(1, 0, 0us, due);
    EXPECT_EQ(one.ask(1, 1ms, 2ms).taken, due == 11'300us) << "200 us, and both a tenth more";
    EXPECT_EQ(one.arrives(2, 1, 1ms, 2ms).size(), due == 11'300us ? 1u : 0u);
  }
  // Nor is who waits for its slots: 10 ms are left from 10'100 or 10'300 us on, with a tenth more.
  for (const Time due : {Time(21'100us), Time(21'300us)}) {
    Happens one;
    one.arrives(1, 0, 0us, kNever);
    EXPECT_TRUE(one.arrives(2, 0, 0us, due).empty());
    EXPECT_EQ(one.ask(1, 1ms, 2ms).taken, due == 21'300us);
    EXPECT_EQ(one.arrives(3, 1, 1ms, 2ms).size(), due == 21'300us ? 1u : 0u);
  }
  // Nor is who waits behind that one.
  for (const Time due : {Time(31'100us), Time(31'300us)}) {
    Happens one;
    one.times.models.push_back(one.times.models[0]);
    one.window.add_tenant(1);
    one.arrives(1, 0, 0us, kNever);
    EXPECT_TRUE(one.arrives(2, 0, 0us, 25ms).empty());
    EXPECT_TRUE(one.arrives(3, 2, 0us, due).empty());
    EXPECT_EQ(one.ask(1, 1ms, 2ms).taken, due == 31'300us);
    EXPECT_EQ(one.arrives(4, 1, 1ms, 2ms).size(), due == 31'300us ? 1u : 0u);
  }
  // Nor does a run give way to what is less urgent than it,
  Happens less;
  less.arrives(1, 0, 0us, kNever, -1);
  EXPECT_TRUE(less.arrives(2, 1, 1ms, 2ms).empty());
  EXPECT_EQ(less.arrives(3, 1, 1ms, 2ms, -1).size(), 1u);
  // nor one that shares a launch, nor for ever: for its own time, or Policy::patience.
  Happens shares;
  for (VariantTime& variant : shares.times.models[0].variants) variant.width = 4, variant.code = 1;
  shares.times.models.push_back(shares.times.models[0]);
  shares.window.add_tenant(1);
  shares.window.arrive({.key = 1, .model = 0, .tenant = 0}, shares.policy);
  ASSERT_EQ(shares.arrives(2, 2, 0us, kNever).size(), 2u);
  ASSERT_EQ(shares.last.starts[0].launch, 1);
  EXPECT_TRUE(shares.arrives(3, 1, 1ms, 2ms).empty());
  Happens often;
  often.policy.patience = 2ms;
  often.arrives(1, 0, 0us, kNever);
  Time now = 1ms;
  uint64_t key = 2;
  while (!often.arrives(key, 1, now, now + 1ms).empty()) {
    often.window.finish(key, 200us, often.policy, 50us);
    now += 250us, ++key;
    ASSERT_LT(key, 90u) << "for ever";
  }
  EXPECT_EQ(key, 51u) << "49 of 200 us are 9.8 ms of its 10";
  EXPECT_EQ(often.window.running()[0].paused, 9800us);
}

TEST(Scheduler, AnUrgentOneReliesOnSlotsThatBecomeFreeForAsLongAsItCan) {
  Happens one;
  one.arrives(1, 0, 0us, kNever);
  // It is in time behind the run, which ends at 10 ms: it waits, and asks again while there is time
  // for another way, when half of its time is over,
  EXPECT_TRUE(one.arrives(2, 1, 8ms, 14ms).empty());
  EXPECT_EQ(one.last.wake, 11ms);
  // or two parts before the last moment.
  EXPECT_TRUE(one.arrives(3, 1, 10ms, 10'700us).empty());
  const Time last = 10'700us - (2 * 100us + 200us) * 11 / 10;
  EXPECT_EQ(one.last.wake, last);
  const std::vector<Start> made = one.step(last);  // the run takes longer than it was to
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].why, Why::kWithin);
  // Slots that are free in time are waited for.
  Happens other;
  other.arrives(1, 0, 0us, kNever);
  EXPECT_TRUE(other.arrives(2, 1, 9ms, 11ms).empty());
  other.window.finish(1, 9500us, other.policy);
  const std::vector<Start> free = other.step(9500us);
  ASSERT_EQ(free.size(), 1u);
  EXPECT_EQ(free[0].within, 0u);
}

TEST(Scheduler, RunsAreCutOnlyWhereThePolicyAndThePartsAllowIt) {
  const auto starts = [](const std::string& policy, bool cut) {
    Happens one;
    one.policy = policy_named(policy + ":overlap=0").value();
    if (!cut)
      for (VariantTime& variant : one.times.models[0].variants) variant.segment = kNever;
    one.arrives(1, 0, 0us, kNever);
    EXPECT_EQ(one.ask(1, 1ms, 2ms).taken, policy == "vliw" && cut) << policy;
    return one.arrives(2, 1, 1ms, 2ms).size();
  };
  EXPECT_EQ(starts("vliw", true), 1u);
  EXPECT_EQ(starts("vliw", false), 0u);
  EXPECT_EQ(starts("vliw:segments=0", true), 0u);
  Happens fifo;
  fifo.policy = policy_named("edf").value();
  fifo.arrives(1, 0, 0us, kNever);
  EXPECT_TRUE(fifo.arrives(2, 1, 1ms, 2ms).empty());
}

// What runs within a run is its own tenant's, and not taken for a part of that run.
TEST(Scheduler, TimeWithinARunIsNotThatRuns) {
  Happens one;
  one.policy.promise = 0.995;
  one.arrives(1, 0, 0us, kNever);
  const double used = one.window.tenants()[0].used;
  for (uint64_t key = 2; key < 8; ++key) {
    const Time now = 1ms * static_cast<int>(key);
    ASSERT_EQ(one.arrives(key, 1, now, now + 1ms).size(), 1u);
    one.window.finish(key, 200us, one.policy, 50us);
  }
  EXPECT_EQ(one.window.tenants()[0].used, used);
  EXPECT_EQ(one.window.tenants()[1].used, 6 * 8 * 200e3) << "eight slots each";
  one.window.finish(1, 11'200us, one.policy);
  EXPECT_EQ(one.window.tenants()[0].ratio, 1);
  EXPECT_EQ(one.window.free(0), 8);
  // A run that ends first leaves slots to who was to be within it, no more than it needs.
  one.times.models[1].variants[1].alone = one.times.models[1].variants[1].beside = 210us;
  one.arrives(10, 0, 20ms, kNever);
  ASSERT_EQ(one.arrives(11, 1, 21ms, 22ms).size(), 1u);
  one.window.finish(8, 1050us, one.policy);
  ASSERT_EQ(one.window.running().size(), 1u);
  EXPECT_EQ(one.window.running()[0].within, 0u);
  EXPECT_EQ(one.window.running()[0].slots, 2);
  EXPECT_EQ(one.window.free(0), 6);
  one.window.finish(9, 210us, one.policy, 50us);
  EXPECT_EQ(one.window.free(0), 8);
  // Whether it was in time is counted from when it was started, not from when it began.
  one.arrives(12, 0, 30ms, kNever);
  ASSERT_EQ(one.arrives(13, 1, 31ms, 32ms).size(), 1u);
  EXPECT_LE(one.window.caution(1, one.policy), Window::kFirstCaution);
  one.window.finish(11, 210us, one.policy, 900us);
  EXPECT_GT(one.window.caution(1, one.policy), Window::kFirstCaution);
  Policy believing = one.policy;
  believing.promise = 0;
  EXPECT_EQ(one.window.caution(1, believing), 0);
}

// One model runs nearly all the time on all slots, another is asked now and then and has a tenth of
// such a run to answer.
TEST(Scheduler, UrgentRequestsAreInTimeBesideALongModelThatGivesWay) {
  const Times times = long_and_short();
  SimulatedMachine machine{"", 8, {{"long", times.models[0]}, {"short", times.models[1]}}};
  for (const int together : {1, 20}) {  // where many long ones come at once, they wait
    std::vector<Arrival> arrivals;
    std::mt19937 random(1);
    for (int k = 0; k < 1000; ++k)
      arrivals.push_back({.at = 12ms * (k / together * together), .model = 0});
    for (int k = 0; k < 2000; ++k)
      arrivals.push_back(
          {.at = Time(pick(random, 0, 12'000) * int64_t{1'000'000}), .model = 1, .budget = 1ms});
    std::sort(arrivals.begin(), arrivals.end(),
              [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
    std::map<bool, SimulationReport> reports;
    for (const bool segments : {false, true}) {
      SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0.05};
      options.policy.segments = segments, options.policy.overlap = 0;
      reports[segments] = simulate(machine, arrivals, options);
    }
    EXPECT_LT(reports[false].tenants[1].share(), 0.6) << together;
    EXPECT_GT(reports[true].tenants[1].share(), 0.9) << together;
    EXPECT_EQ(reports[true].tenants[0].answered, 1000);
    EXPECT_GT(reports[true].within, 500) << together;
    EXPECT_EQ(reports[false].within, 0);
    EXPECT_LT(reports[true].tenants[1].p99_us, 1000) << together;
  }
}

// Runs that pauses of the host made long are forgotten where they are why nothing is started.
TEST(Scheduler, AFewLongRunsDoNotKeepShortDeadlinesFromBeingTriedForEver) {
  const Times times{{{.variants = {{1, 8, 100us, 100us}}}}};
  const Policy policy = policy_named("vliw").value();
  Window window(1, 8);
  window.add_tenant(1);
  Time now{0};
  uint64_t key = 0;
  const auto started = [&](Time deadline, Time took) {
    now += 1ms;
    window.arrive({.key = ++key, .arrival = now, .deadline = now + deadline}, policy);
    const Decisions first = decide(window, times, now, policy);
    const uint64_t run = window.apply(first, policy, now);
    if (!first.starts.empty()) return window.finish(run, took, policy), true;
    now += deadline;  // it is given up
    const Decisions second = decide(window, times, now, policy);
    EXPECT_EQ(second.given_up.size(), 1u);
    window.apply(second, policy, now);
    return false;
  };
  EXPECT_TRUE(started(10ms, 2ms));
  EXPECT_FALSE(window.tenants()[0].demoted) << "a single one, however long";
  EXPECT_TRUE(started(10ms, 2ms));
  EXPECT_TRUE(window.tenants()[0].demoted) << "two of them";
  EXPECT_FALSE(started(130us, 100us)) << "predicted to take 180 us";
  int later = 1;
  while (later < 20 && !started(130us, 100us)) ++later;
  EXPECT_LE(later, 4);
  EXPECT_FALSE(window.tenants()[0].demoted);
  for (int k = 0; k < 10; ++k) EXPECT_TRUE(started(130us, 100us));
}

// A program that was slow beside others is tried all the same when nothing runs.
TEST(Scheduler, WhatIsSlowBesideOthersIsTriedAlone) {
  const ModelTimes slow{.variants = {{1, 8, 100us, 400us}}};
  EXPECT_EQ(decide_for({slow}, {{.key = 1, .deadline = Time(150us)}}, Policy(), 8).starts.size(),
            1u);
  EXPECT_EQ(decide_for({slow}, {{.key = 1, .deadline = Time(90us)}}, Policy(), 8).starts.size(),
            0u);
}

// With `eager` what could wait starts beside what has the slots, where it would wait for longer
// than it delays that.
TEST(Scheduler, EagerOnesDoNotWaitForSlots) {
  const ModelTimes wide{.variants = {{1, 8, 1000us, 1000us}}},
      small{.variants = {{1, 1, 40us, 40us}}};
  for (const bool eager : {false, true})
    for (const Time since : {Time(0us), Time(996us)}) {
      Policy policy = policy_named("vliw").value();
      policy.eager = eager;
      const Times times{{wide, small}};
      Window window(1, 8);
      window.add_tenant(1), window.add_tenant(1);
      window.arrive({.key = 1, .model = 0, .tenant = 0, .deadline = Time(5ms)}, policy);
      window.apply(decide(window, times, 0us, policy), policy, 0us);
      window.arrive({.key = 2, .model = 1, .tenant = 1, .arrival = since, .deadline = Time(5ms)},
                    policy);
      const Decisions made = decide(window, times, since, policy);
      // It makes the other 5 us longer, and waits for 1000 or for 4.
      ASSERT_EQ(made.starts.size(), eager && since == Time(0) ? 1u : 0u);
      if (!made.starts.empty()) {
        EXPECT_EQ(made.starts[0].why, Why::kOverlaps);
      }
    }
}

TEST(Scheduler, RefusesAtOnceWhatCannotBeMet) {
  Policy policy;
  policy.promise = 0;  // predictions hold here
  policy.margin = 1.1;
  Window window(1, 4);
  window.add_tenant(1);
  const Times times{{{.variants = {{1, 4, 100us, 100us}}}}};
  const auto ask = [&](Time now, Time deadline, int limit = 8) {
    return admit(window, times, now, policy, {.key = 99, .arrival = now, .deadline = deadline},
                 limit);
  };
  EXPECT_EQ(ask(0ns, 50us).why, Why::kTooShort);
  EXPECT_FALSE(ask(0ns, 50us).retry_after) << "it would be no better later";
  EXPECT_TRUE(ask(0ns, 100us).taken);
  for (uint64_t k = 1; k <= 5; ++k) window.arrive({.key = k, .deadline = Time(600us)}, policy);
  const Admission late = ask(0ns, 600us);
  EXPECT_TRUE(late.taken) << "five ahead of it end at 500 us";
  window.arrive({.key = 6, .deadline = Time(600us)}, policy);
  const Admission refused = ask(0ns, 650us);
  EXPECT_EQ(refused.why, Why::kLoad);
  ASSERT_TRUE(refused.retry_after);
  EXPECT_EQ(*refused.retry_after, Time(50us)) << "its answer would come at 700 us";
  EXPECT_EQ(ask(0ns, 550us).why, Why::kLoad) << "it would go before the others, and the last of "
                                                "them, who ends at 600 us, would be late";
  EXPECT_EQ(ask(0ns, kNever, 6).why, Why::kQueueFull);
  Window busy(1, 4);
  busy.add_tenant(1);
  busy.arrive({.key = 1}, policy);
  busy.apply(decide(busy, times, 0ns, policy), policy, 0ns);
  const auto behind = [&](Time deadline) {
    return admit(busy, times, 10us, policy, {.key = 2, .arrival = 10us, .deadline = deadline}, 8);
  };
  EXPECT_EQ(behind(205us).why, Why::kLoad) << "what runs may take a tenth longer";
  EXPECT_TRUE(behind(211us).taken);
}

/// Of requests of one model that wait together: when each ends by a plan, as the one that comes
/// last, and when it does as the scheduler decides, where runs take what is predicted.
struct Ends {
  std::map<uint64_t, Time> planned, ended;
  int shared = 0;  // launches of several
};
Ends ends_of(const Times& times, int slots, const std::vector<Time>& deadlines) {
  Policy policy;
  policy.promise = 0, policy.overlap = 0, policy.margin = 1, policy.foresee = policy.hold = false;
  Ends ends;
  Window window(1, slots);
  window.add_tenant(1);
  const auto job = [&](size_t k) { return Job{.key = k + 1, .deadline = deadlines[k]}; };
  for (size_t last = 0; last < deadlines.size(); ++last) {
    Window others(1, slots);
    others.add_tenant(1);
    for (size_t k = 0; k < deadlines.size(); ++k)
      if (k != last) others.arrive(job(k), policy);
    const Job added = job(last);
    ends.planned[added.key] = Plan(others, times, 0us, policy).end_of_added({.added = &added});
    window.arrive(added, policy);
  }
  for (Time now{0}; ends.ended.size() < deadlines.size();) {
    const Decisions made = decide(window, times, now, policy);
    EXPECT_TRUE(made.given_up.empty());
    EXPECT_FALSE(made.starts.empty());
    if (made.starts.empty()) break;
    uint64_t run = window.apply(made, policy, now);
    now += made.starts[0].predicted;  // of one model, and one batch where several start
    for (const Start& start : made.starts) {
      for (const Job& each : start.jobs) ends.ended[each.key] = now;
      ends.shared += start.jobs.size() > 1;
      window.finish(run++, start.predicted, policy);
    }
  }
  return ends;
}

// What a plan says of each request that waits is when it ends, if nothing else comes.
TEST(Plan, EndsAreThoseThatTheSchedulerComesTo) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int slots = pick(random, 1, 4), count = pick(random, 1, 24);
    const Time takes(pick(random, 50, 500) * 1000);
    std::vector<Time> deadlines;
    for (int k = 0; k < count; ++k)
      deadlines.push_back(takes * (count + 1) + Time(pick(random, 0, 1000)));
    const Ends ends = ends_of({{{.variants = {{1, 1, takes, takes}}}}}, slots, deadlines);
    EXPECT_EQ(ends.planned, ends.ended) << "seed " << seed;
  }
}

// The same of batches: who is in time in a launch of its model ends with it, and as many rows as
// wait decide which one that is.
TEST(Plan, EndsOfBatchesAreThoseThatTheSchedulerComesTo) {
  int shared = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int slots = pick(random, 1, 3), count = pick(random, 1, 24);
    const int begin = pick(random, 50, 500), row = pick(random, 5, 50);
    ModelTimes model;
    for (int batch = 1; batch <= 8; batch *= 2) {
      const Time takes = 1us * (begin + row * batch);
      model.variants.push_back({batch, slots, takes, takes});
    }
    std::vector<Time> deadlines;
    for (int k = 0; k < count; ++k)
      deadlines.push_back(model.variants.back().alone * (count + 1) + Time(pick(random, 0, 1000)));
    const Ends ends = ends_of({{model}}, slots, deadlines);
    EXPECT_EQ(ends.planned, ends.ended) << "seed " << seed;
    shared += ends.shared;
  }
  EXPECT_GT(shared, 300);
}

// What comes last takes no launch of its own for a few rows where many more are likely to come
// until then: they would have to wait for it.
TEST(Plan, NobodyIsPromisedASmallBatchThatOthersWouldWaitFor) {
  const Times times{{{.variants = {{1, 2, 100us, 100us}, {8, 2, 200us, 200us}}}}};
  const Policy policy{.promise = 0, .overlap = 0};
  const auto may_come = [&](Time gap) {
    Window window(1, 2);
    window.add_tenant(1);
    uint64_t key = 0;
    const Time now = 9 * gap;
    for (int k = 0; k < 9; ++k)  // eight of them start together
      window.arrive({.key = ++key, .arrival = gap * k, .deadline = now + 440us}, policy);
    window.apply(decide(window, times, now, policy), policy, now);
    return admit(window, times, now, policy,
                 {.key = ++key, .arrival = now, .deadline = now + 450us}, 64)
        .taken;
  };
  EXPECT_TRUE(may_come(1s));
  EXPECT_FALSE(may_come(10us));
}

// Batches of a model that share all slots well follow one another; where more slots hardly shorten
// them they run side by side.
TEST(Scheduler, BatchesFollowOneAnotherWhereTheySpread) {
  std::vector<Job> jobs;
  for (uint64_t k = 1; k <= 8; ++k) jobs.push_back({.key = k, .deadline = Time(10ms)});
  const auto starts = [&](Time whole) {
    const ModelTimes model{
        .variants = {
            {1, 1, 100us, 100us}, {1, 2, 60us, 60us}, {4, 1, 200us, 200us}, {4, 2, whole, whole}}};
    return decide_for({model}, jobs, Policy(), 2).starts;
  };
  const std::vector<Start> spread = starts(110us), alike = starts(190us);
  ASSERT_EQ(spread.size(), 1u);
  EXPECT_EQ(spread[0].slots, 2);
  EXPECT_EQ(spread[0].rows, 4);
  ASSERT_EQ(alike.size(), 2u);
  EXPECT_EQ(alike[0].slots, 1);
  EXPECT_EQ(alike[0].rows, 4);
}

// Where they do, a batch waits for the run of its model, as long as that leaves it in time: beside
// it it would have few slots, and keep them from the next one.
TEST(Scheduler, ABatchWaitsForTheRunOfItsModel) {
  const Policy policy;
  const Times times{{{.variants = {{1, 2, 100us, 100us},
                                   {1, 4, 60us, 60us},
                                   {4, 2, 200us, 200us},
                                   {4, 4, 110us, 110us}}}}};
  const auto second = [&](int machines, Time deadline) {
    Window window(machines, 4);
    window.add_tenant(1);
    window.arrive({.key = 1, .deadline = 10ms}, policy);
    Decisions made = decide(window, times, 0us, policy);
    made.starts.at(0).variant = 0, made.starts[0].slots = 2, made.starts[0].predicted = 100us;
    window.apply(made, policy, 0us);
    window.arrive({.key = 2, .arrival = 10us, .deadline = deadline}, policy);
    return decide(window, times, 10us, policy);
  };
  const Decisions waits = second(1, 1ms), hurries = second(1, 200us), elsewhere = second(2, 1ms);
  EXPECT_TRUE(waits.starts.empty());
  EXPECT_LE(waits.wake, 1ms - 100us - 90us) << "it would be late behind a run that ends later";
  EXPECT_GT(waits.wake, 10us);
  ASSERT_EQ(hurries.starts.size(), 1u);
  EXPECT_EQ(hurries.starts[0].slots, 2);
  ASSERT_EQ(elsewhere.starts.size(), 1u);
  EXPECT_EQ(elsewhere.starts[0].machine, 1);
}

// Requests of one run are late together, and are no more of a surprise than one.
TEST(Scheduler, ALateBatchIsOneSurprise) {
  const Policy policy;
  const Times times{{{.variants = {{16, 1, 100us, 100us}}}}};
  Window window(1, 1);
  window.add_tenant(1);
  uint64_t key = 0;
  const auto batch = [&](int number, Time took) {
    const Time now = Time(1ms) * number;
    for (int k = 0; k < 16; ++k)
      window.arrive({.key = ++key, .arrival = now, .deadline = now + 200us}, policy);
    const uint64_t run = window.apply(decide(window, times, now, policy), policy, now);
    window.finish(run, took, policy);
  };
  for (int k = 0; k < 100; ++k) batch(k, 100us);
  const double before = window.caution(0, policy);
  EXPECT_LT(before, Window::kFirstCaution);
  batch(100, 300us);
  EXPECT_NEAR(window.caution(0, policy) - before, 0.5, 0.01);
}

TEST(Plan, SaysWhoIsLateForAChange) {
  Policy policy;
  policy.promise = 0, policy.margin = 1;  // predictions hold
  const Times times{{{.variants = {{1, 1, 100us, 100us}}}}};
  Window window(1, 1);
  window.add_tenant(1);
  window.arrive({.key = 1, .priority = 1, .deadline = Time(150us)}, policy);
  const Job& waits = window.flows()[0].waiting.begin()->job;
  Plan plan(window, times, 0us, policy);
  const Job before{.key = 2, .priority = 1, .deadline = Time(140us)},
      behind{.key = 3, .priority = 1, .deadline = Time(250us)},
      above{.key = 4, .deadline = Time(140us)};
  EXPECT_EQ(plan.end_of_added({.added = &before}), 100us);
  EXPECT_EQ(plan.end_of_added({.added = &behind}), 200us);
  EXPECT_TRUE(plan.makes_late({.added = &before}));
  EXPECT_FALSE(plan.makes_late({.added = &behind}));
  EXPECT_FALSE(plan.makes_late({.added = &above})) << "the other is less urgent";
  EXPECT_FALSE(plan.makes_late({.machine = 0, .delay = 50us}));
  EXPECT_TRUE(plan.makes_late({.machine = 0, .delay = 51us}));
  EXPECT_FALSE(plan.makes_late({.leaves = &waits, .machine = 0, .delay = 51us}));
  EXPECT_EQ(plan.late_before(1ms), 0us);
  window.arrive({.key = 5, .priority = 1, .deadline = Time(160us)}, policy);
  EXPECT_EQ(Plan(window, times, 0us, policy).late_before(1ms), 100us);
  // What is not in time any more takes no time of others.
  EXPECT_EQ(Plan(window, times, 0us, policy).end_of_added({.added = &behind}), 200us);
}

// Admission expects what waits long later, by how far runs were from their predictions of late.
TEST(Scheduler, WhatIsAddedToAPredictionFollowsWhatRunsTook) {
  const Policy policy;
  const Times times{{{.variants = {{1, 4, 100us, 100us}}}}};
  const auto allowed = [&](Time slow) {
    Window window(1, 4);
    window.add_tenant(1);
    for (uint64_t k = 1; k <= 300; ++k) {
      window.arrive({.key = k}, policy);
      const uint64_t run = window.apply(decide(window, times, 0us, policy), policy, 0us);
      window.finish(run, k % 4 == 0 ? slow : 98us, policy);
    }
    EXPECT_GT(window.allowance(0, 300us, 100us, policy), window.allowance(0, 0us, 100us, policy));
    return window.allowance(0, 0us, 100us, policy);
  };
  const Time steady = allowed(100us), less = allowed(120us), more = allowed(140us);
  EXPECT_GT(steady, 0us);
  EXPECT_GT(less, steady);
  EXPECT_GT(more, 3 * less / 2);
}

// Of a burst each is due a little earlier than the one before, as those of clients who had to wait
// for one another: none that is taken pushes out who was taken before.
TEST(Scheduler, WhoWasAdmittedIsNotMadeLateByWhoComesLater) {
  const Times times{{{.variants = {{1, 1, 100us, 100us}}}}};
  for (const bool earlier : {false, true}) {
    Policy policy;
    Window window(1, 2);
    window.add_tenant(1);
    policy.overlap = 0, policy.promise = 0;  // predictions hold here
    uint64_t taken = 0;
    for (int k = 0; k < 40; ++k) {
      const Job job{.key = taken + 1, .deadline = Time(600us) + Time(earlier ? -k : k)};
      if (!admit(window, times, 0us, policy, job, 100).taken) continue;
      window.arrive(job, policy), ++taken;
    }
    EXPECT_EQ(taken, earlier ? 11u : 12u)
        << "six on each of two slots, and those that are due first are not the last to be taken";
    Time now{0};
    while (window.waiting() > 0 || !window.running().empty()) {
      const Decisions made = decide(window, times, now, policy);
      EXPECT_TRUE(made.given_up.empty());
      window.apply(made, policy, now);
      now += 100us;
      while (!window.running().empty()) window.finish(window.running()[0].id, 100us, policy);
    }
    EXPECT_LE(now, Time(600us));
  }
}

// Beyond capacity, in bursts of requests whose deadlines are not in the order in which they come,
// of models alike but for what was measured: nearly all that was admitted is in time.
TEST(Scheduler, BurstsBeyondCapacityAreRefusedAndNotMadeLate) {
  SimulatedMachine machine{"", 2, {}};
  for (int m = 0; m < 4; ++m) {
    const Time wide = 4600us + m * 100us, narrow = 7ms + m * 100us;
    machine.models.push_back(
        {"m", {.variants = {{1, 2, wide, wide, -1, 100us}, {1, 1, narrow, narrow, -1, 100us}}}});
  }
  std::mt19937 random(5);
  std::vector<Arrival> arrivals = generate(
      machine, {.kind = Workload::Kind::kBurst, .rate = 330, .requests = 20'000, .seed = 3});
  for (Arrival& arrival : arrivals) arrival.budget = 36ms - pick(random, 0, 2000) * 1us;
  for (const bool segments : {false, true}) {
    SimulationOptions options{.policy = policy_named("vliw").value(), .noise = 0.05};
    options.policy.segments = segments, options.policy.overlap = 0;
    const Attainment all = simulate(machine, arrivals, options).all;
    EXPECT_GT(all.share_of_taken(), 0.99) << segments;
    EXPECT_GT(all.refused, 1000) << segments;
  }
}

TEST(Scheduler, WhoIsMoreUrgentMayMakeOthersLate) {
  const Times times{{{.variants = {{1, 1, 100us, 100us}}}}};
  Policy policy;
  Window window(1, 1);
  window.add_tenant(1);
  window.arrive({.key = 1, .priority = 1, .deadline = Time(100us)}, policy);
  const auto ask = [&](int priority) {
    return admit(window, times, 0us, policy,
                 {.key = 2, .priority = priority, .deadline = Time(100us) - Time(1)}, 8)
        .why;
  };
  EXPECT_EQ(ask(2), Why::kTooShort);
  window.cancel(1);
  window.arrive({.key = 1, .priority = 1, .deadline = Time(150us)}, policy);
  const auto taken = [&](int priority) {
    return admit(window, times, 0us, policy,
                 {.key = 2, .priority = priority, .deadline = Time(140us)}, 8)
        .taken;
  };
  EXPECT_FALSE(taken(1)) << "the other would end at 200 us";
  EXPECT_TRUE(taken(0));
}

TEST(Scheduler, ArrivalsAreSharedByModelAsTheyAreAskedFor) {
  SimulatedMachine machine{"", 132, {}};
  for (int m = 0; m < 3; ++m) machine.models.push_back({"m", kWide});
  for (const auto kind : {Workload::Kind::kPoisson, Workload::Kind::kBurst}) {
    std::vector<double> count(3, 0);
    for (const Arrival& arrival : generate(machine, {.kind = kind,
                                                     .rate = 1000,
                                                     .requests = 100'000,
                                                     .sigma = 1,
                                                     .seed = 2,
                                                     .shares = {5, 3, 2}}))
      ++count[static_cast<size_t>(arrival.model)];
    EXPECT_NEAR(count[0], 50'000, 1500);
    EXPECT_NEAR(count[1], 30'000, 1500);
    EXPECT_NEAR(count[2], 20'000, 1500);
  }
}

TEST(Scheduler, ManyTenantsAtOnceGoAsTheyMight) {
  // Eight tenants of one network: side by side they must be far ahead of one after the other.
  SimulatedMachine machine{"", 132, {}};
  for (int m = 0; m < 8; ++m) machine.models.push_back({"m", kWide});
  const std::vector<Arrival> arrivals =
      generate(machine, {.rate = 9000, .requests = 20'000, .seed = 1});
  std::map<std::string, double> share;
  for (const char* name : {"fifo", "edf", "vliw"}) {
    SimulationOptions options;
    options.policy = policy_named(name).value();
    share[name] = simulate(machine, arrivals, options).all.share();
  }
  EXPECT_GT(share["vliw"], 1.5 * share["fifo"]);
  EXPECT_GT(share["vliw"], 1.2 * share["edf"]);
}

}  // namespace
}  // namespace obelisk::serve

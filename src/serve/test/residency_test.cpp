// Whose weights are on the device: small situations, and random ones whatever happens.
#include "serve/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace obelisk::serve {
namespace {

using namespace std::chrono_literals;
using State = Resident::State;
using List = std::vector<int>;
constexpr Time kPatience = 50ms;

Resident here(int model, int64_t bytes, Time last) {
  return {.model = model, .bytes = bytes, .last = last, .back = 1ms};
}
Resident away(int model, int64_t bytes) {
  return {.model = model, .bytes = bytes, .state = State::kAway, .back = 1ms};
}

TEST(Residency, WhoIsWaitedForComesWhereThereIsRoom) {
  std::vector<Resident> models = {here(0, 40, 0ms), away(1, 40)};
  EXPECT_EQ(plan_moves(models, 100, 1ms, kPatience).restore, List());
  models[1].waiting = 1;
  const Moves moves = plan_moves(models, 100, 1ms, kPatience);
  EXPECT_EQ(moves.restore, List({1}));
  EXPECT_EQ(moves.release, List());
}

TEST(Residency, TheOneThatWasIdleLongestLeaves) {
  std::vector<Resident> models = {here(0, 40, 5ms), here(1, 40, 2ms), here(2, 10, 9ms),
                                  away(3, 40)};
  models[3].waiting = 1, models[3].since = 10ms;
  const Moves moves = plan_moves(models, 100, 10ms, kPatience);
  EXPECT_EQ(moves.release, List({1}));
  EXPECT_EQ(moves.restore, List()) << "not before there is room";
  models[1].state = State::kLeaving;
  const Moves meanwhile = plan_moves(models, 100, 11ms, kPatience);
  EXPECT_EQ(meanwhile.release, List()) << "what leaves already makes room enough";
  EXPECT_EQ(meanwhile.restore, List());
  models[1].state = State::kAway;
  EXPECT_EQ(plan_moves(models, 100, 12ms, kPatience).restore, List({3}));
}

TEST(Residency, WhoComesSoonStaysBeforeWhoComesLate) {
  std::vector<Resident> models = {here(0, 40, 8ms), here(1, 40, 5ms), away(2, 40)};
  models[0].gap = 100ms, models[1].gap = 6ms;
  models[2].waiting = 1, models[2].since = 10ms;
  EXPECT_EQ(plan_moves(models, 100, 10ms, kPatience).release, List({0}));
}

TEST(Residency, WeightsComeBackAheadOfARegularRequest) {
  std::vector<Resident> models = {away(0, 40), here(1, 40, 0ms)};
  models[0].last = 0ms, models[0].gap = 20ms, models[0].back = 2ms;
  const Moves early = plan_moves(models, 50, 10ms, kPatience);
  EXPECT_EQ(early.restore, List());
  EXPECT_EQ(early.release, List());
  EXPECT_EQ(early.wake, 16ms);
  EXPECT_EQ(plan_moves(models, 50, 16ms, kPatience).release, List({1}));
  EXPECT_EQ(plan_moves(models, 100, 16ms, kPatience).restore, List({0}));
  EXPECT_EQ(plan_moves(models, 100, 60ms, kPatience).restore, List()) << "it came no more";
  models[1].gap = 18ms, models[1].last = 2ms;  // who is wanted sooner does not leave for it
  EXPECT_EQ(plan_moves(models, 50, 16ms, kPatience).release, List());
}

TEST(Residency, WhatRunsIsStoppedOnlyForWhoHasWaitedTooLong) {
  std::vector<Resident> models = {here(0, 80, 10ms), away(1, 40)};
  models[0].busy = true, models[0].waiting = 3;
  models[1].waiting = 1, models[1].since = 10ms;
  const Moves patient = plan_moves(models, 100, 20ms, kPatience);
  EXPECT_EQ(patient.release, List());
  EXPECT_EQ(patient.stop, List());
  EXPECT_EQ(patient.wake, 60ms + 1ns);
  EXPECT_EQ(plan_moves(models, 100, 61ms, kPatience).stop, List({0}));
  models[0].stopped = true;
  EXPECT_EQ(plan_moves(models, 100, 62ms, kPatience).stop, List()) << "once";
  EXPECT_EQ(plan_moves(models, 100, 62ms, kPatience).release, List());
  models[0].busy = false;
  EXPECT_EQ(plan_moves(models, 100, 63ms, kPatience).release, List({0}));
}

TEST(Residency, AnyHistoryKeepsTheLimitAndEverybodyComesOnce) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const int count = 2 + static_cast<int>(random() % 5);
    const int64_t room = 100;
    std::vector<Resident> models;
    for (int m = 0; m < count; ++m) models.push_back(away(m, 10 + random() % 80));
    Time now{0};
    std::map<int, int> served;
    std::vector<int> asked(static_cast<size_t>(count), 0);
    for (int step = 0; step < 400; ++step) {
      now += Time(random() % 4'000'000);
      for (Resident& model : models) {
        if (step < 200 && random() % 6 == 0) {
          if (model.waiting++ == 0) model.since = now;
          model.last = now, model.gap = Time(random() % 50'000'000);
          ++asked[static_cast<size_t>(model.model)];
        }
        // A run takes all that waits, and ends some time later.
        if (model.busy && random() % 2) model.busy = false;
        if (model.state == State::kHere && !model.stopped && model.waiting > 0 && !model.busy) {
          served[model.model] += model.waiting;
          model.waiting = 0, model.busy = true, model.fresh = false;
        }
        if (model.state == State::kComing && random() % 2)
          model.state = State::kHere, model.fresh = true;
        if (model.state == State::kLeaving && random() % 2) model.state = State::kAway;
      }
      const Moves moves = plan_moves(models, room, now, kPatience);
      for (const int stop : moves.stop) {
        ASSERT_EQ(models[static_cast<size_t>(stop)].state, State::kHere) << seed;
        models[static_cast<size_t>(stop)].stopped = true;
      }
      for (const int gone : moves.release) {
        Resident& model = models[static_cast<size_t>(gone)];
        ASSERT_EQ(model.state, State::kHere) << seed;
        ASSERT_FALSE(model.busy) << seed;
        model.state = State::kLeaving, model.stopped = false;
      }
      for (const int comes : moves.restore) {
        Resident& model = models[static_cast<size_t>(comes)];
        ASSERT_EQ(model.state, State::kAway) << seed;
        model.state = State::kComing;
      }
      int64_t taken = 0;
      for (const Resident& model : models) taken += model.state == State::kAway ? 0 : model.bytes;
      ASSERT_LE(taken, room) << "history " << seed << ", step " << step;
    }
    for (int m = 0; m < count; ++m)
      ASSERT_EQ(served[m], asked[static_cast<size_t>(m)]) << "history " << seed << ", model " << m;
  }
}

}  // namespace
}  // namespace obelisk::serve

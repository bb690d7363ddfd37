// What ran beside what, of times by hand.
#include "lane_report.h"

#include <gtest/gtest.h>

namespace obelisk::compiler {
namespace {

/// Kernels 0 and 1 side by side in lanes of their own, 2 behind both in the lane of 0.
Dispatching two_lanes() {
  using schedule::KernelClass;
  Dispatching made;
  made.dependencies.dag = schedule::Dag(3);
  made.dependencies.dag.add(0, 2);
  made.dependencies.dag.add(1, 2);
  for (const KernelClass kind :
       {KernelClass::kCompute, KernelClass::kMemory, KernelClass::kMemory}) {
    made.kernels.emplace_back();
    made.kernels.back().kind = kind;
  }
  made.dispatch.lanes = 2;
  made.dispatch.kernels = {{.kernel = 0, .position = 0, .lane = 0},
                           {.kernel = 1, .position = 1, .lane = 1},
                           {.kernel = 2, .position = 2, .lane = 0, .predecessors = {0, 1}}};
  return made;
}

TEST(LaneReport, ByHand) {
  // SM 0 runs two tasks of kernel 0 and then kernel 2; SM 1 runs kernel 1, two CTAs of it at once.
  const std::vector<runtime::TaskTime> times = {
      {.work = 2, .wave = 1, .sm = 0, .start_us = 11, .end_us = 14},
      {.work = 0, .wave = 0, .sm = 0, .start_us = 2, .end_us = 4},
      {.work = 0, .wave = 0, .sm = 0, .start_us = 5, .end_us = 8},
      {.work = 1, .wave = 0, .sm = 1, .start_us = 4, .end_us = 9},
      {.work = 1, .wave = 0, .sm = 1, .start_us = 6, .end_us = 10}};
  const auto report = lane_report(two_lanes(), 4, times);
  ASSERT_TRUE(report.has_value());
  EXPECT_DOUBLE_EQ(report->measured_us, 12);  // 2 to 14
  EXPECT_DOUBLE_EQ(report->critical_us, 9);   // kernel 0 or 1 takes 6, kernel 2 takes 3
  EXPECT_DOUBLE_EQ(report->overlap_us, 4);    // 4 to 8
  EXPECT_DOUBLE_EQ(report->sm_busy_share, (2 + 3 + 3 + 6) / (12.0 * 4));
  ASSERT_EQ(report->lanes.size(), 2u);
  EXPECT_EQ(report->lanes[0].kernels, 2);
  EXPECT_DOUBLE_EQ(report->lanes[0].start_us, 2);
  EXPECT_DOUBLE_EQ(report->lanes[0].end_us, 14);
  EXPECT_DOUBLE_EQ(report->lanes[0].busy_us, 6 + 3);
  EXPECT_DOUBLE_EQ(report->lanes[1].busy_us, 6);
  ASSERT_EQ(report->spans.size(), 3u);
  EXPECT_EQ(report->spans[0].kernel, 0);
  EXPECT_EQ(report->spans[1].kernel, 1);
  EXPECT_EQ(report->spans[2].kernel, 2);
}

TEST(LaneReport, OfARunThatRecordedNothingThereIsNone) {
  EXPECT_FALSE(lane_report(two_lanes(), 4, {}).has_value());
}

/// A run in which kernels begin at these times, each with a second task later on.
std::vector<runtime::TaskTime> begun(const std::vector<double>& starts) {
  std::vector<runtime::TaskTime> times;
  for (size_t k = 0; k < starts.size(); ++k)
    for (const double later : {3.0, 0.0})
      times.push_back({.work = static_cast<int>(k),
                       .start_us = starts[k] + later,
                       .end_us = starts[k] + later + 2});
  return times;
}

TEST(Priorities, OfPairsThatBecomeReadyAtOnce) {
  // 0 and 1 follow nobody, 2, 3 and 4 follow both, 5 follows one of them, 4 has the priority of 3.
  schedule::Dispatch dispatch;
  dispatch.kernels = {{.kernel = 0, .priority = -5},
                      {.kernel = 1, .priority = -4},
                      {.kernel = 2, .priority = -5, .predecessors = {0, 1}},
                      {.kernel = 3, .priority = -4, .predecessors = {1, 0}},
                      {.kernel = 4, .priority = -4, .predecessors = {0, 1}},
                      {.kernel = 5, .priority = -3, .predecessors = {0}}};
  // Pairs: 0 1, 2 3, 2 4.
  const auto orderly = begun({0, 1, 10, 11, 12, 9});
  const auto heeded = priority_report(dispatch, std::vector(20, orderly));
  EXPECT_EQ(heeded.runs, 20);
  EXPECT_EQ(heeded.pairs, 60);
  EXPECT_EQ(heeded.obeyed, 60);
  EXPECT_EQ(heeded.ties, 0);
  EXPECT_EQ(heeded.text(), "priorities: 100 % of 60 pairs began in their order\n");

  std::vector<std::vector<runtime::TaskTime>> mixed(20, orderly);
  for (int run = 0; run < 8; ++run) mixed[run] = begun({1, 0, 11, 10, 11, 0});  // none, and a tie
  const auto not_heeded = priority_report(dispatch, mixed);
  EXPECT_EQ(not_heeded.pairs, 52);
  EXPECT_EQ(not_heeded.obeyed, 36);
  EXPECT_EQ(not_heeded.ties, 8);
  EXPECT_FALSE(not_heeded.heeded());
  EXPECT_EQ(not_heeded.text(),
            "priorities: not enforceable on this driver (69 % of 52 pairs began in their order)\n");
  // 95 of 100 are an order; what is a little less is not told as 95 %.
  PriorityReport bound{.pairs = 100, .obeyed = 95};
  EXPECT_EQ(bound.text(), "priorities: 95 % of 100 pairs began in their order\n");
  bound = {.pairs = 1000, .obeyed = 949};
  EXPECT_NE(bound.text().find("not enforceable on this driver (94 %"), std::string::npos);
}

TEST(Priorities, WhatShowsNothingIsTold) {
  schedule::Dispatch dispatch;
  dispatch.kernels = {{.kernel = 0, .priority = -5}, {.kernel = 1, .priority = -4}};
  const auto same = priority_report(dispatch, {begun({4, 4})});
  EXPECT_EQ(same.pairs, 0);
  EXPECT_EQ(same.text(), "priorities: all 1 pairs began at the same time\n");
  dispatch.kernels[1].priority = -5;
  EXPECT_EQ(priority_report(dispatch, {begun({0, 1})}).text(), "");
  EXPECT_EQ(priority_report(dispatch, {}).text(), "");
}

}  // namespace
}  // namespace obelisk::compiler

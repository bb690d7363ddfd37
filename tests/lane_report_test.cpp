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

}  // namespace
}  // namespace obelisk::compiler

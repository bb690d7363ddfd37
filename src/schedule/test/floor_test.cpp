// Floors are physical, and what is reported may be nearer to what is measured than what chose.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

struct Scheduled {
  stitch::Plan plan;
  TaskGraph tasks;
  std::vector<double> floors;
  double all() const {
    double sum = 0;
    for (const double floor : floors) sum += floor;
    return sum;
  }
};

Scheduled scheduled(const std::string& body, int sms = 132, const char* target = "sm_90a") {
  const auto graph = graph::parse("graph \"g\" {\n" + body + "}");
  CHECK(graph.ok(), "{}", graph.error().text());
  const machine::Machine machine = *machine::device(target, sms);
  Scheduled made{.plan = stitch::plan(*graph, machine)};
  made.tasks = build(*graph, made.plan, machine);
  made.floors = floor_nanos(made.plan, made.tasks, machine);
  return made;
}

std::string product(const std::string& type, int64_t m, int64_t k, int64_t n) {
  return fmt::format(R"(  in %0 "x": {0}[{1},{2}]
  in %1 "w": {0}[{2},{3}]
  %2: {0}[{1},{3}] = MatMul(%0, %1)
  out %2 "y"
)",
                     type, m, k, n);
}

// 1,024 rows by 768 x 2304, f16: cuBLAS takes 7.5 us on an H200. 4,096 operations a clock and
// multiprocessor at 1.98 GHz.
TEST(Floor, AProductIsBoundByItsUnitsPeak) {
  const Scheduled half = scheduled(product("f16", 1024, 768, 2304));
  const double peak = 4096 * 1.98 * 132;
  EXPECT_NEAR(half.all(), 2.0 * 1024 * 768 * 2304 / peak, 1);
  EXPECT_LT(half.all(), 7500);
  // By multiply-adds of 32 bits: a sixteenth of that rate.
  const Scheduled single = scheduled(product("f32", 1024, 768, 2304));
  EXPECT_NEAR(single.all(), 16 * half.all(), 1);
  EXPECT_NEAR(scheduled(product("f16", 1024, 768, 2304), 66).all(), 2 * half.all(), 1);
}

// A floor is of the hardware: other tiles, lists or costs have the same.
TEST(Floor, FollowsFromNoFit) {
  const auto graph = graph::parse("graph \"g\" {\n" + product("f16", 512, 768, 768) + "}");
  ASSERT_TRUE(graph.ok());
  machine::Machine machine = *machine::gpu("sm_90a");
  const stitch::Plan plan = stitch::plan(*graph, machine);
  const TaskGraph tasks = build(*graph, plan, machine);
  const std::vector<double> before = floor_nanos(plan, tasks, machine);
  machine.costs = {};
  machine.flops_per_sm /= 10, machine.bytes_per_sm /= 10, machine.barrier = Nanos(1);
  EXPECT_EQ(floor_nanos(plan, tasks, machine), before);
}

// 268 MB in and out, of which the second-level cache may keep 63 from run to run. A softmax took
// 128 us for as many bytes (h200_memory.json).
TEST(Floor, WhatNoCacheKeepsComesFromMemory) {
  const Scheduled made = scheduled(R"(  in %0 "x": f32[8192,8192]
  %1: f32[8192,8192] = Relu(%0)
  out %1 "y"
)");
  EXPECT_NEAR(made.all(), (2.0 * 8192 * 8192 * 4 - 63e6) / (36.4 * 132), 1);
  EXPECT_LT(made.all(), 128e3);
}

// A row that is added to all rows is read once, however often it is loaded.
TEST(Floor, WhatStandsStillIsMovedOnce) {
  const Scheduled made = scheduled(R"(  in %0 "x": f32[4096,1024]
  in %1 "row": f32[1024]
  %2: f32[4096,1024] = Add(%0, %1)
  out %2 "y"
)");
  const double bytes = (2.0 * 4096 * 1024 + 1024) * 4;
  EXPECT_NEAR(made.all(), bytes / (128 * 1.98 * 132), 1);
}

// As many bytes as elements are looked up, not a whole table.
TEST(Floor, ALookUpMovesItsRows) {
  const Scheduled made = scheduled(R"(  in %0 "words": i64[128]
  in %1 "table": f32[100000,768]
  %2: f32[128,768] = Gather(%1, %0) {axis = 0}
  out %2 "y"
)");
  EXPECT_LT(made.all(), 1000);
  EXPECT_GT(made.all(), 2.0 * 128 * 768 * 4 / (128 * 1.98 * 132) - 1);
}

std::string mean(int64_t side, int64_t channels) {
  return fmt::format(R"(  in %0 "x": f16[1,{0},{0},{1}]
  const %1: i64[2] = [1, 2]
  %2: f16[1,1,1,{1}] = ReduceMean(%0, %1) {{keepdims = 1}}
  out %2 "y"
)",
                     side, channels);
}

// 46 us on an H200 (h200_predictions.json), by tiles that a cost of windows has chosen and chooses
// still.
TEST(Prediction, AMeanOfManyPixelsIsSharedByThreads) {
  const Scheduled made = scheduled(mean(112, 32));
  const Work& work = made.tasks.works.front();
  EXPECT_GT(work.predicted_nanos, 23e3);
  EXPECT_LT(work.predicted_nanos, 92e3);
  EXPECT_GT(work.task_nanos, 1e6);
  EXPECT_LE(made.all(), 46e3);
}

TEST(Prediction, IsTheCostThatChoseElsewhere) {
  for (const std::string& body : {product("f16", 128, 768, 768), product("f32", 128, 768, 768)})
    for (const char* target : {"sm_90a", "cpu"})
      for (const Work& work : scheduled(body, 8, target).tasks.works)
        EXPECT_EQ(work.predicted_nanos, work.task_nanos);
}

}  // namespace
}  // namespace obelisk::schedule

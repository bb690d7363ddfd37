// Which worker runs which task.
#include "schedule/assign_tasks.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "schedule/cost_model.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

/// Pointwise convolutions and an average pool of one picture, as of an Inception block, in one
/// kernel.
struct Block {
  machine::Machine device = *machine::gpu("sm_90a", 132);
  machine::Strategy strategy;
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;

  Block(int64_t size, int64_t channels, const std::vector<int64_t>& branches, bool class_sms) {
    strategy = strategy_for(
        device, {.granularity = machine::Granularity::kMono, .class_sms = class_sms});
    const auto x = graph.add_input("x", {DType::f16, {1, channels, size, size}});
    for (const int64_t each : branches) {
      const auto w = graph.add_constant(Tensor::allocate({DType::f16, {each, channels, 1, 1}}));
      graph.mark_output(graph.must_add(graph::Op::Conv, {x, w}),
                        fmt::format("y{}", graph.outputs().size()));
    }
    graph.mark_output(graph.must_add(graph::Op::AveragePool, {x},
                                     ops::Attrs()
                                         .set("kernel_shape", std::vector<int64_t>{3, 3})
                                         .set("pads", std::vector<int64_t>{1, 1, 1, 1})),
                      "pool");
    plan = stitch::plan(graph, device, strategy);
    tasks = build(graph, plan, device, strategy);
    const Status sound = validate(graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
  }
  /// Workers that have tasks of both classes in one wave.
  int mixed() const {
    int count = 0;
    for (const auto& list : tasks.lists) {
      std::map<uint32_t, std::set<KernelClass>> of;  // by wave
      for (const ObkTask& task : list)
        of[task.wave].insert(
            class_of(graph, plan.groups[tasks.works[task.work].group], device).kind);
      count += std::any_of(of.begin(), of.end(),
                           [](const auto& wave) { return wave.second.size() > 1; });
    }
    return count;
  }
  /// What the worker with most to do takes.
  int64_t longest() const {
    int64_t most = 0;
    for (const auto& list : tasks.lists) {
      int64_t sum = 0;
      for (const ObkTask& task : list) sum += task.nanos;
      most = std::max(most, sum);
    }
    return most;
  }
};

TEST(AssignTasks, ClassesOfAWaveRunOnDisjointWorkers) {
  int changed = 0;
  for (const auto& [size, channels, branches] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{
           {35, 192, {64, 48, 64}}, {28, 256, {128, 32, 128}}, {8, 1280, {320, 384, 448}}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", channels, size, size));
    const Block apart(size, channels, branches, true), mixed(size, channels, branches, false);
    EXPECT_LE(static_cast<double>(apart.longest()),
              static_cast<double>(mixed.longest()) * machine::thresholds::kLongerApart);

    if (apart.mixed() == mixed.mixed()) continue;
    EXPECT_EQ(apart.mixed(), 0);
    ++changed;
  }
  EXPECT_GT(changed, 0);
}

}  // namespace
}  // namespace obelisk::schedule

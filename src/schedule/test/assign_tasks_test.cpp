// Which worker runs which task.
#include <gtest/gtest.h>

#include <map>
#include <set>

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

  Block(int64_t size, int64_t channels, const std::vector<int64_t>& branches,
        machine::Placement placement = machine::Placement::kWaves)
      : strategy(strategy_for(
            device, {.granularity = machine::Granularity::kMono, .placement = placement})) {
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
  /// Workers that have tasks of the pool and of a convolution.
  int mixed() const {
    int count = 0;
    for (const auto& list : tasks.lists) {
      std::set<bool> pools;
      for (const ObkTask& task : list)
        pools.insert(plan.groups[tasks.works[task.work].group].kind ==
                     stitch::GroupKind::kStitched);
      count += pools.size() > 1;
    }
    return count;
  }
};

// Asked to, lists keep works that compute and works that move memory apart, unless a wave would
// take longer than kLongerApart allows; tasks stay the same.
TEST(AssignTasks, ClassesOfAWaveRunOnDisjointWorkers) {
  int changed = 0;
  for (const auto& [size, channels, branches] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{
           {35, 192, {64, 48, 64}}, {28, 256, {128, 32, 128}}, {8, 1280, {320, 384, 448}}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", channels, size, size));
    const Block apart(size, channels, branches, machine::Placement::kClasses),
        mixed(size, channels, branches);
    EXPECT_LE(static_cast<double>(apart.longest()),
              static_cast<double>(mixed.longest()) * machine::thresholds::kLongerApart);
    EXPECT_EQ(apart.tasks.task_count(), mixed.tasks.task_count());
    if (apart.mixed() == mixed.mixed()) continue;
    EXPECT_EQ(apart.mixed(), 0);
    ++changed;
  }
  EXPECT_GT(changed, 0);
}

// Of lanes each work of a wave has workers of its own.
TEST(AssignTasks, LanesOfAWaveRunOnDisjointWorkers) {
  int apart = 0;
  for (const int64_t size : {28, 35, 56}) {
    SCOPED_TRACE(size);
    const Block lanes(size, 192, {64, 48, 64}, machine::Placement::kLanes),
        mixed(size, 192, {64, 48, 64});
    EXPECT_LE(static_cast<double>(lanes.longest()),
              static_cast<double>(mixed.longest()) * machine::thresholds::kLongerApart);
    EXPECT_EQ(lanes.tasks.task_count(), mixed.tasks.task_count());
    size_t most = 0;
    for (const auto& list : lanes.tasks.lists) {
      std::set<uint32_t> works;
      for (const ObkTask& task : list) works.insert(task.work);
      most = std::max(most, works.size());
    }
    apart += most == 1;
  }
  EXPECT_GT(apart, 0);
}

// One after another, each work has a wave of its own and all workers.
TEST(AssignTasks, SequentialWorksHaveAWaveEach) {
  const Block one_by_one(28, 256, {128, 32, 128}, machine::Placement::kSequential);
  EXPECT_EQ(one_by_one.tasks.waves, 4);
  for (size_t w = 0; w < one_by_one.tasks.works.size(); ++w)
    EXPECT_EQ(one_by_one.tasks.works[w].wave, static_cast<int>(w));
}

// Branches of one convolution beside one of three: they run where they lengthen a wave least, not
// all in the first.
TEST(AssignWaves, WorksThatHaveTimeRunWhereTheyLengthenLeast) {
  const machine::Machine device = *machine::gpu("sm_90a", 132);
  std::map<machine::Placement, int> wave, waves;  // of all works, added; how many
  for (const auto placement :
       {machine::Placement::kWaves, machine::Placement::kCritical, machine::Placement::kQuicker}) {
    graph::Graph graph;
    const auto conv = [&](graph::ValueId x, int64_t channels) {
      const Type& type = graph.type(x);
      const auto w =
          graph.add_constant(Tensor::allocate({DType::f16, {channels, type.shape[1], 1, 1}}));
      return graph.must_add(graph::Op::Conv, {x, w});
    };
    const auto x = graph.add_input("x", {DType::f16, {1, 512, 14, 14}});
    graph.mark_output(conv(conv(conv(x, 256), 256), 256), "long");
    for (const char* name : {"short a", "short b", "short c"})
      graph.mark_output(conv(x, 256), name);
    const machine::Strategy strategy =
        strategy_for(device, {.granularity = machine::Granularity::kMono, .placement = placement});
    const stitch::Plan plan = stitch::plan(graph, device, strategy);
    const TaskGraph tasks = build(graph, plan, device, strategy);
    const Status sound = validate(graph, plan, tasks);
    ASSERT_TRUE(sound.ok()) << sound.error().text();
    waves[placement] = tasks.waves;
    EXPECT_EQ(tasks.compared.has_value(), placement == machine::Placement::kQuicker);
    if (tasks.compared) {
      EXPECT_LT(tasks.compared->put_off, tasks.compared->early);
    }
    for (const Work& work : tasks.works) wave[placement] += work.wave;
  }
  EXPECT_EQ(waves[machine::Placement::kWaves], 3);
  EXPECT_EQ(waves[machine::Placement::kCritical], 3);
  ASSERT_EQ(wave.size(), 3u);
  EXPECT_EQ(wave[machine::Placement::kWaves], 1 + 2);  // of the long branch
  EXPECT_GT(wave[machine::Placement::kCritical], 1 + 2);
  EXPECT_EQ(wave[machine::Placement::kQuicker], wave[machine::Placement::kCritical]);
}

// Where nothing can be put off, works stay as early as they may run.
TEST(AssignWaves, WhatGainsNothingIsNotPutOff) {
  const Block block(28, 256, {128, 32, 128}, machine::Placement::kQuicker),
      early(28, 256, {128, 32, 128});
  ASSERT_TRUE(block.tasks.compared.has_value());
  EXPECT_EQ(block.tasks.compared->early, block.tasks.compared->put_off);
  for (size_t w = 0; w < early.tasks.works.size(); ++w)
    EXPECT_EQ(block.tasks.works[w].wave, early.tasks.works[w].wave);
}

// Works of a wave are cut for shares of the workers (choose_tiles.h), longest first: what moves
// memory runs beside what multiplies, not behind it.
TEST(AssignTasks, APoolRunsBesideConvolutionsOnWorkersOfItsOwn) {
  for (const auto& [size, channels, branches] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>{
           {35, 192, {64, 48, 64}}, {17, 768, {192, 128, 128}}, {14, 512, {160, 112, 24}}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", channels, size, size));
    const Block block(size, channels, branches);
    EXPECT_EQ(block.tasks.waves, 1);
    EXPECT_EQ(block.mixed(), 0);
    EXPECT_GT(block.tasks.task_count(), 60);
  }
}

// A copy beside works that fill the workers is shared out, too: not a task of a single worker.
TEST(AssignTasks, ACopyHasItsShareOfWorkersThatAreBusy) {
  const machine::Machine device = *machine::gpu("sm_90a", 132);
  const machine::Strategy strategy =
      strategy_for(device, {.granularity = machine::Granularity::kMono});
  graph::Graph graph;
  const auto x = graph.add_input("x", {DType::f16, {8192, 2048}}),
             y = graph.add_input("y", {DType::f16, {4096, 4096}});
  Tensor last = Tensor::allocate({DType::i64, {1}});
  last.set_int(0, -1);
  const auto axes = graph.add_constant(std::move(last));
  const auto most = graph.must_add(graph::Op::ReduceMax, {x, axes});
  graph.mark_output(graph.must_add(graph::Op::Sub, {x, most}), "e");
  graph.mark_output(graph.must_add(graph::Op::Transpose, {y},
                                   ops::Attrs().set("perm", std::vector<int64_t>{1, 0})),
                    "t");
  const stitch::Plan plan = stitch::plan(graph, device, strategy);
  const TaskGraph tasks = build(graph, plan, device, strategy);
  ASSERT_EQ(tasks.works.size(), 2u);
  ASSERT_EQ(tasks.waves, 1);
  int64_t all = 0, longest = 0;
  for (const auto& list : tasks.lists) {
    int64_t sum = 0;
    for (const ObkTask& task : list) sum += task.nanos;
    all += sum, longest = std::max(longest, sum);
  }
  EXPECT_LT(longest * device.sms, 4 * all);
}

}  // namespace
}  // namespace obelisk::schedule

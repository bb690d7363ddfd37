// Random graphs, half of them of moves, planned for random machines: every table passes the
// validator and a shadow run, and so does any other assignment of its tasks to SMs.
// OBELISK_SCHEDULES=N tries N of them from OBELISK_SEED on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>

#include "passes/passes.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

int from_environment(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

/// Each task to any SM, in any order within its wave.
void assign_anew(TaskGraph& tasks, std::mt19937& random) {
  std::vector<ObkTask> all;
  for (auto& list : tasks.lists) {
    all.insert(all.end(), list.begin(), list.end());
    list.clear();
  }
  std::shuffle(all.begin(), all.end(), random);
  std::stable_sort(all.begin(), all.end(),
                   [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
  for (const ObkTask& task : all) tasks.lists[random() % tasks.lists.size()].push_back(task);
}

/// Now and then a float input is updated, for an output in its place; others read the old value,
/// and the new one has a reader, too, which may read the old one as well.
graph::Graph updated(graph::Graph graph, std::mt19937& random) {
  const std::vector<ValueId> inputs = graph.inputs();
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Type type = graph.type(inputs[k]);
    if (!is_float(type.dtype) || bits(type.dtype) < 8 || type.shape.empty() || type.count() == 0 ||
        random() % 2 == 0)
      continue;
    Type rows = type;
    rows.shape[0] = 2;
    const ValueId at = graph.add_input(fmt::format("at {}", k), {DType::i64, {2, 1}});
    const ValueId now = graph.must_add(
        ops::Op::ScatterND,
        {inputs[k], at, graph.add_input(fmt::format("rows {}", k), std::move(rows))});
    const ValueId read = random() % 3 == 0 ? graph.must_add(ops::Op::Mul, {now, inputs[k]})
                                           : graph.must_add(ops::Op::Abs, {now});
    graph.mark_output(now, fmt::format("now {}", k), static_cast<int>(k));
    graph.mark_output(read, fmt::format("read {}", k));
  }
  return graph;
}

TEST(RandomSchedules, PassTheValidator) {
  const int first = from_environment("OBELISK_SEED", 1),
            count = from_environment("OBELISK_SCHEDULES", 1000);
  const char* const machines[] = {"cpu", "sm_90a", "sm_80", "sm_89", "sm_100a"};
  int in_place = 0, staged = 0;
  for (int seed = first; seed < first + count; ++seed) {
    std::mt19937 random(seed);
    graph::Graph graph = graph::random_graph(seed, {.moves = seed % 2 == 0 ? 60 : 0});
    if (seed % 5 == 0) graph = updated(std::move(graph), random);
    for (const passes::Pass& pass : passes::table()) {
      auto next = pass.run(std::move(graph));
      ASSERT_TRUE(next.ok()) << "seed " << seed << ", " << pass.name << ": " << next.error().text();
      graph = std::move(*next);
    }
    auto device = machine::device(machines[random() % std::size(machines)],
                                  1 + static_cast<int>(random() % 148));
    ASSERT_TRUE(device.ok());
    machine::Strategy strategy;
    if (device->family ==
        machine::Family::kCuda) {  // a graph of kernels, one kernel, one kernel without barriers
      const int form = static_cast<int>(random() % 3);
      const auto granularity =
          form == 0 ? machine::Granularity::kStitch : machine::Granularity::kMono;
      const auto placement = static_cast<machine::Placement>(random() % 6);
      strategy = strategy_for(
          *device, {.granularity = granularity, .dataflow = form == 2, .placement = placement});
    }
    stitch::Options options;
    options.stitch = random() % 4 != 0, options.tiles = random() % 4 != 0;
    const stitch::Plan plan = stitch::plan(graph, *device, strategy, options);
    TaskGraph tasks = build(graph, plan, *device, strategy);
    for (const stitch::InPlace& each : plan.in_place) ++(each.group >= 0 ? in_place : staged);
    if (getenv("OBELISK_SHOW"))
      fmt::print("{}\n{}\n{}\n", graph::print(graph), stitch::print(graph, plan, false),
                 print(graph, plan, tasks));
    Status sound = validate(graph, plan, tasks);
    ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
    sound = shadow_run(graph, plan, tasks);
    ASSERT_TRUE(sound.ok()) << "seed " << seed << ", " << device->name << ": "
                            << sound.error().text();
    if (tasks.dataflow) continue;  // its lists keep their order
    assign_anew(tasks, random);
    sound = validate(graph, plan, tasks);
    ASSERT_TRUE(sound.ok()) << "seed " << seed << ", assigned anew: " << sound.error().text();
    sound = shadow_run(graph, plan, tasks);
    ASSERT_TRUE(sound.ok()) << "seed " << seed << ", assigned anew: " << sound.error().text();
  }
  if (count >= 1000) {
    EXPECT_GT(in_place, 50);
    EXPECT_GT(staged, 20);
  }
}

}  // namespace
}  // namespace obelisk::schedule

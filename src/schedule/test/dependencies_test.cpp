// True dependencies of works: enough of them, none too many, refused when tampered with; and an
// arena that is placed by them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>

#include "passes/passes.h"
#include "schedule/schedule.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule {
namespace {

struct Table {
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;
  machine::Machine machine;
};

Table table_of(graph::Graph graph, const std::string& name, bool stitched = true) {
  auto device = machine::device(name);
  CHECK(device.ok());
  machine::Strategy strategy;
  if (device->family == machine::Family::kCuda)
    strategy = strategy_for(*device, {.granularity = machine::Granularity::kStitch});
  stitch::Options options;
  options.stitch = stitched;
  Table made{.graph = std::move(graph), .machine = *device};
  made.plan = stitch::plan(made.graph, *device, strategy, options);
  made.tasks = build(made.graph, made.plan, *device, strategy);
  return made;
}

// Two branches of unequal length whose ends a concatenation joins: its pieces are stored in its own
// memory.
constexpr const char* kBranches = R"(graph "g" {
  in %0 "x": f32[64,128]
  in %1 "w": f32[128,128]
  const %9: i64[1] = [-1]
  %2: f32[64,128] = MatMul(%0, %1)
  %3: f32[64,128] = MatMul(%2, %1)
  %4: f32[64,128] = MatMul(%3, %1)
  %5: f32[64,128] = MatMul(%0, %1)
  %6: f32[64,256] = Concat(%4, %5) {axis = 1}
  %7: f32[64,1] = ReduceMax(%6, %9) {keepdims = 1}
  %8: f32[64,256] = Sub(%6, %7)
  out %8 "z"
})";

Table branches() {
  auto graph = graph::parse(kBranches);
  CHECK(graph.ok(), "{}", graph.error().text());
  return table_of(std::move(*graph), "sm_90a");
}

std::string said(const Table& table, const Dag& dag) {
  const Status sound = validate_order(table.graph, table.plan, table.tasks, dag);
  return sound.ok()
             ? "nothing"
             : sound.error().message.substr(std::string("the dependencies are refused: ").size());
}

TEST(Dependencies, AReaderOfAConcatenationFollowsAllWhoStoreItsPieces) {
  const Table table = branches();
  const auto made = value_dependencies(table.graph, table.plan, table.tasks);
  ASSERT_TRUE(made.ok()) << made.error().text();
  // Works: three products in a row, one beside them, one group that reads both.
  ASSERT_EQ(made->dag.size(), 5) << print(table.graph, table.plan, table.tasks);
  EXPECT_EQ(print(*made), R"(5 works, 4 dependencies, 4 of them not implied by others
work 0 follows nobody
work 1 follows 0 (value)
work 2 follows 1 (value)
work 3 follows nobody
work 4 follows 2 (value) 3 (value)
)");
  EXPECT_EQ(said(table, made->dag), "nothing");
}

TEST(Dependencies, WhatWasTamperedWithIsRefused) {
  Table table = branches();
  auto made = value_dependencies(table.graph, table.plan, table.tasks);
  ASSERT_TRUE(made.ok());
  Dag wrong = made->dag;
  wrong.remove(3, 4);
  EXPECT_TRUE(std::regex_match(
      said(table, wrong),
      std::regex(R"(work 4 reads value %\d+ but does not follow work 3, which stores it)")))
      << said(table, wrong);
  wrong = made->dag;
  wrong.remove(0, 1), wrong.add(1, 0);
  EXPECT_TRUE(std::regex_match(
      said(table, wrong),
      std::regex(R"(work 1 reads value %\d+ but does not follow work 0, which stores it)")))
      << said(table, wrong);
  wrong = made->dag;
  wrong.add(4, 0);
  EXPECT_EQ(said(table, wrong), "works wait for each other: 0 -> 1 -> 2 -> 4 -> 0");
  EXPECT_EQ(said(table, Dag(4)), "they are of 4 works, of 5");
  // The value that work 0 leaves lies where work 3, beside it, writes the concatenation's piece.
  const std::vector<BufferUse> uses = arena_uses(table.graph, table.plan, table.tasks);
  for (const BufferUse& use : uses) table.tasks.buffers[use.buffer].offset = {0};
  EXPECT_TRUE(std::regex_match(
      said(table, made->dag),
      std::regex(R"(value %\d+ and value %\d+ share bytes, but work \d does not follow work \d)")))
      << said(table, made->dag);
}

// Who updates an input in place follows its readers, and readers of the new value follow it.
TEST(Dependencies, WhoOverwritesAnInputFollowsItsReaders) {
  auto graph = graph::parse(R"(graph "g" {
  in %0 "past": f32[2,64,8]
  in %1 "row": i64[2,1,8]
  in %2 "new": f32[2,1,8]
  const %3: i64[1] = [1]
  %4: f32[2,1,8] = ReduceSum(%0, %3) {keepdims = 1}
  %5: f32[2,64,8] = ScatterElements(%0, %1, %2) {axis = 1}
  %6: f32[2,1,8] = ReduceMax(%5, %3) {keepdims = 1}
  out %5 "now" in_place_of "past"
  out %4 "was"
  out %6 "is"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const Table table = table_of(std::move(*graph), "sm_90a");
  const auto made = value_dependencies(table.graph, table.plan, table.tasks);
  ASSERT_TRUE(made.ok()) << made.error().text();
  EXPECT_EQ(print(*made), R"(3 works, 2 dependencies, 2 of them not implied by others
work 0 follows nobody
work 1 follows 0 (reuse)
work 2 follows 1 (value)
)");
  EXPECT_EQ(said(table, made->dag), "nothing");
  Dag wrong = made->dag;
  wrong.remove(0, 1);
  EXPECT_EQ(said(table, wrong),
            "work 1 overwrites input %0 but does not follow work 0, which reads it");
}

/// A random graph after the passes, planned for a random machine.
Table random_table(int seed) {
  std::mt19937 random(seed);
  graph::Graph graph = graph::random_graph(seed, {.moves = seed % 2 == 0 ? 60 : 0});
  for (const passes::Pass& pass : passes::table()) {
    auto next = pass.run(std::move(graph));
    CHECK(next.ok(), "{}", next.error().text());
    graph = std::move(*next);
  }
  const char* const machines[] = {"cpu", "sm_90a", "sm_80"};
  return table_of(std::move(graph), machines[random() % 3], random() % 4 != 0);
}

TEST(Dependencies, OfRandomTablesEachEdgeIsNeeded) {
  int reuses = 0, edges = 0, named = 0;
  for (int seed = 1; seed <= 150; ++seed) {
    const Table table = random_table(seed);
    const auto made = true_dependencies(table.graph, table.plan, table.tasks);
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.error().text();
    ASSERT_EQ(said(table, made->dag), "nothing") << "seed " << seed;
    // Waves are one way to run it.
    for (const Dependency& edge : made->edges) {
      ASSERT_LT(table.tasks.works[edge.from].wave, table.tasks.works[edge.to].wave)
          << "seed " << seed;
      reuses += edge.why == Dependency::Why::kReuse;
    }
    // By values they are what the groups say that they read, but for a piece of a concatenation
    // whose elements no coordinate meets: its buffer is none of the work's.
    const auto values = value_dependencies(table.graph, table.plan, table.tasks);
    ASSERT_TRUE(values.ok());
    const auto leads = Reachability::make(values->dag);
    for (size_t w = 0; w < table.tasks.works.size(); ++w)
      for (const int before : table.plan.groups[table.tasks.works[w].group].after) {
        const auto stored = accesses_of(table.graph, table.plan, table.tasks.works[before]).stores;
        const auto& mine = table.tasks.works[w].buffers;
        const bool names = std::any_of(stored.begin(), stored.end(), [&](const WorkAccess& store) {
          return std::find(mine.begin(), mine.end(),
                           table.tasks.works[before].buffers[store.slot]) != mine.end();
        });
        ASSERT_TRUE((*leads)(before, static_cast<int>(w)) || !names)
            << "seed " << seed << ", work " << w << " after " << before;
        named += names;
      }
    // Without any one of the edges that no path makes needless it is refused, and so it is with a
    // value's turned round. (Turned round, reuse may be as good: then the bytes are first used by
    // the other buffer.)
    const Dag reduced = transitive_reduction(made->dag, *Reachability::make(made->dag));
    ASSERT_EQ(said(table, reduced), "nothing") << "seed " << seed;
    for (int from = 0; from < reduced.size(); ++from)
      for (const int to : reduced.after[from]) {
        Dag wrong = reduced;
        wrong.remove(from, to);
        ASSERT_NE(said(table, wrong), "nothing")
            << "seed " << seed << " without " << from << " -> " << to;
        if ((*leads)(from, to)) wrong.add(to, from);
        ASSERT_NE(said(table, wrong), "nothing")
            << "seed " << seed << " with " << to << " -> " << from;
        ++edges;
      }
  }
  EXPECT_GT(reuses, 50);
  EXPECT_GT(edges, 500);
  EXPECT_GT(named, 500);
}

// A chain of ten products, and beside it five branches of one product each that only the end reads.
std::string chain_and_branches() {
  std::string text = R"(graph "g" {
  in %0 "x": f32[64,128]
  in %1 "w": f32[128,128]
  const %2: i64[1] = [-1]
)";
  int next = 3, last = 0;
  const auto product = [&](int of) {
    text += fmt::format("  %{}: f32[64,128] = MatMul(%{}, %1)\n", next, of);
    return next++;
  };
  for (int k = 0; k < 10; ++k) last = product(last);
  for (int k = 0; k < 5; ++k) {
    const int branch = product(0);
    text += fmt::format("  %{}: f32[64,1] = ReduceMax(%{}, %2) {{keepdims = 1}}\n", next, branch);
    text += fmt::format("  %{}: f32[64,128] = Add(%{}, %{})\n", next + 1, last, next);
    last = next + 1, next += 2;
  }
  return text + fmt::format("  out %{} \"z\"\n}}", last);
}

TEST(Dependencies, BranchesWaitForEachOtherWhereThatSavesMemoryAndCostsNoTime) {
  auto graph = graph::parse(chain_and_branches());
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  Table table = table_of(std::move(*graph), "sm_90a", false);
  const auto values = value_dependencies(table.graph, table.plan, table.tasks);
  ASSERT_TRUE(values.ok());
  ASSERT_TRUE(place_by_order(table.graph, table.plan, table.machine, table.tasks).ok());
  const auto all = true_dependencies(table.graph, table.plan, table.tasks);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(said(table, all->dag), "nothing");
  EXPECT_NE(said(table, values->dag), "nothing");  // it is the edges of reuse that keep them apart
  // Of 32 KiB: two of the chain's, and of the five branches' no more than three at once.
  EXPECT_LE(table.tasks.arena.count, 5 * (32 << 10) + (4 << 10)) << print(*all);
  EXPECT_TRUE(validate(table.graph, table.plan, table.tasks).ok());
  EXPECT_TRUE(shadow_run(table.graph, table.plan, table.tasks).ok());
  const int64_t with = table.tasks.arena.count;
  ASSERT_TRUE(place_by_order(table.graph, table.plan, table.machine, table.tasks, false).ok());
  EXPECT_EQ(said(table, values->dag), "nothing");  // values alone keep them apart
  EXPECT_GT(table.tasks.arena.count, with);
  EXPECT_TRUE(shadow_run(table.graph, table.plan, table.tasks).ok());
}

/// The longest path of kernels, a node of a graph each.
double critical_of(const Table& table, const Dag& dag) {
  std::vector<double> nanos;
  for (const Need& need : kernel_needs(table.plan, table.tasks, table.machine))
    nanos.push_back(std::round(need.nanos + table.machine.costs.graph_node));
  return longest_paths(dag, sorted_topologically(dag), nanos).critical;
}

TEST(Dependencies, AnArenaThatIsPlacedByThemIsSoundAndHardlyLengthensPaths) {
  int64_t by_order = 0, apart = 0;
  int added = 0, refused = 0;
  for (int seed = 1; seed <= 1000; ++seed) {
    Table table = random_table(seed);
    const auto values = value_dependencies(table.graph, table.plan, table.tasks);
    ASSERT_TRUE(values.ok());
    Dag before = values->dag;
    for (int work = 0; work < before.size(); ++work)
      for (const int other : table.plan.groups[table.tasks.works[work].group].after)
        before.add(other, work);
    const Status placed = place_by_order(table.graph, table.plan, table.machine, table.tasks);
    ASSERT_TRUE(placed.ok()) << placed.error().text();
    const auto all = true_dependencies(table.graph, table.plan, table.tasks);
    ASSERT_TRUE(all.ok());
    ASSERT_EQ(said(table, all->dag), "nothing") << "seed " << seed;
    ASSERT_LE(critical_of(table, all->dag),
              machine::thresholds::kLongerForMemory * critical_of(table, before))
        << "seed " << seed;
    // Without an edge that the plan added it is refused.
    const auto leads = Reachability::make(values->dag);
    const Dag reduced = transitive_reduction(all->dag, *Reachability::make(all->dag));
    for (int from = 0; from < reduced.size(); ++from)
      for (const int to : reduced.after[from]) {
        if ((*leads)(from, to)) continue;
        ++added;
        Dag wrong = reduced;
        wrong.remove(from, to);
        ASSERT_NE(said(table, wrong), "nothing")
            << "seed " << seed << " without " << from << " -> " << to;
        ++refused;
      }
    // It is as sound by waves, and every read finds its element.
    Status sound = validate(table.graph, table.plan, table.tasks);
    ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
    if (seed <= 150) {
      sound = shadow_run(table.graph, table.plan, table.tasks);
      ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
    }
    for (const Buffer& buffer : table.tasks.buffers)
      if (buffer.kind == BufferKind::kArena) apart += (buffer.size.count + 63) / 64 * 64;
    by_order += table.tasks.arena.count;
  }
  EXPECT_LT(by_order, apart);  // reuse does happen
  EXPECT_GT(added, 100);
  EXPECT_EQ(refused, added);
}

}  // namespace
}  // namespace obelisk::schedule

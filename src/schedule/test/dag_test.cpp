// Partial orders of works, compared with walks along the edges.
#include <gtest/gtest.h>

#include "schedule/dag.h"
#include "schedule/test/orders.h"

namespace obelisk::schedule {
namespace {

TEST(Dag, ReachabilityAndReductionAreThoseOfWalks) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 500; ++turn) {
    Dag dag = random_dag(random, 90);
    const auto reaches = Reachability::make(dag);
    ASSERT_TRUE(reaches.ok());
    const Dag reduced = transitive_reduction(dag, *reaches);
    for (int from = 0; from < dag.size(); ++from) {
      const std::vector<bool> met = walked(dag, from);
      ASSERT_EQ(met, walked(reduced, from));
      for (int to = 0; to < dag.size(); ++to) ASSERT_EQ((*reaches)(from, to), met[to]);
    }
    for (int from = 0; from < dag.size(); ++from)  // no edge of it is needless
      for (const int to : reduced.after[from]) {
        Dag without = reduced;
        ASSERT_TRUE(without.remove(from, to));
        ASSERT_FALSE(walked(without, from)[to]);
      }
  }
}

TEST(Dag, OrdersFollowEdgesAndCyclesAreRefusedByName) {
  Dag dag(5);
  dag.add(0, 3), dag.add(3, 1), dag.add(1, 4);
  EXPECT_FALSE(dag.add(0, 3));
  const auto order = topological_order(dag);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(*order, (std::vector<int>{0, 2, 3, 1, 4}));
  EXPECT_TRUE(is_topological(dag, *order));
  for (const std::vector<int>& wrong :
       {std::vector<int>{0, 2, 1, 3, 4}, {0, 2, 3, 1}, {0, 0, 3, 1, 4}, {0, 5, 3, 1, 4}})
    EXPECT_FALSE(is_topological(dag, wrong));
  dag.add(4, 3);
  EXPECT_EQ(topological_order(dag).error().message,
            "the dependencies are refused: works wait for each other: 1 -> 4 -> 3 -> 1");
  EXPECT_EQ(Reachability::make(dag).error().message, topological_order(dag).error().message);
}

TEST(Dag, LongestPaths) {
  Dag dag(4);  // 0 -> 1 -> 3, 2 -> 3
  dag.add(0, 1), dag.add(1, 3), dag.add(2, 3);
  const LongestPaths paths = longest_paths(dag, {0, 1, 2, 3}, {1, 2, 10, 4});
  EXPECT_EQ(paths.until, (std::vector<double>{1, 3, 10, 14}));
  EXPECT_EQ(paths.from, (std::vector<double>{7, 6, 14, 4}));
  EXPECT_EQ(paths.critical, 14);
}

}  // namespace
}  // namespace obelisk::schedule

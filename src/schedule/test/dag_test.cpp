// Partial orders of works, where buffers lie under one, compared with walks along the edges.
#include <gtest/gtest.h>

#include <random>

#include "schedule/dag.h"
#include "schedule/dispatch.h"
#include "schedule/partial_order_places.h"
#include "schedule/places.h"
#include "schedule/test/orders.h"

namespace obelisk::schedule {
namespace {

/// Whom a walk along the edges meets.
std::vector<bool> walked(const Dag& dag, int from) {
  std::vector<bool> met(dag.size(), false);
  std::vector<int> left{from};
  while (!left.empty()) {
    const int at = left.back();
    left.pop_back();
    for (const int next : dag.after[at])
      if (!met[next]) met[next] = true, left.push_back(next);
  }
  return met;
}

Dag random_dag(std::mt19937& random, int most) {
  const int count = 1 + static_cast<int>(random() % most);
  std::vector<int> number(count);  // edges do not follow the numbers
  for (int k = 0; k < count; ++k) number[k] = k;
  std::shuffle(number.begin(), number.end(), random);
  Dag dag(count);
  const int edges = static_cast<int>(random() % (2 * count + 1));
  for (int k = 0; k < edges; ++k) {
    const int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
    if (a != b) dag.add(number[std::min(a, b)], number[std::max(a, b)]);
  }
  return dag;
}

/// Each buffer has a writer; some of those that follow it read it.
std::vector<Used> random_uses(std::mt19937& random, const Dag& dag) {
  std::vector<Used> all;
  for (int work = 0; work < dag.size(); ++work) {
    Used one{.size = 1 + static_cast<int64_t>(random() % 1000), .users = {work}};
    const std::vector<bool> met = walked(dag, work);
    for (int other = 0; other < dag.size(); ++other)
      if (met[other] && random() % 3 == 0) one.users.push_back(other);
    std::sort(one.users.begin(), one.users.end());
    all.push_back(one);
  }
  return all;
}

/// Of two that share bytes, all uses of one precede all uses of the other: by walks.
void expect_apart(const Dag& dag, const std::vector<Used>& all, int64_t bytes) {
  std::vector<std::vector<bool>> leads;
  for (int work = 0; work < dag.size(); ++work) leads.push_back(walked(dag, work));
  const auto before = [&](const Used& a, const Used& b) {
    for (const int from : a.users)
      for (const int to : b.users)
        if (!leads[from][to]) return false;
    return true;
  };
  for (size_t a = 0; a < all.size(); ++a) {
    ASSERT_GE(all[a].offset, 0);
    ASSERT_LE(all[a].offset + all[a].size, bytes);
    for (size_t b = a + 1; b < all.size(); ++b)
      if (all[a].offset < all[b].offset + all[b].size &&
          all[b].offset < all[a].offset + all[a].size) {
        ASSERT_TRUE(before(all[a], all[b]) || before(all[b], all[a])) << a << " and " << b;
      }
  }
}

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

TEST(PartialOrderPlaces, BuffersOfRandomOrdersStayApart) {
  std::mt19937 random(11);
  for (int turn = 0; turn < 400; ++turn) {
    Dag dag = random_dag(random, 40);
    std::vector<Used> all = random_uses(random, dag);
    const auto reaches = Reachability::make(dag);
    ASSERT_TRUE(reaches.ok());
    const int64_t bytes = place_used(all, *reaches, 64);
    expect_apart(dag, all, bytes);
  }
}

TEST(PartialOrderPlaces, WhatFollowsReusesAndWhatRunsBesideDoesNot) {
  Dag chain(6), beside(6);
  for (int k = 0; k + 1 < 6; ++k) chain.add(k, k + 1);
  std::vector<Used> all;
  for (int k = 0; k + 1 < 6; ++k) all.push_back({.size = 640, .users = {k, k + 1}});
  EXPECT_EQ(place_used(all, *Reachability::make(chain), 64), 2 * 640);
  std::vector<Used> alone;
  for (int k = 0; k < 6; ++k) alone.push_back({.size = 640, .users = {k}});
  EXPECT_EQ(place_used(alone, *Reachability::make(beside), 64), 6 * 640);
}

/// Cells as NASNet-A's: five blocks, each adds two of: a separable convolution (twice a depthwise,
/// a pointwise, a ReLU in place of which the reader takes it), a pooling, or the cell's inputs as
/// they are. The cell's output holds all five sums; it reads the two cells before.
struct Cells {
  Dag dag;
  std::vector<Used> all;
  std::vector<double> nanos;
};
Cells cells(std::mt19937& random, int count) {
  struct Work {
    std::vector<int> reads;
    int into;
    double nanos;
  };
  std::vector<Work> works;
  std::vector<int64_t> sizes;
  const auto buffer = [&](int64_t size) {
    return sizes.push_back(size), static_cast<int>(sizes.size()) - 1;
  };
  const auto work = [&](std::vector<int> reads, int into, double nanos) {
    works.push_back({std::move(reads), into, nanos});
  };
  int64_t size = 64 * 4096;
  int before = buffer(size), last = buffer(size);
  work({}, before, 1), work({before}, last, 1);
  for (int cell = 0; cell < count; ++cell) {
    if (cell == count / 3 || cell == 2 * count / 3)
      size /= 2;  // a reduction: half the pixels' area, twice the channels
    const int left = buffer(size), right = buffer(size),
              out = buffer(5 * size);  // 1x1 convolutions of both inputs come first
    work({before}, left, 4), work({last}, right, 4);
    for (int block = 0; block < 5; ++block) {
      std::vector<int> sum;
      for (int side = 0; side < 2; ++side) {
        int value = random() % 2 == 0 ? left : right;
        const int kind = static_cast<int>(random() % 4);
        if (kind == 0) {
          const int pooled = buffer(size);
          work({value}, pooled, 1.5), value = pooled;
        } else if (kind != 1) {
          const double taps = random() % 2 == 0 ? 3 : 5;
          for (int twice = 0; twice < 2; ++twice) {
            const int depth = buffer(size), point = buffer(size);
            work({value}, depth, taps / 2), work({depth}, point, 3), value = point;
          }
        }
        sum.push_back(value);
      }
      work(sum, out, 1);
    }
    before = last, last = out;
  }
  Cells made{Dag(static_cast<int>(works.size())), {}, {}};
  std::vector<std::vector<int>> writers(sizes.size());
  for (const int64_t each : sizes) made.all.push_back({.size = each});
  for (size_t w = 0; w < works.size(); ++w) {
    const int number = static_cast<int>(w);
    made.nanos.push_back(works[w].nanos);
    for (const int read : works[w].reads) {
      for (const int writer : writers[read]) made.dag.add(writer, number);
      if (made.all[read].users.back() != number) made.all[read].users.push_back(number);
    }
    writers[works[w].into].push_back(number);
    made.all[works[w].into].users.push_back(number);
  }
  return made;
}

/// The memory that kernels of two lanes need, in the order of the program.
int64_t bytes_of_two_lanes(const Cells& net) {
  std::vector<Kernel> kernels;
  for (const double nanos : net.nanos)
    kernels.push_back({.name = "k", .demand = {.blocks = 20, .nanos = nanos}});
  const auto made = dispatch(net.dag, kernels, std::vector<int>(kernels.size(), 0),
                             {.policy = "nimble", .streams = 2, .sms = 132});
  CHECK(made.ok() && made->lanes == 2);
  Dag lanes(net.dag.size());
  for (const Dispatched& each : made->kernels)
    for (const int before : each.predecessors) lanes.add(before, each.kernel);
  std::vector<Used> all = net.all;
  const int64_t bytes = place_used(all, *Reachability::make(lanes), 64);
  expect_apart(lanes, all, bytes);
  return bytes;
}

TEST(PartialOrderPlaces, CellsReuseMemoryThoughTheirBranchesRunBesideEachOther) {
  std::mt19937 random(3);
  for (int turn = 0; turn < 3; ++turn) {
    Cells net = cells(random, 18);
    std::vector<Living> sequential;
    int64_t apart = 0;
    for (const Used& one : net.all) {
      const auto [first, last] = std::minmax_element(one.users.begin(), one.users.end());
      sequential.push_back({.size = one.size, .first = *first, .last = *last});
      apart += one.size;
    }
    const int64_t least = place_living(sequential, 64), two = bytes_of_two_lanes(net);
    const int64_t bytes = place_used(net.all, *Reachability::make(net.dag), 64);
    expect_apart(net.dag, net.all, bytes);
    // As many lanes as the network is wide want three times the memory; two lanes want little more.
    EXPECT_LT(bytes, 3.3 * static_cast<double>(least));
    EXPECT_LT(bytes * 5, apart);
    EXPECT_LE(static_cast<double>(two), 1.3 * static_cast<double>(least))
        << two << " beside " << least;
  }
}

}  // namespace
}  // namespace obelisk::schedule

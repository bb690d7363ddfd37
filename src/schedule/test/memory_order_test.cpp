// Where buffers lie when works run in a partial order, and what the plan adds to it: compared with
// walks along the edges.
#include <gtest/gtest.h>

#include "machine/machine.h"
#include "schedule/memory_order.h"
#include "schedule/test/orders.h"

namespace obelisk::schedule {
namespace {

using machine::thresholds::kLongerForMemory;

/// Each buffer has a writer; some of those that follow it read it.
std::vector<Used> random_uses(std::mt19937& random, const Dag& dag) {
  std::vector<Used> all;
  for (int work = 0; work < dag.size(); ++work) {
    Used one{.size = 1 + static_cast<int64_t>(random() % 1000), .users = {work}, .writers = {work}};
    const std::vector<bool> met = walked(dag, work);
    for (int other = 0; other < dag.size(); ++other)
      if (met[other] && random() % 3 == 0) one.users.push_back(other);
    std::sort(one.users.begin(), one.users.end());
    all.push_back(one);
  }
  return all;
}

/// The order with its edges of reuse: of two buffers that share bytes the earlier by waves goes
/// first.
Dag with_reuse(const Dag& dag, const std::vector<Used>& all, const MemoryOrder& order) {
  Dag whole = dag;
  const auto span = [&](const Used& one) {
    std::pair<int, int> waves{order.waves, -1};
    for (const int user : one.users)
      waves = {std::min(waves.first, order.wave[user]), std::max(waves.second, order.wave[user])};
    return waves;
  };
  for (const Used& a : all)
    for (const Used& b : all) {
      const bool share = a.offset < b.offset + b.size && b.offset < a.offset + a.size;
      if (&a == &b || !share || span(a).second >= span(b).first) continue;
      for (const int from : a.users)
        for (const int to : b.writers) whole.add(from, to);
    }
  return whole;
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
    ASSERT_EQ(all[a].offset % 64, 0);
    ASSERT_LE(all[a].offset + all[a].size, bytes);
    for (size_t b = a + 1; b < all.size(); ++b)
      if (all[a].offset < all[b].offset + all[b].size &&
          all[b].offset < all[a].offset + all[a].size) {
        ASSERT_TRUE(before(all[a], all[b]) || before(all[b], all[a])) << a << " and " << b;
      }
  }
}

/// All that a plan promises. Gives the order with its edges of reuse.
Dag expect_sound(const Dag& dag, const std::vector<Need>& needs, const std::vector<Used>& all,
                 const MemoryOrder& order) {
  std::vector<double> nanos;
  for (const Need& need : needs) nanos.push_back(need.nanos);
  Dag whole = with_reuse(dag, all, order);
  const auto sorted = topological_order(whole);
  EXPECT_TRUE(sorted.ok());
  if (!sorted.ok()) return whole;
  expect_apart(whole, all, order.bytes);
  EXPECT_EQ(static_cast<int>(order.wave.size()), dag.size());
  for (int work = 0; work < whole.size(); ++work) {
    int chain = 0;
    for (const int before : whole.before[work]) chain = std::max(chain, order.wave[before] + 1);
    EXPECT_EQ(order.wave[work], chain) << work;
    EXPECT_LT(order.wave[work], order.waves);
  }
  EXPECT_DOUBLE_EQ(order.critical, longest_paths(whole, *sorted, nanos).critical);
  EXPECT_LE(order.critical,
            kLongerForMemory * longest_paths(dag, sorted_topologically(dag), nanos).critical);
  return whole;
}

TEST(MemoryOrder, BuffersOfRandomOrdersStayApart) {
  std::mt19937 random(11);
  int64_t added = 0, shared = 0, apart = 0;
  for (int turn = 0; turn < 1200; ++turn) {
    const Dag dag = random_dag(random, 40);
    std::vector<Used> all = random_uses(random, dag);
    std::vector<Need> needs;
    for (int work = 0; work < dag.size(); ++work)
      needs.push_back({.nanos = 1 + static_cast<double>(random() % 100),
                       .workers = 1 + static_cast<int64_t>(random() % 10)});
    const MemoryOrder order = place_in_order(dag, needs, 1 + random() % 40, all, 64);
    const Dag whole = expect_sound(dag, needs, all, order);
    ASSERT_FALSE(HasFailure()) << "turn " << turn;
    const auto by_values = Reachability::make(dag);
    for (int from = 0; from < whole.size(); ++from)
      for (const int to : whole.after[from]) added += !(*by_values)(from, to);
    shared += order.bytes;
    for (const Used& one : all) apart += (one.size + 63) / 64 * 64;
  }
  EXPECT_GT(added, 500);  // edges are added where they cost nothing
  EXPECT_LT(shared, apart);
}

TEST(MemoryOrder, WhatFollowsReusesAndWhatRunsBesideDoesNot) {
  Dag chain(6), beside(6);
  for (int k = 0; k + 1 < 6; ++k) chain.add(k, k + 1);
  std::vector<Used> all;
  for (int k = 0; k + 1 < 6; ++k) all.push_back({.size = 640, .users = {k, k + 1}, .writers = {k}});
  const std::vector<Need> needs(6, Need{.nanos = 10});
  EXPECT_EQ(place_in_order(chain, needs, 8, all, 64).bytes, 2 * 640);
  std::vector<Used> alone;
  for (int k = 0; k < 6; ++k) alone.push_back({.size = 640, .users = {k}, .writers = {k}});
  const MemoryOrder wide = place_in_order(beside, needs, 8, alone, 64);
  EXPECT_EQ(wide.bytes, 6 * 640);
  EXPECT_EQ(wide.sequential, 640);
  EXPECT_EQ(wide.waves, 1);
}

TEST(MemoryOrder, AnEdgeIsAddedWhereItLengthensNoPath) {
  // Beside one long work there is time for three short ones, one after another.
  const std::vector<Need> needs{{100}, {30}, {30}, {30}};
  std::vector<Used> all;
  for (int k = 0; k < 4; ++k) all.push_back({.size = 640, .users = {k}, .writers = {k}});
  const MemoryOrder order = place_in_order(Dag(4), needs, 8, all, 64);
  EXPECT_EQ(order.bytes, 2 * 640);
  EXPECT_EQ(order.critical, 100);
  EXPECT_EQ(order.waves, 3);
  const MemoryOrder without = place_in_order(Dag(4), needs, 8, all, 64, false);
  EXPECT_EQ(without.bytes, 4 * 640);
  EXPECT_EQ(without.waves, 1);
}

TEST(MemoryOrder, WhatLastsSharesWithNobody) {
  Dag chain(4);
  for (int k = 0; k + 1 < 4; ++k) chain.add(k, k + 1);
  std::vector<Used> all{{.size = 64, .users = {0, 1, 2, 3}, .writers = {1}}};
  for (int k = 0; k < 4; ++k) all.push_back({.size = 640, .users = {k}, .writers = {k}});
  EXPECT_EQ(place_in_order(chain, std::vector<Need>(4), 8, all, 64).bytes, 640 + 64);
}

/// Cells of five blocks, each of which adds two values: what a separable convolution leaves (twice
/// a depthwise and a pointwise one; a reader takes the ReLU along), a pooling, or an input of the
/// cell as it is. The cell's output has all five sums in one buffer; it reads the two cells before.
struct Side {
  bool left = true;  // which input of the cell
  int taps = 0;      // of a separable convolution; 0: none
  bool pools = false;
};
using Cell = std::vector<std::pair<Side, Side>>;

/// The normal cell of NASNet-A.
const Cell kNasnet = {{{false, 5}, {true, 3}},
                      {{true, 5}, {true, 3}},
                      {{false, 0, true}, {true, 0}},
                      {{true, 0, true}, {true, 0, true}},
                      {{false, 3}, {false, 0}}};

Cell random_cell(std::mt19937& random) {
  Cell cell;
  const auto side = [&] {
    Side made{.left = random() % 2 == 0};
    const int kind = static_cast<int>(random() % 4);
    if (kind == 0) made.pools = true;
    if (kind > 1) made.taps = random() % 2 == 0 ? 3 : 5;
    return made;
  };
  for (int block = 0; block < 5; ++block) {
    const Side a = side(), b = side();
    cell.push_back({a, b});
  }
  return cell;
}

struct Network {
  Dag dag;
  std::vector<Used> all;
  std::vector<Need> needs;
};
template <typename CellOf>
Network network(int count, const CellOf& cell_of) {
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
  work({}, before, 1000), work({before}, last, 1000);
  for (int cell = 0; cell < count; ++cell) {
    if (cell == count / 3 || cell == 2 * count / 3)
      size /= 2;  // a reduction: half the pixels' area, twice the channels
    const int left = buffer(size), right = buffer(size),
              out = buffer(5 * size);  // 1x1 convolutions of both inputs come first
    work({before}, left, 4000), work({last}, right, 4000);
    for (const auto& [one, other] : cell_of()) {
      std::vector<int> sum;
      for (const Side& side : {one, other}) {
        int value = side.left ? left : right;
        if (side.pools) {
          const int pooled = buffer(size);
          work({value}, pooled, 1500), value = pooled;
        }
        for (int twice = 0; side.taps > 0 && twice < 2; ++twice) {
          const int depth = buffer(size), point = buffer(size);
          work({value}, depth, 500 * side.taps), work({depth}, point, 3000), value = point;
        }
        sum.push_back(value);
      }
      work(sum, out, 1000);
    }
    before = last, last = out;
  }
  Network made{Dag(static_cast<int>(works.size())), {}, {}};
  for (const int64_t each : sizes) made.all.push_back({.size = each});
  for (size_t w = 0; w < works.size(); ++w) {
    const int number = static_cast<int>(w);
    made.needs.push_back({works[w].nanos, 20});
    for (const int read : works[w].reads) {
      Used& of = made.all[read];
      for (const int writer : of.writers) made.dag.add(writer, number);
      if (of.users.back() != number) of.users.push_back(number);
    }
    made.all[works[w].into].writers.push_back(number);
    made.all[works[w].into].users.push_back(number);
  }
  return made;
}

/// Bytes beside the sequential plan's; that kernels run beside each other as they did.
double share_of_sequential(Network net) {
  const MemoryOrder order = place_in_order(net.dag, net.needs, 132, net.all, 64);
  expect_sound(net.dag, net.needs, net.all, order);
  int64_t apart = 0;
  double one_by_one = 0;
  for (const Used& one : net.all) apart += one.size;
  for (const Need& each : net.needs) one_by_one += each.nanos;
  EXPECT_LT(order.bytes * 8, apart);  // reuse does happen
  EXPECT_LT(order.critical * 2, one_by_one);
  return static_cast<double>(order.bytes) / static_cast<double>(order.sequential);
}

TEST(MemoryOrder, CellsOfNasnetNeedLittleMoreThanOneAfterAnother) {
  EXPECT_LE(share_of_sequential(network(18, [] { return kNasnet; })), 1.3);
}

TEST(MemoryOrder, SoDoCellsAtRandomOnAverage) {
  double sum = 0;
  std::mt19937 random(1);
  constexpr int kNetworks = 12;
  for (int turn = 0; turn < kNetworks; ++turn) {
    const double share = share_of_sequential(network(18, [&] { return random_cell(random); }));
    EXPECT_LE(share, 2.1) << "turn " << turn;
    sum += share;
  }
  EXPECT_LE(sum, 1.4 * kNetworks);
}

}  // namespace
}  // namespace obelisk::schedule

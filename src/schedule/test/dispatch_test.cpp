// Lanes and launch orders: traces that were done by hand, and random orders.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "schedule/dispatch.h"
#include "schedule/test/orders.h"

namespace obelisk::schedule {
namespace {

constexpr KernelClass M = KernelClass::kMemory, C = KernelClass::kCompute;

Dag dag_of(int count, const std::vector<std::pair<int, int>>& edges) {
  Dag dag(count);
  for (const auto& [from, to] : edges) dag.add(from, to);
  return dag;
}
Kernel kernel(KernelClass kind, int64_t shared, double us = 1, int64_t blocks = 1) {
  return {"k",
          {.shared_bytes = shared,
           .threads = 256,
           .registers = 32,
           .blocks = blocks,
           .nanos = us * 1000},
          kind,
          "by hand",
          true};
}
std::vector<int> numbers(int count) {
  std::vector<int> out(count);
  for (int k = 0; k < count; ++k) out[k] = k;
  return out;
}
std::vector<Kernel> some_kernels(std::mt19937& random, int count, bool free) {
  std::vector<Kernel> out;
  for (int k = 0; k < count; ++k) {
    out.push_back(kernel(random() % 2 == 0 ? M : C, static_cast<int64_t>(random() % 5) * 1024,
                         1 + static_cast<double>(random() % 20),
                         1 + static_cast<int64_t>(random() % 300)));
    out.back().launches = !free || random() % 6 != 0;
  }
  return out;
}
Dag random_dag(std::mt19937& random, int count, int edges) {
  Dag dag(count);
  for (int k = 0; k < edges; ++k) {
    const int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
    if (a != b) dag.add(std::min(a, b), std::max(a, b));
  }
  return dag;
}
std::vector<int> waves_of(const Dag& dag) {
  std::vector<int> waves(dag.size(), 0);
  for (int v = 0; v < dag.size(); ++v)
    for (const int p : dag.before[v]) waves[v] = std::max(waves[v], waves[p] + 1);
  return waves;
}

// 0 -> 1, 2, 3;  1, 2 -> 4;  3, 4 -> 5
const std::vector<std::pair<int, int>> kJoined = {{0, 1}, {0, 2}, {0, 3}, {1, 4},
                                                  {2, 4}, {3, 5}, {4, 5}};
// Two diamonds, one behind the other: 0 -> 1, 2 -> 3 -> 4, 5 -> 6
const std::vector<std::pair<int, int>> kDiamonds = {{0, 1}, {0, 2}, {1, 3}, {2, 3},
                                                    {3, 4}, {3, 5}, {4, 6}, {5, 6}};

TEST(Opara, Algorithm1ByHand) {
  // 0: new, lane 0.  1: 0 passes lane 0 on.  2: 0 has passed it on, new, lane 1.  3: the same,
  // lane 2. 4: 1 passes lane 0 on.  5: 3 comes first and passes lane 2 on; 4 keeps lane 0.
  const Lanes joined = allocate_opara(dag_of(6, kJoined), numbers(6));
  EXPECT_EQ(joined.lane, (std::vector<int>{0, 0, 1, 2, 0, 2}));
  EXPECT_EQ(joined.count, 3);
  // 3: 1 comes first, lane 0.  5: 3 has passed lane 0 on to 4, and lane 1 has ended with 2: new,
  // lane 2.
  const Lanes diamonds = allocate_opara(dag_of(7, kDiamonds), numbers(7));
  EXPECT_EQ(diamonds.lane, (std::vector<int>{0, 0, 1, 0, 0, 2, 0}));
  EXPECT_EQ(diamonds.count, 3);
}

TEST(Opara, Algorithm2ByHand) {
  // L_mem {0}: 0.  Then L_mem {2, 3}, L_comp {1}.  Turns: compute 1; memory 3, which asks for less
  // than 2; compute has none, memory 2, which releases 4; compute 4; memory 5.
  const std::vector<Kernel> kernels = {kernel(M, 4), kernel(C, 8), kernel(M, 2),
                                       kernel(M, 1), kernel(C, 1), kernel(M, 1)};
  EXPECT_EQ(order_opara(dag_of(6, kJoined), kernels), (std::vector<int>{0, 1, 3, 2, 4, 5}));
  // Both lists have some: memory goes first. 2 and 3 ask for the same: 2 was there first.
  EXPECT_EQ(order_opara(Dag(4), {kernel(C, 1), kernel(C, 0), kernel(M, 9), kernel(M, 9)}),
            (std::vector<int>{2, 1, 3, 0}));
}

TEST(Opara, EachRuleCanBeLeftOut) {
  const std::vector<Kernel> kernels = {kernel(M, 4), kernel(C, 8), kernel(M, 2),
                                       kernel(M, 1), kernel(C, 1), kernel(M, 1)};
  const Dag dag = dag_of(6, kJoined);
  const auto order = [&](const DispatchRules& rules) {
    return order_opara(dag, kernels, nullptr, rules);
  };
  // One list: behind 0 the least demand, 3, 2, then 1, which releases 4.
  EXPECT_EQ(order({.classes = false}), (std::vector<int>{0, 3, 2, 1, 4, 5}));
  // Two lists in turns, of each what was ready first: compute 1, memory 2, compute 4, memory 3.
  EXPECT_EQ(order({.demand = false}), (std::vector<int>{0, 1, 2, 4, 3, 5}));
  EXPECT_EQ(order({.classes = false, .demand = false}), numbers(6));
  DispatchOptions options{.policy = "opara", .sms = 4};
  const auto with = dispatch(dag, kernels, waves_of(dag), options);
  options.rules.priorities = false;
  const auto without = dispatch(dag, kernels, waves_of(dag), options);
  ASSERT_TRUE(with.ok() && without.ok());
  for (size_t k = 0; k < kernels.size(); ++k) {
    EXPECT_LT(with->kernels[k].priority, 0);
    EXPECT_EQ(without->kernels[k].priority, 0);
    EXPECT_EQ(without->kernels[k].kernel, with->kernels[k].kernel);
  }
  options.rules = {.demand = false};
  EXPECT_EQ(dispatch(dag, kernels, waves_of(dag), options)->kernels[2].kernel, 2);
}

TEST(Opara, KernelsThatLaunchNothingAreFree) {
  // 0 -> 1 (launches nothing) -> 2.  As soon as 0 is launched, 1 is, and 2 has its turn before 3.
  std::vector<Kernel> kernels = {kernel(M, 5), kernel(M, 9), kernel(C, 9), kernel(M, 6)};
  kernels[1].launches = false;
  EXPECT_EQ(order_opara(dag_of(4, {{0, 1}, {1, 2}}), kernels), (std::vector<int>{0, 1, 2, 3}));
  const auto made =
      dispatch(dag_of(4, {{0, 1}, {1, 2}}), kernels, {0, 1, 2, 0}, {.policy = "opara", .sms = 4});
  ASSERT_TRUE(made.ok()) << made.error().text();
  ASSERT_EQ(made->kernels.size(), 3u);
  EXPECT_EQ(made->lanes, 2);
  EXPECT_EQ(made->kernels[1].kernel, 2);
  EXPECT_EQ(made->kernels[1].predecessors, (std::vector<int>{0}));
}

TEST(Opara, LeastDemandLooksAtAllResources) {
  const Demand base{.shared_bytes = 1024, .threads = 256, .registers = 64, .blocks = 10};
  const auto with = [&](auto change) {
    Demand other = base;
    change(other);
    return other;
  };
  EXPECT_FALSE(asks_for_less(base, base));
  for (const Demand& more :
       {with([](Demand& d) { ++d.shared_bytes; }), with([](Demand& d) { ++d.threads; }),
        with([](Demand& d) { ++d.registers; }), with([](Demand& d) { ++d.blocks; })}) {
    EXPECT_TRUE(asks_for_less(base, more));
    EXPECT_FALSE(asks_for_less(more, base));
  }
  EXPECT_TRUE(asks_for_less(with([](Demand& d) { d.threads = 999; }),
                            with([](Demand& d) { ++d.shared_bytes; })));
  EXPECT_TRUE(asks_for_less(with([](Demand& d) { d.registers = 255; }),
                            with([](Demand& d) { ++d.threads; })));
}

TEST(Classes, ByTheRidgeElseByTheTable) {
  EXPECT_EQ(classify(1000, 10, 50, "Relu").kind, C);
  EXPECT_EQ(classify(1000, 100, 50, "MatMul").kind, M);
  EXPECT_EQ(classify(1000, 10, 50, "Relu").why, "100.0 operations a byte, the ridge is at 50.0");
  EXPECT_EQ(classify(0, 10, 50, "MatMul").kind, C);
  EXPECT_EQ(classify(0, 10, 50, "MatMul").why, "by the table, MatMul");
  for (const char* op : {"MaxPool", "Add", "Softmax", "BatchNormalization", "Concat"})
    EXPECT_EQ(class_of_op(op), M) << op;
  for (const char* op : {"MatMul", "Gemm", "Conv", "Attention"})
    EXPECT_EQ(class_of_op(op), C) << op;
}

TEST(Nimble, MatchingsByHand) {
  // Matching: 0-1, 1-4, 3-5; 2 and 4 find their successors taken. Chains {2}, {0 1 4}, {3 5}; none
  // begins where another's end leads.
  const Dag joined = dag_of(6, kJoined);
  EXPECT_EQ(allocate_nimble(joined, *Reachability::make(joined)).count, 3);
  // Chains {2}, {5}, {0 1 3 4 6}; 2 leads to 5, so both share a lane: one less than algorithm 1's.
  const Dag diamonds = dag_of(7, kDiamonds);
  const Lanes lanes = allocate_nimble(diamonds, *Reachability::make(diamonds));
  EXPECT_EQ(lanes.count, 2);
  EXPECT_EQ(lanes.lane[2], lanes.lane[5]);
  for (const int v : {1, 3, 4, 6}) EXPECT_EQ(lanes.lane[v], lanes.lane[0]);
  EXPECT_NE(lanes.lane[0], lanes.lane[2]);
  // An augmenting path: 0 takes 2 first, 1 has only 2, so 0 goes over to 3.
  const Dag crossed = dag_of(4, {{0, 2}, {0, 3}, {1, 2}});
  EXPECT_EQ(allocate_nimble(crossed, *Reachability::make(crossed)).count, 2);
}

TEST(Critical, ByHand) {
  // Remaining paths: 0 20, 1 10, 2 5 us. 0 is first; 2 is ready beside it; 1 when 0 has ended.
  EXPECT_EQ(order_critical(dag_of(3, {{0, 1}}),
                           {kernel(M, 0, 10), kernel(M, 0, 10), kernel(M, 0, 5, 4)}, 4),
            (std::vector<int>{0, 2, 1}));
  // As urgent within a tenth: beside 0, with 3 of 4 SMs taken, 2 fits and 1 does not.
  EXPECT_EQ(
      order_critical(Dag(3), {kernel(M, 0, 100, 3), kernel(M, 0, 96, 2), kernel(M, 0, 95, 1)}, 4),
      (std::vector<int>{0, 2, 1}));
  // Both fit: the other class goes first.
  EXPECT_EQ(order_critical(Dag(3), {kernel(C, 0, 100), kernel(C, 0, 99), kernel(M, 0, 98)}, 4),
            (std::vector<int>{0, 2, 1}));
  // More than a tenth apart: the longer path, whatever its class and size.
  EXPECT_EQ(
      order_critical(Dag(3), {kernel(C, 0, 100, 4), kernel(C, 0, 80, 4), kernel(M, 0, 50, 1)}, 8),
      (std::vector<int>{0, 1, 2}));
}

TEST(Predict, NodesAndEdgesOfTheGraphCount) {
  // 0 -> 1 of 1 us each: both wait half a microsecond, and an edge takes a tenth.
  const auto us = [](const Dag& dag, const std::vector<Kernel>& kernels, const char* policy) {
    const DispatchOptions options = {
        .policy = policy, .sms = 8, .node_nanos = 500, .edge_nanos = 100};
    auto made = dispatch(dag, kernels, waves_of(dag), options);
    CHECK(made.ok(), "{}", made.error().text());
    return made->predicted_nanos / 1000;
  };
  EXPECT_DOUBLE_EQ(us(dag_of(2, {{0, 1}}), {kernel(M, 0, 1), kernel(M, 0, 1)}, "opara"), 3.1);
  // Two chains of two: waves have an edge from each of the first to each of the second.
  const Dag chains = dag_of(4, {{0, 1}, {2, 3}});
  const std::vector<Kernel> equal(4, kernel(M, 0, 1));
  EXPECT_DOUBLE_EQ(us(chains, equal, "opara"), 3.2);
  EXPECT_DOUBLE_EQ(us(chains, equal, "waves"), 3.4);
  EXPECT_DOUBLE_EQ(us(chains, equal, "sequential"), 6.3);
}

TEST(Predict, ByHand) {
  const auto us = [](const Dag& dag, const std::vector<Kernel>& kernels, const char* policy) {
    auto made = dispatch(dag, kernels, waves_of(dag), {.policy = policy, .sms = 4});
    CHECK(made.ok(), "{}", made.error().text());
    return made->predicted_nanos / 1000;
  };
  // Two kernels of half the machine: side by side, or one after the other.
  const std::vector<Kernel> halves = {kernel(M, 0, 10, 2), kernel(C, 0, 10, 2)};
  EXPECT_DOUBLE_EQ(us(Dag(2), halves, "opara"), 10);
  EXPECT_DOUBLE_EQ(us(Dag(2), halves, "sequential"), 20);
  // Each fills the machine: nothing is gained.
  EXPECT_DOUBLE_EQ(us(Dag(2), {kernel(M, 0, 10, 4), kernel(C, 0, 10, 9)}, "opara"), 20);
  // 0 -> 1 beside 2 -> 3: a wave waits for 2's 9 us; lanes do not.
  const Dag pair = dag_of(4, {{0, 1}, {2, 3}});
  const std::vector<Kernel> uneven = {kernel(M, 0, 1), kernel(M, 0, 9), kernel(M, 0, 9),
                                      kernel(M, 0, 1)};
  EXPECT_DOUBLE_EQ(us(pair, uneven, "waves"), 18);
  EXPECT_DOUBLE_EQ(us(pair, uneven, "critical"), 10);
  EXPECT_DOUBLE_EQ(us(pair, uneven, "auto"), 10);
  auto chosen = dispatch(pair, uneven, waves_of(pair), {.policy = "auto", .sms = 4});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->reason,
            "nimble, by the prediction (us): waves 18.0, sequential 20.0, nimble 10.0, opara 10.0, "
            "critical 10.0");
  // A chain gains nothing: waves stay.
  chosen = dispatch(dag_of(2, {{0, 1}}), halves, {0, 1}, {.policy = "auto", .sms = 4});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->policy, "waves");
}

TEST(Dispatch, TenThousandRandomOrdersAreTopologicalAndLanesAreChains) {
  std::mt19937 random(1);
  const char* const policies[] = {"waves", "sequential", "nimble", "opara", "critical", "auto"};
  const char* const orders[] = {"", "", "topological", "opara", "critical", "random:5"};
  for (int turn = 0; turn < 10000; ++turn) {
    const int count = 1 + static_cast<int>(random() % 24);
    const Dag dag = random_dag(random, count, static_cast<int>(random() % (2 * count + 1)));
    const std::vector<Kernel> kernels = some_kernels(random, count, turn % 2 == 0);
    for (const auto& order : {order_opara(dag, kernels), order_critical(dag, kernels, 132),
                              order_random(dag, static_cast<uint64_t>(turn))})
      ASSERT_TRUE(is_topological(dag, order)) << turn;
    const auto reaches = Reachability::make(dag);
    const Lanes opara = allocate_opara(dag, numbers(count)),
                nimble = allocate_nimble(dag, *reaches);
    // Algorithm 1: who follows in a lane follows by an edge, so each passes its lane on once; as
    // many lanes as kernels that inherit none.
    std::vector<int> last(opara.count, -1);
    int inherits = 0;
    for (int v = 0; v < count; ++v) {
      int& before = last[opara.lane[v]];
      if (before >= 0) {
        ++inherits;
        ASSERT_TRUE(std::binary_search(dag.before[v].begin(), dag.before[v].end(), before)) << turn;
      }
      before = v;
    }
    ASSERT_EQ(opara.count, count - inherits);
    for (int a = 0; a < count; ++a)
      for (int b = a + 1; b < count; ++b)
        if (nimble.lane[a] == nimble.lane[b]) {
          ASSERT_TRUE((*reaches)(a, b)) << turn;
        }
    // All of it together, as the command line asks for it; dispatch() validates what it gives.
    DispatchOptions options{.policy = policies[random() % 6], .sms = 132};
    if (options.policy != "waves")
      options.launch_order = orders[random() % 6], options.streams = static_cast<int>(random() % 4);
    const auto made = dispatch(dag, kernels, waves_of(dag), options);
    ASSERT_TRUE(made.ok()) << turn << ": " << made.error().text();
    if (options.streams > 0 && made->policy != "waves") {
      ASSERT_LE(made->lanes, options.streams);
    }
  }
}

TEST(Dispatch, CostIsLinear) {
  std::mt19937 random(2);
  for (const int count : {500, 1000, 2000, 4000, 8000}) {
    const Dag dag = random_dag(random, count, 3 * count);
    const std::vector<Kernel> kernels = some_kernels(random, count, false);
    Steps allocated, ordered;
    (void)allocate_opara(dag, numbers(count), &allocated);
    (void)order_opara(dag, kernels, &ordered);
    EXPECT_LE(allocated.count, count + dag.edges());
    EXPECT_EQ(ordered.count, count + dag.edges());
  }
}

TEST(Dispatch, WhatWasTamperedWithIsRefused) {
  const Dag dag = dag_of(6, kJoined);
  std::mt19937 random(4);
  const std::vector<Kernel> kernels = some_kernels(random, 6, false);
  const auto sound = dispatch(dag, kernels, waves_of(dag), {.policy = "opara", .sms = 8});
  ASSERT_TRUE(sound.ok());
  const auto said = [&](auto tamper) {
    Dispatch made = *sound;
    tamper(made);
    const Status status = validate_dispatch(dag, kernels, made);
    return status.ok()
               ? std::string("nothing")
               : status.error().message.substr(std::string("the dispatch is refused: ").size());
  };
  EXPECT_EQ(said([](Dispatch&) {}), "nothing");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels.pop_back(); }), "it lacks kernel 5");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[1].kernel = 0; }), "it has kernel 0 twice");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[1].kernel = 6; }), "it has kernel 6 of 6");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[2].position = 5; }).substr(9),
            "has position 5 instead of 2");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[0].lane = 3; }), "kernel 0 has lane 3 of 3");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[5].predecessors = {4}; }),
            "no edges lead from kernel 3 to kernel 5, which follows it");
  EXPECT_EQ(said([](Dispatch& d) { d.kernels[0].predecessors = {5}; }),
            "kernel 0 follows kernel 5, which is not launched before it");
  for (const Dispatched& each : sound->kernels)
    for (size_t k = 0; k < each.predecessors.size(); ++k)
      EXPECT_EQ(
          said([&](Dispatch& d) {
            d.kernels[each.position].predecessors.erase(
                d.kernels[each.position].predecessors.begin() + static_cast<std::ptrdiff_t>(k));
          }),
          fmt::format("no edges lead from kernel {} to kernel {}, which follows it",
                      each.predecessors[k], each.kernel));
  Dispatch merged = *sound;  // 2 into lane 0, beside 1
  for (Dispatched& each : merged.kernels)
    if (each.kernel == 2) each.lane = 0;
  EXPECT_EQ(validate_dispatch(dag, kernels, merged).error().message,
            "the dispatch is refused: kernel 1 does not follow kernel 2, before it in lane 0");
}

TEST(Dispatch, UnknownNamesAreRefused) {
  const auto said = [](DispatchOptions options) { return check_options(options).error().message; };
  EXPECT_EQ(said({.policy = "best"}), "there is no dispatch 'best'");
  EXPECT_EQ(said({.policy = "opara", .launch_order = "random"}),
            "there is no launch order 'random'");
  EXPECT_EQ(said({.policy = "opara", .launch_order = "random:x"}),
            "there is no launch order 'random:x'");
  EXPECT_EQ(said({.streams = 2}), "the dispatch waves has neither lanes nor an order of its own");
  EXPECT_EQ(said({.policy = "opara", .search_seconds = 1}),
            "the dispatch opara is not searched for");
  EXPECT_TRUE(check_options({.policy = "auto", .search_seconds = 1}).ok());
  EXPECT_TRUE(check_options({.policy = "auto", .launch_order = "random:17", .streams = 3}).ok());
}

TEST(Dispatch, KernelsStartEarlyWhereTheyTakeLittleRoomWhileTheyWait) {
  machine::Machine machine;
  machine.sms = 4, machine.scratchpad = Bytes(100 * 1024);
  // Of shared memory a block of 3 takes half an SM, and there are four: half of the machine. One of
  // 1 takes a tenth by shared memory and an eighth by threads: a part in 32 of the machine.
  const std::vector<Kernel> kernels = {kernel(M, 0), kernel(M, 10 * 1024), kernel(M, 0),
                                       kernel(C, 50 * 1024, 1, 4)};
  auto made = dispatch(dag_of(4, {{0, 1}, {2, 3}}), kernels, {0, 1, 0, 1},
                       {.policy = "opara", .sms = machine.sms});
  ASSERT_TRUE(made.ok());
  const auto early = [&](double most) {
    start_early(*made, kernels, machine, most);
    std::vector<int> late;
    for (const Dispatched& each : made->kernels)
      if (!each.early) late.push_back(each.kernel);
    std::sort(late.begin(), late.end());
    return late;
  };
  EXPECT_EQ(early(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(early(1.0 / 33), (std::vector<int>{0, 2}));
  EXPECT_EQ(early(1.0 / 32), (std::vector<int>{2}));
  EXPECT_EQ(early(0.49), (std::vector<int>{2}));
  EXPECT_NE(print_json(*made, kernels).find(R"("early": false)"), std::string::npos);
  EXPECT_NE(print(*made, kernels).find("start when its tiles are computed"), std::string::npos);
  EXPECT_EQ(early(0.5), std::vector<int>{});
  EXPECT_EQ(early(1), std::vector<int>{});
  EXPECT_EQ(print_json(*made, kernels).find(R"("early": false)"), std::string::npos);
}

TEST(Dispatch, JsonAndPriorities) {
  std::vector<Kernel> kernels = {kernel(M, 1), kernel(C, 2), kernel(M, 3)};
  kernels[0].name = "a \"b\"\n";
  const auto made =
      dispatch(dag_of(3, {{0, 1}, {0, 2}}), kernels, {0, 1, 1}, {.policy = "opara", .sms = 4});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->kernels[0].priority, -5);
  EXPECT_EQ(made->kernels[1].priority, -5);
  EXPECT_EQ(made->kernels[2].priority, -4);
  const std::string json = print_json(*made, kernels);
  EXPECT_NE(
      json.find(
          R"("kernel": 0, "name": "a \"b\"\u000a", "position": 0, "lane": 0, "priority": -5, "class": "memory")"),
      std::string::npos)
      << json;
  EXPECT_NE(json.find(R"("predecessors": [0], "early": true, "reason": ")"), std::string::npos)
      << json;
}

}  // namespace
}  // namespace obelisk::schedule
